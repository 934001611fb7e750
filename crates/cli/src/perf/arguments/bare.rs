//! Options of bare libfabric: alone, and beside the plugin.

use std::ffi::{OsStr, OsString};

use clap::Args;
use ironrail_group::loader::GROUP_MAX;

use super::ranges::{percent, positive, ratio, requests};
use crate::values::whole;

#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(in crate::perf) struct Raw {
    #[command(flatten)]
    pub(in crate::perf) place: Place,
    /// Writes, or messages, outstanding
    #[arg(long, default_value_t = 8, value_parser = requests)]
    pub(in crate::perf) window: usize,
    /// One message back and forth: the time is half a round trip
    #[arg(long, conflicts_with = "window")]
    pub(in crate::perf) latency: bool,
    /// Messages into posted receives, instead of writes; one way, a message is outstanding until the peer acknowledges it
    #[arg(long)]
    pub(in crate::perf) two_sided: bool,
    /// Each write waits for a message (two-sided) with its target address; one way, --window of them are announced ahead
    #[arg(long, conflicts_with_all = ["two_sided", "answered"])]
    pub(in crate::perf) rendezvous: bool,
    /// With --latency, receives posted ahead: of messages, or of targets announced with --rendezvous; writes rotate over this many targets
    /// [default: 1]
    #[arg(long, value_parser = requests, requires = "latency")]
    ahead: Option<usize>,
    /// Messages are outstanding only until their send completes, wherever the data is then
    #[arg(long, requires = "two_sided", conflicts_with = "latency")]
    pub(in crate::perf) unanswered: bool,
    /// Writes are outstanding until the peer acknowledges them, as the plugin's messages are
    #[arg(long, conflicts_with_all = ["latency", "two_sided"])]
    pub(in crate::perf) answered: bool,
    /// With --latency or --rendezvous, post short operations like long ones, with a completion instead of inject
    #[arg(long)]
    pub(in crate::perf) no_inject: bool,
}

impl Raw {
    /// Receives or targets posted ahead of a message back and forth.
    pub(in crate::perf) fn ahead(&self) -> usize {
        self.ahead.unwrap_or(1)
    }

    /// The number of buffers for this many messages.
    pub(in crate::perf) fn places(&self) -> usize {
        if self.latency { self.ahead() } else { self.window }
    }

    /// The number of acknowledgements that are due after `over` of all messages: one for half a window, so that the sender never stalls.
    pub(in crate::perf) fn answers(&self, over: usize, messages: usize) -> usize {
        let half = self.half_window();
        if over == messages { messages.div_ceil(half) } else { over / half }
    }

    /// Messages per acknowledgement.
    pub(in crate::perf) fn half_window(&self) -> usize {
        (self.window / 2).max(1)
    }
}

/// Which libfabric, and where.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(in crate::perf) struct Place {
    /// Libfabric's provider [default: tcp, net or tcp;ofi_rxm, the first that is there]
    #[arg(long, env = "IRONRAIL_PROVIDER", value_name = "NAME")]
    provider: Option<String>,
    /// The local address to use; `none` leaves it to the provider
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    source: String,
    /// libfabric itself: a file, or a name for the loader
    #[arg(long, env = "IRONRAIL_LIBFABRIC", default_value = LIBFABRIC, value_name = "FILE")]
    libfabric: OsString,
}

const LIBFABRIC: &str = "libfabric.so.1";

impl Place {
    /// An empty variable is as if it were unset, as for the plugin.
    pub(in crate::perf) fn provider(&self) -> Option<&str> {
        self.provider.as_deref().filter(|name| !name.is_empty())
    }

    /// libfabric's file or name; an empty variable is as if it were unset.
    pub(in crate::perf) fn libfabric(&self) -> &OsStr {
        if self.libfabric.is_empty() { OsStr::new(LIBFABRIC) } else { &self.libfabric }
    }

    pub(in crate::perf) fn source(&self) -> Option<&str> {
        (self.source != "none").then_some(&*self.source)
    }
}

#[derive(Clone, Debug, PartialEq, Args)]
#[group(skip)]
pub(in crate::perf) struct Versus {
    #[command(flatten)]
    pub(in crate::perf) place: Place,
    /// How many pairs of runs: one of the plugin and one of bare libfabric, which alternate
    #[arg(long, default_value_t = 9, value_parser = positive)]
    pub(in crate::perf) runs: usize,
    /// Compare half round trips instead of bandwidth
    #[arg(long)]
    pub(in crate::perf) latency: bool,
    /// Compare the plugin with raw --two-sided instead of writes
    #[arg(long)]
    pub(in crate::perf) two_sided: bool,
    /// Compare the plugin with raw --rendezvous instead of writes
    #[arg(long, conflicts_with_all = ["two_sided", "rate", "answered"])]
    pub(in crate::perf) rendezvous: bool,
    /// Compare messages per second, with raw --two-sided
    #[arg(long, conflicts_with = "latency")]
    pub(in crate::perf) rate: bool,
    /// As raw --answered
    #[arg(long, conflicts_with_all = ["latency", "rate", "two_sided"])]
    pub(in crate::perf) answered: bool,
    /// With --rate, as raw --unanswered
    #[arg(long, requires = "rate")]
    pub(in crate::perf) unanswered: bool,
    /// One way: messages outstanding
    #[arg(long, default_value_t = 8, value_parser = requests, conflicts_with = "latency")]
    pub(in crate::perf) window: usize,
    /// For half round trips: receives posted ahead, on both sides [default: 1]
    #[arg(long, value_parser = requests, requires = "latency")]
    ahead: Option<usize>,
    /// For half round trips: the plugin's receives posted at a time, see pingpong
    #[arg(long, value_parser = requests, requires = "latency")]
    pub(in crate::perf) batch: Option<usize>,
    /// The plugin's receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(in crate::perf) recv_factor: usize,
    /// One way: the plugin's messages in one receive
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX), conflicts_with = "latency")]
    pub(in crate::perf) group: usize,
    /// The bound of the ratio: at most this for half round trips, at least this for bandwidths and rates
    #[arg(long, default_value_t = 1.0, value_parser = ratio, value_name = "RATIO")]
    pub(in crate::perf) bound: f64,
    /// The 95 % interval of the ratio may reach this many percent to each side; with a wider one there is no verdict
    #[arg(long, default_value_t = 10.0, value_parser = percent, value_name = "PERCENT")]
    pub(in crate::perf) precision: f64,
}

impl Versus {
    /// Receives posted ahead for half round trips.
    pub(in crate::perf) fn ahead(&self) -> usize {
        self.ahead.unwrap_or(1)
    }
}
