//! How long deregMr and close wait for peers that do not answer.
//!
//! An abort gives back many buffers, and the user sees the sum of the waits. So each wait that times out makes the next ones shorter
//! (docs/decisions/0008-memory-a-silent-peer-may-touch.md).

use std::time::{Duration, Instant};

use super::bound::{WAIT_MIN, WAIT_RECOVERS_AFTER, WAIT_SHRINKS_BY};

#[derive(Debug)]
pub(super) struct Patience {
    whole: Duration,
    wait: Duration,
    /// When a wait last timed out.
    timed_out: Option<Instant>,
}

impl Patience {
    pub(super) fn new(whole: Duration) -> Self {
        Self { whole, wait: whole, timed_out: None }
    }

    /// How long to wait for a peer from now on.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        if self
            .timed_out
            .is_some_and(|last| now.saturating_duration_since(last) >= WAIT_RECOVERS_AFTER)
        {
            *self = Self::new(self.whole);
        }
        self.wait
    }

    pub(super) fn timed_out(&mut self, now: Instant) {
        self.wait = (self.wait / WAIT_SHRINKS_BY).max(WAIT_MIN);
        self.timed_out = Some(now);
    }

    /// Whether a wait has timed out lately.
    pub(super) fn is_shortened(&mut self, now: Instant) -> bool {
        self.wait(now) < self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Duration = Duration::from_millis(1500);

    #[test]
    fn waits_that_time_out_take_together_little_more_than_the_first() {
        let mut patience = Patience::new(WHOLE);
        let mut now = Instant::now();
        let start = now;
        for _ in 0..8 {
            now += patience.wait(now);
            patience.timed_out(now);
        }
        let took = now - start;
        assert!(took > WHOLE && took < WHOLE + Duration::from_millis(250), "{took:?}");
        assert!(patience.is_shortened(now));
    }

    #[test]
    fn the_next_abort_gets_the_whole_time_again() {
        let mut patience = Patience::new(WHOLE);
        let now = Instant::now();
        patience.timed_out(now);
        assert!(patience.is_shortened(now + WAIT_RECOVERS_AFTER / 2));
        assert_eq!(patience.wait(now + WAIT_RECOVERS_AFTER), WHOLE);
        assert!(!patience.is_shortened(now + WAIT_RECOVERS_AFTER));
    }
}
