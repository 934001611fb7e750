//! When adverts travel, and how they are sealed.
//!
//! They wait for one another while the sender cannot run dry: until there are as many unsent as are advertised and
//! incomplete; three times as many where what is advertised keeps the rails busy. Once begun, a flush goes through to its
//! end. Each is sealed when it is posted, and the last of a write once more if done has moved on meanwhile: one that carries
//! the newest done is enough.

use super::ReceiveFlow;
use crate::flow::LineSink;
use crate::ids::Line;
use crate::limits::BUSY_IDLE_TURNS;
use crate::wire::sealed;

/// Adverts that travel in one write: `count` places from `place` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertWrite {
    pub place: u32,
    pub count: u32,
    pub(super) done: Line,
}

/// So many unsent adverts for one that is left keep nobody waiting while the rails are busy.
const BUSY_FACTOR: u32 = 3;

impl ReceiveFlow {
    /// Whether the sender is dry, so that adverts go in the call that posts the receive. Else they go with the
    /// next turn of progress: by then the caller has sent its answer, which does not have to wait for them.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.advertised == self.done
    }

    /// The adverts to write now, the last of them sealed with the newest done; none while the sender cannot run dry.
    ///
    /// Ask until there is none: a run ends where the ring does. A post that is refused is asked for again.
    #[inline(always)]
    pub fn next_write<S: LineSink>(&mut self, sink: &mut S) -> Option<AdvertWrite> {
        let unsent = self.next.distance(self.advertised);
        if unsent == 0 || self.may_wait(unsent, self.idle_turns) {
            return None;
        }
        self.flush_to = self.next;
        let first = self.advertised;
        let (place, done) = (self.window().place(first), self.done);
        let count = unsent.min(self.window().run(first));
        if done != self.stamped || count < unsent {
            self.seal_line(sink, place + count - 1, first.plus(count - 1));
        }
        Some(AdvertWrite { place, count, done })
    }

    /// Whether so many adverts may wait for others, after so many idle turns.
    #[inline(always)]
    pub(super) fn may_wait(&self, unsent: u32, idle: u32) -> bool {
        // Once begun, a flush goes through to its end: half a group at the sender would stay invisible.
        let begun = self.flush_to != self.advertised;
        self.pace.adverts_wait
            && !begun
            && !self.is_due(unsent, self.advertised.distance(self.done), idle)
    }

    /// Whether so many unsent adverts are due, where the sender has so many others left. Not for long while the rails are busy:
    /// the sender may be waiting for the done that comes along.
    ///
    /// A ring of messages that fit into memory is below 2^64 bytes, so nothing wraps there.
    #[inline(always)]
    pub(super) fn is_due(&self, unsent: u32, left: u32, idle: u32) -> bool {
        unsent >= left
            && (unsent >= BUSY_FACTOR * left
                || self.recent_len().wrapping_mul(left.into()) < self.pace.busy_bytes
                || idle >= BUSY_IDLE_TURNS)
    }

    #[inline(never)]
    fn seal_line<S: LineSink>(&self, sink: &mut S, place: u32, line: Line) {
        let slot = self.slot(line);
        sink.store_words(place, 0, sealed(slot.sum, line, slot.form(), self.copies, self.done));
    }

    /// The post of these adverts was accepted.
    #[inline]
    pub fn wrote(&mut self, write: AdvertWrite) {
        self.advertised = self.advertised.plus(write.count);
        self.tell(write.done);
    }
}
