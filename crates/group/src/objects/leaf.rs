//! A long array within an object. It does not pass through the encoding: its elements travel from where they are to where they will
//! be, beside the message.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, NamedType, NamedValue};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::GroupError;
use crate::loader::{DataType, Element, Place};
use crate::memory::zeroed;
use crate::with_element;

/// An array of an object that a group sends. Beyond 24 KiB it is neither copied nor encoded; a group's calls alone can send it.
///
/// Clones share the elements until one of them is changed, and so does a send that goes on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaf<T>(Arc<Vec<T>>);

impl<T: Clone> Leaf<T> {
    /// The elements; copied, where they are shared.
    pub fn into_vec(self) -> Vec<T> {
        Arc::unwrap_or_clone(self.0)
    }
}

/// Whether an array is copied into the packet, behind so many bytes of others: a message of its own costs more than such a copy, as long as
/// the packet stays short.
fn is_short(before: usize, bytes: usize) -> bool {
    bytes <= SHORT || before.saturating_add(bytes) <= TOGETHER
}

const SHORT: usize = 4 << 10;
const TOGETHER: usize = 24 << 10;

impl<T> Deref for Leaf<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Clone> DerefMut for Leaf<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<Vec<T>> for Leaf<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Arc::new(elements))
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

/// Leaves of an object that is being encoded.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) inline: Vec<u8>,
    /// Types and bytes of those.
    pub(super) short: Vec<(DataType, usize)>,
    pub(super) long: Vec<Leaving>,
}

/// A long leaf that goes: its memory lives, unchanged, as long as this.
#[derive(Clone)]
pub(super) struct Leaving {
    pub(super) element: DataType,
    pub(super) place: Place,
    _elements: Arc<dyn Any + Send + Sync>,
}

impl Leaving {
    pub(super) fn new<T: Element>(elements: &Arc<Vec<T>>) -> Self {
        let (place, _elements) = (Place::reading(elements.as_slice()), Arc::clone(elements));
        Self { element: T::TYPE, place, _elements }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("element", &self.element).finish_non_exhaustive()
    }
}

/// Leaves of an object that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) inline: Vec<u8>,
    /// How much of it was taken.
    pub(super) at: usize,
    pub(super) long: VecDeque<Landing>,
}

thread_local! {
    static OUT: RefCell<Option<Outbox>> = const { RefCell::new(None) };
    static IN: RefCell<Option<Inbox>> = const { RefCell::new(None) };
}

/// Runs an encoding; the leaves that it met.
pub(super) fn collecting<R>(encode: impl FnOnce() -> R) -> (R, Outbox) {
    OUT.set(Some(Outbox::default()));
    let done = encode();
    (done, OUT.take().unwrap_or_default())
}

/// Runs a decoding with these leaves; whether it took all of them.
pub(super) fn dealing<R>(inbox: Inbox, decode: impl FnOnce() -> R) -> (R, bool) {
    IN.set(Some(inbox));
    let done = decode();
    let left = IN.take().unwrap_or_default();
    (done, left.inline.len() == left.at && left.long.is_empty())
}

impl<T: Element> Serialize for Leaf<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept = OUT.with_borrow_mut(|outbox| {
            let outbox = outbox.as_mut()?;
            let place = Place::reading(self.0.as_slice());
            if !is_short(outbox.inline.len(), place.len()) {
                outbox.long.push(Leaving::new(&self.0));
            } else {
                outbox.short.push((T::TYPE, place.len()));
                let start = outbox.inline.len();
                outbox.inline.resize(start + place.len(), 0);
                place.copy_to(&mut outbox.inline[start..]);
            }
            Some(())
        });
        kept.ok_or_else(|| S::Error::custom("a leaf is sent by a group's calls alone"))?;
        (self.0.len() as u64).serialize(serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for Leaf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::try_from(u64::deserialize(deserializer)?).unwrap_or(usize::MAX);
        let missing = || D::Error::custom("an array that the message does not have");
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(missing)?;
        IN.with_borrow_mut(|inbox| {
            let inbox = inbox.as_mut().ok_or_else(missing)?;
            if !is_short(inbox.at, bytes) {
                let landing = inbox.long.pop_front().ok_or_else(missing)?;
                let elements = landing.elements.downcast::<Vec<T>>().map_err(|_| missing())?;
                return if elements.len() == count {
                    Ok(Self::from(*elements))
                } else {
                    Err(missing())
                };
            }
            let taken = inbox.inline.get(inbox.at..inbox.at + bytes).ok_or_else(missing)?;
            let mut elements = vec![T::from_small(0); count];
            Place::writing(&mut elements).copy_from(Place::reading(taken));
            inbox.at += bytes;
            Ok(Self::from(elements))
        })
    }
}

/// Memory of a long leaf that comes, or that was copied to be reduced.
pub(super) struct Landing {
    element: DataType,
    elements: Box<dyn Any + Send>,
    place: Place,
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing").field("element", &self.element).finish_non_exhaustive()
    }
}

impl Landing {
    /// Zeros of a type that a peer names, and as many.
    pub(super) fn new(element: DataType, count: usize) -> Result<Self, GroupError> {
        with_element!(element, T => {
            let mut elements = Box::new(zeroed::<T>(count)?);
            let place = Place::writing(elements.as_mut_slice());
            Ok(Self { element, elements, place })
        })
    }

    /// A copy of what an object has.
    pub(super) fn copy(element: DataType, place: Place) -> Result<Self, GroupError> {
        let landing = Self::new(element, place.len() / element.bytes())?;
        landing.place.copy_from(place);
        Ok(landing)
    }

    pub(super) fn element(&self) -> DataType {
        self.element
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The elements, if they are of this type.
    pub(super) fn elements<T: Element>(&mut self) -> Option<&mut Vec<T>> {
        self.elements.downcast_mut()
    }
}
