//! What every rank does: connect, then size by size warm up, measure, check; rank 0 reports.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::Library;

use super::arguments::{Benchmark, Options};
use super::benchmarks::{Shape, workload};
use super::report::{Event, Ready, Row};
use super::statistics::{Stopwatch, Times};

/// Runs this rank. `emit` is called on rank 0 only. What was wrong stands in the rows.
pub(super) fn run(
    benchmark: Benchmark,
    options: &Options,
    library: &Arc<Library>,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let mut communicator = Communicator::connect(library, bootstrap, options.device, wait)?;
    let ranks = introduce(&communicator, bootstrap, wait)?;
    let first = bootstrap.rank() == 0;
    if first {
        emit(Event::Ready(Ready {
            network: library.name().to_owned(),
            table: library.version(),
            file: library.path().to_owned(),
            ranks,
        }));
    }
    let mut work = workload(benchmark, options, &communicator)?;
    for bytes in options.sizes() {
        let iterations = options.iterations(benchmark, bytes);
        let mut watch = Stopwatch::with_room(iterations.max(options.warmups));
        let shape = work.begin(&communicator, bytes);
        bootstrap.barrier(wait)?;
        // The warm-ups also bring the ranks into step, which the rendezvous cannot do as finely.
        work.run(&mut communicator, options.warmups, &mut watch)?;
        work.run(&mut communicator, iterations, &mut watch)?;
        let mut times = watch.times();
        if work.laps_are_round_trips() {
            times = times.halved();
        }
        let mut wrong = 0;
        for iteration in 0..options.check {
            wrong += work.check(&mut communicator, iteration)?;
        }
        let all = bootstrap.all_gather(&Outcome { times, wrong }.to_bytes(), wait)?;
        let all: Vec<_> =
            all.iter().map(|bytes| Outcome::from_bytes(bytes)).collect::<Result<_, _>>()?;
        if first {
            emit(Event::Row(row(benchmark, options, shape, iterations, &all)));
        }
    }
    drop(work);
    // Nobody closes while a neighbour may still be sending.
    bootstrap.barrier(wait)?;
    Ok(())
}

fn introduce(
    communicator: &Communicator,
    bootstrap: &mut dyn Bootstrap,
    wait: Duration,
) -> Result<Vec<String>, GroupError> {
    let device = communicator.device();
    let properties = communicator.net().properties(device)?;
    let line = format!(
        "Rank {:>2} Pid {:>6} device {device} [{}] {} Mb/s",
        bootstrap.rank(),
        process::id(),
        properties.name,
        properties.speed_mbps
    );
    let lines = bootstrap.all_gather(line.as_bytes(), wait)?;
    Ok(lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect())
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn row(
    benchmark: Benchmark,
    options: &Options,
    shape: Shape,
    iterations: usize,
    all: &[Outcome],
) -> Row {
    let ranks: Vec<_> = all.iter().map(|result| result.times).collect();
    let times = Times::of_all(&ranks);
    let algorithm_bandwidth =
        if times.mean_us > 0.0 { shape.bytes as f64 / times.mean_us / 1e3 } else { 0.0 };
    Row {
        bytes: shape.bytes,
        count: shape.count,
        kind: options.kind.to_string(),
        operation: benchmark.operation().to_owned(),
        iterations,
        times,
        algorithm_bandwidth,
        bus_bandwidth: algorithm_bandwidth * shape.bus_factor,
        wrong: (options.check > 0).then(|| all.iter().map(|result| result.wrong).sum()),
    }
}

/// One rank's result of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    times: Times,
    wrong: u64,
}

impl Outcome {
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
        parse().ok_or_else(|| GroupError::Bootstrap("a rank sent a result that is none".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_its_journey_and_a_short_one_is_refused() {
        let times = Times { mean_us: 1.5, p50_us: 2.5, p99_us: 1e9 };
        let result = Outcome { times, wrong: 77 };
        let bytes = result.to_bytes();
        assert_eq!(Outcome::from_bytes(&bytes).unwrap(), result);
        assert!(Outcome::from_bytes(&bytes[..31]).is_err());
    }
}
