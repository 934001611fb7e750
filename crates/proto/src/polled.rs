//! A clock for timeouts of peers. It advances by at most [`POLL_GAP_MAX`] between two polls, so peers do not
//! time out while the process is stopped.

use std::time::Duration;

use crate::bound::POLL_GAP_MAX;
use crate::ids::Moment;

/// A time of a [`PolledClock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolledTime(Moment);

impl PolledTime {
    pub const START: Self = Self(Moment::from_nanos(0));

    /// The time since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.since(earlier.0)
    }

    #[inline]
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        Self(self.0.plus(wait))
    }
}

#[derive(Debug, Default)]
pub struct PolledClock {
    last: Option<Moment>,
    now: PolledTime,
    /// The poll before the last one.
    before: PolledTime,
}

impl PolledClock {
    /// The endpoint is polled.
    pub fn poll(&mut self, now: Moment) -> Now {
        let gap = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(self.last.map_or(now, |last| last.max(now)));
        self.before = self.now;
        self.now = self.now.plus(gap.min(POLL_GAP_MAX));
        Now { clock: now, polled: self.now }
    }

    pub fn now(&self) -> PolledTime {
        self.now
    }

    /// The time of the poll before the last one.
    pub fn before(&self) -> PolledTime {
        self.before
    }
}

/// The time of a poll by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the caller's clock: for pauses and delays.
    pub clock: Moment,
    /// By [`PolledClock`]: for timeouts of the peer.
    pub polled: PolledTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        let mut clock = PolledClock::default();
        let mut poll = |ms: u64| clock.poll(Moment::from_nanos(ms * 1_000_000)).polled;
        let start = poll(5);
        let before = poll(15);
        assert_eq!(before.since(start), Duration::from_millis(10));
        let after = poll(60_000);
        assert_eq!(after.since(before), POLL_GAP_MAX);
        assert_eq!(poll(5), after, "a clock that goes back counts nothing");
        assert_eq!(poll(60_000), after);
    }
}
