//! The cases T-I, T-M, T-C and T-R, halos of fixed lengths, and random programs, over the plugin of this tree: with one rail and
//! with two by its newest table, and with one by v8. Ignored without libfabric.
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
    let plugin = built_plugin();
    let targets = [
        ("infiniccl", "t_", 10),
        ("mlx", "t_", 12),
        ("rapidsmpf", "t_", 14),
        ("conduit", "t_", 10),
        ("fixed_halo", "", 12),
        ("programs", "", 1),
    ];
    for (target, filter, cases) in targets {
        let program = harness::executable(target, &["--package", "ironrail-group", "--tests"]);
        let output = Command::new(program)
            .args([filter, "--test-threads=2"])
            .env("IRONRAIL_GROUP_TEST_NET", &plugin)
            .env("IRONRAIL_GROUP_TEST_ABI", version.to_string())
            .env("IRONRAIL_RAILS", rails)
            .env("GROUP_PROGRAMS", "12")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{target}: {}\n{said}{errors}", output.status);
        let ran = said.lines().filter(|line| line.ends_with(" ... ok")).count();
        assert!(ran >= cases, "{target}: {ran} cases of {cases}\n{said}");
    }
}

/// The plugin of this tree, built by cargo for the test that calls this: other files in the target folder are ignored.
fn built_plugin() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let cargo = CargoBuild::new().manifest_path(manifest).package("ironrail").arg("--lib");
    let mut found = None;
    for message in cargo.exec().unwrap() {
        let message = message.unwrap();
        let Ok(Message::CompilerArtifact(artifact)) = message.decode() else { continue };
        let named = |file: &&Cow<'_, Path>| file.ends_with("libnccl_net_ironrail.so");
        let library = artifact.filenames.iter().find(named);
        found = library.map(|file| file.to_path_buf()).or(found);
    }
    found.unwrap()
}
