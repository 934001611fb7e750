//! Numbers that name an object for as long as the process runs: an address could be used again.

use crate::atomic::AtomicU32;
use crate::lockless::Numbers;

/// Names the object that a region is good for: its endpoint where regions are bound, else its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(u32);

impl Scope {
    /// A name that no other open object has.
    pub(crate) fn new() -> Self {
        static SCOPES: Numbers = Numbers(AtomicU32::new(0));
        Self(SCOPES.next())
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}
