//! Times of iterations, and their statistics.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Collects one time per iteration. It does not allocate for the first [`ROOM`] times, and seldom later.
#[derive(Debug)]
pub(super) struct Stopwatch {
    times: Vec<Duration>,
    last: Instant,
}

impl Stopwatch {
    pub(super) fn with_room(laps: usize) -> Self {
        Self { times: Vec::with_capacity(laps.min(ROOM)), last: Instant::now() }
    }

    pub(super) fn start(&mut self) {
        self.times.clear();
        self.last = Instant::now();
    }

    /// Ends an iteration: its time is the time since the last lap.
    pub(super) fn lap(&mut self) {
        let now = Instant::now();
        self.times.push(now - self.last);
        self.last = now;
    }

    /// Sorts the times and summarises them.
    pub(super) fn times(&mut self) -> Times {
        let sum: Duration = self.times.iter().sum();
        self.times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let count = u32::try_from(self.times.len()).unwrap_or(u32::MAX).max(1);
        Times {
            mean_us: us(sum) / f64::from(count),
            p50_us: us(percentile(&self.times, 50)),
            p99_us: us(percentile(&self.times, 99)),
        }
    }
}

/// The laps for which memory is allocated at the start. More laps get memory as they run: a billion laps would take 16 GB, and may be
/// interrupted long before.
const ROOM: usize = 1 << 20;

/// The smallest time that `percent` of all times do not exceed; `sorted` is ascending.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The time per iteration of one rank, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Times {
    /// As in nccl-tests, the mean is that of all ranks. The percentiles are those of the slowest.
    pub(super) fn of_all(ranks: &[Self]) -> Self {
        let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX).max(1);
        let most = |of: fn(&Self) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
        Self {
            mean_us: ranks.iter().map(|times| times.mean_us).sum::<f64>() / f64::from(count),
            p50_us: most(|times| times.p50_us),
            p99_us: most(|times| times.p99_us),
        }
    }

    /// The times of the slowest rank: where a sender's completions prove nothing, only the receiver's clock counts.
    pub(super) fn of_slowest(ranks: &[Self]) -> Self {
        let mean_us = ranks.iter().map(|times| times.mean_us).fold(0.0, f64::max);
        Self { mean_us, ..Self::of_all(ranks) }
    }

    pub(super) fn halved(self) -> Self {
        let Self { mean_us, p50_us, p99_us } = self;
        Self { mean_us: mean_us / 2.0, p50_us: p50_us / 2.0, p99_us: p99_us / 2.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<_> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 50), Duration::from_micros(50));
        assert_eq!(percentile(&times, 99), Duration::from_micros(99));
        assert_eq!(percentile(&times[..1], 99), Duration::from_micros(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
        assert_eq!(percentile(&times[..20], 99), Duration::from_micros(20));
    }

    #[test]
    fn only_the_mean_differs_between_all_ranks_and_the_slowest() {
        let ranks = [
            Times { mean_us: 1.0, p50_us: 4.0, p99_us: 5.0 },
            Times { mean_us: 3.0, p50_us: 2.0, p99_us: 9.0 },
        ];
        assert_eq!(Times::of_all(&ranks), Times { mean_us: 2.0, p50_us: 4.0, p99_us: 9.0 });
        assert_eq!(Times::of_slowest(&ranks), Times { mean_us: 3.0, p50_us: 4.0, p99_us: 9.0 });
    }

    #[test]
    fn memory_for_laps_comes_with_the_laps() {
        let mut watch = Stopwatch::with_room(usize::MAX);
        watch.lap();
        assert_eq!(watch.times.len(), 1);
    }

    #[test]
    fn a_stopwatch_splits_the_whole_time_into_laps() {
        let mut watch = Stopwatch::with_room(3);
        watch.start();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
            watch.lap();
        }
        let times = watch.times();
        assert!(times.mean_us >= 2000.0 && times.p50_us >= 2000.0 && times.p99_us >= times.p50_us);
    }
}
