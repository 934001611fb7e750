//! Which control rails of a channel live. A lost rail is probed by TRIAL letters, and lives again when a TRIAL was answered
//! by the same rail.
//!
//! ```text
//!  lives (number n, even) ── an error of ours, or a newer number of the peer's ──▶ lost (n + 1)
//!        ▲                                                                        │ rested: TRIAL by that rail
//!        └───────── its answer by that rail, or a newer number of the peer's ─────┘
//! ```
//!
//! A number per rail counts its losses and returns. Every letter carries all of them, and both ends keep the newer one,
//! so a late letter has no effect.

use super::super::bound::{CONTROL_RAILS_MAX, RAIL_TRIAL};
use super::super::ids::Moment;
use super::super::letter::{RailNumbers, Trial};
use crate::rail_set::RailSet;
use crate::rest::Rest;

#[derive(Debug)]
pub(super) struct ControlRails {
    count: u8,
    numbers: RailNumbers,
    rests: [History; CONTROL_RAILS_MAX],
    /// Per rail, the number in a TRIAL of the peer that was not answered yet.
    answers: [Option<u8>; CONTROL_RAILS_MAX],
    /// Rails that were lost or came back and are not logged yet.
    news: RailNews,
}

#[derive(Clone, Copy, Debug, Default)]
struct History {
    rest: Rest,
    /// When the rail is tried next. None: the rail was lost since the last check.
    try_at: Option<Moment>,
}

/// Control rails of a channel that were lost, and those that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailNews {
    pub lost: RailSet,
    pub returned: RailSet,
}

impl ControlRails {
    pub(super) fn new(count: u8) -> Self {
        Self {
            count,
            numbers: RailNumbers::default(),
            rests: [History::default(); CONTROL_RAILS_MAX],
            answers: [None; CONTROL_RAILS_MAX],
            news: RailNews::default(),
        }
    }

    pub(super) fn numbers(&self) -> RailNumbers {
        self.numbers
    }

    #[inline]
    pub(super) fn is_lost(&self, rail: u8) -> bool {
        self.numbers.is_lost(rail)
    }

    /// Whether the rail exists and is not lost.
    pub(super) fn lives(&self, rail: u8) -> bool {
        rail < self.count && !self.is_lost(rail)
    }

    /// Loses a rail. False if it was lost before, or does not exist.
    pub(super) fn lose(&mut self, rail: u8) -> bool {
        let lost = rail < self.count && !self.is_lost(rail);
        if lost {
            self.numbers.advance(rail);
            self.changed(rail);
        }
        lost
    }

    /// Takes the rail numbers of a letter from the peer. Returns the rails that were lost since the last letter, also
    /// those that are back.
    pub(super) fn heard(&mut self, theirs: RailNumbers, now: Moment) -> RailSet {
        let mut changed = RailSet::NONE;
        for rail in 0..self.count {
            let was_lost = self.is_lost(rail);
            let ahead = self.numbers.take_newer(rail, theirs);
            if ahead == 0 {
                continue;
            }
            changed.insert(rail);
            // A single change after a loss is a return.
            if !(was_lost && ahead == 1) {
                self.changed(rail);
            }
            if !self.is_lost(rail) {
                self.returned(rail, now);
            }
        }
        changed
    }

    /// The next TRIAL, or answer to a TRIAL. Each is returned once, whether it can be posted or not: a trial without an
    /// answer has failed.
    pub(super) fn next_trial(&mut self, now: Moment) -> Option<(u8, Trial)> {
        for (rail, answer) in (0..self.count).zip(&mut self.answers) {
            if let Some(number) = answer.take() {
                return Some((rail, Trial { rail, number, answers: true }));
            }
        }
        (0..self.count).find_map(|rail| self.trial_of(rail, now))
    }

    fn trial_of(&mut self, rail: u8, now: Moment) -> Option<(u8, Trial)> {
        if !self.is_lost(rail) {
            return None;
        }
        let History { rest, try_at } = &mut self.rests[usize::from(rail)];
        let Some(at) = *try_at else {
            rest.lost(now);
            *try_at = Some(now.plus(rest.pause()));
            return None;
        };
        if now < at {
            return None;
        }
        rest.failed();
        *try_at = Some(now.plus(RAIL_TRIAL).plus(rest.pause()));
        Some((rail, Trial { rail, number: self.numbers.of(rail), answers: false }))
    }

    /// When the next TRIAL or answer is due, or something is to be logged.
    pub(super) fn due_at(&self) -> Option<Moment> {
        if self.is_whole() {
            return None;
        }
        if self.answers != [None; CONTROL_RAILS_MAX] || self.news != RailNews::default() {
            return Some(Moment::default());
        }
        let tried = (0..self.count).filter(|rail| self.is_lost(*rail));
        tried.map(|rail| self.rests[usize::from(rail)].try_at.unwrap_or_default()).min()
    }

    /// A TRIAL, or the answer to one, has arrived by the rail that it names.
    pub(super) fn tried(&mut self, trial: &Trial, now: Moment) {
        let Trial { rail, number, answers } = *trial;
        if rail >= self.count {
            return;
        }
        if !answers {
            self.answers[usize::from(rail)] = Some(number);
        } else if self.is_lost(rail) && number == self.numbers.of(rail) {
            self.numbers.advance(rail);
            self.returned(rail, now);
            // The answer's header carries the new number to the peer.
            self.answers[usize::from(rail)] = Some(number);
        }
    }

    fn changed(&mut self, rail: u8) {
        self.rests[usize::from(rail)].try_at = None;
        self.news.lost.insert(rail);
        self.news.returned.remove(rail);
    }

    fn returned(&mut self, rail: u8, now: Moment) {
        self.rests[usize::from(rail)].rest.returned(now);
        self.news.returned.insert(rail);
    }

    /// Whether no rail was ever lost, no TRIAL is to be answered, and nothing is to be logged.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.numbers == RailNumbers::default()
            && self.answers == [None; CONTROL_RAILS_MAX]
            && self.news == RailNews::default()
    }

    pub(super) fn take_news(&mut self) -> RailNews {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn news(lost: u16, returned: u16) -> RailNews {
        RailNews { lost: RailSet::new(lost), returned: RailSet::new(returned) }
    }

    /// The trials that are due from one millisecond to another.
    fn trials(rails: &mut ControlRails, from: u64, until: u64) -> Vec<(u64, Trial)> {
        (from..until).filter_map(|now| Some((now, rails.next_trial(ms(now))?.1))).collect()
    }

    #[test]
    fn a_lost_rail_is_tried_until_an_answer_to_its_present_number_comes() {
        let (mut one, mut other) = (ControlRails::new(2), ControlRails::new(2));
        assert!(one.is_whole() && one.next_trial(ms(0)).is_none());
        assert!(one.lose(1) && !one.lose(1) && !one.lose(2) && one.is_lost(1));
        let due = trials(&mut one, 0, 4000);
        assert_eq!(due.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [300, 1600, 2900]);
        let (_, trial) = due[0];
        assert_eq!(trial, Trial { rail: 1, number: 1, answers: false });
        // The peer does not know of the loss yet.
        assert_eq!(other.heard(one.numbers(), ms(0)), RailSet::new(0b10));
        assert_eq!(other.take_news(), news(0b10, 0));
        other.tried(&trial, ms(0));
        let (by, answer) = other.next_trial(ms(0)).unwrap();
        assert_eq!((by, answer), (1, Trial { answers: true, ..trial }));
        assert!(other.is_lost(1), "a trial in one direction is not enough");
        one.tried(&answer, ms(5000));
        assert!(!one.is_lost(1));
        assert_eq!(one.take_news(), news(0b10, 0b10));
        let (by, last) = one.next_trial(ms(5000)).unwrap();
        assert_eq!(by, 1, "the answer tells the peer, by that rail");
        assert_eq!(other.heard(one.numbers(), ms(5000)), RailSet::new(0b10));
        assert_eq!(other.take_news(), news(0, 0b10));
        other.tried(&last, ms(5000));
        assert!(!other.is_lost(1) && other.next_trial(ms(9000)).is_none());
        assert!(one.lose(1));
        one.tried(&answer, ms(5001));
        assert!(one.is_lost(1), "an answer from before the second loss");
    }

    #[test]
    fn a_loss_and_a_return_that_were_both_missed_are_a_loss() {
        let (mut one, mut other) = (ControlRails::new(4), ControlRails::new(4));
        assert!(one.lose(3));
        let late = one.numbers();
        one.tried(&Trial { rail: 3, number: 1, answers: true }, ms(0));
        assert_eq!(other.heard(one.numbers(), ms(0)), RailSet::new(0b1000));
        assert!(!other.is_lost(3));
        assert_eq!(other.take_news(), news(0b1000, 0b1000));
        assert_eq!(other.heard(late, ms(0)), RailSet::new(0), "an older letter");
        assert!(!other.is_lost(3));
    }

    #[test]
    fn a_return_is_news_even_after_the_numbers_have_wrapped() {
        let mut rails = ControlRails::new(1);
        for number in [1, 3, 5, 7, 9, 11, 13, 15] {
            assert!(rails.lose(0));
            rails.tried(&Trial { rail: 0, number, answers: true }, ms(0));
            assert!(rails.next_trial(ms(0)).is_some(), "the peer has to be informed");
            assert!(!rails.is_whole());
            assert_eq!(rails.take_news(), news(1, 1));
        }
        assert!(rails.is_whole());
    }

    #[test]
    fn rails_are_due_for_news_an_answer_or_the_next_trial_of_a_lost_rail() {
        let mut rails = ControlRails::new(2);
        assert_eq!(rails.due_at(), None);
        assert!(rails.lose(1));
        assert_eq!(rails.next_trial(ms(0)), None);
        assert_eq!(rails.due_at(), Some(ms(0)), "the loss is to be logged");
        rails.take_news();
        assert_eq!(rails.due_at(), Some(ms(300)));
        rails.tried(&Trial { rail: 0, number: 0, answers: false }, ms(1));
        assert_eq!(rails.due_at(), Some(ms(0)), "a trial is to be answered");
        assert!(rails.next_trial(ms(1)).is_some());
        assert_eq!(rails.due_at(), Some(ms(300)));
    }
}
