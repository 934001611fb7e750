//! An array within an object. It is not part of the encoding: the elements of a long array are sent from memory to memory, in a message of
//! their own; those of short arrays precede the encoding in the packet.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, NamedType, NamedValue};
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeTuple};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::elements::Elements;
use super::few::{self, WORD, WORDS};
use super::parts::{MISSING, STRANGE, sending, taking};
use crate::loader::{DataType, Element, Foreign, ForeignMut, Place};

/// An array of an object that a group sends. An array of more than 64 KiB is neither copied nor encoded. Only a group's calls can send an
/// array of more than 24 bytes. Text formats, as JSON, refuse every leaf.
///
/// Clones share the elements until one of them is changed, and so does a send in progress. Short arrays of a received object refer to the
/// memory that it was received into, and keep that alive; up to 24 bytes are part of the leaf itself, and of the encoding.
#[derive(Clone)]
pub struct Leaf<T>(Elements<T>);

impl<T: Element> Leaf<T> {
    /// The elements. They are copied if they are shared, or are part of the leaf or of a block.
    pub fn into_vec(self) -> Vec<T> {
        match self.0.is::<Vec<T>>() {
            Some(own) => {
                drop(self);
                Arc::unwrap_or_clone(own)
            }
            None => self.to_vec(),
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
        self.0.make_own()
    }
}

impl<T: Element> From<Vec<T>> for Leaf<T> {
    fn from(elements: Vec<T>) -> Self {
        match few::packed(&elements) {
            Some(words) => Self(Elements::Few { count: elements.len(), words }),
            None => Self(Elements::own(elements)),
        }
    }
}

impl<T: Element> From<Foreign<T>> for Leaf<T> {
    /// The owner of the memory is dropped with the last clone and the last send.
    fn from(elements: Foreign<T>) -> Self {
        Self(Elements::of(Arc::new(elements)))
    }
}

impl<T: Element> From<ForeignMut<T>> for Leaf<T> {
    /// The owner of the memory is dropped with the last clone and the last send.
    /// [`Group::recv_obj_into`](crate::group::Group::recv_obj_into) receives a long array into this memory if it has exactly as many
    /// elements.
    fn from(elements: ForeignMut<T>) -> Self {
        Self(Elements::foreign_mut(elements))
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

/// Encoded in place of the count of few elements, if the elements are not in the encoding: their number follows.
pub(super) const BESIDE: u8 = u8::MAX;

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

impl<T: Element> Serialize for Leaf<T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Err(S::Error::custom(STRANGE));
        }
        let packed;
        let (count, words) = match &self.0 {
            Elements::Few { count, words } => (*count, words),
            // Also few elements in other memory are in the encoding: a reduction compares the encodings of all ranks.
            held => match few::packed(held.as_slice()) {
                Some(words) => {
                    packed = words;
                    (self.len(), &packed)
                }
                None => {
                    held.send().ok_or_else(|| S::Error::custom(STRANGE))?;
                    let mut parts = serializer.serialize_tuple(2)?;
                    parts.serialize_element(&BESIDE)?;
                    parts.serialize_element(&(self.len() as u64))?;
                    return parts.end();
                }
            },
        };
        let words = few::used::<T>(words, count);
        let mut parts = serializer.serialize_tuple(1 + words.len())?;
        // At most the bytes of `WORDS` words, so the count fits in a byte.
        parts.serialize_element(&count.to_le_bytes()[0])?;
        words.iter().try_for_each(|word| parts.serialize_element(word))?;
        parts.end()
    }
}

impl<'de, T: Element> Deserialize<'de> for Leaf<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(1 + WORDS, Parts(PhantomData))
    }
}

struct Parts<T>(PhantomData<T>);

impl<'de, T: Element> Visitor<'de> for Parts<T> {
    type Value = Leaf<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Leaf<T>, A::Error> {
        let missing = || A::Error::custom(MISSING);
        let count: u8 = parts.next_element()?.ok_or_else(missing)?;
        if count == BESIDE {
            let count: u64 = parts.next_element()?.ok_or_else(missing)?;
            return Elements::taken(count).map(Leaf).ok_or_else(missing);
        }
        let len = usize::from(count) * size_of::<T>();
        let mut next = || parts.next_element::<f64>()?.ok_or_else(missing);
        // No loop: the words stay in registers.
        let mut words = [0.0; WORDS];
        if len > 0 {
            words[0] = next()?;
        }
        if len > WORD {
            words[1] = next()?;
        }
        if len > 2 * WORD {
            words[2] = next()?;
        }
        if len > 3 * WORD {
            return Err(missing());
        }
        Ok(Leaf(Elements::Few { count: usize::from(count), words }))
    }
}

impl<T: Element> Elements<T> {
    /// Adds the elements to the object that is being encoded. None: no group encodes the object.
    #[cold]
    #[inline(never)]
    fn send(&self) -> Option<()> {
        sending(|outbox| {
            if outbox.is_for_spares() {
                if let Some(own) = self.is::<Vec<T>>() {
                    outbox.add_spare(T::TYPE, own);
                } else if let Some(foreign) = self.is::<ForeignMut<T>>() {
                    outbox.add_spare(T::TYPE, foreign);
                }
                return;
            }
            let kind = (T::TYPE, size_of::<T>());
            outbox.add(kind, Place::reading(self.as_slice()), || self.owner());
        })
    }

    /// Takes `count` elements from the message that is being decoded. None: no group decodes it, or the message has no such array next.
    #[cold]
    #[inline(never)]
    fn taken(count: u64) -> Option<Self> {
        let count = usize::try_from(count).ok()?;
        taking(|inbox| {
            let bytes = count.checked_mul(size_of::<T>())?;
            let Some(start) = inbox.part(size_of::<T>(), bytes)? else {
                let elements = inbox.long.pop_front()?.into_elements::<T>()?;
                return (elements.as_slice().len() == count).then_some(elements);
            };
            Some(Self::part(inbox.block(), start, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::Op;
    use crate::support::{library, ranks};

    #[test]
    fn short_arrays_in_any_memory_are_reduced_together() {
        ranks(&library(), 2, |group| {
            for count in [0, 1, 3, 4, 1000] {
                let elements = vec![1.5_f64; count];
                // As memory of another owner: not part of the leaf, whatever its length.
                let leaf = match group.rank() {
                    0 => Leaf::from(elements),
                    _ => Leaf(Elements::own(elements)),
                };
                let sum = group.all_reduce_obj(&leaf, Op::Sum).unwrap();
                assert_eq!(sum[..], vec![3.0; count]);
                let sum = group.iall_reduce_obj(&leaf, Op::Sum).unwrap().wait().unwrap();
                assert_eq!(sum.unwrap()[..], vec![3.0; count]);
            }
        });
    }

    #[test]
    fn a_leaf_of_few_elements_changes_alone() {
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
