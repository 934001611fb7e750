//! The output of a run: events from rank 0, and the table or JSON made of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use ironrail_group::error::GroupError;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::arguments::{Benchmark, Options, Raw};
use super::rails::{Found, Rail};
use super::statistics::Times;
use super::writes::{self, Counter, Ledger, Posts};
use crate::files::Destination;
use crate::{output, sums};

/// The reports of rank 0 to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Event {
    /// All ranks are connected.
    Ready(Ready),
    /// A size is done.
    Row(Row),
    /// All sizes are done.
    Moved(Moved),
}

/// The traffic of all ranks, over all sizes, with warm-ups and checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) messages: u64,
    /// The posts that this command has counted, if it uses libfabric itself.
    pub(super) posts: Option<Posts>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) network: String,
    pub(super) table: u32,
    pub(super) file: String,
    /// One line per rank.
    pub(super) ranks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) kind: String,
    pub(super) operation: String,
    /// The root's rank; -1 if the collective has none.
    pub(super) root: i64,
    pub(super) in_place: bool,
    pub(super) iterations: usize,
    pub(super) warmups: usize,
    pub(super) times: Times,
    /// The mean of the slowest rank, which is the time of a stream as a whole.
    pub(super) slowest_us: f64,
    /// In GB/s, as nccl-tests defines it.
    pub(super) algorithm_bandwidth: f64,
    pub(super) bus_bandwidth: f64,
    /// `None`: nothing was checked.
    pub(super) wrong: Option<u64>,
}

impl Row {
    fn nccl_json(&self) -> serde_json::Value {
        let place = if self.in_place { "in_place" } else { "out_of_place" };
        json!({
            "size": self.bytes, "count": self.count, "type": self.kind, "redop": self.operation, "root": self.root,
            "iterations": self.iterations, "warmup_iters": self.warmups,
            place: {
                "time": self.times.mean_us, "alg_bw": self.algorithm_bandwidth, "bus_bw": self.bus_bandwidth,
                "nwrong": self.wrong, "p50": self.times.p50_us, "p99": self.times.p99_us,
            },
        })
    }
}

/// Prints rows as they arrive, and the rest at the end.
#[derive(Debug)]
pub(super) struct Report<'a> {
    benchmark: &'a Benchmark,
    options: &'a Options,
    json: Option<Destination>,
    page: Option<Destination>,
    bar: ProgressBar,
    ready: Option<Ready>,
    rows: Vec<Row>,
    moved: Option<Moved>,
}

impl<'a> Report<'a> {
    /// Opens the files for the results: a path that cannot be written is an error before a rank starts.
    pub(super) fn new(benchmark: &'a Benchmark, options: &'a Options) -> Result<Self, GroupError> {
        let json = options.json.as_deref().map(Destination::open).transpose()?;
        let page = options.report.as_deref().map(Destination::open).transpose()?;
        let sizes = options.sizes_of(benchmark).len() as u64;
        let bar = if io::stderr().is_terminal() {
            ProgressBar::new(sizes)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(
            "{bar:24} {pos}/{len} sizes, {elapsed} gone, {eta} to go {msg}",
        ) {
            bar.set_style(style);
        }
        Ok(Self { benchmark, options, json, page, bar, ready: None, rows: Vec::new(), moved: None })
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Ready(ready) => {
                self.head(&ready);
                self.ready = Some(ready);
            }
            Event::Row(row) => {
                self.print(table_line(&row));
                self.bar.inc(1);
                self.bar.set_message(format!("{:.2} GB/s", row.bus_bandwidth));
                self.rows.push(row);
            }
            Event::Moved(moved) => self.moved = Some(moved),
        }
    }

    /// The warm-ups of a size, if all have the same number; each row has its own.
    fn warmups(&self) -> Option<usize> {
        let (options, benchmark) = (self.options, self.benchmark);
        let sizes = options.sizes_of(benchmark);
        let mut all = sizes
            .iter()
            .map(|bytes| options.warmups(benchmark, options.iterations(benchmark, *bytes)));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    fn head(&self, ready: &Ready) {
        let options = self.options;
        let sizes = options.sizes_of(self.benchmark);
        let iterations = sizes.iter().map(|bytes| options.iterations(self.benchmark, *bytes));
        self.print(format_args!(
            "# ironrail perf {} ranks {} {} minBytes {} maxBytes {} iters: {} warmup iters: {} checked iters: {}",
            self.benchmark.name(),
            options.ranks,
            if options.threads { "(threads)" } else { "(processes)" },
            sizes.first().copied().unwrap_or(0),
            sizes.last().copied().unwrap_or(0),
            range(iterations.clone()),
            range(iterations.map(|count| options.warmups(self.benchmark, count))),
            options.checks(self.benchmark),
        ));
        let table =
            if ready.table == 0 { String::new() } else { format!(" table v{},", ready.table) };
        self.print(format_args!("# Using network {},{table} {}", ready.network, ready.file));
        for rank in &ready.ranks {
            self.print(format_args!("#  {rank}"));
        }
        match self.benchmark {
            Benchmark::PingPong(_) | Benchmark::Raw(Raw { latency: true, .. }) => {
                self.print("# time, p50 and p99 are half round trips");
            }
            Benchmark::SendReceive(_) | Benchmark::Raw(_) => {
                self.print(
                    "# p50 and p99 are of the times from the end of one message to the next one's",
                );
            }
            Benchmark::Collective(_) => {}
        }
        self.print("#");
        self.print(table_head());
    }

    /// Prints the closing lines, or the JSON. `ended`: whether all ranks have ended well. Returns whether all is well.
    pub(super) fn finish(&mut self, found: &Found, ended: bool) -> Result<bool, GroupError> {
        self.bar.finish_and_clear();
        let wrong = sums::saturating(self.rows.iter().filter_map(|row| row.wrong));
        let (ran, sizes) = (self.rows.len(), self.options.sizes_of(self.benchmark).len());
        let well = ended && wrong == 0 && ran == sizes;
        let average = average(&self.rows);
        if ran < sizes {
            self.print(format_args!("# Sizes that ran       : {ran} of {sizes}"));
        }
        if ran > 0 {
            self.print(format_args!(
                "# Out of bounds values : {wrong} {}",
                if well { "OK" } else { "FAILED" }
            ));
            self.print(format_args!("# Avg bus bandwidth    : {average:.6}"));
        }
        for Rail { index, name, data_bytes, data_operations, percent } in &found.rails {
            self.print(format_args!(
                "# Rail {index} {name}: {data_bytes} bytes, {percent:.1} %, {data_operations} operations"
            ));
        }
        let ledgers = self.ledgers(found);
        let messages = self.moved.as_ref().map_or(0, |moved| moved.messages);
        if self.options.writes {
            ledgers.iter().for_each(|ledger| self.print(ledger.line(messages)));
            if ledgers.is_empty() {
                self.print(writes::UNKNOWN);
            }
        }
        let mut run = self.json(wrong, well, average, &found.rails);
        if let Some(page) = &mut self.page {
            page.write(&crate::compare::page_of(&run)?)?;
        }
        if let Some(json) = &mut self.json {
            if self.options.writes {
                run["writes"] = ledgers.iter().map(|ledger| ledger.json(messages)).collect();
            }
            json.write(&format!("{run:#}\n"))?;
        }
        Ok(well)
    }

    /// The known counts of posts; none for a run that did not end.
    fn ledgers(&self, found: &Found) -> Vec<Ledger> {
        let Some(moved) = &self.moved else { return Vec::new() };
        let own = moved.posts.map(|posts| Ledger { by: Counter::Raw, sides: vec![("all", posts)] });
        found.ledgers.iter().cloned().chain(own).collect()
    }

    fn json(&self, wrong: u64, well: bool, average: f64, rails: &[Rail]) -> serde_json::Value {
        let rows: Vec<_> = self.rows.iter().map(Row::nccl_json).collect();
        json!({
            "format": JSON_FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "args": arguments(),
            "benchmark": self.benchmark.name(),
            "network": self.ready,
            "environment": settings(std::env::vars_os()),
            "config": {
                "ranks": self.options.ranks, "threads": self.options.threads,
                "warmup_iters": self.warmups(), "validation": self.options.checks(self.benchmark),
            },
            "results": rows,
            "out_of_bounds": { "count": wrong, "okay": well },
            "average_bus_bandwidth": { "bandwidth": average },
            "rails": rails,
        })
    }

    /// Prints a line of the table, unless JSON replaces it.
    fn print(&self, text: impl std::fmt::Display) {
        if self.options.json.as_deref() != Some(Path::new(STANDARD_OUTPUT)) {
            self.bar.suspend(|| output::line(text));
        }
    }
}

/// Numbers as text: `20`, or `20 to 200` if they differ.
fn range(numbers: impl Iterator<Item = usize> + Clone) -> String {
    let (least, most) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if least == most { most.to_string() } else { format!("{least} to {most}") }
}

/// The command line. A file's name may be no text.
pub(super) fn arguments() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// The variables that NCCL, plugins and libfabric read, for later comparison of runs. Those of the group are left out: one has its token.
fn settings(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let of_run = |name: &str| {
        let read =
            ["IRONRAIL_", "NCCL_", "FI_", "VFABRIC_"].iter().any(|start| name.starts_with(start));
        read && !name.starts_with("IRONRAIL_GROUP_")
    };
    variables
        .map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        })
        .filter(|(name, _)| of_run(name))
        .collect()
}

const STANDARD_OUTPUT: &str = "-";
const JSON_FORMAT: &str = "ironrail-perf/1";

fn average(rows: &[Row]) -> f64 {
    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX).max(1);
    // The sum of nothing is -0.0.
    (0.0 + rows.iter().map(|row| row.bus_bandwidth).sum::<f64>()) / f64::from(count)
}

fn table_head() -> String {
    let line = |cells: [&str; 11]| {
        let [size, count, kind, op, root, time, alg, bus, wrong, p50, p99] = cells;
        format!(
            "#{size:>11}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}  {time:>8}  {alg:>6}  {bus:>6}  {wrong:>6}  {p50:>8}  {p99:>8}"
        )
    };
    [
        line([
            "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "p50",
            "p99",
        ]),
        line(["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)"]),
    ]
    .join("\n")
}

fn table_line(row: &Row) -> String {
    let Row {
        bytes,
        count,
        kind,
        operation,
        root,
        times,
        algorithm_bandwidth: alg,
        bus_bandwidth: bus,
        ..
    } = row;
    let wrong = row.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    let [time, p50, p99] = [times.mean_us, times.p50_us, times.p99_us].map(time);
    format!(
        "{bytes:>12}  {count:>12}  {kind:>8}  {operation:>6}  {root:>6}  {time:>8}  {alg:>6.2}  {bus:>6.2}  {wrong:>6}  {p50:>8}  {p99:>8}"
    )
}

/// A time in µs, with as many digits as nccl-tests shows.
pub(crate) fn time(us: f64) -> String {
    if us >= 10_000.0 {
        format!("{us:.0}")
    } else if us >= 100.0 {
        format!("{us:.1}")
    } else {
        format!("{us:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_run_are_kept_without_the_token_of_its_group() {
        let variables = [
            ("NCCL_NET", "Ironrail"),
            ("IRONRAIL_RAILS", "eth0"),
            ("IRONRAIL_GROUP_TOKEN", "sesame"),
            ("FI_TCP_IFACE", "eth0"),
            ("HOME", "/root"),
        ];
        let kept = settings(variables.map(|(name, value)| (name.into(), value.into())).into_iter());
        let names: Vec<_> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["FI_TCP_IFACE", "IRONRAIL_RAILS", "NCCL_NET"]);
        assert_eq!(kept["IRONRAIL_RAILS"], "eth0");
    }

    #[test]
    fn the_columns_are_those_of_nccl_tests_in_their_order_then_the_percentiles() {
        let head = table_head();
        let names: Vec<_> = head.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(names.join(" "), "# size count type redop root time algbw busbw #wrong p50 p99");
        let row = Row {
            bytes: 1024,
            count: 256,
            kind: "float".to_owned(),
            operation: "sum".to_owned(),
            root: -1,
            in_place: false,
            iterations: 20,
            warmups: 5,
            times: Times { mean_us: 12.345, p50_us: 11.0, p99_us: 123.45 },
            slowest_us: 13.0,
            algorithm_bandwidth: 0.083,
            bus_bandwidth: 0.124,
            wrong: Some(0),
        };
        let line = table_line(&row);
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells.join(" "), "1024 256 float sum -1 12.35 0.08 0.12 0 11.00 123.5");
        let width = |text: &str| text.len();
        assert_eq!(width(&line), width(head.lines().next().unwrap()));
    }
}
