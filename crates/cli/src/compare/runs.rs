//! Files that `perf --json` has written: one run, or several that were merged.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironrail_group::error::GroupError;
use serde_json::{Value, json};

use crate::files;
use crate::output::shown;

/// One run: the results, and what they were measured on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    /// The JSON as it was written, for merging.
    pub(crate) whole: Value,
    pub(crate) benchmark: String,
    /// The network's name and the plugin's file.
    pub(crate) network: String,
    /// Rows by size in bytes.
    pub(crate) rows: BTreeMap<u64, Row>,
    pub(crate) rails: Vec<Rail>,
    /// Every size was measured, and no value was wrong.
    pub(crate) is_well: bool,
}

/// The result of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) time_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The bus bandwidth in GB/s.
    pub(crate) bus_bandwidth: f64,
    /// `None`: nothing was checked.
    pub(crate) wrong: Option<u64>,
}

/// The traffic of one rail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rail {
    pub(crate) name: String,
    pub(crate) percent: f64,
}

/// The runs of one side of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) runs: Vec<Run>,
}

impl Series {
    /// Reads files separated by commas, each with one run or merged runs.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or does not contain runs; runs of different benchmarks.
    pub(crate) fn read(names: &OsStr) -> Result<Self, GroupError> {
        let mut runs = Vec::new();
        let paths = || names.as_bytes().split(|byte| *byte == b',').map(OsStr::from_bytes);
        for path in paths().filter(|path| !path.is_empty()).map(Path::new) {
            let found = parse(&files::read(path)?).ok_or_else(|| {
                files::unusable(path, "it is not what `ironrail perf --json` writes")
            })?;
            runs.extend(found);
        }
        let first = paths().next().unwrap_or(names);
        let name = Path::new(first).file_stem().unwrap_or(first).to_string_lossy();
        Self::of(&name, runs)
    }

    /// Makes a series of runs of the same benchmark.
    ///
    /// # Errors
    ///
    /// If the runs are of different benchmarks, or there are none.
    pub(crate) fn of(name: &str, runs: Vec<Run>) -> Result<Self, GroupError> {
        let Some(first) = runs.first() else {
            return Err(GroupError::Usage(format!("{name} holds no run")));
        };
        if let Some(other) = runs.iter().find(|run| run.benchmark != first.benchmark) {
            let (one, other) = (&first.benchmark, &other.benchmark);
            return Err(GroupError::Usage(format!("{name} holds runs of {one} and of {other}")));
        }
        Ok(Self { name: name.to_owned(), runs })
    }

    pub(crate) fn benchmark(&self) -> &str {
        self.runs.first().map_or("", |run| &run.benchmark)
    }

    /// Whether any run moved bytes: barriers, for instance, have times alone.
    pub(crate) fn has_bandwidth(&self) -> bool {
        self.runs.iter().flat_map(|run| run.rows.values()).any(|row| row.bus_bandwidth > 0.0)
    }

    /// The number of runs, in words.
    pub(crate) fn count(&self) -> String {
        let count = self.runs.len();
        format!("{count} {}", if count == 1 { "run" } else { "runs" })
    }

    /// The number of runs that have failed.
    pub(crate) fn failed(&self) -> usize {
        self.runs.iter().filter(|run| !run.is_well).count()
    }

    /// The value of every run that has the size.
    pub(crate) fn values(&self, bytes: u64, of: impl Fn(&Row) -> f64) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.rows.get(&bytes)).map(of).collect()
    }

    /// The sizes that any run has, in ascending order.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.runs.iter().flat_map(|run| run.rows.keys().copied()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// The runs in a file's text.
pub(crate) fn parse(text: &str) -> Option<Vec<Run>> {
    let value: Value = serde_json::from_str(text).ok()?;
    match value["format"].as_str()? {
        RUN => Some(vec![run(value)?]),
        RUNS => value["runs"].as_array()?.iter().cloned().map(run).collect(),
        _ => None,
    }
}

/// Several runs as one JSON value.
pub(crate) fn merged(runs: &[Run]) -> Value {
    let runs: Vec<_> = runs.iter().map(|run| run.whole.clone()).collect();
    json!({ "format": RUNS, "runs": runs })
}

const RUN: &str = "ironrail-perf/1";
const RUNS: &str = "ironrail-perf-runs/1";

fn run(whole: Value) -> Option<Run> {
    if whole["format"] != RUN {
        return None;
    }
    let row = |value: &Value| {
        let places = ["out_of_place", "in_place"].map(|place| &value[place]);
        let times = places.into_iter().find(|place| place.is_object())?;
        let number = |name: &str| times[name].as_f64().unwrap_or(0.0);
        let row = Row {
            time_us: number("time"),
            p50_us: number("p50"),
            p99_us: number("p99"),
            bus_bandwidth: number("bus_bw"),
            wrong: times["nwrong"].as_u64(),
        };
        Some((value["size"].as_u64()?, row))
    };
    let rows = whole["results"].as_array()?.iter().map(row).collect::<Option<_>>()?;
    let rail = |value: &Value| {
        Some(Rail { name: value["name"].as_str()?.to_owned(), percent: value["percent"].as_f64()? })
    };
    let rails = whole["rails"].as_array().map(|rails| rails.iter().filter_map(rail).collect());
    let network = &whole["network"];
    // The file may come from another host, so its text is made safe for a terminal.
    let text = |value: &Value| shown(value.as_str().unwrap_or("unknown"));
    Some(Run {
        benchmark: shown(whole["benchmark"].as_str()?),
        network: format!("{}, {}", text(&network["network"]), text(&network["file"])),
        rows,
        rails: rails.unwrap_or_default(),
        is_well: whole["out_of_bounds"]["okay"].as_bool().unwrap_or(true),
        whole,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run with two sizes and these bandwidths.
    pub(crate) fn sample(benchmark: &str, small: f64, large: f64) -> Run {
        let row = |bytes: u64, bandwidth: f64| {
            json!({ "size": bytes, "out_of_place": {
                "time": 10.0, "p50": 9.0, "p99": 20.0, "bus_bw": bandwidth, "nwrong": 0 } })
        };
        run(json!({
            "format": RUN, "benchmark": benchmark, "results": [row(8, small), row(1 << 20, large)],
            "network": { "network": "Ironrail", "file": "a <b>.so" },
            "rails": [{ "name": "eth0", "percent": 75.0 }, { "name": "eth1", "percent": 25.0 }],
        }))
        .unwrap()
    }

    #[test]
    fn merged_files_are_read_as_the_runs_they_were() {
        let runs = vec![sample("all_reduce", 0.1, 5.0), sample("all_reduce", 0.2, 6.0)];
        let text = merged(&runs).to_string();
        assert_eq!(parse(&text).unwrap(), runs);
        let series = Series::of("a", runs).unwrap();
        assert_eq!(series.sizes(), [8, 1 << 20]);
        assert_eq!(series.values(8, |row| row.bus_bandwidth), [0.1, 0.2]);
    }

    #[test]
    fn names_in_a_run_of_another_host_give_the_terminal_no_command() {
        let mut whole = sample("all\u{1b}[2J", 0.1, 5.0).whole;
        whole["network"] = json!({ "network": "\u{9b}2J", "file": "a\nb" });
        let run = run(whole).unwrap();
        assert_eq!((&*run.benchmark, &*run.network), ("all?[2J", "?2J, a?b"));
    }

    #[test]
    fn a_result_in_place_is_a_row_and_an_unchecked_one_has_no_count() {
        let mut whole = sample("all_reduce", 0.1, 5.0).whole;
        let row = whole["results"][0]["out_of_place"].take();
        whole["results"][0] = json!({ "size": 8, "in_place": row });
        whole["results"][1]["out_of_place"]["nwrong"] = Value::Null;
        let rows = run(whole).unwrap().rows;
        assert_eq!((rows[&8].bus_bandwidth, rows[&8].wrong), (0.1, Some(0)));
        assert_eq!((rows[&(1 << 20)].bus_bandwidth, rows[&(1 << 20)].wrong), (5.0, None));
    }

    #[test]
    fn text_without_a_run_is_refused() {
        for text in ["", "{}", r#"{"format":"ironrail-perf/2"}"#, r#"{"format":"ironrail-perf/1"}"#]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(Series::of("none", Vec::new()).is_err());
        let mixed = vec![sample("all_reduce", 1.0, 1.0), sample("sendrecv", 1.0, 1.0)];
        let why = Series::of("mixed", mixed).unwrap_err().to_string();
        assert!(why.contains("all_reduce and of sendrecv"), "{why}");
    }
}
