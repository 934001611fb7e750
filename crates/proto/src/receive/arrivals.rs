//! Arrivals on data rails (parts with their immediates), FIN, and the completion of lines.

use super::ReceiveFlow;
use super::slot::{NO_LAST, State};
use crate::account::Account;
use crate::bits::low8;
use crate::budget;
use crate::capabilities::ImmediateWidth;
use crate::fault::{Fault, Violation};
use crate::frame::{Fin, FinStatus};
use crate::ids::Moment;
use crate::immediate::Immediate;
use crate::line::Line;
use crate::rail_set::RailSet;
use crate::terms::InlineLimits;
use crate::window::{WINDOW, place, within};

/// The effect of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Progress,
    Complete(Line),
    /// The part is for a line that is not advertised or not open: dropped.
    Late,
    /// The part had arrived already: dropped.
    Duplicate,
    /// The part breaks the protocol: dropped.
    Violation,
}

impl ReceiveFlow {
    /// A part has arrived on a rail. `completion_len` is the completion's length, which is used only if the provider's
    /// lengths are true.
    #[inline]
    pub fn arrived(
        &mut self,
        rail: u8,
        immediate: Immediate,
        completion_len: u64,
        account: &mut Account,
        now: Moment,
    ) -> Arrival {
        self.seen.add(rail);
        account.counts.seen.add(rail);
        account.arrival_times.arrived(rail, account.counts.seen.get(rail), now);
        let Some(line) = immediate.line(self.done, self.open_lines()) else {
            self.dropped.late += 1;
            return Arrival::Late;
        };
        let slot = &mut self.slots[place(line)];
        let (parts, sum, last) = match slot.state {
            State::Posted => (0, 0, NO_LAST),
            State::Filling { parts, sum, last } => (parts, sum, last),
            State::Free | State::Copying(_) | State::Complete { .. } => {
                self.dropped.duplicates += 1;
                return Arrival::Duplicate;
            }
        };
        let part = low8(immediate.part().into());
        let bit = 1_u64 << part;
        if parts & bit != 0 {
            self.dropped.duplicates += 1;
            return Arrival::Duplicate;
        }
        let last = match immediate.is_last() {
            true if last != NO_LAST || parts >> part != 0 => return self.violation(),
            true => part,
            false if part >= last => return self.violation(),
            false => last,
        };
        let parts = parts | bit;
        let sum = sum.saturating_add(completion_len);
        let rails = self.carry(line, rail);
        if last == NO_LAST || parts != u64::MAX >> (63 - last) {
            self.slots[place(line)].state = State::Filling { parts, sum, last };
            return Arrival::Progress;
        }
        let posted = self.slot(line).len;
        let size = self.size_said(immediate, posted, sum);
        if size > posted {
            let violation = Violation::Size { said: size, posted };
            self.stick(Fault::Violation(violation));
            return self.violation();
        }
        let unadvertised = self.terms.inline.unadvertised;
        // With SENDRECV the message may have come without an advert, like an inline message.
        if self.terms.messages && InlineLimits::admit(unadvertised, size) {
            self.traffic.came_inline(posted);
        } else {
            self.traffic.was_written(posted);
        }
        self.complete(line, size, rails, account, now);
        Arrival::Complete(line)
    }

    /// Records the rail of a part, and returns all rails of the line.
    #[inline]
    fn carry(&mut self, line: Line, rail: u8) -> RailSet {
        let slot = &mut self.slots[place(line)];
        slot.carried.insert(rail);
        slot.carried
    }

    /// The size of a message: its whole receive, the immediate's length, or the sum of its parts.
    #[inline]
    fn size_said(&self, immediate: Immediate, posted: u64, sum: u64) -> u64 {
        match self.terms.immediates {
            _ if immediate.is_whole() => posted,
            ImmediateWidth::Eight => immediate.length().into(),
            ImmediateWidth::Four if self.terms.true_lengths => sum,
            // The size is unknown: this value exceeds every receive, so the message is refused.
            _ => u64::MAX,
        }
    }

    #[cold]
    fn violation(&mut self) -> Arrival {
        self.dropped.violations += 1;
        Arrival::Violation
    }

    /// All bytes of a line have arrived.
    #[inline]
    pub(super) fn complete(
        &mut self,
        line: Line,
        size: u64,
        carried: RailSet,
        account: &mut Account,
        now: Moment,
    ) {
        self.stir();
        let cutting = self.terms.cutting;
        let slot = &mut self.slots[place(line)];
        if !self.released_entries {
            account.entries_freed += budget::entries(&cutting, slot.len);
        }
        slot.state = if slot.early { State::Free } else { State::Complete { size, carried } };
        self.traffic.completed(size);
        if line == self.done {
            if self.reported == self.done {
                self.unreported_since = now;
            }
            self.advance();
        }
    }

    /// Advances `done` past all complete lines.
    #[inline]
    fn advance(&mut self) {
        while self.done != self.next {
            let slot = &mut self.slots[place(self.done)];
            if slot.is_open() {
                break;
            }
            if slot.cost != 0 {
                self.unreported.pass(std::mem::take(&mut slot.cost));
            }
            self.done = self.done.plus(1);
        }
    }

    /// Handles FIN: a message without immediates was delivered, or has failed at its sender.
    pub(super) fn fin(
        &mut self,
        fin: &Fin,
        account: &mut Account,
        now: Moment,
    ) -> Result<(), Violation> {
        if fin.status == FinStatus::Failed {
            return self.peer_failed(fin.line);
        }
        if !within(fin.line, self.done, self.open_lines()) {
            return Err(Violation::Fin);
        }
        let slot = self.slot(fin.line);
        let (posted, state) = (slot.len, slot.state);
        if state != State::Posted {
            return Err(Violation::Fin);
        }
        match fin.status {
            FinStatus::Delivered if fin.len > posted => {
                return Err(Violation::Size { said: fin.len, posted });
            }
            FinStatus::Delivered => {
                self.traffic.was_written(posted);
                self.complete(fin.line, fin.len, fin.rails, account, now);
            }
            FinStatus::TooLong => {
                self.stick(Fault::TooLong { line: fin.line, sent: fin.len, posted });
            }
            FinStatus::Failed => {}
        }
        Ok(())
    }

    /// A message has failed at its sender. It may have arrived nevertheless: an error of a write does not prove that it was
    /// not delivered.
    #[cold]
    fn peer_failed(&mut self, line: Line) -> Result<(), Violation> {
        let oldest = self.done.plus(WINDOW.wrapping_neg());
        if !within(line, oldest, WINDOW + self.open_lines()) {
            return Err(Violation::Fin);
        }
        self.stick(Fault::PeerFailed { line });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Urgency, Which};
    use crate::ids::Name;
    use crate::receive::adverts::DONE_WAIT;
    use crate::receive::{Posting, Receive, ReceivePoll};
    use crate::terms::Terms;

    const NOW: Moment = Moment::from_nanos(1);

    /// A receiver with a receive of 1000 bytes, whose advert has left, and its immediates.
    fn posted(immediates: ImmediateWidth, true_lengths: bool) -> (ReceiveFlow, Account, Line) {
        let terms = Terms { immediates, true_lengths, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
        let line = post(&mut flow, &mut account);
        (flow, account, line)
    }

    fn post(flow: &mut ReceiveFlow, account: &mut Account) -> Line {
        let receive = Receive { len: 1000, ..Receive::default() };
        let posted = flow.post(&[receive], &[1, 2], Posting::default(), account, NOW);
        flow.flush_to = flow.next;
        assert!(flow.next_frame(Which::Adverts, 100, account, NOW).is_some());
        posted.unwrap().unwrap()
    }

    fn part(flow: &ReceiveFlow, line: Line, part: u32, whole: bool) -> Immediate {
        Immediate::new(flow.terms.own.in_immediate(), line, part, part == 1, whole, 700)
    }

    /// Its two parts have 300 and 400 bytes; only completions with true lengths prove that.
    #[test]
    fn a_size_that_the_receiver_cannot_know_is_refused() {
        use ImmediateWidth::{Eight, Four};
        for (immediates, true_lengths, whole, size) in [
            (Eight, false, false, Some(700)),
            (Eight, false, true, Some(1000)),
            (Four, true, false, Some(700)),
            (Four, true, true, Some(1000)),
            (Four, false, true, Some(1000)),
            (Four, false, false, None),
        ] {
            let (mut flow, mut account, line) = posted(immediates, true_lengths);
            for (index, len) in [(0, 300), (1, 400)] {
                let immediate = part(&flow, line, index, whole);
                flow.arrived(0, immediate, len, &mut account, NOW);
            }
            let done = flow.poll(line) == ReceivePoll::Done { count: 1 };
            assert_eq!(done.then(|| flow.size(line)), size, "{immediates:?}, true: {true_lengths}");
            assert_eq!(flow.fault().is_some(), size.is_none());
        }
    }

    #[test]
    fn parts_for_lines_that_are_not_open_or_are_complete_are_counted() {
        let (mut flow, mut account, line) = posted(ImmediateWidth::Eight, false);
        for late in 1..3 {
            let immediate = part(&flow, line.plus(1), 0, true);
            let arrival = flow.arrived(0, immediate, 8, &mut account, NOW);
            assert_eq!((arrival, flow.dropped().late), (Arrival::Late, late));
        }
        let second = post(&mut flow, &mut account);
        for (index, duplicates) in [(0, 0), (1, 0), (1, 1), (1, 2)] {
            let immediate = part(&flow, second, index, true);
            flow.arrived(0, immediate, 500, &mut account, NOW);
            assert_eq!(flow.dropped().duplicates, duplicates);
        }
    }

    /// Lines that complete later do not delay it.
    #[test]
    fn a_done_that_a_send_waits_for_is_due_20_microseconds_after_the_first_line_that_it_covers() {
        let (mut flow, mut account, first) = posted(ImmediateWidth::Eight, false);
        let second = post(&mut flow, &mut account);
        post(&mut flow, &mut account);
        let later = NOW.plus(DONE_WAIT / 2);
        for (line, now) in [(first, NOW), (second, later)] {
            for index in 0..2 {
                let immediate = part(&flow, line, index, true);
                flow.arrived(0, immediate, 500, &mut account, now);
            }
            let until = NOW.plus(DONE_WAIT);
            assert_eq!(flow.urgency(&account, now), Urgency::Lazy { until, joins: true });
        }
        assert_eq!(flow.urgency(&account, NOW.plus(DONE_WAIT)), Urgency::Urgent);
    }
}
