//! Panics on demand, for tests of the state after a panic. Without the feature `faults`, which no build has by default, this does nothing.

/// A fault point, at which a test can cause a panic.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn point(_name: &str) {}

#[cfg(feature = "faults")]
pub(crate) use armed::{arm, point};

#[cfg(feature = "faults")]
mod armed {
    use std::sync::{Mutex, PoisonError};

    static ARMED: Mutex<Option<String>> = Mutex::new(None);

    /// The next call that reaches the fault point of this name panics there.
    pub(crate) fn arm(name: &str) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }

    pub(crate) fn point(name: &str) {
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.as_deref() == Some(name) {
            *armed = None;
            drop(armed);
            panic!("a test asked for this, in {name}");
        }
    }
}
