//! How a rank waits: it spins shortly, then yields, then sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// How long to do what, by how many ranks share how many CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    spins: u32,
    yields: Duration,
    /// In one of so many turns in vain another peer is looked after.
    others: u32,
}

impl Pace {
    /// Where every rank has a CPU of its own a yield costs latency, else a spin costs the others their turn.
    pub(super) fn new(ranks: usize, cpus: usize) -> Self {
        if ranks <= cpus {
            Self { spins: 2000, yields: Duration::from_millis(2), others: 16 }
        } else {
            Self { spins: 1, yields: Duration::from_millis(1), others: 4 }
        }
    }

    /// Whether another peer's turn has come, after so many turns. A look at a peer polls the network: more of them make the one that is
    /// waited for come later.
    pub(super) fn is_anothers(self, turns: u32) -> bool {
        turns.is_multiple_of(self.others)
    }
}

/// One wait. It begins when nothing moves.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    turns: u32,
    since: Option<Instant>,
    /// Whether the hub was told.
    pub(super) stuck: bool,
    /// It never spins: others say when to look again.
    polled: bool,
}

impl Wait {
    /// Of a future, which is polled now and then.
    pub(crate) fn polled() -> Self {
        Self { polled: true, ..Self::default() }
    }

    #[inline]
    pub(super) fn moved(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Nothing moved. None: look again at once. Else for how long nothing has.
    #[inline]
    pub(super) fn idle(&mut self, pace: Pace) -> Option<Duration> {
        self.turns = self.turns.saturating_add(1);
        if self.turns < pace.spins && !self.polled {
            std::hint::spin_loop();
            return None;
        }
        let now = Instant::now();
        Some(now - *self.since.get_or_insert(now))
    }
}

/// Gives the CPU away, for how long depends on how long nothing has moved.
pub(crate) fn rest(pace: Pace, idle: Duration) {
    if idle < pace.yields {
        thread::yield_now();
    } else {
        thread::sleep((idle / 20).clamp(SLEEP_MIN, SLEEP_MAX));
    }
}

const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
