//! A rank: connects, then for each size warms up, measures, checks; rank 0 reports.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use ironrail_group::bootstrap::{Bootstrap, Remote};
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, Group};
use ironrail_group::loader::{Library, Net};

use super::arguments::{Benchmark, Collective, Options};
use super::benchmarks::{Workload, of_group, of_neighbours};
use super::outcome::{Outcome, row};
use super::report::{Event, Moved, Ready};
use super::statistics::Stopwatch;
use crate::{output, sums};

/// Runs this rank. `emit` is called on rank 0 only. Wrong data is reported in the rows. A rank that fails reports that to the rendezvous
/// before it closes anything.
pub(super) fn run(
    benchmark: &Benchmark,
    options: &Options,
    library: &Arc<Library>,
    place: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let communicator = Communicator::connect(library, place, options.device, wait)?;
    let (net, device) = (Arc::clone(communicator.net()), communicator.device());
    let measured = of_neighbours(benchmark, options, communicator)
        .and_then(|mut work| {
            measure(benchmark, options, (&net, device), &mut *work, place, emit).map(|()| work)
        })
        .inspect_err(|why| _ = place.give_up(why))?;
    drop(measured);
    // Close only once no neighbour is still sending.
    place.barrier(wait)
}

/// As [`run`], for a collective; the group takes over the rendezvous.
pub(super) fn run_collective(
    (benchmark, what): (&Benchmark, Collective),
    options: &Options,
    library: &Arc<Library>,
    place: Remote,
    emit: &mut dyn FnMut(Event),
) -> Result<(), Failed> {
    let mut builder = Builder::new(library).timeout(options.timeout()).device(options.device);
    let failed = |reported| move |error| Failed { error, reported };
    if let Some(tuning) = options.tuning().map_err(failed(false))? {
        builder = builder.tuning(tuning);
    }
    let group = builder.join(place).map_err(failed(true))?;
    let mut place = Place(group.clone());
    let (net, device) = (group.net(), group.device());
    let measured = of_group(what, options, &group).and_then(|mut work| {
        measure(benchmark, options, (&net, device), &mut *work, &mut place, emit)
    });
    measured
        .and_then(|()| place.barrier(options.timeout()))
        .map_err(|error| Failed { reported: place.give_up(&error), error })
}

/// Why a rank failed, and whether the rendezvous was informed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: GroupError,
    pub(super) reported: bool,
}

/// The rendezvous of a group.
#[derive(Debug)]
struct Place(Group);

impl Bootstrap for Place {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn identity(&self) -> u64 {
        0
    }

    fn all_gather(&mut self, part: &[u8], _wait: Duration) -> Result<Vec<Vec<u8>>, GroupError> {
        self.0.meet(part)
    }

    fn give_up(&mut self, why: &GroupError) -> bool {
        self.0.give_up(why)
    }
}

fn measure(
    benchmark: &Benchmark,
    options: &Options,
    (net, device): (&Arc<Net>, usize),
    work: &mut dyn Workload,
    place: &mut dyn Bootstrap,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    let wait = options.timeout();
    let ranks = introduce(net, device, place, wait)?;
    let first = place.rank() == 0;
    if first {
        let library = net.library();
        emit(Event::Ready(Ready {
            network: library.name().to_owned(),
            table: library.version(),
            file: library.path().to_owned(),
            ranks,
        }));
    }
    for bytes in options.sizes_of(benchmark) {
        let iterations = options.iterations(benchmark, bytes);
        let warmups = options.warmups(benchmark, iterations);
        let mut watch = Stopwatch::with_room(iterations.max(warmups));
        let shape = work.begin(bytes)?;
        place.barrier(wait)?;
        // The warm-ups also synchronise the ranks, more finely than the rendezvous can.
        work.run(warmups, &mut watch)?;
        work.run(iterations, &mut watch)?;
        let mut times = watch.times();
        if work.laps_are_round_trips() {
            times = times.halved();
        }
        let mut wrong = 0;
        for iteration in 0..options.checks(benchmark) {
            wrong += work.check(iteration)?;
        }
        let all = Outcome { times, wrong }.of_all_ranks(place, wait)?;
        if first {
            emit(Event::Row(row(benchmark, options, shape, iterations, &all)));
        }
    }
    if options.writes
        && let Some(received) = work.received()
    {
        let all = place.all_gather(&received.to_le_bytes(), wait)?;
        if first {
            emit(Event::Moved(Moved { messages: sum(&all)?, posts: None }));
        }
    }
    Ok(())
}

/// The sum over all ranks.
fn sum(all: &[Vec<u8>]) -> Result<u64, GroupError> {
    let number = |bytes: &Vec<u8>| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?));
    let numbers: Option<Vec<u64>> = all.iter().map(number).collect();
    numbers
        .map(sums::saturating)
        .ok_or_else(|| GroupError::Bootstrap("a rank sent an invalid count of messages".to_owned()))
}

fn introduce(
    net: &Net,
    device: usize,
    bootstrap: &mut dyn Bootstrap,
    wait: Duration,
) -> Result<Vec<String>, GroupError> {
    let properties = net.properties(device)?;
    let line = format!(
        "Rank {:>2} Pid {:>6} device {device} [{}] {} Mb/s",
        bootstrap.rank(),
        process::id(),
        properties.name,
        properties.speed_mbps
    );
    let lines = bootstrap.all_gather(line.as_bytes(), wait)?;
    Ok(output::lines_of_ranks(&lines))
}
