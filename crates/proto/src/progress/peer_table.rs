//! The channels of an endpoint, and what makes a poll visit one.
//!
//! An endpoint may have a thousand channels, of which few have anything to do at a time. So a poll checks a short record of
//! each, and visits a channel only when its time has come, or when something has arrived. Every mutable borrow of a
//! channel makes the next poll visit it.

use std::ops::{Index, IndexMut};

use super::super::channel::Watch;
use super::super::connection::Connection;
use super::super::ids::Moment;
use super::{Peer, Perform};

/// What a poll checks of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Check {
    /// When it is visited even if nothing has arrived.
    due: Moment,
    watch: Option<Watch>,
}

#[derive(Debug, Default)]
pub(super) struct PeerTable {
    peers: Vec<Peer>,
    /// By the same index.
    checks: Vec<Check>,
}

impl PeerTable {
    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn push(&mut self, peer: Peer) {
        self.peers.push(peer);
        self.checks.push(Check::default());
    }

    pub(super) fn get(&self, index: usize) -> Option<&Peer> {
        self.peers.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Peer> {
        (index < self.len()).then(|| &mut self[index])
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.peers.iter()
    }

    /// Whether it is time to visit a channel, whatever has arrived.
    #[inline]
    pub(super) fn is_due(&self, index: usize, now: Moment) -> bool {
        self.checks[index].due <= now
    }

    /// Whether a packet or an acknowledgement has arrived since the last visit.
    #[inline]
    pub(super) fn has_news<C: Connection, P: Perform<C>>(
        &self,
        index: usize,
        perform: &mut P,
    ) -> bool {
        let watch = &self.checks[index].watch;
        watch.is_some_and(|watch| watch.has_news(perform.inbox(watch.memory())))
    }

    /// The visit of a channel is over.
    #[inline]
    pub(super) fn visited(&mut self, index: usize, now: Moment) {
        let peer = &self.peers[index];
        self.checks[index] = Check { due: peer.next_visit(now), watch: peer.channel.watch() };
    }
}

impl Index<usize> for PeerTable {
    type Output = Peer;

    #[inline]
    fn index(&self, index: usize) -> &Peer {
        &self.peers[index]
    }
}

impl IndexMut<usize> for PeerTable {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Peer {
        self.checks[index].due = Moment::default();
        &mut self.peers[index]
    }
}
