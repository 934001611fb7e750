//! The cases T-I, T-M, T-C and T-R, and halos of fixed lengths, over the plugin of this tree: with one rail and with two by its newest
//! table, and with one by v8. Ignored without libfabric.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use escargot::CargoBuild;
use escargot::format::Message;
use harness::{Need, Test};

fn main() -> ExitCode {
    harness::run([
        Test::new(by_v12_with_one_rail).needs(libfabric()),
        Test::new(by_v12_with_two_rails).needs(libfabric()),
        Test::new(by_v8_with_one_rail).needs(libfabric()),
    ])
}

fn libfabric() -> Need {
    let opened = fabric::Library::open(&["libfabric.so.1"]);
    opened.map(drop).map_err(|error| format!("libfabric ({error})"))
}

fn by_v12_with_one_rail() {
    pass(12, "127.0.0.1");
}

fn by_v12_with_two_rails() {
    pass(12, "127.0.0.1,127.0.0.2");
}

fn by_v8_with_one_rail() {
    pass(8, "127.0.0.1");
}

/// Runs the cases in processes of their own, which open the plugin with these rails and this version of the table.
fn pass(version: u32, rails: &str) {
    let plugin = built(&["--package", "ironrail", "--lib"], "libnccl_net_ironrail.so");
    let targets = [
        ("infiniccl", "t_", 10),
        ("mlx", "t_", 12),
        ("rapidsmpf", "t_", 14),
        ("conduit", "t_", 10),
        ("fixed_halo", "", 12),
    ];
    for (target, filter, cases) in targets {
        let program = cases_of(target);
        let output = Command::new(program)
            .args([filter, "--test-threads=2"])
            .env("IRONRAIL_GROUP_TEST_NET", &plugin)
            .env("IRONRAIL_GROUP_TEST_ABI", version.to_string())
            .env("IRONRAIL_RAILS", rails)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{target}: {}\n{said}{errors}", output.status);
        let ran = said.lines().filter(|line| line.ends_with(" ... ok")).count();
        assert!(ran >= cases, "{target}: {ran} cases of {cases}\n{said}");
    }
}

/// The test executable of this name. Where `scripts/test` has built all tests of the workspace, it is theirs: those of a package alone
/// have other features, and would be built again.
fn cases_of(target: &str) -> PathBuf {
    let all: &[&str] = if std::env::var_os("IRONRAIL_TEST_WHOLE").is_some() {
        &["--workspace", "--tests"]
    } else {
        &["--package", "ironrail-group", "--tests"]
    };
    built(all, target)
}

/// What cargo builds with these arguments: the library of this name, or the executable of the target of this name. It is built for the
/// test that calls this: other files in the target folder are ignored.
fn built(arguments: &[&str], name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut found = None;
    for message in CargoBuild::new().manifest_path(manifest).args(arguments).exec().unwrap() {
        let message = message.unwrap();
        let Ok(Message::CompilerArtifact(artifact)) = message.decode() else { continue };
        let named = |file: &&Cow<'_, Path>| file.ends_with(name);
        let library = artifact.filenames.iter().find(named);
        let program = artifact.executable.as_ref().filter(|_| artifact.target.name == name);
        found = library.or(program).map(|file| file.to_path_buf()).or(found);
    }
    found.unwrap()
}
