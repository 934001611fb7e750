//! Texts that cross to libfabric and back, as C strings.

use std::ffi::{CStr, c_char};

/// A copy for libfabric to free; null when there is no memory, which is a valid name.
pub(super) fn duplicate(text: &CStr) -> *mut c_char {
    // SAFETY: a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// A copy of our own; None for null.
///
/// # Safety
///
/// `raw` must be null or a C string.
pub(super) unsafe fn text(raw: *const c_char) -> Option<String> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    Some(unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned())
}
