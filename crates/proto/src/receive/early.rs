//! Receives whose completion is optional: the caller sees their bytes come by itself, and asks only for its place back.
//!
//! That is told early where nobody has to be heard of again for the bytes to land: the advert is on its way, and the
//! sender's completions prove arrival, so that it waits for no done. The line stays in the window until its bytes are
//! there, as any other. An eager message needs a call to get there: none may be told early while one may come.

use super::ReceiveFlow;
use crate::ids::Line;

impl ReceiveFlow {
    /// The advert of a receive that stands alone, and of all before it, waits for no other.
    #[cold]
    pub fn hasten(&mut self) {
        self.flush_to = self.next;
    }

    /// Reports a receive that stands alone, though its bytes have not all come: once. False: it is not to be told yet, or
    /// never so.
    #[cold]
    pub fn poll_early(&mut self, line: Line) -> bool {
        let outstanding = line.distance(self.done) < self.advertised.distance(self.done);
        if !outstanding || !self.parameters.sends_arrive_when_complete || self.failed.is_some() {
            return false;
        }
        if self.may_get_eager() {
            return false;
        }
        let slot = self.slot_mut(line);
        if !slot.is_incomplete() || slot.is_told() || slot.count() != 1 {
            return false;
        }
        slot.tell();
        true
    }
}
