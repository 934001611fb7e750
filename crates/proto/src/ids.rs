//! Numbers on the wire: slots and generations of connections, packet numbers, epochs, nonces; and points in time.

use std::time::Duration;

use crate::bits::low32;

/// A connection's index in its endpoint's table. It has 14 bits, since an immediate has room for no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    pub const COUNT: usize = 1 << 14;

    pub const fn new(index: usize) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "it was just compared")]
        if index < Self::COUNT { Some(Self(index as u16)) } else { None }
    }

    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Distinguishes successive connections in one slot. Frames carry six bits of it, immediates the low two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(u8);

impl Generation {
    pub const COUNT: u8 = 1 << 6;

    /// The low six bits of a number.
    #[inline]
    pub const fn new(number: u8) -> Self {
        Self(number % Self::COUNT)
    }

    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }
}

/// How a frame names a connection: the recipient's slot, and its generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name {
    pub slot: Slot,
    pub generation: Generation,
}

impl Name {
    /// As an immediate carries it: the slot, and the low two bits of the generation.
    #[inline]
    pub const fn in_immediate(self) -> u16 {
        self.slot.0 | (self.generation.0 as u16 & 3) << 14
    }
}

/// The number of a listener within its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// A packet's sequence number within one direction of a channel. It wraps, so compare distances, not numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PacketNumber(u32);

impl PacketNumber {
    #[inline]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    #[inline]
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// How many packets this one is after `earlier`, wrapping.
    #[inline]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this one is later, across the wrap.
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other).cast_signed() > 0
    }
}

/// The number of an inbox among those that one end of a channel has lent. The first is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// A random number per inbox, which is part of the check of every packet into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nonce(pub u64);

impl Nonce {
    /// The word for the cell of this inbox: the last packet consumed, and half of the nonce, which distinguishes late writes for an
    /// earlier inbox in the same memory.
    #[inline]
    pub(crate) const fn cell(self, consumed: PacketNumber) -> u64 {
        self.0 & CELL_NONCE | consumed.get() as u64
    }

    /// The last packet consumed, from the word in this inbox's cell. None: it was written for another inbox.
    #[inline]
    pub(crate) const fn consumed(self, cell: u64) -> Option<PacketNumber> {
        match (cell ^ self.0) & CELL_NONCE {
            0 => Some(PacketNumber::new(low32(cell))),
            _ => None,
        }
    }
}

/// The bits of a cell that hold half of the nonce.
const CELL_NONCE: u64 = !0 << u32::BITS;

/// A time of the caller's monotonic clock, in nanoseconds. `proto` has no clock of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    #[inline]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[inline]
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `ago` before this one, but not before the beginning of the clock.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        let nanos = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_fourteen_bits_and_a_generation_six() {
        assert_eq!(Slot::new(0x3fff).map(Slot::index), Some(0x3fff));
        assert_eq!(Slot::new(0x4000), None);
        assert_eq!(Generation::new(63).next(), Generation::new(0));
    }

    #[test]
    fn an_immediate_carries_the_slot_and_the_low_two_bits_of_the_generation() {
        let slot = Slot::new(0x2aaa).unwrap();
        let carried = [0, 1, 2, 7, 60].map(|number| {
            let generation = Generation::new(number);
            Name { slot, generation }.in_immediate()
        });
        assert_eq!(carried, [0x2aaa, 0x6aaa, 0xaaaa, 0xeaaa, 0x2aaa]);
    }

    #[test]
    fn packet_numbers_have_distances_across_the_wrap() {
        let last = PacketNumber::new(u32::MAX);
        assert_eq!(last.plus(3).get(), 2);
        assert_eq!(last.plus(3).distance(last), 3);
    }

    #[test]
    fn moments_do_not_wrap() {
        let end = Moment::from_nanos(u64::MAX);
        assert_eq!(end.plus(Duration::from_secs(1)), end);
        assert_eq!(Moment::from_nanos(5).since(end), Duration::ZERO);
    }
}
