//! The schemas that ranks know of each other's types: a schema is sent to each peer once, for its error messages.

use std::collections::{HashMap, HashSet};

use postcard_schema::Schema;
use postcard_schema::key::Key;
use postcard_schema::schema::owned::OwnedNamedType;

use super::rooms::Rooms;
use crate::error::shown;

/// A type's fingerprint.
pub(super) fn fingerprint<O: Schema>() -> u64 {
    u64::from_le_bytes(const { Key::for_path::<O>("") }.to_bytes())
}

/// The schemas that ranks have sent each other.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    /// Peers, and the fingerprints of this rank's types whose schemas they have.
    pub(super) sent: HashSet<(usize, u64)>,
    /// The types of peers by their fingerprints, for error messages.
    known: HashMap<(usize, u64), String>,
    /// The number of the next packet with long leaves.
    pub(super) serial: u64,
    pub(super) rooms: Rooms,
}

/// The most schemas that a job keeps; for further types errors name the fingerprint only.
const KNOWN_MAX: usize = 4096;

impl Schemas {
    pub(super) fn learn(&mut self, peer: usize, fingerprint: u64, schema: &[u8]) {
        if !schema.is_empty() && self.known.len() < KNOWN_MAX {
            self.known.insert((peer, fingerprint), shown(&String::from_utf8_lossy(schema)));
        }
    }

    pub(super) fn name(&self, peer: usize, fingerprint: u64) -> String {
        let known = self.known.get(&(peer, fingerprint));
        known.cloned().unwrap_or_else(|| format!("schema {fingerprint:016x}"))
    }
}

/// A type as text.
pub(super) fn text<O: Schema>() -> String {
    format!("{}: {}", O::SCHEMA.name, OwnedNamedType::from(O::SCHEMA).to_pseudocode())
}

#[cfg(test)]
mod tests {
    use super::super::leaf::Leaf;
    use super::*;

    #[test]
    fn types_that_differ_have_fingerprints_that_differ() {
        let all = [
            fingerprint::<Leaf<f32>>(),
            fingerprint::<Leaf<f64>>(),
            fingerprint::<Vec<f64>>(),
            fingerprint::<Vec<f32>>(),
            fingerprint::<(f32, f64)>(),
            fingerprint::<u64>(),
        ];
        assert_eq!(HashSet::from(all).len(), all.len());
    }
}
