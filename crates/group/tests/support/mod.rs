//! Builds the test plugin, plugins/loopback.c, with the C compiler that links Rust programs anyway.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::{env, fs};

/// The built plugin, `libnccl-net-loopback.so`, below `directory` (a test's CARGO_TARGET_TMPDIR).
pub(crate) fn loopback(directory: &str) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../group/tests/plugins/loopback.c");
        let folder = Path::new(directory).join("loopback");
        fs::create_dir_all(&folder).unwrap();
        let plugin = folder.join("libnccl-net-loopback.so");
        // Tests of one binary share what is built; those of another may be building it right now.
        let own = folder.join(format!("{}.so", process::id()));
        let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let status = Command::new(&compiler)
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o"])
            .arg(&own)
            .arg(&source)
            .arg("-lpthread")
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{compiler} cannot build {}",
            source.display()
        );
        fs::rename(&own, &plugin).unwrap();
        plugin
    })
}
