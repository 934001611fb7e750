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
    since: Option<Instant>,
    /// The report to the hub that nothing moves here.
    stuck: Option<Stuck>,
    /// It never spins: a waker says when to poll again.
    polled: bool,
}

impl Wait {
    /// The wait of a future, which its executor polls.
    pub(crate) fn polled() -> Self {
        Self { idle_polls: 0, since: None, stuck: None, polled: true }
    }

    #[inline]
    pub(super) fn moved(&mut self) {
        self.idle_polls = 0;
        self.since = None;
        self.stuck = None;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// The hub was informed that nothing moves.
    pub(super) fn reported(&mut self, stuck: Stuck) {
        self.stuck = Some(stuck);
    }

    /// Nothing moved. `None`: poll again at once. Otherwise the time without progress.
    #[inline]
    pub(super) fn idle(&mut self, pace: Pace) -> Option<Duration> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        if self.idle_polls < pace.spins && !self.polled {
            std::hint::spin_loop();
            return None;
        }
        let now = Instant::now();
        Some(now - *self.since.get_or_insert(now))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        crate::patience::note();
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

const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
