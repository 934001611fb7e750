//! What arrives: parts with their immediates, and fins. Either way a line becomes complete, once.

use super::ReceiveFlow;
use super::slot::NO_LAST;
use crate::bits::low16;
use crate::error::{ProtocolError, Violation};
use crate::flow::{LineSource, Path};
use crate::ids::{Line, RESIDUES};
use crate::immediate::Immediate;
use crate::limits::MAX_RING;
use crate::wire::{Form, Kind, SHORT_LINE_WORDS, head_line, validates};

/// What an immediate was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Progress,
    Complete(Line),
    /// For a line that is not outstanding: dropped.
    Late,
    /// A part that was there already: dropped.
    Duplicate,
    /// A part that cannot be: dropped.
    Violation,
}

impl ReceiveFlow {
    /// A part has arrived on a rail. `completion_len` is what the completion says; it counts where lengths are true.
    pub fn arrived(&mut self, rail: u32, immediate: Immediate, completion_len: u64) -> Arrival {
        let ahead = immediate.residue().wrapping_sub(self.done.number()) % RESIDUES;
        if ahead >= self.advertised.distance(self.done) {
            self.counters.late += 1;
            return Arrival::Late;
        }
        let line = self.done.plus(ahead);
        let slot = self.slot_mut(line);
        let part = immediate.part();
        let bit = 1 << part;
        if !slot.is_incomplete() || slot.parts & bit != 0 {
            self.counters.duplicates += 1;
            return Arrival::Duplicate;
        }
        slot.touch();
        if immediate.is_last() {
            if slot.stage != NO_LAST || slot.parts >> part != 0 {
                return self.violation();
            }
            slot.stage = part;
        } else if part >= slot.stage {
            return self.violation();
        }
        let sum = if slot.parts == 0 { 0 } else { slot.sum };
        slot.sum = sum.saturating_add(completion_len);
        slot.parts |= bit;
        slot.carried |= 1 << (rail & 15);
        if slot.stage == NO_LAST || slot.parts != u64::MAX >> (63 - slot.stage) {
            return Arrival::Progress;
        }
        let (len, sum, carried) = (slot.len, slot.sum, slot.carried);
        self.complete(line, self.told_size(immediate, len, sum), carried)
    }

    /// The size of a message, from what came with it: the whole receive, the high half, or the sum of its parts.
    #[inline]
    fn told_size(&self, immediate: Immediate, len: u64, sum: u64) -> u64 {
        match self.parameters.path {
            _ if immediate.is_whole() => len,
            Path::Immediate { eight: true } => u64::from(immediate.length()),
            Path::Immediate { eight: false } if self.parameters.true_lengths => sum,
            // Nothing tells the size: more than any receive has room for.
            _ => u64::MAX,
        }
    }

    /// All bytes of a line are there.
    #[inline]
    pub(super) fn complete(&mut self, line: Line, size: u64, carried: u16) -> Arrival {
        let slot = self.slot_mut(line);
        if size > slot.len {
            let violation = Violation::Size { said: size, posted: slot.len };
            self.fail(ProtocolError::Violation(violation));
            return self.violation();
        }
        slot.len = size;
        slot.carried = if size == 0 { 0 } else { carried };
        slot.complete();
        (self.idle_turns, self.recent) = (0, line.number() % MAX_RING);
        if line == self.done {
            self.advance();
        }
        Arrival::Complete(line)
    }

    fn advance(&mut self) {
        self.done = self.done.plus(1);
        self.skip();
    }

    /// Takes done past lines that are complete already. In line, though it is rare: who looks through arrivals keeps all in registers, and
    /// none over a call.
    #[inline(always)]
    pub(super) fn skip(&mut self) {
        while self.done != self.advertised && !self.slot(self.done).is_incomplete() {
            self.done = self.done.plus(1);
        }
    }

    /// Whether [`read_fins`](Self::read_fins) may find something.
    #[inline(always)]
    pub fn has_fin<S: LineSource>(&self, fins: &S) -> bool {
        let next = fins.word(self.window().place(self.done), 0);
        let failure = fins.word(self.window().lone_place(), 0);
        failure != self.failure_head || self.done != self.advertised && head_line(next) == self.done
    }

    /// Reads the fin ring: the place for failures, then the oldest incomplete line and on, up to the first fin that is
    /// not there. Answers how many lines it completed.
    pub fn read_fins<S: LineSource>(&mut self, fins: &S) -> u32 {
        let failure = self.window().lone_place();
        if fins.word(failure, 0) != self.failure_head {
            self.read_failure(fins, failure);
        }
        let mut completed = 0;
        let mut line = self.done;
        while line != self.advertised {
            if self.slot(line).is_incomplete() {
                let place = self.window().place(line);
                if head_line(fins.word(place, 0)) != line || !self.read_fin(fins, place, line) {
                    break;
                }
                completed += 1;
            }
            line = line.plus(1);
        }
        completed
    }

    /// The same behind lines that are missing: once the sender begins no more, they may never come.
    #[cold]
    pub fn read_every_fin<S: LineSource>(&mut self, fins: &S) -> u32 {
        let mut completed = self.read_fins(fins);
        let mut line = self.done;
        while line != self.advertised {
            let place = self.window().place(line);
            if self.slot(line).is_incomplete() && self.read_fin(fins, place, line) {
                completed += 1;
            }
            line = line.plus(1);
        }
        completed
    }

    fn read_fin<S: LineSource>(&mut self, fins: &S, place: u32, line: Line) -> bool {
        let Some(words) = self.copy_fin(fins, place) else { return false };
        if head_line(words[0]) != line {
            return false;
        }
        if !Form::from_word(words[1]).is(Kind::Fin) {
            self.fail(ProtocolError::Violation(Violation::LineKind));
            return false;
        }
        matches!(self.complete(line, words[3], low16(words[2])), Arrival::Complete(_))
    }

    /// The sender gave up on a message: it has a place of its own, since the lines before it may never complete.
    #[cold]
    fn read_failure<S: LineSource>(&mut self, fins: &S, place: u32) {
        let Some(words) = self.copy_fin(fins, place) else { return };
        self.failure_head = words[0];
        let form = Form::from_word(words[1]);
        let line = head_line(words[0]);
        if !form.is(Kind::Fin) || form.status() == 0 {
            self.fail(ProtocolError::Violation(Violation::LineKind));
        } else if line.distance(self.done) < self.advertised.distance(self.done) {
            let posted = self.slot(line).len;
            self.fail(ProtocolError::TooLong { line, sent: words[3], posted });
        } else {
            self.violation();
        }
    }

    fn copy_fin<S: LineSource>(&self, fins: &S, place: u32) -> Option<[u64; SHORT_LINE_WORDS]> {
        let words = fins.words::<SHORT_LINE_WORDS>(place);
        validates(self.parameters.nonce, &words).then_some(words)
    }

    #[cold]
    pub(super) fn violation(&mut self) -> Arrival {
        self.counters.violations += 1;
        Arrival::Violation
    }
}
