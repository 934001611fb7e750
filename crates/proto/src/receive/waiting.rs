//! What a receiver waits for: see [`WaitsFor`].

use super::ReceiveFlow;
use super::slot::State;
use crate::stall::{ConnectionState, WaitsFor};
use crate::window::WINDOW;

impl ReceiveFlow {
    /// Its progress, and what its oldest incomplete receive waits for.
    pub fn connection_state(&self) -> ConnectionState {
        let waits_for = match self.slot(self.done).state {
            _ if self.done == self.next => WaitsFor::Nothing,
            // Its advert has not left, and the sender may need it.
            State::Posted if !self.advertised.is_after(self.done) => WaitsFor::Room,
            State::Posted => WaitsFor::Message,
            State::Filling { .. } => WaitsFor::Data { rail: None },
            State::Copying(_) | State::Free | State::Complete { .. } => WaitsFor::Nothing,
        };
        let open = self.slots.iter().any(|slot| slot.state != State::Free);
        ConnectionState { waits_for, open, begun: self.next.number(), done: self.done.number() }
    }

    /// Whether the window has room for another receive.
    pub fn has_room(&self) -> bool {
        self.next.distance(self.oldest()) < WINDOW
    }
}
