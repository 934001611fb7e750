//! What every rank does: connect, then size by size warm up, measure, check; rank 0 reports.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::Library;

use super::arguments::{Benchmark, Options};
use super::benchmarks::{Workload, workload};
use super::outcome::{Outcome, row};
use super::report::{Event, Moved, Ready};
use super::statistics::Stopwatch;

/// Runs this rank. `emit` is called on rank 0 only. What was wrong stands in the rows. A rank that fails gives up before
/// it closes anything.
pub(super) fn run(
    benchmark: &Benchmark,
    options: &Options,
    library: &Arc<Library>,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let mut communicator = Communicator::connect(library, bootstrap, options.device, wait)?;
    let mut work = workload(benchmark, options, &communicator)
        .inspect_err(|why| _ = bootstrap.give_up(why))?;
    measure(benchmark, options, &mut communicator, &mut *work, bootstrap, emit)
        .inspect_err(|why| _ = bootstrap.give_up(why))?;
    drop(work);
    // Nobody closes while a neighbour may still be sending.
    bootstrap.barrier(wait)
}

fn measure(
    benchmark: &Benchmark,
    options: &Options,
    communicator: &mut Communicator,
    work: &mut dyn Workload,
    bootstrap: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let ranks = introduce(communicator, bootstrap, wait)?;
    let first = bootstrap.rank() == 0;
    if first {
        let library = communicator.net().library();
        emit(Event::Ready(Ready {
            network: library.name().to_owned(),
            table: library.version(),
            file: library.path().to_owned(),
            ranks,
        }));
    }
    for bytes in options.sizes() {
        let iterations = options.iterations(benchmark, bytes);
        let warmups = options.warmups(benchmark, iterations);
        let mut watch = Stopwatch::with_room(iterations.max(warmups));
        let shape = work.begin(communicator, bytes);
        bootstrap.barrier(wait)?;
        // The warm-ups also bring the ranks into step, which the rendezvous cannot do as finely.
        work.run(communicator, warmups, &mut watch)?;
        work.run(communicator, iterations, &mut watch)?;
        let mut times = watch.times();
        if work.laps_are_round_trips() {
            times = times.halved();
        }
        let mut wrong = 0;
        for iteration in 0..options.check {
            wrong += work.check(communicator, iteration)?;
        }
        let all = Outcome { times, wrong }.of_all_ranks(bootstrap, wait)?;
        if first {
            emit(Event::Row(row(benchmark, options, shape, iterations, &all)));
        }
    }
    if options.writes {
        let received = communicator.previous.done() as u64;
        let all = bootstrap.all_gather(&received.to_le_bytes(), wait)?;
        if first {
            emit(Event::Moved(Moved { messages: sum(&all)?, posts: None }));
        }
    }
    Ok(())
}

/// Of what every rank has received.
fn sum(all: &[Vec<u8>]) -> Result<u64, GroupError> {
    let number = |bytes: &Vec<u8>| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?));
    let numbers: Option<Vec<u64>> = all.iter().map(number).collect();
    numbers.map(|numbers| numbers.iter().sum()).ok_or_else(|| {
        GroupError::Bootstrap("a rank sent a count of messages that is none".to_owned())
    })
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
