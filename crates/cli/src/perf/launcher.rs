//! Starts the ranks, as processes or threads, and prints the report that rank 0 sends.

use std::process;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::{Bootstrap, Meeting, Remote};
use ironrail_group::error::GroupError;
use ironrail_group::launch::{self, Launch, Program};
use ironrail_group::loader::Library;
use ironrail_group::patience;

use super::arguments::{Benchmark, Options};
use super::cpus;
use super::rails::{self, Files};
use super::rank::{self, Failed};
use super::raw;
use super::report::{Event, Report};
use crate::complaints::Complaints;
use crate::signals::{Heeded, STOPPING};
use crate::{answers, loopback, output};

/// Runs a benchmark, or this process's part of one. Returns whether all is well.
pub(super) fn run(benchmark: &Benchmark, options: &Options) -> Result<bool, GroupError> {
    if let Some(meeting) = launch::child(rails::abandon)? {
        return part(benchmark, options, meeting);
    }
    if !matches!(benchmark, Benchmark::Raw(_)) {
        // A plugin that cannot be opened is reported once, not once per rank.
        let library = Library::open(&options.net(), options.abi)?;
        if options.version_table {
            version_table(&library);
            return Ok(true);
        }
    }
    // A table that cannot be read is reported once, too.
    options.tuning()?;
    let mut report = Report::new(benchmark, options)?;
    let files = Files::new()
        .map_err(|error| GroupError::System { what: "making a private directory", error })?;
    let mut program =
        Program::this(std::env::args_os().skip(1))?.with(rails::FOLDER, files.folder());
    // If the user has set the variable, the plugin's files are left there, and there are no lines about rails. --writes replaces the
    // variable.
    let asked = std::env::var_os(rails::VARIABLE).is_some_and(|value| !value.is_empty());
    if options.writes || !asked {
        program = program.with(rails::VARIABLE, files.base());
    }
    if options.writes && std::env::var_os(rails::FABRIC_VARIABLE).is_none() {
        program = program.with(rails::FABRIC_VARIABLE, files.fabric());
    }
    let ended = processes(&program, options, |event| report.event(event));
    let well = report.finish(&files.sum(), ended.is_ok())?;
    match ended {
        Ok(()) => Ok(well),
        Err(causes) => {
            output::print_causes(&causes);
            Ok(false)
        }
    }
}

/// In a child: runs one rank, or all of them as threads. Returns whether it succeeded; wrong data is reported in the rows.
fn part(benchmark: &Benchmark, options: &Options, meeting: Meeting) -> Result<bool, GroupError> {
    watch_for_stuck_calls(options.timeout());
    if !options.threads {
        cpus::settle(&options.cpus, meeting.rank)?;
    }
    let mut say = |event| answers::say(&event);
    let mut place = Remote::join(meeting, options.timeout())?;
    if options.threads {
        let library = Library::open(&options.net(), options.abi)?;
        let causes = threads(benchmark, options, &library, say);
        if !causes.is_empty() {
            if !place.report(&causes) {
                rails::abandon();
                output::print_causes(&causes);
            }
            return Ok(false);
        }
    } else if let Benchmark::Collective(what) = benchmark {
        let library = Library::open(&options.net(), options.abi)?;
        let ran = rank::run_collective((benchmark, *what), options, &library, place, &mut say);
        return match ran {
            Ok(()) => Ok(true),
            Err(Failed { reported: true, .. }) => Ok(false),
            Err(Failed { error, .. }) => {
                rails::abandon();
                Err(error.of_rank(meeting.rank))
            }
        };
    } else if let Err(error) = rank(benchmark, options, &mut place, &mut say) {
        // The launcher prints the error, in order with those of other ranks.
        if !place.give_up(&error) {
            // By now the plugin has written its files, at finalize, so that these are removed too.
            rails::abandon();
            return Err(error.of_rank(meeting.rank));
        }
        return Ok(false);
    }
    place.leave();
    Ok(true)
}

fn rank(
    benchmark: &Benchmark,
    options: &Options,
    place: &mut Remote,
    emit: &mut dyn FnMut(Event),
) -> Result<(), GroupError> {
    if let Benchmark::Raw(raw) = benchmark {
        return raw::run(raw, options, place, emit);
    }
    let library = Library::open(&options.net(), options.abi)?;
    rank::run(benchmark, options, &library, place, emit)
}

/// Runs `program` once per rank, or once for all. Returns the causes of a failure, the first one first.
pub(super) fn processes(
    program: &Program,
    options: &Options,
    mut event: impl FnMut(Event),
) -> Result<(), Vec<String>> {
    let alone = |error: GroupError| vec![error.to_string()];
    let count = if options.threads { 1 } else { options.ranks };
    let hub = loopback::meet(count, options.timeout()).map_err(alone)?;
    let mut signals = Heeded::new(&STOPPING).map_err(alone)?;
    let complaints = Complaints::default();
    let show = move |rank: usize, line: &[u8]| complaints.show(rank, line);
    let mut launch = Launch::start(program, hub, count, show).map_err(alone)?;
    while let Some(line) = launch.next_line(|ranks| signals.follow(ranks)) {
        let (printed, answer) = answers::split(&line);
        if answer.is_none() || !printed.is_empty() {
            log::warn!("rank 0 printed: {printed}"); // A plugin that prints.
        }
        answer.into_iter().for_each(&mut event);
    }
    launch.finish()
}

/// Runs all ranks in this process. Returns the causes of a failure, the first one first; empty when all is well.
fn threads(
    benchmark: &Benchmark,
    options: &Options,
    library: &Arc<Library>,
    mut event: impl FnMut(Event),
) -> Vec<String> {
    let hub = match loopback::meet(options.ranks, options.timeout()) {
        Ok(hub) => hub,
        Err(why) => return vec![why.to_string()],
    };
    let (send, receive) = mpsc::channel();
    let run = |meeting: Meeting| {
        let (send, benchmark) = (send.clone(), benchmark.clone());
        let (options, library) = (options.clone(), Arc::clone(library));
        thread::Builder::new().spawn(move || {
            let mut emit = |event| {
                let _ = send.send(event);
            };
            thread_rank(&benchmark, &options, &library, meeting, &mut emit)
        })
    };
    let ranks: Result<Vec<_>, _> = (0..options.ranks).map(|rank| run(hub.meeting(rank))).collect();
    let ranks = match ranks {
        Ok(ranks) => ranks,
        // The ranks that there are end with this process.
        Err(error) => {
            return vec![GroupError::System { what: "starting a rank", error }.to_string()];
        }
    };
    drop(send);
    while let Ok(parsed) = receive.recv() {
        event(parsed);
    }
    let ends = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
    let unheard: Vec<_> = ends.filter_map(|ended| ended.err().flatten()).collect();
    let mut causes = hub.causes();
    causes.extend(unheard.iter().map(ToString::to_string));
    causes
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Result<(), Option<GroupError>> {
    Err(Some(GroupError::Contract("a rank's thread panicked".to_owned())))
}

/// Runs one rank; returns the error that the rendezvous has not received.
fn thread_rank(
    benchmark: &Benchmark,
    options: &Options,
    library: &Arc<Library>,
    meeting: Meeting,
    emit: &mut dyn FnMut(Event),
) -> Result<(), Option<GroupError>> {
    cpus::settle(&options.cpus, meeting.rank).map_err(Some)?;
    let mut place = Remote::join(meeting, options.timeout()).map_err(Some)?;
    if let Benchmark::Collective(what) = benchmark {
        return rank::run_collective((benchmark, *what), options, library, place, emit)
            .map_err(|Failed { error, reported }| (!reported).then_some(error));
    }
    match rank::run(benchmark, options, library, &mut place, emit) {
        Ok(()) => {
            place.leave();
            Ok(())
        }
        Err(error) => Err(if place.give_up(&error) { None } else { Some(error) }),
    }
}

fn version_table(library: &Library) {
    let versions: Vec<_> = library.versions().iter().map(|version| format!("v{version}")).collect();
    output::line(format_args!("file     {}", library.path()));
    output::line(format_args!("network  {}", library.name()));
    output::line(format_args!("tables   {}", versions.join(" ")));
    output::line(format_args!("taken    v{}", library.version()));
}

/// Our waits are bounded, but a call that never returns is not. Ends the process when nothing has happened for longer than any wait may
/// take.
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
        output::print_error(format_args!(
            "a call has not returned for {:.0} s",
            limit.as_secs_f64()
        ));
        process::exit(STUCK);
    };
    let _ = thread::Builder::new().name("watch".to_owned()).spawn(watch);
}

const TICK: Duration = Duration::from_millis(250);
const STUCK: i32 = 1;
