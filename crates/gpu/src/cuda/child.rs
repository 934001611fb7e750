//! Children of fork(2), in which CUDA does not work.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether this is a child of the process that first asked. No call may be made there: CUDA does not work in a child, and another
/// thread of the parent may have been in the middle of a call.
pub(crate) fn is_child() -> bool {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let own = process::id();
    // Only the number itself is handed over, so no other memory needs to be ordered with it.
    let before = FIRST.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    before.is_err_and(|first| first != own)
}
