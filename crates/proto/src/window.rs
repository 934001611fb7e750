//! How many lines may be where: the ring of L, the E that may travel unadvertised, the W outstanding at the receiver.
//!
//! The law is W ≤ L − E: then an advert is never overwritten before the sender has read it or, eagerly, gone past it.

use crate::ids::{Line, RESIDUES};
use crate::limits::{MAX_GROUP, MAX_RING, NCCL_MAX_REQUESTS};

/// A window that keeps the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    lines: u32,
    /// `lines` - 1: the lines are a power of two.
    mask: u32,
    eager: u32,
    outstanding: u32,
}

impl Window {
    /// For connections whose receives are all single.
    pub const SINGLE: Self = Self { lines: 64, mask: 63, eager: 16, outstanding: 48 };
    /// For connections with grouped receives.
    pub const GROUPED: Self = Self { lines: 128, mask: 127, eager: 16, outstanding: 112 };

    /// None unless the ring is a power of two within bounds and W ≤ L − E.
    pub const fn new(lines: u32, eager: u32, outstanding: u32) -> Option<Self> {
        let ring = lines.is_power_of_two() && lines <= MAX_RING;
        if ring && outstanding > 0 && eager <= lines && outstanding <= lines - eager {
            Some(Self { lines, mask: lines - 1, eager, outstanding })
        } else {
            None
        }
    }

    /// The window that serves groups of up to `max_group`.
    pub const fn for_groups_of(max_group: usize) -> Self {
        if max_group > 1 { Self::GROUPED } else { Self::SINGLE }
    }

    /// Whether receives may come in groups. Then several of NCCL's connections share one, and a receive that stands
    /// alone is for one of them: tags count there too.
    #[inline]
    pub const fn is_grouped(self) -> bool {
        self.lines == Self::GROUPED.lines
    }

    /// Whether a ring that was made for `lent` has room for this one.
    pub const fn fits(self, lent: Self) -> bool {
        self.lines <= lent.lines
    }

    #[inline]
    pub const fn lines(self) -> u32 {
        self.lines
    }

    #[inline]
    pub const fn eager(self) -> u32 {
        self.eager
    }

    /// How many places an eager ring has. None where their numbers could not wrap.
    #[inline]
    pub const fn eager_places(self) -> u32 {
        const MOST: u32 = 8;
        let places = if self.eager < MOST { self.eager } else { MOST };
        if places.is_power_of_two() { places } else { 0 }
    }

    #[inline]
    pub const fn outstanding(self) -> u32 {
        self.outstanding
    }

    /// The place of a line in the ring.
    #[inline]
    pub const fn place(self, line: Line) -> u32 {
        line.number() & self.mask
    }

    /// The place behind a ring: in the mailbox the lone done lands there, in the fin ring a failure.
    #[inline]
    pub const fn lone_place(self) -> u32 {
        self.lines
    }

    /// How many places a ring has, with the one behind it.
    pub const fn places(self) -> u32 {
        self.lines + 1
    }

    /// How many lines from `first` on lie side by side before the ring ends.
    #[inline]
    pub(crate) const fn run(self, first: Line) -> u32 {
        self.lines - self.place(first)
    }
}

const _: () = {
    assert!(Window::SINGLE.outstanding() + Window::SINGLE.eager() <= Window::SINGLE.lines());
    assert!(Window::GROUPED.outstanding() + Window::GROUPED.eager() <= Window::GROUPED.lines());
    assert!(
        Window::SINGLE.outstanding() >= NCCL_MAX_REQUESTS,
        "NCCL may post all its requests as single receives"
    );
    assert!(Window::GROUPED.outstanding() as usize >= MAX_GROUP, "one group always fits");
    assert!(Window::GROUPED.lines() <= MAX_RING && Window::SINGLE.lines() <= MAX_RING);
    assert!(MAX_RING <= RESIDUES / 2, "an immediate resolves to one line of the ring");
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_breaks_the_law() {
        for lines in 0..=130 {
            for eager in 0..=lines + 1 {
                for outstanding in 0..=lines + 1 {
                    let legal = [1, 2, 4, 8, 16, 32, 64, 128].contains(&lines)
                        && outstanding > 0
                        && outstanding + eager <= lines;
                    assert_eq!(Window::new(lines, eager, outstanding).is_some(), legal);
                }
            }
        }
    }

    #[test]
    fn a_line_and_the_next_lap_share_a_place() {
        for window in [Window::SINGLE, Window::GROUPED] {
            for start in [0, 63, u32::MAX - 64] {
                let line = Line::new(start);
                assert_eq!(window.place(line), window.place(line.plus(window.lines())));
                for other in 1..window.lines() {
                    assert_ne!(window.place(line), window.place(line.plus(other)));
                }
            }
        }
    }
}
