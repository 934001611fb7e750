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
        self.complete(line, size, if size == 0 { RailSet::NONE } else { rails }, account, now);
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
