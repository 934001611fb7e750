//! The command line of `ironrail perf`, in nccl-tests' spelling where that has one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Subcommand};
use ironrail_group::bootstrap::RANKS_MAX;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{DataType, GROUP_MAX, Op};
use ironrail_group::tuning::{Algorithm, Tuning};
use net_loader::{NEWEST, OLDEST};

use super::{cpus, sizes};
use crate::values::{COUNT_MAX, INDEX_MAX, whole};
use crate::{compare, files};

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

/// The measurement, with its own options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Benchmark {
    Collective(Collective),
    SendReceive(Stream),
    PingPong(PingPong),
    Raw(Raw),
}

/// A collective of the group library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collective {
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
    pub(super) fn name(self) -> &'static str {
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

    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }
}

impl Benchmark {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Collective(what) => what.name(),
            Self::SendReceive(_) => "sendrecv",
            Self::PingPong(_) => "pingpong",
            Self::Raw(_) => "raw",
        }
    }

    /// The redop column of nccl-tests.
    pub(super) fn operation(&self, operation: Op) -> &'static str {
        match self {
            Self::Collective(what) if what.reduces() => operation.name(),
            _ => "none",
        }
    }

    /// The root column of nccl-tests; -1 where there is none.
    pub(super) fn root(&self, root: usize) -> i64 {
        match self {
            Self::Collective(what) if what.has_root() => i64::try_from(root).unwrap_or(-1),
            _ => -1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(super) struct Stream {
    /// Messages outstanding per connection and direction
    #[arg(long, default_value_t = 8, value_parser = requests)]
    pub(super) window: usize,
    /// Only even ranks send, each to the next one
    #[arg(long)]
    pub(super) one_way: bool,
    /// Receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(super) recv_factor: usize,
    /// Messages in one receive, distinguished by their tags; more than one where the plugin's maxRecvs allows it (v9 and newer)
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX))]
    pub(super) group: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(super) struct PingPong {
    /// Receives posted ahead
    #[arg(long, default_value_t = 1, value_parser = requests)]
    pub(super) ahead: usize,
    /// Receives are posted this many at a time, so that one control message can announce them; at most --ahead
    #[arg(long, value_parser = requests)]
    batch: Option<usize>,
    /// Receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(super) recv_factor: usize,
    /// Messages that go back and forth at a time, into one receive, distinguished by their tags; busbw counts them all
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX))]
    pub(super) group: usize,
    /// Each receive is posted only when its message is the next, and this many microseconds later: after the message was sent
    #[arg(long, value_name = "MICROSECONDS", value_parser = whole(0, u32::MAX), num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["ahead", "batch"])]
    late: Option<u32>,
}

impl PingPong {
    /// The delay of a receive after its message has become the next; None if posted ahead.
    pub(super) fn late(self) -> Option<Duration> {
        self.late.map(|late| Duration::from_micros(late.into()))
    }

    /// All of --ahead, unless --batch is given.
    pub(super) fn batch(self) -> usize {
        self.batch.unwrap_or(self.ahead).min(self.ahead)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(super) struct Raw {
    #[command(flatten)]
    pub(super) place: Place,
    /// Writes, or messages, outstanding
    #[arg(long, default_value_t = 8, value_parser = requests)]
    pub(super) window: usize,
    /// One message back and forth: the time is half a round trip
    #[arg(long, conflicts_with = "window")]
    pub(super) latency: bool,
    /// Messages into posted receives, instead of writes; one way, a message is outstanding until the peer acknowledges it
    #[arg(long)]
    pub(super) two_sided: bool,
    /// Each write waits for a message (two-sided) with its target address; one way, --window of them are announced ahead
    #[arg(long, conflicts_with_all = ["two_sided", "answered"])]
    pub(super) rendezvous: bool,
    /// With --latency, receives posted ahead: of messages, or of targets announced with --rendezvous; writes rotate over this many targets
    /// [default: 1]
    #[arg(long, value_parser = requests, requires = "latency")]
    ahead: Option<usize>,
    /// Messages are outstanding only until their send completes, wherever the data is then
    #[arg(long, requires = "two_sided", conflicts_with = "latency")]
    pub(super) unanswered: bool,
    /// Writes are outstanding until the peer acknowledges them, as the plugin's messages are
    #[arg(long, conflicts_with_all = ["latency", "two_sided"])]
    pub(super) answered: bool,
    /// With --latency or --rendezvous, post short operations like long ones, with a completion instead of inject
    #[arg(long)]
    pub(super) no_inject: bool,
}

impl Raw {
    /// Receives or targets posted ahead of a message back and forth.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.unwrap_or(1)
    }

    /// The number of buffers for this many messages.
    pub(super) fn places(&self) -> usize {
        if self.latency { self.ahead() } else { self.window }
    }

    /// The number of acknowledgements that are due after `over` of all messages: one for half a window, so that the sender never stalls.
    pub(super) fn answers(&self, over: usize, messages: usize) -> usize {
        let half = self.half_window();
        if over == messages { messages.div_ceil(half) } else { over / half }
    }

    /// Messages per acknowledgement.
    pub(super) fn half_window(&self) -> usize {
        (self.window / 2).max(1)
    }
}

/// Which libfabric, and where.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(skip)]
pub(super) struct Place {
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
    pub(super) fn provider(&self) -> Option<&str> {
        self.provider.as_deref().filter(|name| !name.is_empty())
    }

    /// libfabric's file or name; an empty variable is as if it were unset.
    pub(super) fn libfabric(&self) -> &OsStr {
        if self.libfabric.is_empty() { OsStr::new(LIBFABRIC) } else { &self.libfabric }
    }

    pub(super) fn source(&self) -> Option<&str> {
        (self.source != "none").then_some(&*self.source)
    }
}

#[derive(Clone, Debug, PartialEq, Args)]
#[group(skip)]
pub(super) struct Versus {
    #[command(flatten)]
    pub(super) place: Place,
    /// How many pairs of runs: one of the plugin and one of bare libfabric, which alternate
    #[arg(long, default_value_t = 9, value_parser = positive)]
    pub(super) runs: usize,
    /// Compare half round trips instead of bandwidth
    #[arg(long)]
    pub(super) latency: bool,
    /// Compare the plugin with raw --two-sided instead of writes
    #[arg(long)]
    pub(super) two_sided: bool,
    /// Compare the plugin with raw --rendezvous instead of writes
    #[arg(long, conflicts_with_all = ["two_sided", "rate", "answered"])]
    pub(super) rendezvous: bool,
    /// Compare messages per second, with raw --two-sided
    #[arg(long, conflicts_with = "latency")]
    pub(super) rate: bool,
    /// As raw --answered
    #[arg(long, conflicts_with_all = ["latency", "rate", "two_sided"])]
    pub(super) answered: bool,
    /// With --rate, as raw --unanswered
    #[arg(long, requires = "rate")]
    pub(super) unanswered: bool,
    /// One way: messages outstanding
    #[arg(long, default_value_t = 8, value_parser = requests, conflicts_with = "latency")]
    pub(super) window: usize,
    /// For half round trips: receives posted ahead, on both sides [default: 1]
    #[arg(long, value_parser = requests, requires = "latency")]
    ahead: Option<usize>,
    /// For half round trips: the plugin's receives posted at a time, see pingpong
    #[arg(long, value_parser = requests, requires = "latency")]
    pub(super) batch: Option<usize>,
    /// The plugin's receives are this many times as large as the messages
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(super) recv_factor: usize,
    /// One way: the plugin's messages in one receive
    #[arg(long, default_value_t = 1, value_parser = whole(1, GROUP_MAX), conflicts_with = "latency")]
    pub(super) group: usize,
    /// The bound of the ratio: at most this for half round trips, at least this for bandwidths and rates
    #[arg(long, default_value_t = 1.0, value_parser = ratio, value_name = "RATIO")]
    pub(super) bound: f64,
    /// The 95 % interval of the ratio may reach this many percent to each side; with a wider one there is no verdict
    #[arg(long, default_value_t = 10.0, value_parser = percent, value_name = "PERCENT")]
    pub(super) precision: f64,
}

impl Versus {
    /// Receives posted ahead for half round trips.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.unwrap_or(1)
    }
}

#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub(super) struct Tune {
    /// How many runs of each algorithm, which alternate
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub(super) runs: usize,
}

/// Options of every measurement.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// First size (suffixes K, M, G)
    #[arg(short = 'b', long = "minbytes", default_value = "8", value_name = "SIZE", value_parser = sizes::parse)]
    first: usize,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", default_value = "64M", value_name = "SIZE", value_parser = sizes::parse)]
    last: usize,
    /// Each size is the one before times this
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2, value_parser = whole::<usize>(2, 1024), value_name = "FACTOR")]
    factor: usize,
    /// Each size is the one before plus this, instead of --stepfactor
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = step)]
    step: Option<usize>,
    /// Iterations per size, as in nccl-tests [default: 20; messages alone: 1000 up to 1M, fewer above, 20 from 64M]
    #[arg(short = 'n', long = "iters", value_name = "COUNT", value_parser = positive)]
    iterations: Option<usize>,
    /// Iterations before the clock starts [default: 5, as in nccl-tests; messages alone: a tenth of the iterations, if that is more]
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", value_parser = whole(0, COUNT_MAX))]
    warmups: Option<usize>,
    /// Checked iterations per size; 0: none [default: 1]
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = whole(0, COUNT_MAX))]
    check: Option<usize>,
    /// int8 to int64, uint8 to uint64, half, bfloat16, float, double or complex64
    #[arg(short = 'd', long = "datatype", default_value = "float", value_name = "TYPE")]
    pub(super) kind: DataType,
    /// The reduction: sum, prod, min, max or avg [default: sum]
    #[arg(short = 'o', long = "op", value_name = "OPERATION")]
    operation: Option<Op>,
    /// Ranks to start (-n is iterations, as in nccl-tests)
    #[arg(short = 'r', long, alias = "np", default_value_t = 2, value_parser = whole(1, RANKS_MAX), value_name = "COUNT")]
    pub(super) ranks: usize,
    /// Ranks are threads of one process
    #[arg(long)]
    pub(super) threads: bool,
    /// CPUs that ranks run on, as 2,3: rank 0 on the first, rank 1 on the second, and so on, repeating the list
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = whole(0, INDEX_MAX))]
    pub(super) cpus: Vec<usize>,
    /// The plugin: a file, or a word as in NCCL_NET_PLUGIN [default: Ironrail, next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    #[arg(
        long,
        value_name = "VERSION",
        value_parser = whole(OLDEST, NEWEST),
        help = format!("Take this version of the plugin's table, {OLDEST} to {NEWEST}, instead of the newest")
    )]
    pub(super) abi: Option<u32>,
    /// The plugin's device [default: rank modulo devices]
    #[arg(long, value_name = "INDEX", value_parser = whole(0, INDEX_MAX))]
    pub(super) device: Option<usize>,
    /// The root of a collective that has one [default: 0]
    #[arg(long, value_name = "RANK", value_parser = whole(0, RANKS_MAX - 1))]
    root: Option<usize>,
    /// The output takes the place of the input
    #[arg(long)]
    pub(super) in_place: bool,
    /// All-reduce by this algorithm, whatever the table says: one-phase, doubling, mesh or ring
    #[arg(long, value_name = "NAME")]
    pub(super) algorithm: Option<Algorithm>,
    /// All-reduce by this table of algorithms: lines of ranks, bytes at most, and a name
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Seconds without any progress after which a wait is given up
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    timeout: f64,
    /// Write the results as JSON, to a file or, without one, to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
    /// Write a page with pictures: bandwidths, times, the rails' shares
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Count how many writes, sends and injects of all ranks a message takes, by the plugin's own counters (IRONRAIL_STATS_FILE) and by the
    /// virtual fabric's if the plugin runs over it; includes connecting and closing. One size at a time
    #[arg(long)]
    pub(super) writes: bool,
    /// Only print which versions of the table the plugin has, and which one is used
    #[arg(long)]
    pub(super) version_table: bool,
    /// Show the plugin's log at level INFO
    #[arg(short, long)]
    verbose: bool,
}

impl Options {
    pub(super) fn sizes(&self) -> Vec<usize> {
        sizes::sequence(self.first, self.last, self.factor, self.step)
    }

    /// The sizes in whole elements, each once: rows of messages.
    pub(super) fn whole_sizes(&self) -> BTreeSet<usize> {
        let width = self.kind.bytes();
        self.sizes().into_iter().map(|bytes| bytes / width * width).collect()
    }

    /// The rows of a benchmark.
    pub(super) fn sizes_of(&self, benchmark: &Benchmark) -> Vec<usize> {
        match benchmark {
            Benchmark::Collective(Collective::Barrier) => vec![0],
            _ => self.sizes(),
        }
    }

    pub(super) fn last(&self) -> usize {
        self.last.max(self.first)
    }

    /// The number of checked iterations per size: none without a plugin.
    pub(super) fn checks(&self, benchmark: &Benchmark) -> usize {
        let default = if matches!(benchmark, Benchmark::Raw(_)) { 0 } else { 1 };
        self.check.unwrap_or(default)
    }

    pub(super) fn operation(&self) -> Op {
        self.operation.unwrap_or(Op::Sum)
    }

    pub(super) fn root(&self) -> usize {
        self.root.unwrap_or(0)
    }

    /// The number of iterations; without -n fewer for long messages.
    pub(super) fn iterations(&self, benchmark: &Benchmark, bytes: usize) -> usize {
        self.iterations.unwrap_or_else(|| match benchmark {
            Benchmark::PingPong(_) | Benchmark::SendReceive(_) | Benchmark::Raw(_) => {
                (ALONE_BYTES / bytes.max(1)).clamp(ITERATIONS, ITERATIONS_ALONE)
            }
            _ => ITERATIONS,
        })
    }

    /// The number of warm-ups. By default they are enough to open TCP's windows and to touch every page before the clock starts.
    pub(super) fn warmups(&self, benchmark: &Benchmark, iterations: usize) -> usize {
        self.warmups.unwrap_or_else(|| match benchmark {
            Benchmark::PingPong(_) | Benchmark::SendReceive(_) | Benchmark::Raw(_) => {
                WARMUPS.max(iterations / WARMUP_SHARE)
            }
            _ => WARMUPS,
        })
    }

    /// Arguments for another benchmark with the same sizes, elements, iterations and CPUs, without checks.
    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        let mut pairs = vec![
            ("-b", self.first.to_string()),
            ("-e", self.last.to_string()),
            ("-f", self.factor.to_string()),
            ("-c", "0".to_owned()),
            ("-d", self.kind.to_string()),
            ("--timeout", self.timeout.to_string()),
        ];
        pairs.extend(self.step.map(|step| ("-i", step.to_string())));
        pairs.extend(self.iterations.map(|iterations| ("-n", iterations.to_string())));
        pairs.extend(self.warmups.map(|warmups| ("-w", warmups.to_string())));
        if !self.cpus.is_empty() {
            let cpus: Vec<_> = self.cpus.iter().map(usize::to_string).collect();
            pairs.push(("--cpus", cpus.join(",")));
        }
        pairs.into_iter().flat_map(|(name, value)| [name.into(), value.into()]).collect()
    }

    /// Arguments for another benchmark of the same plugin.
    pub(super) fn to_plugin_arguments(&self) -> Vec<OsString> {
        let mut pairs = vec![("--net", self.net())];
        pairs.extend(self.abi.map(|abi| ("--abi", abi.to_string())));
        pairs.extend(self.device.map(|device| ("--device", device.to_string())));
        pairs.into_iter().flat_map(|(name, value)| [name.into(), value.into()]).collect()
    }

    /// The table of algorithms that was given.
    pub(super) fn tuning(&self) -> Result<Option<Tuning>, GroupError> {
        let read = |path: &PathBuf| {
            files::read(path)?.parse().map_err(|error: GroupError| files::unusable(path, error))
        };
        self.tuning.as_ref().map(read).transpose()
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }

    /// The plugin to open: the one that was given, or ours where a build puts it, or ours by name.
    pub(super) fn net(&self) -> String {
        self.net.clone().unwrap_or_else(crate::plugin::ours)
    }

    /// Whether checks or a reduction were asked for: bare messages have neither.
    fn checks_or_reduces(&self) -> bool {
        self.check > Some(0) || self.operation.is_some() || self.root.is_some()
    }

    /// Checks for tune, which chooses the algorithms itself.
    fn check_tune(&self) -> Result<(), GroupError> {
        let usage = |why: &str| Err(GroupError::Usage(why.to_owned()));
        if self.ranks < 2 {
            return usage("a table of algorithms needs two ranks or more: give -r");
        }
        if self.algorithm.is_some() || self.tuning.is_some() {
            return usage("tune measures every algorithm, and takes no --algorithm or --tuning");
        }
        if self.in_place || self.report.is_some() || self.writes || self.version_table {
            return usage("tune takes no --in-place, --report, --writes or --version-table");
        }
        if self.check > Some(0) || self.root.is_some() {
            return usage("tune measures all_reduce without checks, and takes no -c or --root");
        }
        self.check(&Benchmark::Collective(Collective::AllReduce))
    }

    /// Checks for versus-raw, whose two sides are commands of their own.
    fn check_versus(&self) -> Result<(), GroupError> {
        let usage = |why: &str| Err(GroupError::Usage(why.to_owned()));
        if self.writes {
            return usage("versus-raw compares times; pingpong, sendrecv and raw take --writes");
        }
        if self.report.is_some() {
            return usage("versus-raw makes no page: use --json instead of --report");
        }
        if self.ranks != 2 {
            return usage("versus-raw takes two ranks");
        }
        if self.checks_or_reduces() {
            return usage("versus-raw neither checks nor reduces, and takes no -c, -o or --root");
        }
        let is_ours = self.algorithm.is_some() || self.tuning.is_some() || self.in_place;
        if is_ours || self.threads || self.version_table {
            return usage(
                "versus-raw takes no --algorithm, --tuning, --in-place, --threads or --version-table",
            );
        }
        sizes::check(self.first, self.last, self.step)
    }

    /// Checks that clap cannot make.
    fn check(&self, benchmark: &Benchmark) -> Result<(), GroupError> {
        let usage = |why: String| Err(GroupError::Usage(why));
        sizes::check(self.first, self.last, self.step)?;
        if self.root() >= self.ranks {
            return usage(format!("there is no rank {} among {}", self.root(), self.ranks));
        }
        if self.writes && matches!(benchmark, Benchmark::Collective(_)) {
            return usage("--writes is for pingpong, sendrecv and raw".to_owned());
        }
        let apart = [
            Collective::Gather,
            Collective::Scatter,
            Collective::AllToAll,
            Collective::Halo,
            Collective::FixedHalo,
        ];
        let is_apart = match benchmark {
            Benchmark::Collective(what) => apart.contains(what),
            Benchmark::SendReceive(_) | Benchmark::PingPong(_) | Benchmark::Raw(_) => true,
        };
        if self.in_place && is_apart {
            return usage(format!("{} is out of place only", benchmark.name()));
        }
        let has_algorithms = *benchmark == Benchmark::Collective(Collective::AllReduce);
        if !has_algorithms && (self.algorithm.is_some() || self.tuning.is_some()) {
            return usage(format!(
                "{} has no choice of algorithms: --algorithm and --tuning are for all_reduce",
                benchmark.name()
            ));
        }
        if let Some(algorithm) = self.algorithm
            && !algorithm.takes(self.ranks)
        {
            return usage(format!("{algorithm} does not take {} ranks", self.ranks));
        }
        let is_raw = matches!(benchmark, Benchmark::Raw(_));
        let is_of_a_plugin = self.net.is_some() || self.abi.is_some() || self.device.is_some();
        if is_raw && (self.threads || self.version_table || is_of_a_plugin) {
            return usage(
                "raw runs two processes without a plugin, and takes no --threads, --net, --abi, --device or --version-table"
                    .to_owned(),
            );
        }
        if is_raw && self.checks_or_reduces() {
            return usage(
                "raw neither checks nor reduces, and takes no -c, -o or --root".to_owned(),
            );
        }
        if self.writes && self.sizes().len() > 1 {
            return usage(
                "--writes counts one size at a time: give -b and -e the same value".to_owned(),
            );
        }
        if !self.kind.supports(self.operation()) {
            return usage(format!("elements of type {} have no {}", self.kind, self.operation()));
        }
        match benchmark {
            Benchmark::PingPong(_) | Benchmark::Raw(_) if self.ranks != 2 => {
                usage(format!("{} takes two ranks", benchmark.name()))
            }
            Benchmark::PingPong(PingPong { recv_factor, .. })
            | Benchmark::SendReceive(Stream { recv_factor, .. })
                if self
                    .last
                    .checked_mul(*recv_factor)
                    .is_none_or(|bytes| bytes > MESSAGE_BYTES_MAX) =>
            {
                usage("one message, or its receive, is of 1 GiB at most".to_owned())
            }
            Benchmark::SendReceive(Stream { window, group, .. }) if group > window => {
                usage("--window is at least --group".to_owned())
            }
            Benchmark::SendReceive(Stream { one_way: true, .. })
                if !self.ranks.is_multiple_of(2) =>
            {
                usage("--one-way takes an even number of ranks".to_owned())
            }
            _ => Ok(()),
        }
    }
}

const ITERATIONS: usize = 20;
const WARMUPS: usize = 5;
/// The iterations per warm-up of point-to-point benchmarks.
const WARMUP_SHARE: usize = 10;
/// The iterations of point-to-point benchmarks, fewer if all messages together would have more than [`ALONE_BYTES`].
const ITERATIONS_ALONE: usize = 1000;
const ALONE_BYTES: usize = 1 << 30;
/// NCCL_MAX_NET_SIZE.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

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
                options.check_versus()?;
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

/// The options that [`Options::check`] refuses for raw.
const RAW_REFUSES: &[&str] = &[
    "algorithm",
    "tuning",
    "in_place",
    "threads",
    "net",
    "abi",
    "device",
    "version_table",
    "check",
    "operation",
    "root",
];
/// The options that [`Options::check_versus`] refuses.
const VERSUS_REFUSES: &[&str] = &[
    "writes",
    "report",
    "algorithm",
    "tuning",
    "in_place",
    "threads",
    "version_table",
    "check",
    "operation",
    "root",
];
/// The options that [`Options::check_tune`] refuses.
const TUNE_REFUSES: &[&str] =
    &["algorithm", "tuning", "in_place", "report", "writes", "version_table", "check", "root"];

const NOTHING: &str = "there is nothing to measure";

fn positive(text: &str) -> Result<usize, String> {
    whole(1, COUNT_MAX)(text)
}

/// A step is not 0: all sizes would be the first one.
fn step(text: &str) -> Result<usize, String> {
    match sizes::parse(text)? {
        0 => Err("expected a size above 0".to_owned()),
        step => Ok(step),
    }
}

/// NCCL_NET_MAX_REQUESTS bounds what a connection has outstanding.
fn requests(text: &str) -> Result<usize, String> {
    whole(1, 32)(text)
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.001..=1000.0).contains(&ratio) => Ok(ratio),
        _ => Err("expected a ratio from 0.001 to 1000".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.01..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected percent, from 0.01 to 100".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0.01 to 86400".to_owned()),
    }
}
