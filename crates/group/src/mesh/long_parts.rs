//! Long parts of collectives that come from a peer by one route. They have no headers: both ends count them in the order of the program.

use std::sync::Arc;

use super::header::Route;
use super::lane::{Lane, PART};
use super::long::Receiver;
use super::registry::Registry;
use super::staged::StagedReceiver;
use crate::error::GroupError;
use crate::loader::{Memory, Place, ReceiveComm};

/// The receiving side; [`Lane`] is the sending one.
#[derive(Debug)]
pub(super) struct PartReceiver {
    receiver: Box<dyn Receiver>,
    /// The number of the comm in the mesh, once it is open.
    number: Option<usize>,
    /// The number of parts that collectives of this rank have reached.
    expected: u64,
    /// The number of parts that will come, as far as is known: those that are expected, or that the peer has sent before it left.
    announced: u64,
    /// The number of parts that the peer has sent, from its letter when it leaves.
    sent: Option<u64>,
}

impl PartReceiver {
    /// `tag`: that of the peer's messages.
    pub(super) fn new(route: Route, peer: usize, tag: i32) -> Self {
        let receiver: Box<dyn Receiver> = match route {
            Route::Direct => Box::new(Lane::of_parts(route, tag, peer)),
            Route::Staged => Box::new(StagedReceiver::of_parts(tag, peer)),
        };
        Self { receiver, number: None, expected: 0, announced: 0, sent: None }
    }

    pub(super) fn open(&mut self, end: ReceiveComm, number: usize) -> Result<(), GroupError> {
        self.number = Some(number);
        self.receiver.open(end, number)
    }

    pub(super) fn is_open(&self) -> bool {
        self.receiver.is_open()
    }

    /// The number of the comm, if it is open.
    pub(super) fn number(&self) -> Option<usize> {
        self.number
    }

    /// Sets the place of the next part; returns its number. `may_stay`: as in [`Receiver::expect_staying`].
    pub(super) fn expect(&mut self, place: Place, may_stay: bool) -> u64 {
        self.expected += 1;
        if self.announced < self.expected {
            self.announced = self.expected;
            self.receiver.announced(place.len());
        }
        if may_stay {
            self.receiver.expect_staying(place)
        } else {
            self.receiver.expect(Some(place), place.len())
        }
    }

    /// As [`Receiver::staying`].
    pub(super) fn staying(&self) -> Option<(Place, &Arc<Memory>)> {
        self.receiver.staying()
    }

    /// As [`Receiver::release`].
    pub(super) fn release(&mut self) {
        self.receiver.release();
    }

    /// The number of parts that are expected or have come.
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    /// The peer leaves, and has sent so many parts. They are taken from the plugin before the connection ends.
    pub(super) fn sent(&mut self, parts: u64) {
        self.sent = Some(parts);
        let more = parts.saturating_sub(self.announced);
        self.announced += more;
        // A part is at most one piece long where receives are posted ahead.
        self.receiver.announced(usize::try_from(more).unwrap_or(usize::MAX).saturating_mul(PART));
    }

    /// Whether the peer has left, and all parts that it has sent have been received, and released.
    pub(super) fn has_all(&self) -> bool {
        self.sent.is_some_and(|sent| self.done() >= sent) && self.staying().is_none()
    }

    /// For a peer that has left: as [`Receiver::may_lose`].
    pub(super) fn may_lose(&self) -> bool {
        self.receiver.may_lose(self.sent.is_some())
    }

    /// As [`Receiver::leaves`].
    pub(super) fn leaves(&mut self) -> bool {
        self.receiver.leaves()
    }

    /// The number of parts that are in their places.
    pub(super) fn done(&self) -> u64 {
        self.receiver.done()
    }

    /// As [`Receiver::moves`].
    pub(super) fn moves(&self) -> u64 {
        self.receiver.moves()
    }

    #[inline]
    pub(super) fn progress(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        if self.announced == self.done() { Ok(false) } else { self.receiver.progress(registry) }
    }
}
