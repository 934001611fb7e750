//! The channels of an endpoint, and when a poll has to visit each.
//!
//! An endpoint may have a thousand channels, of which few have something to do at a time. So a poll checks a short record of
//! each channel, and visits a channel only when its time has come, or when something has arrived. Every mutable borrow of a
//! channel makes the next poll visit it.

use std::cell::Cell;
use std::ops::{Index, IndexMut, Range};

use super::super::channel::Watch;
use super::super::connection::Connection;
use super::super::ids::Moment;
use super::super::polled::Now;
use super::{Peer, Perform};

/// A channel, and the record that a poll checks.
#[derive(Debug)]
struct Entry {
    /// When the channel is visited even if nothing has arrived.
    due: Moment,
    watch: Option<Watch>,
    /// What has not left the channel, for calls that check all channels. None since the channel was borrowed mutably.
    left_over: Cell<Option<LeftOver>>,
    peer: Box<Peer>,
}

/// What has not left a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftOver {
    /// A frame that the peer waits for: see [`ProgressLoop::must_send_first`](super::ProgressLoop::must_send_first).
    pub(super) awaited: bool,
    /// Something is unsent, unacknowledged or unanswered: see [`ProgressLoop::has_pending`](super::ProgressLoop::has_pending).
    pub(super) pending: bool,
}

#[derive(Debug, Default)]
pub(super) struct PeerTable {
    entries: Vec<Entry>,
    /// The first channel of the next [turn](Self::take_turn).
    next: usize,
    /// The completion queue entries that channels had to return at their last visits.
    entries_freed: u32,
    /// For tests: how often [`LeftOver`] was computed, or a channel was accessed in an iteration over all.
    #[cfg(test)]
    asked: Cell<usize>,
}

impl PeerTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(&mut self, peer: Peer) {
        let (due, left_over) = (Moment::default(), Cell::new(None));
        self.entries.push(Entry { due, watch: None, left_over, peer: Box::new(peer) });
    }

    /// The next `most` channels in turn, or fewer, whose inboxes a poll looks into.
    #[inline]
    pub(super) fn take_turn(&mut self, most: usize) -> Range<usize> {
        let first = if self.next < self.len() { self.next } else { 0 };
        self.next = (first + most).min(self.len());
        first..self.next
    }

    pub(super) fn get(&self, index: usize) -> Option<&Peer> {
        self.entries.get(index).map(|entry| &*entry.peer)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Peer> {
        (index < self.len()).then(|| &mut self[index])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.entries.iter().map(|entry| {
            #[cfg(test)]
            self.asked.set(self.asked.get() + 1);
            &*entry.peer
        })
    }

    /// What has not left each channel. Computed only for channels that have changed since the last call.
    pub(super) fn left_over(&self) -> impl Iterator<Item = LeftOver> {
        self.entries.iter().map(|entry| {
            entry.left_over.get().unwrap_or_else(|| {
                #[cfg(test)]
                self.asked.set(self.asked.get() + 1);
                let left_over = entry.peer.left_over();
                entry.left_over.set(Some(left_over));
                left_over
            })
        })
    }

    /// For tests: how often, since the last call, [`LeftOver`] was computed, or a channel was accessed in an iteration over all.
    #[cfg(test)]
    pub(super) fn take_asked(&self) -> usize {
        self.asked.take()
    }

    /// A channel, if it is time to visit it. Stays due until [`visited`](Self::visited).
    #[inline]
    pub(super) fn due_mut(&mut self, index: usize, now: Moment) -> Option<&mut Peer> {
        let Entry { due, left_over, peer, .. } = &mut self.entries[index];
        if *due > now {
            return None;
        }
        left_over.set(None);
        Some(peer)
    }

    /// Whether it is time to visit a channel even if nothing has arrived.
    #[inline]
    pub(super) fn is_due(&self, index: usize, now: Moment) -> bool {
        self.entries[index].due <= now
    }

    /// Whether it is time to visit a channel to which nothing has happened since the last visit.
    #[inline]
    pub(super) fn is_due_by_time(&self, index: usize, now: Moment) -> bool {
        let due = self.entries[index].due;
        due != Moment::default() && due <= now
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
    pub(super) fn visited(&mut self, index: usize, now: Now) {
        let Entry { due, watch, peer, .. } = &mut self.entries[index];
        (*due, *watch) = (peer.next_visit(now), peer.channel.watch());
        self.entries_freed += std::mem::take(&mut peer.account.entries_freed);
    }

    /// The completion queue entries that channels have returned since the last call. No channel is looked at.
    #[inline]
    pub(super) fn take_entries_freed(&mut self) -> u32 {
        std::mem::take(&mut self.entries_freed)
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
        let Entry { due, left_over, peer, .. } = &mut self.entries[index];
        *due = Moment::default();
        left_over.set(None);
        peer
    }
}
