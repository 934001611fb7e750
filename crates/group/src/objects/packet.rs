//! The packet of an object: the bytes that a group sends before the object's long leaves.
//!
//! ```text
//! short leaves │ encoding │ long leaves: type, count … │ schema as text │ four lengths, serial number
//! ```
//! Short leaves come first, so that they are aligned in the packet, and need not be copied out of it. The receiver checks every length in a
//! packet against the number of bytes that have come.

use std::ops::Range;

use super::parts::Leaving;
use crate::loader::DataType;
use crate::mesh::type_number;

/// A parsed packet: the positions of its parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// The number of bytes of short leaves, which come first.
    pub(super) inline: usize,
    pub(super) body: Range<usize>,
    pub(super) long: Vec<Long>,
    /// Empty if the peer has the schema already.
    pub(super) schema: Range<usize>,
    /// Identifies the long leaves of this packet.
    pub(super) serial: u64,
}

/// A long leaf that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Long {
    pub(super) element: DataType,
    pub(super) is_aligned: bool,
    pub(super) count: usize,
}

const ENTRY: usize = 9;
/// Set in the type number of a leaf that the receiver aligns as a [`Block`](super::block::Block).
const ALIGNED: u8 = 0x80;
const WORDS: usize = 5;
const TRAILER: usize = WORDS * 8;
/// The longest schema that is sent, in bytes. Schemas are for error messages only.
const SCHEMA_BYTES_MAX: usize = 4 << 10;

/// Appends the other parts of a packet to its short leaves, of `inline` bytes, and its body.
pub(super) fn seal(
    bytes: &mut Vec<u8>,
    inline: usize,
    long: &[Leaving],
    schema: &str,
    serial: u64,
) {
    let mut end = schema.len().min(SCHEMA_BYTES_MAX);
    while !schema.is_char_boundary(end) {
        end -= 1;
    }
    let lens = [inline, bytes.len() - inline, long.len(), end].map(|len| len as u64);
    bytes.reserve(long.len() * ENTRY + end + TRAILER);
    for Leaving { element, is_aligned, place, .. } in long {
        bytes.push(type_number(*element) | if *is_aligned { ALIGNED } else { 0 });
        bytes.extend_from_slice(&((place.len() / element.bytes()) as u64).to_le_bytes());
    }
    bytes.extend_from_slice(&schema.as_bytes()[..end]);
    for word in lens.into_iter().chain([serial]) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// Parses a packet. None: the bytes are no packet, the schema is longer than [`SCHEMA_BYTES_MAX`], or the long leaves are together longer
/// than `limit` bytes.
pub(super) fn open(bytes: &[u8], limit: usize) -> Option<Packet> {
    let (rest, trailer) = bytes.split_last_chunk::<TRAILER>()?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(trailer.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [inline, body, long, schema, serial] = words;
    let len = |word: u64| usize::try_from(word).ok();
    let inline = len(inline)?;
    let body = inline..inline.checked_add(len(body)?)?;
    let table = body.end..body.end.checked_add(len(long)?.checked_mul(ENTRY)?)?;
    let schema = len(schema).filter(|len| *len <= SCHEMA_BYTES_MAX)?;
    let schema = table.end..table.end.checked_add(schema)?;
    if schema.end != rest.len() {
        return None;
    }
    let mut total = 0_usize;
    let entry = |entry: &[u8]| {
        let (number, count) = entry.split_first()?;
        let (is_aligned, number) = (number & ALIGNED != 0, number & !ALIGNED);
        let element = *DataType::ALL.get(usize::from(number))?;
        let count = usize::try_from(u64::from_le_bytes(count.try_into().ok()?)).ok()?;
        total = total.checked_add(count.checked_mul(element.bytes())?)?;
        (total <= limit).then_some(Long { element, is_aligned, count })
    };
    let long: Option<Vec<_>> = rest.get(table)?.chunks_exact(ENTRY).map(entry).collect();
    Some(Packet { inline, body, long: long?, schema, serial })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn sample() -> Vec<u8> {
        let long = vec![Leaving::new(&Arc::new(vec![7.0_f64; 5]))];
        let mut bytes = vec![4, 5, 1, 2, 3];
        seal(&mut bytes, 2, &long, "struct A", 9);
        bytes
    }

    #[test]
    fn a_packet_opens_as_it_was_sealed_and_its_leaves_are_bounded() {
        let bytes = sample();
        let packet = open(&bytes, 40).unwrap();
        assert_eq!(
            (packet.inline, &bytes[..2], &bytes[packet.body]),
            (2, &[4, 5][..], &[1, 2, 3][..])
        );
        let long = Long { element: DataType::F64, is_aligned: false, count: 5 };
        assert_eq!((packet.long, packet.serial), (vec![long], 9));
        assert_eq!(&bytes[packet.schema], b"struct A");
        assert_eq!(open(&bytes, 39), None);
    }

    #[test]
    fn a_schema_that_is_longer_than_any_that_is_sent_is_refused() {
        let longest = "a".repeat(2 * SCHEMA_BYTES_MAX);
        let mut bytes = Vec::new();
        seal(&mut bytes, 0, &[], &longest, 1);
        assert_eq!(open(&bytes, 0).unwrap().schema.len(), SCHEMA_BYTES_MAX);
        let at = bytes.len() - TRAILER;
        bytes.insert(at, b'a');
        bytes[at + 25..][..8].copy_from_slice(&(SCHEMA_BYTES_MAX as u64 + 1).to_le_bytes());
        assert_eq!(open(&bytes, 0), None);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused_or_stays_in_bounds() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert_eq!(open(&bytes[..len], usize::MAX), None, "cut at {len}");
        }
        let mut seed = 1_u64;
        for round in 0..200_000_usize {
            let mut changed = bytes.clone();
            for _ in 0..=round % 4 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(seed >> 33).unwrap() % changed.len();
                changed[at] = seed.to_le_bytes()[3];
            }
            if let Some(packet) = open(&changed, 1 << 20) {
                let bytes: usize =
                    packet.long.iter().map(|long| long.element.bytes() * long.count).sum();
                assert!(bytes <= 1 << 20 && packet.long.len() <= changed.len());
                assert!(packet.inline <= changed.len() && packet.body.end <= changed.len());
            }
        }
    }
}
