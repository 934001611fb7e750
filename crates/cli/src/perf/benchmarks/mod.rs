//! The measurements: each benchmark owns its buffers and one loop, and checks its own results.

mod collective;
mod halo;
mod ping_pong;
mod stream;

use std::sync::Arc;

use ironrail_group::check;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::Buffer;

use super::arguments::{Benchmark, Collective, Options};
use super::statistics::Stopwatch;

/// A size as the table shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    pub(super) count: usize,
    /// Bus bandwidth divided by algorithm bandwidth, as nccl-tests defines it.
    pub(super) bus_factor: f64,
}

/// A measurement on one rank.
pub(super) trait Workload {
    /// Prepares a size, so that nothing is allocated later.
    fn begin(&mut self, bytes: usize) -> Result<Shape, GroupError>;
    /// Runs iterations back to back, one lap each.
    fn run(&mut self, iterations: usize, watch: &mut Stopwatch) -> Result<(), GroupError>;
    /// Runs once with fresh data into poisoned memory; returns the number of wrong elements on this rank.
    fn check(&mut self, iteration: usize) -> Result<u64, GroupError>;
    /// Messages that this rank has received, if known.
    fn received(&self) -> Option<u64> {
        None
    }
    /// Whether a lap is a round trip, of which half is reported.
    fn laps_are_round_trips(&self) -> bool {
        false
    }
}

/// Allocates the buffers of a collective.
pub(super) fn of_group(
    what: Collective,
    options: &Options,
    group: &Group,
) -> Result<Box<dyn Workload>, GroupError> {
    match what {
        Collective::Halo => return Ok(Box::new(halo::Rounds::new(options, group))),
        Collective::FixedHalo => return Ok(Box::new(halo::FixedRounds::new(options, group))),
        _ => {}
    }
    Ok(Box::new(collective::Collectives::new(what, options, group)?))
}

/// Allocates and registers the buffers of messages between neighbours.
pub(super) fn of_neighbours(
    benchmark: &Benchmark,
    options: &Options,
    communicator: Communicator,
) -> Result<Box<dyn Workload>, GroupError> {
    let net = Arc::clone(communicator.net());
    let most = net.properties(communicator.device())?.group_max;
    let fits = |group: usize| {
        if group > 1 && usize::try_from(most).is_ok_and(|most| group > most) {
            let version = net.library().version();
            return Err(GroupError::Usage(format!(
                "the plugin takes {most} in one receive by table v{version}, and --group asks for {group}"
            )));
        }
        Ok(())
    };
    Ok(match benchmark {
        Benchmark::SendReceive(how) => {
            fits(how.group)?;
            Box::new(Neighbours::new(
                stream::Streaming::new(*how, options, &communicator)?,
                communicator,
            ))
        }
        Benchmark::PingPong(how) => {
            fits(how.group)?;
            Box::new(Neighbours::new(
                ping_pong::Rally::new(*how, options, &communicator)?,
                communicator,
            ))
        }
        _ => return Err(GroupError::Usage("not a benchmark of messages".to_owned())),
    })
}

/// A measurement of messages between neighbours.
trait Exchange {
    fn begin(&mut self, bytes: usize) -> Shape;
    fn run(
        &mut self,
        communicator: &mut Communicator,
        iterations: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), GroupError>;
    fn check(
        &mut self,
        communicator: &mut Communicator,
        iteration: usize,
    ) -> Result<u64, GroupError>;
    fn laps_are_round_trips(&self) -> bool {
        false
    }
}

/// An exchange with its connections.
struct Neighbours<E> {
    exchange: E, // Dropped first: its regions are of these comms.
    communicator: Communicator,
}

impl<E: Exchange> Neighbours<E> {
    fn new(exchange: E, communicator: Communicator) -> Self {
        Self { exchange, communicator }
    }
}

impl<E: Exchange> Workload for Neighbours<E> {
    fn begin(&mut self, bytes: usize) -> Result<Shape, GroupError> {
        Ok(self.exchange.begin(bytes))
    }

    fn run(&mut self, iterations: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        self.exchange.run(&mut self.communicator, iterations, watch)
    }

    fn check(&mut self, iteration: usize) -> Result<u64, GroupError> {
        self.exchange.check(&mut self.communicator, iteration)
    }

    fn received(&self) -> Option<u64> {
        Some(self.communicator.previous.done() as u64)
    }

    fn laps_are_round_trips(&self) -> bool {
        self.exchange.laps_are_round_trips()
    }
}

/// Poisoned bytes behind every output, which show writes beyond its end.
const GUARD_BYTES: usize = 4096;

/// A buffer whose pages are all touched before the clock starts: memory that was never written reads as one page of zeros, and costs a page
/// fault per page on first use.
fn buffer(len: usize) -> Result<Buffer, GroupError> {
    let mut buffer = Buffer::new(len)?;
    check::poison(&mut buffer)?;
    Ok(buffer)
}
