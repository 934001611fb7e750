//! A set of rails of one channel: of its data rails, or of its control rails.

use std::ops::{BitOr, BitOrAssign};

use crate::limits::MAX_DATA_RAILS;

/// Rails by their number in the channel, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailSet(u16);

impl RailSet {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(u16::MAX);

    #[inline]
    pub const fn new(bits: u16) -> Self {
        Self(bits)
    }

    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    #[inline]
    pub const fn of(rail: u8) -> Self {
        Self(1 << (rail % 16))
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    #[inline]
    pub const fn has(self, rail: u8) -> bool {
        self.0 >> (rail % 16) & 1 == 1
    }

    #[inline]
    pub const fn insert(&mut self, rail: u8) {
        self.0 |= 1 << (rail % 16);
    }

    #[inline]
    pub const fn remove(&mut self, rail: u8) {
        self.0 &= !(1 << (rail % 16));
    }

    /// The rail with the lowest number.
    #[inline]
    pub const fn first(self) -> Option<u8> {
        if self.is_empty() { None } else { Some(crate::bits::low8(self.0.trailing_zeros() as u64)) }
    }

    /// The rails in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |rail| self.has(*rail))
    }
}

impl BitOr for RailSet {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RailSet {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl FromIterator<u8> for RailSet {
    #[inline]
    fn from_iter<T: IntoIterator<Item = u8>>(rails: T) -> Self {
        rails.into_iter().fold(Self::NONE, |set, rail| set | Self::of(rail))
    }
}

const _: () = assert!(MAX_DATA_RAILS <= u16::BITS as usize, "a bit per rail");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_exactly_the_rails_that_it_was_made_from() {
        let mut set: RailSet = [3, 0, 15, 3].into_iter().collect();
        assert!(set.iter().eq([0, 3, 15]));
        assert_eq!(set.len(), 3);
        set |= RailSet::of(7) | RailSet::of(0);
        assert!(set.iter().eq([0, 3, 7, 15]));
        set.remove(3);
        assert!(!set.has(3) && set.has(7) && !set.is_empty());
    }
}
