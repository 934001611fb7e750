//! Memory that users send from and receive into.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::error::GroupError;
use crate::loader::{Buffer, Element, Foreign, ForeignMut};

/// Elements in registered memory; otherwise like a slice. Made by [`crate::group::Group::buffer`].
#[derive(Debug)]
pub struct Registered<T> {
    buffer: Buffer,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Registered<T> {
    pub(crate) fn new(buffer: Buffer, count: usize) -> Self {
        Self { buffer, count, elements: PhantomData }
    }
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let whole = 0..self.count * size_of::<T>();
        self.buffer
            .slice(whole)
            .expect("the buffer was made for these elements, and nothing claims it")
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let whole = 0..self.count * size_of::<T>();
        self.buffer
            .slice_mut(whole)
            .expect("the buffer was made for these elements, and nothing claims it")
    }
}

/// `count` zeros, or an error where there is not enough memory: lengths named by a peer come here.
pub(crate) fn zeroed<T: Element>(count: usize) -> Result<Vec<T>, GroupError> {
    // `vec!` would abort the process.
    let mut room = Vec::<T>::new();
    room.try_reserve_exact(count).map_err(|_| GroupError::System {
        what: "allocating memory for a message",
        error: io::Error::from(io::ErrorKind::OutOfMemory),
    })?;
    drop(room);
    Ok(vec![T::from_small(0); count])
}

mod sealed {
    pub trait Sealed: Send + 'static {}
}

/// Memory that an operation can own while it is in progress: the elements do not move when their owner is moved.
pub trait Source<T: Element>: sealed::Sealed {
    /// All elements.
    fn elements(&self) -> &[T];
}

/// The same for an operation that writes.
pub trait Target<T: Element>: Source<T> {
    /// All elements.
    fn elements_mut(&mut self) -> &mut [T];
}

macro_rules! owners {
    ($($owner:ty),*) => {$(
        impl<T: Element> sealed::Sealed for $owner {}
        impl<T: Element> Source<T> for $owner {
            fn elements(&self) -> &[T] {
                self
            }
        }
    )*};
}

owners!(Vec<T>, Box<[T]>, Arc<[T]>, Registered<T>, Foreign<T>, ForeignMut<T>);

macro_rules! writable {
    ($($owner:ty),*) => {$(
        impl<T: Element> Target<T> for $owner {
            fn elements_mut(&mut self) -> &mut [T] {
                self
            }
        }
    )*};
}

writable!(Vec<T>, Box<[T]>, Registered<T>, ForeignMut<T>);
