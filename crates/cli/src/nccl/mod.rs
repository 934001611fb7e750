//! `ironrail nccl`: NCCL over a plugin, on GPUs, with proof that the plugin carried the data, beside NCCL's sockets.
//!
//! ```text
//!   launcher ── for each network: environment, ranks ──▶ rank: Nccl, Communicator, DeviceMemory
//!      ▲                                                   │ rows, a line of JSON each
//!      └── evidence: NCCL's log of every rank  ◀───────────┘
//! ```

mod collective;
mod evidence;
mod libfabric;
mod rank;
mod report;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ironrail_group::bootstrap::RANKS_MAX;
use ironrail_group::error::GroupError;
use ironrail_group::launch::{self, Launch, Program};
use ironrail_group::loader::{DataType, Library};

use crate::complaints::Complaints;
use crate::files::Destination;
use crate::perf::sizes;
use crate::signals::{Heeded, STOPPING};
use crate::values::{COUNT_MAX, INDEX_MAX, seconds, whole};
use crate::{answers, files, loopback, output, plugin};
use collective::Test;
use evidence::Wanted;
use report::{Event, Run, Surroundings};

/// Runs a collective of NCCL's on GPUs over a net plugin, then over NCCL's own sockets, every byte checked.
///
/// NCCL (libnccl.so.2) and the CUDA driver are found at run time. Each rank is a process with a host id of its own, so that NCCL uses the
/// network even between ranks that share a GPU. NCCL's log must prove that the plugin carried the data; otherwise the run fails. Exit code:
/// 0 when all is well, 1 when anything is wrong, 2 when the command line is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The collective
    #[arg(value_enum)]
    test: Test,
    /// First size (suffixes K, M, G)
    #[arg(short = 'b', long = "minbytes", default_value = "8", value_name = "SIZE", value_parser = sizes::parse)]
    first: usize,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", default_value = "128M", value_name = "SIZE", value_parser = sizes::parse)]
    last: usize,
    /// Each size is the one before times this
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2, value_parser = whole::<usize>(2, 1024), value_name = "FACTOR")]
    factor: usize,
    /// Iterations per size
    #[arg(short = 'n', long = "iters", default_value_t = 20, value_parser = whole(1, COUNT_MAX), value_name = "COUNT")]
    iterations: usize,
    /// Iterations before the clock starts
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 5, value_parser = whole(0, COUNT_MAX), value_name = "COUNT")]
    warmups: usize,
    /// Checked iterations per size; 0: none
    #[arg(short = 'c', long, default_value_t = 1, value_parser = whole(0, COUNT_MAX), value_name = "COUNT")]
    check: usize,
    /// int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float or double
    #[arg(short = 'd', long = "datatype", default_value = "float", value_name = "TYPE")]
    kind: DataType,
    /// Ranks to start
    #[arg(short = 'r', long, alias = "np", default_value_t = 2, value_parser = whole(1, RANKS_MAX), value_name = "COUNT")]
    ranks: usize,
    /// The GPU of every rank [default: rank modulo GPUs]
    #[arg(long, value_name = "INDEX", value_parser = whole(0, INDEX_MAX))]
    device: Option<usize>,
    /// The plugin's file [default: Ironrail, next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    /// Another plugin's file to run side by side; may be given several times
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    versus: Vec<String>,
    /// Leave out NCCL's own sockets
    #[arg(long)]
    no_socket: bool,
    /// NCCL: a folder that has libnccl.so.2, or a file [default: as the loader finds it]
    #[arg(long, value_name = "PLACE")]
    nccl: Option<PathBuf>,
    /// Libfabric for Ironrail: a file, a folder, a .deb or a .whl, or a folder of these [default: as the loader finds it]
    #[arg(long, value_name = "PLACE")]
    libfabric: Option<PathBuf>,
    /// NCCL's algorithm (NCCL_ALGO): ring, tree, …
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
    /// NCCL's protocol (NCCL_PROTO): LL, LL128, Simple
    #[arg(long, value_name = "NAME")]
    proto: Option<String>,
    /// Keep the results in this folder, as nccl-COLLECTIVE.json and .md
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Seconds that a wait may take
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds(0.001, 86_400.0))]
    timeout: Duration,
    /// Show NCCL's log
    #[arg(short, long)]
    verbose: bool,
}

/// A network to run over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    /// NCCL's name of the network, as in NCCL_NET.
    name: String,
    /// The plugin's file; none for NCCL's sockets.
    plugin: Option<PathBuf>,
}

impl Options {
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    fn sizes(&self) -> Vec<usize> {
        sizes::sequence(self.first, self.last, self.factor, None)
    }

    fn last(&self) -> usize {
        self.last.max(self.first)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs every network, or this process's rank of one. Returns whether all is well.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        // A rank exits when its launcher has ended.
        if let Some(meeting) = launch::child(|| {})? {
            return rank::part(self, meeting);
        }
        sizes::check(self.first, self.last, None)?;
        if collective::kind(self.kind).is_none() {
            return Err(GroupError::Usage(format!("NCCL has no type {}", self.kind)));
        }
        let mut results = self.results.as_deref().map(|folder| self.open(folder)).transpose()?;
        let folder = Folder::new()?;
        let libfabric = match &self.libfabric {
            Some(place) => Some(libfabric::find(place, &folder.0)?),
            None => None,
        };
        let networks = self.networks()?;
        // A library that no rank could open is reported once, before any rank is started.
        rank::open(self)?;
        let mut runs = Vec::new();
        for network in &networks {
            runs.push(self.over(network, libfabric.as_deref(), &folder.0)?);
        }
        let has_rows = runs.first().is_some_and(|run| !run.rows.is_empty());
        if runs.len() > 1 && has_rows {
            output::line(
                "# Side by side, the better of out-of-place and in-place; ratios are of bandwidths",
            );
            for line in report::comparison(&runs) {
                let cells: Vec<_> = line.iter().map(|cell| format!("{cell:>20}")).collect();
                output::line(format_args!("# {}", cells.join(" ")));
            }
        }
        if let Some([json, page]) = &mut results {
            let surroundings = Surroundings::here();
            json.write(&report::to_json(self.test, self.ranks, &surroundings, &runs))?;
            page.write(&report::to_page(self.test, self.ranks, &surroundings, &runs))?;
        }
        Ok(runs.iter().all(Run::is_well))
    }

    /// The plugin, sockets, and the other plugins. A plugin reports the name of its network.
    fn networks(&self) -> Result<Vec<Network>, GroupError> {
        let of = |file: &str| -> Result<Network, GroupError> {
            let library = Library::open(file, None)?;
            let path = Path::new(library.path());
            // NCCL runs in this folder too, but the loader would search its path for a bare name.
            let plugin = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            Ok(Network { name: library.name().to_owned(), plugin: Some(plugin) })
        };
        let own = self.net.clone().unwrap_or_else(plugin::ours);
        let mut networks = vec![of(&own)?];
        if !self.no_socket {
            networks.push(Network { name: SOCKET.to_owned(), plugin: None });
        }
        for other in &self.versus {
            networks.push(of(other)?);
        }
        Ok(networks)
    }

    fn over(
        &self,
        network: &Network,
        libfabric: Option<&Path>,
        folder: &Path,
    ) -> Result<Run, GroupError> {
        let logs: Vec<_> = (0..self.ranks)
            .map(|rank| folder.join(format!("{}.{rank}.log", network.name)))
            .collect();
        let mut program = Program::this(std::env::args_os().skip(1))?
            .with_each("NCCL_HOSTID", (0..self.ranks).map(|rank| format!("ironrail-{rank}")))
            .with_each("NCCL_DEBUG_FILE", logs.iter().map(|log| log.as_os_str()));
        for (name, value) in self.environment(network, libfabric) {
            program = program.with(name, value);
        }
        let mut run = Run {
            network: network.name.clone(),
            plugin: network.plugin.as_ref().map(|path| path.display().to_string()),
            ready: None,
            said: Vec::new(),
            rows: Vec::new(),
            causes: Vec::new(),
        };
        self.head(&run);
        let hub = loopback::meet(self.ranks, self.timeout())?;
        let mut signals = Heeded::new(&STOPPING)?;
        let complaints = Complaints::default();
        let show = move |rank: usize, line: &[u8]| complaints.show(rank, line);
        let mut launch = Launch::start(&program, hub, self.ranks, show)?;
        while let Some(line) = launch.next_line(|ranks| signals.follow(ranks)) {
            let (printed, answer) = answers::split(&line);
            if answer.is_none() || !printed.is_empty() {
                log::warn!("rank 0 printed: {printed}"); // NCCL, or the plugin.
            }
            match answer {
                Some(Event::Ready(ready)) => {
                    output::line(format_args!("# NCCL {} {}", ready.nccl, ready.file));
                    ready.ranks.iter().for_each(|rank| output::line(format_args!("#  {rank}")));
                    output::line(report::table_head());
                    run.ready = Some(ready);
                }
                Some(Event::Row(row)) => {
                    output::line(report::table_line(&row));
                    run.rows.push(row);
                }
                None => {}
            }
        }
        run.causes = launch.finish().err().unwrap_or_default();
        self.prove(network, &logs, &mut run);
        if !run.rows.is_empty() {
            let verdict = if run.is_well() { "OK" } else { "FAILED" };
            output::line(format_args!("# Out of bounds values : {} {verdict}", run.wrong()));
        }
        output::print_causes(&run.causes);
        Ok(run)
    }

    /// Adds a cause for each rank whose log does not prove that the network was used.
    fn prove(&self, network: &Network, logs: &[PathBuf], run: &mut Run) {
        for (rank, path) in logs.iter().enumerate() {
            let log = fs::read(path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if self.verbose {
                log.lines().for_each(|line| log::info!("rank {rank}: {line}"));
            }
            // The rank failed before it called NCCL, and its cause says so.
            if log.is_empty() && !run.causes.is_empty() {
                continue;
            }
            if rank == 0 {
                run.said = evidence::said(&log, &network.name);
            }
            let wanted = Wanted { network: &network.name, peers: self.ranks > 1 };
            if let Err(why) = evidence::prove(&log, wanted) {
                run.causes.push(format!("rank {rank}: {why}"));
            }
        }
        if run.causes.is_empty() && run.rows.len() != self.sizes().len() {
            let (there, all) = (run.rows.len(), self.sizes().len());
            run.causes.push(format!("there are rows for {there} of {all} sizes"));
        }
    }

    /// The environment that makes NCCL use this network, and nothing else between ranks (NCCL src/graph/paths.cc, src/transport/shm.cc).
    fn environment(
        &self,
        network: &Network,
        libfabric: Option<&Path>,
    ) -> Vec<(&'static str, OsString)> {
        let mut set: Vec<(&'static str, OsString)> = vec![
            ("NCCL_NET", network.name.clone().into()),
            ("NCCL_DEBUG", "INFO".into()),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET".into()),
            ("NCCL_P2P_DISABLE", "1".into()),
            ("NCCL_SHM_DISABLE", "1".into()),
            ("NCCL_MNNVL_ENABLE", "0".into()),
            ("NCCL_NVLS_ENABLE", "0".into()),
        ];
        let plugin =
            network.plugin.as_ref().map_or_else(|| "none".into(), |path| path.clone().into());
        set.push(("NCCL_NET_PLUGIN", plugin));
        // All ranks are on this machine, and a container may have no other interface.
        if std::env::var_os("NCCL_SOCKET_IFNAME").is_none() {
            set.push(("NCCL_SOCKET_IFNAME", "lo".into()));
        }
        let given = [("NCCL_ALGO", &self.algo), ("NCCL_PROTO", &self.proto)];
        set.extend(
            given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?.into()))),
        );
        set.extend(libfabric.map(|file| ("IRONRAIL_LIBFABRIC", file.into())));
        set
    }

    fn head(&self, run: &Run) {
        output::line(format_args!(
            "# ironrail nccl {} ranks {} minBytes {} maxBytes {} iters: {} warmup iters: {} checked iters: {}",
            self.test.name(),
            self.ranks,
            self.first,
            self.last,
            self.iterations,
            self.warmups,
            self.check
        ));
        let plugin = run.plugin.as_deref().unwrap_or("NCCL's own");
        output::line(format_args!("# Network {} ({plugin})", run.network));
    }

    /// The files of the results.
    fn open(&self, results: &Path) -> Result<[Destination; 2], GroupError> {
        fs::create_dir_all(results).map_err(|error| GroupError::System {
            what: "making the folder of results",
            error: files::of(results, error),
        })?;
        let file = |ending| {
            Destination::open(&results.join(format!("nccl-{}.{ending}", self.test.name())))
        };
        Ok([file("json")?, file("md")?])
    }
}

/// NCCL's name for its own transport.
const SOCKET: &str = "Socket";

/// A private folder of this process, for logs and unpacked packages; removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, GroupError> {
        files::private_folder("ironrail-nccl")
            .map(Self)
            .map_err(|error| GroupError::System { what: "making a private folder", error })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
