//! The writing half of a channel: frames into the open packet, packets into the shadow, the shadow into the peer's inbox.
//!
//! ```text
//!  record:  (open) ──seal──▶ Sealed ──posted──▶ Posted ──▶ Completed | Failed      gone: acknowledged and its write over
//!              ▲                                              │
//!              └────────── adopt: a new inbox takes the unacknowledged ones again, under the same numbers
//! ```
//!
//! A packet is written once into one inbox. Its bytes here are stable until it is acknowledged and its write is over.

use std::collections::VecDeque;

use super::super::bound::{INLINES_MAX, PACKETS_MAX};
use super::super::frame::{Frame, INLINE_WORDS, Inline};
use super::super::ids::{Moment, Name, PacketNumber};
use super::super::memory::{Lease, MemoryId, Payload, ShadowMemory, Shadows};
use super::super::message::MessageId;
use super::super::packet::{HEADER_BYTES, HEADER_WORDS, Header, Ring, START_BYTES, check};
use crate::bits::count32;

/// An inline message in a packet: the connection's own name, and what it calls the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub from: Name,
    pub message: MessageId,
}

/// A write of a packet, to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketWrite {
    pub number: PacketNumber,
    pub memory: MemoryId,
    pub to: Lease,
    /// Where it starts, in the shadow and in the inbox alike.
    pub at: u32,
    /// Exactly what the check covers.
    pub bytes: u32,
}

/// The peer acknowledges what was never posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverSent;

/// What an adoption leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    pub memory: MemoryId,
    pub to: Lease,
    /// Writes from it that have not ended.
    pub writes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sealed,
    Posted,
    Completed,
    /// Its write failed: if it is not acknowledged, it waits for a new inbox.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    at: u32,
    /// What it takes of the ring.
    span: u32,
    /// What is written of it.
    bytes: u32,
    state: State,
    pad: bool,
    posted_at: Moment,
    /// Its inline messages, by their count since the first.
    inlines: u32,
    inlines_end: u32,
    /// Their connections know that they have left.
    reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    bytes: u32,
    room: u32,
    inlines: u32,
}

/// Where the next packet can go.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// What remains of the lap, if a pad must end it.
    pad: u32,
    room: u32,
}

/// The shadow of the peer's inbox.
#[derive(Debug)]
pub struct Shadow {
    ring: Ring,
    target: Option<(Lease, MemoryId)>,
    /// Where the next packet starts, below the ring's length.
    head: u32,
    /// From the oldest record to the head.
    used: u32,
    /// The number of the next packet to be sealed.
    next: PacketNumber,
    /// The number of the next packet to be posted.
    unposted: PacketNumber,
    acknowledged: PacketNumber,
    /// What the next packet acknowledges.
    consumed: PacketNumber,
    records: VecDeque<Record>,
    open: Option<Open>,
    sent: VecDeque<Sent>,
    /// How many inline messages left `sent` at its front.
    sent_gone: u32,
}

/// How many inline messages a ring can hold, within the bound.
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

    /// What it keeps beside itself and the shadow's memory.
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

    /// The number of the packet that is open, or will be next.
    pub fn next(&self) -> PacketNumber {
        self.next
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Packets that no acknowledgement covers.
    pub fn unacknowledged(&self) -> u32 {
        self.next.distance(self.acknowledged) - 1
    }

    /// Whether a sealed packet waits to be posted.
    pub fn is_backed_up(&self) -> bool {
        self.unposted != self.next
    }

    /// Whether the write of the oldest unacknowledged packet was not taken, or has not ended.
    pub fn is_writing(&self) -> bool {
        self.records.front().is_some_and(|one| matches!(one.state, State::Sealed | State::Posted))
    }

    /// The last packet up to which all writes have completed.
    pub fn completed(&self) -> PacketNumber {
        let done = self.records.iter().take_while(|record| record.state == State::Completed);
        self.first().plus(count32(done.count())).plus(u32::MAX)
    }

    /// How many words a frame may have to find room now, in the open packet or in a new one.
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

    /// The same for an INLINE with its payload.
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

    /// Appends an INLINE. Its payload is to be copied to the place that it answers, at once.
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
            // The bytes behind the payload's end travel, too.
            memory.store(word + INLINE_WORDS + payload - 1, 0);
        }
        inline.encode(|value| {
            memory.store(word, value);
            word += 1;
        });
        self.sent.push_back(sent);
        Some(Payload { word, bytes: usize::from(inline.len) })
    }

    /// Takes so many words of the open packet, or of a new one.
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

    /// Where a packet with a frame of so many bytes can go.
    #[inline]
    fn place(&self, bytes: u32) -> Option<Place> {
        self.target?;
        // A pad may come before it.
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

    /// What packets acknowledge that are sealed from now on.
    #[inline]
    pub fn tell(&mut self, consumed: PacketNumber) {
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

    /// Writes the header of a record's packet, and takes the record up.
    #[inline]
    fn push<S: ShadowMemory>(&mut self, memory: &mut S, record: Record) {
        let Some((lease, _)) = self.target else { return };
        let Record { at, span, bytes, pad, .. } = record;
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

    #[inline]
    pub fn posted(&mut self, now: Moment) {
        let number = self.unposted;
        if let Some(record) = self.record_mut(number) {
            record.state = State::Posted;
            record.posted_at = now;
            self.unposted = number.plus(1);
        }
    }

    /// A write into the present inbox ended. `left` hears of inline messages that need no help any more.
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

    /// The peer has consumed all packets up to `number`. Answers when the newest of them was posted, if that is news.
    #[inline]
    pub fn acknowledge(
        &mut self,
        number: PacketNumber,
        mut left: impl FnMut(Sent),
    ) -> Result<Option<Moment>, NeverSent> {
        let news = number.distance(self.acknowledged);
        // An acknowledgement that was overtaken says nothing.
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

    /// Frees records at the front that are acknowledged and whose write is over.
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

    /// No write of this shadow is in flight any more, however it ended.
    pub fn writes_ended(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.state == State::Posted) {
            record.state = State::Failed;
        }
        self.free();
    }

    /// Goes on in a new inbox: the packets behind `consumed` again, under their numbers, from a new shadow. Pads become
    /// empty packets. The open packet is sealed.
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
            // Acknowledged, and its write goes on in the old shadow.
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
