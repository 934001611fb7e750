//! Reports of a receiver after a lost rail is fenced: RAIL *held* for each line that has parts, then *listed*. The
//! sender retransmits the parts that it sent by that rail and that are missing here.

use super::ReceiveFlow;
use super::ending::Ending;
use super::slot::State;
use crate::frame::{Frame, RAIL_WORDS, RailNote, RailState};
use crate::line::Line;
use crate::rail_set::RailSet;
use crate::window::place;

/// Lost rails, and how far they are reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    /// Rails that are not fenced: a write without an immediate may still arrive by them even if the counts are equal.
    pub(super) open: RailSet,
    /// Fenced rails.
    pub(super) fenced: RailSet,
    /// Fenced rails that are not fully reported to the sender.
    unreported: RailSet,
    /// Lines before this one are reported for the first rail in `unreported`.
    reported_to: Option<Line>,
    /// Rails with new keys, for which adverts left with old ones; and the next line of the first such rail whose key is
    /// to be sent.
    rekeyed: RailSet,
    next_key: Option<Line>,
}

impl ReceiveFlow {
    /// The rail is lost, and not fenced yet.
    #[cold]
    pub fn rail_left(&mut self, rail: u8) {
        self.lost.open.insert(rail);
    }

    /// The rail is fenced: begins to report to the sender which parts have arrived.
    #[cold]
    pub fn rail_fenced(&mut self, rail: u8) {
        self.lost.open.remove(rail);
        self.lost.fenced.insert(rail);
        if self.sent.is_none() {
            self.lost.unreported.insert(rail);
            // Earlier reports may be outdated, so all lines are reported again.
            self.lost.reported_to = None;
        }
    }

    /// The rail returns: counts parts on it from 0, as the sender does. After the sender's CLOSE nothing comes.
    #[cold]
    pub fn rail_counts(&mut self, rail: u8) {
        if self.sent.is_none() {
            self.lost.fenced.remove(rail);
            self.seen.set(rail, 0);
        }
    }

    /// The keys on a rail have changed. Adverts that have not left carry the new ones; for the others RAIL *key* is
    /// sent.
    #[cold]
    pub fn rekey(&mut self, rail: u8, key: &mut dyn FnMut(u32) -> u64) {
        for ahead in 0..self.next.distance(self.done) {
            let line = self.done.plus(ahead);
            let region = self.slot(line).target.region;
            *self.key_mut(line, rail) = key(region);
        }
        if self.sent.is_none() {
            self.lost.rekeyed.insert(rail);
            self.lost.next_key = None;
        }
    }

    fn key_mut(&mut self, line: Line, rail: u8) -> &mut u64 {
        let rails = usize::from(self.terms.cutting.rails);
        &mut self.keys[place(line) * rails + usize::from(rail) % rails]
    }

    /// The next new key that was not sent: its rail, its line, and the key.
    fn next_rekeyed(&mut self) -> Option<(u8, Line, u64)> {
        while let Some(rail) = self.lost.rekeyed.first() {
            let line = self.lost.next_key.unwrap_or(self.done);
            let line = if self.done.is_after(line) { self.done } else { line };
            if self.advertised.is_after(line) {
                return Some((rail, line, *self.key_mut(line, rail)));
            }
            self.lost.next_key = None;
            self.lost.rekeyed.remove(rail);
        }
        None
    }

    /// Whether RAIL frames are pending.
    #[inline]
    pub fn has_rail_notes(&self) -> bool {
        let unreported = self.lost.unreported | self.lost.rekeyed;
        !unreported.is_empty() && self.ending != Ending::Closed && !self.peer_ended
    }

    #[cold]
    pub(super) fn next_rail_note(&mut self, words: usize) -> Option<Frame> {
        if words < RAIL_WORDS {
            return None;
        }
        let to = self.terms.peer;
        let Some(rail) = self.lost.unreported.first() else {
            let (rail, line, key) = self.next_rekeyed()?;
            self.lost.next_key = Some(line.plus(1));
            return Some(Frame::Rail(RailNote { rail, state: RailState::Key { to, line, key } }));
        };
        let first = self.lost.reported_to.unwrap_or(self.done);
        let first = if self.done.is_after(first) { self.done } else { first };
        let ahead = first.distance(self.done);
        let lines = (ahead..self.open_lines()).map(|ahead| self.done.plus(ahead));
        let mut found = lines.filter_map(|line| Some((line, self.parts_of(line)?)));
        let state = match found.next() {
            Some((line, parts)) => {
                self.lost.reported_to = Some(line.plus(1));
                RailState::Held { to, line, parts }
            }
            None => {
                self.lost.reported_to = None;
                self.lost.unreported.remove(rail);
                RailState::Listed { to, lines: self.done, seen: self.seen.get(rail) }
            }
        };
        Some(Frame::Rail(RailNote { rail, state }))
    }

    /// The parts of a line that have arrived; None if no part has.
    fn parts_of(&self, line: Line) -> Option<u64> {
        match self.slot(line).state {
            State::Filling { parts, .. } => Some(parts),
            State::Free | State::Complete { .. } => Some(u64::MAX),
            State::Posted | State::Copying(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::frame::{Close, Keys};
    use crate::ids::{Moment, Name};
    use crate::immediate::Immediate;
    use crate::receive::{Posting, Receive, Target};
    use crate::terms::Terms;

    /// A receive of region 7 is advertised with an old key, and one of region 8 is not.
    #[test]
    fn a_new_key_follows_the_adverts_that_have_left_and_is_in_those_that_leave_later() {
        let mut flow = ReceiveFlow::new(Terms::of_two_rails(Name::default()));
        let (mut account, now) = (Account::new(2), Moment::default());
        let post = |flow: &mut ReceiveFlow, account: &Account, region| {
            let target = Target { address: 0, region };
            let receive = Receive { target, len: 1000, ..Receive::default() };
            let posted = flow.post(&[receive], &[1, 2], Posting::default(), account, now);
            posted.unwrap().unwrap()
        };
        let next = |flow: &mut ReceiveFlow, account: &mut Account| {
            let advert = flow.next_frame(Which::Adverts, 100, account, now);
            advert.or_else(|| flow.next_frame(Which::Others, 100, account, now))
        };
        let first = post(&mut flow, &account, 7);
        assert!(matches!(next(&mut flow, &mut account), Some(Frame::Advert(_))));
        post(&mut flow, &account, 8);
        flow.rekey(1, &mut |region| 100 + u64::from(region));
        let frames = [next(&mut flow, &mut account), next(&mut flow, &mut account)];
        assert!(
            matches!(
                frames,
                [
                    Some(Frame::Advert(advert)),
                    Some(Frame::Rail(RailNote { rail: 1, state: RailState::Key { line, key: 107, .. } })),
                ] if advert.keys.as_slice() == [1, 108] && line == first
            ),
            "{frames:?}"
        );
    }

    type Step = fn(&mut ReceiveFlow);

    /// Whether the memory of a closed connection's receives is free after these steps, if the sender's CLOSE reports one part
    /// posted on rail 0.
    fn is_free_after(steps: &[Step]) -> bool {
        let mut flow = ReceiveFlow::new(Terms::of_two_rails(Name::default()));
        steps.iter().for_each(|step| step(&mut flow));
        let parts = Keys::new(&[1, 0]).unwrap();
        flow.peer_closed(&Close { to: Name::default(), lines: Line::FIRST, parts }).unwrap();
        flow.nothing_comes()
    }

    #[test]
    fn memory_is_free_once_no_part_can_come_by_any_rail() {
        let arrives: Step = |flow| flow.seen.add(0);
        let [lost, fenced, back]: [Step; 3] =
            [|flow| flow.rail_left(0), |flow| flow.rail_fenced(0), |flow| flow.rail_counts(0)];
        let other_lost: Step = |flow| flow.rail_left(1);
        assert!(!is_free_after(&[]) && is_free_after(&[arrives]));
        assert!(!is_free_after(&[arrives, lost]), "a write without an immediate may come");
        assert!(is_free_after(&[lost, fenced]), "even if the counts differ");
        assert!(!is_free_after(&[lost, fenced, back]), "a part may come by the rail again");
        assert!(!is_free_after(&[arrives, lost, fenced, back]), "parts are counted from 0 again");
        assert!(is_free_after(&[lost, fenced, back, arrives]));
        assert!(!is_free_after(&[lost, fenced, other_lost]));
    }

    /// Of three receives one has a part, one is complete and one has nothing.
    #[test]
    fn after_a_fence_the_sender_hears_which_parts_of_each_open_line_have_arrived() {
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
        let now = Moment::default();
        let [some, all, _] = [(); 3].map(|()| {
            let receive = Receive { len: 1000, ..Receive::default() };
            flow.post(&[receive], &[1, 2], Posting::default(), &account, now).unwrap().unwrap()
        });
        while flow.next_frame(Which::Adverts, 100, &mut account, now).is_some() {}
        let own = terms.own.in_immediate();
        for (rail, line, part, last) in [(1, some, 1, false), (0, all, 0, false), (1, all, 1, true)]
        {
            let immediate = Immediate::new(own, line, part, last, true, 0);
            flow.arrived(rail, immediate, 500, &mut account, now);
        }
        flow.rail_left(1);
        flow.rail_fenced(1);
        let frames = std::iter::from_fn(|| flow.next_frame(Which::Others, 100, &mut account, now));
        let states: Vec<_> = frames
            .map(|frame| match frame {
                Frame::Rail(RailNote { rail: 1, state }) => state,
                _ => panic!("{frame:?}"),
            })
            .collect();
        let to = Name::default();
        let expected = [
            RailState::Held { to, line: some, parts: 0b10 },
            RailState::Held { to, line: all, parts: u64::MAX },
            RailState::Listed { to, lines: some, seen: 2 },
        ];
        assert_eq!(states, expected);
    }
}
