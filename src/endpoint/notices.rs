//! Messages that nobody waits for: refusals and byes, in order for each peer, until their post is accepted or the peer
//! has refused for too long.

use std::time::Duration;

use fabric::{FabricError, PeerAddress, Post};

use crate::rail::Backlog;

/// Notices that may wait. Past that a refusal is not sent: the peer's own deadline tells it.
const WAITING_MAX: usize = 1024;

/// A message on its way out, and a user of the peer's address.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
    pub(super) bytes: Vec<u8>,
}

/// What waits to be posted.
#[derive(Debug)]
pub(super) struct Notices {
    waiting: Backlog<(usize, PeerAddress), Notice>,
}

impl Default for Notices {
    fn default() -> Self {
        Self { waiting: Backlog::new(0) }
    }
}

impl Notices {
    /// Queues a notice; false if it has to be dropped.
    #[must_use]
    pub(super) fn push(&mut self, notice: Notice) -> bool {
        let room = self.waiting.len() < WAITING_MAX;
        if room {
            self.waiting.push((notice.nic, notice.peer), notice);
        }
        room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether something waits for this peer.
    pub(super) fn waits_for(&self, nic: usize, peer: PeerAddress) -> bool {
        self.waiting.holds((nic, peer))
    }

    /// Tries what waits. One that cannot be posted at all is dropped.
    pub(super) fn flush(&mut self, post: impl FnMut(&Notice) -> Result<Post, FabricError>) {
        self.waiting.flush(post, |_, error| log::debug!("a notice was not sent: {error}"));
    }

    /// `elapsed` has passed: takes out what peers have refused for more than `bound`.
    pub(super) fn sweep(&mut self, elapsed: Duration, bound: Duration) -> Vec<Notice> {
        self.waiting.tick(elapsed, bound)
    }
}
