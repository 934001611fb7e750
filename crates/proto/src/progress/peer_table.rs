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

/// What a poll checks of a channel, and the channel.
#[derive(Debug)]
struct Entry {
    /// When it is visited even if nothing has arrived.
    due: Moment,
    watch: Option<Watch>,
    peer: Box<Peer>,
}

#[derive(Debug, Default)]
pub(super) struct PeerTable {
    entries: Vec<Entry>,
}

impl PeerTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(&mut self, peer: Peer) {
        self.entries.push(Entry { due: Moment::default(), watch: None, peer: Box::new(peer) });
    }

    pub(super) fn get(&self, index: usize) -> Option<&Peer> {
        self.entries.get(index).map(|entry| &*entry.peer)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Peer> {
        (index < self.len()).then(|| &mut self[index])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.entries.iter().map(|entry| &*entry.peer)
    }

    /// Whether it is time to visit a channel, whatever has arrived.
    #[inline]
    pub(super) fn is_due(&self, index: usize, now: Moment) -> bool {
        self.entries[index].due <= now
    }

    /// Whether a packet or an acknowledgement has arrived since the last visit.
    #[inline]
    pub(super) fn has_news<C: Connection, P: Perform<C>>(
        &self,
        index: usize,
        perform: &mut P,
    ) -> bool {
        let watch = &self.entries[index].watch;
        watch.is_some_and(|watch| watch.has_news(perform.inbox(watch.memory())))
    }

    /// The visit of a channel is over.
    #[inline]
    pub(super) fn visited(&mut self, index: usize, now: Moment) {
        let Entry { due, watch, peer } = &mut self.entries[index];
        (*due, *watch) = (peer.next_visit(now), peer.channel.watch());
    }
}

impl Index<usize> for PeerTable {
    type Output = Peer;

    #[inline]
    fn index(&self, index: usize) -> &Peer {
        &self.entries[index].peer
    }
}

impl IndexMut<usize> for PeerTable {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Peer {
        let Entry { due, peer, .. } = &mut self.entries[index];
        *due = Moment::default();
        peer
    }
}
