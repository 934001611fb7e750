//! Messages of known sizes, in order, in one direction to or from one peer.
//!
//! Both ends cut a message into pieces of the lane's length. A piece of registered memory is sent without a copy, any other through a slot
//! of the lane's own staging memory. Only the oldest request is tested, as in NCCL.
//!
//! Over sockets the call that posts a send copies its bytes, and what the peer sends meanwhile waits. So a step ends at most one piece and sends
//! at most one: two ranks that send to each other copy a piece each, then receive one each, and what is in flight stays in their caches.

use std::collections::VecDeque;

use net_abi::ResultCode;

use super::header::Route;
use super::registry::Registry;
use crate::error::GroupError;
use crate::loader::{Buffer, End, Place, Post, Region};

/// The longest piece, in bytes, of lanes with staging memory: one piece may be copied while another is in flight.
pub(super) const PIECE: usize = 512 << 10;
/// The longest piece, in bytes, of lanes of registered memory.
const REGISTERED_PIECE: usize = 1 << 20;
/// The longest part of a collective that is sent to a receive that was posted ahead.
pub(crate) const PART: usize = 256 << 10;
/// The most pieces in flight.
const WINDOW: usize = 8;
/// Slots of staging memory: one is filled or emptied while others are in flight.
pub(super) const STAGING_SLOTS: usize = 3;

/// Messages that may wait before the queue grows.
const QUEUE: usize = 64;

/// One direction. Messages are numbered from 1; [`Lane::done`] is the number up to which all are complete.
#[derive(Debug)]
pub(super) struct Lane<E> {
    flights: VecDeque<Flight>,
    staging: Option<Staging>,
    end: Option<E>,
    number: usize,
    tag: i32,
    /// The length of the pieces in bytes, the same at both ends.
    piece: usize,
    /// The peer, if these are parts of collectives: their lengths come from the calls of two ranks, which may differ.
    parts_of: Option<usize>,
    jobs: VecDeque<Job>,
    pushed: u64,
    done: u64,
    /// The numbers of pieces that were posted, and that have completed.
    posted: u64,
    completed: u64,
}

/// A message whose pieces are not all posted.
#[derive(Debug)]
struct Job {
    /// None: the bytes are received, and dropped.
    place: Option<Place>,
    len: usize,
    at: usize,
    /// The slot with the next piece, if the plugin has not accepted its post yet.
    filled: Option<usize>,
}

#[derive(Debug)]
struct Flight {
    post: Post,
    /// None: the bytes are dropped.
    part: Option<Place>,
    len: usize,
    slot: Option<usize>,
    last: bool,
}

/// The error of a piece of another length than was expected. `parts_of`: the peer, if it is a part of a collective.
#[cold]
pub(super) fn wrong_length(parts_of: Option<usize>, len: usize, expected: usize) -> GroupError {
    let Some(rank) = parts_of else {
        let why = format!("a message of {len} bytes came, and one of {expected} was expected");
        return GroupError::Contract(why);
    };
    let why = format!(
        "rank {rank} calls a collective with a part of {len} bytes, and this rank with one of {expected}"
    );
    GroupError::Mismatch { rank, why }
}

/// The plugin's tag of all messages that a rank sends.
pub(super) fn tag_of(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

#[derive(Debug)]
struct Staging {
    region: Region, // Deregistered before the buffer goes.
    buffer: Buffer,
    piece: usize,
    used: [bool; STAGING_SLOTS],
}

impl Staging {
    fn new<E: End>(end: &E, piece: usize) -> Result<Self, GroupError> {
        let buffer = Buffer::new(STAGING_SLOTS * piece)?;
        let region = end.register(buffer.memory())?;
        Ok(Self { region, buffer, piece, used: [false; STAGING_SLOTS] })
    }

    fn slot(&self, slot: usize) -> Place {
        self.buffer.memory().place().part(slot * self.piece, self.piece)
    }
}

impl<E: End> Lane<E> {
    /// A lane without a comm so far; messages may be pushed. `tag` is sent with each message.
    pub(super) fn new(tag: i32) -> Self {
        Self {
            flights: VecDeque::new(),
            staging: None,
            end: None,
            number: 0,
            tag,
            piece: PIECE,
            parts_of: None,
            jobs: VecDeque::new(),
            pushed: 0,
            done: 0,
            posted: 0,
            completed: 0,
        }
    }

    /// A lane whose messages are in registered memory at both ends.
    pub(super) fn of_registered(tag: i32) -> Self {
        Self { piece: REGISTERED_PIECE, ..Self::new(tag) }
    }

    /// A lane of long parts of collectives, to or from this peer.
    pub(super) fn of_parts(route: Route, tag: i32, peer: usize) -> Self {
        let piece = match route {
            Route::Direct => PIECE,
            Route::Staged => PART,
        };
        Self { piece, parts_of: Some(peer), ..Self::new(tag) }
    }

    /// `number` identifies the comm in the mesh.
    pub(super) fn open(&mut self, end: E, number: usize) {
        self.end = Some(end);
        self.number = number;
        self.flights.reserve(WINDOW);
        self.jobs.reserve(QUEUE);
    }

    /// Closes the comm, so that no memory of a message is posted any more. What has not moved by then never does.
    pub(super) fn close(&mut self, registry: &mut Registry) {
        self.jobs.clear();
        self.flights.clear();
        self.staging = None;
        if let Some(_end) = self.end.take() {
            // Regions keep it open.
            registry.forget(&[self.number]);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// Adds a message; returns its number. An empty place adds none: the result is the number of the last one.
    pub(super) fn push(&mut self, place: Place) -> u64 {
        self.add(Some(place), place.len())
    }

    /// Adds a message of `len` bytes; returns its number. Without a place, the bytes are received into staging memory, and dropped.
    pub(super) fn add(&mut self, place: Option<Place>, len: usize) -> u64 {
        if len > 0 {
            self.jobs.push_back(Job { place, len, at: 0, filled: None });
            self.pushed += 1;
        }
        self.pushed
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// The number of pieces posted plus that of pieces completed.
    pub(super) fn moves(&self) -> u64 {
        self.posted + self.completed
    }

    /// The number of pieces posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    pub(super) fn is_idle(&self) -> bool {
        self.done == self.pushed
    }

    /// Whether the plugin may access the memory of any message.
    pub(super) fn is_in_flight(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Tests the oldest piece in flight, and posts the next one if possible. Returns whether anything moved.
    #[inline]
    pub(super) fn progress(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        if self.flights.is_empty() && self.jobs.is_empty() {
            return Ok(false);
        }
        self.advance(registry)
    }

    // A function of its own, so that `progress` can be inlined: most polls are of empty lanes.
    #[inline(never)]
    fn advance(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        let ended = self.end_flight();
        let moved = ended.and_then(|ended| Ok(self.post(registry)? || ended));
        moved.map_err(|error| self.too_long(error))
    }

    /// The error of an invalid usage, by which a plugin refuses a message longer than its receive, as a mismatch of collectives.
    #[cold]
    fn too_long(&self, error: GroupError) -> GroupError {
        match (&error, self.parts_of) {
            (GroupError::Plugin { code, .. }, Some(rank)) if *code == ResultCode::INVALID_USAGE => {
                let why = format!(
                    "rank {rank} calls a collective with a part of another length than this rank: {error}"
                );
                GroupError::Mismatch { rank, why }
            }
            _ => error,
        }
    }

    /// Ends the oldest flight, if the plugin has completed it.
    fn end_flight(&mut self) -> Result<bool, GroupError> {
        let (Some(end), Some(flight)) = (&self.end, self.flights.front()) else { return Ok(false) };
        let Some(len) = end.test_post(&flight.post)? else { return Ok(false) };
        if len != flight.len {
            return Err(wrong_length(self.parts_of, len, flight.len));
        }
        if let (Some(slot), Some(staging)) = (flight.slot, &mut self.staging) {
            if let (true, Some(part)) = (E::RECEIVES, flight.part) {
                part.copy_from(staging.slot(slot));
            }
            staging.used[slot] = false;
        }
        self.done += u64::from(flight.last);
        self.flights.pop_front();
        self.completed += 1;
        Ok(true)
    }

    fn post(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        let Some(end) = &self.end else { return Ok(false) };
        let mut moved = false;
        while let (Some(job), true) = (self.jobs.front_mut(), self.flights.len() < WINDOW) {
            let len = self.piece.min(job.len - job.at);
            let part = job.place.map(|place| place.part(job.at, len));
            let region = match part {
                Some(part) => registry.region(part, end, self.number)?,
                None => None,
            };
            let (post, slot) = if let (Some(part), Some(region)) = (part, region) {
                // The buffer was registered after the plugin had refused the piece from a slot.
                if let (Some(slot), Some(staging)) = (job.filled.take(), &mut self.staging) {
                    staging.used[slot] = false;
                }
                (end.post(part, region, self.tag)?, None)
            } else {
                if self.staging.is_none() {
                    self.staging = Some(Staging::new(end, self.piece)?);
                }
                let Some(staging) = &mut self.staging else { break };
                let free = || staging.used.iter().position(|used| !used);
                let Some(slot) = job.filled.or_else(free) else { break };
                let place = staging.slot(slot).part(0, len);
                if let (false, None, Some(part)) = (E::RECEIVES, job.filled, part) {
                    place.copy_from(part);
                }
                staging.used[slot] = true;
                job.filled = Some(slot);
                (end.post(place, &staging.region, self.tag)?, Some(slot))
            };
            let Some(post) = post else { break };
            job.filled = None;
            job.at += len;
            let last = job.at == job.len;
            if last {
                self.jobs.pop_front();
            }
            self.flights.push_back(Flight { post, part, len, slot, last });
            self.posted += 1;
            moved = true;
            if !E::RECEIVES {
                break;
            }
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::loader::{Memory, SendComm};
    use crate::support::{WAIT, buffering, connected};

    /// An end that refuses the given number of posts, as a plugin does whose queue is full.
    struct Refusing(SendComm, Cell<usize>);

    impl End for Refusing {
        const RECEIVES: bool = false;

        fn register(&self, memory: &Arc<Memory>) -> Result<Region, GroupError> {
            End::register(&self.0, memory)
        }

        fn post(
            &self,
            place: Place,
            region: &Region,
            tag: i32,
        ) -> Result<Option<Post>, GroupError> {
            match self.1.get() {
                0 => self.0.post(place, region, tag),
                left => {
                    self.1.set(left - 1);
                    Ok(None)
                }
            }
        }

        fn test_post(&self, post: &Post) -> Result<Option<usize>, GroupError> {
            self.0.test_post(post)
        }
    }

    /// The byte of the test plugin's handle by which it truncates sends.
    const TRUNCATES: usize = 17;

    #[test]
    fn a_part_that_is_truncated_to_its_receive_is_a_mismatch_at_its_sender() {
        let (sender, _receiver) = connected(&buffering(), |handle| handle.0[TRUNCATES] = 1);
        let mut lane = Lane::of_parts(Route::Direct, 0, 1);
        lane.open(sender, 0);
        lane.push(Place::reading(&[7_u8; 100]));
        let (mut registry, end) = (Registry::default(), Instant::now() + WAIT);
        let mismatch = loop {
            if let Err(error) = lane.progress(&mut registry) {
                break error;
            }
            assert!(!lane.is_idle() && Instant::now() < end, "the part counts as sent");
        };
        assert!(matches!(mismatch, GroupError::Mismatch { rank: 1, .. }), "{mismatch:?}");
    }

    #[test]
    fn a_slot_whose_piece_leaves_from_registered_memory_instead_is_free_again() {
        let (sender, _receiver) = connected(&buffering(), |_| {});
        let mut lane = Lane::new(0);
        lane.open(Refusing(sender, Cell::new(1)), 0);
        let buffer = Buffer::new(100).unwrap();
        lane.push(buffer.memory().place());
        let mut registry = Registry::default();
        assert!(!lane.progress(&mut registry).unwrap(), "the post is refused");
        assert_eq!(lane.staging.as_ref().unwrap().used, [true, false, false]);
        registry.add(buffer.memory());
        assert!(lane.progress(&mut registry).unwrap());
        assert!(lane.flights[0].slot.is_none(), "the piece is sent from the buffer");
        assert_eq!(lane.staging.as_ref().unwrap().used, [false; STAGING_SLOTS]);
    }

    #[test]
    fn another_error_of_a_part_is_no_mismatch() {
        let (sender, receiver) = connected(&buffering(), |_| {});
        drop(receiver);
        let mut lane = Lane::of_parts(Route::Direct, 0, 1);
        lane.open(sender, 0);
        let (mut registry, end) = (Registry::default(), Instant::now() + WAIT);
        let error = loop {
            lane.push(Place::reading(&[7_u8; 100]));
            if let Err(error) = lane.progress(&mut registry) {
                break error;
            }
            assert!(Instant::now() < end, "the end of the connection is no error");
        };
        assert!(matches!(error, GroupError::Plugin { .. }), "{error:?}");
    }

    #[test]
    fn a_slot_whose_piece_is_refused_keeps_it_until_it_leaves() {
        let (sender, _receiver) = connected(&buffering(), |_| {});
        let mut lane = Lane::new(0);
        lane.open(Refusing(sender, Cell::new(2)), 0);
        lane.push(Place::reading(&[7_u8; 100]));
        let mut registry = Registry::default();
        for is_sent in [false, false, true] {
            assert_eq!(lane.progress(&mut registry).unwrap(), is_sent);
            assert_eq!(lane.staging.as_ref().unwrap().used, [true, false, false]);
        }
    }

    #[test]
    fn a_message_of_more_pieces_than_slots_is_complete_when_its_last_piece_is() {
        let (start, end) = connected(&buffering(), |_| {});
        let (mut sender, mut receiver) = (Lane::new(0), Lane::new(0));
        sender.open(start, 0);
        receiver.open(end, 1);
        let mut registry = Registry::default();
        let len = PIECE * (STAGING_SLOTS + 1) + 1;
        let (mut sent, mut came) = (vec![0_u8; len], vec![0_u8; len]);
        sent.chunks_mut(PIECE).zip(1..).for_each(|(piece, number)| piece.fill(number));
        sender.push(Place::reading(&sent));
        receiver.push(Place::writing(&mut came));
        let end = Instant::now() + WAIT;
        while !(sender.is_idle() && receiver.is_idle()) {
            assert!(Instant::now() < end, "it does not come");
            sender.progress(&mut registry).unwrap();
            // In the sender's slots and on the wire are pieces that have not come.
            receiver.progress(&mut registry).unwrap();
            assert_eq!(sender.done(), u64::from(sender.jobs.is_empty() && !sender.is_in_flight()));
            assert_eq!(receiver.done(), u64::from(came == sent));
        }
        assert!(came == sent);
    }
}
