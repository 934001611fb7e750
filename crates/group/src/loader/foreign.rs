//! Memory owned outside of this library, such as Python's arrays, as operations hold it.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::element::Element;

/// Elements to be read. Their owner is dropped with this value, or, if an operation may still access them, once that has ended.
pub struct Foreign<T> {
    base: NonNull<T>,
    count: usize,
    /// Held only to be dropped.
    _keeps: Box<dyn Any + Send>,
}

// SAFETY: an address and a count of numbers; by the contract of `new` they may be used from any thread.
unsafe impl<T: Element> Send for Foreign<T> {}
// SAFETY: a shared one only reads numbers; what it keeps is not reached before its drop.
unsafe impl<T: Element> Sync for Foreign<T> {}

impl<T> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<T: Element> Foreign<T> {
    /// `count` elements from `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned. The elements are initialised, may be read from any thread, and stay in place until `keeps` has been dropped;
    /// until then nothing writes to them.
    pub unsafe fn new(base: NonNull<T>, count: usize, keeps: Box<dyn Any + Send>) -> Self {
        Self { base, count, _keeps: keeps }
    }
}

impl<T: Element> Deref for Foreign<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: by the contract of `new`.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

/// Elements to be written; otherwise as [`Foreign`].
#[derive(Debug)]
pub struct ForeignMut<T>(Foreign<T>);

impl<T: Element> ForeignMut<T> {
    /// `count` elements from `base`.
    ///
    /// # Safety
    ///
    /// As for [`Foreign::new`]; the elements may be written, and until `keeps` has been dropped nothing else accesses them.
    pub unsafe fn new(base: NonNull<T>, count: usize, keeps: Box<dyn Any + Send>) -> Self {
        // SAFETY: the caller guarantees more than that.
        Self(unsafe { Foreign::new(base, count, keeps) })
    }
}

impl<T: Element> Deref for ForeignMut<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Element> DerefMut for ForeignMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: by the contract of `new`.
        unsafe { slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.count) }
    }
}
