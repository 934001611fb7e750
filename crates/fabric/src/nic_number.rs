//! Numbers that identify an object for the life of the process, since addresses are reused.

use crate::atomic::AtomicU32;
use crate::lockless::Numbers;

/// The number of a NIC, or of an address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NicNumber(u32);

impl NicNumber {
    /// A number that no other open object has.
    pub(crate) fn new() -> Self {
        static NUMBERS: Numbers = Numbers(AtomicU32::new(0));
        Self(NUMBERS.next())
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }
}
