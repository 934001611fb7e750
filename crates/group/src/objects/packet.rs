//! The bytes of an object: what a group sends before its long leaves.
//!
//! ```text
//! encoding │ short leaves │ long leaves: type, count … │ schema as text │ four lengths, serial number
//! ```
//! All of it comes from a peer: every length is held against what is there before anything is made of it.

use super::leaf::{Leaving, Outbox};
use crate::loader::DataType;
use crate::mesh::type_number;

/// A packet that was taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) body: &'a [u8],
    pub(super) inline: &'a [u8],
    /// Types and counts.
    pub(super) long: Vec<(DataType, usize)>,
    /// Empty, where the peer has it already.
    pub(super) schema: &'a [u8],
    /// By which its long leaves are known.
    pub(super) serial: u64,
}

const ENTRY: usize = 9;
const TRAILER: usize = 40;
/// The longest schema that travels; it is for people.
const SCHEMA_BYTES_MAX: usize = 4 << 10;

/// Puts what follows the encoding behind it.
pub(super) fn seal(body: &mut Vec<u8>, outbox: &Outbox, schema: &str, serial: u64) {
    let mut end = schema.len().min(SCHEMA_BYTES_MAX);
    while !schema.is_char_boundary(end) {
        end -= 1;
    }
    let lens = [body.len(), outbox.inline.len(), outbox.long.len(), end].map(|len| len as u64);
    body.extend_from_slice(&outbox.inline);
    for Leaving { element, place, .. } in &outbox.long {
        body.push(type_number(*element));
        body.extend_from_slice(&((place.len() / element.bytes()) as u64).to_le_bytes());
    }
    body.extend_from_slice(&schema.as_bytes()[..end]);
    for word in lens.into_iter().chain([serial]) {
        body.extend_from_slice(&word.to_le_bytes());
    }
}

/// None: these bytes are no packet, or its long leaves are together longer than `limit` bytes.
pub(super) fn open(bytes: &[u8], limit: usize) -> Option<Packet<'_>> {
    let (rest, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER)?)?;
    let words: Vec<u64> = trailer
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        .collect();
    let [body, inline, long, schema, serial] = *words.as_slice() else { return None };
    let len = |word: u64| usize::try_from(word).ok();
    let (body, rest) = rest.split_at_checked(len(body)?)?;
    let (inline, rest) = rest.split_at_checked(len(inline)?)?;
    let (table, schema_bytes) = rest.split_at_checked(len(long)?.checked_mul(ENTRY)?)?;
    if schema_bytes.len() as u64 != schema {
        return None;
    }
    let mut total = 0_usize;
    let entry = |entry: &[u8]| {
        let (number, count) = entry.split_first()?;
        let element = *DataType::ALL.get(usize::from(*number))?;
        let count = usize::try_from(u64::from_le_bytes(count.try_into().ok()?)).ok()?;
        total = total.checked_add(count.checked_mul(element.bytes())?)?;
        (total <= limit).then_some((element, count))
    };
    let long: Option<Vec<_>> = table.chunks_exact(ENTRY).map(entry).collect();
    Some(Packet { body, inline, long: long?, schema: schema_bytes, serial })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = vec![1, 2, 3];
        let long = vec![Leaving::new(&Arc::new(vec![7.0_f64; 5]))];
        seal(&mut bytes, &Outbox { inline: vec![4, 5], short: vec![], long }, "struct A", 9);
        bytes
    }

    #[test]
    fn a_packet_opens_as_it_was_sealed_and_its_leaves_are_bounded() {
        let bytes = sample();
        let packet = open(&bytes, 40).unwrap();
        assert_eq!((packet.body, packet.inline), (&[1, 2, 3][..], &[4, 5][..]));
        assert_eq!((packet.long, packet.serial), (vec![(DataType::F64, 5)], 9));
        assert_eq!(packet.schema, b"struct A");
        assert_eq!(open(&bytes, 39), None);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused_or_stays_in_bounds() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert_eq!(open(&bytes[..len], usize::MAX), None, "cut at {len}");
        }
        let mut seed = 1_u64;
        for turn in 0..200_000_usize {
            let mut changed = bytes.clone();
            for _ in 0..=turn % 4 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(seed >> 33).unwrap() % changed.len();
                changed[at] = seed.to_le_bytes()[3];
            }
            if let Some(packet) = open(&changed, 1 << 20) {
                let bytes: usize =
                    packet.long.iter().map(|(element, count)| element.bytes() * count).sum();
                assert!(bytes <= 1 << 20 && packet.long.len() <= changed.len());
            }
        }
    }
}
