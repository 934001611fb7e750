//! The facts of the build that `ironrail --version` prints: the commit, and the target.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=IRONRAIL_COMMIT");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    // A package is built from an archive of the sources without a repository: its maker passes the commit.
    let commit = std::env::var("IRONRAIL_COMMIT").ok().or_else(described);
    fact("COMMIT", commit.as_deref().unwrap_or("unknown commit"));
    fact("TARGET", &cargo("TARGET"));
    fact("PROFILE", &cargo("PROFILE"));
}

fn described() -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

fn fact(name: &str, value: &str) {
    println!("cargo::rustc-env=BUILT_{name}={value}");
}

fn cargo(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}
