//! Tables of functions in which no slot is empty.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use libfabric_sys as sys;

/// A table of libfabric's: its size, then function pointers.
///
/// # Safety
///
/// The type must be `repr(C)`, a `usize` followed by function pointers and nothing else.
pub(super) unsafe trait OpsTable: Sized {}

macro_rules! tables {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: as rdma/*.h declare it.
        unsafe impl OpsTable for sys::$name {}
    )*};
}

tables! {
    fi_ops, fi_ops_fabric, fi_ops_domain, fi_ops_mr, fi_ops_av, fi_ops_cq, fi_ops_eq, fi_ops_ep, fi_ops_cm, fi_ops_msg, fi_ops_rma,
    fi_ops_tagged, fi_ops_atomic,
}

// SAFETY: a size, then function pointers.
unsafe impl OpsTable for CollectiveOps {}

/// libfabric does not declare this table's type: it is as long as the longest version's.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CollectiveOps {
    size: usize,
    slots: [Option<unsafe extern "C" fn() -> isize>; 16],
}

/// Returns -FI_ENOSYS whatever its arguments: in the C ABI the caller cleans the stack up, and an `int` is the lower half of an `isize`.
unsafe extern "C" fn absent() -> isize {
    -(sys::FI_ENOSYS as isize)
}

/// A table whose every slot returns -FI_ENOSYS.
pub(super) fn absent_table<T: OpsTable>() -> T {
    let mut table = MaybeUninit::<T>::uninit();
    let size = table.as_mut_ptr().cast::<usize>();
    // SAFETY: by `OpsTable`, a table begins with its size.
    unsafe { size.write(size_of::<T>()) };
    let slots = size.cast::<unsafe extern "C" fn() -> isize>();
    for index in 1..size_of::<T>() / size_of::<usize>() {
        // SAFETY: by `OpsTable`, the rest is function pointers, and the index is inside.
        let slot = unsafe { slots.add(index) };
        // SAFETY: as above.
        unsafe { slot.write(absent) };
    }
    // SAFETY: every word of it is written.
    unsafe { table.assume_init() }
}

/// A table that libfabric declares mutable, and that is never written.
#[derive(Debug)]
pub(super) struct Shared<T>(UnsafeCell<T>);

// SAFETY: it is made once, and only read afterwards.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) const fn new(table: T) -> Self {
        Self(UnsafeCell::new(table))
    }

    pub(super) const fn pointer(&self) -> *mut T {
        self.0.get()
    }
}

/// `fn name() -> *mut type`: a table with these slots filled.
macro_rules! table {
    ($(#[$doc:meta])* $visibility:vis fn $name:ident() -> $type:ty { $($slot:ident: $call:expr),* $(,)? }) => {
        $(#[$doc])*
        $visibility fn $name() -> *mut $type {
            static TABLE: std::sync::LazyLock<$crate::provider::table::Shared<$type>> =
                std::sync::LazyLock::new(|| {
                    #[allow(unused_mut, reason = "a table may be empty")]
                    let mut table = $crate::provider::table::absent_table::<$type>();
                    $(table.$slot = Some($call);)*
                    $crate::provider::table::Shared::new(table)
                });
            TABLE.pointer()
        }
    };
}
pub(super) use table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_answers_that_it_is_absent() {
        let table = absent_table::<sys::fi_ops_rma>();
        assert_eq!(table.size, size_of::<sys::fi_ops_rma>());
        let call = table.writemsg.unwrap();
        // SAFETY: the stub reads none of its arguments.
        let code = unsafe { call(std::ptr::null_mut(), std::ptr::null(), 0) };
        assert_eq!(code, -(sys::FI_ENOSYS as isize));
    }
}
