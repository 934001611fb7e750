//! A value that one thread shows to all others, without a lock.
//!
//! Compiled twice, as crates/fabric/src/lockless.rs is: tests/loom.rs tries it in every order.

use super::atomic::{AtomicPtr, Ordering};

/// Points to the value that was published last, or is null. A value is never freed: another thread may be reading it.
#[derive(Debug)]
pub(crate) struct Published<T: 'static>(pub(crate) AtomicPtr<T>);

impl<T: Copy> Published<T> {
    /// Shows `value` from now on. It leaks its place, so what is published should differ from what is.
    pub(crate) fn publish(&self, value: T) {
        self.0.store(Box::into_raw(Box::new(value)), Ordering::Release);
    }

    /// The value, once there is one.
    pub(crate) fn get(&self) -> Option<T> {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a box that `publish` leaked, whole before its place was known.
        unsafe { place.as_ref() }.copied()
    }
}
