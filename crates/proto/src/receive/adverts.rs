//! When adverts travel, and how they are sealed.
//!
//! They wait for one another while the sender cannot run dry: until there are as many unsent as are advertised and
//! incomplete. Once begun, a flush goes through to its end.

use super::ReceiveFlow;
use crate::flow::LineSink;
use crate::ids::Line;
use crate::wire::seal;

/// Adverts that travel in one write: `count` places from `place` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertWrite {
    pub place: u32,
    pub count: u32,
    pub(super) done: Line,
}

impl ReceiveFlow {
    /// Whether the sender is dry, so that adverts go in the call that posts the receive. Else they go with the
    /// next turn of progress: by then the caller has sent its answer, which does not have to wait for them.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.advertised == self.done
    }

    /// The adverts to write now, sealed with the newest done; none while the sender cannot run dry.
    ///
    /// Ask until there is none: a run ends where the ring does. A post that is refused is asked for again.
    #[inline(always)]
    pub fn next_write<S: LineSink>(&mut self, sink: &mut S) -> Option<AdvertWrite> {
        let unsent = self.next.distance(self.advertised);
        if unsent == 0 || self.may_wait(unsent) {
            return None;
        }
        self.flush_to = self.next;
        let first = self.advertised;
        let (place, done) = (self.window().place(first), self.done);
        self.seal_line(sink, place, first);
        let count = if unsent == 1 { 1 } else { self.seal_more(sink, place, unsent) };
        Some(AdvertWrite { place, count, done })
    }

    /// Whether so many adverts may wait for others.
    #[inline(always)]
    pub(super) fn may_wait(&self, unsent: u32) -> bool {
        // Once begun, a flush goes through to its end: half a group at the sender would stay invisible.
        let begun = self.flush_to != self.advertised;
        self.pace.adverts_wait && !begun && unsent < self.advertised.distance(self.done)
    }

    #[inline(never)]
    fn seal_more<S: LineSink>(&self, sink: &mut S, place: u32, unsent: u32) -> u32 {
        let count = unsent.min(self.window().run(self.advertised));
        for index in 1..count {
            self.seal_line(sink, place + index, self.advertised.plus(index));
        }
        count
    }

    #[inline]
    fn seal_line<S: LineSink>(&self, sink: &mut S, place: u32, line: Line) {
        let slot = self.slot(line);
        let form = slot.form().with_done(self.done);
        sink.store_words(place, 0, [seal(slot.size, line, form), form.word()]);
    }

    /// The post of these adverts was accepted.
    #[inline]
    pub fn wrote(&mut self, write: AdvertWrite) {
        self.advertised = self.advertised.plus(write.count);
        self.tell(write.done);
    }
}
