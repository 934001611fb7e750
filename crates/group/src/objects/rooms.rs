//! Memory of earlier packets, in which objects are encoded and packets are built.

use serde::Serialize;

use super::packet;
use super::parts::{Outbox, TOGETHER, collecting};

/// Memory of earlier packets for the next one. Otherwise the C library gives it back to the system and fetches it again, page by page, for
/// each object of tens of KiB.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// Memory for the encoding.
    body: Vec<u8>,
    /// Memory for short leaves; a packet that has any is built in this memory.
    inline: Vec<u8>,
}

const BODY_MAX: usize = 64 << 10;
/// The most memory that is kept in bytes: short leaves and the rest of a packet, with a reserve for the growth of the memory.
const INLINE_MAX: usize = 3 * TOGETHER;

/// A packet, in the memory of one of the rooms.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) bytes: Vec<u8>,
    has_inline: bool,
}

impl Rooms {
    /// The packet of an object whose encoding is the body's first `encoded` bytes.
    pub(super) fn seal(
        &mut self,
        outbox: &mut Outbox,
        encoded: usize,
        schema: &str,
        serial: u64,
    ) -> Sealed {
        self.inline = std::mem::take(&mut outbox.inline);
        let inline = self.inline.len();
        let mut bytes = if inline == 0 {
            self.body.truncate(encoded);
            std::mem::take(&mut self.body)
        } else {
            self.inline.extend_from_slice(&self.body[..encoded]);
            if self.body.capacity() > BODY_MAX {
                self.body = Vec::new();
            }
            std::mem::take(&mut self.inline)
        };
        packet::seal(&mut bytes, inline, &outbox.long, schema, serial);
        Sealed { bytes, has_inline: inline > 0 }
    }

    /// Keeps the memory of a packet that was sent, unless it is very long.
    pub(super) fn keep(&mut self, Sealed { mut bytes, has_inline }: Sealed) {
        let (room, max) =
            if has_inline { (&mut self.inline, INLINE_MAX) } else { (&mut self.body, BODY_MAX) };
        if bytes.capacity() <= max {
            bytes.clear();
            *room = bytes;
        }
    }
}

/// Encodes into the start of `rooms.body`, which grows to the object's length if it is too short; returns the number of encoded bytes.
/// Short leaves go to `rooms.inline`.
///
/// An encoder into a buffer that grows would keep its position in memory and not in a register, and take twice as long for short fields.
pub(super) fn encode<O: Serialize>(
    object: &O,
    rooms: &mut Rooms,
) -> (postcard::Result<usize>, Outbox) {
    let Rooms { body, inline } = rooms;
    let encode = |body: &mut [u8], inline| {
        collecting(inline, || postcard::to_slice(object, body).map(|encoded| encoded.len()))
    };
    body.resize(body.capacity(), 0);
    let ended = encode(body, std::mem::take(inline));
    if !matches!(ended, (Err(postcard::Error::SerializeBufferFull), _)) {
        return ended;
    }
    let size = || postcard::experimental::serialized_size(object);
    let (size, outbox) = collecting(ended.1.inline, size);
    match size {
        Ok(size) => {
            body.resize(size, 0);
            encode(body, outbox.inline)
        }
        Err(error) => (Err(error), outbox),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::super::block::Block;
    use super::super::landing::Landing;
    use super::super::leaf::Leaf;
    use super::super::parts::{Inbox, dealing};
    use super::*;
    use crate::loader::DataType;

    #[test]
    fn an_encoding_longer_than_its_room_has_each_array_once() {
        let object =
            (Leaf::from(vec![1.0_f64; 10_000]), vec![7_u64; 3000], Leaf::from(vec![2_u8; 100]));
        for room in [0, 1, 512, 4000, 10_000] {
            let mut rooms = Rooms { body: vec![0xFF; room], inline: vec![0xFF; room] };
            let (encoded, outbox) = encode(&object, &mut rooms);
            let lens: Vec<_> = outbox.long.iter().map(|leaf| leaf.place.len()).collect();
            assert_eq!((lens, outbox.inline.len()), (vec![80_000], 100));
            let long =
                VecDeque::from([Landing::copy(DataType::F64, outbox.long[0].place).unwrap()]);
            let block = Some(Arc::new(Block::copy(&outbox.inline).unwrap()));
            let inbox = Inbox { block, inline: 100, at: 0, long };
            let bytes = &rooms.body[..encoded.unwrap()];
            let (decoded, all) = dealing(inbox, || postcard::from_bytes(bytes));
            assert_eq!((decoded.as_ref(), all), (Ok(&object), true));
        }
    }

    #[test]
    fn the_memory_of_a_packet_is_kept_unless_it_is_very_long() {
        let leaf = |bytes: usize| Leaf::from(vec![1.0_f64; bytes / 8]);
        let kept = |object: &(Vec<u8>, Vec<Leaf<f64>>)| {
            let mut rooms = Rooms::default();
            let (encoded, mut outbox) = encode(object, &mut rooms);
            let sealed = rooms.seal(&mut outbox, encoded.unwrap(), "", 1);
            rooms.keep(sealed);
            [rooms.body.capacity() > 0, rooms.inline.capacity() > 0]
        };
        let numbers = |bytes: usize| vec![7_u8; bytes];
        assert_eq!(kept(&(numbers(8), vec![leaf(TOGETHER)])), [true, true]);
        assert_eq!(kept(&(numbers(8), vec![leaf(TOGETHER + 8)])), [true, false]);
        assert_eq!(kept(&(numbers(8), vec![leaf(4 << 10); 100])), [true, false]);
        assert_eq!(kept(&(numbers(2 * BODY_MAX), vec![])), [false, false]);
        assert_eq!(kept(&(numbers(2 * BODY_MAX), vec![leaf(800)])), [false, false]);
    }
}
