//! Messages whose post nobody waits for: refusals, byes and replies that are said again, in order for each peer, until their post is accepted or the peer
//! has refused for too long.

use std::time::Duration;

use fabric::{Backlog, FabricError, PeerAddress, Post};

use super::messages::Letter;
use super::rests::Rests;

/// Notices that may wait. Past that a refusal is not sent: the peer's own deadline tells it.
const WAITING_MAX: usize = 1024;

/// A message on its way out, and a user of the peer's address.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) nic: usize,
    pub(super) peer: PeerAddress,
    pub(super) bytes: Vec<u8>,
    pub(super) letter: Letter,
}

/// What waits to be posted.
#[derive(Debug)]
pub(super) struct Notices {
    waiting: Backlog<(usize, PeerAddress), Notice>,
    rests: Rests<(usize, PeerAddress)>,
}

impl Default for Notices {
    fn default() -> Self {
        Self { waiting: Backlog::new(0), rests: Rests::default() }
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

    /// A turn: tries what waits, but for peers that rest. One that cannot be posted at all is dropped.
    pub(super) fn flush(&mut self, mut post: impl FnMut(&Notice) -> Result<Post, FabricError>) {
        let Self { waiting, rests } = self;
        waiting.flush(
            |notice| rests.turn((notice.nic, notice.peer), || post(notice)),
            |_, error| log::debug!("a notice was not sent: {error}"),
        );
    }

    /// `elapsed` has passed: takes out what peers have refused for more than `bound`.
    pub(super) fn sweep(&mut self, elapsed: Duration, bound: Duration) -> Vec<Notice> {
        let Self { waiting, rests } = self;
        let given_up = waiting.tick(elapsed, bound);
        rests.retain(|peer| waiting.holds(*peer));
        given_up
    }
}
