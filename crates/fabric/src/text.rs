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
