//! Memory that an operation of a group reads or writes, without the lifetime of the borrow from which the address was taken.
//!
//! An operation may be continued by several calls, and by another thread than the one that began it, so no lifetime can express how long it
//! uses its memory. A rule replaces it: the caller that begins an operation with a place keeps that memory alive, and untouched by others,
//! until the operation has ended or the comms it was posted on are closed. The blocking calls keep the rule by holding the borrow until
//! then, requests by owning the memory, and both by closing the comms when a group fails, as it does after a panic, or a peer leaves.
//!
//! A close does not stop a peer that hangs, which may write when it goes on. The peer has the addresses of registered memory alone, for
//! nothing else is posted, and a [`super::Region`] whose deregistration fails for that reason keeps its memory for good.

use std::ptr::{self, NonNull};
use std::slice;

use super::element::Element;

/// A range of memory. The address of an empty range dangles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a place is an address and a length. By the rule of this file nothing else touches the bytes.
unsafe impl Send for Place {}

impl Place {
    /// A place that is only read.
    pub(crate) fn reading<T: Element>(elements: &[T]) -> Self {
        Self { base: NonNull::from(elements).cast(), len: size_of_val(elements) }
    }

    /// A place that is read and written.
    pub(crate) fn writing<T: Element>(elements: &mut [T]) -> Self {
        let len = size_of_val(elements);
        Self { base: NonNull::from(elements).cast(), len }
    }

    pub(crate) const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    pub(super) fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(self) -> usize {
        self.base.as_ptr().addr()
    }

    pub(super) fn pointer(self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// `len` bytes from byte `start`, clipped to the place.
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        let start = start.min(self.len);
        let len = len.min(self.len - start);
        // SAFETY: `start` is within the memory, or one past its end.
        Self { base: unsafe { self.base.add(start) }, len }
    }

    /// Copies the bytes of `source`, up to the shorter length.
    pub(crate) fn copy_from(self, source: Self) {
        let len = self.len.min(source.len);
        // SAFETY: both are alive by the rule of this file; they may overlap, as where a rank sends to itself.
        unsafe { ptr::copy(source.pointer(), self.pointer(), len) };
    }

    /// Copies into a slice, up to the shorter length.
    pub(crate) fn copy_to(self, into: &mut [u8]) {
        Self::writing(into).copy_from(self);
    }

    /// The bytes as elements; an incomplete element at the end is left out. Panics if the place is not aligned for them.
    pub(crate) fn elements<'a, T: Element>(self) -> &'a [T] {
        let start = self.base.cast::<T>();
        assert!(start.is_aligned(), "a place is made of elements, and cut at elements");
        // SAFETY: the bytes are alive by the rule of this file, and aligned, and any bits are a `T`.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.len / size_of::<T>()) }
    }

    /// As [`Place::elements`]; no other view of the bytes may be in use.
    pub(crate) fn elements_mut<'a, T: Element>(self) -> &'a mut [T] {
        let start = self.base.cast::<T>();
        assert!(start.is_aligned(), "a place is made of elements, and cut at elements");
        // SAFETY: as in `elements`; the place was made from memory that may be written.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.len / size_of::<T>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_where_their_whole_ends() {
        let mut bytes = [1_u8, 2, 3, 4, 5];
        let whole = Place::writing(&mut bytes);
        assert_eq!(whole.part(3, 9).elements::<u8>(), [4, 5]);
        assert!(whole.part(9, 1).is_empty());
        whole.part(0, 2).copy_from(whole.part(3, 2));
        assert_eq!(whole.elements::<u8>(), [4, 5, 3, 4, 5]);
    }
}
