//! What is in flight on one NIC: a fixed table of operations, each with the context that libfabric gives back.
//!
//! An entry names the region that the NIC may touch, until the completion: whoever owns regions asks here before one goes
//! ([`Operations::reads`]). A share per operation would say the same by its type, and cost two locked instructions a
//! message. Contexts never move, and the table never grows, so posting allocates nothing.

use fabric::{Context, Contexts, PeerAddress};
use proto::Line;

use super::region::RegionId;

/// Why an operation was posted, and so what its completion means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A part of a message, posted on a data rail by the sender in this slot, out of this region.
    Part { sender: u16, line: Line, bytes: u64, region: RegionId },
    /// The same of a message that is this one part, and needs no fin: the sender does not count it, until somebody asks for what is
    /// in flight ([`Operations::count_wholes`]).
    Whole { sender: u16, line: Line, bytes: u64, region: RegionId },
    /// Adverts, by the receiver in this slot.
    Advert { receiver: u16, generation: u16 },
    /// A done that no advert carries, by the receiver in this slot.
    LoneDone { receiver: u16, generation: u16 },
    /// The record that stands in for immediates, by the sender in this slot.
    Fin { sender: u16, line: Line },
    /// A message that was sent before its receive was known, by the sender in this slot.
    Eager { sender: u16, number: u32 },
    /// Short messages that travel together, by the sender in this slot.
    Bundle { sender: u16 },
    /// A read of this region of ours, for the flush in this slot.
    Flush { flush: u16, region: RegionId },
    /// A sign of life asked for by the sender in this slot.
    SenderPulse { sender: u16 },
    /// The same by a receiver.
    ReceiverPulse { receiver: u16, generation: u16 },
    /// A two-sided message, out of this buffer.
    Message { buffer: u16, peer: PeerAddress, letter: Letter },
    /// An attempt of the device's probe.
    Probe { attempt: Attempt },
    /// A posted receive, into this buffer.
    Inbox { buffer: u16 },
}

/// One operation of an endpoint on memory of its own, which shows what its provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Write,
    WriteWithImmediate,
    Read,
    /// A write that completes on delivery.
    WriteToTheEnd,
}

/// Who is told how a two-sided message has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// The connect in this slot: it is its request.
    Request { sender: u16, generation: u16 },
    /// The receiver in this slot: it is its reply.
    Reply { receiver: u16, generation: u16 },
    /// Nobody.
    Notice,
}

/// The operations of one NIC.
#[derive(Debug)]
pub(crate) struct Operations {
    contexts: Contexts,
    entries: Box<[Entry]>,
    /// The first of the entries that are free; past the table when none is.
    free: u16,
    taken: u16,
}

#[derive(Debug)]
struct Entry {
    purpose: Option<Purpose>,
    /// The entry's own, so that who has the one has the other.
    context: Context,
    /// Of a free entry: the next one that is free.
    next: u16,
}

/// A part that has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedPart {
    pub(crate) sender: u16,
    pub(crate) line: Line,
    pub(crate) bytes: u64,
}

impl Operations {
    pub(crate) fn new(count: u16) -> Self {
        let contexts = Contexts::new(usize::from(count));
        let entry = |index: u16| {
            let context = contexts.at(usize::from(index));
            Entry { purpose: None, context, next: index + 1 }
        };
        let entries = (0..count).map(entry).collect();
        Self { contexts, entries, free: 0, taken: 0 }
    }

    /// How many more operations can be posted now.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.entries.len() - usize::from(self.taken)
    }

    fn purposes(&self) -> impl Iterator<Item = &Purpose> {
        self.entries.iter().filter_map(|entry| entry.purpose.as_ref())
    }

    /// How many are in flight, of those that end by themselves: a posted receive waits for the peer, and is not
    /// counted.
    pub(crate) fn in_flight(&self) -> usize {
        self.purposes().filter(|purpose| !matches!(purpose, Purpose::Inbox { .. })).count()
    }

    /// Whether nothing is in flight, posted receives included.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Whether a posted receive has not ended.
    pub(crate) fn has_inboxes(&self) -> bool {
        self.purposes().any(|purpose| matches!(purpose, Purpose::Inbox { .. }))
    }

    /// The contexts of posted receives, to cancel them.
    pub(crate) fn inboxes(&self) -> Vec<Context> {
        let inbox = |entry: &Entry| {
            matches!(entry.purpose, Some(Purpose::Inbox { .. })).then_some(entry.context)
        };
        self.entries.iter().filter_map(inbox).collect()
    }

    /// Takes an entry, to be posted with this context; `None` when the table is full.
    #[inline(always)]
    pub(crate) fn begin(&mut self, purpose: Purpose) -> Option<(u16, Context)> {
        let index = self.free;
        let entry = self.entries.get_mut(usize::from(index))?;
        entry.purpose = Some(purpose);
        self.free = entry.next;
        self.taken += 1;
        Some((index, entry.context))
    }

    /// Gives an entry back, by the context of its completion. `None` for a context that names nothing in flight.
    #[inline]
    pub(crate) fn end(&mut self, raw_context: usize) -> Option<Purpose> {
        let index = self.contexts.index_of(raw_context)?;
        self.end_at(u16::try_from(index).ok()?)
    }

    /// [`Operations::end`] for a part that is counted. None: it is something else, or nothing, and nothing has changed.
    #[inline(always)]
    pub(crate) fn end_part(&mut self, raw_context: usize) -> Option<EndedPart> {
        self.end_if(raw_context, |purpose| match *purpose {
            Purpose::Part { sender, line, bytes, .. } => Some(EndedPart { sender, line, bytes }),
            _ => None,
        })
    }

    /// The same for a part that is a whole message.
    #[inline(always)]
    pub(crate) fn end_whole(&mut self, raw_context: usize) -> Option<EndedPart> {
        self.end_if(raw_context, |purpose| match *purpose {
            Purpose::Whole { sender, line, bytes, .. } => Some(EndedPart { sender, line, bytes }),
            _ => None,
        })
    }

    /// How many messages the sender in this slot has in flight that it does not count; from now on it does.
    pub(crate) fn count_wholes(&mut self, of: u16) -> u32 {
        let mut count = 0;
        for entry in &mut self.entries {
            if let Some(Purpose::Whole { sender, line, bytes, region }) = entry.purpose
                && sender == of
            {
                entry.purpose = Some(Purpose::Part { sender, line, bytes, region });
                count += 1;
            }
        }
        count
    }

    /// [`Operations::end`], if `ends` takes what the entry is for: what it makes of that. None: it does not, or that is nothing; nothing has changed.
    #[inline(always)]
    pub(crate) fn end_if<T>(
        &mut self,
        raw_context: usize,
        ends: impl FnOnce(&Purpose) -> Option<T>,
    ) -> Option<T> {
        let index = self.contexts.index_of(raw_context)?;
        let entry = self.entries.get_mut(index)?;
        let ended = ends(entry.purpose.as_ref()?)?;
        entry.purpose = None;
        entry.next = std::mem::replace(&mut self.free, number(index));
        self.taken -= 1;
        Some(ended)
    }

    /// Gives an entry back that was never posted, or whose completion named it.
    #[inline]
    pub(crate) fn end_at(&mut self, index: u16) -> Option<Purpose> {
        let entry = self.entries.get_mut(usize::from(index))?;
        let purpose = entry.purpose.take()?;
        entry.next = std::mem::replace(&mut self.free, index);
        self.taken -= 1;
        Some(purpose)
    }

    /// Whether entry `index` is a part of the sender in this slot.
    pub(crate) fn is_part_of(&self, index: u16, slot: u16) -> bool {
        let entry = self.entries.get(usize::from(index)).and_then(|entry| entry.purpose.as_ref());
        entry.is_some_and(
            |purpose| matches!(purpose, Purpose::Part { sender, .. } if *sender == slot),
        )
    }

    /// Whether a part of anybody's, in flight or waiting to be posted, or a flush reads `region`.
    pub(crate) fn reads(&self, region: RegionId) -> bool {
        self.purposes().any(|purpose| {
            matches!(purpose, Purpose::Flush { region: read, .. } if *read == region)
                || reads(purpose, region).is_some()
        })
    }

    /// The same for the parts of one sender.
    pub(crate) fn reads_for(&self, sender: u16, region: RegionId) -> bool {
        self.purposes().any(|purpose| reads(purpose, region) == Some(sender))
    }
}

/// The sender whose write of data this is, if it reads `region`.
fn reads(purpose: &Purpose, region: RegionId) -> Option<u16> {
    match *purpose {
        Purpose::Part { sender, region: read, .. }
        | Purpose::Whole { sender, region: read, .. }
            if read == region =>
        {
            Some(sender)
        }
        _ => None,
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

    fn part(region: RegionId) -> Purpose {
        Purpose::Part { sender: 1, line: Line::FIRST, bytes: 8, region }
    }

    fn whole(sender: u16, region: RegionId) -> Purpose {
        Purpose::Whole { sender, line: Line::FIRST, bytes: 8, region }
    }

    #[test]
    fn a_region_is_read_until_the_last_operation_that_names_it_has_ended() {
        let mut operations = Operations::new(4);
        let [ours, other] = [RegionId::next(), RegionId::next()];
        let [counted, whole] = [part(ours), whole(1, ours)];
        let begun = [counted, part(other), whole];
        let begun = begun.map(|purpose| operations.begin(purpose).unwrap().0);
        for (ended, reads) in begun.into_iter().zip([[true, true], [true, false], [false, false]]) {
            assert!(operations.end_at(ended).is_some());
            assert_eq!([ours, other].map(|region| operations.reads(region)), reads);
            assert_eq!([ours, other].map(|region| operations.reads_for(1, region)), reads);
            assert!(!operations.reads_for(2, ours));
        }
    }

    #[test]
    fn a_full_table_takes_nothing_more_until_an_operation_ends() {
        let mut operations = Operations::new(3);
        let region = RegionId::next();
        let begin = || Some(operations.begin(part(region))?.0);
        let begun: Vec<u16> = std::iter::from_fn(begin).collect();
        assert_eq!((begun.len(), operations.room()), (3, 0));
        for (ended, room) in begun.into_iter().rev().zip(1..) {
            assert!(operations.end_at(ended).is_some());
            assert!(operations.end_at(ended).is_none(), "an operation ends once");
            assert_eq!(operations.room(), room);
        }
        assert!(operations.is_empty());
    }

    #[test]
    fn a_message_that_its_sender_has_not_counted_is_counted_once_and_by_nobody_else() {
        let mut operations = Operations::new(4);
        let region = RegionId::next();
        let begun = [whole(1, region), whole(2, region), whole(1, region), part(region)];
        let begun = begun.map(|purpose| operations.begin(purpose).unwrap().1.number());
        assert_eq!([1, 1, 3].map(|sender| operations.count_wholes(sender)), [2, 0, 0]);
        let ends_whole = begun.map(|context| operations.end_whole(context).is_some());
        assert_eq!(ends_whole, [false, true, false, false]);
        let ends_part = begun.map(|context| operations.end_part(context).is_some());
        assert_eq!(ends_part, [true, false, true, true]);
        assert!(!operations.reads(region) && operations.is_empty());
    }

    #[test]
    fn the_end_of_a_part_is_no_end_of_anything_else() {
        let mut operations = Operations::new(2);
        let [page, region] = [RegionId::next(), RegionId::next()];
        let flush = Purpose::Flush { flush: 7, region: page };
        let begun = [flush, part(region)].map(|purpose| operations.begin(purpose).unwrap().1);
        let [flush, part] = begun.map(Context::number);
        assert!(operations.end_part(flush).is_none() && operations.end_part(1).is_none());
        assert!(operations.end_part(part).is_some_and(|part| part.sender == 1 && part.bytes == 8));
        assert!(operations.end_part(part).is_none() && !operations.reads(region));
        assert!(operations.reads(page));
        assert!(matches!(operations.end(flush), Some(Purpose::Flush { flush: 7, .. })));
        assert!(!operations.reads(page));
        assert!(operations.is_empty());
    }
}
