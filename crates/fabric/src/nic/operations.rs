//! What is in flight on one NIC: a fixed table of operations, each with the context that libfabric gives back.
//!
//! An entry names the region and the peer that its operation uses, and both are counted or looked up here before one goes. Contexts
//! never move, and the table never grows, so posting allocates nothing.

use std::ffi::c_void;

use crate::context::Contexts;

/// The operations of one NIC.
#[derive(Debug)]
pub(super) struct Operations {
    contexts: Contexts,
    entries: Box<[Entry]>,
    /// The first of the entries that are free; past the table when none is.
    free: u16,
    taken: u16,
    /// Of the taken ones, posted receives: they end when the peer wants.
    receives: u16,
    /// Of the taken ones, those of the data rail.
    data: u16,
}

/// What an operation is, and so on which rail it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Free,
    /// A write on the data rail.
    Write,
    Read,
    ControlWrite,
    Send,
    Receive,
    /// A tagged message out of memory of the data rail, and one into it.
    DataSend,
    DataReceive,
}

/// An operation that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The caller's name for it.
    pub(super) token: u64,
    /// Bytes that a write of data moves.
    pub(super) bytes: u64,
    /// The slot of the region that it touches.
    pub(super) region: u32,
    /// The slot of the peer that it goes to; past the table for a receive.
    pub(super) peer: u32,
    /// Of a free entry: the next one that is free.
    next: u16,
    pub(super) kind: Kind,
}

impl Kind {
    pub(super) const fn is_of_data(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::DataSend | Self::DataReceive)
    }

    const fn is_of_control(self) -> bool {
        matches!(self, Self::ControlWrite | Self::Send | Self::Receive)
    }

    /// Whether it waits for a message: it ends when a peer wants.
    pub(super) const fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::DataReceive)
    }

    /// Whether it moves data out of our memory.
    pub(super) const fn carries(self) -> bool {
        matches!(self, Self::Write | Self::DataSend)
    }

    /// Whether it is on the rail that `data` says.
    pub(super) const fn is_on(self, data: bool) -> bool {
        if data { self.is_of_data() } else { self.is_of_control() }
    }
}

impl Operations {
    pub(super) fn new(count: u16) -> Self {
        let entry = |next| Entry { token: 0, bytes: 0, region: 0, peer: 0, next, kind: Kind::Free };
        let entries = (1..=count).map(entry).collect();
        let contexts = Contexts::new(usize::from(count));
        Self { contexts, entries, free: 0, taken: 0, receives: 0, data: 0 }
    }

    /// How many more operations can be posted now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.entries.len() - usize::from(self.taken)
    }

    pub(super) fn in_flight(&self) -> usize {
        usize::from(self.taken)
    }

    pub(super) fn data(&self) -> usize {
        usize::from(self.data)
    }

    pub(super) fn receives(&self) -> usize {
        usize::from(self.receives)
    }

    /// The entry that the next operation takes, and its context; none when the table is full. It is not taken yet.
    #[inline(always)]
    pub(super) fn upcoming(&self) -> Option<u16> {
        (usize::from(self.free) < self.entries.len()).then_some(self.free)
    }

    /// The context of an entry.
    #[inline(always)]
    pub(super) fn context(&self, index: u16) -> *mut c_void {
        self.contexts.place(usize::from(index))
    }

    /// Takes the entry that was [upcoming](Self::upcoming).
    #[inline(always)]
    pub(super) fn take(&mut self, kind: Kind, token: u64, bytes: u64, region: u32, peer: u32) {
        let Some(entry) = self.entries.get_mut(usize::from(self.free)) else { return };
        let next = entry.next;
        *entry = Entry { token, bytes, region, peer, next, kind };
        self.free = next;
        self.taken += 1;
        self.receives += u16::from(kind.is_receive());
        self.data += u16::from(kind.is_of_data());
    }

    /// Ends the operation that a completion's context names; none where it names nothing in flight.
    #[inline(always)]
    pub(super) fn end(&mut self, context: usize) -> Option<Entry> {
        self.end_at(self.contexts.index_of(context)?)
    }

    /// The same by its place in the table.
    #[inline(always)]
    pub(super) fn end_at(&mut self, index: usize) -> Option<Entry> {
        let entry = self.entries.get_mut(index)?;
        if entry.kind == Kind::Free {
            return None;
        }
        let ended = *entry;
        entry.kind = Kind::Free;
        entry.next = std::mem::replace(&mut self.free, number(index));
        self.taken -= 1;
        self.receives -= u16::from(ended.kind.is_receive());
        self.data -= u16::from(ended.kind.is_of_data());
        Some(ended)
    }

    /// What is in flight, by its place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(|(_, entry)| entry.kind != Kind::Free)
    }

    /// Whether one of them goes to the peer in this slot.
    pub(super) fn goes_to(&self, peer: u32) -> bool {
        self.iter().any(|(_, entry)| entry.peer == peer && !entry.kind.is_receive())
    }

    /// The provider may write to the contexts for ever.
    pub(super) fn leak(&mut self) {
        self.contexts.leak();
    }
}

/// Of an index inside the table, which is no longer than that.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the table is made of a u16 of entries")]
fn number(index: usize) -> u16 {
    index as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(operations: &mut Operations, kind: Kind, region: u32) -> Option<u16> {
        let index = operations.upcoming()?;
        operations.take(kind, u64::from(region), 8, region, 3);
        Some(index)
    }

    #[test]
    fn a_full_table_takes_nothing_more_until_an_operation_ends() {
        let mut operations = Operations::new(3);
        let begun: Vec<u16> =
            std::iter::from_fn(|| begin(&mut operations, Kind::Write, 0)).collect();
        assert_eq!((begun.len(), operations.room()), (3, 0));
        for (ended, room) in begun.into_iter().rev().zip(1..) {
            assert!(operations.end_at(ended.into()).is_some());
            assert!(operations.end_at(ended.into()).is_none(), "an operation ends once");
            assert_eq!(operations.room(), room);
        }
        assert_eq!(operations.in_flight(), 0);
    }

    #[test]
    fn a_context_ends_its_own_operation_and_no_other() {
        let mut operations = Operations::new(4);
        let kinds = [Kind::Write, Kind::Receive, Kind::Send];
        let begun = kinds.map(|kind| begin(&mut operations, kind, kind as u32).unwrap());
        let contexts = begun.map(|index| operations.context(index).addr());
        assert!(operations.end(1).is_none() && operations.end(contexts[0] + 1).is_none());
        assert!(operations.goes_to(3) && !operations.goes_to(4));
        for ((context, kind), left) in contexts.into_iter().zip(kinds).zip([2, 1, 0]) {
            assert_eq!(operations.end(context).unwrap().kind, kind);
            assert!(operations.end(context).is_none());
            assert_eq!(operations.in_flight(), left);
        }
        assert_eq!(operations.receives(), 0);
    }
}
