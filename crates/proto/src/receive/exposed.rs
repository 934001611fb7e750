//! Lines that the sender may write to, and how they are taken back: see [`fence`](crate::fence).

use super::ReceiveFlow;
use crate::error::ProtocolError;
use crate::fence::Begun;
use crate::ids::Line;

impl ReceiveFlow {
    /// Takes all receives back: the flow fails, and no advert may be written any more. The sender is to be asked what it
    /// has begun.
    #[cold]
    pub fn withdraw(&mut self) {
        self.fail(ProtocolError::Withdrawn);
    }

    /// The sender begins no more, and has begun these.
    #[cold]
    pub fn fenced(&mut self, begun: Begun) {
        self.begun.get_or_insert(begun);
    }

    /// The lines that the sender may still write to: advertised, incomplete, and, as far as it is known, begun.
    pub fn exposed(&self) -> impl Iterator<Item = Line> {
        let advertised =
            (0..self.advertised.distance(self.done)).map(|ahead| self.done.plus(ahead));
        advertised.filter(|line| {
            self.slot(*line).is_incomplete()
                && self.begun.is_none_or(|begun| begun.has(*line))
                && !self.is_misfit(*line)
                && !self.slot(*line).is_lost()
        })
    }
}
