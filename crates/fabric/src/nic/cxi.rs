//! Calls that only domains of cxi have (fi_cxi(7), prov/cxi/include/fi_cxi_ext.h).

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys as sys;

use crate::error::{Call, FabricError, check};
use crate::handle::Handle;

/// The first three calls of fi_cxi_dom_ops, which are the same in all its versions.
#[repr(C)]
struct DomainCalls {
    counter: *const c_void,
    topology: *const c_void,
    enable_hybrid_mr_desc:
        Option<unsafe extern "C" fn(domain: *mut sys::fid, enable: bool) -> c_int>,
}

/// The first version with the third call; later versions append others.
const VERSION: &std::ffi::CStr = c"dom_ops_v3";

/// Makes the provider use the descriptors of operations, on endpoints that are opened from now on. Otherwise it looks up each buffer in its
/// cache, and asks CUDA about GPU memory that it does not find there.
pub(super) fn use_descriptors(domain: &Handle<sys::fid_domain>) -> Result<(), FabricError> {
    let fid: *mut sys::fid = domain.as_ptr().cast();
    let mut calls: *mut c_void = ptr::null_mut();
    // SAFETY: the domain is open, the name a C string, and the place valid.
    let code =
        unsafe { sys::fi_open_ops(fid, VERSION.as_ptr(), 0, &raw mut calls, ptr::null_mut()) };
    check(Call::fi_open_ops, code)?;
    let absent = FabricError::new(Call::fi_open_ops, sys::FI_ENOSYS);
    // SAFETY: by this name cxi gives a static table that begins so; it may be null elsewhere.
    let calls = unsafe { calls.cast::<DomainCalls>().as_ref() }.ok_or(absent)?;
    let enable = calls.enable_hybrid_mr_desc.ok_or(absent)?;
    // SAFETY: the domain is open, and its own.
    check(Call::fi_open_ops, unsafe { enable(fid, true) })
}
