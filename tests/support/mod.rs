//! The plugin as tests open it: built by cargo once per test binary, under the name that NCCL searches for.
//!
//! `cargo test` builds no library of a package that is a cdylib only. So tests call cargo for it, open exactly the file that cargo names
//! and print its hash; they never use other files in the target folder. With IRONRAIL_TEST_PROFILE=release it is the optimised one.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod counting;
pub(crate) mod faults;
pub(crate) mod fork;
pub(crate) mod gpu;
pub(crate) mod heap;
pub(crate) mod link;
pub(crate) mod net;
pub(crate) mod profiler;
pub(crate) mod random;
pub(crate) mod sockets;
pub(crate) mod stage;
pub(crate) mod stranger;
pub(crate) mod traffic;
pub(crate) mod virtual_fabric;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The name that NCCL searches for with NCCL_NET_PLUGIN=ironrail.
pub(crate) const PLUGIN_FILE: &str = "libnccl-net-ironrail.so";

/// The plugin, in a folder that suits LD_LIBRARY_PATH.
pub(crate) fn plugin() -> PathBuf {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN
        .get_or_init(|| {
            let built = build(is_optimised());
            say(&format!("plugin: {}", hash(&built)));
            named(&built)
        })
        .clone()
}

/// Whether [`plugin`] is the release build.
pub(crate) fn is_optimised() -> bool {
    std::env::var("IRONRAIL_TEST_PROFILE").is_ok_and(|profile| profile == "release")
}

/// The optimised plugin, for benches: the file itself, not the link.
pub(crate) fn optimised_plugin() -> PathBuf {
    let built = build(true);
    say(&format!("plugin: {}", hash(&built)));
    built
}

fn build(optimised: bool) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut cargo =
        escargot::CargoBuild::new().manifest_path(manifest).package("ironrail").arg("--lib");
    if optimised {
        cargo = cargo.release();
    }
    let mut found = None;
    for message in cargo.exec().expect("cargo runs") {
        let message = message.expect("the plugin builds");
        if let Ok(escargot::format::Message::CompilerArtifact(artifact)) = message.decode() {
            let library =
                artifact.filenames.iter().find(|file| file.ends_with("libnccl_net_ironrail.so"));
            found = library.map(|file| file.to_path_buf()).or(found);
        }
    }
    found.expect("cargo says where it left the plugin")
}

/// A link with NCCL's name, in a folder without the command `ironrail`, as scripts/build leaves it. Test binaries may do this at the same
/// time, so it is made under another name and renamed.
fn named(built: &Path) -> PathBuf {
    let folder = built.with_file_name("plugin");
    fs::create_dir_all(&folder).expect("the target folder takes a folder");
    let link = folder.join(PLUGIN_FILE);
    let aside = folder.join(format!("{PLUGIN_FILE}.{}", std::process::id()));
    let file = Path::new("..").join(built.file_name().expect("a file"));
    std::os::unix::fs::symlink(file, &aside).expect("the target folder takes a link");
    fs::rename(&aside, &link).expect("the target folder takes a link");
    link
}

#[expect(clippy::print_stdout, reason = "a test's log")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

fn hash(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().expect("sha256sum runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The output of a command, which must succeed.
pub(crate) fn output_of(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8(output.stdout).expect("text")
}
