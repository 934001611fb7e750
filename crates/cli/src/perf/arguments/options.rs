//! Options of every measurement, and which of them a measurement refuses.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ironrail_group::bootstrap::RANKS_MAX;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{DataType, Op};
use ironrail_group::tuning::{Algorithm, Tuning};
use net_loader::{NEWEST, OLDEST};

use super::bare::Versus;
use super::benchmark::{Benchmark, Collective, PingPong, Stream};
use super::ranges::{positive, step};
use crate::files;
use crate::perf::sizes;
use crate::values::{COUNT_MAX, INDEX_MAX, seconds, whole};

/// Options of every measurement.
#[derive(Clone, Debug, Args)]
pub(in crate::perf) struct Options {
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
    pub(in crate::perf) kind: DataType,
    /// The reduction: sum, prod, min, max or avg [default: sum]
    #[arg(short = 'o', long = "op", value_name = "OPERATION")]
    operation: Option<Op>,
    /// Ranks to start (-n is iterations, as in nccl-tests)
    #[arg(short = 'r', long, alias = "np", default_value_t = 2, value_parser = whole(1, RANKS_MAX), value_name = "COUNT")]
    pub(in crate::perf) ranks: usize,
    /// Ranks are threads of one process
    #[arg(long)]
    pub(in crate::perf) threads: bool,
    /// CPUs that ranks run on, as 2,3: rank 0 on the first, rank 1 on the second, and so on, repeating the list
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = whole(0, INDEX_MAX))]
    pub(in crate::perf) cpus: Vec<usize>,
    /// The plugin: a file, or a word as in NCCL_NET_PLUGIN [default: Ironrail, next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    #[arg(
        long,
        value_name = "VERSION",
        value_parser = whole(OLDEST, NEWEST),
        help = format!("Take this version of the plugin's table, {OLDEST} to {NEWEST}, instead of the newest")
    )]
    pub(in crate::perf) abi: Option<u32>,
    /// The plugin's device [default: rank modulo devices]
    #[arg(long, value_name = "INDEX", value_parser = whole(0, INDEX_MAX))]
    pub(in crate::perf) device: Option<usize>,
    /// The root of a collective that has one [default: 0]
    #[arg(long, value_name = "RANK", value_parser = whole(0, RANKS_MAX - 1))]
    root: Option<usize>,
    /// The output takes the place of the input
    #[arg(long)]
    pub(in crate::perf) in_place: bool,
    /// All-reduce by this algorithm, whatever the table says: one-phase, doubling, mesh or ring
    #[arg(long, value_name = "NAME")]
    pub(in crate::perf) algorithm: Option<Algorithm>,
    /// All-reduce by this table of algorithms: lines of ranks, bytes at most, and a name
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Seconds without any progress after which a wait is given up
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds(0.01, 86_400.0))]
    timeout: Duration,
    /// Write the results as JSON, to a file or, without one, to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(in crate::perf) json: Option<PathBuf>,
    /// Write a page with pictures: bandwidths, times, the rails' shares
    #[arg(long, value_name = "FILE")]
    pub(in crate::perf) report: Option<PathBuf>,
    /// Count how many writes, sends and injects of all ranks a message takes, by the plugin's own counters (IRONRAIL_STATS_FILE) and by the
    /// virtual fabric's if the plugin runs over it; includes connecting and closing. One size at a time
    #[arg(long)]
    pub(in crate::perf) writes: bool,
    /// Only print which versions of the table the plugin has, and which one is used
    #[arg(long)]
    pub(in crate::perf) version_table: bool,
    /// Show the plugin's log at level INFO
    #[arg(short, long)]
    pub(super) verbose: bool,
}

impl Options {
    pub(in crate::perf) fn sizes(&self) -> Vec<usize> {
        sizes::sequence(self.first, self.last, self.factor, self.step)
    }

    /// The sizes in whole elements, each once: rows of messages.
    pub(in crate::perf) fn whole_sizes(&self) -> BTreeSet<usize> {
        let width = self.kind.bytes();
        self.sizes().into_iter().map(|bytes| bytes / width * width).collect()
    }

    /// The most that `bytes` is over the sizes in whole elements. The slots of a shorter message may take more memory than those of a longer
    /// one.
    pub(in crate::perf) fn most(&self, bytes: impl Fn(usize) -> usize) -> usize {
        self.whole_sizes().into_iter().map(bytes).max().unwrap_or(0)
    }

    /// The rows of a benchmark.
    pub(in crate::perf) fn sizes_of(&self, benchmark: &Benchmark) -> Vec<usize> {
        match benchmark {
            Benchmark::Collective(Collective::Barrier) => vec![0],
            _ => self.sizes(),
        }
    }

    pub(in crate::perf) fn last(&self) -> usize {
        self.last.max(self.first)
    }

    /// The number of checked iterations per size: none without a plugin.
    pub(in crate::perf) fn checks(&self, benchmark: &Benchmark) -> usize {
        let default = if matches!(benchmark, Benchmark::Raw(_)) { 0 } else { 1 };
        self.check.unwrap_or(default)
    }

    pub(in crate::perf) fn operation(&self) -> Op {
        self.operation.unwrap_or(Op::Sum)
    }

    pub(in crate::perf) fn root(&self) -> usize {
        self.root.unwrap_or(0)
    }

    /// The number of iterations; without -n fewer for long messages.
    pub(in crate::perf) fn iterations(&self, benchmark: &Benchmark, bytes: usize) -> usize {
        self.iterations.unwrap_or_else(|| match benchmark {
            Benchmark::PingPong(_) | Benchmark::SendReceive(_) | Benchmark::Raw(_) => {
                (ALONE_BYTES / bytes.max(1)).clamp(ITERATIONS, ITERATIONS_ALONE)
            }
            _ => ITERATIONS,
        })
    }

    /// The number of warm-ups. By default they are enough to open TCP's windows and to touch every page before the clock starts.
    pub(in crate::perf) fn warmups(&self, benchmark: &Benchmark, iterations: usize) -> usize {
        self.warmups.unwrap_or_else(|| match benchmark {
            Benchmark::PingPong(_) | Benchmark::SendReceive(_) | Benchmark::Raw(_) => {
                WARMUPS.max(iterations / WARMUP_SHARE)
            }
            _ => WARMUPS,
        })
    }

    /// Arguments for another benchmark with the same sizes, elements, iterations and CPUs, without checks.
    pub(in crate::perf) fn to_arguments(&self) -> Vec<OsString> {
        let mut pairs = vec![
            ("-b", self.first.to_string()),
            ("-e", self.last.to_string()),
            ("-f", self.factor.to_string()),
            ("-c", "0".to_owned()),
            ("-d", self.kind.to_string()),
            ("--timeout", self.timeout.as_secs_f64().to_string()),
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
    pub(in crate::perf) fn to_plugin_arguments(&self) -> Vec<OsString> {
        let mut pairs = vec![("--net", self.net())];
        pairs.extend(self.abi.map(|abi| ("--abi", abi.to_string())));
        pairs.extend(self.device.map(|device| ("--device", device.to_string())));
        let pairs = pairs.into_iter().flat_map(|(name, value)| [name.into(), value.into()]);
        pairs.chain(self.verbose.then(|| "--verbose".into())).collect()
    }

    /// The table of algorithms that was given, or that of the one algorithm.
    pub(in crate::perf) fn tuning(&self) -> Result<Option<Tuning>, GroupError> {
        if let Some(algorithm) = self.algorithm {
            return Ok(Some(Tuning::only(algorithm)));
        }
        let read = |path: &PathBuf| {
            files::read(path)?.parse().map_err(|error: GroupError| files::unusable(path, error))
        };
        self.tuning.as_ref().map(read).transpose()
    }

    pub(in crate::perf) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The plugin to open: the one that was given, or ours where a build puts it, or ours by name.
    pub(in crate::perf) fn net(&self) -> String {
        self.net.clone().unwrap_or_else(crate::plugin::ours)
    }

    /// Whether checks or a reduction were asked for: bare messages have neither.
    fn checks_or_reduces(&self) -> bool {
        self.check > Some(0) || self.operation.is_some() || self.root.is_some()
    }

    /// Checks for tune, which chooses the algorithms itself.
    pub(super) fn check_tune(&self) -> Result<(), GroupError> {
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
    pub(super) fn check_versus(&self, versus: &Versus) -> Result<(), GroupError> {
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
        sizes::check(self.first, self.last, self.step)?;
        if !versus.latency {
            check_window(versus.window, versus.group)?;
        }
        self.check_longest(versus.recv_factor)
    }

    /// Checks that the longest message, and its receive, are not too long for NCCL.
    fn check_longest(&self, recv_factor: usize) -> Result<(), GroupError> {
        let room = self.last.checked_mul(recv_factor);
        if room.is_none_or(|bytes| bytes > MESSAGE_BYTES_MAX) {
            return Err(GroupError::Usage(
                "one message, or its receive, is of 1 GiB at most".to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that clap cannot make.
    pub(super) fn check(&self, benchmark: &Benchmark) -> Result<(), GroupError> {
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
            Benchmark::SendReceive(Stream { one_way: true, .. })
                if !self.ranks.is_multiple_of(2) =>
            {
                usage("--one-way takes an even number of ranks".to_owned())
            }
            Benchmark::PingPong(PingPong { recv_factor, .. }) => self.check_longest(*recv_factor),
            Benchmark::SendReceive(Stream { recv_factor, window, group, .. }) => {
                self.check_longest(*recv_factor).and_then(|()| check_window(*window, *group))
            }
            _ => Ok(()),
        }
    }
}

fn check_window(window: usize, group: usize) -> Result<(), GroupError> {
    if group > window {
        return Err(GroupError::Usage("--window is at least --group".to_owned()));
    }
    Ok(())
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

/// The options that [`Options::check`] refuses for raw.
pub(super) const RAW_REFUSES: &[&str] = &[
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
pub(super) const VERSUS_REFUSES: &[&str] = &[
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
pub(super) const TUNE_REFUSES: &[&str] =
    &["algorithm", "tuning", "in_place", "report", "writes", "version_table", "check", "root"];
