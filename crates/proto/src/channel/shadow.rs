//! The sending half of a channel: frames are appended to the open packet, packets are kept in the shadow until they are
//! acknowledged, and are written from there into the peer's inbox.
//!
//! ```text
//!  record:  (open) ──seal──▶ Sealed ──posted──▶ Posted ──▶ Completed | Failed      gone: acknowledged and its write over
//!              ▲                                              │
//!              └────────── adopt: a new inbox takes the unacknowledged ones again, under the same numbers
//! ```
//!
//! A packet is written once into one inbox. Its bytes in the shadow do not change until it is acknowledged and its
//! write has completed or failed.

use std::collections::VecDeque;

use super::super::bound::{INLINES_MAX, PACKETS_MAX};
use super::super::frame::{Frame, INLINE_WORDS, Inline};
use super::super::ids::{Moment, Name, PacketNumber};
use super::super::memory::{Lease, MemoryId, Payload, ShadowMemory, Shadows};
use super::super::message::MessageId;
use super::super::packet::{HEADER_BYTES, HEADER_WORDS, Header, Ring, START_BYTES, check};
use crate::bits::count32;

/// An inline message in a packet: the local name of its connection, and the connection's id for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub from: Name,
    pub message: MessageId,
}

/// The write of a packet, to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketWrite {
    pub number: PacketNumber,
    pub memory: MemoryId,
    pub to: Lease,
    /// Offset of the packet, the same in the shadow and in the inbox.
    pub at: u32,
    /// Exactly the bytes that the check covers.
    pub bytes: u32,
}

/// The peer acknowledged a packet that was never posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverSent;

/// The old shadow after an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    pub memory: MemoryId,
    pub to: Lease,
    /// Writes from it that have not completed.
    pub writes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sealed,
    Posted,
    Completed,
    /// The packet's write failed. Unless the packet is acknowledged, it waits for a new inbox.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    at: u32,
    /// Bytes of the ring that the packet takes.
    span: u32,
    /// Bytes that are written.
    bytes: u32,
    state: State,
    pad: bool,
    posted_at: Moment,
    /// Its inline messages, as a range of numbers. The channel numbers them from 0, wrapping; `sent_gone` is the number of
    /// the first in `sent`.
    inlines: u32,
    inlines_end: u32,
    /// The inline messages were reported to their connections: they need no retransmission.
    reported: bool,
}

/// The packet to which frames are appended, at the head.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Its length so far, with the header.
    bytes: u32,
    /// The most bytes that the packet may have.
    room: u32,
    /// The number of its first inline message.
    inlines: u32,
}

/// Where the next packet can go.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Length of the pad that ends the lap, or 0.
    pad: u32,
    room: u32,
}

/// The shadow of the peer's inbox.
#[derive(Debug)]
pub struct Shadow {
    ring: Ring,
    /// The inbox that is written into, and the memory of this shadow; None before the peer's first HELLO.
    target: Option<(Lease, MemoryId)>,
    /// Where the next packet starts, below the ring's length.
    head: u32,
    /// Bytes from the oldest record to the head.
    used: u32,
    /// The number of the next packet to seal.
    next: PacketNumber,
    /// The number of the next packet to post.
    unposted: PacketNumber,
    acknowledged: PacketNumber,
    /// The acknowledgement that the next packet carries.
    consumed: PacketNumber,
    records: VecDeque<Record>,
    open: Option<Open>,
    sent: VecDeque<Sent>,
    /// How many inline messages were removed at the front of `sent`.
    sent_gone: u32,
}

/// How many inline messages a ring can hold, at most [`INLINES_MAX`].
fn inlines_max(ring: Ring) -> usize {
    INLINES_MAX.min(ring.words() / INLINE_WORDS)
}

impl Shadow {
    /// `first` is the number of the first packet: 1, except in tests of the wrap.
    pub fn new(ring: Ring, first: PacketNumber) -> Self {
        Self {
            ring,
            target: None,
            head: 0,
            used: 0,
            next: first,
            unposted: first,
            acknowledged: first.plus(u32::MAX),
            consumed: first.plus(u32::MAX),
            records: VecDeque::with_capacity(PACKETS_MAX),
            open: None,
            sent: VecDeque::with_capacity(inlines_max(ring)),
            sent_gone: 0,
        }
    }

    /// Heap memory besides the shadow's own.
    pub(super) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>() + self.sent.capacity() * size_of::<Sent>()
    }

    pub fn target(&self) -> Option<&Lease> {
        self.target.as_ref().map(|(lease, _)| lease)
    }

    pub fn memory(&self) -> Option<MemoryId> {
        self.target.map(|(_, memory)| memory)
    }

    pub fn acknowledged(&self) -> PacketNumber {
        self.acknowledged
    }

    /// The number of the open packet, or of the next one.
    pub fn next(&self) -> PacketNumber {
        self.next
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The number of packets that are not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.next.distance(self.acknowledged) - 1
    }

    /// Whether a sealed packet is not posted yet.
    pub fn is_backed_up(&self) -> bool {
        self.unposted != self.next
    }

    /// The oldest packet, if its write was refused or has not completed.
    pub fn writing(&self) -> Option<PacketNumber> {
        let writing = |one: &&Record| matches!(one.state, State::Sealed | State::Posted);
        self.records.front().filter(writing).map(|_| self.first())
    }

    /// The last packet up to which all writes have completed.
    pub fn completed(&self) -> PacketNumber {
        let done = self.records.iter().take_while(|record| record.state == State::Completed);
        self.first().plus(count32(done.count())).plus(u32::MAX)
    }

    /// The length in words of the longest frame that fits now, into the open packet or a new one.
    #[inline]
    pub fn room_words(&self) -> usize {
        let bytes = match &self.open {
            Some(open) => open.room - open.bytes,
            None if self.target.is_none() || self.records.len() + 2 > PACKETS_MAX => 0,
            None => {
                let longest = self.ring.packet_bytes_max();
                let free = self.ring.bytes() - self.used;
                let rest = self.ring.bytes() - self.head;
                let here = rest.min(longest).min(free);
                let behind_pad = if free > rest { longest.min(free - rest) } else { 0 };
                here.max(behind_pad).max(HEADER_BYTES) - HEADER_BYTES
            }
        };
        bytes as usize / 8
    }

    /// The length in words of the longest INLINE that fits now, with its payload.
    #[inline]
    pub fn inline_room_words(&self) -> usize {
        if self.sent.len() < INLINES_MAX { self.room_words() } else { 0 }
    }

    /// Appends a frame to the open packet, or to a new one. False if it does not fit.
    pub fn append<S: ShadowMemory>(&mut self, memory: &mut S, frame: &Frame) -> bool {
        let Some(mut word) = self.reserve(memory, frame.words()) else { return false };
        frame.encode(|value| {
            memory.store(word, value);
            word += 1;
        });
        true
    }

    /// Appends an INLINE. The caller must copy the payload to the returned place at once.
    #[inline]
    pub fn append_inline<S: ShadowMemory>(
        &mut self,
        memory: &mut S,
        inline: &Inline,
        sent: Sent,
    ) -> Option<Payload> {
        if self.sent.len() == INLINES_MAX {
            return None;
        }
        let payload = inline.payload_words();
        let mut word = self.reserve(memory, INLINE_WORDS + payload)?;
        if payload > 0 {
            // The payload's last word is sent whole, so its padding must be zero.
            memory.store(word + INLINE_WORDS + payload - 1, 0);
        }
        inline.encode(|value| {
            memory.store(word, value);
            word += 1;
        });
        self.sent.push_back(sent);
        Some(Payload { word, bytes: usize::from(inline.len) })
    }

    /// Reserves `words` words in the open packet, or in a new one. Returns the first.
    #[inline]
    fn reserve<S: ShadowMemory>(&mut self, memory: &mut S, words: usize) -> Option<usize> {
        let bytes = count32(words * 8);
        if self.open.is_none() {
            self.open_for(memory, bytes)?;
        }
        let open = self.open.as_mut()?;
        if open.room - open.bytes < bytes {
            return None;
        }
        let word = (self.head + open.bytes) as usize / 8;
        open.bytes += bytes;
        Some(word)
    }

    /// The place of a new packet with a frame of `bytes` bytes.
    #[inline]
    fn place(&self, bytes: u32) -> Option<Place> {
        self.target?;
        // A pad may come before the packet.
        if self.records.len() + 2 > PACKETS_MAX {
            return None;
        }
        let need = HEADER_BYTES + bytes;
        let longest = self.ring.packet_bytes_max();
        let free = self.ring.bytes() - self.used;
        let rest = self.ring.bytes() - self.head;
        if need <= rest.min(longest).min(free) {
            Some(Place { pad: 0, room: rest.min(longest).min(free) })
        } else if need > rest && need <= longest && free >= rest && free - rest >= need {
            Some(Place { pad: rest, room: longest.min(free - rest) })
        } else {
            None
        }
    }

    fn open_for<S: ShadowMemory>(&mut self, memory: &mut S, bytes: u32) -> Option<()> {
        let place = self.place(bytes)?;
        let inlines = self.sent_gone.wrapping_add(count32(self.sent.len()));
        if place.pad > 0 {
            let record = Record { inlines, inlines_end: inlines, ..self.pad(place.pad) };
            self.push(memory, record);
        }
        self.open = Some(Open { bytes: HEADER_BYTES, room: place.room, inlines });
        Some(())
    }

    fn pad(&self, span: u32) -> Record {
        Record {
            at: self.head,
            span,
            bytes: HEADER_BYTES,
            state: State::Sealed,
            pad: true,
            posted_at: Moment::default(),
            inlines: 0,
            inlines_end: 0,
            reported: true,
        }
    }

    /// Sets the acknowledgement in packets that are sealed from now on.
    #[inline]
    pub fn set_acknowledgement(&mut self, consumed: PacketNumber) {
        self.consumed = consumed;
    }

    /// Seals the open packet. False if there is none.
    #[inline]
    pub fn seal<S: ShadowMemory>(&mut self, memory: &mut S) -> bool {
        let Some(open) = self.open.take() else { return false };
        let record = Record {
            at: self.head,
            span: open.bytes.next_multiple_of(START_BYTES),
            bytes: open.bytes,
            state: State::Sealed,
            pad: false,
            posted_at: Moment::default(),
            inlines: open.inlines,
            inlines_end: self.sent_gone.wrapping_add(count32(self.sent.len())),
            reported: false,
        };
        self.push(memory, record);
        true
    }

    /// Writes the header of a record's packet, and appends the record.
    #[inline]
    fn push<S: ShadowMemory>(&mut self, memory: &mut S, record: Record) {
        let Some((lease, _)) = self.target else { return };
        let Record { at, span, bytes, pad, .. } = record;
        // The header of a pad has the length of the rest of the lap, although only the header is written.
        let bytes = if pad { span } else { bytes };
        let header = Header { number: self.next, bytes, acknowledged: self.consumed, pad };
        let (start, words) = (at as usize / 8, header.words());
        let sum = check(
            lease.nonce,
            words,
            header.written_words(),
            |word| memory.load(start + word),
            |word| memory.load_eight(start + word),
        );
        memory.store(start, sum);
        memory.store(start + 1, words[0]);
        memory.store(start + 2, words[1]);
        self.used += span;
        self.head += span;
        if self.head == self.ring.bytes() {
            self.head = 0;
        }
        self.next = self.next.plus(1);
        self.records.push_back(record);
    }

    /// The next packet to post. It stays the next one until [`posted`](Self::posted).
    #[inline]
    pub fn next_post(&self) -> Option<PacketWrite> {
        if !self.is_backed_up() {
            return None;
        }
        let (to, memory) = self.target?;
        let record = self.record(self.unposted)?;
        Some(PacketWrite { number: self.unposted, memory, to, at: record.at, bytes: record.bytes })
    }

    /// Fetches the place of the next packet into the cache, which may have evicted it since its use in the last lap.
    #[inline]
    pub fn prefetch<S: ShadowMemory>(&self, memory: &S) {
        memory.prefetch(self.head as usize / 8);
    }

    #[inline]
    pub fn posted(&mut self, now: Moment) {
        let number = self.unposted;
        if let Some(record) = self.record_mut(number) {
            record.state = State::Posted;
            record.posted_at = now;
            self.unposted = number.plus(1);
        }
    }

    /// A write into the present inbox has completed or failed. Calls `left` for each inline message that needs no
    /// retransmission any more.
    #[inline]
    pub fn wrote(&mut self, number: PacketNumber, well: bool, left: impl FnMut(Sent)) {
        let Some(record) = self.record_mut(number).filter(|record| record.state == State::Posted)
        else {
            return;
        };
        record.state = if well { State::Completed } else { State::Failed };
        if well {
            self.report(number, left);
        }
        self.free();
    }

    /// The peer has consumed all packets up to `number`. Returns when that packet was posted, unless it was
    /// acknowledged before.
    #[inline]
    pub fn acknowledge(
        &mut self,
        number: PacketNumber,
        mut left: impl FnMut(Sent),
    ) -> Result<Option<Moment>, NeverSent> {
        let news = number.distance(self.acknowledged);
        // An older acknowledgement than the known one has no effect.
        if news == 0 || news.cast_signed() < 0 {
            return Ok(None);
        }
        if news >= self.unposted.distance(self.acknowledged) {
            return Err(NeverSent);
        }
        while self.acknowledged != number {
            self.acknowledged = self.acknowledged.plus(1);
            self.report(self.acknowledged, &mut left);
        }
        let posted_at = self.record(number).map(|record| record.posted_at);
        self.free();
        Ok(posted_at)
    }

    #[inline]
    fn report(&mut self, number: PacketNumber, mut left: impl FnMut(Sent)) {
        let gone = self.sent_gone;
        let Some(record) = self.record_mut(number).filter(|record| !record.reported) else {
            return;
        };
        record.reported = true;
        let (from, to) = (record.inlines.wrapping_sub(gone), record.inlines_end.wrapping_sub(gone));
        for index in from..to {
            left(self.sent[index as usize]);
        }
    }

    /// Frees records at the front that are acknowledged and whose write has completed or failed.
    #[inline]
    fn free(&mut self) {
        while let Some(record) = self.records.front() {
            let unacknowledged = self.unacknowledged() as usize >= self.records.len();
            let over = matches!(record.state, State::Completed | State::Failed);
            if unacknowledged || !over {
                break;
            }
            self.used -= record.span;
            let inlines = record.inlines_end.wrapping_sub(record.inlines);
            self.sent_gone = record.inlines_end;
            self.sent.drain(..inlines as usize);
            self.records.pop_front();
        }
    }

    /// Whether the write of a packet is in flight.
    pub fn is_writing(&self) -> bool {
        self.records.iter().any(|record| record.state == State::Posted)
    }

    /// Drops all packets, and returns the memory.
    pub fn give_up(&mut self) -> Option<MemoryId> {
        (self.records, self.sent, self.open) = (VecDeque::new(), VecDeque::new(), None);
        self.target.take().map(|(_, memory)| memory)
    }

    /// Continues in a new inbox: seals the open packet, and retransmits the packets after `consumed` under their old
    /// numbers, from a new shadow. Pads become empty packets.
    pub fn adopt<M: Shadows>(
        &mut self,
        memories: &mut M,
        (lease, memory): (Lease, MemoryId),
        consumed: PacketNumber,
        left: impl FnMut(Sent),
    ) -> Result<Option<Abandoned>, NeverSent> {
        if let Some((_, old)) = self.target {
            self.seal(memories.shadow(old));
        }
        self.acknowledge(consumed, left)?;
        let before = self.target.replace((lease, memory));
        let Some((to, old)) = before else { return Ok(None) };
        let posted = |record: &&Record| record.state == State::Posted;
        let writes = count32(self.records.iter().filter(posted).count());
        let again = self.unacknowledged() as usize;
        while self.records.len() > again {
            // The packet is acknowledged; its write continues from the old shadow.
            self.records.pop_front();
        }
        if let Some(first) = self.records.front() {
            let gone = first.inlines.wrapping_sub(self.sent_gone);
            self.sent_gone = first.inlines;
            self.sent.drain(..gone as usize);
        } else {
            self.sent_gone = self.sent_gone.wrapping_add(count32(self.sent.len()));
            self.sent.clear();
        }
        self.next = self.first();
        self.unposted = self.next;
        (self.head, self.used) = (0, 0);
        for _ in 0..again {
            let Some(record) = self.records.pop_front() else { break };
            let (from, at) = (record.at as usize / 8, self.head as usize / 8);
            for word in HEADER_WORDS..record.bytes as usize / 8 {
                let value = memories.shadow(old).load(from + word);
                memories.shadow(memory).store(at + word, value);
            }
            let span = record.bytes.next_multiple_of(START_BYTES);
            let state = State::Sealed;
            let moved = Record { at: self.head, span, state, pad: false, ..record };
            self.push(memories.shadow(memory), moved);
        }
        Ok(Some(Abandoned { memory: old, to, writes }))
    }

    /// The number of the oldest record.
    #[inline]
    fn first(&self) -> PacketNumber {
        self.next.plus(count32(self.records.len()).wrapping_neg())
    }

    #[inline]
    fn record(&self, number: PacketNumber) -> Option<&Record> {
        self.records.get(number.distance(self.first()) as usize)
    }

    #[inline]
    fn record_mut(&mut self, number: PacketNumber) -> Option<&mut Record> {
        let index = number.distance(self.first()) as usize;
        self.records.get_mut(index)
    }
}
