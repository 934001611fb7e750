//! Between NCCL's `void*` and our handles: a pointer is a number here, and is never followed.

use std::ffi::c_void;
use std::ptr;

use crate::error::{Cause, Error, Noun, Result};
use crate::handle::{Handle, HandleKind, Name};

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

/// An address as NCCL gave it.
pub(super) fn numbered(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::from_ne_bytes(address.to_ne_bytes()))
}

/// What NCCL holds for a name that we have read.
#[inline(always)]
pub(super) fn named(name: Name) -> *mut c_void {
    ptr::without_provenance_mut(usize::from_ne_bytes(name.bits().to_ne_bytes()))
}

pub(super) fn context(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::Context, &[HandleKind::Context])
}

pub(super) fn listener(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::ListenComm, &[HandleKind::Listener])
}

#[inline]
pub(super) fn sender(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::SendComm, &[HandleKind::Sender])
}

#[inline]
pub(super) fn receiver(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::ReceiveComm, &[HandleKind::Receiver])
}

/// Either end of a connection.
#[inline]
pub(super) fn comm(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::Comm, &[HandleKind::Sender, HandleKind::Receiver])
}

#[inline]
pub(super) fn region(pointer: *mut c_void) -> Result<Handle> {
    one_of(pointer, Noun::MemoryHandle, &[HandleKind::Region])
}

/// Null where the message is empty.
#[inline]
pub(super) fn optional_region(pointer: *mut c_void) -> Result<Option<Handle>> {
    if pointer.is_null() { Ok(None) } else { region(pointer).map(Some) }
}

#[inline]
pub(super) fn request(pointer: *mut c_void) -> Result<Handle> {
    one_of(
        pointer,
        Noun::Request,
        &[
            HandleKind::SendRequest,
            HandleKind::ReceiveRequest,
            HandleKind::FlushRequest,
            HandleKind::OptionalReceiveRequest,
            HandleKind::EagerSendRequest,
        ],
    )
}

#[inline]
fn one_of(pointer: *mut c_void, expected: Noun, kinds: &[HandleKind]) -> Result<Handle> {
    match Handle::from_bits(pointer.addr() as u64) {
        Some(handle) if kinds.iter().any(|kind| handle.is(*kind)) => Ok(handle),
        _ => Err(wrong(pointer, expected)),
    }
}

#[cold]
fn wrong(pointer: *mut c_void, expected: Noun) -> Error {
    Cause::NotOurs { expected, found: pointer.addr() as u64 }.into()
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a handle travels in a pointer");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_handle_travels_through_a_pointer() {
        let handle = Handle::new(HandleKind::Receiver, 4095, 65535, 1, 2);
        assert_eq!(receiver(pointer(handle)), Ok(handle));
        assert_eq!(comm(pointer(handle)), Ok(handle));
        assert!(pointer_or_null(None).is_null());
    }

    #[test]
    fn a_handle_of_another_kind_is_refused() {
        let region = pointer(Handle::new(HandleKind::Region, 1, 1, 1, 0));
        for parse in [context, listener, sender, receiver, comm, request] {
            assert_eq!(parse(region).expect_err("a region").kind(), Kind::InvalidArgument);
        }
    }

    #[test]
    fn null_and_nccls_marks_are_refused() {
        for bits in [0, 1, 2, usize::MAX] {
            let garbage = ptr::without_provenance_mut(bits);
            for parse in [context, listener, sender, receiver, comm, region, request] {
                assert_eq!(parse(garbage).expect_err("garbage").kind(), Kind::InvalidArgument);
            }
        }
        assert_eq!(optional_region(ptr::null_mut()), Ok(None));
        assert!(optional_region(ptr::without_provenance_mut(1)).is_err());
    }
}
