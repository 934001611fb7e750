//! Builds the driver without a GPU (cuda.c), for tests that put its folder first in LD_LIBRARY_PATH.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::{env, fs};

/// The folder below `directory` (a test's CARGO_TARGET_TMPDIR) that has it as `libcuda.so.1`.
pub(crate) fn folder(directory: &str) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built(directory, "standin", &[]))
}

/// The same without one of its functions.
#[allow(dead_code, reason = "of use to the driver's own tests only")]
pub(crate) fn folder_without(directory: &str, function: &str) -> PathBuf {
    built(directory, &format!("standin-without-{function}"), &[&format!("-D{function}=unasked")])
}

fn built(directory: &str, name: &str, options: &[&str]) -> PathBuf {
    // Of use to tests of the packages beside and above this one.
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["tests/support", "../gpu/tests/support", "crates/gpu/tests/support"];
    let sources = places.map(|place| own.join(place).join("cuda.c"));
    let source = sources.iter().find(|source| source.exists()).expect("the source is there");
    let folder = Path::new(directory).join(name);
    fs::create_dir_all(&folder).expect("the folder can be made");
    // Tests of one binary and of others may be building it right now.
    let own = folder.join(format!("{}-{:?}.so", process::id(), std::thread::current().id()));
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"])
        .args(["-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&own)
        .args(options)
        .arg(source)
        .args(["-lpthread", "-ldl"])
        .status();
    let built = status.is_ok_and(|status| status.success());
    assert!(built, "{compiler} cannot build {}", source.display());
    fs::rename(&own, folder.join("libcuda.so.1")).expect("the folder is ours");
    // cudarc asks for this name first, and a host with a CUDA toolkit has one.
    let link = own.with_extension("link");
    std::os::unix::fs::symlink("libcuda.so.1", &link).expect("the folder is ours");
    fs::rename(&link, folder.join("libcuda.so")).expect("the folder is ours");
    folder
}
