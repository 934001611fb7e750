//! How long a comm has waited for the same request, or for the same refused call.

use std::time::Duration;

/// How long a comm has waited, updated by each check.
#[derive(Debug, Default)]
pub(super) struct WaitTracker {
    /// Requests that were open when the wait began and still are, one bit each; and when it began, in time polled.
    open: u64,
    open_since: Option<Duration>,
    /// isend or irecv has returned NULL since the last check; and since when every call has.
    refused: bool,
    refused_since: Option<Duration>,
    /// The wait is counted as a stall.
    pub(super) counted: bool,
    /// The wait at the last check, and whether the wait before the current one was long, too.
    last: Duration,
    pub(super) slow: bool,
}

impl WaitTracker {
    /// How long the same request, or the same refused call, has waited.
    pub(super) fn waited(&mut self, open: u64, polled: Duration, long: Duration) -> Duration {
        if self.open == 0 {
            self.open = open;
            self.open_since = (open != 0).then_some(polled);
        }
        if std::mem::take(&mut self.refused) {
            self.refused_since.get_or_insert(polled);
        } else {
            self.refused_since = None;
        }
        let since = self.since();
        self.counted &= since.is_some();
        let waited = since.map_or(Duration::ZERO, |since| polled.saturating_sub(since));
        if waited < self.last {
            self.slow = self.last >= long;
        }
        self.last = waited;
        waited
    }

    /// When the wait began, in time polled.
    pub(super) fn since(&self) -> Option<Duration> {
        self.open_since.into_iter().chain(self.refused_since).min()
    }

    /// A request has begun.
    #[inline]
    pub(super) fn begun(&mut self) {
        (self.refused, self.refused_since) = (false, None);
    }

    /// A request has ended.
    #[inline]
    pub(super) fn ended(&mut self, bit: u64) {
        self.open &= !bit;
    }

    /// isend or irecv has returned NULL.
    pub(super) fn refused(&mut self) {
        self.refused = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_wait_is_that_of_one_request_and_not_of_successive_ones() {
        let mut seen = WaitTracker::default();
        assert_eq!(seen.waited(0b01, s(1), LONG), s(0));
        assert_eq!(seen.waited(0b11, s(3), LONG), s(2));
        seen.ended(0b01);
        assert_eq!(seen.waited(0b10, s(4), LONG), s(0), "seen for the first time as the oldest");
        assert_eq!(seen.waited(0b10, s(6), LONG), s(2));
        // Another request reuses its bit at once.
        seen.ended(0b10);
        assert_eq!(seen.waited(0b10, s(9), LONG), s(0));
        seen.ended(0b10);
        assert_eq!(seen.waited(0, s(20), LONG), s(0));
        assert_eq!(seen.waited(0, s(30), LONG), s(0), "nothing waits");
    }

    const LONG: Duration = s(5);

    #[test]
    fn a_refused_call_waits_until_a_call_succeeds_or_none_is_repeated() {
        let mut seen = WaitTracker::default();
        seen.refused();
        assert_eq!(seen.waited(0, s(1), LONG), s(0));
        seen.refused();
        assert_eq!(seen.waited(0, s(4), LONG), s(3));
        seen.begun();
        seen.refused();
        assert_eq!(seen.waited(0, s(5), LONG), s(0), "another message");
        seen.refused();
        assert_eq!(seen.waited(0, s(7), LONG), s(2));
        assert_eq!(seen.waited(0, s(9), LONG), s(0), "the call is not repeated");
    }

    #[test]
    fn a_wait_behind_a_long_one_is_slow_and_one_behind_a_short_one_is_not() {
        let mut seen = WaitTracker::default();
        seen.refused();
        seen.waited(0, s(1), LONG);
        seen.refused();
        assert_eq!(seen.waited(0, s(7), LONG), s(6));
        seen.begun();
        seen.refused();
        seen.waited(0, s(8), LONG);
        assert!(seen.slow);
        seen.refused();
        seen.waited(0, s(9), LONG);
        assert!(seen.slow, "as long as it waits");
        seen.begun();
        seen.refused();
        seen.waited(0, s(10), LONG);
        assert!(!seen.slow);
    }
}
