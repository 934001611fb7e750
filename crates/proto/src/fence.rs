//! What a receiver must know before memory that it has advertised may go: which lines the sender writes to.
//!
//! ```text
//!  receiver                                      sender
//!  ReceiveFlow::withdraw ── Withdraw ──▶         begins nothing more
//!  ReceiveFlow::fenced   ◀── Withdrawn, Begun ── SendFlow::begun
//!  ReceiveFlow::exposed: none is left once the messages that were begun have arrived
//! ```
//!
//! What is begun is waited for, not cut off: a completion at the sender proves no arrival on every provider, and an
//! injected write has none, but the receiver knows what has arrived. What is not begun never will be.

use crate::ids::Line;
use crate::limits::{MAX_GROUP, MAX_RING};

/// The lines that a sender has begun to write to, once it begins no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// Lines before this one were begun.
    pub base: Line,
    /// A bit per line from `base` on; lines past them were not begun.
    pub more: u16,
}

impl Begun {
    /// No line was begun: what is said of a connection that its sender has not opened.
    pub const NOTHING: Self = Self { base: Line::FIRST, more: 0 };

    /// All that was begun is over, with lines up to `first` taken: nothing of it is under way.
    pub(crate) fn over(first: Line) -> Self {
        Self { base: first.plus(MAX_RING.wrapping_neg()), more: 0 }
    }

    /// Whether `line` was begun.
    pub fn has(self, line: Line) -> bool {
        let ahead = line.distance(self.base);
        ahead.cast_signed() < 0 || ahead < u16::BITS && self.more >> ahead & 1 == 1
    }

    /// Of a flow whose lines before `first` were taken, and in the group that begins there those in `taken`; nothing was
    /// written to the line `refused`.
    pub(crate) fn of(first: Line, taken: u32, refused: Option<Line>) -> Self {
        let base = first.plus(BEHIND.wrapping_neg());
        let mut more = crate::bits::low16(u64::from(taken << BEHIND | ((1 << BEHIND) - 1)));
        if let Some(line) = refused
            && line.distance(base) < u16::BITS
        {
            more &= !(1 << line.distance(base));
        }
        Self { base, more }
    }
}

/// The line that was refused is the last that was taken, so it lies in the group before `first`, or in the one there.
const BEHIND: u32 = 8;
const _: () = assert!(BEHIND as usize >= MAX_GROUP && BEHIND as usize + MAX_GROUP <= 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_begun_but_for_what_was_refused() {
        for start in [0, 3, 100, u32::MAX - 3] {
            let first = Line::new(start);
            for taken in 0..1_u32 << MAX_GROUP {
                let begun = Begun::of(first, taken, None);
                for ahead in 0..40 {
                    assert!(
                        begun.has(first.plus((ahead + 1_u32).wrapping_neg())),
                        "{ahead} before {start}"
                    );
                    let expected = ahead < 8 && taken >> ahead & 1 == 1;
                    assert_eq!(begun.has(first.plus(ahead)), expected, "{ahead} after {start}");
                }
            }
            for refused in -8..8 {
                let line = first.plus(u32::wrapping_add_signed(0, refused));
                let begun = Begun::of(first, 0xff, Some(line));
                for other in -16..8 {
                    let other = first.plus(u32::wrapping_add_signed(0, other));
                    assert_eq!(begun.has(other), other != line);
                }
            }
        }
        assert!(!Begun::NOTHING.has(Line::FIRST));
        for start in [0, 3, u32::MAX] {
            let lines = (0..2 * MAX_RING).map(|ahead| Line::new(start).plus(ahead));
            let newest = Line::new(start).plus(MAX_RING);
            assert!(lines.into_iter().all(|line| !Begun::over(newest).has(line)));
        }
    }
}
