//! The library's name and how it is unloaded, and the facts of the build that it tells.
//!
//! `env!("IRONRAIL_COMMIT")`, `env!("IRONRAIL_TARGET")` and `env!("IRONRAIL_PROFILE")` are for the plugin to log.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // What NCCL_NET_PLUGIN=ironrail makes NCCL look for; cargo itself can only write libnccl_net_ironrail.so.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-ironrail.so");
    // NCCL closes the library with its last communicator; thread-local destructors and our threads must survive that.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    fact("COMMIT", &commit());
    fact("TARGET", &cargo("TARGET"));
    fact("PROFILE", &cargo("PROFILE"));
}

fn fact(name: &str, value: &str) {
    println!("cargo::rustc-env=IRONRAIL_{name}={value}");
}

fn cargo(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}

/// Without git, or outside a repository, as in a source archive: unknown.
fn commit() -> String {
    // A file that is not there would make cargo run this at every build.
    if let Some(log) =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists())
    {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["describe", "--always", "--tags"]).unwrap_or_else(|| "unknown".to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
