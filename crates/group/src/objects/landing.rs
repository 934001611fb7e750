//! Memory that a long array of an object is received into.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::block::Block;
use super::elements::Elements;
use crate::error::GroupError;
use crate::loader::{DataType, Element, ForeignMut, Place};
use crate::memory::zeroed;
use crate::with_element;

/// Memory of a long leaf that is received, or that was copied to be reduced.
pub(super) struct Landing {
    element: DataType,
    memory: Memory,
    place: Place,
}

enum Memory {
    /// A `Vec` of elements.
    Own(Box<dyn Any + Send>),
    /// A `ForeignMut` of elements.
    Foreign(Box<dyn Any + Send>),
    Block(Block),
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing").field("element", &self.element).finish_non_exhaustive()
    }
}

impl Landing {
    /// Memory of zeros. The type and the count may come from a peer.
    pub(super) fn new(element: DataType, count: usize) -> Result<Self, GroupError> {
        with_element!(element, T => Ok(Self::of(zeroed::<T>(count)?)))
    }

    /// Memory of `len` zero bytes, aligned as a [`Block`].
    pub(super) fn aligned(len: usize) -> Result<Self, GroupError> {
        let mut block = Block::new(len)?;
        let place = block.place();
        Ok(Self { element: DataType::U8, memory: Memory::Block(block), place })
    }

    /// Memory with a copy of an object's array.
    pub(super) fn copy(element: DataType, place: Place) -> Result<Self, GroupError> {
        let landing = Self::new(element, place.len() / element.bytes())?;
        landing.place.copy_from(place);
        Ok(landing)
    }

    fn of<T: Element>(elements: Vec<T>) -> Self {
        let mut elements = Box::new(elements);
        let place = Place::writing(elements.as_mut_slice());
        Self { element: T::TYPE, memory: Memory::Own(elements), place }
    }

    /// The memory of an array of an earlier object, if it has no other owner.
    pub(super) fn again(spare: Spare) -> Option<Self> {
        with_element!(spare.element, T => {
            let memory = match spare.memory.downcast::<Arc<Vec<T>>>() {
                Ok(elements) => return Arc::try_unwrap(*elements).ok().map(Self::of),
                Err(other) => other.downcast::<Arc<ForeignMut<T>>>().ok()?,
            };
            Arc::try_unwrap(*memory).ok().map(Self::of_foreign)
        })
    }

    fn of_foreign<T: Element>(mut elements: ForeignMut<T>) -> Self {
        let place = Place::writing(&mut elements);
        Self { element: T::TYPE, memory: Memory::Foreign(Box::new(elements)), place }
    }

    /// Whether the memory can be resized to `count` elements of this type.
    pub(super) fn takes(&mut self, element: DataType, count: usize) -> bool {
        if matches!(self.memory, Memory::Foreign(_)) {
            return element == self.element && self.place.len() / element.bytes() == count;
        }
        element == self.element
            && with_element!(element, T => {
                self.elements::<T>().is_some_and(|elements| elements.capacity() >= count)
            })
    }

    /// The same memory with another number of elements, within its capacity.
    pub(super) fn resized(mut self, count: usize) -> Self {
        with_element!(self.element, T => {
            if let Some(elements) = self.elements::<T>() {
                elements.resize(count, T::from_small(0));
                self.place = Place::writing(elements);
            }
        });
        self
    }

    pub(super) fn element(&self) -> DataType {
        self.element
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The elements, if they are of this type and in a `Vec`.
    pub(super) fn elements<T: Element>(&mut self) -> Option<&mut Vec<T>> {
        match &mut self.memory {
            Memory::Own(elements) => elements.downcast_mut(),
            _ => None,
        }
    }

    /// The elements of a leaf with this memory, if they are of this type.
    pub(super) fn into_elements<T: Element>(self) -> Option<Elements<T>> {
        match self.memory {
            Memory::Own(elements) => elements.downcast().ok().map(|own| Elements::own(*own)),
            Memory::Foreign(elements) => {
                let foreign = elements.downcast::<ForeignMut<T>>().ok()?;
                Some(Elements::foreign_mut(*foreign))
            }
            Memory::Block(_) => None,
        }
    }

    pub(super) fn into_block(self) -> Option<Block> {
        match self.memory {
            Memory::Block(block) => Some(block),
            _ => None,
        }
    }
}

/// The memory of an array of an earlier object, which may have other owners.
pub(super) struct Spare {
    pub(super) element: DataType,
    /// An `Arc` of a `Vec`, or of foreign memory.
    pub(super) memory: Box<dyn Any + Send>,
}

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").field("element", &self.element).finish_non_exhaustive()
    }
}
