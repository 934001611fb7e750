//! Sequence accounting per data rail: parts completed by the sender, and seen by the receiver.
//!
//! While the two differ, a part is lost or late, and memory or slots that it can still reach must not be reused. Writes
//! without an immediate complete on delivery and are not counted.

use crate::limits::MAX_DATA_RAILS;

use super::frame::Keys;
use super::rail_set::RailSet;

/// Parts per data rail. The counts wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u32; MAX_DATA_RAILS]);

impl Counts {
    #[inline]
    pub fn add(&mut self, rail: u8) {
        let count = &mut self.0[usize::from(rail) % MAX_DATA_RAILS];
        *count = count.wrapping_add(1);
    }

    pub fn get(&self, rail: u8) -> u32 {
        self.0[usize::from(rail) % MAX_DATA_RAILS]
    }

    pub fn set(&mut self, rail: u8, count: u32) {
        self.0[usize::from(rail) % MAX_DATA_RAILS] = count;
    }

    /// Whether both are equal on all rails but the ignored ones.
    pub fn equals_but(&self, other: &Self, ignored: RailSet) -> bool {
        let mut rails = (0..).zip(self.0.iter().zip(&other.0));
        rails.all(|(rail, (one, other))| one == other || ignored.has(rail))
    }

    /// The counts of `rails` rails, as a frame carries them.
    pub fn to_keys(self, rails: u8) -> Keys {
        let wide = self.0.map(u64::from);
        let rails = usize::from(rails).clamp(1, MAX_DATA_RAILS);
        Keys::new(&wide[..rails]).expect("one to sixteen rails")
    }

    /// The counts in a frame; None if a count has more than 32 bits.
    pub fn from_keys(keys: &Keys) -> Option<Self> {
        let mut counts = Self::default();
        for (count, key) in counts.0.iter_mut().zip(keys.as_slice()) {
            *count = u32::try_from(*key).ok()?;
        }
        Some(counts)
    }
}

/// The counts of one peer, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Our parts whose writes have completed.
    pub completed: Counts,
    /// The peer's parts that have arrived, including those that were dropped.
    pub seen: Counts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_a_frame() {
        let mut counts = Counts::default();
        for rail in 0..16 {
            for _ in 0..=rail {
                counts.add(rail);
            }
        }
        for rails in 1..=16 {
            let seen = Counts::from_keys(&counts.to_keys(rails)).unwrap();
            for rail in 0..16 {
                let expected = if rail < rails { u32::from(rail) + 1 } else { 0 };
                assert_eq!(seen.get(rail), expected);
            }
        }
        assert_eq!(Counts::from_keys(&Keys::new(&[1 << 32]).unwrap()), None);
    }

    #[test]
    fn a_count_is_set_on_its_own_rail() {
        let mut counts = Counts::default();
        counts.set(3, 7);
        assert_eq!([0, 3, 15].map(|rail| counts.get(rail)), [0, 7, 0]);
    }
}
