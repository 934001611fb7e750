//! Numbers that name an object for as long as the process runs, unlike its address.

use std::sync::atomic::{AtomicU32, Ordering};

/// Names the object that a region is good for: its endpoint where regions are bound, else its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(u32);

impl Scope {
    /// A name that no other open object has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
