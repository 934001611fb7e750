//! Retransmission of parts that were sent by a lost rail: those that the receiver lacks are posted again on other
//! rails.
//!
//! ```text
//!  a rail is lost ──▶ HELD (parts of a line that have arrived) … LISTED (end of the list; nothing lands by the rail any more)
//!                       └─▶ once no write of ours is in flight on it: parts that are missing are posted again
//! ```
//!
//! A message keeps its record until it is done, so a part can be posted again even after its write has completed.

use super::ending::Ending;
use super::record::{Path, Record, State, Writing};
use super::{Refused, SendFlow, bit_of};
use crate::account::Account;
use crate::bits::low8;
use crate::counts::Counts;
use crate::fault::Fault;
use crate::frame::FinStatus;
use crate::limits::MAX_PARTS;
use crate::line::Line;
use crate::message::MessageId;
use crate::rail_set::RailSet;
use crate::window::{RECORDS, WINDOW, place};

/// The sender's state of lost rails. Made when the first rail is lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// Rails that the receiver has fenced, and whose parts were not yet compared with its report.
    fenced: RailSet,
    /// The number of parts with immediates posted on each rail when it was lost; and, by the receiver's report, how many of
    /// them have not arrived.
    posted: Counts,
    missing: Counts,
    /// Lines before this one are complete at the receiver.
    complete: Line,
    /// By place of a line: the line, and the parts of it that the receiver has.
    held: [(Line, u64); WINDOW as usize],
    /// Rails that were lost at or after the receiver's CLOSE, since a closed receiver sends no new keys.
    unkeyed: RailSet,
    /// Per record: parts whose write has failed, and parts to post again.
    failed: [u64; RECORDS],
    again: [u64; RECORDS],
}

impl Lost {
    fn new(complete: Line) -> Box<Self> {
        Box::new(Self {
            fenced: RailSet::NONE,
            posted: Counts::default(),
            missing: Counts::default(),
            complete,
            held: [(Line::FIRST, 0); WINDOW as usize],
            unkeyed: RailSet::NONE,
            failed: [0; RECORDS],
            again: [0; RECORDS],
        })
    }

    /// Parts of a record that were posted, and are neither in flight nor known to have arrived.
    fn parts_of(&self, at: usize) -> u64 {
        self.failed[at] | self.again[at]
    }

    /// The receiver has completed all lines before this one.
    fn complete_to(&mut self, line: Line) {
        if line.is_after(self.complete) {
            self.complete = line;
        }
    }

    /// The parts of a line that the receiver has.
    fn has(&self, line: Line) -> u64 {
        let (held, parts) = self.held[place(line)];
        if self.complete.is_after(line) {
            u64::MAX
        } else if held == line {
            parts
        } else {
            0
        }
    }
}

impl SendFlow {
    fn lost_mut(&mut self) -> &mut Lost {
        let Self { lost, rails, peer_done, .. } = self;
        lost.get_or_insert_with(|| {
            widen(rails);
            Lost::new(*peer_done)
        })
    }

    /// A part's write has failed, and its rail is lost: the part waits for the receiver's report.
    #[cold]
    pub(super) fn part_lost(&mut self, at: usize, part: u8) {
        self.lost_mut().failed[at] |= 1 << (part % 64);
        self.settle_complete(at);
        self.post_again();
    }

    /// The receiver has completed all lines before this one: their lost parts have arrived.
    #[cold]
    pub(super) fn all_before(&mut self, line: Line) {
        self.lost_mut().complete_to(line);
        (0..RECORDS).for_each(|at| self.settle_complete(at));
    }

    /// Clears the lost parts of a message whose line the receiver has completed.
    fn settle_complete(&mut self, at: usize) {
        let Record { line, state, .. } = self.records[at];
        let (Some(lost), State::Writing(writing)) = (&mut self.lost, state) else { return };
        let parts = lost.parts_of(at);
        if parts == 0 || !lost.complete.is_after(line) {
            return;
        }
        (lost.failed[at], lost.again[at]) = (0, 0);
        let writing = Writing { completed: writing.completed | parts, ..writing };
        self.records[at].state = State::Writing(writing);
        if writing.is_posted() {
            self.posting &= !bit_of(MessageId(low8(at as u64)));
        }
        if writing.is_complete() {
            self.round_ended(at, writing);
        }
    }

    /// Whether a posted part's write has failed, or the part is to be posted again.
    pub(super) fn is_lost(&self, at: usize, part: u8) -> bool {
        self.lost_parts(at) >> (part % 64) & 1 == 1
    }

    fn lost_parts(&self, at: usize) -> u64 {
        self.lost.as_ref().map_or(0, |lost| lost.parts_of(at))
    }

    /// The next part of a record to post again.
    #[cold]
    pub(super) fn next_again(&self, at: usize) -> Option<u8> {
        let again = self.lost.as_ref()?.again[at];
        (again != 0).then(|| low8(again.trailing_zeros().into()))
    }

    /// A part was posted. Returns whether that was a retransmission.
    #[cold]
    pub(super) fn posted_again(&mut self, at: usize, part: u8) -> bool {
        let Some(lost) = &mut self.lost else { return false };
        let bit = 1 << (part % 64);
        let again = lost.again[at] & bit != 0;
        lost.again[at] &= !bit;
        again
    }

    /// Drops the parts of a record that are to be posted again. Returns them.
    #[cold]
    pub(super) fn drop_again(&mut self, at: usize) -> u64 {
        self.lost.as_mut().map_or(0, |lost| std::mem::take(&mut lost.again[at]))
    }

    /// Whether parts of lost rails are neither in flight nor known to have arrived.
    pub(super) fn lacks_parts(&self) -> bool {
        let lacks =
            |lost: &Lost| !lost.fenced.is_empty() || (0..RECORDS).any(|at| lost.parts_of(at) != 0);
        self.lost.as_ref().is_some_and(|lost| lacks(lost))
    }

    /// Whether the write of a part has failed, and the receiver has not reported on it.
    pub(super) fn has_lost(&self, at: usize) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.failed[at] != 0)
    }

    pub(super) fn lacks_parts_of(&self, at: usize) -> bool {
        self.lost_parts(at) != 0
    }

    /// A rail is lost: its count restarts at 0, since the receiver settles earlier parts at the fence.
    #[cold]
    pub fn rail_left(&mut self, rail: u8) {
        let posted = self.parts.get(rail);
        if posted != 0 || self.lost.is_some() {
            self.lost_mut().posted.set(rail, posted);
        }
        self.parts.set(rail, 0);
        if self.has_peer_closed() {
            self.lost_mut().unkeyed.insert(rail);
        }
    }

    /// The receiver has closed: if rails that are closed now return, it does not send their new keys.
    #[cold]
    pub(super) fn no_more_keys(&mut self, account: &Account) {
        let closed = (0..account.loads.rails()).filter(|rail| !account.loads.is_open(*rail));
        let closed: RailSet = closed.collect();
        if !closed.is_empty() {
            self.lost_mut().unkeyed |= closed;
        }
    }

    /// Whether the receiver's keys on this rail may have changed without notice.
    #[inline]
    pub(super) fn lacks_keys(&self, rail: u8) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.unkeyed.has(rail))
    }

    /// Moves a part of a lost rail to the rail that is expected to finish it first.
    #[cold]
    pub(super) fn other_rail(&mut self, at: usize, part: u8, len: u64, account: &Account) -> u8 {
        self.lost_mut();
        let keyed = |rail: usize| !self.lacks_keys(low8(rail as u64));
        let rail = account.loads.soonest(len, keyed);
        let words = self.rail_words();
        let part = usize::from(part) % (words * super::parts::PARTS_PER_WORD);
        let word = &mut self.rails[at * words + part / super::parts::PARTS_PER_WORD];
        let shift = 4 * (part % super::parts::PARTS_PER_WORD);
        *word = *word & !(15 << shift) | u64::from(rail) << shift;
        rail
    }

    /// Handles RAIL *held*: the receiver has these parts of a line.
    #[cold]
    pub(super) fn held(&mut self, line: Line, parts: u64) {
        let held = &mut self.lost_mut().held[place(line)];
        let before = if held.0 == line { held.1 } else { 0 };
        *held = (line, before | parts);
    }

    /// Handles RAIL *listed*: the receiver has fenced the rail. Lines before `lines` are complete; of other lines that *held*
    /// did not name it has no part. It has seen `seen` parts on the rail.
    #[cold]
    pub(super) fn listed(&mut self, rail: u8, lines: Line, seen: u32) {
        let lost = self.lost_mut();
        lost.fenced.insert(rail);
        // A connection that was made after the loss has posted nothing on the rail, and may not know of the loss.
        let missing = lost.posted.get(rail).wrapping_sub(seen);
        lost.missing.set(rail, missing);
        lost.complete_to(lines);
        self.post_again();
    }

    /// Posts parts of fenced rails again that the receiver lacks, once none of our writes is in flight there.
    #[cold]
    pub(super) fn post_again(&mut self) {
        let fenced = self.lost.as_ref().map_or(RailSet::NONE, |lost| lost.fenced);
        for rail in fenced.iter() {
            if (0..RECORDS).any(|at| self.flying(at, rail) != 0) {
                continue;
            }
            if let Some(lost) = &mut self.lost {
                lost.fenced.remove(rail);
            }
            let again = (0..RECORDS).map(|at| self.sort_out(at, rail)).sum();
            self.check_missing(rail, again);
        }
    }

    /// Parts of a record in flight on a rail.
    fn flying(&self, at: usize, rail: u8) -> u64 {
        let State::Writing(writing) = self.records[at].state else { return 0 };
        self.on_rail(at, writing.posted, rail) & !writing.completed & !self.lost_parts(at)
    }

    /// Which of a record's first `parts` parts are on a rail.
    fn on_rail(&self, at: usize, parts: u8, rail: u8) -> u64 {
        let on = (0..parts).filter(|part| self.rail(at, *part) == rail);
        on.fold(0, |set, part| set | 1 << part)
    }

    /// Fails the flow if more parts of a rail are missing than are posted again: their message was reported as
    /// sent, since their completions had proven arrival.
    fn check_missing(&mut self, rail: u8, again: u32) {
        let Some(lost) = &mut self.lost else { return };
        let missing = lost.missing.get(rail);
        lost.missing.set(rail, 0);
        if missing <= again || missing > u32::MAX / 2 || self.fault.is_some() {
            return;
        }
        self.stick(Fault::PartsLost { rail });
        if self.may_post() || matches!(self.ending, Ending::Closing { peer: false }) {
            // The message is unknown. The FIN names the newest line, which the receiver still knows.
            let line = self.first.plus(u32::MAX);
            self.refused.get_or_insert(Refused {
                line,
                len: 0,
                status: FinStatus::Failed,
                begun: true,
                pending: true,
            });
        }
    }

    /// For a fenced rail: marks each part of a message on it as arrived, or as one to post again. Returns how many of
    /// the latter have immediates.
    fn sort_out(&mut self, at: usize, rail: u8) -> u32 {
        let record = self.records[at];
        let Some(writing) = self.written_so_far(&record) else { return 0 };
        let on_rail = self.on_rail(at, writing.posted, rail);
        let Some(lost) = &mut self.lost else { return 0 };
        let arrived = match writing.path {
            // The message was reported as failed, so no part of it is posted again.
            _ if writing.failed => u64::MAX,
            Path::Immediate { .. } => lost.has(record.line),
            // Writes on the FIN path complete on delivery.
            Path::Fin => writing.completed,
        };
        let missing = on_rail & !arrived;
        lost.failed[at] &= !on_rail;
        lost.again[at] |= missing;
        let completed = writing.completed & !missing | on_rail & arrived;
        let writing = Writing { completed, ..writing };
        if missing != 0 {
            if self.may_post() {
                self.posting |= bit_of(MessageId(low8(at as u64)));
            }
        } else if writing.is_complete() {
            self.round_ended(at, writing);
            return 0;
        } else if matches!(record.state, State::Landed { .. }) {
            return 0;
        }
        self.records[at].state = State::Writing(writing);
        if writing.is_fin() { 0 } else { missing.count_ones() }
    }

    /// Whether parts of a message that has landed may be posted again if a rail is lost: the receiver may not have completed the message.
    pub(super) fn may_repeat(&self, record: &Record) -> bool {
        record.state == (State::Landed { fin: false })
            && self.fault.is_none()
            && !self.is_done(record)
    }

    /// The state of a message whose parts may be missing. Parts may be missing until the receiver has completed the message, even
    /// after their writes have completed.
    fn written_so_far(&self, record: &Record) -> Option<Writing> {
        match record.state {
            State::Writing(writing) => Some(writing),
            State::Landed { .. } if self.may_repeat(record) => {
                let split = self.terms.cutting.split(record.len);
                let whole = self.adverts.get(record.line).len == record.len;
                let mut writing = Writing::new(split, Path::Immediate { whole });
                writing.posted = writing.parts;
                writing.completed = u64::MAX >> (MAX_PARTS - u32::from(writing.parts));
                Some(writing)
            }
            _ => None,
        }
    }
}

/// Gives each of 64 parts its own rail field: parts that shared one may need different rails now.
fn widen(rails: &mut Box<[u64]>) {
    let (few, all) = (rails.len() / RECORDS, MAX_PARTS as usize / super::parts::PARTS_PER_WORD);
    if few == 0 || few == all {
        return;
    }
    let old = std::mem::take(rails);
    *rails = old.chunks(few).flat_map(|words| (0..all).map(|at| words[at % few])).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::frame::{Advert, Close, Frame, Keys, RailNote, RailState};
    use crate::ids::{Moment, Name};
    use crate::message::Source;
    use crate::send::{Outgoing, PartWrite, SendPoll};
    use crate::split::Cutting;
    use crate::terms::Terms;

    const PART: u64 = 64 << 10;

    /// A sender over two rails, and its account. It has submitted a message of `parts` parts to the first line, and posted none
    /// of them.
    fn sending(parts: u64) -> (SendFlow, Account) {
        let cutting = Cutting::new(2, PART, PART).unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { cutting, immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        account.rails.set_survives(true);
        let len = parts * PART;
        let advert = Advert::of_line(terms.own, Line::FIRST, len, &[10, 11]);
        flow.received(&Frame::Advert(advert), &mut account).unwrap();
        let message = Outgoing { tag: 0, len, source: Source::default(), host: false };
        flow.submit(&message, 0, &mut account).unwrap();
        (flow, account)
    }

    /// Posts `count` parts, or fewer if there are fewer.
    fn post(flow: &mut SendFlow, account: &mut Account, count: usize) -> Vec<PartWrite> {
        let mut writes = Vec::new();
        while writes.len() < count
            && let Some(write) = flow.next_part(account)
        {
            flow.posted(&write, account);
            writes.push(write);
        }
        writes
    }

    fn complete(flow: &mut SendFlow, account: &mut Account, write: &PartWrite) {
        flow.written(write.message, write.part, account, Moment::default());
    }

    /// This side has lost a rail, and the channel continues on the other one.
    fn lose(flow: &mut SendFlow, account: &mut Account, rail: u8) {
        account.loads.close(rail);
        flow.rail_left(rail);
    }

    fn hears(flow: &mut SendFlow, account: &mut Account, frame: Frame) {
        flow.received(&frame, account).unwrap();
    }

    #[test]
    fn a_message_with_a_failed_write_is_done_once_the_receiver_has_it() {
        let (mut flow, mut account) = sending(2);
        let writes = post(&mut flow, &mut account, 2);
        let [failed, other] = writes[..] else { panic!("{writes:?}") };
        assert_eq!(flow.rails(failed.message).iter().count(), 2);
        flow.write_failed(failed.message, failed.part, 5, &mut account);
        lose(&mut flow, &mut account, failed.rail);
        assert!(flow.unfinished().eq([other.message]));
        complete(&mut flow, &mut account, &other);
        assert_eq!(flow.unfinished().count(), 0, "nothing is in flight");
        assert!(!flow.is_quiet(), "END waits for the receiver's report");
        assert_eq!(flow.poll(failed.message), SendPoll::Pending);
        let lines = Line::FIRST.plus(1);
        hears(&mut flow, &mut account, Frame::Done { to: Name::default(), lines });
        assert!(flow.is_quiet());
        assert_eq!(flow.poll(failed.message), SendPoll::Done { len: 2 * PART });
    }

    /// For all combinations of parts that have failed, have completed, or complete after the receiver's report.
    #[test]
    fn parts_of_a_lost_rail_that_the_receiver_lacks_are_posted_again_once_none_is_in_flight() {
        let masks = [0, u64::MAX, 0x55_5555_5555, 0xaa_aaaa_aaaa, 0xff_00ff_00f0, 1, 1 << 39];
        let all = masks.into_iter().flat_map(|failed| masks.map(|held| (failed, held)));
        for ((failed, held), late) in all.flat_map(|one| masks.map(|late| (one, late))) {
            let (mut flow, mut account) = sending(40);
            let writes = post(&mut flow, &mut account, 40);
            assert_eq!(writes.len(), 40);
            let has = |mask: u64, write: &PartWrite| mask >> write.part & 1 == 1;
            let fails = |write: &PartWrite| write.rail == 0 && has(failed, write);
            for write in writes.iter().filter(|write| !fails(write) && !has(late, write)) {
                complete(&mut flow, &mut account, write);
            }
            for write in writes.iter().filter(|write| fails(write)) {
                flow.write_failed(write.message, write.part, 5, &mut account);
            }
            lose(&mut flow, &mut account, 0);
            let (to, line, rail) = (Name::default(), Line::FIRST, 0);
            let on_rail = || writes.iter().filter(|write| write.rail == 0);
            let seen = crate::bits::count32(on_rail().filter(|write| has(held, write)).count());
            for state in [
                RailState::Held { to, line, parts: held },
                RailState::Listed { to, lines: line, seen },
            ] {
                hears(&mut flow, &mut account, Frame::Rail(RailNote { rail, state }));
            }
            for write in writes.iter().filter(|write| !fails(write) && has(late, write)) {
                let flies = on_rail()
                    .any(|other| !fails(other) && other.part >= write.part && has(late, other));
                assert!(!flies || flow.next_part(&account).is_none(), "a part is in flight");
                complete(&mut flow, &mut account, write);
            }
            let lacked = on_rail().filter(|write| !has(held, write));
            let expected: Vec<_> =
                lacked.map(|write| PartWrite { rail: 1, moved: true, key: 11, ..*write }).collect();
            let again = post(&mut flow, &mut account, 40);
            assert_eq!(again, expected, "failed {failed:x}, held {held:x}, late {late:x}");
            assert!(again.is_empty() || !flow.is_quiet());
            for write in &again {
                complete(&mut flow, &mut account, write);
            }
            assert!(flow.is_quiet() && flow.next_part(&account).is_none());
            assert_eq!((flow.fault(), account.rails.flying_on(1)), (None, 0));
            let lines = line.plus(1);
            hears(&mut flow, &mut account, Frame::Done { to, lines });
            assert_eq!(flow.poll(writes[0].message), SendPoll::Done { len: 40 * PART });
        }
    }

    #[test]
    fn parts_are_written_with_the_newest_key_of_their_rail() {
        let (mut flow, mut account) = sending(2);
        let (to, line) = (Name::default(), Line::FIRST);
        let state = RailState::Key { to, line, key: 99 };
        hears(&mut flow, &mut account, Frame::Rail(RailNote { rail: 1, state }));
        let mut writes = post(&mut flow, &mut account, 2);
        writes.sort_by_key(|write| write.rail);
        let keys: Vec<_> = writes.iter().map(|write| (write.rail, write.key)).collect();
        assert_eq!(keys, [(0, 10), (1, 99)]);
    }

    /// The key may belong to other memory by now: a receiver that has closed sends no new keys.
    #[test]
    fn nothing_is_written_by_a_rail_that_was_lost_and_is_back_once_the_receiver_has_closed() {
        for lost_first in [false, true] {
            let (mut flow, mut account) = sending(2);
            let parts = Keys::new(&[0, 0]).unwrap();
            let close = Frame::Close(Close { to: Name::default(), lines: Line::FIRST, parts });
            if lost_first {
                lose(&mut flow, &mut account, 0);
                hears(&mut flow, &mut account, close);
            } else {
                hears(&mut flow, &mut account, close);
                lose(&mut flow, &mut account, 0);
            }
            account.loads.open(0);
            let rails: Vec<_> =
                post(&mut flow, &mut account, 2).iter().map(|write| write.rail).collect();
            assert_eq!(rails, [1, 1], "lost first: {lost_first}");
        }
    }

    /// The rails of its first sixteen parts are remembered, and repeat until a rail is lost.
    #[test]
    fn parts_of_a_long_message_that_move_to_another_rail_do_not_move_those_in_flight() {
        let (mut flow, mut account) = sending(40);
        let mut writes = post(&mut flow, &mut account, 16);
        lose(&mut flow, &mut account, 0);
        let moved = post(&mut flow, &mut account, 40);
        assert!(moved.len() == 24 && moved.iter().all(|write| write.rail == 1), "{moved:?}");
        writes.extend(moved);
        for write in &writes {
            let before = account.rails.flying_on(write.rail);
            complete(&mut flow, &mut account, write);
            assert_eq!(account.rails.flying_on(write.rail), before - 1, "{write:?}");
        }
        assert_eq!((flow.in_flight(), flow.fault()), (0, None));
    }

    #[test]
    fn the_parts_of_a_line_are_not_those_of_an_earlier_line_in_its_place() {
        let mut lost = Lost::new(Line::FIRST);
        let line = Line::FIRST.plus(5);
        lost.held[place(line)] = (line, 0b11);
        assert_eq!(lost.has(line), 0b11);
        assert_eq!(lost.has(line.plus(WINDOW)), 0);
        lost.complete_to(line.plus(1));
        assert_eq!(lost.has(line), u64::MAX);
    }

    /// Which of the first message's parts are posted again, if the receiver reports these sets of parts in turn.
    fn again_after(reports: &[u64]) -> Vec<u8> {
        let (mut flow, mut account) = sending(8);
        let writes = post(&mut flow, &mut account, 8);
        writes.iter().for_each(|write| complete(&mut flow, &mut account, write));
        lose(&mut flow, &mut account, 0);
        let (to, line) = (Name::default(), Line::FIRST);
        let held = reports.iter().map(|parts| RailState::Held { to, line, parts: *parts });
        let listed = RailState::Listed { to, lines: line, seen: 0 };
        for state in held.chain([listed]) {
            hears(&mut flow, &mut account, Frame::Rail(RailNote { rail: 0, state }));
        }
        post(&mut flow, &mut account, 8).iter().map(|write| write.part).collect()
    }

    /// Each time that a rail is fenced, the receiver reports all lines again.
    #[test]
    fn a_part_that_the_receiver_has_reported_once_is_not_posted_again() {
        let on_rail = again_after(&[]);
        assert_eq!(on_rail.len(), 4);
        let set = |parts: &[u8]| parts.iter().fold(0, |set, part| set | 1 << part);
        let (few, others) = (set(&on_rail[..2]), set(&on_rail[1..3]));
        assert_eq!(again_after(&[few, others]), on_rail[3..]);
        assert_eq!(again_after(&[few, few]), on_rail[2..]);
    }

    /// With whichever rail is lost, and for messages in any record.
    #[test]
    fn parts_of_a_lost_rail_complete_on_the_rail_that_they_moved_to() {
        for lost in 0..2 {
            let (mut flow, mut account) = sending(2);
            let line = Line::FIRST.plus(1);
            let advert = Advert::of_line(Name::default(), line, 2 * PART, &[10, 11]);
            hears(&mut flow, &mut account, Frame::Advert(advert));
            let (len, source) = (2 * PART, Source::default());
            flow.submit(&Outgoing { tag: 0, len, source, host: false }, 0, &mut account).unwrap();
            lose(&mut flow, &mut account, lost);
            let writes = post(&mut flow, &mut account, 4);
            assert!(writes.len() == 4 && writes.iter().all(|write| write.rail == 1 - lost));
            assert_eq!(writes.iter().filter(|write| write.moved).count(), 2);
            writes.iter().for_each(|write| complete(&mut flow, &mut account, write));
            assert_eq!((flow.fault(), flow.in_flight()), (None, 0));
            for write in &writes {
                assert!(flow.rails(write.message).iter().eq([1 - lost]));
            }
        }
    }

    /// Completions prove arrival here, so that the message was reported. A connection that was made after the loss counts from 0, and
    /// its receiver may have seen parts of the trial.
    #[test]
    fn parts_that_are_missing_of_reported_messages_are_a_failure_and_parts_too_many_are_none() {
        for (seen, fails) in [(2, false), (1, true), (0, true), (3, false)] {
            let (mut flow, mut account) = sending(4);
            flow.terms.proves_arrival = true;
            let writes = post(&mut flow, &mut account, 4);
            writes.iter().for_each(|write| complete(&mut flow, &mut account, write));
            assert_eq!(flow.poll(writes[0].message), SendPoll::Done { len: 4 * PART });
            lose(&mut flow, &mut account, 0);
            let state = RailState::Listed { to: Name::default(), lines: Line::FIRST, seen };
            hears(&mut flow, &mut account, Frame::Rail(RailNote { rail: 0, state }));
            let expected = fails.then_some(Fault::PartsLost { rail: 0 });
            assert_eq!(flow.fault(), expected, "{seen} of 2 were seen");
        }
    }

    #[test]
    fn a_report_of_a_rail_that_the_connection_lacks_is_refused() {
        let state = RailState::Listed { to: Name::default(), lines: Line::FIRST, seen: 0 };
        for (rail, valid) in [(0, true), (1, true), (2, false)] {
            let (mut flow, mut account) = sending(2);
            let heard = flow.received(&Frame::Rail(RailNote { rail, state }), &mut account);
            assert_eq!(heard.is_ok(), valid, "rail {rail}");
        }
    }

    /// A write has failed, and the receiver has withdrawn; its report is still missing.
    #[test]
    fn a_message_whose_receiver_has_withdrawn_goes_on_by_another_rail() {
        let (mut flow, mut account) = sending(2);
        let writes = post(&mut flow, &mut account, 2);
        let failed = writes.iter().find(|write| write.rail == 0).unwrap();
        flow.write_failed(failed.message, failed.part, 5, &mut account);
        lose(&mut flow, &mut account, 0);
        let lines = crate::frame::Lines { to: Name::default(), first: Line::FIRST, set: 1 };
        hears(&mut flow, &mut account, Frame::Withdraw(lines));
        assert_eq!(flow.poll(failed.message), SendPoll::Pending);
    }

    /// The second part of a message has failed, and the next message is not posted.
    #[test]
    fn a_message_that_the_receiver_has_in_spite_of_a_failed_write_drops_no_part_of_the_next() {
        let (mut flow, mut account) = sending(2);
        let writes = post(&mut flow, &mut account, 2);
        let [done, failed] = &writes[..] else { panic!("{writes:?}") };
        complete(&mut flow, &mut account, done);
        flow.write_failed(failed.message, failed.part, 5, &mut account);
        lose(&mut flow, &mut account, failed.rail);
        assert_eq!(flow.unfinished().count(), 0);
        let next = Line::FIRST.plus(1);
        let advert = Advert::of_line(Name::default(), next, 2 * PART, &[10, 11]);
        hears(&mut flow, &mut account, Frame::Advert(advert));
        let (len, source) = (2 * PART, Source::default());
        flow.submit(&Outgoing { tag: 0, len, source, host: false }, 0, &mut account).unwrap();
        hears(&mut flow, &mut account, Frame::Done { to: Name::default(), lines: next });
        assert_eq!(flow.poll(failed.message), SendPoll::Done { len });
        let lines: Vec<_> =
            post(&mut flow, &mut account, 9).iter().map(|write| write.line).collect();
        assert_eq!(lines, [next; 2]);
    }

    /// It reports no more what it lacks, and waits for parts in flight.
    #[test]
    fn after_the_close_of_its_receiver_a_message_goes_on_unless_its_write_has_failed() {
        for fails in [false, true] {
            let (mut flow, mut account) = sending(2);
            let writes = post(&mut flow, &mut account, 2);
            let on_rail = writes.iter().find(|write| write.rail == 0).unwrap();
            if fails {
                flow.write_failed(on_rail.message, on_rail.part, 5, &mut account);
            }
            lose(&mut flow, &mut account, 0);
            let (lines, parts) = (Line::FIRST, Keys::new(&[0, 0]).unwrap());
            let close = Frame::Close(Close { to: Name::default(), lines, parts });
            hears(&mut flow, &mut account, close);
            let poll = flow.poll(on_rail.message);
            let failed = SendPoll::Failed(Fault::Closed);
            assert_eq!(poll, if fails { failed } else { SendPoll::Pending });
        }
    }

    /// With one rail there is nothing to choose.
    #[test]
    fn once_a_rail_is_lost_each_of_64_parts_has_a_rail_of_its_own() {
        for few in 0..=4 {
            let old: Vec<_> = (0..(RECORDS * few) as u64).collect();
            let mut rails = old.clone().into_boxed_slice();
            widen(&mut rails);
            assert_eq!(rails.len(), if few == 0 { 0 } else { RECORDS * 4 });
            for (at, word) in rails.iter().enumerate() {
                let (record, word_of) = (at / 4, at % 4 % few);
                assert_eq!(*word, old[record * few + word_of], "{few} words");
            }
        }
    }
}
