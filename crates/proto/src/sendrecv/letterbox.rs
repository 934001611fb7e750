//! SENDRECV: destinations of packets that come as tagged messages. The tag is the packet's place in control memory.
//!
//! The side that lends an inbox gives the peer a unit's number as its address. The peer adds the offset in the ring, as
//! it does with any address, and sends the sum as the tag. So nothing else differs from RDMA. A tag that does not name
//! a lent inbox, or bytes outside of one, is dropped: peers have no access to shadows.

use crate::memory::MemoryId;

/// How many low bits of a tag are the offset in the unit.
pub const PLACE_BITS: u32 = 17;

/// Which units of control memory are lent to peers.
#[derive(Debug, Default)]
pub struct Letterbox {
    lent: Vec<bool>,
}

impl Letterbox {
    /// Lends a unit to a peer. Returns the address for the peer.
    pub fn lend(&mut self, memory: MemoryId) -> u64 {
        let at = memory.0 as usize;
        if self.lent.len() <= at {
            self.lent.resize(at + 1, false);
        }
        self.lent[at] = true;
        u64::from(memory.0) << PLACE_BITS
    }

    /// Takes a unit back: packets for it are dropped from now on.
    pub fn retire(&mut self, memory: MemoryId) {
        if let Some(lent) = self.lent.get_mut(memory.0 as usize) {
            *lent = false;
        }
    }

    /// The destination of `len` bytes with this tag, in units of `unit` bytes: the unit, and the offset in it. None if
    /// the tag is invalid, or offset or length are not whole words.
    #[inline]
    #[must_use]
    pub fn place(&self, tag: u64, len: usize, unit: usize) -> Option<(MemoryId, usize)> {
        let memory = MemoryId(u32::try_from(tag >> PLACE_BITS).ok()?);
        let at = usize::try_from(tag & PLACE_MASK).ok()?;
        let whole = at.is_multiple_of(8) && len.is_multiple_of(8);
        let inside = whole && at.checked_add(len).is_some_and(|end| end <= unit);
        let lent = self.lent.get(memory.0 as usize).copied().unwrap_or(false);
        (inside && lent).then_some((memory, at))
    }
}

const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 65_600;

    #[test]
    fn a_packet_lands_where_its_peer_would_have_written_it() {
        let mut box_of = Letterbox::default();
        for unit in [0, 5, 700] {
            let address = box_of.lend(MemoryId(unit));
            for (at, len) in [(0, 56), (65_536, 8), (65_592, 8), (64, 16_384)] {
                let placed = box_of.place(address + at as u64, len, UNIT);
                assert_eq!(placed, Some((MemoryId(unit), at)));
            }
        }
    }

    #[test]
    fn a_packet_for_no_lent_inbox_is_dropped() {
        let mut box_of = Letterbox::default();
        let address = box_of.lend(MemoryId(3));
        for (tag, len) in [
            (address + 65_592, 16),
            (address + 4, 8),
            (address, 7),
            (address + (1 << PLACE_BITS), 8),
            (address - 8, 8),
            (u64::MAX - 7, 8),
            (0, 8),
        ] {
            assert_eq!(box_of.place(tag, len, UNIT), None, "{tag:#x} {len}");
        }
        box_of.retire(MemoryId(3));
        assert_eq!(box_of.place(address, 8, UNIT), None);
    }
}
