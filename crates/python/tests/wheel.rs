//! The wheel: built, installed into a venv, and tested there by pytest, as scripts/python does it. Ignored where Python, pip or a
//! network is lacking.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use harness::{Need, Test};

fn main() -> ExitCode {
    harness::run([Test::new(the_wheel_passes_its_tests_in_a_venv).wants(venv())])
}

/// The venv with what builds and tests the wheel. It stays for the next time.
fn venv() -> Need {
    // Listing tests must not fetch anything.
    if std::env::args().any(|argument| argument == "--list") {
        return Ok(());
    }
    let Output { status, stderr, .. } = script(&["--prepare"]);
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    Err(format!("a venv of Python: {}", said.lines().last().unwrap_or("scripts/python failed")))
}

fn the_wheel_passes_its_tests_in_a_venv() {
    let Output { status, stdout, stderr } = script(&[]);
    let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{said}{errors}");
    let summary = said.lines().last().unwrap_or_default();
    assert!(summary.contains(" passed"), "{said}{errors}");
    // Built alone, the package is without the command that one of them starts.
    assert!(!harness::is_whole() || !summary.contains(" skipped"), "{said}{errors}");
}

fn script(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(root.join("scripts/python"));
    command.args(arguments).current_dir(&root).output().unwrap()
}
