//! The bits that ride with a part.
//!
//! ```text
//! 63..32 length of a message that is not whole (8 bytes) | 31 whole | 30 last | 29..24 part | 23..14 line mod 1024 | 13..0 comm
//! ```

use crate::bits::{low8, low32};
use crate::ids::{CommId, Line, RESIDUES};
use crate::limits::MAX_PARTS;

/// An immediate, as it is written or as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(u64);

impl Immediate {
    /// `length` is the message's, for connections whose immediates carry 8 bytes, and messages that are not whole; else 0.
    #[inline]
    pub fn new(comm: CommId, line: Line, part: u32, last: bool, whole: bool, length: u32) -> Self {
        assert!(part < MAX_PARTS, "the cut of a message with immediates is bounded");
        Self(
            u64::from(comm.get())
                | u64::from(line.residue()) << LINE_SHIFT
                | u64::from(part % MAX_PARTS) << PART_SHIFT
                | u64::from(last) << LAST_SHIFT
                | u64::from(whole) << WHOLE_SHIFT
                | u64::from(length) << LENGTH_SHIFT,
        )
    }

    /// This one, of line 0, for `line`.
    #[inline]
    pub(crate) const fn of_line(self, line: Line) -> Self {
        Self(self.0 | (line.residue() as u64) << LINE_SHIFT)
    }

    /// This one, of a message that fills its receive, for one of `length` that does not.
    #[inline]
    pub(crate) const fn of_length(self, length: u32) -> Self {
        Self(self.0 & !(1 << WHOLE_SHIFT) | (length as u64) << LENGTH_SHIFT)
    }

    /// What a completion brought. Every 64 bits are an immediate of some meaning.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub const fn comm(self) -> CommId {
        CommId::from_low_bits(self.0)
    }

    /// The line modulo 1024.
    #[inline]
    pub const fn residue(self) -> u32 {
        low32(self.0 >> LINE_SHIFT) % RESIDUES
    }

    #[inline]
    pub const fn part(self) -> u8 {
        low8(self.0 >> PART_SHIFT) & 63
    }

    #[inline]
    pub const fn is_last(self) -> bool {
        self.0 >> LAST_SHIFT & 1 != 0
    }

    /// Whether the message fills its receive and is one part: the first is the last.
    #[inline(always)]
    pub(crate) const fn is_whole_in_one_part(self) -> bool {
        self.0 >> PART_SHIFT & 0xff == 3 << (LAST_SHIFT - PART_SHIFT)
    }

    #[inline]
    pub const fn is_whole(self) -> bool {
        self.0 >> WHOLE_SHIFT & 1 != 0
    }

    /// The high half: the length of a message that is not whole, where 8 bytes are carried.
    #[inline]
    pub const fn length(self) -> u32 {
        low32(self.0 >> LENGTH_SHIFT)
    }
}

const LINE_SHIFT: u32 = 14;
const PART_SHIFT: u32 = 24;
const LAST_SHIFT: u32 = 30;
const WHOLE_SHIFT: u32 = 31;
const LENGTH_SHIFT: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_gives_back_what_it_was_made_of() {
        for comm in [0, 1, 0x2aaa, 0x3fff] {
            let comm = CommId::new(comm).unwrap();
            for line in (0..2048).chain([u32::MAX]).map(Line::new) {
                for part in 0..64 {
                    for (last, whole) in
                        [(false, false), (false, true), (true, false), (true, true)]
                    {
                        let length = line.number().wrapping_mul(part);
                        let made = Immediate::new(comm, line, part, last, whole, length);
                        let seen = Immediate::from_bits(made.bits());
                        assert_eq!(seen.comm(), comm);
                        assert_eq!(seen.residue(), line.number() % 1024);
                        assert_eq!(u32::from(seen.part()), part);
                        assert_eq!((seen.is_last(), seen.is_whole()), (last, whole));
                        assert_eq!(seen.length(), length);
                    }
                }
            }
        }
    }

    #[test]
    fn everything_but_the_length_fits_four_bytes() {
        let comm = CommId::new(0x3fff).unwrap();
        let full = Immediate::new(comm, Line::new(1023), 63, true, true, 0);
        assert_eq!(full.bits(), u64::from(u32::MAX));
    }
}
