//! The limits of waits. A wait counts the time in which nothing moves while the caller polls; the time while the process is stopped counts
//! only in part. `mesh::pace` says how a rank spends this time. [`Patience`] is the wait of a connection without a group.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;

/// Counts polls that moved nothing. A time without polls, of a process that was stopped, counts for a part of the limit. The clock is read
/// rarely, so an idle poll costs a few instructions.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Duration,
    spins: u32,
    idle: u32,
    /// The time without progress, from when the clock was first read.
    quiet: Option<Quiet>,
}

impl Patience {
    /// A wait of at most `limit` that yields after every `spins` idle polls: few if there are more ranks than CPUs, many if each rank has
    /// its own.
    pub fn new(limit: Duration, spins: u32) -> Self {
        Self { limit, spins: spins.max(1), idle: 0, quiet: None }
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// To be called when something has moved: the wait starts again.
    #[inline]
    pub fn reset(&mut self) {
        beat();
        self.idle = 0;
        self.quiet = None;
    }

    /// To be called when a poll has moved nothing. Returns [`GroupError::Timeout`] after the limit; `awaited` is called only then.
    #[inline]
    pub fn idle(&mut self, awaited: impl FnOnce() -> String) -> Result<(), GroupError> {
        self.idle += 1;
        if self.idle < self.spins {
            return Ok(());
        }
        self.idle = 0;
        self.slow(awaited)
    }

    #[cold]
    fn slow(&mut self, awaited: impl FnOnce() -> String) -> Result<(), GroupError> {
        thread::yield_now();
        let quiet = self.quiet.get_or_insert_with(|| Quiet::new(self.limit));
        if !quiet.is_over(0) {
            return Ok(());
        }
        Err(GroupError::Timeout { peers: Vec::new(), awaited: awaited(), limit: self.limit })
    }
}

/// A time in which progress is checked again and again. A gap without a check, as while the process is stopped or a future is not polled,
/// counts as at most a quarter of the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    since: Instant,
    /// When the clock was last read.
    read: Instant,
}

impl Watched {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, read: now }
    }

    pub(crate) fn idle(&mut self, now: Instant, limit: Duration) -> Duration {
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
    /// The count of progress when the clock was last read.
    progress: u64,
}

impl Quiet {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, watched: Watched::new(Instant::now()), progress: 0 }
    }

    /// Whether the limit has passed since `progress`, a count, changed.
    pub(crate) fn is_over(&mut self, progress: u64) -> bool {
        note();
        self.is_over_at(Instant::now(), progress)
    }

    fn is_over_at(&mut self, now: Instant, progress: u64) -> bool {
        if progress != self.progress {
            (self.progress, self.watched.since) = (progress, now);
        }
        self.watched.idle(now, self.limit) >= self.limit
    }
}

/// A gap between checks that always counts in full; it is longer than any sleep of a wait.
const GAP_MIN: Duration = Duration::from_millis(50);

/// When a wait of `limit` that begins now is over. A limit that no clock can count to is 100 years.
pub fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Changes while any thread of this process waits or makes progress. It stops when a call does not return.
pub fn beats() -> u64 {
    BEATS.load(Ordering::Relaxed)
}

/// Counts a beat: a group's wait continues, or has ended.
pub(crate) fn note() {
    beat();
}

/// Not an atomic addition: a lost increment does not matter, since that of another thread has changed the count.
#[inline]
fn beat() {
    BEATS.store(BEATS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

static BEATS: AtomicU64 = AtomicU64::new(0);

/// Idle polls before a yield, for `ranks` ranks that spin on this machine at once.
pub fn spins_for(ranks: usize) -> u32 {
    if ranks < cpus() { SPINS_ALONE } else { SPINS_CROWDED }
}

/// The number of CPUs that this process could use at the first call.
pub fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

const SPINS_ALONE: u32 = 4096;
const SPINS_CROWDED: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_in_a_sentence_that_names_the_awaited_rank() {
        let mut patience = Patience::new(Duration::from_millis(20), 4);
        let error = loop {
            if let Err(error) = patience.idle(|| "rank 3 to connect".to_owned()) {
                break error;
            }
        };
        assert_eq!(
            error.to_string(),
            "nothing moved for 0.0 s while waiting for rank 3 to connect"
        );
    }

    #[test]
    fn a_deadline_is_after_the_limit_or_after_100_years() {
        let (hour, begun) = (Duration::from_secs(3600), Instant::now());
        assert!(deadline(hour) >= begun + hour && deadline(hour) < begun + 2 * hour);
        assert!(deadline(Duration::MAX) >= begun + LONGEST);
    }

    #[test]
    fn a_process_that_was_stopped_waits_on() {
        let mut patience = Patience::new(Duration::from_millis(400), 1);
        patience.idle(String::new).unwrap();
        thread::sleep(Duration::from_millis(800)); // no poll meanwhile
        patience.idle(String::new).unwrap();
        while patience.idle(String::new).is_ok() {}
    }

    #[test]
    fn progress_restarts_the_limit() {
        let mut patience = Patience::new(Duration::from_millis(30), 1);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(90) {
            patience.idle(String::new).unwrap();
            patience.reset();
        }
    }

    #[test]
    fn a_time_without_polls_is_a_quarter_of_a_wait_at_most() {
        let (limit, mut now) = (Duration::from_secs(40), Instant::now());
        let mut watched = Watched::new(now);
        let mut idle_after = |seconds: u64| {
            now += Duration::from_secs(seconds);
            watched.idle(now, limit).as_secs()
        };
        assert_eq!([1, 9, 1000, 5, 11, 10_000].map(&mut idle_after), [1, 10, 20, 25, 35, 45]);
    }

    #[test]
    fn a_time_without_checks_does_not_end_a_wait() {
        let limit = Duration::from_secs(40);
        let mut quiet = Quiet::new(limit);
        let mut now = quiet.watched.since;
        let mut is_over_after = |seconds: u64, progress| {
            now += Duration::from_secs(seconds);
            quiet.is_over_at(now, progress)
        };
        assert!(!is_over_after(10, 0) && !is_over_after(1000, 0) && !is_over_after(10, 0));
        assert!(is_over_after(10, 0), "three times 10 s, and a quarter of the limit for the gap");
        assert!(!is_over_after(1, 1), "progress restarts the limit");
        assert!((0..39).all(|_| !is_over_after(1, 1)) && is_over_after(1, 1));
        assert!(!is_over_after(1000, 2));
    }
}
