//! The library's name and how it is unloaded, and the facts of the build that it tells.
//!
//! `env!("BUILT_COMMIT")`, `env!("BUILT_TARGET")` and `env!("BUILT_PROFILE")` are for the plugin to log.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=IRONRAIL_COMMIT");
    // What NCCL_NET_PLUGIN=ironrail makes NCCL look for; cargo itself can only write libnccl_net_ironrail.so.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-ironrail.so");
    // NCCL closes the library with its last communicator; thread-local destructors and our threads must survive that.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Passed by scripts/build and makers of packages: to ask git here would link the plugin anew after every commit.
    let commit = std::env::var("IRONRAIL_COMMIT").ok().filter(|commit| !commit.is_empty());
    fact("COMMIT", commit.as_deref().unwrap_or("unknown commit"));
    fact("TARGET", &cargo("TARGET"));
    fact("PROFILE", &cargo("PROFILE"));
}

fn fact(name: &str, value: &str) {
    println!("cargo::rustc-env=BUILT_{name}={value}");
}

fn cargo(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}
