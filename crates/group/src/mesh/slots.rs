//! Small messages in one direction to or from one peer, through slots that are registered once.
//!
//! The receiver keeps a receive posted for every slot, so a message does not wait for its receive, and its size need not be known
//! beforehand. While receives are not posted again, the plugin accepts fewer sends. Messages that wait together share a slot, one behind
//! the other, and so one send of the plugin. A part of a collective has a slot of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use super::header::{HEADER_BYTES, Header, Kind, SMALL_OBJECT};
use super::matching::OpId;
use crate::error::GroupError;
use crate::loader::{Buffer, End, Memory, Place, Post, ReceiveComm, Region, SendComm};

/// The most bytes of a slot.
const ROOM: usize = HEADER_BYTES + SMALL_OBJECT;
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
        self.buffer.memory().place().part(slot * STRIDE, ROOM)
    }
}

/// A message that is to be sent through a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub(super) header: Header,
    /// Empty when the bytes are sent on another lane.
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
    /// The number of slots that the plugin has accepted.
    sent: u64,
    tag: i32,
    /// A filled slot whose send the plugin has not accepted yet.
    filled: Option<Filled>,
}

/// A slot with the first messages of the queue.
#[derive(Debug)]
struct Filled {
    slot: usize,
    len: usize,
    messages: usize,
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
        self.free.extend(self.filled.take().map(|filled| filled.slot));
        self.queue.drain(..).filter_map(|letter| letter.op)
    }

    /// The number of slots sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of slots posted plus that of slots completed.
    pub(super) fn moves(&self) -> u64 {
        2 * self.sent - self.flights.len() as u64
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
        while !self.queue.is_empty() {
            let filled = match self.filled.take() {
                Some(filled) => filled,
                None => {
                    let Some(slot) = self.free.pop() else { break };
                    let (len, messages) = fill(slots.slot(slot), &self.queue);
                    Filled { slot, len, messages }
                }
            };
            let Filled { slot, len, messages } = filled;
            let Some(post) = end.post(slots.slot(slot).part(0, len), &slots.region, self.tag)?
            else {
                self.filled = Some(filled);
                break;
            };
            self.flights.push_back((post, slot));
            self.sent += 1;
            self.queue.drain(..messages).filter_map(|letter| letter.op).for_each(&mut taken);
            moved = true;
        }
        Ok(moved)
    }

    /// Tests the sends in flight. Returns whether any has completed.
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

/// Copies messages into a slot, as many as it has room for. Returns their bytes and their number.
fn fill(slot: Place, queue: &VecDeque<Letter>) -> (usize, usize) {
    let (mut len, mut messages) = (0, 0);
    for Letter { header, body, .. } in queue {
        let is_alone = header.kind == Kind::Part;
        if messages > 0 && (is_alone || len + HEADER_BYTES + body.len() > ROOM) {
            break;
        }
        slot.part(len, HEADER_BYTES).copy_from(Place::reading(&header.encode()));
        slot.part(len + HEADER_BYTES, body.len()).copy_from(*body);
        len += HEADER_BYTES + body.len();
        messages += 1;
        if is_alone {
            break;
        }
    }
    (len, messages)
}

/// A message in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) header: Header,
    pub(super) body: Place,
    /// None: another message follows in the slot.
    slot: Option<usize>,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(super) struct SlotReceiver {
    flights: VecDeque<(Post, usize)>,
    slots: Option<Slots>,
    end: Option<ReceiveComm>,
    free: Vec<usize>,
    /// A slot with messages that were not taken yet, and their place.
    rest: Option<(usize, Place)>,
    /// Parts of collectives that this rank has not reached yet.
    held: VecDeque<Arrival>,
    parts: u64,
    /// The number of slots taken from the plugin.
    came: u64,
    tag: i32,
    is_leaving: bool,
    /// A post has failed before it was known that the peer leaves.
    failed_ahead: bool,
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

    /// Returns whether a message has come, and the message. A part of a collective is not returned, but held.
    ///
    /// One message at a time: each test that finds nothing polls the network, and a caller that waits for this message needs no further
    /// test.
    pub(super) fn arrived(&mut self) -> Result<(bool, Option<Arrival>), GroupError> {
        let Some((slot, place)) = self.next_slot()? else { return Ok((false, None)) };
        let Some((header, body)) = read(place) else {
            let len = place.len();
            let why = format!("{len} bytes came that are not a message of this library");
            return Err(GroupError::Contract(why));
        };
        let rest = place.part(HEADER_BYTES + body.len(), ROOM);
        if header.kind == Kind::Part {
            self.held.push_back(Arrival { header, body, slot: Some(slot) });
            self.parts += 1;
            return Ok((true, None));
        }
        if rest.is_empty() {
            return Ok((true, Some(Arrival { header, body, slot: Some(slot) })));
        }
        self.rest = Some((slot, rest));
        Ok((true, Some(Arrival { header, body, slot: None })))
    }

    /// Whether messages of the slot that came last were not taken yet.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// The slot that has come, and the place of its messages that were not taken yet.
    fn next_slot(&mut self) -> Result<Option<(usize, Place)>, GroupError> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        let (Some(end), Some(slots)) = (&self.end, &self.slots) else { return Ok(None) };
        let Some((post, slot)) = self.flights.front() else { return Ok(None) };
        let Some(len) = end.test_post(post)? else { return Ok(None) };
        let slot = *slot;
        self.flights.pop_front();
        self.came += 1;
        Ok(Some((slot, slots.slot(slot).part(0, len))))
    }

    /// The number of parts of collectives received so far.
    pub(super) fn parts(&self) -> u64 {
        self.parts
    }

    /// The oldest held part of a collective.
    pub(super) fn held(&self) -> Option<Arrival> {
        self.held.front().copied()
    }

    /// The memory of all slots.
    pub(super) fn memory(&self) -> Option<&Arc<Memory>> {
        self.slots.as_ref().map(|slots| slots.buffer.memory())
    }

    /// Frees the slot of the part from [`SlotReceiver::held`].
    pub(super) fn release_held(&mut self) -> Result<(), GroupError> {
        match self.held.pop_front() {
            Some(arrival) => self.release(arrival),
            None => Ok(()),
        }
    }

    /// Frees a message's slot.
    pub(super) fn release(&mut self, arrival: Arrival) -> Result<(), GroupError> {
        self.free.extend(arrival.slot);
        self.post().map(drop)
    }

    /// The peer leaves: messages that it has sent still come. A receive that is posted after the end of the connection is an error, and
    /// some plugins then fail earlier receives, too. So from now on one receive is posted at a time, when all before it are read. Returns
    /// whether such an error has come before this call.
    pub(super) fn leaves(&mut self) -> bool {
        self.is_leaving = true;
        self.failed_ahead
    }

    /// Whether all messages of the `sent` slots are taken.
    pub(super) fn has_taken(&self, sent: u64) -> bool {
        self.came >= sent && !self.has_rest()
    }

    /// Whether the end of the connection may lose slots of the `sent` ones: a receive is posted that none of them will fill.
    pub(super) fn may_lose(&self, sent: u64) -> bool {
        self.came < sent && self.flights.len() as u64 > sent - self.came
    }

    /// Posts receives again, several at a time while others are posted. Returns whether the plugin accepted any.
    #[inline]
    pub(super) fn post(&mut self) -> Result<bool, GroupError> {
        let waits = self.free.len() < BATCH && !self.flights.is_empty();
        if waits { Ok(false) } else { self.post_free() }
    }

    fn post_free(&mut self) -> Result<bool, GroupError> {
        let (Some(end), Some(slots)) = (&self.end, &self.slots) else { return Ok(false) };
        let mut moved = false;
        while let Some(slot) = self.free.last() {
            if self.is_leaving && (self.rest.is_some() || !self.flights.is_empty()) {
                break;
            }
            let posted = end.post(slots.slot(*slot), &slots.region, self.tag);
            let Some(post) = posted.inspect_err(|_| self.failed_ahead = true)? else { break };
            self.flights.push_back((post, *slot));
            self.free.pop();
            moved = true;
        }
        Ok(moved)
    }
}

/// The first message of a slot, if there is one. A part of a collective is the only one.
fn read(slot: Place) -> Option<(Header, Place)> {
    let header = Header::decode(slot.part(0, HEADER_BYTES).elements())?;
    let room = slot.len().checked_sub(HEADER_BYTES)?;
    let len = match header.kind {
        Kind::Long(_) => 0,
        Kind::Short | Kind::Part => usize::try_from(header.len).ok()?,
    };
    let fits = if header.kind == Kind::Part { len == room } else { len <= room };
    fits.then(|| (header, slot.part(HEADER_BYTES, len)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::header::{Route, Space};
    use super::*;
    use crate::support::{WAIT, buffering, connected};

    const LONG: Kind = Kind::Long(Route::Staged);

    fn header(kind: Kind, tag: u32, len: usize) -> Header {
        let (space, len) = (Space::MESSAGES, len as u64);
        Header { kind, element: 1, scope: 0, tag, len, space, note: 0 }
    }

    /// The kinds and lengths of messages that are put into slots, and how many each slot has.
    fn slots(messages: &[(Kind, usize)]) -> Vec<usize> {
        let bytes = [7_u8; SMALL_OBJECT];
        let letter = |(tag, (kind, len)): (usize, &(Kind, usize))| {
            let body = if *kind == LONG { 0 } else { *len };
            let header = header(*kind, u32::try_from(tag).unwrap(), *len);
            Letter { header, body: Place::reading(&bytes[..body]), op: None }
        };
        let mut queue: VecDeque<_> = messages.iter().enumerate().map(letter).collect();
        let mut counts = Vec::new();
        while !queue.is_empty() {
            let mut memory = vec![0_u8; ROOM];
            let slot = Place::writing(&mut memory);
            let (len, count) = fill(slot, &queue);
            let mut rest = slot.part(0, len);
            for letter in queue.drain(..count) {
                let (header, body) = read(rest).unwrap();
                assert_eq!(header, letter.header);
                assert_eq!(body.elements::<u8>(), letter.body.elements::<u8>());
                rest = rest.part(HEADER_BYTES + body.len(), ROOM);
            }
            assert!(rest.is_empty());
            counts.push(count);
        }
        counts
    }

    #[test]
    fn messages_that_fit_share_a_slot_in_their_order_and_a_part_has_its_own() {
        let (short, part) = (Kind::Short, Kind::Part);
        assert_eq!(slots(&[(short, 5), (short, 0), (LONG, 1 << 40), (short, 3)]), [4]);
        assert_eq!(
            slots(&[(short, 5), (part, 4), (part, 4), (short, 3), (short, 1)]),
            [1, 1, 1, 2]
        );
        assert_eq!(slots(&[(short, SMALL_OBJECT), (short, 0)]), [1, 1]);
        let half = (ROOM - 2 * HEADER_BYTES) / 2;
        assert_eq!(slots(&[(short, half), (short, half)]), [2]);
        assert_eq!(slots(&[(short, half), (short, half + 1), (short, 1)]), [1, 2]);
    }

    #[test]
    fn bytes_without_a_message_or_with_one_longer_than_the_slot_are_none() {
        let in_slot = |header: Header, len: usize| {
            let bytes = [&header.encode()[..], &vec![7; len]].concat();
            read(Place::reading(&bytes)).map(|(_, body)| body.len())
        };
        assert_eq!(in_slot(header(Kind::Short, 0, 5), 5), Some(5));
        assert_eq!(in_slot(header(Kind::Short, 0, 5), 9), Some(5), "others may follow");
        assert_eq!(in_slot(header(Kind::Short, 0, 5), 4), None);
        assert_eq!(in_slot(header(Kind::Short, 0, usize::MAX), 4), None);
        assert_eq!(in_slot(header(Kind::Part, 0, 5), 9), None, "nothing follows a part");
        let bytes = header(Kind::Short, 0, 0).encode();
        for len in 0..HEADER_BYTES {
            assert!(read(Place::reading(&bytes[..len])).is_none(), "{len} bytes");
        }
    }

    /// Both ends of a connection.
    fn open() -> (SlotSender, SlotReceiver) {
        let (start, end) = connected(&buffering(), |_| {});
        let (mut sender, mut receiver) = (SlotSender::default(), SlotReceiver::default());
        sender.open(start, 0).unwrap();
        receiver.open(end, 0).unwrap();
        (sender, receiver)
    }

    fn push(sender: &mut SlotSender, kind: Kind, count: usize) {
        for _ in 0..count {
            sender.push(Letter {
                header: header(kind, 0, 1),
                body: Place::reading(&[7_u8]),
                op: None,
            });
        }
    }

    /// The next message, which has been sent; None if it is held.
    fn await_next(receiver: &mut SlotReceiver) -> Option<Arrival> {
        let end = Instant::now() + WAIT;
        loop {
            if let (true, arrival) = receiver.arrived().unwrap() {
                return arrival;
            }
            assert!(Instant::now() < end, "nothing comes");
        }
    }

    #[test]
    fn an_end_may_lose_slots_that_have_not_come_while_a_receive_is_posted_that_none_will_fill() {
        let (mut sender, mut receiver) = open();
        let all = SLOTS as u64;
        let may_lose = |receiver: &SlotReceiver, sent: [u64; 5]| {
            sent.map(|sent| (receiver.has_taken(sent), receiver.may_lose(sent)))
        };
        let (no, filled, yes) = ((true, false), (false, false), (false, true));
        assert_eq!(
            may_lose(&receiver, [0, 1, all - 1, all, all + 1]),
            [no, yes, yes, filled, filled]
        );
        push(&mut sender, Kind::Part, 2);
        sender.post(|_| {}).unwrap();
        assert_eq!(sender.sent(), 2);
        (0..2).for_each(|_| assert!(await_next(&mut receiver).is_none(), "a part is held"));
        assert_eq!(
            may_lose(&receiver, [1, 2, 3, all - 1, all]),
            [no, no, yes, yes, filled],
            "the slots of parts that are held have no receives"
        );
    }

    #[test]
    fn a_single_free_slot_is_posted_while_parts_have_all_others() {
        let (mut sender, mut receiver) = open();
        push(&mut sender, Kind::Part, SLOTS);
        sender.post(|_| {}).unwrap();
        (0..SLOTS).for_each(|_| assert!(await_next(&mut receiver).is_none(), "a part is held"));
        for _ in 0..2 {
            receiver.release_held().unwrap();
            assert_eq!(receiver.flights.len(), 1, "the second one waits for others");
        }
    }

    #[test]
    fn once_the_peer_leaves_one_receive_is_posted_at_a_time_when_all_before_it_are_read() {
        let (mut sender, mut receiver) = open();
        assert!(!receiver.leaves(), "no post has failed");
        push(&mut sender, Kind::Part, SLOTS - 1);
        push(&mut sender, Kind::Short, 2);
        sender.post(|_| {}).unwrap();
        assert_eq!(sender.sent(), SLOTS as u64, "the last two messages share a slot");
        for left in (1..SLOTS).rev() {
            assert!(await_next(&mut receiver).is_none());
            receiver.release_held().unwrap();
            assert_eq!(receiver.flights.len(), left);
        }
        for posted in [0, 1] {
            let arrival = await_next(&mut receiver).expect("no part");
            receiver.release(arrival).unwrap();
            assert_eq!(receiver.flights.len(), posted);
        }
        receiver.post().unwrap();
        assert_eq!(receiver.flights.len(), 1);
    }

    #[test]
    fn messages_wait_while_all_slots_are_full_and_leave_in_their_order_when_sends_complete() {
        let (mut sender, mut receiver) = open();
        push(&mut sender, Kind::Part, SLOTS - 1);
        assert!(!sender.is_idle() && !sender.is_taken());
        assert!(sender.post(|_| {}).unwrap() && sender.is_taken() && !sender.is_idle());
        assert!(sender.lacks_slots(), "few slots are free");
        push(&mut sender, Kind::Part, SLOTS);
        assert!(sender.post(|_| {}).unwrap());
        assert!(!sender.post(|_| {}).unwrap() && !sender.is_taken(), "no slot is free");
        let end = Instant::now() + WAIT;
        while !sender.is_idle() || receiver.parts() < sender.sent() {
            assert!(Instant::now() < end, "it does not come");
            sender.test().unwrap();
            sender.post(|_| {}).unwrap();
            while receiver.arrived().unwrap().0 {
                receiver.release_held().unwrap();
            }
        }
        assert_eq!((sender.sent(), receiver.parts()), (2 * SLOTS as u64 - 1, 2 * SLOTS as u64 - 1));
        assert!(!sender.lacks_slots());
    }

    #[test]
    fn a_slot_that_the_plugin_refuses_stays_filled_and_is_free_once_its_messages_are_dropped() {
        let (mut sender, _receiver) = open();
        let (end, slots) = (sender.end.as_ref().unwrap(), sender.slots.as_ref().unwrap());
        // The plugin accepts no more sends while none is tested.
        let post = || end.post(slots.slot(0).part(0, 1), &slots.region, 0).unwrap();
        let accepted: Vec<_> = std::iter::from_fn(post).take(1000).collect();
        assert!(accepted.len() < 1000, "the plugin refuses none");
        push(&mut sender, Kind::Part, 2);
        for _ in 0..3 {
            assert!(!sender.post(|_| {}).unwrap(), "it is accepted");
            assert!(sender.filled.is_some() && sender.free.len() == SLOTS - 1);
        }
        assert_eq!(sender.clear().count(), 0, "no operation waits");
        sender.free.sort_unstable();
        assert!(sender.free.iter().copied().eq(0..SLOTS), "{:?}", sender.free);
    }
}
