//! Bounded waiting: spin, then yield, and give up with a sentence when nothing has moved for too long.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;

/// Counts polls in which nothing moved. The clock is read rarely, so an idle poll costs a few instructions.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Duration,
    spins: u32,
    idle: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Yields after `spins` idle polls: few where ranks outnumber CPUs, many where each has its own.
    pub fn new(limit: Duration, spins: u32) -> Self {
        Self { limit, spins: spins.max(1), idle: 0, since: None }
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Something moved: the wait begins anew.
    #[inline]
    pub fn reset(&mut self) {
        beat();
        self.idle = 0;
        self.since = None;
    }

    /// Nothing moved. `whom` is asked only when patience ends.
    #[inline]
    pub fn idle(&mut self, whom: impl FnOnce() -> String) -> Result<(), GroupError> {
        self.idle += 1;
        if self.idle < self.spins {
            return Ok(());
        }
        self.idle = 0;
        self.slow(whom)
    }

    #[cold]
    fn slow(&mut self, whom: impl FnOnce() -> String) -> Result<(), GroupError> {
        beat();
        thread::yield_now();
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < self.limit {
            return Ok(());
        }
        Err(GroupError::Timeout { peers: Vec::new(), whom: whom(), limit: self.limit })
    }
}

/// Changes while any thread of this process waits or moves. It stands still when a call does not come back.
pub fn beats() -> u64 {
    BEATS.load(Ordering::Relaxed)
}

/// A group's wait goes on, or has ended.
pub(crate) fn note() {
    beat();
}

/// Not an atomic addition: a beat that is lost to another thread's is a beat all the same.
#[inline]
fn beat() {
    BEATS.store(BEATS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

static BEATS: AtomicU64 = AtomicU64::new(0);

/// Idle polls before a yield, for `ranks` ranks that spin on this machine at once.
pub fn spins_for(ranks: usize) -> u32 {
    if ranks < cpus() { SPINS_ALONE } else { SPINS_CROWDED }
}

/// The CPUs that this process may use, as it was first asked.
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
    fn patience_ends_in_a_sentence_that_names_who_is_waited_for() {
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
    fn what_moves_renews_it() {
        let mut patience = Patience::new(Duration::from_millis(30), 1);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(90) {
            patience.idle(String::new).unwrap();
            patience.reset();
        }
    }
}
