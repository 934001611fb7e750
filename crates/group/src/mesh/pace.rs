//! How a rank waits: it spins briefly, then yields, then sleeps.

use std::thread;
use std::time::{Duration, Instant};

use crate::bootstrap::Stuck;
use crate::patience::{self, Watched};

/// How long a rank spins and yields, by the number of ranks and of the CPUs that they share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    spins: u32,
    yields: Duration,
    /// Every `others`th idle poll polls another peer too.
    others: u32,
}

impl Pace {
    /// The pace of one of `ranks` ranks on this machine, which together may use `cpus` CPUs.
    ///
    /// If every rank has a CPU of its own, a yield costs latency; otherwise a spin takes the CPU from a rank that could run.
    pub(crate) fn new(ranks: usize, cpus: usize) -> Self {
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

/// One wait. It begins when nothing moves, and ends when it is dropped, with any result.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    idle_polls: u32,
    quiet: Option<Watched>,
    /// The report to the hub that nothing moves here.
    stuck: Option<Stuck>,
    /// The caller has a limit of its own: the hub is not informed, and the group does not fail.
    bounded: bool,
}

impl Wait {
    /// The wait of a caller that gives up by itself, by [`patience::Quiet`].
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
        patience::note();
    }
}

/// Yields or sleeps, the longer the longer nothing has moved: `idle` is that time.
pub(crate) fn rest(pace: Pace, idle: Duration) {
    if idle < pace.yields {
        thread::yield_now();
    } else {
        thread::sleep((idle / 20).clamp(SLEEP_MIN, SLEEP_MAX));
    }
}

const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
