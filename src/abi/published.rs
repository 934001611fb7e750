//! A value that one thread publishes to all others, without a lock.
//!
//! Compiled twice, as crates/fabric/src/lockless.rs is: tests/loom.rs explores every interleaving.

use super::atomic::{AtomicPtr, Ordering};

/// Points to the value that was published last, or is null. Values are never freed: another thread may be reading one.
#[derive(Debug)]
pub(crate) struct Published<T: 'static>(pub(crate) AtomicPtr<T>);

impl<T: Copy> Published<T> {
    /// Publishes `value`. Each call leaks a box, so callers publish only changes.
    pub(crate) fn publish(&self, value: T) {
        self.0.store(Box::into_raw(Box::new(value)), Ordering::Release);
    }

    /// The published value, if there is one.
    pub(crate) fn get(&self) -> Option<T> {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a box that `publish` leaked, whole before its place was known.
        unsafe { place.as_ref() }.copied()
    }
}
