//! NCCL's comms, by the slot of their connection, and their open requests.

use std::time::Duration;

use proto::{ChannelId, MessageId, Moment, Slot};
use proto::{Line, limits};

use super::counting::CommCounters;
use super::flush::Flushing;
use super::line::low16;
use super::profiling::Events;
use super::side::{Side, side_of};
use super::wait_tracker::WaitTracker;
use crate::error::{Cause, Error, Noun, Result};
use crate::object_id::ObjectId;

/// The most open requests of one comm: as many as a window has lines, or a sender has records of messages.
const REQUESTS: usize = 64;
const _: () = assert!(REQUESTS >= proto::window::WINDOW as usize);
const _: () = assert!(REQUESTS >= proto::window::RECORDS);

/// One end of a connection, from the call of accept or connect that returned it until its slot is freed.
#[derive(Debug)]
pub(super) struct Comm {
    pub(super) side: Side,
    pub(super) channel: ChannelId,
    /// NCCL has closed it, so its id is stale. Its slot is freed when the peer has closed its end too.
    pub(super) is_closing: bool,
    /// The error of its calls. Takes precedence over its flow's fault.
    pub(super) failure: Option<Error>,
    /// NCCL knows of a failure, and may test no request any more.
    is_abandoned: bool,
    /// Whether the failure is in the log.
    pub(super) is_logged: bool,
    /// Whether it was logged that messages are truncated to their receives.
    pub(super) is_cut_logged: bool,
    pub(super) flushing: Flushing,
    pub(super) tally: CommCounters,
    pub(super) seen: WaitTracker,
    /// Events of NCCL's profiler for open requests.
    pub(super) events: Events,
    /// Open requests, one bit each, and the line in the id of each.
    open: u64,
    lines: [u16; REQUESTS],
    /// A sender's requests so far.
    serial: u16,
}

impl Comm {
    pub(super) fn new(side: Side, channel: ChannelId, tally: CommCounters) -> Self {
        Self {
            side,
            channel,
            is_closing: false,
            failure: None,
            is_abandoned: false,
            is_logged: false,
            is_cut_logged: false,
            flushing: Flushing::default(),
            tally,
            seen: WaitTracker::default(),
            events: Events::default(),
            open: 0,
            lines: [0; REQUESTS],
            serial: 0,
        }
    }

    /// Opens a send request, and returns the line for its id: the message's record, and a serial number that distinguishes successive
    /// messages of one record.
    #[inline]
    pub(super) fn sent(&mut self, record: MessageId, inline: bool, now: Moment) -> u16 {
        self.tally.inline(inline);
        self.serial = self.serial.wrapping_add(1);
        let line = self.serial << 6 | u16::from(record.number());
        self.opened(line, now)
    }

    /// Opens the request of a receive, or of a group, and returns the line for its id: that of the first receive.
    #[inline]
    pub(super) fn received(&mut self, first: Line, now: Moment) -> u16 {
        self.opened(low16(first.number()), now)
    }

    fn opened(&mut self, line: u16, now: Moment) -> u16 {
        self.tally.begun(line, now);
        self.seen.begun();
        let at = usize::from(line) % REQUESTS;
        self.open |= 1 << at;
        self.lines[at] = line;
        line
    }

    /// Whether this request is open: its end has not been reported to NCCL.
    #[inline]
    pub(super) fn has(&self, line: u16) -> bool {
        let at = usize::from(line) % REQUESTS;
        self.open >> at & 1 == 1 && self.lines[at] == line
    }

    /// The request's end is reported to NCCL.
    #[inline]
    pub(super) fn ended(&mut self, line: u16) {
        let bit = 1 << (usize::from(line) % REQUESTS);
        self.open &= !bit;
        self.seen.ended(bit);
    }

    /// How long the same requests, or the same refused call, have waited.
    pub(super) fn waited(&mut self, polled: Duration, long: Duration) -> Duration {
        self.seen.waited(self.open, polled, long)
    }

    /// Requests that are open.
    pub(super) fn requests(&self) -> u32 {
        self.open.count_ones()
    }

    /// NCCL gets an error: it may test none of the open requests any more. Returns how many were awaited.
    pub(super) fn abandon(&mut self) -> u32 {
        let awaited = self.awaited(self.requests());
        self.is_abandoned = true;
        awaited
    }

    /// How many of these requests NCCL has to test.
    #[inline]
    pub(super) fn awaited(&self, requests: u32) -> u32 {
        if self.is_abandoned { 0 } else { requests }
    }
}

/// The comms of one endpoint, by the slots of their connections.
#[derive(Debug)]
pub(super) struct Comms {
    list: Vec<Entry>,
    /// The first generation: see `first_generation`.
    first: u16,
}

#[derive(Debug)]
struct Entry {
    generation: u16,
    comm: Option<Box<Comm>>,
}

impl Comms {
    pub(super) fn new(first: u16) -> Self {
        Self { list: Vec::new(), first }
    }

    /// Puts a comm into a slot. Returns the generation for its id.
    pub(super) fn put(&mut self, slot: Slot, comm: Comm) -> u16 {
        let first = self.first;
        while self.list.len() <= slot.index() {
            self.list.push(Entry { generation: first, comm: None });
        }
        let entry = &mut self.list[slot.index()];
        entry.comm = Some(Box::new(comm));
        entry.generation
    }

    /// Frees the slot.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Box<Comm>> {
        let entry = self.list.get_mut(slot.index())?;
        let comm = entry.comm.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        Some(comm)
    }

    /// The comm of this side that an id names, unless NCCL has closed it.
    #[inline]
    pub(super) fn open(
        &mut self,
        id: ObjectId,
        side: Side,
        noun: Noun,
    ) -> Result<(Slot, &mut Comm)> {
        let found = self.named(id).filter(|(_, comm)| comm.side == side && !comm.is_closing);
        found.ok_or_else(|| Cause::Stale(noun).into())
    }

    /// The comm that an id names, of the id's side, unless NCCL has closed it.
    pub(super) fn any(&mut self, id: ObjectId, noun: Noun) -> Result<(Slot, &mut Comm)> {
        self.open(id, side_of(id), noun)
    }

    #[inline]
    fn named(&mut self, id: ObjectId) -> Option<(Slot, &mut Comm)> {
        let slot = Slot::new(usize::from(id.slot()))?;
        let entry = self.list.get_mut(slot.index())?;
        if entry.generation != id.generation() {
            return None;
        }
        Some((slot, entry.comm.as_deref_mut()?))
    }

    #[inline]
    pub(super) fn at(&self, slot: Slot) -> Option<&Comm> {
        self.list.get(slot.index())?.comm.as_deref()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: Slot) -> Option<&mut Comm> {
        self.list.get_mut(slot.index())?.comm.as_deref_mut()
    }

    /// Slot and generation of each comm.
    pub(super) fn all(&self) -> Vec<(Slot, u16)> {
        let numbered = self.list.iter().enumerate();
        let taken = numbered.filter(|(_, entry)| entry.comm.is_some());
        taken.filter_map(|(at, entry)| Some((Slot::new(at)?, entry.generation))).collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut Comm)> {
        let numbered = self.list.iter_mut().enumerate();
        numbered.filter_map(|(at, entry)| Some((Slot::new(at)?, entry.comm.as_deref_mut()?)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Comm)> {
        let numbered = self.list.iter().enumerate();
        numbered.filter_map(|(at, entry)| Some((Slot::new(at)?, entry.comm.as_deref()?)))
    }
}

const _: () = assert!(limits::MAX_GROUP <= REQUESTS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_id::ObjectKind;

    const NOW: Moment = Moment::from_nanos(0);

    fn comm() -> Comm {
        Comm::new(Side::Send, ChannelId(0), CommCounters::default())
    }

    #[test]
    fn a_request_is_open_until_its_end_is_reported() {
        let mut comm = comm();
        let (first, second) =
            (comm.sent(MessageId::new(3), true, NOW), comm.sent(MessageId::new(4), true, NOW));
        assert!(comm.has(first) && comm.has(second));
        comm.ended(first);
        assert!(!comm.has(first) && comm.has(second));
        let again = comm.sent(MessageId::new(3), true, NOW);
        assert!(comm.has(again) && !comm.has(first), "another message in the same record");
    }

    #[test]
    fn no_request_of_a_comm_whose_failure_nccl_knows_is_awaited() {
        let mut comm = comm();
        let lines = [3, 4].map(|record| comm.sent(MessageId::new(record), true, NOW));
        assert_eq!(comm.awaited(1), 1);
        assert_eq!(comm.abandon(), 2);
        assert_eq!((comm.abandon(), comm.awaited(1)), (0, 0), "once");
        assert!(lines.iter().all(|line| comm.has(*line)), "NCCL may still test them");
    }

    #[test]
    fn an_id_of_a_closed_comm_is_stale_and_so_is_one_of_the_other_side() {
        let mut comms = Comms::new(7);
        let slot = Slot::new(2).unwrap();
        let generation = comms.put(slot, comm());
        let id = |kind, generation| ObjectId::new(kind, 0, generation, 2, 0);
        let mine = id(ObjectKind::Sender, generation);
        assert!(comms.open(mine, Side::Send, Noun::SendComm).is_ok());
        assert!(comms.open(mine, Side::Receive, Noun::ReceiveComm).is_err());
        comms.remove(slot);
        assert!(comms.open(mine, Side::Send, Noun::SendComm).is_err());
        comms.put(slot, comm());
        assert!(comms.open(mine, Side::Send, Noun::SendComm).is_err());
    }
}
