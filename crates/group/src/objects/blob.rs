//! Bytes within an object that are read where they were received.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, NamedType, NamedValue};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::block::ALIGN;
use super::elements::Elements;
use super::parts::{MISSING, STRANGE, sending, taking};
use crate::loader::{DataType, Place};

/// Bytes of an object that stay where they were received, at an address that is a multiple of 64: for formats that are read in place. Long
/// blobs are sent without a copy, as a long [`Leaf`](super::Leaf) is.
#[derive(Clone)]
pub struct Blob(Elements<u8>);

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Elements::own(bytes))
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

impl Schema for Blob {
    const SCHEMA: &'static NamedType = &NamedType {
        name: BLOB,
        ty: &DataModelType::Struct(&[&NamedValue { name: "bytes", ty: u64::SCHEMA }]),
    };
}

/// The schema of a blob.
pub(super) const BLOB: &str = "ironrail::Blob";

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept = sending(|outbox| {
            if !outbox.is_for_spares() {
                outbox.add((DataType::U8, ALIGN), Place::reading(self), || self.0.owner());
            }
        });
        kept.ok_or_else(|| S::Error::custom(STRANGE))?;
        (self.len() as u64).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::try_from(u64::deserialize(deserializer)?).unwrap_or(usize::MAX);
        let found = taking(|inbox| {
            let (block, start) = match inbox.part(ALIGN, count)? {
                Some(start) => (inbox.block(), start),
                None => (Arc::new(inbox.long.pop_front()?.into_block()?), 0),
            };
            let blob = Self(Elements::part(block, start, count));
            (blob.len() == count).then_some(blob)
        });
        found.ok_or_else(|| D::Error::custom(MISSING))
    }
}
