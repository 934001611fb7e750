//! Panics in the plugin where a test asks for them. Only debug builds can be asked.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The next call that passes this place panics there.
pub(crate) fn panic_in(plugin: &Path, place: &str) {
    let name = CString::new(plugin.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: the library is loaded already, so nothing of it runs here.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "{} is not open", plugin.display());
    // SAFETY: an open library, and a C string.
    let symbol = unsafe { libc::dlsym(library, c"ironrail_panic_in".as_ptr()) };
    assert!(!symbol.is_null(), "{} is a release build", plugin.display());
    // SAFETY: the symbol names a function of this type.
    let arm: unsafe extern "C" fn(*const c_char) = unsafe { std::mem::transmute(symbol) };
    let place = CString::new(place).expect("no zero byte");
    // SAFETY: a C string that lives through the call.
    unsafe { arm(place.as_ptr()) };
}
