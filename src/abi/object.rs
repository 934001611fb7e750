//! Between NCCL's `void*` and our handles: a pointer is a number here, and is never followed.

use std::ffi::c_void;
use std::ptr;

use crate::handle::{Handle, Name};

/// What NCCL holds for us.
#[inline]
pub(super) fn pointer(handle: Handle) -> *mut c_void {
    ptr::without_provenance_mut(
        usize::try_from(handle.bits()).expect("a pointer has 64 bits: asserted below"),
    )
}

/// As `pointer`, with null for "not yet".
#[inline]
pub(super) fn pointer_or_null(handle: Option<Handle>) -> *mut c_void {
    handle.map_or(ptr::null_mut(), pointer)
}

/// What NCCL gave, unread.
#[inline(always)]
pub(super) fn name(pointer: *mut c_void) -> Name {
    Name::new(pointer.addr() as u64)
}

/// What NCCL holds for a name that we have read; null for "not yet".
#[inline(always)]
pub(super) fn named(name: Option<Name>) -> *mut c_void {
    let bits = name.map_or(0, Name::bits);
    ptr::without_provenance_mut(usize::from_ne_bytes(bits.to_ne_bytes()))
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a handle travels in a pointer");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::handle::HandleKind;

    #[test]
    fn a_handle_travels_through_a_pointer() {
        let handle = Handle::new(HandleKind::Receiver, 4095, 65535, 1, 2);
        assert_eq!(name(pointer(handle)).receiver(), Ok(handle));
        assert_eq!(name(pointer(handle)).comm(), Ok(handle));
        assert_eq!(named(Some(handle.name())), pointer(handle));
        assert!(pointer_or_null(None).is_null() && named(None).is_null());
    }

    #[test]
    fn a_handle_of_another_kind_is_refused() {
        let region = name(pointer(Handle::new(HandleKind::Region, 1, 1, 1, 0)));
        for parse in [
            Name::context,
            Name::listener,
            Name::sender,
            Name::receiver,
            Name::comm,
            Name::any_request,
        ] {
            assert_eq!(parse(region).expect_err("a region").kind(), Kind::InvalidArgument);
        }
    }

    #[test]
    fn null_and_nccls_marks_are_refused() {
        for bits in [0, 1, 2, usize::MAX] {
            let garbage = name(ptr::without_provenance_mut(bits));
            for parse in [
                Name::context,
                Name::listener,
                Name::sender,
                Name::receiver,
                Name::comm,
                Name::region,
                Name::any_request,
            ] {
                assert_eq!(parse(garbage).expect_err("garbage").kind(), Kind::InvalidArgument);
            }
        }
        assert_eq!(name(ptr::null_mut()).optional_region(), Ok(None));
        assert!(name(ptr::without_provenance_mut(1)).optional_region().is_err());
    }
}
