//! A rail of this side, and the peer's address on it.

use fabric::PeerAddress;

/// A rail of ours, and the address of its partner rail at the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// The index of the NIC.
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
}

/// The index of this NIC's rail among these.
#[inline]
pub(super) fn rail_of(lanes: &[Lane], nic: usize) -> Option<u8> {
    // With equal rails on both ends, rails are in the order of the NICs.
    let at = match lanes.get(nic) {
        Some(lane) if lane.nic == nic => nic,
        _ => lanes.iter().position(|lane| lane.nic == nic)?,
    };
    u8::try_from(at).ok()
}
