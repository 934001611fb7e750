//! Log lines that a process writes seldom, however many endpoints have a reason.

use std::time::{Duration, Instant};

use fabric::Lock;

/// The last time that something was done.
#[derive(Debug)]
pub(super) struct Seldom(Lock<Option<Instant>>);

impl Seldom {
    pub(super) const fn new() -> Self {
        Self(Lock::new(None))
    }

    /// Whether the last time is at least so long ago. If so, this is the last time now.
    pub(super) fn may(&self, every: Duration) -> bool {
        let mut last = self.0.lock();
        let may = last.is_none_or(|at| at.elapsed() >= every);
        if may {
            *last = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_done_may_not_be_done_again() {
        let seldom = Seldom::new();
        assert!(seldom.may(Duration::MAX));
        assert!(!seldom.may(Duration::MAX));
        assert!(seldom.may(Duration::ZERO));
    }
}
