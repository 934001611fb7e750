//! SENDRECV: the tag of a part, which names its connection and line.
//!
//! ```text
//!  bit 47   46, 45                 44 to 31   30 to 0
//!      0    low generation bits    slot       line, modulo 2³¹
//! ```
//!
//! Slot and generation are the receiver's, as in an immediate. A slot is freed only when no receive is posted for it,
//! so no two posted receives have the same tag. Of all providers cxi compares the fewest bits: 48 (fi_cxi(7)).

use crate::ids::Name;
use crate::line::Line;

/// How many low bits are used.
pub const TAG_BITS: u32 = 48;

/// A tag, as the provider compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u64);

impl Tag {
    /// The tag of a flush's own receive, which no line has.
    pub const FLUSH: Self = Self(1 << (TAG_BITS - 1));

    /// The tag of a line, by the receiver's name for the connection.
    #[inline]
    #[must_use]
    pub const fn of_line(receiver: Name, line: Line) -> Self {
        Self::of(receiver.in_immediate(), line)
    }

    /// As [`of_line`](Self::of_line), by slot and generation as in an immediate.
    #[inline]
    #[must_use]
    pub const fn of(connection: u16, line: Line) -> Self {
        let (slot, generation) = (connection as u64 & 0x3fff, connection as u64 >> 14);
        Self(generation << 45 | slot << 31 | (line.number() & LINE_MASK) as u64)
    }

    /// The tag as passed to the provider.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

const LINE_MASK: u32 = u32::MAX >> 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, Slot};
    use crate::window::WINDOW;

    fn name(slot: usize, generation: u8) -> Name {
        Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(generation) }
    }

    #[test]
    fn no_two_lines_that_are_posted_at_once_have_the_same_tag() {
        let mut seen = std::collections::HashSet::from([Tag::FLUSH]);
        for slot in [0, 1, Slot::COUNT - 1] {
            for generation in 0..4 {
                for ahead in 0..WINDOW {
                    let line = Line::new(u32::MAX - 20).plus(ahead);
                    let tag = Tag::of_line(name(slot, generation), line);
                    assert!(tag.bits() >> TAG_BITS == 0, "{tag:?}");
                    assert!(seen.insert(tag), "{tag:?}");
                }
            }
        }
    }

    /// The peer may have another release.
    #[test]
    fn a_tag_has_generation_slot_and_line_at_their_places() {
        let tag = |slot, generation, line| Tag::of_line(name(slot, generation), Line::new(line));
        assert_eq!(tag(0, 0, 0).bits(), 0);
        assert_eq!(tag(77, 6, 9).bits(), 2 << 45 | 77 << 31 | 9);
        assert_eq!(tag(Slot::COUNT - 1, 7, u32::MAX).bits(), (1 << 47) - 1);
    }

    #[test]
    fn both_ends_compute_the_same_tag_of_a_line() {
        let (receiver, line) = (name(77, 6), Line::new(9));
        assert_eq!(Tag::of_line(receiver, line), Tag::of(receiver.in_immediate(), line));
    }
}
