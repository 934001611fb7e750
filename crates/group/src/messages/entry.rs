//! One send or receive of a block, in a list that the group keeps for the next block.

use crate::loader::{DataType, Place};
use crate::mesh::{OpId, Wanted};

/// One operation of a block.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) what: What,
    /// Once it has begun.
    pub(super) op: Option<OpId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Send { to: usize, tag: u32, element: DataType, place: Place },
    Receive(Wanted),
}
