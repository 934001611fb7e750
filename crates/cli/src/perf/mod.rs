//! `ironrail perf`: the module `rank` is the part of each rank, `launcher` that of the launcher.
//!
//! The launcher starts one process (or thread) per rank and prints what rank 0 reports. A rank that fails ends the run with code 1. All
//! communication between the two is [`Event`](report::Event)s, as lines of JSON between processes.

mod arguments;
mod benchmarks;
mod congestion;
mod cpus;
mod interval;
mod launcher;
mod outcome;
mod rails;
mod rank;
mod raw;
mod report;
pub(crate) mod sizes;
mod slots;
mod statistics;
mod tune;
mod versus;
mod writes;

use ironrail_group::error::GroupError;

pub(crate) use arguments::Perf;
use arguments::Task;
pub(crate) use report::time;

impl Perf {
    /// Runs the command. Returns whether all went well.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        match self.task()? {
            Task::Run(benchmark, options) => launcher::run(&benchmark, options),
            Task::Versus(versus, options) => versus::run(versus, options),
            Task::Tune(tune, options) => tune::run(tune, options),
            Task::Compare(files) => files.run(),
        }
    }
}
