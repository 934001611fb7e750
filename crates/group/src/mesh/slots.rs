//! Small messages in one direction to or from one peer, through slots that are registered once.
//!
//! The receiver keeps a receive posted for every slot, so a message finds its receive announced when it is sent, and its size need not be
//! known beforehand. A receive that is not posted again yet is a credit that the sender lacks: the plugin accepts no more sends then.

use std::collections::VecDeque;

use super::header::{HEADER_BYTES, Header, Kind};
use super::matching::OpId;
use crate::error::GroupError;
use crate::loader::{Buffer, End, Place, Post, ReceiveComm, Region, SendComm};

/// The longest message of elements in a slot; longer ones are sent without a copy. At this length two copies take less time than a wait
/// for the announcement of a place, at twice this length more.
pub(crate) const SMALL: usize = 64 << 10;
/// The longest packet of an object: as many elements, and its metadata.
pub(crate) const SMALL_OBJECT: usize = SMALL + (2 << 10);
const STRIDE: usize = SMALL_OBJECT + 64;
/// Slots in each direction.
pub(super) const SLOTS: usize = 16;
/// Receives are posted again this many at a time, so that one control message can announce them.
const BATCH: usize = 4;

/// Messages that may wait for a slot before the queue grows.
const QUEUE: usize = 64;

/// A slot's memory and region.
#[derive(Debug)]
struct Slots {
    region: Region, // Deregistered before the buffer goes.
    buffer: Buffer,
}

impl Slots {
    fn new<E: End>(end: &E) -> Result<Self, GroupError> {
        let buffer = Buffer::new(SLOTS * STRIDE)?;
        let region = end.register(buffer.memory())?;
        Ok(Self { region, buffer })
    }

    fn slot(&self, slot: usize) -> Place {
        self.buffer.memory().place().part(slot * STRIDE, HEADER_BYTES + SMALL_OBJECT)
    }
}

/// A message that is to be sent through a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub(super) header: Header,
    /// Empty when the bytes are sent by another way.
    pub(super) body: Place,
    /// The operation that ends when the message is in its slot.
    pub(super) op: Option<OpId>,
}

/// The sending side.
#[derive(Debug, Default)]
pub(super) struct SlotSender {
    flights: VecDeque<(Post, usize)>,
    slots: Option<Slots>,
    end: Option<SendComm>,
    free: Vec<usize>,
    queue: VecDeque<Letter>,
    tag: i32,
    /// A slot with a message that the plugin did not accept yet.
    filled: Option<usize>,
}

impl SlotSender {
    pub(super) fn open(&mut self, end: SendComm, tag: i32) -> Result<(), GroupError> {
        self.slots = Some(Slots::new(&end)?);
        self.end = Some(end);
        self.free = (0..SLOTS).rev().collect();
        self.flights.reserve(SLOTS);
        self.queue.reserve(QUEUE);
        self.tag = tag;
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.end.is_some()
    }

    pub(super) fn push(&mut self, letter: Letter) {
        self.queue.push_back(letter);
    }

    /// Drops the messages that the plugin has not accepted. Returns their operations.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = OpId> {
        self.free.extend(self.filled.take());
        self.queue.drain(..).filter_map(|letter| letter.op)
    }

    /// Whether every message is in a slot.
    pub(super) fn is_taken(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the plugin has completed all sends.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty()
    }

    /// Copies messages into slots, and passes the operations that are complete to `taken`. Returns whether anything moved.
    pub(super) fn post(&mut self, mut taken: impl FnMut(OpId)) -> Result<bool, GroupError> {
        let (Some(end), Some(slots)) = (&self.end, &self.slots) else { return Ok(false) };
        let mut moved = false;
        while let Some(letter) = self.queue.front() {
            let slot = match self.filled {
                Some(slot) => slot,
                None => {
                    let Some(slot) = self.free.pop() else { break };
                    let place = slots.slot(slot);
                    place.copy_from(Place::reading(&letter.header.encode()));
                    place.part(HEADER_BYTES, SMALL_OBJECT).copy_from(letter.body);
                    slot
                }
            };
            let place = slots.slot(slot).part(0, HEADER_BYTES + letter.body.len());
            let Some(post) = end.post(place, &slots.region, self.tag)? else {
                self.filled = Some(slot);
                break;
            };
            self.filled = None;
            self.flights.push_back((post, slot));
            if let Some(op) = letter.op {
                taken(op);
            }
            self.queue.pop_front();
            moved = true;
        }
        Ok(moved)
    }

    /// Tests what is outstanding. Returns whether anything moved.
    pub(super) fn test(&mut self) -> Result<bool, GroupError> {
        let mut moved = false;
        while let (Some(end), Some((post, slot))) = (&self.end, self.flights.front()) {
            if end.test_post(post)?.is_none() {
                break;
            }
            self.free.push(*slot);
            self.flights.pop_front();
            moved = true;
        }
        Ok(moved)
    }

    /// Whether messages wait for slots.
    pub(super) fn lacks_slots(&self) -> bool {
        self.free.len() < SLOTS / 4 || !self.queue.is_empty()
    }
}

/// A message in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) header: Header,
    pub(super) body: Place,
    slot: usize,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(super) struct SlotReceiver {
    flights: VecDeque<(Post, usize)>,
    slots: Option<Slots>,
    end: Option<ReceiveComm>,
    free: Vec<usize>,
    /// Parts of collectives that this rank has not reached yet.
    held: VecDeque<Arrival>,
    parts: u64,
    tag: i32,
}

impl SlotReceiver {
    pub(super) fn open(&mut self, end: ReceiveComm, tag: i32) -> Result<(), GroupError> {
        self.slots = Some(Slots::new(&end)?);
        self.end = Some(end);
        self.free = (0..SLOTS).rev().collect();
        self.flights.reserve(SLOTS);
        self.held.reserve(SLOTS);
        self.tag = tag;
        self.post()?;
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// The next message, if it is there. A part of a collective is held, any other message is returned. Returns whether anything moved.
    ///
    /// One at a time: a test that finds nothing is a poll of the network, and a caller who waits for this message needs no further one.
    pub(super) fn arrived(&mut self) -> Result<(bool, Option<Arrival>), GroupError> {
        let (Some(end), Some(slots)) = (&self.end, &self.slots) else { return Ok((false, None)) };
        let Some((post, slot)) = self.flights.front() else { return Ok((false, None)) };
        let Some(len) = end.test_post(post)? else { return Ok((false, None)) };
        let slot = *slot;
        self.flights.pop_front();
        let place = slots.slot(slot).part(0, len);
        let header = Header::decode(place.part(0, HEADER_BYTES).elements());
        let body = place.part(HEADER_BYTES, SMALL_OBJECT);
        let whole = |header: &Header| {
            let long = matches!(header.kind, Kind::Long(_));
            body.len() as u64 == if long { 0 } else { header.len }
        };
        let Some(header) = header.filter(whole) else {
            let why = format!("{len} bytes came that are no message of ours");
            return Err(GroupError::Contract(why));
        };
        let arrival = Arrival { header, body, slot };
        if header.kind != Kind::Part {
            return Ok((true, Some(arrival)));
        }
        self.held.push_back(arrival);
        self.parts += 1;
        Ok((true, None))
    }

    /// The number of parts of collectives received so far.
    pub(super) fn parts(&self) -> u64 {
        self.parts
    }

    /// The oldest part of a collective.
    pub(super) fn held(&self) -> Option<Arrival> {
        self.held.front().copied()
    }

    /// Frees its slot.
    pub(super) fn release_held(&mut self) -> Result<(), GroupError> {
        match self.held.pop_front() {
            Some(arrival) => self.release(arrival),
            None => Ok(()),
        }
    }

    /// Frees a message's slot.
    pub(super) fn release(&mut self, arrival: Arrival) -> Result<(), GroupError> {
        self.free.push(arrival.slot);
        self.post().map(drop)
    }

    /// Posts receives again. Returns whether the plugin accepted any.
    #[inline]
    pub(super) fn post(&mut self) -> Result<bool, GroupError> {
        if self.free.len() < BATCH { Ok(false) } else { self.post_free() }
    }

    fn post_free(&mut self) -> Result<bool, GroupError> {
        let (Some(end), Some(slots)) = (&self.end, &self.slots) else { return Ok(false) };
        let mut moved = false;
        while let Some(slot) = self.free.last() {
            let Some(post) = end.post(slots.slot(*slot), &slots.region, self.tag)? else { break };
            self.flights.push_back((post, *slot));
            self.free.pop();
            moved = true;
        }
        Ok(moved)
    }
}
