//! The operations in flight on one NIC: a fixed table, each entry with the context that libfabric returns.
//!
//! An entry names the region and the peer that its operation uses; both stay until the operation has ended. Contexts never move, and the
//! table never grows, so posting allocates nothing.

use std::ffi::c_void;

use crate::context::Contexts;
use crate::kind::Role;

/// The operations of one NIC.
#[derive(Debug)]
pub(super) struct Operations {
    contexts: Contexts,
    entries: Box<[Entry]>,
    /// The first free entry; past the table when there is none.
    free: u16,
    taken: u16,
    /// The number of posted receives, which end only when a peer sends, among the entries in use.
    receives: u16,
    /// The number of entries in use that belong to the data rail.
    data: u16,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No operation: the entry is free.
    Free,
    Write,
    Read,
    Send,
    Receive,
}

/// An operation that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The caller's token.
    pub(super) token: u64,
    /// The length of its local bytes.
    pub(super) bytes: u64,
    /// The slot of the region that it uses.
    pub(super) region: u32,
    /// The slot of its target peer; past the table for a receive.
    pub(super) peer: u32,
    /// For a free entry, the next free one.
    next: u16,
    kind: Kind,
    /// Its rail.
    pub(super) role: Role,
}

impl Entry {
    /// Whether it is a posted receive, which ends only when a peer sends.
    fn is_receive(&self) -> bool {
        self.kind == Kind::Receive
    }

    /// Whether it transfers data from our memory.
    #[inline(always)]
    pub(super) fn carries_data(&self) -> bool {
        self.role == Role::Data && matches!(self.kind, Kind::Write | Kind::Send)
    }
}

impl Operations {
    pub(super) fn new(count: u16) -> Self {
        let (kind, role) = (Kind::Free, Role::Data);
        let entry = |next| Entry { token: 0, bytes: 0, region: 0, peer: 0, next, kind, role };
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

    /// The entry that the next operation will use, without reserving it; none when the table is full.
    #[inline(always)]
    pub(super) fn upcoming(&self) -> Option<u16> {
        (usize::from(self.free) < self.entries.len()).then_some(self.free)
    }

    /// The context of an entry.
    #[inline(always)]
    pub(super) fn context(&self, index: u16) -> *mut c_void {
        self.contexts.place(usize::from(index))
    }

    /// Records an operation in the [upcoming](Self::upcoming) entry.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        (role, kind): (Role, Kind),
        token: u64,
        bytes: u64,
        region: u32,
        peer: u32,
    ) {
        let Some(entry) = self.entries.get_mut(usize::from(self.free)) else { return };
        let next = entry.next;
        *entry = Entry { token, bytes, region, peer, next, kind, role };
        self.free = next;
        self.taken += 1;
        self.receives += u16::from(kind == Kind::Receive);
        self.data += u16::from(role == Role::Data);
    }

    /// Removes the operation that a completion's context names; None if no operation in flight has this context.
    #[inline(always)]
    pub(super) fn end(&mut self, context: usize) -> Option<Entry> {
        self.end_at(self.contexts.index_of(context)?)
    }

    /// As [`end`](Self::end), by the entry's index.
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
        self.receives -= u16::from(ended.is_receive());
        self.data -= u16::from(ended.role == Role::Data);
        Some(ended)
    }

    /// The operation in flight in the entry of this index.
    pub(super) fn at(&self, index: u16) -> Option<&Entry> {
        self.entries.get(usize::from(index)).filter(|entry| entry.kind != Kind::Free)
    }

    /// The operations in flight, with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(|(_, entry)| entry.kind != Kind::Free)
    }

    /// Whether an operation in flight on this rail has the peer in this slot as its target.
    pub(super) fn goes_to(&self, peer: u32, role: Role) -> bool {
        let goes = |entry: &Entry| entry.peer == peer && !entry.is_receive();
        self.iter().any(|(_, entry)| entry.role == role && goes(entry))
    }

    /// Leaks the contexts, since the provider may still write to them.
    pub(super) fn leak(&mut self) {
        self.contexts.leak();
    }
}

/// An index into the table, which has at most that many entries.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the table is made of a u16 of entries")]
fn number(index: usize) -> u16 {
    index as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(operations: &mut Operations, role: Role, kind: Kind) -> Option<u16> {
        let index = operations.upcoming()?;
        operations.take((role, kind), 0, 8, 0, 3);
        Some(index)
    }

    #[test]
    fn a_full_table_accepts_nothing_until_an_operation_ends() {
        let mut operations = Operations::new(3);
        let begun: Vec<u16> =
            std::iter::from_fn(|| begin(&mut operations, Role::Data, Kind::Write)).collect();
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
        let kinds = [
            (Role::Data, Kind::Write),
            (Role::Control, Kind::Receive),
            (Role::Control, Kind::Send),
        ];
        let begun = kinds.map(|(role, kind)| begin(&mut operations, role, kind).unwrap());
        let contexts = begun.map(|index| operations.context(index).addr());
        assert!(operations.end(1).is_none() && operations.end(contexts[0] + 1).is_none());
        assert!(operations.goes_to(3, Role::Data) && !operations.goes_to(4, Role::Data));
        for ((context, kind), left) in contexts.into_iter().zip(kinds).zip([2, 1, 0]) {
            let ended = operations.end(context).unwrap();
            assert_eq!((ended.role, ended.kind), kind);
            assert!(operations.end(context).is_none());
            assert_eq!(operations.in_flight(), left);
            assert!(
                !operations.goes_to(3, Role::Data),
                "the write was the only one of the data rail"
            );
            assert_eq!(operations.goes_to(3, Role::Control), left > 0);
        }
        assert_eq!(operations.receives(), 0);
    }
}
