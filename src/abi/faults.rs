//! Lets a test cause a panic: a symbol that release builds do not have.

use std::ffi::{CStr, c_char};

use crate::fault;

/// The next call that reaches the fault point of this name panics there.
///
/// # Safety
///
/// `name` is a C string.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "a symbol is public")]
pub unsafe extern "C" fn ironrail_panic_in(name: *const c_char) {
    // SAFETY: the caller vouches for it.
    let name = unsafe { CStr::from_ptr(name) };
    fault::arm(&name.to_string_lossy());
}
