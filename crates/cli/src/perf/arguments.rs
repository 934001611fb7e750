//! The command line of `ironrail perf`, in nccl-tests' spelling where that has one.

mod bare;
mod benchmark;
mod options;
mod ranges;

use clap::{Arg, Args, Subcommand};
use ironrail_group::error::GroupError;

pub(super) use bare::{Place, Raw, Versus};
pub(super) use benchmark::{Benchmark, Collective, PingPong, Stream};
pub(super) use options::Options;

use super::cpus;
use crate::compare;
use options::{RAW_REFUSES, TUNE_REFUSES, VERSUS_REFUSES};
use ranges::positive;

/// Measures collectives and messages over a net plugin, reached only through its C tables, as NCCL does.
///
/// Ranks are processes (or threads, with --threads) that this command starts: -r says how many; -n is nccl-tests'
/// number of iterations. Exit code: 0 when all is well, 1 when anything is wrong (data, a rank, a timeout), 2 when the
/// command line is.
#[derive(Debug, Args)]
pub(crate) struct Perf {
    #[command(subcommand)]
    benchmark: Command,
}

#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
enum Command {
    /// Every rank ends with the reduction of all inputs.
    AllReduce(Options),
    /// The root ends with the reduction of all inputs.
    Reduce(Options),
    /// Every rank ends with the root's input.
    Broadcast(Options),
    /// Every rank ends with all inputs. The size is that of the output.
    AllGather(Options),
    /// The root ends with all inputs. The size is that of its output.
    Gather(Options),
    /// Every rank ends with its part of the root's input. The size is that of the input.
    Scatter(Options),
    /// Every rank ends with its part of the reduction. The size is that of the input.
    ReduceScatter(Options),
    /// Every rank sends a part of its input to every rank. The size is that of the input.
    #[command(name = "alltoall")]
    AllToAll(Options),
    /// Every rank waits for all others. Nothing has a size, so there is one row.
    Barrier(Options),
    /// Every rank swaps borders with both neighbours in a ring. The size is that of one border.
    Halo(Options),
    /// The same with borders whose lengths stay the same, in registered memory, as MPI's.
    FixedHalo(Options),
    /// Messages to the next rank and from the previous one, a window of them outstanding: bandwidth of one connection.
    #[command(name = "sendrecv")]
    SendReceive {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        stream: Stream,
    },
    /// One message back and forth between two ranks; the time is half a round trip. One receive is posted at a time, unless --ahead asks
    /// for more: then as in NCCL's small collectives, where this latency counts.
    #[command(name = "pingpong")]
    PingPong {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        ping_pong: PingPong,
    },
    /// Bare libfabric, without a plugin: writes with immediates between two processes. The reference for sendrecv --one-way
    /// and, with --latency, for pingpong --ahead 8. With --two-sided, the reference for the rate of messages and for a pingpong of
    /// short ones; with --rendezvous, for one of long ones.
    #[command(mut_args = without(RAW_REFUSES))]
    Raw {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        raw: Raw,
    },
    /// The plugin against bare libfabric on one provider, run by run: the median of the ratios of such pairs, its 95 %
    /// interval, and a verdict where the interval is narrow enough for one.
    #[command(name = "versus-raw", mut_args = without(VERSUS_REFUSES))]
    VersusRaw {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        versus: Versus,
    },
    /// Measures every algorithm of all-reduce, and prints the table of the fastest by ranks and sizes, which --tuning and the
    /// library's Builder take: for 2 ranks, for as many as -r says, and for some numbers between.
    #[command(mut_args = without(TUNE_REFUSES))]
    Tune {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        tune: Tune,
    },
    Compare(compare::Compare),
}

#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub(super) struct Tune {
    /// How many runs of each algorithm, which alternate
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub(super) runs: usize,
}

/// The task of a command line.
pub(super) enum Task<'a> {
    Run(Benchmark, &'a Options),
    /// The plugin and bare libfabric, alternating.
    Versus(&'a Versus, &'a Options),
    /// Every algorithm, alternating.
    Tune(&'a Tune, &'a Options),
    /// Files of finished runs.
    Compare(&'a compare::Compare),
}

impl Perf {
    pub(crate) fn is_verbose(&self) -> bool {
        self.options().is_some_and(|options| options.verbose)
    }

    /// The task of the command line.
    ///
    /// # Errors
    ///
    /// Options that exclude each other.
    pub(super) fn task(&self) -> Result<Task<'_>, GroupError> {
        cpus::check(self.options().map_or(&[], |options| &options.cpus))?;
        let benchmark = match &self.benchmark {
            Command::AllReduce(_) => Benchmark::Collective(Collective::AllReduce),
            Command::Reduce(_) => Benchmark::Collective(Collective::Reduce),
            Command::Broadcast(_) => Benchmark::Collective(Collective::Broadcast),
            Command::AllGather(_) => Benchmark::Collective(Collective::AllGather),
            Command::Gather(_) => Benchmark::Collective(Collective::Gather),
            Command::Scatter(_) => Benchmark::Collective(Collective::Scatter),
            Command::ReduceScatter(_) => Benchmark::Collective(Collective::ReduceScatter),
            Command::AllToAll(_) => Benchmark::Collective(Collective::AllToAll),
            Command::Barrier(_) => Benchmark::Collective(Collective::Barrier),
            Command::Halo(_) => Benchmark::Collective(Collective::Halo),
            Command::FixedHalo(_) => Benchmark::Collective(Collective::FixedHalo),
            Command::SendReceive { stream, .. } => Benchmark::SendReceive(*stream),
            Command::PingPong { ping_pong, .. } => Benchmark::PingPong(*ping_pong),
            Command::Raw { raw, .. } => Benchmark::Raw(raw.clone()),
            Command::VersusRaw { options, versus } => {
                options.check_versus(versus)?;
                return Ok(Task::Versus(versus, options));
            }
            Command::Tune { options, tune } => {
                options.check_tune()?;
                return Ok(Task::Tune(tune, options));
            }
            Command::Compare(files) => return Ok(Task::Compare(files)),
        };
        let Some(options) = self.options() else {
            return Err(GroupError::Usage(NOTHING.to_owned()));
        };
        options.check(&benchmark)?;
        Ok(Task::Run(benchmark, options))
    }

    /// None for tasks that measure nothing.
    fn options(&self) -> Option<&Options> {
        match &self.benchmark {
            Command::AllReduce(options)
            | Command::Reduce(options)
            | Command::Broadcast(options)
            | Command::AllGather(options)
            | Command::Gather(options)
            | Command::Scatter(options)
            | Command::ReduceScatter(options)
            | Command::AllToAll(options)
            | Command::Barrier(options)
            | Command::Halo(options)
            | Command::FixedHalo(options)
            | Command::SendReceive { options, .. }
            | Command::PingPong { options, .. }
            | Command::Raw { options, .. }
            | Command::VersusRaw { options, .. }
            | Command::Tune { options, .. } => Some(options),
            Command::Compare(_) => None,
        }
    }
}

/// Options of every measurement that a command refuses: its help does not show them.
fn without(refused: &'static [&'static str]) -> impl FnMut(Arg) -> Arg {
    |arg| if refused.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg }
}

const NOTHING: &str = "there is nothing to measure";
