//! Counts the plugin's allocations, in a process with the counter of counting.c preloaded.

use std::ffi::{CString, c_char, c_int, c_ulong, c_void};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::output_of;

/// The counter, compiled once; for LD_PRELOAD.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let name = format!("counting.{}.so", std::process::id());
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]);
        compiler.arg("-fno-builtin").arg(source()).arg("-o").arg(&library);
        output_of(&mut compiler);
        library
    })
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/counting.c")
}

/// The counted allocations.
#[derive(Debug)]
pub(crate) struct Allocations {
    pub(crate) count: u64,
    /// The call stack of the first of them in the plugin.
    offsets: Vec<usize>,
}

/// Runs `body`, and counts the allocations of the library whose path contains `name`.
pub(crate) fn count(name: &str, body: impl FnOnce()) -> Allocations {
    const DEPTH: usize = 24;
    let name = CString::new(name).expect("a name has no zero byte");
    // SAFETY: the counter's function of this name has this type.
    let start: unsafe extern "C" fn(*const c_char) -> c_int =
        unsafe { mem::transmute(symbol(c"counting_start")) };
    // SAFETY: as above.
    let stop: unsafe extern "C" fn(*mut usize) -> c_ulong =
        unsafe { mem::transmute(symbol(c"counting_stop")) };
    let mut offsets = vec![0; DEPTH];
    // SAFETY: a C string.
    assert_eq!(unsafe { start(name.as_ptr()) }, 1, "{name:?} is not loaded");
    body();
    // SAFETY: room for as many as the counter keeps.
    let count = unsafe { stop(offsets.as_mut_ptr()) };
    offsets.retain(|offset| *offset != 0);
    Allocations { count, offsets }
}

fn symbol(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: a C string; the default scope holds what is preloaded.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!symbol.is_null(), "the counter is not preloaded");
    symbol
}

impl Allocations {
    /// The source location of the first one in `plugin`, as far as addr2line finds it.
    pub(crate) fn place(&self, plugin: &Path) -> String {
        let mut tool = Command::new("addr2line");
        tool.args(["-C", "-f", "-i", "-p", "-e"]).arg(plugin);
        // A return address is behind the call.
        tool.args(self.offsets.iter().map(|offset| format!("{:#x}", offset - 1)));
        match tool.output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => format!("{:x?} (no addr2line: {error})", self.offsets),
        }
    }
}
