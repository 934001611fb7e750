//! The receiving half of a channel: reads packets in order from our inbox.
//!
//! Each word of headers and control frames is loaded once, since the peer may change it. The payload of an INLINE is
//! copied from the inbox directly to its destination. A consumed packet is overwritten before it is acknowledged.

use super::super::frame::{Frame, Malformed};
use super::super::ids::PacketNumber;
use super::super::memory::{InboxMemory, Lease, MemoryId, Payload};
use super::super::packet::{HEADER_WORDS, Header, POISON, Ring};

/// The inbox that is lent at present.
#[derive(Debug)]
pub struct Inbox {
    ring: Ring,
    lease: Lease,
    memory: MemoryId,
    /// Where the next packet starts.
    at: u32,
    consumed: PacketNumber,
    /// The last packet consumed in the previous inbox.
    before: PacketNumber,
}

impl Inbox {
    /// A new inbox. `consumed`: the last packet consumed in the previous one. Fills the memory with [`POISON`], and sets its cell to
    /// `acknowledged`, the packets that the peer has already acknowledged.
    pub fn new<M: InboxMemory>(
        ring: Ring,
        lease: Lease,
        (id, memory): (MemoryId, &mut M),
        consumed: PacketNumber,
        acknowledged: PacketNumber,
    ) -> Self {
        memory.fill(0..ring.words(), POISON);
        memory.store(ring.words(), lease.nonce.cell(acknowledged));
        Self { ring, lease, memory: id, at: 0, consumed, before: consumed }
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    pub fn memory(&self) -> MemoryId {
        self.memory
    }

    pub fn consumed(&self) -> PacketNumber {
        self.consumed
    }

    /// Whether a packet has come in this inbox.
    pub fn has_consumed(&self) -> bool {
        self.consumed != self.before
    }

    /// Where the next packet starts.
    pub fn position(&self) -> u32 {
        self.at
    }

    /// The acknowledgement that the peer last wrote into the cell behind the inbox. It may be older than the latest known one. None: the
    /// last write was a late one for an earlier inbox in this memory.
    #[inline]
    pub fn cell<M: InboxMemory>(&self, memory: &M) -> Option<PacketNumber> {
        self.lease.nonce.consumed(memory.load(self.ring.words()))
    }

    /// The next packet, if all of it has landed.
    #[inline]
    pub fn next<M: InboxMemory>(&self, memory: &M) -> Option<PacketReader> {
        let number = self.consumed.plus(1);
        let header = Header::validate(memory, self.ring, self.at, number, self.lease.nonce)?;
        let start = self.at as usize / 8;
        let end = start + header.written_words();
        Some(PacketReader { header, start, word: start + HEADER_WORDS, end })
    }

    /// Overwrites a packet that was consumed, and advances.
    #[inline]
    pub fn consume<M: InboxMemory>(&mut self, memory: &mut M, packet: &PacketReader) {
        memory.fill(packet.start..packet.end, POISON);
        self.consumed = packet.header.number;
        self.at += packet.header.span();
        if self.at == self.ring.bytes() {
            self.at = 0;
        }
    }
}

/// A packet that has arrived, and how far it was read.
#[derive(Clone, Copy, Debug)]
pub struct PacketReader {
    header: Header,
    start: usize,
    word: usize,
    end: usize,
}

impl PacketReader {
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next frame, and where its payload is.
    #[inline]
    pub fn next_frame<M: InboxMemory>(
        &mut self,
        memory: &M,
    ) -> Result<Option<(Frame, Payload)>, Malformed> {
        if self.word == self.end {
            return Ok(None);
        }
        let (start, first) = (self.word, memory.load(self.word));
        let words = Frame::words_of(first)?;
        if words > self.end - start {
            return Err(Malformed::Short);
        }
        let frame = Frame::read(first, |word| memory.load(start + word))?;
        self.word += words;
        let mut payload = Payload { word: self.word, bytes: 0 };
        if let Frame::Inline(inline) = &frame {
            payload.bytes = usize::from(inline.len);
            if inline.payload_words() > self.end - self.word {
                return Err(Malformed::Short);
            }
            self.word += inline.payload_words();
        }
        Ok(Some((frame, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Lines;
    use crate::ids::Name;
    use crate::line::Line;
    use crate::memory::Words;

    #[test]
    fn a_frame_that_would_end_behind_its_packet_is_short() {
        let frame = Frame::Withdraw(Lines { to: Name::default(), first: Line::FIRST, set: 1 });
        let mut words = vec![0; HEADER_WORDS];
        frame.encode(|word| words.push(word));
        let (all, memory) = (words.len(), Words(words));
        let read = |end: usize| {
            let number = PacketNumber::new(1);
            let bytes = crate::bits::count32(8 * end);
            let header = Header { number, bytes, acknowledged: number, pad: false };
            let mut packet = PacketReader { header, start: 0, word: HEADER_WORDS, end };
            packet.next_frame(&memory).map(|read| read.map(|(frame, _)| frame))
        };
        assert_eq!(read(all), Ok(Some(frame)));
        assert_eq!(read(all - 1), Err(Malformed::Short));
    }
}
