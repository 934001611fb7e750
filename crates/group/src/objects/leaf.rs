//! An array within an object. It is not part of the encoding: the elements of a long one are sent from memory to memory beside the message;
//! short ones come together before it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, NamedType, NamedValue};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::block::Block;
use super::parts::{MISSING, Owner, STRANGE, sending, taking};
use crate::loader::{DataType, Element, Place};

/// An array of an object that a group sends. Beyond 64 KiB it is neither copied nor encoded; only a group's calls can send it.
///
/// Clones share the elements until one of them is changed, and so does a send in progress. Short arrays of a received object refer to the
/// memory that it was received into, and keep that alive.
#[derive(Clone)]
pub struct Leaf<T>(Elements<T>);

/// The elements of an array, and their owner.
#[derive(Clone)]
pub(super) enum Elements<T> {
    Own(Arc<Vec<T>>),
    /// A part of a received object.
    Part {
        block: Arc<Block>,
        start: usize,
        count: usize,
    },
}

impl<T: Element> Leaf<T> {
    /// The elements; copied if they are shared, or are part of an object's memory.
    pub fn into_vec(self) -> Vec<T> {
        match self.0 {
            Elements::Own(own) => Arc::unwrap_or_clone(own),
            Elements::Part { .. } => self.to_vec(),
        }
    }
}

impl<T: Element> Deref for Leaf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_slice()
    }
}

impl<T: Element> DerefMut for Leaf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if let Elements::Part { .. } = self.0 {
            *self = Self::from(self.to_vec());
        }
        match &mut self.0 {
            Elements::Own(own) => Arc::make_mut(own).as_mut_slice(),
            Elements::Part { .. } => &mut [],
        }
    }
}

impl<T> From<Vec<T>> for Leaf<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Elements::Own(Arc::new(elements)))
    }
}

impl<T> Default for Leaf<T> {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl<T: Element> PartialEq for Leaf<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Element> fmt::Debug for Leaf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Element> Schema for Leaf<T> {
    const SCHEMA: &'static NamedType = &NamedType {
        name: NAME,
        ty: &DataModelType::Struct(&[&NamedValue { name: name(T::TYPE), ty: u64::SCHEMA }]),
    };
}

/// The schema of a leaf; its only field is the number of elements, named after their type.
pub(super) const NAME: &str = "ironrail::Leaf";

const fn name(element: DataType) -> &'static str {
    match element {
        DataType::I8 => "i8",
        DataType::U8 => "u8",
        DataType::I16 => "i16",
        DataType::U16 => "u16",
        DataType::I32 => "i32",
        DataType::U32 => "u32",
        DataType::I64 => "i64",
        DataType::U64 => "u64",
        DataType::F16 => "f16",
        DataType::BF16 => "bf16",
        DataType::F32 => "f32",
        DataType::F64 => "f64",
        DataType::C64 => "complex64",
    }
}

impl<T: Element> Elements<T> {
    pub(super) fn own(elements: Vec<T>) -> Self {
        Self::Own(Arc::new(elements))
    }

    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::Own(own) => own,
            Self::Part { block, start, count } => block.elements(*start, *count),
        }
    }

    /// A share that keeps them alive and unchanged.
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Own(own) => Arc::clone(own) as Owner,
            Self::Part { block, .. } => Arc::clone(block) as Owner,
        }
    }
}

impl<T: Element> Serialize for Leaf<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept = sending(|outbox| {
            if !outbox.is_for_spares() {
                let kind = (T::TYPE, size_of::<T>());
                outbox.add(kind, Place::reading(self), || self.0.owner());
            } else if let Elements::Own(own) = &self.0 {
                outbox.add_spare(own);
            }
        });
        kept.ok_or_else(|| S::Error::custom(STRANGE))?;
        (self.len() as u64).serialize(serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for Leaf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::try_from(u64::deserialize(deserializer)?).unwrap_or(usize::MAX);
        let found = taking(|inbox| {
            let Some(start) = inbox.part(size_of::<T>(), count.checked_mul(size_of::<T>())?)?
            else {
                let elements = inbox.long.pop_front()?.into_vec::<T>()?;
                return (elements.len() == count).then(|| Self::from(elements));
            };
            Some(Self(Elements::Part { block: Arc::clone(&inbox.block), start, count }))
        });
        found.ok_or_else(|| D::Error::custom(MISSING))
    }
}
