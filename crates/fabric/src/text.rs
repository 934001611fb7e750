//! Strings for C.

use std::ffi::{CStr, CString, c_char};

use libfabric_sys as sys;

use crate::error::{Call, FabricError};

pub(crate) fn c_string(text: &str) -> Result<CString, FabricError> {
    CString::new(text).map_err(|_| FabricError::new(Call::fi_getinfo, sys::FI_EINVAL))
}

/// A copy for libfabric to free.
pub(crate) fn duplicate(text: &CStr) -> Result<*mut c_char, FabricError> {
    // SAFETY: `text` is a C string.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(FabricError::new(Call::fi_getinfo, sys::FI_ENOMEM)) } else { Ok(copy) }
}

/// A provider's text for its own error. `call` is fi_cq_strerror or fi_eq_strerror, with a buffer and its length; it returns a C string
/// that is static or in the buffer. Empty if there is no text.
pub(crate) fn provider_text(call: impl FnOnce(*mut c_char, usize) -> *const c_char) -> String {
    let mut buffer: [c_char; 256] = [0; 256];
    let text = call(buffer.as_mut_ptr(), buffer.len() - 1);
    // An unimplemented function may be a stub that returns -FI_ENOSYS, whatever its return type.
    if text.is_null() || text.addr() > usize::MAX - 4096 {
        return String::new();
    }
    // SAFETY: the call returned a C string: static, or in our buffer, whose last byte is zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
