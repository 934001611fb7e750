//! Operation contexts: an operation is posted with the address of one, and its completion returns that address. Until then the provider may
//! use the memory there (FI_CONTEXT2, fi_getinfo(3)).

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;

use libfabric_sys as sys;

/// A fixed table of contexts, one per operation that may be in flight. It outlives the endpoints of its NIC.
#[derive(Debug)]
pub(crate) struct Contexts {
    places: Box<[UnsafeCell<sys::fi_context2>]>,
}

impl Contexts {
    /// A table of `len` contexts.
    pub(crate) fn new(len: usize) -> Self {
        Self { places: (0..len).map(|_| UnsafeCell::new(sys::fi_context2::default())).collect() }
    }

    /// The context at `index`. The caller uses it for one operation at a time.
    ///
    /// # Panics
    ///
    /// Beyond the table.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> *mut c_void {
        self.places[index].get().cast()
    }

    /// Leaks the table, since the provider may still write to it.
    pub(crate) fn leak(&mut self) {
        let _leaked = ManuallyDrop::new(std::mem::take(&mut self.places));
    }

    /// The index of the context that a completion returned. For a context outside of this table (an arrival has one of the provider's
    /// choice) returns None, or an index beyond the table, so the caller checks the index.
    #[inline(always)]
    pub(crate) fn index_of(&self, context: usize) -> Option<usize> {
        let offset = context.wrapping_sub(self.places.as_ptr().addr());
        let whole = offset.is_multiple_of(size_of::<sys::fi_context2>());
        whole.then_some(offset / size_of::<sys::fi_context2>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_of_the_table_have_an_index() {
        let contexts = Contexts::new(3);
        let first = contexts.place(0).addr();
        let size = size_of::<sys::fi_context2>();
        for index in 0..3 {
            assert_eq!(contexts.index_of(contexts.place(index).addr()), Some(index));
        }
        for stranger in [0, 1, first - size, first + 1, first + 3 * size, usize::MAX] {
            assert!(contexts.index_of(stranger).is_none_or(|index| index >= 3));
        }
        for crooked in [first + 1, first + size - 1, first - 1] {
            assert_eq!(contexts.index_of(crooked), None);
        }
    }
}
