//! The rails of one connection: which of our NICs it uses, in the order both ends agreed on, and the peer on each.

use fabric::PeerAddress;

/// One paired data rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
}

/// The control rail that carries all control writes of one connection in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlLane {
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
    /// Where the ring that the peer lent us begins, as its provider wants it named.
    pub(super) target: u64,
    pub(super) key: u64,
}

/// Whether lane i is NIC i: then keys need no sorting.
pub(super) fn in_order(lanes: &[Lane]) -> bool {
    lanes.iter().enumerate().all(|(index, lane)| lane.nic == index)
}
