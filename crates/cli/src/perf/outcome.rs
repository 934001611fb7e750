//! The measurement of a size on one rank, and the row made from those of all ranks.

use std::time::Duration;

use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;

use super::arguments::{Benchmark, Options};
use super::benchmarks::Shape;
use super::report::Row;
use super::statistics::Times;
use crate::sums;

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
/// The row of a size, from every rank's result.
pub(super) fn row(
    benchmark: &Benchmark,
    options: &Options,
    shape: Shape,
    iterations: usize,
    all: &[Outcome],
) -> Row {
    let ranks: Vec<_> = all.iter().map(|result| result.times).collect();
    let slowest = Times::of_slowest(&ranks);
    let times = match benchmark {
        Benchmark::Raw(_) => slowest,
        _ => Times::of_all(&ranks),
    };
    let algorithm_bandwidth =
        if times.mean_us > 0.0 { shape.bytes as f64 / times.mean_us / 1e3 } else { 0.0 };
    Row {
        bytes: shape.bytes,
        count: shape.count,
        kind: options.kind.to_string(),
        operation: benchmark.operation(options.operation()).to_owned(),
        root: benchmark.root(options.root()),
        in_place: options.in_place,
        iterations,
        warmups: options.warmups(benchmark, iterations),
        times,
        slowest_us: slowest.mean_us,
        algorithm_bandwidth,
        bus_bandwidth: algorithm_bandwidth * shape.bus_factor,
        wrong: (options.checks(benchmark) > 0).then(|| wrong_of_all(all)),
    }
}

/// The wrong elements of all ranks.
fn wrong_of_all(all: &[Outcome]) -> u64 {
    sums::saturating(all.iter().map(|result| result.wrong))
}

/// One rank's result of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) times: Times,
    pub(super) wrong: u64,
}

impl Outcome {
    /// The results of all ranks, by rank.
    pub(super) fn of_all_ranks(
        self,
        bootstrap: &mut dyn Bootstrap,
        wait: Duration,
    ) -> Result<Vec<Self>, GroupError> {
        let all = bootstrap.all_gather(&self.to_bytes(), wait)?;
        all.iter().map(|bytes| Self::from_bytes(bytes)).collect()
    }

    fn to_bytes(self) -> Vec<u8> {
        let Times { mean_us, p50_us, p99_us } = self.times;
        let times = [mean_us, p50_us, p99_us].into_iter().flat_map(f64::to_le_bytes);
        times.chain(self.wrong.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, GroupError> {
        let word = |index: usize| bytes.get(index * 8..index * 8 + 8)?.try_into().ok();
        let parse = || {
            let times = Times {
                mean_us: f64::from_le_bytes(word(0)?),
                p50_us: f64::from_le_bytes(word(1)?),
                p99_us: f64::from_le_bytes(word(2)?),
            };
            Some(Self { times, wrong: u64::from_le_bytes(word(3)?) })
        };
        parse().ok_or_else(|| GroupError::Bootstrap("a rank sent an invalid result".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_written_and_a_short_one_is_refused() {
        let times = Times { mean_us: 1.5, p50_us: 2.5, p99_us: 1e9 };
        let result = Outcome { times, wrong: 77 };
        let bytes = result.to_bytes();
        assert_eq!(Outcome::from_bytes(&bytes).unwrap(), result);
        assert!(Outcome::from_bytes(&bytes[..31]).is_err());
    }

    #[test]
    fn wrong_elements_of_all_ranks_never_add_up_to_none() {
        let times = Times { mean_us: 1.0, p50_us: 1.0, p99_us: 1.0 };
        assert_eq!(wrong_of_all(&[Outcome { times, wrong: 1 << 63 }; 2]), u64::MAX);
        assert_eq!(wrong_of_all(&[Outcome { times, wrong: 2 }; 3]), 6);
    }
}
