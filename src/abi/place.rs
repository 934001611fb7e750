//! NCCL's out-parameters: written before anything can fail, so that no path leaves one as it was.
//!
//! NCCL does not clear them: the request that it passes to `isend` may be the one of eight steps ago, and the one that it passes to `irecv`
//! may be 1, its mark for optional completion.

use std::ffi::c_void;

use net_abi::OPTIONAL_RECEIVE_COMPLETION;

use crate::error::{Cause, Noun, Result};

/// Writes `empty` to the place and returns it; an error if it is null.
///
/// # Safety
///
/// Null, or valid for writes for the length of the call.
#[inline]
pub(super) unsafe fn place<'a, T>(pointer: *mut T, empty: T, what: Noun) -> Result<&'a mut T> {
    if pointer.is_null() {
        return Err(Cause::NullPointer(what).into());
    }
    // `write`, since an assignment would drop the old value, and the place may be uninitialised.
    // SAFETY: not null, so the caller vouches for it.
    unsafe { pointer.write(empty) };
    // SAFETY: the same place, initialised by now.
    Ok(unsafe { &mut *pointer })
}

/// As `place`, for one that NCCL may omit.
///
/// # Safety
///
/// As for `place`.
#[inline]
pub(super) unsafe fn optional_place<'a, T>(pointer: *mut T, empty: T) -> Option<&'a mut T> {
    // SAFETY: passed on.
    unsafe { place(pointer, empty, Noun::Answer) }.ok()
}

/// Whether the place of a request holds NCCL's mark for optional completion.
///
/// # Safety
///
/// Null, or a request's place that NCCL has initialised, as it does for `irecv` since v9.
#[inline]
pub(super) unsafe fn is_marked(request: *const *mut c_void) -> bool {
    // SAFETY: the caller vouches for it.
    unsafe { request.as_ref() }.is_some_and(|held| held.addr() == OPTIONAL_RECEIVE_COMPLETION)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;

    use super::*;

    #[test]
    fn a_place_is_written_at_once() {
        let mut memory = MaybeUninit::<i32>::uninit();
        // SAFETY: a place for an i32.
        let place = unsafe { place(memory.as_mut_ptr(), 0, Noun::Devices) }.expect("not null");
        assert_eq!(*place, 0);
    }

    #[test]
    fn a_null_place_is_the_callers_mistake() {
        // SAFETY: null is allowed.
        let error = unsafe { place(ptr::null_mut(), 0, Noun::Devices) }.expect_err("null");
        assert_eq!(error, Cause::NullPointer(Noun::Devices).into());
        // SAFETY: null is allowed.
        assert!(unsafe { optional_place(ptr::null_mut(), 0) }.is_none());
    }
}
