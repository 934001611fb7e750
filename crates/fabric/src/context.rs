//! What an operation is posted with, and its completion comes back with: the address of a place that the provider may scribble on
//! meanwhile (FI_CONTEXT2, fi_getinfo(3)).

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;

use libfabric_sys as sys;

/// A fixed table of such places, one per operation that may be outstanding. It must outlive the operations: close or drain the
/// endpoint first.
#[derive(Debug)]
pub struct Contexts {
    places: Box<[UnsafeCell<sys::fi_context2>]>,
}

// SAFETY: nothing here reads or writes the places, only providers do, under the endpoint's lock (FI_THREAD_DOMAIN).
unsafe impl Send for Contexts {}
// SAFETY: as above.
unsafe impl Sync for Contexts {}

/// One place of a [`Contexts`]. While an operation has it, no other may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(usize);

impl Contexts {
    /// `len` places.
    pub fn new(len: usize) -> Self {
        Self { places: (0..len).map(|_| UnsafeCell::new(sys::fi_context2::default())).collect() }
    }

    /// The place at `index`, for an operation that nothing else uses it for.
    ///
    /// # Panics
    ///
    /// Beyond the table.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> *mut c_void {
        self.places[index].get().cast()
    }

    /// The places stay for ever: a provider may still write there.
    pub(crate) fn leak(&mut self) {
        let _leaked = ManuallyDrop::new(std::mem::take(&mut self.places));
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The place at `index`.
    ///
    /// # Panics
    ///
    /// Beyond the table.
    #[inline]
    pub fn at(&self, index: usize) -> Context {
        Context(self.places[index].get().expose_provenance())
    }

    /// Which place a completion came back with. What is not of this table, as that of a peer's write, which carries whatever its
    /// provider likes, has none, or one beyond the table: so whatever is found by it has to be looked up.
    #[inline(always)]
    pub fn index_of(&self, context: usize) -> Option<usize> {
        let offset = context.wrapping_sub(self.places.as_ptr().addr());
        let whole = offset.is_multiple_of(size_of::<sys::fi_context2>());
        whole.then_some(offset / size_of::<sys::fi_context2>())
    }
}

impl Context {
    /// As a completion names it: see [`Contexts::index_of`].
    #[inline]
    pub fn number(self) -> usize {
        self.0
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_of_the_table_have_an_index() {
        let contexts = Contexts::new(3);
        let first = contexts.at(0).0;
        let size = size_of::<sys::fi_context2>();
        for index in 0..3 {
            assert_eq!(contexts.index_of(contexts.at(index).0), Some(index));
        }
        for stranger in [0, 1, first - size, first + 1, first + 3 * size, usize::MAX] {
            assert!(contexts.index_of(stranger).is_none_or(|index| index >= contexts.len()));
        }
        for crooked in [first + 1, first + size - 1, first - 1] {
            assert_eq!(contexts.index_of(crooked), None);
        }
    }
}
