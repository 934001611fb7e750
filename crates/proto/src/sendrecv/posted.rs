//! SENDRECV: which lines of a connection have a receive at the provider.
//!
//! ```text
//!  (none) ── its advert leaves ─▶ unposted ── taken ─▶ posted ─┬─ a message comes ──────────────▶ (none)
//!                                   │                        └─ nothing can come: cancel ─▶ cancelled ── it ends ─▶ (none)
//!                                   └─ nothing can come ─▶ (none)
//! ```
//!
//! A receive is posted when its advert leaves. So messages find their receive posted, unless the provider refuses it
//! for a while, and there are never more unexpected ones than lines of the window. A receive is cancelled only when its
//! sender cannot send for its line any more: a message that came later would stay at the provider for ever.

use crate::line::Line;
use crate::window::{WINDOW, bit, place};

/// The receives of one connection, indexed by the places of their lines.
#[derive(Debug)]
pub struct Posted {
    lines: [Line; WINDOW as usize],
    unposted: u64,
    posted: u64,
    /// Posted receives that were cancelled and have not ended.
    cancelled: u64,
    /// Lines may have changed since the last check for receives to cancel.
    stirred: bool,
    /// The peer is lost: all receives are cancelled.
    lost: bool,
}

/// An action at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Post the receive of this line. It may be refused.
    Post(Line),
    /// Cancel the receive of this line.
    Cancel(Line),
}

impl Default for Posted {
    fn default() -> Self {
        Self {
            lines: [Line::FIRST; WINDOW as usize],
            unposted: 0,
            posted: 0,
            cancelled: 0,
            stirred: false,
            lost: false,
        }
    }
}

impl Posted {
    /// Whether the place of a line is in use by another line: then its advert waits.
    #[inline]
    pub fn is_taken(&self, line: Line) -> bool {
        (self.unposted | self.posted) & bit(line) != 0
    }

    /// The advert of a line leaves: its receive is to be posted.
    #[inline]
    pub fn advertised(&mut self, line: Line) {
        self.lines[place(line)] = line;
        self.unposted |= bit(line);
    }

    /// Lines may have become complete, or been withdrawn.
    #[inline]
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// The peer is lost: all posted receives are cancelled, even those whose messages the peer has begun.
    pub fn lose(&mut self) {
        (self.lost, self.stirred) = (true, true);
    }

    /// The next action, if any. `oldest` is at or before all lines to post; `may_come` says whether a message may still
    /// come for a line.
    #[inline]
    pub fn next_step(&mut self, oldest: Line, may_come: impl Fn(Line) -> bool) -> Option<Step> {
        if self.stirred
            && let Some(line) = self.given_up(may_come)
        {
            return Some(Step::Cancel(line));
        }
        if self.unposted == 0 {
            return None;
        }
        let first = self.unposted.rotate_right(oldest.number() % WINDOW).trailing_zeros();
        Some(Step::Post(self.lines[place(oldest.plus(first))]))
    }

    /// A posted line for which no message can come. Lines that are not posted yet are dropped.
    fn given_up(&mut self, may_come: impl Fn(Line) -> bool) -> Option<Line> {
        let mut left = self.unposted | self.posted & !self.cancelled;
        while left != 0 {
            let (at, one) = (left.trailing_zeros() as usize, left & left.wrapping_neg());
            left &= !one;
            let line = self.lines[at % self.lines.len()];
            if !self.lost && may_come(line) {
                continue;
            }
            if self.posted & one != 0 {
                return Some(line);
            }
            self.unposted &= !one;
        }
        self.stirred = false;
        None
    }

    /// A step was performed. A post that was refused is returned again.
    #[inline]
    pub fn taken(&mut self, step: Step) {
        match step {
            Step::Post(line) => {
                self.unposted &= !bit(line);
                self.posted |= bit(line);
            }
            Step::Cancel(line) => self.cancelled |= bit(line),
        }
    }

    /// The receive of a line has ended: by a message, cancelled, or failed. False if none was posted.
    #[inline]
    pub fn ended(&mut self, line: Line) -> bool {
        let known = self.posted & bit(line) != 0 && self.lines[place(line)] == line;
        if known {
            self.posted &= !bit(line);
            self.cancelled &= !bit(line);
        }
        known
    }

    /// Whether a receive of this line is at the provider.
    #[inline]
    pub fn holds(&self, line: Line) -> bool {
        self.posted & bit(line) != 0 && self.lines[place(line)] == line
    }

    /// How many receives are at the provider, or are to be posted there.
    #[inline]
    pub fn count(&self) -> u32 {
        (self.unposted | self.posted).count_ones()
    }

    /// Whether there may be a next step.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.unposted != 0 || self.stirred && self.posted & !self.cancelled != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(posted: &mut Posted, oldest: Line, may_come: impl Fn(Line) -> bool) -> Vec<Step> {
        let next = || posted.next_step(oldest, &may_come).inspect(|step| posted.taken(*step));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn receives_are_posted_in_the_order_of_their_lines_across_the_wrap() {
        for start in [0, 40, 63, u32::MAX - 5] {
            let first = Line::new(start);
            let mut posted = Posted::default();
            (0..WINDOW).for_each(|ahead| posted.advertised(first.plus(ahead)));
            let expected: Vec<_> = (0..WINDOW).map(|ahead| Step::Post(first.plus(ahead))).collect();
            assert_eq!(all(&mut posted, first, |_| true), expected);
            assert_eq!((posted.count(), posted.is_busy()), (WINDOW, false));
        }
    }

    #[test]
    fn a_post_that_was_refused_is_returned_again() {
        let mut posted = Posted::default();
        posted.advertised(Line::new(7));
        let step = posted.next_step(Line::new(7), |_| true);
        assert_eq!(step, Some(Step::Post(Line::new(7))));
        assert_eq!(posted.next_step(Line::new(7), |_| true), step);
        assert!(!posted.holds(Line::new(7)));
    }

    #[test]
    fn a_receive_whose_message_cannot_come_is_cancelled_once_or_never_posted() {
        let mut posted = Posted::default();
        let lines = [1, 2, 3].map(Line::new);
        posted.advertised(lines[0]);
        posted.advertised(lines[1]);
        all(&mut posted, lines[0], |_| true);
        posted.advertised(lines[2]);
        posted.stir();
        let left = all(&mut posted, lines[0], |line| line == lines[1]);
        assert_eq!(left, [Step::Cancel(lines[0])]);
        posted.stir();
        assert_eq!(all(&mut posted, lines[0], |line| line == lines[1]), []);
        assert_eq!(posted.count(), 2, "a cancelled receive is there until it ends");
        assert!(posted.ended(lines[0]) && !posted.ended(lines[0]));
        assert!(posted.holds(lines[1]) && !posted.holds(lines[2]));
    }

    /// Otherwise the provider would keep it for ever.
    #[test]
    fn the_next_receive_at_a_place_whose_receive_was_cancelled_can_be_cancelled_too() {
        let mut posted = Posted::default();
        let lines = [5, 6, 5 + WINDOW].map(Line::new);
        lines[..2].iter().for_each(|line| posted.advertised(*line));
        all(&mut posted, lines[0], |_| true);
        posted.stir();
        let cancels = [lines[0], lines[1]].map(Step::Cancel);
        assert_eq!(all(&mut posted, lines[0], |_| false), cancels);
        assert!(posted.ended(lines[0]));
        posted.advertised(lines[2]);
        assert_eq!(all(&mut posted, lines[1], |_| true), [Step::Post(lines[2])]);
        posted.stir();
        assert_eq!(all(&mut posted, lines[1], |_| false), [Step::Cancel(lines[2])]);
    }

    #[test]
    fn all_receives_of_a_lost_peer_are_cancelled() {
        let mut posted = Posted::default();
        (0..3).for_each(|line| posted.advertised(Line::new(line)));
        all(&mut posted, Line::FIRST, |_| true);
        posted.lose();
        assert_eq!(all(&mut posted, Line::FIRST, |_| true).len(), 3);
        assert!(!posted.is_busy());
    }

    #[test]
    fn a_place_is_taken_until_its_receive_has_ended() {
        let mut posted = Posted::default();
        let (old, new) = (Line::new(5), Line::new(5 + WINDOW));
        posted.advertised(old);
        assert!(posted.is_taken(new));
        all(&mut posted, old, |_| true);
        assert!(posted.is_taken(new));
        assert!(!posted.ended(new), "the receive is another line's");
        assert!(posted.ended(old));
        assert!(!posted.is_taken(new));
    }
}
