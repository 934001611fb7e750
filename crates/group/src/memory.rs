//! Memory that users send from and receive into.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::error::GroupError;
use crate::loader::{Buffer, Element, Foreign, ForeignMut, zeros};

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

/// The longest message, in bytes, for which memory is allocated by the length that its sender says.
pub(crate) const CLAIMED_BYTES_MAX: usize = 1 << 36;

/// `count` zeros, or an error where there is not enough memory: `count` may come from a peer. Long memory takes pages as it is written,
/// so a peer that announces a length and sends no bytes costs none.
pub(crate) fn zeroed<T: Element>(count: usize) -> Result<Vec<T>, GroupError> {
    zeros(count).ok_or_else(|| no_memory(io::ErrorKind::OutOfMemory.into()))
}

/// Refuses a message that is longer than [`CLAIMED_BYTES_MAX`].
pub(crate) fn check_claimed(len: usize) -> Result<(), GroupError> {
    if len > CLAIMED_BYTES_MAX {
        let why = format!("{len} bytes, more than {CLAIMED_BYTES_MAX}");
        return Err(no_memory(io::Error::new(io::ErrorKind::OutOfMemory, why)));
    }
    Ok(())
}

fn no_memory(error: io::Error) -> GroupError {
    GroupError::System { what: "allocating memory for a message", error }
}

mod sealed {
    pub trait Sealed: Send + 'static {}
}

/// Memory that an operation can own while it is in progress: the elements do not move when their owner is moved.
pub trait Source<T: Element>: sealed::Sealed {
    /// All elements.
    fn elements(&self) -> &[T];
}

/// Memory that an operation can own, and write, while it is in progress.
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

#[cfg(test)]
mod tests {
    use proc_status::Status;

    use super::*;
    use crate::loader::DataType;
    use crate::with_element;

    #[test]
    fn zeros_of_every_type_touch_no_memory() {
        const BYTES: usize = 1 << 28;
        let resident = || Status::of_this_process().unwrap().kib("VmRSS").unwrap();
        for kind in DataType::ALL {
            let growth = || {
                let before = resident();
                with_element!(kind, T => {
                    let count = BYTES / size_of::<T>();
                    let zeros = zeroed::<T>(count).unwrap();
                    let grown = resident().saturating_sub(before);
                    assert!(zeros.len() == count && zeros[count - 1] == T::from_small(0), "{kind}");
                    grown
                })
            };
            // Other tests of this process allocate memory meanwhile.
            let growth = (0..4).map(|_| growth()).min().unwrap();
            assert!(growth < BYTES as u64 / 1024 / 2, "{kind}: {growth} KiB");
        }
        assert!(zeroed::<f64>(0).unwrap().is_empty());
        assert!(zeroed::<f64>(usize::MAX).is_err() && zeroed::<u8>(isize::MAX as usize).is_err());
    }

    #[test]
    fn no_memory_is_allocated_for_a_message_of_more_than_64_gib() {
        check_claimed(64 << 30).unwrap();
        let why = check_claimed((64 << 30) + 1).unwrap_err().to_string();
        assert!(why.contains("68719476737 bytes, more than 68719476736"), "{why}");
    }
}
