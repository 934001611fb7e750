//! The measurements, each with its own options.

use std::time::Duration;

use clap::Args;
use ironrail_group::loader::{GROUP_MAX, Op};

use super::bare::Raw;
use super::ranges::{positive, requests};
use crate::values::whole;

/// The measurement, with its own options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::perf) enum Benchmark {
    Collective(Collective),
    SendReceive(Stream),
    PingPong(PingPong),
    Raw(Raw),
}

/// A collective of the group library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::perf) enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Barrier,
    Halo,
    FixedHalo,
}

impl Collective {
    pub(in crate::perf) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "alltoall",
            Self::Barrier => "barrier",
            Self::Halo => "halo",
            Self::FixedHalo => "fixed_halo",
        }
    }

    pub(in crate::perf) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }
}

impl Benchmark {
    pub(in crate::perf) fn name(&self) -> &'static str {
        match self {
            Self::Collective(what) => what.name(),
            Self::SendReceive(_) => "sendrecv",
            Self::PingPong(_) => "pingpong",
            Self::Raw(_) => "raw",
        }
    }

    /// The redop column of nccl-tests.
    pub(in crate::perf) fn operation(&self, operation: Op) -> &'static str {
        match self {
            Self::Collective(what) if what.reduces() => operation.name(),
            _ => "none",
        }
    }

    /// The root column of nccl-tests; -1 where there is none.
    pub(in crate::perf) fn root(&self, root: usize) -> i64 {
        match self {
            Self::Collective(what) if what.has_root() => i64::try_from(root).unwrap_or(-1),
            _ => -1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(in crate::perf) struct Stream {
    /// Messages outstanding per connection and direction
    #[arg(long, default_value_t = 8, value_parser = requests)]
    pub(in crate::perf) window: usize,
    /// Only even ranks send, each to the next one
    #[arg(long)]
    pub(in crate::perf) one_way: bool,
    /// Receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(in crate::perf) recv_factor: usize,
    /// Messages in one receive, distinguished by their tags; more than one where the plugin's maxRecvs allows it (v9 and newer)
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX))]
    pub(in crate::perf) group: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(in crate::perf) struct PingPong {
    /// Receives posted ahead
    #[arg(long, default_value_t = 1, value_parser = requests)]
    pub(in crate::perf) ahead: usize,
    /// Receives are posted this many at a time, so that one control message can announce them; at most --ahead
    #[arg(long, value_parser = requests)]
    batch: Option<usize>,
    /// Receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(in crate::perf) recv_factor: usize,
    /// Messages that go back and forth at a time, into one receive, distinguished by their tags; busbw counts them all
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX))]
    pub(in crate::perf) group: usize,
    /// Each receive is posted only when its message is the next, and this many microseconds later: after the message was sent
    #[arg(long, value_name = "MICROSECONDS", value_parser = whole(0, u32::MAX), num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["ahead", "batch"])]
    late: Option<u32>,
}

impl PingPong {
    /// The delay of a receive after its message has become the next; None if posted ahead.
    pub(in crate::perf) fn late(self) -> Option<Duration> {
        self.late.map(|late| Duration::from_micros(late.into()))
    }

    /// All of --ahead, unless --batch is given.
    pub(in crate::perf) fn batch(self) -> usize {
        self.batch.unwrap_or(self.ahead).min(self.ahead)
    }
}
