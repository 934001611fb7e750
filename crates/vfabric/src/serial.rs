//! Which calls are under way on objects that the user promised to serialise (fi_domain(3)).
//!
//! With FI_THREAD_COMPLETION there is one mark per completion queue: it, the endpoints bound to it and their regions are one group.
//! With FI_THREAD_DOMAIN a domain and everything opened on it are one group. The mark stands from a call's first instruction to
//! its last, the wait for the engine's lock included, so that two calls at once meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A group of objects: whether a call is under way on one of them.
#[derive(Debug, Default)]
pub(crate) struct Serial(AtomicBool);

/// A call's mark, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    serial: &'a Serial,
    /// Whether another thread was there already.
    pub(crate) clash: bool,
}

impl Serial {
    /// A group of its own.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Marks that a call is in the group.
    pub(crate) fn enter(&self) -> Turn<'_> {
        Turn { serial: self, clash: self.0.swap(true, Ordering::AcqRel) }
    }
}

impl Drop for Turn<'_> {
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
