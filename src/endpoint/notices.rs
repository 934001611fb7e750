//! Messages that nobody waits for: refusals and byes, in order, until their post is accepted.

use std::collections::VecDeque;

use fabric::PeerAddress;

/// Notices that may wait. Past that a refusal is not sent: the peer's own deadline tells it.
const WAITING_MAX: usize = 1024;

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
    pub(super) bytes: Vec<u8>,
}

/// What waits to be posted.
#[derive(Debug, Default)]
pub(super) struct Notices {
    waiting: VecDeque<Notice>,
}

impl Notices {
    /// Queues a notice; false if it has to be dropped.
    pub(super) fn push(&mut self, notice: Notice) -> bool {
        let room = self.waiting.len() < WAITING_MAX;
        if room {
            self.waiting.push_back(notice);
        }
        room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes as many out as there are now: what cannot be posted is pushed again.
    pub(super) fn take(&mut self) -> VecDeque<Notice> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn push_front(&mut self, notice: Notice) {
        self.waiting.push_front(notice);
    }
}
