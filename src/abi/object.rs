//! Converts between NCCL's `void*` and our ids: a pointer is a number here, and is never dereferenced.

use std::ffi::c_void;
use std::ptr;

use crate::object_id::{ObjectId, RawId};

/// An id, as NCCL holds it.
#[inline]
pub(super) fn pointer(id: ObjectId) -> *mut c_void {
    ptr::without_provenance_mut(
        usize::try_from(id.bits()).expect("a pointer has 64 bits: asserted below"),
    )
}

/// As `pointer`, with null for "not yet".
#[inline]
pub(super) fn pointer_or_null(id: Option<ObjectId>) -> *mut c_void {
    id.map_or(ptr::null_mut(), pointer)
}

/// A pointer from NCCL, not checked.
#[inline(always)]
pub(super) fn raw(pointer: *mut c_void) -> RawId {
    RawId::new(pointer.addr() as u64)
}

/// A request, as NCCL holds it; null for "not yet".
#[inline(always)]
pub(super) fn returned(request: Option<RawId>) -> *mut c_void {
    let bits = request.map_or(0, RawId::bits);
    ptr::without_provenance_mut(usize::from_ne_bytes(bits.to_ne_bytes()))
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "an id travels in a pointer");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::object_id::ObjectKind;

    #[test]
    fn an_id_travels_through_a_pointer() {
        let id = ObjectId::new(ObjectKind::Receiver, 4095, 65535, 1, 2);
        assert_eq!(raw(pointer(id)).receiver(), Ok(id));
        assert_eq!(raw(pointer(id)).comm(), Ok(id));
        assert_eq!(returned(Some(id.raw())), pointer(id));
        assert!(pointer_or_null(None).is_null() && returned(None).is_null());
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let region = raw(pointer(ObjectId::new(ObjectKind::Region, 1, 1, 1, 0)));
        for parse in [
            RawId::context,
            RawId::listener,
            RawId::sender,
            RawId::receiver,
            RawId::comm,
            RawId::any_request,
        ] {
            assert_eq!(parse(region).expect_err("a region").kind(), Kind::InvalidArgument);
        }
    }

    #[test]
    fn null_and_nccls_marks_are_refused() {
        for bits in [0, 1, 2, usize::MAX] {
            let garbage = raw(ptr::without_provenance_mut(bits));
            for parse in [
                RawId::context,
                RawId::listener,
                RawId::sender,
                RawId::receiver,
                RawId::comm,
                RawId::region,
                RawId::any_request,
            ] {
                assert_eq!(parse(garbage).expect_err("garbage").kind(), Kind::InvalidArgument);
            }
        }
        assert_eq!(raw(ptr::null_mut()).optional_region(), Ok(None));
        assert!(raw(ptr::without_provenance_mut(1)).optional_region().is_err());
    }
}
