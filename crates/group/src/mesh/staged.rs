//! Messages of known sizes, or parts of collectives, in order, from one peer, all of which pass through staging memory.
//!
//! A receive is posted for each slot of it before any message is due, so that a piece does not wait for its receive.
//! [`super::lane::Lane`] sends the pieces.
//!
//! The end of a connection is an error of receives that are posted ahead, and some plugins then fail earlier receives, too. So a piece is
//! taken from the plugin when it comes, even if no receive has taken its message yet; receives are tested only when a piece is due; and
//! none is posted ahead once the peer leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lane::{PART, PIECE, STAGING_SLOTS, wrong_length};
use super::long::Receiver;
use super::registry::Registry;
use crate::error::GroupError;
use crate::loader::{Buffer, End, Memory, Place, Post, ReceiveComm, Region};

/// Messages that may wait before the queue grows.
const QUEUE: usize = 64;
/// Slots for parts of collectives: a rank that only sends may be so many parts ahead.
const PART_SLOTS: usize = 8;

#[derive(Debug)]
pub(super) struct StagedReceiver {
    comm: Option<Comm>,
    /// The length of a slot, and of the longest piece.
    piece: usize,
    slots: usize,
    /// The peer, if these are parts of collectives, as in [`super::lane::Lane`].
    parts_of: Option<usize>,
    /// Slots without a receive.
    free: Vec<usize>,
    /// Posted receives, in the order in which pieces come.
    flights: VecDeque<Flight>,
    /// Pieces that have come: their slots and lengths.
    landed: VecDeque<(usize, usize)>,
    /// Messages of one piece that stay where they have come: their slots and lengths.
    staying: VecDeque<(usize, usize)>,
    /// The number of pieces that are announced and have not come.
    due: usize,
    /// The peer leaves, and announces no more messages.
    is_leaving: bool,
    /// A post has failed before it was known that the peer leaves.
    failed_ahead: bool,
    jobs: VecDeque<Job>,
    tag: i32,
    expected: u64,
    done: u64,
    moves: u64,
}

#[derive(Debug)]
struct Comm {
    region: Region, // Deregistered before the buffer goes.
    buffer: Buffer,
    end: ReceiveComm,
    piece: usize,
}

impl Comm {
    fn slot(&self, slot: usize) -> Place {
        self.buffer.memory().place().part(slot * self.piece, self.piece)
    }
}

#[derive(Debug)]
struct Flight {
    post: Post,
    slot: usize,
}

/// A message whose pieces are not all copied to its place.
#[derive(Debug)]
struct Job {
    target: Target,
    len: usize,
    at: usize,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Place(Place),
    Dropped,
    /// A message of one piece stays in its slot.
    Slot,
}

impl StagedReceiver {
    pub(super) fn new(tag: i32) -> Self {
        Self {
            comm: None,
            piece: PIECE,
            slots: STAGING_SLOTS,
            parts_of: None,
            free: Vec::new(),
            flights: VecDeque::new(),
            landed: VecDeque::new(),
            staying: VecDeque::new(),
            due: 0,
            is_leaving: false,
            failed_ahead: false,
            jobs: VecDeque::new(),
            tag,
            expected: 0,
            done: 0,
            moves: 0,
        }
    }

    /// A receiver of parts of collectives from this peer, each of which is one piece.
    pub(super) fn of_parts(tag: i32, peer: usize) -> Self {
        Self { piece: PART, slots: PART_SLOTS, parts_of: Some(peer), ..Self::new(tag) }
    }

    fn add(&mut self, target: Target, len: usize) -> u64 {
        if len > 0 {
            self.jobs.push_back(Job { target, len, at: 0 });
            self.expected += 1;
        }
        self.expected
    }

    /// Takes the next piece from the plugin, if it has come. Returns whether it had.
    fn land(&mut self) -> Result<bool, GroupError> {
        let (Some(comm), Some(flight)) = (&self.comm, self.flights.front()) else {
            return Ok(false);
        };
        if self.due == 0 {
            return Ok(false);
        }
        let Some(len) = comm.end.test_post(&flight.post)? else { return Ok(false) };
        self.landed.push_back((flight.slot, len));
        self.flights.pop_front();
        self.due -= 1;
        Ok(true)
    }

    /// Copies a piece that has come to its place. Returns whether there was one.
    fn copy(&mut self) -> Result<bool, GroupError> {
        let (Some(comm), Some(job)) = (&self.comm, self.jobs.front_mut()) else { return Ok(false) };
        let Some((slot, len)) = self.landed.pop_front() else { return Ok(false) };
        let expected = self.piece.min(job.len - job.at);
        if len != expected {
            return Err(wrong_length(self.parts_of, len, expected));
        }
        match job.target {
            Target::Place(place) => {
                place.part(job.at, len).copy_from(comm.slot(slot).part(0, len));
                self.free.push(slot);
            }
            Target::Dropped => self.free.push(slot),
            Target::Slot => self.staying.push_back((slot, len)),
        }
        job.at += len;
        if job.at == job.len {
            self.jobs.pop_front();
            self.done += 1;
        }
        Ok(true)
    }

    /// Posts receives for free slots.
    fn post(&mut self) -> Result<(), GroupError> {
        let Some(comm) = &self.comm else { return Ok(()) };
        while let Some(slot) = self.free.last().copied() {
            if self.is_leaving && self.flights.len() >= self.due {
                break;
            }
            let posted = comm.end.post(comm.slot(slot), &comm.region, self.tag);
            let Some(post) = posted.inspect_err(|_| self.failed_ahead = true)? else { break };
            self.flights.push_back(Flight { post, slot });
            self.free.pop();
        }
        Ok(())
    }
}

impl Receiver for StagedReceiver {
    fn open(&mut self, end: ReceiveComm, _: usize) -> Result<(), GroupError> {
        let buffer = Buffer::new(self.slots * self.piece)?;
        let region = end.register(&buffer)?;
        self.comm = Some(Comm { region, buffer, end, piece: self.piece });
        self.free = (0..self.slots).rev().collect();
        self.flights.reserve(self.slots);
        self.landed.reserve(self.slots);
        self.staying.reserve(self.slots);
        self.jobs.reserve(QUEUE);
        self.post()
    }

    fn is_open(&self) -> bool {
        self.comm.is_some()
    }

    fn announced(&mut self, len: usize) {
        self.due = self.due.saturating_add(len.div_ceil(self.piece));
    }

    fn leaves(&mut self) -> bool {
        self.is_leaving = true;
        self.failed_ahead
    }

    fn may_lose(&self, is_announced: bool) -> bool {
        self.flights.len() > self.due && (self.due > 0 || !is_announced)
    }

    fn expect(&mut self, place: Option<Place>, len: usize) -> u64 {
        self.add(place.map_or(Target::Dropped, Target::Place), len)
    }

    fn expect_staying(&mut self, spare: Place) -> u64 {
        let is_one_piece = spare.len() <= self.piece;
        self.add(if is_one_piece { Target::Slot } else { Target::Place(spare) }, spare.len())
    }

    fn staying(&self) -> Option<(Place, &Arc<Memory>)> {
        let (slot, len) = *self.staying.front()?;
        let comm = self.comm.as_ref()?;
        Some((comm.slot(slot).part(0, len), comm.buffer.memory()))
    }

    fn release(&mut self) {
        self.free.extend(self.staying.pop_front().map(|(slot, _)| slot));
    }

    fn done(&self) -> u64 {
        self.done
    }

    fn moves(&self) -> u64 {
        self.moves
    }

    /// Takes at most one piece, and copies at most one.
    fn progress(&mut self, _: &mut Registry) -> Result<bool, GroupError> {
        let landed = self.land()?;
        let copied = self.copy()?;
        if !self.free.is_empty() {
            self.post()?;
        }
        self.moves += u64::from(landed) + u64::from(copied);
        Ok(landed || copied)
    }
}
