//! A plugin that panics on request: built with the feature `faults`, into a folder of its own.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The file. Plays pass it on as the setting [`SETTING`], so that only the first process calls cargo.
pub(crate) fn faulty_plugin() -> PathBuf {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    let given = std::env::var_os(format!("IRONRAIL_{SETTING}")).map(PathBuf::from);
    PLUGIN.get_or_init(|| given.unwrap_or_else(build)).clone()
}

/// Without its prefix.
pub(crate) const SETTING: &str = "TEST_FAULTS";

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = escargot::CargoBuild::new()
        .manifest_path(root.join("Cargo.toml"))
        .package("ironrail")
        .arg("--lib")
        .features("faults")
        .target_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults"));
    let mut found = None;
    for message in cargo.exec().expect("cargo runs") {
        let message = message.expect("the plugin builds");
        if let Ok(escargot::format::Message::CompilerArtifact(artifact)) = message.decode() {
            let library =
                artifact.filenames.iter().find(|file| file.ends_with("libnccl_net_ironrail.so"));
            found = library.map(|file| file.to_path_buf()).or(found);
        }
    }
    found.expect("cargo says where it left the plugin")
}

/// The next call that passes this place panics there.
pub(crate) fn panic_in(plugin: &Path, place: &str) {
    let name = CString::new(plugin.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: the library is loaded already, so nothing of it runs here.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "{} is not open", plugin.display());
    // SAFETY: an open library, and a C string.
    let symbol = unsafe { libc::dlsym(library, c"ironrail_panic_in".as_ptr()) };
    assert!(!symbol.is_null(), "{} is not built for faults", plugin.display());
    // SAFETY: the symbol names a function of this type.
    let arm: unsafe extern "C" fn(*const c_char) = unsafe { std::mem::transmute(symbol) };
    let place = CString::new(place).expect("no zero byte");
    // SAFETY: a C string that lives through the call.
    unsafe { arm(place.as_ptr()) };
}
