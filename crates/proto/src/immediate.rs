//! The immediate (remote CQ data) of a part: connection, line, part and, where there is room, the message's length.
//!
//! ```text
//! 0..14 slot of the receiver | 14..16 its generation | 16..24 line modulo 256 | 24..30 part | 30 last | 31 whole
//! 32..64 length of a message that does not fill its receive, where eight bytes travel
//! ```
//!
//! A trial of a rail has part 63 without the bit *last*, which no message has. Its bits 0..16 are the channel, 16..24
//! the round.

use super::window::{RESIDUES, WINDOW};
use crate::bits::{low8, low16, low32};
use crate::line::Line;

/// The immediate of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(u64);

impl Immediate {
    /// `connection` is the receiver's slot and generation; `part` is below 64.
    #[inline]
    pub const fn new(
        connection: u16,
        line: Line,
        part: u32,
        last: bool,
        whole: bool,
        length: u32,
    ) -> Self {
        let low = connection as u32
            | (line.number() % RESIDUES) << LINE_SHIFT
            | (part & PART_MASK) << PART_SHIFT
            | (last as u32) << LAST_SHIFT
            | (whole as u32) << WHOLE_SHIFT;
        Self(low as u64 | (length as u64) << LENGTH_SHIFT)
    }

    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The immediate of a trial: the recipient's number of the channel, and the round that it offered.
    pub const fn trial(channel: u16, round: u8) -> Self {
        Self(TRIAL | channel as u64 | (round as u64) << LINE_SHIFT)
    }

    /// Channel and round, if this is a trial.
    #[inline]
    pub const fn as_trial(self) -> Option<(u16, u8)> {
        if self.0 & TRIAL_BITS != TRIAL {
            return None;
        }
        Some((low16(self.0), low8(self.0 >> LINE_SHIFT)))
    }

    /// The receiver's slot and generation.
    #[inline]
    pub const fn connection(self) -> u16 {
        low16(self.0)
    }

    /// The line, if it is one of the `count` lines from `first` on; `count` is at most [`WINDOW`].
    #[inline]
    pub const fn line(self, first: Line, count: u32) -> Option<Line> {
        let residue = low8(self.0 >> LINE_SHIFT) as u32;
        let ahead = residue.wrapping_sub(first.number()) % RESIDUES;
        if ahead < count && count <= WINDOW { Some(first.plus(ahead)) } else { None }
    }

    #[inline]
    pub const fn part(self) -> u32 {
        low32(self.0 >> PART_SHIFT) & PART_MASK
    }

    #[inline]
    pub const fn is_last(self) -> bool {
        self.0 >> LAST_SHIFT & 1 == 1
    }

    /// Whether the message fills its receive.
    #[inline]
    pub const fn is_whole(self) -> bool {
        self.0 >> WHOLE_SHIFT & 1 == 1
    }

    #[inline]
    pub const fn length(self) -> u32 {
        low32(self.0 >> LENGTH_SHIFT)
    }
}

const LINE_SHIFT: u32 = 16;
const PART_SHIFT: u32 = 24;
const PART_MASK: u32 = 63;
const LAST_SHIFT: u32 = 30;
const WHOLE_SHIFT: u32 = 31;
const LENGTH_SHIFT: u32 = 32;
const TRIAL: u64 = (PART_MASK as u64) << PART_SHIFT;
const TRIAL_BITS: u64 = TRIAL | 1 << LAST_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_decodes_to_what_it_was_made_of() {
        for connection in [0, 1, 0x2aaa, 0x3fff, 0x4000, 0xffff] {
            for line in (0..512).chain([u32::MAX]).map(Line::new) {
                for part in 0..64 {
                    for flags in 0..4 {
                        let (last, whole) = (flags & 1 != 0, flags & 2 != 0);
                        let length = line.number().wrapping_mul(part + 1);
                        let made = Immediate::new(connection, line, part, last, whole, length);
                        let seen = Immediate::from_bits(made.bits());
                        assert_eq!(seen.connection(), connection);
                        assert_eq!(seen.part(), part);
                        assert_eq!((seen.is_last(), seen.is_whole()), (last, whole));
                        assert_eq!(seen.length(), length);
                    }
                }
            }
        }
    }

    #[test]
    fn a_trial_is_no_part_that_a_message_has() {
        for (channel, round) in [(0, 0), (0xffff, 255), (77, 3)] {
            let trial = Immediate::trial(channel, round);
            assert_eq!(Immediate::from_bits(trial.bits()).as_trial(), Some((channel, round)));
            assert!(trial.bits() <= u64::from(u32::MAX), "four bytes carry it");
        }
        for part in 0..64 {
            let last = Immediate::new(0xffff, Line::new(255), part, true, true, u32::MAX);
            assert_eq!(last.as_trial(), None);
            let other = Immediate::new(0xffff, Line::new(255), part % 63, false, true, 0);
            assert_eq!(other.as_trial(), None);
        }
    }

    #[test]
    fn a_line_is_found_in_any_window_that_has_it_and_in_no_other() {
        for start in [0, 1, 200, 255, 256, u32::MAX - 63, u32::MAX] {
            let line = Line::new(start);
            let made = Immediate::new(7, line, 0, true, true, 0);
            for before in 0..RESIDUES {
                let first = line.plus(before.wrapping_neg());
                assert_eq!(made.line(first, WINDOW + 1), None, "more than a window is ambiguous");
                for count in [0, 1, 8, 63, 64] {
                    let expected = (before < count).then_some(line);
                    assert_eq!(made.line(first, count), expected, "{before} {count}");
                }
            }
        }
    }

    #[test]
    fn everything_but_the_length_fits_four_bytes() {
        let full = Immediate::new(0xffff, Line::new(255), 63, true, true, 0);
        assert_eq!(full.bits(), u64::from(u32::MAX));
    }
}
