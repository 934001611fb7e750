//! The table in nccl-tests' columns, the comparison of networks, and both as JSON and as a page.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::collective::Test;
use crate::perf::time;
use crate::sums;

/// The reports of rank 0 to the launcher, one line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Event {
    /// All ranks have joined.
    Ready(Ready),
    /// A size is done.
    Row(Row),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// NCCL's version and file.
    pub(super) nccl: String,
    pub(super) file: String,
    /// The CUDA driver's version, in its own numbering.
    pub(super) driver: Option<i32>,
    /// One line per rank.
    pub(super) ranks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) kind: String,
    pub(super) operation: String,
    pub(super) out_of_place: Side,
    /// `None`: NCCL has no such form of this collective.
    pub(super) in_place: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) time_us: f64,
    /// In GB/s, as nccl-tests defines them.
    pub(super) algorithm_bandwidth: f64,
    pub(super) bus_bandwidth: f64,
    /// `None`: nothing was checked.
    pub(super) wrong: Option<u64>,
}

impl Side {
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    pub(super) fn new(time_us: f64, bytes: usize, bus_factor: f64, wrong: Option<u64>) -> Self {
        let algorithm_bandwidth = if time_us > 0.0 { bytes as f64 / (time_us * 1e3) } else { 0.0 };
        let bus_bandwidth = algorithm_bandwidth * bus_factor;
        Self { time_us, algorithm_bandwidth, bus_bandwidth, wrong }
    }
}

impl Row {
    fn sides(&self) -> impl Iterator<Item = Side> + use<> {
        [Some(self.out_of_place), self.in_place].into_iter().flatten()
    }

    /// The shorter time of the two forms.
    fn best_us(&self) -> f64 {
        self.sides().map(|side| side.time_us).fold(f64::INFINITY, f64::min)
    }

    fn best_bus(&self) -> f64 {
        self.sides().map(|side| side.bus_bandwidth).fold(0.0, f64::max)
    }
}

/// The run of one network.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) network: String,
    /// The plugin's file; none for NCCL's own sockets.
    pub(super) plugin: Option<String>,
    pub(super) ready: Option<Ready>,
    /// The network's own lines in the log of rank 0: versions, libraries, devices.
    pub(super) said: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// Why the run failed, the first cause first.
    pub(super) causes: Vec<String>,
}

impl Run {
    pub(super) fn wrong(&self) -> u64 {
        sums::saturating(self.rows.iter().flat_map(Row::sides).filter_map(|side| side.wrong))
    }

    pub(super) fn is_well(&self) -> bool {
        self.causes.is_empty() && self.wrong() == 0
    }
}

/// nccl-tests' two lines of column names.
pub(super) fn table_head() -> String {
    let line = |cells: [&str; 13]| {
        let [size, count, kind, operation, root, a, b, c, d, e, f, g, h] = cells;
        format!(
            "#{size:>11}  {count:>12}  {kind:>8}  {operation:>6}  {root:>6}  {a:>8}  {b:>6}  {c:>6}  {d:>6}  {e:>8}  {f:>6}  {g:>6}  {h:>6}"
        )
    };
    [
        line(["", "", "", "", "", "out-of-place", "", "", "", "in-place", "", "", ""]),
        line([
            "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
            "algbw", "busbw", "#wrong",
        ]),
        line([
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
        ]),
    ]
    .join("\n")
}

pub(super) fn table_line(row: &Row) -> String {
    let Row { bytes, count, kind, operation, out_of_place, in_place } = row;
    let side = |side: Option<Side>| {
        let Some(Side { time_us, algorithm_bandwidth, bus_bandwidth, wrong }) = side else {
            return format!("{:>8}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
        };
        let wrong = wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
        format!(
            "{:>8}  {algorithm_bandwidth:>6.2}  {bus_bandwidth:>6.2}  {wrong:>6}",
            time(time_us)
        )
    };
    format!(
        "{bytes:>12}  {count:>12}  {kind:>8}  {operation:>6}  {NO_ROOT:>6}  {}  {}",
        side(Some(*out_of_place)),
        side(*in_place)
    )
}

const NO_ROOT: i32 = -1;

/// The first network against each other one: times, and the ratio of bandwidths.
pub(super) fn comparison(runs: &[Run]) -> Vec<Vec<String>> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let mut head = vec!["size (B)".to_owned(), format!("{} (us)", first.network)];
    for other in others {
        head.push(format!("{} (us)", other.network));
        head.push(format!("{} / {}", first.network, other.network));
    }
    let mut lines = vec![head];
    for row in &first.rows {
        let mut line = vec![row.bytes.to_string(), time(row.best_us())];
        for other in others {
            match other.rows.iter().find(|other| other.bytes == row.bytes) {
                Some(other) => {
                    line.push(time(other.best_us()));
                    line.push(ratio(row.best_bus(), other.best_bus()));
                }
                None => line.extend(["-".to_owned(), "-".to_owned()]),
            }
        }
        lines.push(line);
    }
    lines
}

/// The ratio of two bandwidths; empty where one is zero.
fn ratio(ours: f64, theirs: f64) -> String {
    if ours > 0.0 && theirs > 0.0 { format!("{:.2}", ours / theirs) } else { "-".to_owned() }
}

/// The machine and the settings, by name.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Surroundings {
    pub(super) cpu: String,
    pub(super) kernel: String,
    pub(super) settings: Vec<(String, String)>,
}

impl Surroundings {
    /// The surroundings of this process, on this machine.
    pub(super) fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = cpu(&read("/proc/cpuinfo"));
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        let is_ours = |name: &str| SETTINGS.iter().any(|prefix| name.starts_with(prefix));
        let text = |word: OsString| word.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        let mut settings: Vec<_> = variables.filter(|(name, _)| is_ours(name)).collect();
        settings.sort();
        Self { cpu, kernel, settings }
    }
}

/// The CPU that /proc/cpuinfo describes. On aarch64 that has numbers in place of a name.
fn cpu(cpuinfo: &str) -> String {
    let value = |key| {
        let mut lines = cpuinfo.lines();
        lines.find_map(|line| line.strip_prefix(key)?.split_once(": ")).map(|(_, value)| value)
    };
    match (value("model name"), value("CPU implementer"), value("CPU part")) {
        (Some(name), ..) => name.to_owned(),
        (None, Some(implementer), Some(part)) => format!("implementer {implementer}, part {part}"),
        _ => "unknown".to_owned(),
    }
}

const SETTINGS: [&str; 4] = ["NCCL_", "FI_", "IRONRAIL_", "CUDA_"];
const JSON_FORMAT: &str = "ironrail-nccl/1";

pub(super) fn to_json(
    test: Test,
    ranks: usize,
    surroundings: &Surroundings,
    runs: &[Run],
) -> String {
    let value = json!({
        "format": JSON_FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "collective": test.name(),
        "ranks": ranks,
        "surroundings": surroundings,
        "runs": runs,
    });
    format!("{value:#}\n")
}

/// A page for docs/results/: what was run where, each network's table, and their comparison.
pub(super) fn to_page(
    test: Test,
    ranks: usize,
    surroundings: &Surroundings,
    runs: &[Run],
) -> String {
    let mut page = format!("# {} under NCCL, {ranks} ranks\n\n", test.name());
    let Surroundings { cpu, kernel, settings } = surroundings;
    let version = env!("CARGO_PKG_VERSION");
    let mut facts = vec![
        ("CPU".to_owned(), cpu.clone()),
        ("kernel".to_owned(), kernel.clone()),
        ("ironrail".to_owned(), version.to_owned()),
    ];
    if let Some(ready) = runs.iter().find_map(|run| run.ready.as_ref()) {
        facts.push(("NCCL".to_owned(), format!("{} ({})", ready.nccl, ready.file)));
        let driver = ready.driver.map(|code| format!("{}.{}", code / 1000, code % 1000 / 10));
        facts.push(("CUDA driver".to_owned(), driver.unwrap_or_else(|| "unknown".to_owned())));
        facts.extend(ready.ranks.iter().map(|rank| ("rank".to_owned(), rank.clone())));
    }
    facts.extend(settings.iter().map(|(name, value)| (format!("`{name}`"), value.clone())));
    page.push_str("| what | value |\n|---|---|\n");
    for (name, value) in facts {
        let _ = writeln!(page, "| {name} | {} |", value.replace('|', "\\|").replace('\n', " "));
    }
    for run in runs {
        let plugin = run.plugin.as_deref().unwrap_or("NCCL's own");
        let _ = write!(page, "\n## {} ({plugin})\n\n", run.network);
        for cause in &run.causes {
            let _ = writeln!(page, "- failed: {cause}");
        }
        if !run.said.is_empty() {
            let _ = write!(page, "The log of rank 0:\n\n```\n{}\n```\n\n", run.said.join("\n"));
        }
        let lines = run.rows.iter().map(table_line).collect::<Vec<_>>().join("\n");
        let _ = write!(page, "```\n{}\n{lines}\n```\n\n#wrong: {}\n", table_head(), run.wrong());
    }
    let lines = comparison(runs);
    if let Some((head, rows)) = lines.split_first() {
        let _ = write!(
            page,
            "\n## Side by side\n\nThe better of out-of-place and in-place; ratios are of bandwidths.\n\n"
        );
        let _ = writeln!(page, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for row in rows {
            let _ = writeln!(page, "| {} |", row.join(" | "));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(network: &str, time_us: f64) -> Run {
        let row = Row {
            bytes: 1 << 20,
            count: 1 << 18,
            kind: "float".to_owned(),
            operation: "sum".to_owned(),
            out_of_place: Side::new(time_us, 1 << 20, 1.0, Some(0)),
            in_place: None,
        };
        let plugin = Some(format!("lib|{network}.so"));
        Run {
            network: network.to_owned(),
            plugin,
            ready: None,
            said: vec!["Using Libfabric 1.17".to_owned()],
            rows: vec![row],
            causes: Vec::new(),
        }
    }

    #[test]
    fn a_cpu_of_any_architecture_has_a_name() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7R13\n";
        assert_eq!(cpu(x86), "AMD EPYC 7R13");
        let grace =
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n";
        assert_eq!(cpu(grace), "implementer 0x41, part 0xd4f");
        assert_eq!(cpu(""), "unknown");
    }

    #[test]
    fn the_columns_are_those_of_nccl_tests_in_their_order() {
        let head = table_head();
        let names: Vec<_> = head.lines().nth(1).unwrap().split_whitespace().collect();
        let expected =
            "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
        assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
        let line = table_line(&run("Ironrail", 100.0).rows[0]);
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            cells[..9],
            ["1048576", "262144", "float", "sum", "-1", "100.0", "10.49", "10.49", "0"]
        );
        assert_eq!(cells[9..], ["N/A"; 4]);
    }

    #[test]
    fn a_comparison_divides_the_firsts_bandwidth_by_the_others() {
        let runs = [run("Ironrail", 100.0), run("Socket", 150.0)];
        let lines = comparison(&runs);
        assert_eq!(lines[0], ["size (B)", "Ironrail (us)", "Socket (us)", "Ironrail / Socket"]);
        assert_eq!(lines[1], ["1048576", "100.0", "150.0", "1.50"]);
        let surroundings =
            Surroundings { cpu: "x".to_owned(), kernel: "y".to_owned(), settings: Vec::new() };
        let page = to_page(Test::AllReduce, 2, &surroundings, &runs);
        assert!(page.contains("| 1048576 | 100.0 | 150.0 | 1.50 |"), "{page}");
        assert!(page.contains("\nUsing Libfabric 1.17\n"), "{page}");
        let value: serde_json::Value =
            serde_json::from_str(&to_json(Test::AllReduce, 2, &surroundings, &runs)).unwrap();
        assert_eq!(value["runs"][1]["rows"][0]["out_of_place"]["wrong"], 0);
    }

    #[test]
    fn a_run_with_wrong_data_or_a_cause_is_not_well() {
        let mut bad = run("Ironrail", 1.0);
        assert!(bad.is_well());
        bad.rows[0].out_of_place.wrong = Some(3);
        assert!(!bad.is_well() && bad.wrong() == 3);
        let mut failed = run("Ironrail", 1.0);
        failed.causes.push("a rank died".to_owned());
        assert!(!failed.is_well());
    }
}
