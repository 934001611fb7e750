//! How a rank waits: it spins briefly, then yields, then sleeps.

use std::thread;
use std::time::{Duration, Instant};

use crate::bootstrap::Stuck;

/// The durations, by the number of ranks and of the CPUs that they share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    spins: u32,
    yields: Duration,
    /// Every `others`th idle poll polls another peer too.
    others: u32,
}

impl Pace {
    /// If every rank has a CPU of its own, a yield costs latency; otherwise a spin takes the CPU from a rank that could run.
    pub(super) fn new(ranks: usize, cpus: usize) -> Self {
        if ranks <= cpus {
            Self { spins: 2000, yields: Duration::from_millis(2), others: 16 }
        } else {
            Self { spins: 1, yields: Duration::from_millis(1), others: 4 }
        }
    }

    /// Whether this idle poll polls another peer too. Each such poll costs a read of the network, which delays the awaited peer.
    pub(super) fn polls_another(self, idle_polls: u32) -> bool {
        idle_polls.is_multiple_of(self.others)
    }
}

/// One wait. It begins when nothing moves, and has ended when it is dropped, whatever the result.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    idle_polls: u32,
    quiet: Option<Watched>,
    /// The report to the hub that nothing moves here.
    stuck: Option<Stuck>,
    /// Its caller has a limit of its own: the hub is not informed, and the group does not fail.
    bounded: bool,
}

impl Wait {
    /// The wait of a caller that gives up by itself, by [`Quiet`].
    pub(crate) fn bounded() -> Self {
        Self { idle_polls: 0, quiet: None, stuck: None, bounded: true }
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.bounded
    }

    #[inline]
    pub(super) fn moved(&mut self) {
        self.idle_polls = 0;
        self.quiet = None;
        self.stuck = None;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// The hub was informed that nothing moves.
    pub(super) fn reported(&mut self, stuck: Stuck) {
        self.stuck = Some(stuck);
    }

    /// Nothing moved in a wait of at most `limit`. `None`: poll again at once. Otherwise the time without progress.
    #[inline]
    pub(super) fn idle(&mut self, pace: Pace, limit: Duration) -> Option<Duration> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        if self.idle_polls < pace.spins {
            std::hint::spin_loop();
            return None;
        }
        let now = Instant::now();
        Some(self.quiet.get_or_insert_with(|| Watched::new(now)).idle(now, limit))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        crate::patience::note();
    }
}

/// A time in which somebody looks again and again whether anything has moved. One in which nobody does, as while the process is stopped or a
/// future is not polled, counts as a quarter of the limit at most.
#[derive(Clone, Copy, Debug)]
struct Watched {
    since: Instant,
    /// When the clock was last read.
    read: Instant,
}

impl Watched {
    fn new(now: Instant) -> Self {
        Self { since: now, read: now }
    }

    fn idle(&mut self, now: Instant, limit: Duration) -> Duration {
        let unwatched = now.saturating_duration_since(self.read);
        self.since += unwatched.saturating_sub((limit / 4).max(GAP_MIN));
        self.read = now;
        now.saturating_duration_since(self.since)
    }
}

/// The time without progress of a wait with a limit of its own.
#[derive(Clone, Debug)]
pub(crate) struct Quiet {
    limit: Duration,
    watched: Watched,
    /// What had moved when the clock was last read.
    progress: u64,
}

impl Quiet {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, watched: Watched::new(Instant::now()), progress: 0 }
    }

    /// Whether the limit has passed since `progress`, a count, changed.
    pub(crate) fn is_over(&mut self, progress: u64) -> bool {
        crate::patience::note();
        self.is_over_at(Instant::now(), progress)
    }

    fn is_over_at(&mut self, now: Instant, progress: u64) -> bool {
        if progress != self.progress {
            (self.progress, self.watched.since) = (progress, now);
        }
        self.watched.idle(now, self.limit) >= self.limit
    }
}

/// Gives up the CPU, the longer the longer nothing has moved.
pub(crate) fn rest(pace: Pace, idle: Duration) {
    if idle < pace.yields {
        thread::yield_now();
    } else {
        thread::sleep((idle / 20).clamp(SLEEP_MIN, SLEEP_MAX));
    }
}

/// Any sleep of a wait is shorter.
const GAP_MIN: Duration = Duration::from_millis(50);
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_which_nobody_polls_is_a_quarter_of_a_wait_at_most() {
        let (limit, mut now) = (Duration::from_secs(40), Instant::now());
        let mut watched = Watched::new(now);
        let mut idle_after = |seconds: u64| {
            now += Duration::from_secs(seconds);
            watched.idle(now, limit).as_secs()
        };
        assert_eq!([1, 9, 1000, 5, 11, 10_000].map(&mut idle_after), [1, 10, 20, 25, 35, 45]);
    }

    #[test]
    fn a_time_in_which_nobody_asks_does_not_end_a_wait() {
        let limit = Duration::from_secs(40);
        let mut quiet = Quiet::new(limit);
        let mut now = quiet.watched.since;
        let mut is_over_after = |seconds: u64, progress| {
            now += Duration::from_secs(seconds);
            quiet.is_over_at(now, progress)
        };
        assert!(!is_over_after(10, 0) && !is_over_after(1000, 0) && !is_over_after(10, 0));
        assert!(is_over_after(10, 0), "three times ten seconds, and a quarter of the limit");
        assert!(!is_over_after(1, 1), "what moves renews it");
        assert!((0..39).all(|_| !is_over_after(1, 1)) && is_over_after(1, 1));
        assert!(!is_over_after(1000, 2));
    }
}
