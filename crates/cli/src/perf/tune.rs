//! `ironrail perf tune`: measures every algorithm of all-reduce, and makes the table of choices from it.
//!
//! The algorithms alternate run by run, so that disturbances of the machine affect all of them. For each size the medians of the runs are
//! compared.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use ironrail_group::error::GroupError;
use ironrail_group::launch::Program;
use ironrail_group::tuning::{Algorithm, Row, Tuning};
use serde_json::json;

use super::arguments::{Options, Tune};
use super::launcher::processes;
use super::report::{self, Event};
use crate::files::Destination;
use crate::{median, output};

/// Median times in µs, by size and algorithm.
type Times = BTreeMap<usize, Vec<(Algorithm, f64)>>;

/// The measurements with this many ranks.
struct Measured {
    ranks: usize,
    times: Times,
}

/// Measures and prints the table. Returns whether every run went well.
pub(super) fn run(tune: &Tune, options: &Options) -> Result<bool, GroupError> {
    let json_file = options.json.as_deref().map(Destination::open).transpose()?;
    let mut all = Vec::new();
    for ranks in groups(options.ranks) {
        match measure(tune, options, ranks)? {
            Ok(times) => all.push(Measured { ranks, times }),
            Err(causes) => {
                output::print_causes(&causes);
                return Ok(false);
            }
        }
    }
    let table = table(&all)?;
    if options.json.as_deref() != Some(Path::new("-")) {
        print(tune, options, &all, &table);
    }
    if let Some(mut file) = json_file {
        file.write(&format!("{:#}\n", json(&all, &table)))?;
    }
    Ok(true)
}

/// The numbers of ranks to measure: a row of the table is for that many ranks and more.
fn groups(most: usize) -> Vec<usize> {
    let doubled = (2..).map(|power: u32| 1_usize << power).take_while(|ranks| *ranks < most);
    let mut all: Vec<_> = [2, 3].into_iter().filter(|ranks| *ranks < most).chain(doubled).collect();
    all.push(most);
    all
}

fn measure(
    tune: &Tune,
    options: &Options,
    ranks: usize,
) -> Result<Result<Times, Vec<String>>, GroupError> {
    let mut options = options.clone();
    options.ranks = ranks;
    let mut sides = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.takes(ranks)) {
        sides.push((algorithm, program(&options, algorithm)?));
    }
    let mut runs: BTreeMap<usize, Vec<Vec<f64>>> = BTreeMap::new();
    for round in 0..tune.runs {
        output::progress(format_args!("{ranks} ranks: run {} of {}", round + 1, tune.runs));
        for place in 0..sides.len() {
            // Each algorithm runs first equally often, since a run affects the next one.
            let side = (place + round) % sides.len();
            let ended = processes(&sides[side].1, &options, |event| {
                if let Event::Row(row) = event {
                    let of_size = runs.entry(row.bytes);
                    let of_size = of_size.or_insert_with(|| vec![Vec::new(); sides.len()]);
                    of_size[side].push(row.times.p50_us);
                }
            });
            if let Err(causes) = ended {
                return Ok(Err(causes));
            }
        }
    }
    let of_size = |times: Vec<Vec<f64>>| {
        let named = sides.iter().zip(times);
        named.filter_map(|((algorithm, _), runs)| Some((*algorithm, median::of(&runs)?)))
    };
    Ok(Ok(runs.into_iter().map(|(bytes, times)| (bytes, of_size(times).collect())).collect()))
}

fn program(options: &Options, algorithm: Algorithm) -> Result<Program, GroupError> {
    let mut arguments: Vec<OsString> = vec!["perf".into(), "all_reduce".into()];
    for (name, value) in [
        ("--algorithm", algorithm.to_string()),
        ("-r", options.ranks.to_string()),
        ("-o", options.operation().to_string()),
    ] {
        arguments.extend([name.into(), value.into()]);
    }
    if options.threads {
        arguments.push("--threads".into());
    }
    arguments.extend(options.to_plugin_arguments());
    arguments.extend(options.to_arguments());
    Program::this(arguments)
}

/// The fastest algorithm by size, and the built-in choices for more ranks than were measured.
fn table(all: &[Measured]) -> Result<Tuning, GroupError> {
    let most = all.iter().map(|measured| measured.ranks).max().unwrap_or(0);
    let built_in = Tuning::default();
    let beyond = built_in.rows().iter().filter(|row| row.ranks > most);
    let rows = all.iter().flat_map(|Measured { ranks, times }| choices(*ranks, times));
    Tuning::new(rows.chain(beyond.copied()).collect())
}

/// Rows for a number of ranks. The algorithm of the previous size stays until another is faster by [`MARGIN`]: otherwise the table would
/// change with each run by chance.
fn choices(ranks: usize, times: &Times) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (bytes, of_size) in times {
        let fastest = of_size.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((algorithm, time)) = fastest else { continue };
        match rows.last_mut() {
            Some(row) if stays(of_size, row.algorithm, *time) => row.bytes = *bytes,
            _ => rows.push(Row { ranks, bytes: *bytes, algorithm: *algorithm }),
        }
    }
    if let Some(last) = rows.last_mut() {
        last.bytes = usize::MAX;
    }
    rows
}

fn stays(of_size: &[(Algorithm, f64)], algorithm: Algorithm, fastest: f64) -> bool {
    of_size.iter().any(|(other, time)| *other == algorithm && *time <= fastest * MARGIN)
}

fn print(tune: &Tune, options: &Options, all: &[Measured], table: &Tuning) {
    output::line(format_args!("# A table of algorithms for all_reduce: `ranks bytes algorithm`."));
    output::line(format_args!(
        "# Median µs of {} runs each, {} {}, over {}",
        tune.runs,
        options.kind,
        options.operation(),
        options.net()
    ));
    for Measured { ranks, times } in all {
        let names = Algorithm::ALL.map(|algorithm| format!("{:>11}", algorithm.name()));
        output::line(format_args!("#\n# {ranks} ranks, bytes {}", names.concat()));
        for (bytes, of_size) in times {
            let cells = Algorithm::ALL.map(|algorithm| {
                let found = of_size.iter().find(|(other, _)| *other == algorithm);
                let time = found.map_or_else(|| "-".to_owned(), |(_, time)| report::time(*time));
                format!("{time:>11}")
            });
            output::line(format_args!("# {bytes:>14} {}", cells.concat()));
        }
    }
    output::line("#");
    table.to_string().lines().for_each(output::line);
}

fn json(all: &[Measured], table: &Tuning) -> serde_json::Value {
    let rows = table.rows().iter().map(|Row { ranks, bytes, algorithm }| {
        json!({ "ranks": ranks, "bytes": bytes, "algorithm": algorithm.name() })
    });
    let measured = all.iter().flat_map(|Measured { ranks, times }| {
        times.iter().map(move |(bytes, of_size)| {
            let times: BTreeMap<_, _> =
                of_size.iter().map(|(algorithm, time)| (algorithm.name(), time)).collect();
            json!({ "ranks": ranks, "size": bytes, "us": times })
        })
    });
    json!({
        "format": "ironrail-tune/1", "args": report::arguments(),
        "table": rows.collect::<Vec<_>>(), "measured": measured.collect::<Vec<_>>(),
    })
}

/// Runs of one algorithm differ by up to this factor.
const MARGIN: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [Algorithm; 2] = [Algorithm::OnePhase, Algorithm::Mesh];

    fn times(of: &[(usize, [f64; 2])]) -> Times {
        of.iter().map(|(bytes, us)| (*bytes, WAYS.into_iter().zip(*us).collect())).collect()
    }

    #[test]
    fn groups_are_small_ones_powers_of_two_and_the_largest() {
        assert_eq!(groups(2), [2]);
        assert_eq!(groups(3), [2, 3]);
        assert_eq!(groups(4), [2, 3, 4]);
        assert_eq!(groups(12), [2, 3, 4, 8, 12]);
    }

    #[test]
    fn the_fastest_is_chosen_and_stays_while_another_is_hardly_faster() {
        let found = choices(
            4,
            &times(&[
                (8, [10.0, 20.0]),
                (64, [20.0, 19.5]),
                (512, [30.0, 28.0]),
                (4096, [50.1, 50.0]),
            ]),
        );
        let row = |bytes, algorithm| Row { ranks: 4, bytes, algorithm };
        assert_eq!(found, [row(64, Algorithm::OnePhase), row(usize::MAX, Algorithm::Mesh)]);
    }

    #[test]
    fn a_table_keeps_the_built_in_rows_for_more_ranks() {
        let measured = Measured { ranks: 4, times: times(&[(8, [1.0, 2.0])]) };
        let table = table(&[measured]).unwrap();
        assert_eq!(table.choose(4, 1 << 30), Algorithm::OnePhase);
        assert_eq!(table.choose(40, 8), Tuning::default().choose(40, 8));
    }
}
