//! The facts of the build that `ironrail --version` prints: the commit, and the target.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=IRONRAIL_COMMIT");
    // A commit changes the log of HEAD and not HEAD, and a worktree has both elsewhere; cargo takes a file that is missing for changed.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| exists(path)) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // A package is built from an archive of the sources without a repository: its maker passes the commit.
    let passed = std::env::var("IRONRAIL_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = passed.or_else(described);
    fact("COMMIT", commit.as_deref().unwrap_or("unknown commit"));
    fact("TARGET", &cargo("TARGET"));
    fact("PROFILE", &cargo("PROFILE"));
}

fn described() -> Option<String> {
    // An archive may be unpacked inside of another repository, whose commit says nothing.
    git(&["rev-parse", "--show-prefix"]).filter(|prefix| prefix == "crates/cli/")?;
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What git prints, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

fn fact(name: &str, value: &str) {
    println!("cargo::rustc-env=BUILT_{name}={value}");
}

fn cargo(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}
