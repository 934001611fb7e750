//! Messages that came in bundles: each is taken by a copy, and then its line is complete as if parts had come.

use super::{ReceiveFlow, index_of};
use crate::bundle::{self, BUNDLE_PLACES, PAYLOAD_WORDS};
use crate::error::{ProtocolError, Violation};
use crate::flow::LineSource;
use crate::ids::Line;
use crate::limits::MAX_RING;
use crate::wire::Form;

/// A message to be copied to where its receive begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    pub line: Line,
    pub len: u64,
    /// The bytes, from the lowest of the first word on.
    pub payload: [u64; PAYLOAD_WORDS],
}

impl ReceiveFlow {
    /// A ring for bundles was lent to the sender.
    pub fn allow_bundles(&mut self) {
        if !self.parameters.sends_arrive_when_complete {
            self.bundles = true;
            self.copies = Form::COPIES;
        }
    }

    /// A receive is about to be posted that no copy of ours reaches: from now on no advert allows any.
    #[inline]
    pub fn refuse_copies(&mut self) {
        self.copies = 0;
    }

    /// Whether [`next_bundled`](Self::next_bundled) may find something.
    #[inline(always)]
    pub fn has_bundled<S: LineSource>(&self, ring: &S) -> bool {
        self.bundles && bundle::is_there(ring, self.done) && self.done != self.advertised
    }

    /// The next message that has come, in the order of the lines up to the first that is missing; with `every`, also behind
    /// those. Once it is copied, say [`copied`](Self::copied).
    #[inline]
    pub fn next_bundled<S: LineSource>(&mut self, ring: &S, every: bool) -> Option<Bundled> {
        if !self.bundles {
            return None;
        }
        let mut line = self.done;
        let end = self.advertised.distance(line).min(BUNDLE_PLACES);
        for _ in 0..end {
            if self.may_take_bundled(line)
                && let Some((len, payload)) = bundle::read(ring, self.parameters.nonce, line)
            {
                return self.fits(Bundled { line, len, payload });
            }
            if !every && self.slot(line).is_incomplete() {
                return None;
            }
            line = line.plus(1);
        }
        None
    }

    /// Takes what has come in order, in the common case: short messages for receives posted alone. `copy` is told the line,
    /// the length and the bytes, and answers whether it has copied them: if not, nothing more is taken. How many were.
    #[inline(always)]
    pub fn take_bundled<S: LineSource>(
        &mut self,
        ring: &S,
        mut copy: impl FnMut(Line, u64, [u64; PAYLOAD_WORDS]) -> bool,
    ) -> u32 {
        if !self.bundles || self.failed.is_some() {
            return 0;
        }
        let (nonce, end) = (self.parameters.nonce, self.advertised);
        let (mut line, mut last, mut count) = (self.done, self.done, 0);
        while line != end {
            let slot = &mut self.slots[index_of(line)];
            if slot.is_untouched() {
                let Some((len, payload)) = bundle::read(ring, nonce, line) else { break };
                if len > slot.len || !copy(line, len, payload) {
                    break;
                }
                slot.len = len;
                slot.complete();
                last = line;
                count += 1;
            } else if slot.is_incomplete() {
                break;
            }
            line = line.plus(1);
        }
        self.done = line;
        if count > 0 {
            (self.idle_turns, self.recent) = (0, last.number() % MAX_RING);
        }
        count
    }

    /// The bytes of a message that came in a bundle, or eagerly, are where its receive wants them.
    #[inline]
    pub fn copied(&mut self, line: Line, len: u64) {
        self.complete(line, len, 0);
    }

    /// They cannot go there: the memory is gone, and the flow has failed. Nobody writes to the line any more, and it stays
    /// incomplete.
    #[cold]
    pub fn lose(&mut self, line: Line) {
        let slot = self.slot_mut(line);
        if slot.is_incomplete() {
            slot.lose();
        }
    }

    /// Of a flow that has failed only what the sender may write to.
    #[inline(always)]
    fn may_take_bundled(&self, line: Line) -> bool {
        let slot = self.slot(line);
        let open = self.failed.is_none() || self.begun.is_none_or(|begun| begun.has(line));
        slot.is_incomplete() && slot.parts == 0 && open
    }

    #[inline]
    fn fits(&mut self, bundled: Bundled) -> Option<Bundled> {
        let posted = self.slot(bundled.line).len;
        if bundled.len <= posted {
            return Some(bundled);
        }
        self.violation();
        self.fail(ProtocolError::Violation(Violation::Size { said: bundled.len, posted }));
        None
    }
}
