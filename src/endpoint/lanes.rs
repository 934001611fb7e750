//! The rails of one connection: which of our NICs it uses, in the order both ends agreed on, and the peer on each.

use fabric::PeerAddress;
use proto::limits::MAX_DATA_RAILS;

/// One paired data rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The lane that each NIC is, as a bit; the first lane for a NIC that is none.
pub(super) fn by_nic(lanes: &[Lane]) -> [u16; MAX_DATA_RAILS] {
    let mut table = [1; MAX_DATA_RAILS];
    for (index, lane) in lanes.iter().enumerate() {
        if let Some(place) = table.get_mut(lane.nic) {
            *place = 1 << index;
        }
    }
    table
}
