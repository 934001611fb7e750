//! Programs that run over the virtual fabric in a process of their own, and the report that the fabric writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{self, client};
use crate::vfabric;

/// The four NICs that they use.
const RAILS: &str = "vnic0,vnic1,vnic2,vnic3";

/// The settings of a run, and the file of its report.
pub(crate) struct Fabric {
    pub(crate) settings: Vec<(&'static str, String)>,
    report: PathBuf,
}

/// The report of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    numbers: BTreeMap<String, u64>,
}

impl Fabric {
    pub(crate) fn new(profile: &str, more: &[(&'static str, &str)]) -> Self {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vfabric-{}-{run}", std::process::id());
        let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let folder = vfabric::file().parent().expect("a file is in a folder").to_owned();
        let text = |path: &Path| path.to_str().expect("the target folder is text").to_owned();
        let mut settings = vec![
            ("FI_PROVIDER_PATH", text(&folder)),
            ("FI_PROVIDER", "vfabric".to_owned()),
            ("IRONRAIL_RAILS", RAILS.to_owned()),
            ("VFABRIC_PROFILE", profile.to_owned()),
            ("VFABRIC_REPORT", text(&report)),
        ];
        settings.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        Self { settings, report }
    }

    /// The C client, connected to itself.
    pub(crate) fn client(profile: &str, version: u32, more: &[(&'static str, &str)]) -> Report {
        let fabric = Self::new(profile, more);
        let settings: Vec<_> =
            fabric.settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client::run(version, "self", &settings);
        fabric.report()
    }

    /// An all-reduce of two threads, every byte checked.
    pub(crate) fn all_reduce(profile: &str, more: &[(&'static str, &str)]) -> Report {
        Self::two_threads("all_reduce", profile, more)
    }

    /// Any operation of two threads, every byte checked.
    pub(crate) fn two_threads(
        operation: &str,
        profile: &str,
        more: &[(&'static str, &str)],
    ) -> Report {
        let fabric = Self::new(profile, more);
        support::output_of(&mut fabric.perf(operation));
        fabric.report()
    }

    /// Communicators of two threads each.
    pub(crate) fn stress(profile: &str) -> Report {
        let fabric = Self::new(profile, &[]);
        let settings: Vec<_> =
            fabric.settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client::stress(8, 1, 24, &settings);
        fabric.report()
    }

    pub(crate) fn perf(&self, operation: &str) -> Command {
        let mut perf = Command::new(command());
        perf.args(["perf", operation, "--ranks", "2", "--threads"]);
        perf.args(["-b", "8", "-e", "1M", "-f", "8", "-n", "2", "-w", "1", "-c", "1"]);
        perf.arg("--net").arg(support::plugin());
        perf.envs(self.settings.iter().map(|(name, value)| (*name, value)));
        perf
    }

    pub(crate) fn report(&self) -> Report {
        let text = std::fs::read_to_string(&self.report).expect("the provider leaves a report");
        std::fs::remove_file(&self.report).expect("the report is a file");
        let mut report = Report { violations: Vec::new(), numbers: BTreeMap::new() };
        for line in text.lines() {
            if let Some(words) = line.strip_prefix("violation ") {
                report.violations.push(words.to_owned());
            } else if let Some((name, Ok(value))) =
                line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse()))
            {
                report.numbers.insert(name, value);
            }
        }
        report
    }
}

impl Report {
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// Data moved on every NIC, no rule was broken, and nothing is left open.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.number("violations"), 0, "{:#?}", self.violations);
        for kind in ["domains", "endpoints", "queues", "vectors", "regions", "peers", "operations"]
        {
            assert_eq!(self.number(&format!("open {kind}")), 0, "{kind} left open: {self:#?}");
        }
        for nic in 0..4 {
            assert!(self.number(&format!("nic {nic} bytes")) > 0, "NIC {nic} has moved nothing");
        }
    }
}

/// The command, built by cargo once.
pub(crate) fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| {
        harness::executable("ironrail", &["--package", "ironrail-cli", "--bin", "ironrail"])
    })
}
