//! Starts the workers of each behaviour, watches them, and judges the results.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ironrail_group::error::GroupError;
use ironrail_group::launch::lines_of;
use net_loader::{NEWEST, OLDEST};

use super::Conform;
use super::behaviour::{Behaviour, Shape};
use super::behaviours::{GROUPS_EXPECTED_SINCE, NO_GROUPS};
use super::report::{Held, Report, Results};
use super::said::{Contents, Said, TimedVerdict, Verdict};
use super::worker::CONTENTS;
use crate::files::Destination;
use crate::{answers, overheard};

/// Runs the chosen behaviours. Returns whether all passed.
pub(super) fn run(options: &Conform) -> Result<bool, GroupError> {
    let behaviours = options.chosen()?;
    let asked = asked(options)?;
    let json = options.json.as_deref().map(Destination::open).transpose()?;
    let contents = contents(options)?;
    let tables = match asked {
        Asked::Newest => contents.tables.iter().copied().take(1).collect(),
        Asked::All => contents.tables.clone(),
        Asked::One(table) if contents.tables.contains(&table) => vec![table],
        Asked::One(table) => {
            return Err(GroupError::Load(format!(
                "{} has no table v{table}; it has {:?}",
                contents.path, contents.tables
            )));
        }
    };
    let work: Vec<(u32, &'static Behaviour)> = tables
        .iter()
        .flat_map(|table| behaviours.iter().map(|behaviour| (*table, *behaviour)))
        .collect();
    let mut results = Results::new(json, &contents);
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        let work = &work;
        let hold_one = |place: usize, (table, behaviour): (u32, &'static Behaviour)| {
            (place, hold(options, table, behaviour))
        };
        for job in 0..jobs(options).min(work.len()) {
            let (send, next) = (send.clone(), &next);
            let hold_all = move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(due) = work.get(place) else { return };
                    if !due.1.idles && send.send(hold_one(place, *due)).is_err() {
                        return;
                    }
                }
            };
            match thread::Builder::new().spawn_scoped(scope, hold_all) {
                Ok(_) => {}
                Err(error) if job == 0 => {
                    return Err(GroupError::System { what: "starting a thread", error });
                }
                // Those that there are hold all behaviours.
                Err(_) => break,
            }
        }
        // Idle behaviours do not count against the number of jobs.
        for (place, due) in work.iter().enumerate().filter(|(_, (_, behaviour))| behaviour.idles) {
            let to = send.clone();
            let hold = move || to.send(hold_one(place, *due));
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, hold) {
                let (table, behaviour) = *due;
                let error = GroupError::System { what: "starting a thread", error };
                let result = Held::Fail(not_held(&error));
                let report = Report { behaviour, table, result, took: Duration::ZERO, idle: None };
                let _ = send.send((place, report));
            }
        }
        drop(send);
        // Results are printed in the table's order, whichever is ready first.
        let mut early = std::collections::BTreeMap::new();
        let mut due = 0;
        for (place, report) in receive {
            early.insert(place, report);
            while let Some(report) = early.remove(&due) {
                results.add(report);
                due += 1;
            }
        }
        Ok(())
    })?;
    results.finish()
}

enum Asked {
    Newest,
    All,
    One(u32),
}

fn asked(options: &Conform) -> Result<Asked, GroupError> {
    match options.abi.as_deref() {
        None => Ok(Asked::Newest),
        Some("all") => Ok(Asked::All),
        Some(text) => match text.trim_start_matches('v').parse() {
            Ok(table) if (OLDEST..=NEWEST).contains(&table) => Ok(Asked::One(table)),
            _ => {
                Err(GroupError::Usage(format!("--abi is {OLDEST} to {NEWEST} or all, not {text}")))
            }
        },
    }
}

fn jobs(options: &Conform) -> usize {
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    options.jobs.unwrap_or_else(|| (cpus / 2).clamp(1, 4))
}

fn worker(options: &Conform, id: &str, table: u32, role: usize) -> Result<Command, GroupError> {
    let path = std::env::current_exe()
        .map_err(|error| GroupError::System { what: "finding this executable", error })?;
    let mut command = Command::new(path);
    command.args(["conform", "--net", &options.plugin(), "--worker", id]);
    command.args(["--abi", &table.to_string(), "--role", &role.to_string()]);
    command.args(["--launcher", &process::id().to_string()]);
    command.args(["--death", &options.death.to_string(), "--idle", &options.idle.to_string()]);
    if options.large {
        command.arg("--large");
    }
    if options.threads {
        command.arg("--threads");
    }
    if let Some(seconds) = options.timeout {
        command.args(["--timeout", &seconds.to_string()]);
    }
    if options.verbose {
        command.arg("--verbose");
    } else {
        command.stderr(Stdio::piped());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// What the plugin's file contains, as found by a process of its own.
fn contents(options: &Conform) -> Result<Contents, GroupError> {
    let system = |error| GroupError::System { what: "starting a worker", error };
    let mut command = worker(options, CONTENTS, NEWEST, 0)?;
    let (status, [said, complaint]) = overheard::output(&mut command, LOADS).map_err(system)?;
    if let Some(Said::Contents(contents)) = said.lines().find_map(answers::find) {
        return Ok(contents);
    }
    let why = complaint.lines().last().unwrap_or_default().trim_start_matches("ironrail: ");
    let Some(status) = status else {
        return Err(GroupError::Load(format!(
            "loading {} has not ended for {} s",
            options.plugin(),
            LOADS.as_secs()
        )));
    };
    Err(GroupError::Load(match fate(status) {
        Some(fate) if status.signal().is_some() => {
            format!(
                "loading {} {fate} while its tables were read: a symbol with a table's name may not be a table",
                options.plugin()
            )
        }
        _ => why.to_owned(),
    }))
}

/// Far more than a library takes to be loaded.
const LOADS: Duration = Duration::from_secs(60);

/// Runs one behaviour with one table.
fn hold(options: &Conform, table: u32, behaviour: &'static Behaviour) -> Report {
    let begun = Instant::now();
    let (oldest, newest) = behaviour.tables;
    let result = if table < oldest {
        Held::Skip(format!("v{oldest} and newer"))
    } else if table > newest {
        Held::Skip(format!("v{newest} and older"))
    } else {
        match watch(options, table, behaviour) {
            Ok(Held::Skip(why)) if options.no_skip && !is_due(&why, table) => {
                Held::Fail(format!("not exercised: {why}"))
            }
            Ok(result) => result,
            Err(error) => Held::Fail(not_held(&error)),
        }
    };
    let idle = behaviour.idles.then_some(options.idle);
    Report { behaviour, table, result, took: begun.elapsed(), idle }
}

fn not_held(error: &GroupError) -> String {
    format!("conform could not hold it: {error}")
}

/// Whether the table is the reason of a skip, not a deficiency of the plugin.
fn is_due(why: &str, table: u32) -> bool {
    why == NO_GROUPS && table < GROUPS_EXPECTED_SINCE
}

fn watch(options: &Conform, table: u32, behaviour: &'static Behaviour) -> Result<Held, GroupError> {
    let limit = options.limit(behaviour);
    let mut workers = start(options, table, behaviour)?;
    let begun = Instant::now();
    let mut failed_at = None;
    loop {
        let running = workers.iter_mut().map(Worker::is_running).filter(|runs| *runs).count();
        let main_is_over = workers.first().is_none_or(|worker| worker.status.is_some());
        let enough = behaviour.shape == Shape::Victim && main_is_over;
        if running == 0 || enough {
            break;
        }
        // If one side fails, the other waits for it in vain.
        let victim = behaviour.shape == Shape::Victim;
        let failed = |(role, worker): (usize, &Worker)| worker.has_failed(victim && role == 1);
        if failed_at.is_none() && workers.iter().enumerate().any(failed) {
            failed_at = Some(Instant::now());
        }
        let hopeless = failed_at.is_some_and(|at: Instant| at.elapsed() > LAST_WORDS);
        if hopeless || begun.elapsed() > limit + HUNG {
            break;
        }
        thread::sleep(WATCH);
    }
    Ok(judge(workers, behaviour.shape, limit))
}

fn start(options: &Conform, table: u32, behaviour: &Behaviour) -> Result<Vec<Worker>, GroupError> {
    let system = |error| GroupError::System { what: "starting a worker", error };
    let mut workers = Vec::new();
    let mut ends = Vec::new();
    let processes = options.processes(behaviour);
    if processes == 2 {
        let (one, other) = UnixStream::pair().map_err(system)?;
        ends.extend([one, other]);
    }
    ends.reverse();
    for role in 0..processes {
        let mut command = worker(options, behaviour.id, table, role)?;
        if let Some(end) = ends.pop() {
            command.stdin(Stdio::from(OwnedFd::from(end)));
        }
        workers.push(Worker::start(&mut command).map_err(system)?);
    }
    Ok(workers)
}

/// The worst result of any process; of two failures the earlier one, which causes the other.
fn judge(mut workers: Vec<Worker>, shape: Shape, limit: Duration) -> Held {
    let mut verdicts = Vec::new();
    let alone = workers.len() == 1;
    for (role, worker) in workers.iter_mut().enumerate() {
        let victim = shape == Shape::Victim && role == 1;
        let verdict = worker.end(limit);
        let named = |why: String| if alone { why } else { format!("process {role}: {why}") };
        match verdict {
            // It was killed or stopped on purpose; what it reported before counts.
            Fate::Lost(..) | Fate::Hung(..) if victim => {}
            Fate::Ended(TimedVerdict { verdict: Verdict::Pass, .. }) => {}
            Fate::Ended(TimedVerdict { verdict: Verdict::Left, at }) => {
                verdicts.push((1, Reverse(at), named("the other process has left".to_owned())));
            }
            Fate::Ended(TimedVerdict { verdict: Verdict::Skip(why), at }) => {
                verdicts.push((2, Reverse(at), why));
            }
            Fate::Hung(why) => verdicts.push((3, Reverse(0), named(why))),
            Fate::Ended(TimedVerdict { verdict: Verdict::Fail(why), at }) => {
                verdicts.push((4, Reverse(at), named(why)));
            }
            Fate::Lost(why) => verdicts.push((5, Reverse(0), named(why))),
        }
    }
    match verdicts.into_iter().max() {
        None => Held::Pass,
        Some((2, _, why)) => Held::Skip(why),
        Some((_, _, why)) => Held::Fail(why),
    }
}

/// A worker's process, and its output so far. The drop kills it if it still runs.
struct Worker {
    child: Child,
    reader: Option<JoinHandle<()>>,
    words: Arc<Mutex<Words>>,
    status: Option<ExitStatus>,
}

#[derive(Debug, Default)]
struct Words {
    stage: String,
    verdict: Option<TimedVerdict>,
    /// The first line of standard error that is not a log line: the message of a runtime that dies.
    complaint: Option<String>,
}

enum Fate {
    Ended(TimedVerdict),
    /// Died, or ended without a verdict.
    Lost(String),
    Hung(String),
}

impl Worker {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let child = command.spawn()?;
        let words = Arc::new(Mutex::new(Words::default()));
        let mut worker = Self { child, reader: None, words, status: None };
        worker.listen()?;
        Ok(worker)
    }

    fn listen(&mut self) -> std::io::Result<()> {
        let output = self.child.stdout.take();
        let ours = Arc::clone(&self.words);
        let reader = thread::Builder::new().spawn(move || {
            for line in output.into_iter().flat_map(lines_of) {
                let mut words = ours.lock().unwrap_or_else(PoisonError::into_inner);
                match answers::find(&line) {
                    Some(Said::Stage(stage)) => words.stage = stage,
                    Some(Said::Verdict(verdict)) => words.verdict = Some(verdict),
                    Some(Said::Contents(_)) | None => {}
                }
            }
        })?;
        self.reader = Some(reader);
        if let Some(errors) = self.child.stderr.take() {
            let ours = Arc::clone(&self.words);
            thread::Builder::new().spawn(move || {
                for line in lines_of(errors) {
                    let logged = line.trim().is_empty() || line.starts_with('[');
                    let mut words = ours.lock().unwrap_or_else(PoisonError::into_inner);
                    if !logged && words.complaint.is_none() {
                        words.complaint = Some(line);
                    }
                }
            })?;
        }
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap_or(None);
        }
        self.status.is_none()
    }

    /// The death of a victim is not a failure.
    fn has_failed(&self, victim: bool) -> bool {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let ended_badly = self.status.is_some_and(|status| !status.success());
        let failed = |ended: &TimedVerdict| matches!(ended.verdict, Verdict::Fail(_));
        (ended_badly && !victim) || words.verdict.as_ref().is_some_and(failed)
    }

    fn kill(&mut self) {
        if self.is_running() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// Ends the process if it still runs.
    fn end(&mut self, limit: Duration) -> Fate {
        let hung = self.is_running();
        self.kill();
        // Grandchildren may keep the pipe open, so the reader is joined only when there can be none. If the process ended normally without
        // a verdict so far, only the reader can be late, on a busy machine.
        if let Some(reader) = self.reader.take() {
            let well = self.status.is_some_and(|status| status.success());
            let begun = Instant::now();
            while !reader.is_finished() {
                let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
                let bound = if well && words.verdict.is_none() { BUSY } else { LAST_WORDS };
                drop(words);
                if begun.elapsed() >= bound {
                    break;
                }
                thread::sleep(WATCH);
            }
        }
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let stage = if words.stage.is_empty() { "start" } else { &words.stage };
        if hung {
            return match &words.verdict {
                Some(ended @ TimedVerdict { verdict: Verdict::Fail(_) | Verdict::Skip(_), .. }) => {
                    Fate::Ended(ended.clone())
                }
                _ => Fate::Hung(format!(
                    "no end within {} s, the last stage: {stage}",
                    limit.as_secs()
                )),
            };
        }
        match (self.status.and_then(fate), &words.verdict) {
            (None, Some(ended)) => Fate::Ended(ended.clone()),
            (None, None) => Fate::Lost(format!("ended without a verdict, the last stage: {stage}")),
            (Some(fate), _) => {
                let said = words.complaint.iter().map(|line| format!("; it said: {line}"));
                let said: String = said.collect();
                Fate::Lost(format!("{fate}, the last stage: {stage}{said}"))
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended; `None` if normally.
fn fate(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with code {code}")),
        (None, Some(signal)) => Some(format!("died of signal {signal}")),
        (None, None) => Some("ended in an unknown way".to_owned()),
    }
}

const WATCH: Duration = Duration::from_millis(3);
/// How long the others may continue after one has failed.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// How long the reader may take for output that is written already, on a busy machine.
const BUSY: Duration = Duration::from_secs(20);
/// Added to the limit, within which a worker should report the timeout itself.
const HUNG: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_leaves_after_the_other_has_skipped_is_no_failure() {
        let judged = |verdicts: &[Verdict]| {
            let reports = |(at, verdict): (u64, &Verdict)| {
                let said = TimedVerdict { verdict: verdict.clone(), at };
                let said = serde_json::to_string(&Said::Verdict(said)).unwrap();
                let line = format!("{}{said}", answers::MARK);
                let mut command = Command::new("printf");
                command.args(["%s\n", &line]).stdout(Stdio::piped());
                let mut worker = Worker::start(&mut command).unwrap();
                worker.status = Some(worker.child.wait().unwrap());
                worker
            };
            let workers = (0..).zip(verdicts).map(reports).collect();
            judge(workers, Shape::Two, Duration::from_secs(1))
        };
        let skip = || Verdict::Skip("there is one device".to_owned());
        let skipped = Held::Skip("there is one device".to_owned());
        for verdicts in [[skip(), Verdict::Left], [Verdict::Left, skip()]] {
            assert_eq!(judged(&verdicts), skipped, "{verdicts:?}");
        }
        let left = Held::Fail("process 1: the other process has left".to_owned());
        assert_eq!(judged(&[Verdict::Pass, Verdict::Left]), left);
        let failed = Held::Fail("process 0: wrong".to_owned());
        assert_eq!(judged(&[Verdict::Fail("wrong".to_owned()), skip()]), failed);
    }
}
