//! `ironrail perf compare`: compares runs size by size, with a verdict that accounts for noise; and a page with pictures.

mod page;
mod plot;
mod runs;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use ironrail_group::error::GroupError;
use serde_json::{Value, json};

use crate::{files, output};
use runs::{Row, Series};
use verdict::{Comparison, Verdict, percent};

/// Compares files that `perf --json` has written: two sides, each of one or more runs with commas between.
///
/// Per size the medians, how far the runs spread, the ratio of the second side to the first, and a verdict: whether sides that are the same
/// would lie so far apart less than one time in twenty. That takes four runs a side at least. Of many sizes, one verdict in
/// twenty is chance. Runs that have failed are counted with the others, and reported. Exit code 1: the second side is worse at some size.
#[derive(Clone, Debug, Args)]
pub(crate) struct Compare {
    /// Two sides, or more for a page of pictures alone: files, several runs of one side with commas between
    #[arg(required = true, value_name = "FILES")]
    sides: Vec<OsString>,
    /// Compare times, not bus bandwidths; always so where no bytes are moved, as by barriers
    #[arg(long)]
    time: bool,
    /// Write the comparison as JSON, to a file or, without one, to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a page with pictures of all sides
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write all runs of all files as one file, which stands for them from then on, and compare nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "report", "time"])]
    merge: Option<PathBuf>,
}

impl Compare {
    /// Compares the sides, and writes the results. Returns whether the second side is worse at no size.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        if self.json.is_some() && self.sides.len() != 2 {
            return Err(GroupError::Usage(
                "--json has the comparison of two sides: give two, or --report alone".to_owned(),
            ));
        }
        let sides: Vec<_> =
            self.sides.iter().map(|side| Series::read(side)).collect::<Result<_, _>>()?;
        if let Some(file) = &self.merge {
            let runs: Vec<_> = sides.into_iter().flat_map(|side| side.runs).collect();
            let all = Series::of("the merged file", runs)?;
            files::write(file, &format!("{:#}\n", runs::merged(&all.runs)))?;
            return Ok(true);
        }
        let two = <&[Series; 2]>::try_from(sides.as_slice()).ok();
        if let Some([first, second]) = two
            && first.benchmark() != second.benchmark()
        {
            let (one, other) = (first.benchmark(), second.benchmark());
            return Err(GroupError::Usage(format!("{one} is not compared with {other}")));
        }
        let time = self.time || !sides.iter().any(Series::has_bandwidth);
        let rows = two.map_or_else(Vec::new, |[first, second]| rows(first, second, time));
        if let Some([first, second]) = two
            && rows.is_empty()
        {
            let (one, other) = (&first.name, &second.name);
            return Err(GroupError::Usage(format!("{one} and {other} have no size in common")));
        }
        if let Some(file) = &self.report {
            files::write(file, &page::of(&sides, time))?;
        }
        let Some([first, second]) = two else {
            if self.report.is_some() {
                return Ok(true);
            }
            return Err(GroupError::Usage(
                "two sides are compared; more, or one, make a page (--report)".to_owned(),
            ));
        };
        match &self.json {
            Some(file) => {
                files::write(file, &format!("{:#}\n", as_json(first, second, &rows, time)))?;
            }
            None => print(first, second, &rows, time),
        }
        Ok(rows.iter().all(|(_, row)| row.verdict != Verdict::Worse))
    }
}

fn as_json(first: &Series, second: &Series, rows: &[(u64, Comparison)], time: bool) -> Value {
    let left_out = left_out(first, second, rows);
    let rows: Vec<_> = rows
        .iter()
        .map(|(bytes, row)| {
            json!({
                "size": bytes, "first": row.first, "second": row.second, "ratio": row.ratio,
                "spread_percent": [row.spreads.0, row.spreads.1], "verdict": row.verdict.words(),
            })
        })
        .collect();
    json!({
        "format": "ironrail-perf-compare/1",
        "benchmark": first.benchmark(),
        "quantity": if time { "time_us" } else { "bus_bandwidth" },
        "sides": [side_json(first), side_json(second)],
        "results": rows,
        "not_compared": left_out,
    })
}

fn side_json(side: &Series) -> Value {
    let network = side.runs.first().map_or("", |run| &run.network);
    json!({ "name": side.name, "runs": side.runs.len(), "failed_runs": side.failed(), "network": network })
}

/// The sizes that have no row, for instance because a run of one side ended early.
fn left_out(first: &Series, second: &Series, rows: &[(u64, Comparison)]) -> Vec<u64> {
    let mut sizes = [first.sizes(), second.sizes()].concat();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| rows.iter().all(|(bytes, _)| bytes != size));
    sizes
}

/// The sizes that both sides have.
fn rows(first: &Series, second: &Series, time: bool) -> Vec<(u64, Comparison)> {
    let of = |row: &Row| if time { row.time_us } else { row.bus_bandwidth };
    let compare = |bytes| {
        Some((bytes, Comparison::of(&first.values(bytes, of), &second.values(bytes, of), !time)?))
    };
    first.sizes().into_iter().filter_map(compare).collect()
}

fn print(first: &Series, second: &Series, rows: &[(u64, Comparison)], time: bool) {
    let unit = if time { "time (us)" } else { "busbw (GB/s)" };
    for (side, word) in [(first, "first"), (second, "second")] {
        let network = side.runs.first().map_or("", |run| &run.network);
        output::line(format_args!(
            "# {word:<6} {}: {} of {}, {network}",
            side.name,
            side.count(),
            side.benchmark()
        ));
        if side.failed() > 0 {
            output::line(format_args!(
                "# {word:<6} {}: {} of them failed: values were wrong, or it ended early",
                side.name,
                side.failed()
            ));
        }
    }
    output::line(format_args!("# {unit}, medians; spread from the least to the most run"));
    output::line(format_args!(
        "#{:>11}  {:>10}  {:>7}  {:>10}  {:>7}  {:>7}  verdict",
        "size", "first", "spread", "second", "spread", "ratio"
    ));
    for (bytes, row) in rows {
        output::line(format_args!(
            "{bytes:>12}  {:>10}  {:>7}  {:>10}  {:>7}  {:>7.3}  {}",
            plot::short(row.first),
            percent(row.spreads.0),
            plot::short(row.second),
            percent(row.spreads.1),
            row.ratio,
            row.verdict.words()
        ));
    }
    let left_out = left_out(first, second, rows);
    if !left_out.is_empty() {
        let sizes: Vec<_> = left_out.iter().map(u64::to_string).collect();
        output::line(format_args!(
            "# not compared, since one side has no figure: {}",
            sizes.join(", ")
        ));
    }
}

/// The page of one run, from the JSON of `--json`.
///
/// # Errors
///
/// If the value is not a run.
pub(crate) fn page_of(run: &Value) -> Result<String, GroupError> {
    let runs = runs::parse(&run.to_string()).ok_or_else(|| {
        GroupError::Usage("the run cannot be drawn: it has no results".to_owned())
    })?;
    Ok(page::of(&[Series::of("this run", runs)?], false))
}
