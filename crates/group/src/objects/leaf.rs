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
use super::parts::{Few, MISSING, Owner, STRANGE, sending, taking};
use crate::loader::{DataType, Element, Foreign, ForeignMut, Place};

/// An array of an object that a group sends. Beyond 64 KiB it is neither copied nor encoded; only a group's calls can send it.
///
/// Clones share the elements until one of them is changed, and so does a send in progress. Short arrays of a received object refer to the
/// memory that it was received into, and keep that alive; up to 24 bytes are part of the leaf itself.
#[derive(Clone)]
pub struct Leaf<T>(Elements<T>);

/// The elements of an array, and their owner.
#[derive(Clone)]
pub(super) enum Elements<T> {
    Own(Arc<Vec<T>>),
    /// Too few to be worth memory of their own, which every clone and every drop would count.
    Few {
        count: u8,
        bytes: Few,
    },
    /// A part of a received object.
    Part {
        block: Arc<Block>,
        start: usize,
        count: usize,
    },
    /// Of another owner than this library.
    Foreign(Arc<Foreign<T>>),
    ForeignMut(Arc<ForeignMut<T>>),
}

impl<T: Element> Leaf<T> {
    /// The elements; copied if they are shared, or no memory of their own.
    pub fn into_vec(self) -> Vec<T> {
        match self.0 {
            Elements::Own(own) => Arc::unwrap_or_clone(own),
            _ => self.to_vec(),
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
        if !matches!(self.0, Elements::Own(_) | Elements::Few { .. }) {
            self.0 = Elements::own(self.to_vec());
        }
        match &mut self.0 {
            Elements::Own(own) => Arc::make_mut(own).as_mut_slice(),
            Elements::Few { count, bytes } => bytes.elements_mut(usize::from(*count)),
            _ => &mut [],
        }
    }
}

impl<T: Element> From<Vec<T>> for Leaf<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Elements::few(&elements).unwrap_or_else(|| Elements::own(elements)))
    }
}

impl<T: Element> From<Foreign<T>> for Leaf<T> {
    /// Its owner is dropped with the last clone and the last send.
    fn from(elements: Foreign<T>) -> Self {
        Self(Elements::Foreign(Arc::new(elements)))
    }
}

impl<T: Element> From<ForeignMut<T>> for Leaf<T> {
    /// As of [`Foreign`]. [`Group::recv_obj_into`](crate::group::Group::recv_obj_into) receives a long array of exactly as many elements
    /// into it.
    fn from(elements: ForeignMut<T>) -> Self {
        Self(Elements::ForeignMut(Arc::new(elements)))
    }
}

impl<T: Element> Default for Leaf<T> {
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

    fn few(elements: &[T]) -> Option<Self> {
        let bytes = Few::new(Place::reading(elements))?;
        Some(Self::Few { count: u8::try_from(elements.len()).ok()?, bytes })
    }

    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::Own(own) => own,
            Self::Few { count, bytes } => bytes.elements(usize::from(*count)),
            Self::Part { block, start, count } => block.elements(*start, *count),
            Self::Foreign(foreign) => foreign,
            Self::ForeignMut(foreign) => foreign,
        }
    }

    /// A share that keeps them alive and unchanged.
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Own(own) => Arc::clone(own) as Owner,
            Self::Few { .. } => Arc::new(()),
            Self::Part { block, .. } => Arc::clone(block) as Owner,
            Self::Foreign(foreign) => Arc::clone(foreign) as Owner,
            Self::ForeignMut(foreign) => Arc::clone(foreign) as Owner,
        }
    }
}

impl<T: Element> Serialize for Leaf<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept = sending(|outbox| {
            if outbox.is_for_spares() {
                match &self.0 {
                    Elements::Own(own) => outbox.add_spare(T::TYPE, own),
                    Elements::ForeignMut(foreign) => outbox.add_spare(T::TYPE, foreign),
                    _ => {}
                }
                return;
            }
            let kind = (T::TYPE, size_of::<T>());
            match &self.0 {
                Elements::Few { count, bytes } => {
                    outbox.add_few(kind, bytes, usize::from(*count) * size_of::<T>());
                }
                elements => outbox.add(kind, Place::reading(self), || elements.owner()),
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
            let bytes = count.checked_mul(size_of::<T>())?;
            let Some(start) = inbox.part(size_of::<T>(), bytes)? else {
                let elements = inbox.long.pop_front()?.into_elements::<T>()?;
                return (elements.as_slice().len() == count).then_some(elements);
            };
            if let Some(few) = Few::of_block(&inbox.block, start, bytes) {
                return Some(Elements::Few { count: u8::try_from(count).ok()?, bytes: few });
            }
            Some(Elements::Part { block: Arc::clone(&inbox.block), start, count })
        });
        found.map(Self).ok_or_else(|| D::Error::custom(MISSING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_of_few_bytes_is_no_larger_than_others_and_changes_alone() {
        assert_eq!(size_of::<Leaf<f64>>(), 32);
        for len in 0..6_u8 {
            let elements: Vec<_> = (0..len).map(f64::from).collect();
            let mut leaf = Leaf::from(elements.clone());
            let clone = leaf.clone();
            assert_eq!(leaf[..], elements);
            leaf.iter_mut().for_each(|element| *element += 1.0);
            assert_eq!(clone.into_vec(), elements);
            assert!(leaf.into_vec().into_iter().eq((1..=len).map(f64::from)));
        }
    }
}
