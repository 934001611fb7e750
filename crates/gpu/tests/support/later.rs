//! Work that a stream of the driver without a GPU does when it is waited for.

use std::ffi::{c_int, c_void};

use gpu::Stream;

/// Up to 64 bytes go to an address of device memory when the stream is synchronised, and not before.
pub(crate) fn write_later(stream: &Stream, address: u64, bytes: &[u8]) {
    // SAFETY: it is loaded already.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null());
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, c"standin_later".as_ptr()) };
    assert!(!symbol.is_null());
    type Later = unsafe extern "C" fn(*mut c_void, u64, *const c_void, usize) -> c_int;
    let place: *const *mut c_void = &raw const symbol;
    // SAFETY: cuda.c declares it so, and a symbol's address is a function pointer.
    let later = unsafe { place.cast::<Later>().read() };
    // SAFETY: the bytes are copied before it returns.
    let code = unsafe { later(stream.as_ptr(), address, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(code, 0);
}
