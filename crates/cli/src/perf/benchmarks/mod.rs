//! What is measured: each benchmark owns its buffers and one loop, and checks its own results.

mod collective;
mod ping_pong;
mod stream;

use ironrail_group::check;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::Buffer;

use super::arguments::{Benchmark, Options, PingPong, Stream};
use super::statistics::Stopwatch;

/// A size as the table shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    pub(super) count: usize,
    /// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
    pub(super) bus_factor: f64,
}

/// A measurement on one rank.
pub(super) trait Workload {
    /// Makes everything ready for a size, so that nothing is allocated after.
    fn begin(&mut self, communicator: &Communicator, bytes: usize) -> Shape;
    /// Runs iterations back to back, one lap each.
    fn run(
        &mut self,
        communicator: &mut Communicator,
        iterations: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), GroupError>;
    /// Runs once with fresh data into poison; how many elements came out wrong here.
    fn check(
        &mut self,
        communicator: &mut Communicator,
        iteration: usize,
    ) -> Result<u64, GroupError>;
    /// Whether a lap is a round trip, of which half is reported.
    fn laps_are_round_trips(&self) -> bool {
        false
    }
}

/// Allocates and registers what `benchmark` needs.
pub(super) fn workload(
    benchmark: &Benchmark,
    options: &Options,
    communicator: &Communicator,
) -> Result<Box<dyn Workload>, GroupError> {
    let (Benchmark::SendReceive(Stream { group, .. })
    | Benchmark::PingPong(PingPong { group, .. })) = benchmark
    else {
        return Ok(Box::new(collective::Collective::new(benchmark, options, communicator)?));
    };
    let net = communicator.net();
    let most = net.properties(communicator.device())?.group_max;
    if *group > 1 && usize::try_from(most).is_ok_and(|most| *group > most) {
        let version = net.library().version();
        return Err(GroupError::Usage(format!(
            "the plugin takes {most} in one receive by table v{version}, and --group asks for {group}"
        )));
    }
    Ok(match benchmark {
        Benchmark::SendReceive(how) => {
            Box::new(stream::Streaming::new(*how, options, communicator)?)
        }
        Benchmark::PingPong(how) => Box::new(ping_pong::Rally::new(*how, options, communicator)?),
        _ => Box::new(collective::Collective::new(benchmark, options, communicator)?),
    })
}

/// Poisoned bytes behind every output, to see writes past its end.
const GUARD_BYTES: usize = 4096;

/// A buffer of which every page is there before the clock runs: memory that was never written to is one page of zeros to
/// those who read it, and costs a fault per page the first time that something lands in it.
fn buffer(len: usize) -> Result<Buffer, GroupError> {
    let mut buffer = Buffer::new(len)?;
    check::poison(&mut buffer)?;
    Ok(buffer)
}
