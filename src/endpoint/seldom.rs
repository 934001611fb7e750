//! Limits how often a process writes a log line, however many endpoints have a reason to.

use std::time::{Duration, Instant};

use fabric::Lock;

/// The time of the last line.
#[derive(Debug)]
pub(super) struct Seldom(Lock<Option<Instant>>);

impl Seldom {
    pub(super) const fn new() -> Self {
        Self(Lock::new(None))
    }

    /// Whether the last line is at least `every` ago. If so, counts as a line now.
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
    fn a_line_is_allowed_again_only_after_the_interval() {
        let seldom = Seldom::new();
        assert!(seldom.may(Duration::MAX));
        assert!(!seldom.may(Duration::MAX));
        assert!(seldom.may(Duration::ZERO));
    }
}
