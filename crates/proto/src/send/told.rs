//! What the receiver has told of done: alone, and in adverts. It is believed only as far as messages were submitted.

use super::SendFlow;
use crate::bits::low16;
use crate::flow::LineSource;
use crate::ids::Line;

impl SendFlow {
    /// Whether [`observe`](Self::observe) may find anything: a look that proves nothing yet.
    #[inline(always)]
    pub fn is_told<S: LineSource>(&self, mailbox: &S) -> bool {
        let next = if self.first.is_after(self.seen) { self.first } else { self.seen };
        self.mailbox.has_lone_done(mailbox) || self.mailbox.is_there(mailbox, next) || self.behind
    }

    /// Takes the dones that have come: alone, and in adverts not yet sent to.
    #[inline]
    pub fn observe<S: LineSource>(&mut self, mailbox: &S) {
        if self.behind {
            // What it fails of sticks.
            let _ = self.place_eager(mailbox);
        }
        if self.first.is_after(self.seen) {
            // Those that told nothing new were not remembered.
            self.seen = self.first;
        }
        if self.parameters.sends_arrive_when_complete || self.peer_done == self.submitted() {
            return;
        }
        if let Some(done) = self.mailbox.lone_done(mailbox) {
            self.accept_done(done);
            if self.peer_done == self.submitted() {
                return;
            }
        }
        if self.mailbox.is_there(mailbox, self.seen) {
            self.look_ahead(mailbox);
        }
    }

    /// Takes the done of the newest advert that has come.
    #[inline(never)]
    fn look_ahead<S: LineSource>(&mut self, mailbox: &S) {
        let first = self.seen;
        // Lines are written in order, mostly, and the newest has the newest done: it is enough to validate that one. One
        // that does not hold yet is in nobody's way: those before it are.
        let present = (0..self.window().lines())
            .take_while(|ahead| self.mailbox.is_there(mailbox, first.plus(*ahead)));
        for ahead in (0..crate::bits::count32(present.count())).rev() {
            if self.read_advert(mailbox, first.plus(ahead)) {
                break;
            }
        }
    }

    /// The receiver has said how far it is, in a message.
    pub fn told(&mut self, done: Line) {
        self.accept_done(done);
    }

    #[inline(always)]
    pub(super) fn read_advert<S: LineSource>(&mut self, mailbox: &S, line: Line) -> bool {
        if !self.mailbox.advert(mailbox, line) {
            return false;
        }
        if !self.seen.is_after(line) {
            self.seen = line.plus(1);
            if !self.parameters.sends_arrive_when_complete || self.eager.is_some() {
                let ahead =
                    self.mailbox.form().done().wrapping_sub(low16(self.peer_done.number().into()));
                self.accept_done(self.peer_done.plus(u32::from(ahead)));
            }
        }
        true
    }

    #[inline(always)]
    fn accept_done(&mut self, done: Line) {
        let ahead = done.distance(self.peer_done);
        if ahead <= self.submitted().distance(self.peer_done) {
            self.peer_done = done;
        } else if !self.tell_eager(done) {
            self.drop_done(ahead);
        }
    }

    #[cold]
    fn drop_done(&mut self, ahead: u32) {
        if self.is_behind(ahead) {
            self.counters.stale_dones += 1;
        } else {
            self.counters.violations += 1;
        }
    }

    /// Whether a done that looks so far ahead is an old one.
    #[inline(always)]
    pub(super) fn is_behind(&self, ahead: u32) -> bool {
        // A done of 16 bits that lies behind looks up to 65535 ahead; an honest one is within the ring.
        ahead > u32::from(u16::MAX) - self.window().lines()
    }
}
