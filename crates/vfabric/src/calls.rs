//! The number of calls on objects of this process, whether or not they reach the engine.

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Adds a call.
pub(crate) fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// How many calls on objects this process has made.
pub(crate) fn number() -> u64 {
    CALLS.load(Ordering::Relaxed)
}
