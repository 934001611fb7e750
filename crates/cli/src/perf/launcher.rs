//! Starts the ranks, as processes or threads, and turns what rank 0 says into the report.

use std::net::SocketAddr;
use std::process;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::{Hub, Local, Meeting, Remote};
use ironrail_group::error::GroupError;
use ironrail_group::launch::{self, Launch, Program};
use ironrail_group::loader::Library;
use ironrail_group::patience;

use super::arguments::{Benchmark, Options};
use super::rails::{self, Files};
use super::rank;
use super::raw;
use super::report::{Event, Report};
use crate::output;

/// Runs a benchmark, or this process's part of one. Whether all is well.
pub(super) fn run(benchmark: &Benchmark, options: &Options) -> Result<bool, GroupError> {
    if let Some(meeting) = launch::child()? {
        part(benchmark, options, meeting)?;
        return Ok(true); // Wrong data stands in the rows; this process has done what it should.
    }
    if !matches!(benchmark, Benchmark::Raw(_)) {
        // What cannot be opened is said once, not once per rank.
        let library = Library::open(&options.net(), options.abi)?;
        if options.version_table {
            version_table(&library);
            return Ok(true);
        }
    }
    let files = Files::new()
        .map_err(|error| GroupError::System { what: "making a private directory", error })?;
    let program = Program::this(std::env::args_os().skip(1))?.with(rails::VARIABLE, files.base());
    let mut report = Report::new(benchmark, options);
    let ended = processes(&program, options, |event| report.event(event));
    let well = report.finish(&files.sum())?;
    match ended {
        Ok(()) => Ok(well),
        Err(why) => {
            output::complain(why);
            Ok(false)
        }
    }
}

/// In a child: one rank, or all of them as threads.
fn part(benchmark: &Benchmark, options: &Options, meeting: Meeting) -> Result<(), GroupError> {
    watch_for_stuck_calls(options.timeout());
    let mut say = |event| {
        if let Ok(line) = serde_json::to_string(&event) {
            output::line(line);
        }
    };
    let mut place = Remote::join(meeting, options.timeout())?;
    if let Benchmark::Raw(raw) = benchmark {
        raw::run(raw, options, &mut place, &mut say)
            .map_err(|error| error.of_rank(meeting.rank))?;
        place.leave();
        return Ok(());
    }
    let library = Library::open(&options.net(), options.abi)?;
    if options.threads {
        threads(benchmark, options, &library, say)?;
    } else {
        rank::run(benchmark, options, &library, &mut place, &mut say)
            .map_err(|error| error.of_rank(meeting.rank))?;
    }
    place.leave();
    Ok(())
}

/// Runs `program` once per rank, or once for all; the reason when one failed.
pub(super) fn processes(
    program: &Program,
    options: &Options,
    mut event: impl FnMut(Event),
) -> Result<(), String> {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let hub = Hub::start(loopback, options.ranks, options.timeout())
        .map_err(|error| error.to_string())?;
    let mut launch =
        Launch::start(program, hub, options.ranks).map_err(|error| error.to_string())?;
    while let Some(line) = launch.next_line() {
        match serde_json::from_str(&line) {
            Ok(parsed) => event(parsed),
            Err(_) => log::warn!("rank 0 printed: {line}"), // A plugin that prints.
        }
    }
    launch.finish()
}

fn threads(
    benchmark: &Benchmark,
    options: &Options,
    library: &Arc<Library>,
    mut event: impl FnMut(Event),
) -> Result<(), GroupError> {
    let (send, receive) = mpsc::channel();
    let run = |(rank, mut place): (usize, Local)| {
        let (send, benchmark) = (send.clone(), benchmark.clone());
        let (options, library) = (options.clone(), Arc::clone(library));
        thread::spawn(move || {
            let mut emit = |event| {
                let _ = send.send(event);
            };
            let ended = rank::run(&benchmark, &options, &library, &mut place, &mut emit);
            if ended.is_ok() {
                place.leave();
            }
            ended.map_err(|error| error.of_rank(rank))
        })
    };
    let ranks: Vec<_> = Local::group(options.ranks).into_iter().enumerate().map(run).collect();
    drop(send);
    while let Ok(parsed) = receive.recv() {
        event(parsed);
    }
    let panicked = |_| Err(GroupError::Contract("a rank's thread panicked".to_owned()));
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect();
    ends.into_iter().collect()
}

fn version_table(library: &Library) {
    let versions: Vec<_> = library.versions().iter().map(|version| format!("v{version}")).collect();
    output::line(format_args!("file     {}", library.path()));
    output::line(format_args!("network  {}", library.name()));
    output::line(format_args!("tables   {}", versions.join(" ")));
    output::line(format_args!("taken    v{}", library.version()));
}

/// Waits are bounded, but a call that never comes back is no wait of ours. Ends the process when nothing has happened
/// for longer than any wait may take.
fn watch_for_stuck_calls(timeout: Duration) {
    let limit = 2 * timeout + Duration::from_secs(5);
    let watch = move || {
        let (mut last, mut quiet) = (patience::beats(), Duration::ZERO);
        while quiet < limit {
            thread::sleep(TICK);
            let now = patience::beats();
            quiet = if now == last { quiet + TICK } else { Duration::ZERO };
            last = now;
        }
        output::complain(format_args!("a call has not come back for {:.0} s", limit.as_secs_f64()));
        process::exit(STUCK);
    };
    let _ = thread::Builder::new().name("watch".to_owned()).spawn(watch);
}

const TICK: Duration = Duration::from_millis(250);
const STUCK: i32 = 1;
