//! What the sender has been told of done, and when it is told alone.
//!
//! At most one lone done is in flight: all that is asked of the provider is that a write posted after the completion of
//! an earlier one, on the same rail to the same peer, does not land before it.

use super::ReceiveFlow;
use crate::ids::Line;
use crate::limits::IDLE_TURNS;
use crate::wire::{Form, SHORT_LINE_WORDS, short_line};

/// A done that travels alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneDone {
    pub words: [u64; SHORT_LINE_WORDS],
    done: Line,
}

impl ReceiveFlow {
    /// Whether the sender may be waiting for a done that no post has taken along.
    ///
    /// The last outstanding receive of an endpoint is reported only when this is false: its caller may never be heard
    /// of again.
    #[inline]
    pub fn owes_done(&self) -> bool {
        !self.parameters.sends_arrive_when_complete && self.done != self.told
    }

    /// A turn of progress brought nothing for this connection.
    #[inline]
    pub fn idle_turn(&mut self) {
        self.idle_turns = self.idle_turns.saturating_add(1);
    }

    /// So many such turns, where nothing is due. False: there may be something to do, or nothing has been for a while, and
    /// nothing waits ([`is_idle`](Self::is_idle)).
    #[inline(always)]
    pub fn rests(&mut self, turns: u32) -> bool {
        let unsent = self.next.distance(self.advertised);
        let idle = self.idle_turns.saturating_add(turns);
        let end = match (self.owes_done(), unsent) {
            (true, _) => self.pace.lone_done_turns,
            (false, 0) => IDLE_TURNS,
            (false, _) => u32::MAX,
        };
        let adverts_rest = unsent == 0 || self.may_wait(unsent, idle);
        let rests = adverts_rest && idle < end && self.failed.is_none();
        if rests {
            self.idle_turns = idle;
        }
        rests
    }

    /// Whether nothing has come or gone for a few turns.
    pub fn is_idle(&self) -> bool {
        self.idle_turns >= IDLE_TURNS
    }

    /// The line to write alone, into place [`Window::lone_place`](crate::Window::lone_place) of the mailbox, always over the same control rail.
    ///
    /// None while one is in flight: two could overtake each other. `urgent` does not wait for idle turns.
    pub fn lone_done(&self, urgent: bool) -> Option<LoneDone> {
        let due = urgent || self.idle_turns >= self.pace.lone_done_turns;
        if self.lone_in_flight || !due || !self.owes_done() {
            return None;
        }
        let words = short_line(self.parameters.nonce, self.done, Form::lone_done(), [0, 0]);
        Some(LoneDone { words, done: self.done })
    }

    /// The post of this lone done was accepted. One that is refused is asked for again.
    pub fn lone_done_posted(&mut self, lone: LoneDone) {
        self.lone_in_flight = true;
        self.tell(lone.done);
    }

    /// The write of the lone done has completed.
    pub fn lone_done_written(&mut self) {
        self.lone_in_flight = false;
    }

    #[inline]
    pub(super) fn tell(&mut self, done: Line) {
        if done.is_after(self.told) {
            self.told = done;
        }
        self.idle_turns = 0;
    }
}
