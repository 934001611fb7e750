//! Panics on demand, for tests of the state after a panic. In a release build this does nothing.

/// A fault point, at which a test can cause a panic.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_name: &str) {}

#[cfg(debug_assertions)]
pub(crate) use armed::{arm, point};

#[cfg(debug_assertions)]
mod armed {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// A lock taken in each call would order threads that nothing else orders, and hide races from tests. This does not.
    static IS_ARMED: AtomicBool = AtomicBool::new(false);
    static ARMED: Mutex<Option<String>> = Mutex::new(None);

    /// The next call that reaches the fault point of this name panics there.
    pub(crate) fn arm(name: &str) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
        IS_ARMED.store(true, Ordering::Relaxed);
    }

    pub(crate) fn point(name: &str) {
        if !IS_ARMED.load(Ordering::Relaxed) {
            return;
        }
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.as_deref() == Some(name) {
            *armed = None;
            drop(armed);
            panic!("a test asked for this, in {name}");
        }
    }
}
