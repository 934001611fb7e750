//! What a receiver waits for: see [`Want`].

use super::ReceiveFlow;
use super::slot::State;
use crate::stall::{Sight, Want};
use crate::window::WINDOW;

impl ReceiveFlow {
    /// Its progress, and what its oldest incomplete receive waits for.
    pub fn sight(&self) -> Sight {
        let want = match self.slot(self.done).state {
            _ if self.done == self.next => Want::Nothing,
            // Its advert has not left, and the sender may need it.
            State::Posted if !self.advertised.is_after(self.done) => Want::Room,
            State::Posted => Want::Message,
            State::Filling { .. } => Want::Data { rail: None },
            State::Copying(_) | State::Free | State::Complete { .. } => Want::Nothing,
        };
        let open = self.slots.iter().any(|slot| slot.state != State::Free);
        Sight { want, open, begun: self.next.number(), done: self.done.number() }
    }

    /// Whether the window has room for another receive.
    pub fn has_room(&self) -> bool {
        self.next.distance(self.oldest()) < WINDOW
    }
}
