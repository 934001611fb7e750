//! Messages of known sizes, or parts of collectives, in order, from one peer, all of which pass through staging memory.
//!
//! A receive is posted for each slot of it before any message is due, so that a piece does not wait for its receive.
//! [`super::lane::Lane`] sends the pieces.
//!
//! The end of a connection is an error of receives that are posted ahead, and some plugins then fail earlier receives, too. So a piece is
//! taken from the plugin when it comes, even if no receive has taken its message yet; receives are tested only when a piece is due; and
//! none is posted ahead once the peer leaves, which then says how many pieces it has sent.

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
    /// The number of pieces that are announced.
    announced: u64,
    /// The number of pieces that the peer has sent, from its letter when it leaves. The headers of some may not be read.
    sent: u64,
    /// The number of pieces that have come.
    came: u64,
    /// The peer leaves, and sends nothing more.
    is_leaving: bool,
    /// The end of the connection, until all pieces that have come are copied.
    ended: Option<GroupError>,
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
            announced: 0,
            sent: 0,
            came: 0,
            is_leaving: false,
            ended: None,
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

    /// The number of pieces that will come and have not.
    fn due(&self) -> u64 {
        self.announced.max(self.sent).saturating_sub(self.came)
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
        if self.due() == 0 {
            return Ok(false);
        }
        let Some(len) = comm.end.test_post(&flight.post)? else { return Ok(false) };
        self.landed.push_back((flight.slot, len));
        self.flights.pop_front();
        self.came += 1;
        Ok(true)
    }

    /// Does `work`, and keeps its error. Returns whether anything moved.
    fn or_ended(&mut self, work: impl FnOnce(&mut Self) -> Result<bool, GroupError>) -> bool {
        work(self).unwrap_or_else(|error| {
            self.ended = Some(error);
            false
        })
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
        let due = self.due();
        let Some(comm) = &self.comm else { return Ok(()) };
        while let Some(slot) = self.free.last().copied() {
            if self.is_leaving && self.flights.len() as u64 >= due {
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
        self.announced = self.announced.saturating_add(len.div_ceil(self.piece) as u64);
    }

    fn leaves(&mut self) -> bool {
        self.is_leaving = true;
        self.failed_ahead
    }

    fn sent(&mut self, pieces: u64) {
        self.sent = pieces;
    }

    fn may_lose(&self, is_announced: bool) -> bool {
        let due = self.due();
        self.flights.len() as u64 > due && (due > 0 || !is_announced)
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

    /// Takes at most one piece, and copies at most one. The end of the connection is an error once all that have come are copied.
    fn progress(&mut self, _: &mut Registry) -> Result<bool, GroupError> {
        let landed = self.ended.is_none() && self.or_ended(Self::land);
        let copied = self.copy()?;
        if self.ended.is_none() && !self.free.is_empty() {
            if self.is_leaving {
                self.or_ended(|receiver| receiver.post().map(|()| false));
            } else {
                // The caller asks `leaves` what this means.
                self.post()?;
            }
        }
        if self.landed.is_empty()
            && let Some(error) = self.ended.take()
        {
            return Err(error);
        }
        self.moves += u64::from(landed) + u64::from(copied);
        Ok(landed || copied)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::lane::Lane;
    use super::*;
    use crate::loader::SendComm;
    use crate::support::{WAIT, buffering, connected};

    /// The state of a receiver that is open, and the lane that sends to it.
    struct Link {
        sender: Lane<SendComm>,
        receiver: StagedReceiver,
        registry: Registry,
    }

    impl Link {
        fn new() -> Self {
            let (start, end) = connected(&buffering(), |_| {});
            let (mut sender, mut receiver) = (Lane::new(0), StagedReceiver::new(0));
            sender.open(start, 0);
            receiver.open(end, 0).unwrap();
            Self { sender, receiver, registry: Registry::default() }
        }

        /// Sends a message, which is announced.
        fn send(&mut self, bytes: &[u8]) {
            self.sender.push(Place::reading(bytes));
            self.receiver.announced(bytes.len());
        }

        /// Moves everything until `is_so` holds.
        fn until(&mut self, is_so: impl Fn(&StagedReceiver) -> bool) {
            let end = Instant::now() + WAIT;
            while !is_so(&self.receiver) {
                assert!(Instant::now() < end, "{:?}", self.receiver);
                self.sender.progress(&mut self.registry).unwrap();
                self.receiver.progress(&mut self.registry).unwrap();
            }
        }
    }

    #[test]
    fn an_end_may_lose_something_while_more_receives_are_posted_than_pieces_are_due() {
        let mut receiver = Link::new().receiver;
        let may_lose = |receiver: &StagedReceiver| [true, false].map(|all| receiver.may_lose(all));
        assert_eq!(may_lose(&receiver), [false, true], "only a header that comes makes one due");
        receiver.announced(1);
        assert_eq!(may_lose(&receiver), [true, true]);
        receiver.announced(PIECE + 1);
        assert_eq!(may_lose(&receiver), [false, false], "all receives are filled");
        receiver.announced(1);
        assert_eq!(may_lose(&receiver), [false, false], "one piece has no receive");
    }

    #[test]
    fn once_the_peer_leaves_no_receive_is_posted_without_a_piece_that_is_due() {
        let mut link = Link::new();
        link.send(&[7; 9]);
        assert!(!link.receiver.leaves(), "no post has failed");
        let mut came = [0_u8; 9];
        let number = link.receiver.expect(Some(Place::writing(&mut came)), 9);
        link.until(|receiver| receiver.done() == number);
        assert_eq!(came, [7; 9]);
        for (due, posted) in [(0, 2), (1, 2), (2, 2), (3, 3)] {
            link.receiver.progress(&mut link.registry).unwrap();
            assert_eq!(link.receiver.flights.len(), posted, "{due} pieces are due");
            link.receiver.announced(1);
        }
    }

    #[test]
    fn the_end_of_a_connection_is_no_error_while_no_piece_is_due() {
        let mut link = Link::new();
        link.send(&[7]);
        link.until(|receiver| receiver.due() == 0);
        drop(link.sender);
        let (mut receiver, mut registry) = (link.receiver, link.registry);
        assert!(!receiver.progress(&mut registry).unwrap());
        let mut came = [0_u8];
        receiver.expect(Some(Place::writing(&mut came)), 1);
        // The post of the slot that is free again fails, after the message is in its place.
        assert!(receiver.progress(&mut registry).is_err());
        assert_eq!((came, receiver.done()), ([7], 1));
        assert!(receiver.leaves(), "a post has failed before it was known that the peer leaves");
    }

    #[test]
    fn messages_that_are_dropped_leave_their_slots_and_their_order_to_others() {
        let mut link = Link::new();
        let bytes = vec![7_u8; PIECE + 1];
        let mut came = [0_u8; 3];
        for _ in 0..STAGING_SLOTS {
            link.send(&bytes);
            link.receiver.expect(None, bytes.len());
        }
        link.send(&[1, 2, 3]);
        let number = link.receiver.expect(Some(Place::writing(&mut came)), 3);
        link.until(|receiver| receiver.done() == number);
        assert_eq!(came, [1, 2, 3]);
    }

    #[test]
    fn a_message_of_one_piece_may_stay_and_a_longer_one_goes_to_its_place() {
        let mut link = Link::new();
        let (short, long) = (vec![1_u8; PIECE], vec![2_u8; PIECE + 1]);
        let mut spare = [vec![0_u8; PIECE], vec![0_u8; PIECE + 1]];
        for (bytes, spare) in [&short, &long].into_iter().zip(&mut spare) {
            link.send(bytes);
            link.receiver.expect_staying(Place::writing(spare));
        }
        link.until(|receiver| receiver.done() == 2);
        let (place, _) = link.receiver.staying().expect("it stays");
        assert!(place.elements::<u8>() == short);
        link.receiver.release();
        assert!(link.receiver.staying().is_none() && link.receiver.free.len() == 1);
        assert!(spare[0].iter().all(|byte| *byte == 0) && spare[1] == long);
    }

    #[test]
    fn a_length_that_no_memory_has_makes_no_fewer_pieces_due() {
        let mut receiver = StagedReceiver::new(0);
        receiver.announced(1);
        (0..PIECE).for_each(|_| receiver.announced(usize::MAX));
        assert_eq!(receiver.due(), u64::MAX);
    }

    #[test]
    fn a_piece_of_another_length_than_expected_is_an_error_before_it_is_copied() {
        for expected in [8, 10] {
            let mut link = Link::new();
            link.send(&[7; 9]);
            link.until(|receiver| receiver.due() == 0);
            let mut came = [0_u8; 10];
            link.receiver.expect(Some(Place::writing(&mut came[..expected])), expected);
            let ended = link.receiver.progress(&mut link.registry);
            assert!(matches!(ended, Err(GroupError::Contract(_))), "{ended:?}");
            assert_eq!(came, [0; 10]);
        }
    }
}
