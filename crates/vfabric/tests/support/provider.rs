//! The provider's file, built by cargo once per test binary: `cargo test` builds no library of a package that is a cdylib only.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// `libvfabric_fi.so`, in a folder that suits FI_PROVIDER_PATH.
#[allow(dead_code, reason = "benches take the other one")]
pub(crate) fn file() -> PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let optimised =
        || std::env::var("IRONRAIL_TEST_PROFILE").is_ok_and(|profile| profile == "release");
    FILE.get_or_init(|| build(optimised())).clone()
}

/// The optimised provider, for benches.
#[allow(dead_code, reason = "tests take the other one")]
pub(crate) fn optimised_file() -> PathBuf {
    build(true)
}

fn build(optimised: bool) -> PathBuf {
    // Tests of the root package use it too.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let nested = root.join("crates/vfabric/Cargo.toml");
    let manifest = if nested.exists() { nested } else { root.join("Cargo.toml") };
    let mut cargo =
        escargot::CargoBuild::new().manifest_path(manifest).package("vfabric").arg("--lib");
    if optimised {
        cargo = cargo.release();
    }
    let mut found = None;
    for message in cargo.exec().expect("cargo runs") {
        let message = message.expect("the provider builds");
        if let Ok(escargot::format::Message::CompilerArtifact(artifact)) = message.decode() {
            let library = artifact.filenames.iter().find(|file| file.ends_with("libvfabric_fi.so"));
            found = library.map(|file| file.to_path_buf()).or(found);
        }
    }
    found.expect("cargo says where it left the provider")
}
