//! Finds two calls at once on objects that the user promised to serialise (fi_domain(3)).
//!
//! With FI_THREAD_COMPLETION there is one mark per completion queue: the queue, the endpoints bound to it and their regions are one group.
//! With FI_THREAD_DOMAIN a domain and everything opened on it are one group. The mark is set from a call's first instruction to its last,
//! including the wait for the engine's lock; otherwise the lock would hide two calls at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A group of objects, and whether a call is under way on one of them.
#[derive(Debug, Default)]
pub(crate) struct Serial(AtomicBool);

/// A call under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Mark<'a> {
    serial: &'a Serial,
    /// Whether another call was under way already.
    pub(crate) clash: bool,
}

impl Serial {
    /// A new group.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Marks a call in the group.
    pub(crate) fn enter(&self) -> Mark<'_> {
        Mark { serial: self, clash: self.0.swap(true, Ordering::AcqRel) }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if !self.clash {
            self.serial.0.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calls_at_once_clash_and_one_after_the_other_do_not() {
        let serial = Serial::new();
        assert!(!serial.enter().clash);
        let first = serial.enter();
        assert!(!first.clash);
        let other = Arc::clone(&serial);
        assert!(std::thread::spawn(move || other.enter().clash).join().unwrap());
        drop(first);
        assert!(!serial.enter().clash);
    }
}
