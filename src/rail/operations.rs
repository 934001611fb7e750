//! What is in flight on one NIC: a fixed table of operations, each with the context that libfabric gives back.
//!
//! An entry holds a share of the region that the NIC may touch; the completion gives it up. Contexts never move,
//! and the table never grows, so posting allocates nothing.

use std::sync::Arc;

use fabric::{Context, Contexts, PeerAddress};
use proto::Line;

use super::UserRegion;

/// Why an operation was posted, and so what its completion means.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// A part of a message, posted on a data rail by the sender in this slot.
    Part { sender: u16, line: Line, bytes: u64, region: Arc<UserRegion> },
    /// Adverts, by the receiver in this slot.
    Advert { receiver: u16, generation: u16 },
    /// A done that no advert carries, by the receiver in this slot.
    LoneDone { receiver: u16, generation: u16 },
    /// The record that stands in for immediates, by the sender in this slot.
    Fin { sender: u16, line: Line },
    /// A message that was sent before its receive was known, by the sender in this slot.
    Eager { sender: u16, number: u32 },
    /// A read of our own memory, for the flush in this slot.
    Flush { flush: u16 },
    /// A sign of life asked for by the sender in this slot.
    SenderPulse { sender: u16 },
    /// The same by a receiver.
    ReceiverPulse { receiver: u16, generation: u16 },
    /// A two-sided message, out of this buffer.
    Message { buffer: u16, peer: PeerAddress },
    /// A posted receive, into this buffer.
    Inbox { buffer: u16 },
}

/// The operations of one NIC.
#[derive(Debug)]
pub(crate) struct Operations {
    contexts: Contexts,
    entries: Box<[Option<Purpose>]>,
    free: Vec<u16>,
}

impl Operations {
    pub(crate) fn new(count: u16) -> Self {
        Self {
            contexts: Contexts::new(usize::from(count)),
            entries: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        }
    }

    /// How many more operations can be posted now.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// How many are in flight, of those that end by themselves: a posted receive waits for the peer, and is not
    /// counted.
    pub(crate) fn in_flight(&self) -> usize {
        self.entries
            .iter()
            .flatten()
            .filter(|purpose| !matches!(purpose, Purpose::Inbox { .. }))
            .count()
    }

    /// Whether nothing is in flight, posted receives included.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Whether a posted receive has not ended.
    pub(crate) fn has_inboxes(&self) -> bool {
        self.entries.iter().flatten().any(|purpose| matches!(purpose, Purpose::Inbox { .. }))
    }

    /// The contexts of posted receives, to cancel them.
    pub(crate) fn inboxes(&self) -> Vec<Context> {
        let inbox = |(index, entry): (usize, &Option<Purpose>)| {
            matches!(entry, Some(Purpose::Inbox { .. })).then(|| self.contexts.at(index))
        };
        self.entries.iter().enumerate().filter_map(inbox).collect()
    }

    /// Takes an entry; `None` when the table is full.
    #[inline]
    pub(crate) fn begin(&mut self, purpose: Purpose) -> Option<u16> {
        let index = self.free.pop()?;
        self.entries[usize::from(index)] = Some(purpose);
        Some(index)
    }

    /// The context to post entry `index` with.
    #[inline]
    pub(crate) fn context(&self, index: u16) -> Context {
        self.contexts.at(usize::from(index))
    }

    /// Gives an entry back, by the context of its completion. `None` for a context that names nothing in flight.
    #[inline]
    pub(crate) fn end(&mut self, raw_context: usize) -> Option<Purpose> {
        let index = self.contexts.index_of(raw_context)?;
        self.end_at(u16::try_from(index).ok()?)
    }

    /// Gives an entry back that was never posted, or whose completion named it.
    #[inline]
    pub(crate) fn end_at(&mut self, index: u16) -> Option<Purpose> {
        let purpose = self.entries.get_mut(usize::from(index))?.take()?;
        self.free.push(index);
        Some(purpose)
    }

    /// The region of the part in entry `index`.
    #[inline]
    pub(crate) fn region(&self, index: u16) -> Option<&Arc<UserRegion>> {
        match self.entries.get(usize::from(index))? {
            Some(Purpose::Part { region, .. }) => Some(region),
            _ => None,
        }
    }

    /// Whether entry `index` is a part of the sender in this slot.
    pub(crate) fn is_part_of(&self, index: u16, slot: u16) -> bool {
        let entry = self.entries.get(usize::from(index)).and_then(Option::as_ref);
        entry.is_some_and(
            |purpose| matches!(purpose, Purpose::Part { sender, .. } if *sender == slot),
        )
    }

    /// Takes the regions of all parts out, and leaves the operations in flight: for whoever knows what may be closed.
    pub(crate) fn take_regions(&mut self) -> Vec<Arc<UserRegion>> {
        let region = |entry: &mut Option<Purpose>| match entry
            .take_if(|purpose| matches!(purpose, Purpose::Part { .. }))
        {
            Some(Purpose::Part { region, .. }) => Some(region),
            _ => None,
        };
        self.entries.iter_mut().filter_map(region).collect()
    }

    /// Whether a part of this sender's, in flight or waiting to be posted, reads `region`.
    pub(crate) fn reads_for(&self, sender: u16, region: &Arc<UserRegion>) -> bool {
        let holds = |purpose: &Purpose| matches!(purpose, Purpose::Part { sender: by, region: held, .. } if *by == sender && Arc::ptr_eq(held, region));
        self.entries.iter().flatten().any(holds)
    }
}
