//! The elements of an array within an object, and what owns them.

use std::any::Any;
use std::sync::Arc;

use super::block::Block;
use super::few::{self, WORDS};
use crate::loader::{Element, Foreign, ForeignMut};

/// The elements of an array, and their owner.
#[derive(Clone)]
pub(super) enum Elements<T> {
    /// Few elements, which are part of the leaf.
    Few { count: usize, words: [f64; WORDS] },
    /// In memory that others may share.
    Held {
        memory: Arc<dyn Memory<T>>,
        /// In a block: the byte at which the elements begin.
        start: usize,
        /// In a block: the number of elements.
        count: usize,
    },
}

/// The memory of elements: a `Vec`, a received object's block, or memory of another owner than this library.
pub(super) trait Memory<T>: Any + Send + Sync {
    /// All elements; of a block, `count` elements from byte `start` on.
    fn elements(&self, start: usize, count: usize) -> &[T];
}

impl<T: Element> Memory<T> for Vec<T> {
    fn elements(&self, _: usize, _: usize) -> &[T] {
        self
    }
}

impl<T: Element> Memory<T> for Block {
    fn elements(&self, start: usize, count: usize) -> &[T] {
        self.elements(start, count)
    }
}

impl<T: Element> Memory<T> for Foreign<T> {
    fn elements(&self, _: usize, _: usize) -> &[T] {
        self
    }
}

impl<T: Element> Memory<T> for ForeignMut<T> {
    fn elements(&self, _: usize, _: usize) -> &[T] {
        self
    }
}

impl<T: Element> Elements<T> {
    pub(super) fn of(memory: Arc<dyn Memory<T>>) -> Self {
        Self::Held { memory, start: 0, count: 0 }
    }

    pub(super) fn own(elements: Vec<T>) -> Self {
        Self::of(Arc::new(elements))
    }

    pub(super) fn foreign_mut(elements: ForeignMut<T>) -> Self {
        Self::of(Arc::new(elements))
    }

    /// `count` elements of a received object, from byte `start` on.
    pub(super) fn part(memory: Arc<Block>, start: usize, count: usize) -> Self {
        Self::Held { memory, start, count }
    }

    /// A share of the memory, if it is of the type `M`.
    pub(super) fn is<M: Memory<T>>(&self) -> Option<Arc<M>> {
        let Self::Held { memory, .. } = self else { return None };
        (Arc::clone(memory) as Owner).downcast().ok()
    }

    /// The elements, for writing: copied before, unless this leaf is their only owner.
    pub(super) fn make_own(&mut self) -> &mut [T] {
        if matches!(self, Self::Held { .. }) && self.own_mut().is_none() {
            *self = Self::own(self.as_slice().to_vec());
        }
        match self {
            Self::Few { count, words } => few::elements_mut(words, *count),
            Self::Held { .. } => self.own_mut().map_or(&mut [], Vec::as_mut_slice),
        }
    }

    /// The `Vec` of the elements, if they are in one without another owner.
    fn own_mut(&mut self) -> Option<&mut Vec<T>> {
        let Self::Held { memory, .. } = self else { return None };
        let memory: &mut dyn Any = Arc::get_mut(memory)?;
        memory.downcast_mut()
    }

    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::Few { count, words } => few::elements(words, *count),
            Self::Held { memory, start, count } => memory.elements(*start, *count),
        }
    }

    /// A share that keeps the elements alive and unchanged. Few elements are part of the encoding: for them it keeps nothing.
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Few { .. } => Arc::new(()),
            Self::Held { memory, .. } => Arc::clone(memory) as Owner,
        }
    }
}

/// Keeps memory alive.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;
