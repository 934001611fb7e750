//! The functions of the driver that are called here, found in the library that cudarc has loaded, with results as numbers: cudarc declares
//! results as an enumeration, and a newer driver's code that it lacks would be undefined behaviour.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUmemRangeHandleType,
    CUpointer_attribute, CUresult, CUstream,
};

use super::child::is_child;

pub(super) const SUCCESS: c_int = CUresult::CUDA_SUCCESS as c_int;
/// Also what CUDA answers in a child of the process that has initialised it.
const NOT_INITIALIZED: c_int = CUresult::CUDA_ERROR_NOT_INITIALIZED as c_int;
pub(super) const NOT_READY: c_int = CUresult::CUDA_ERROR_NOT_READY as c_int;
/// Also the result of a function that the driver lacks.
pub(super) const NOT_SUPPORTED: c_int = CUresult::CUDA_ERROR_NOT_SUPPORTED as c_int;

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// CUDA's function of this name. Not called in a child of the process that found the driver, where the values of that process are
        /// dropped, too.
        ///
        /// # Safety
        ///
        /// As in CUDA's driver API, and the driver's library has been found.
        #[allow(non_snake_case, reason = "CUDA's name")]
        pub(super) unsafe fn $name($($argument: $kind),*) -> c_int {
            type Function = unsafe extern "C" fn($($kind),*) -> c_int;
            static FOUND: OnceLock<Option<Function>> = OnceLock::new();
            if is_child() {
                return NOT_INITIALIZED;
            }
            let found = FOUND.get_or_init(|| {
                // SAFETY: CUDA declares it so: cudarc has the same arguments, and C returns an enumeration as an int.
                unsafe { find(concat!(stringify!($name), "\0").as_bytes()) }
            });
            match found {
                // SAFETY: by the caller.
                Some(function) => unsafe { function($($argument),*) },
                None => NOT_SUPPORTED,
            }
        }
    )*};
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSynchronize();
    cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut CUpointer_attribute,
        values: *mut *mut c_void,
        address: CUdeviceptr
    );
    cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, len: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, len: usize);
    cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        address: CUdeviceptr,
        len: usize,
        kind: CUmemRangeHandleType,
        flags: c_ulonglong
    );
    cuMemHostRegister_v2(place: *mut c_void, len: usize, flags: c_uint);
    cuMemHostUnregister(place: *mut c_void);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamQuery(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamDestroy_v2(stream: CUstream);
}

/// Whether the driver has a function. Only where there is a driver.
pub(super) fn has(function: &CStr) -> bool {
    // SAFETY: the symbol's address is compared with null and never used.
    unsafe { find::<*const c_void>(function.to_bytes_with_nul()) }.is_some()
}

/// A function of the driver by its name, which ends in a zero byte.
///
/// # Safety
///
/// The driver's library has been found, and `F` is a pointer of the symbol's type.
unsafe fn find<F: Copy>(name: &[u8]) -> Option<F> {
    // SAFETY: the library was found before, so this does not panic.
    let library = unsafe { sys::culib() };
    // SAFETY: by the caller.
    let symbol = unsafe { library.get::<F>(name) };
    // cudarc keeps the library loaded until the process ends, so the pointer outlives the symbol.
    Some(*symbol.ok()?)
}
