//! A process that tests the plugin for one behaviour and reports the result.

use std::os::unix::net::UnixStream;
use std::panic::catch_unwind;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use ironrail_group::error::GroupError;
use net_loader::{Library, NEWEST};

use super::Conform;
use super::behaviour::{Behaviour, Shape};
use super::case::{self, Case, Opened, Outcome, Stop};
use super::said::{Contents, Said, TimedVerdict, Verdict};
use super::table;
use crate::answers::say;
use crate::signals;

/// The part of this process. Set by the supervisor only.
#[derive(Clone, Debug, Args)]
pub(super) struct Part {
    #[arg(long, hide = true)]
    worker: Option<String>,
    #[arg(long, hide = true, default_value_t = 0)]
    role: usize,
    /// The supervisor's process
    #[arg(long, hide = true)]
    launcher: Option<u32>,
}

impl Part {
    pub(super) fn is_asked(&self) -> bool {
        self.worker.is_some()
    }
}

/// The word in place of a behaviour's id that asks for the contents.
pub(super) const CONTENTS: &str = "contents";

pub(super) fn run(options: &Conform) -> Result<bool, GroupError> {
    // The thread that has started this worker waits for it.
    if options.worker.launcher.is_some_and(|launcher| !signals::end_with(launcher)) {
        return Ok(false);
    }
    let id = options.worker.worker.as_deref().unwrap_or_default();
    if id == CONTENTS {
        // An unresolved symbol fails one behaviour, with the reason.
        let library = Library::open_lazily(&options.plugin())?;
        let (name, path) = (library.name().to_owned(), library.path().to_owned());
        say(&Said::Contents(Contents { name, path, tables: library.versions() }));
        return Ok(true);
    }
    let Some(behaviour) = table::find(id) else {
        return Err(GroupError::Usage(format!("there is no behaviour {id}")));
    };
    let limit = options.limit(behaviour);
    end_for_certain(limit + ORPHANED);
    let verdict = if behaviour.shape == Shape::Two && options.threads {
        both(options, behaviour, limit)
    } else {
        let other = match behaviour.shape {
            Shape::One => Ok(None),
            Shape::Two | Shape::Victim => case::inherited().map(Some),
        };
        verdict(other.and_then(|other| {
            let mut case = case(options, options.worker.role, other, limit)?;
            (behaviour.run)(&mut case)?;
            say(&Said::Stage("end of the process".to_owned()));
            Ok(())
        }))
    };
    say_verdict(verdict);
    Ok(true)
}

fn say_verdict(verdict: Verdict) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    say(&Said::Verdict(TimedVerdict { verdict, at }));
}

fn verdict(held: Outcome) -> Verdict {
    match held {
        Ok(()) => Verdict::Pass,
        Err(Stop::Fail(why) | Stop::Code(why)) => Verdict::Fail(why),
        Err(Stop::Skip(why)) => Verdict::Skip(why),
        Err(Stop::Left) => Verdict::Left,
    }
}

/// The worse result of two threads, one per side. If one fails, the other waits for it in vain, perhaps inside the plugin: it is left
/// there, and the supervisor ends the process.
fn both(options: &Conform, behaviour: &'static Behaviour, limit: Duration) -> Verdict {
    let (one, other) = match UnixStream::pair() {
        Ok(pair) => pair,
        Err(error) => return Verdict::Fail(format!("conform has no sockets: {error}")),
    };
    let (send, ended) = mpsc::channel();
    let opened = Opened::default();
    for (role, end) in [one, other].into_iter().enumerate() {
        let (send, options, opened) = (send.clone(), options.clone(), Arc::clone(&opened));
        let failed = send.clone();
        let started = thread::Builder::new().spawn(move || {
            let held = catch_unwind(|| {
                let case = case(&options, role, Some(end), limit);
                verdict(case.and_then(|case| (behaviour.run)(&mut case.beside(&opened))))
            });
            let held = held.unwrap_or_else(|_| Verdict::Fail("its thread has died".to_owned()));
            let named = match held {
                Verdict::Fail(why) => Verdict::Fail(format!("thread {role}: {why}")),
                other => other,
            };
            // The receiver has gone if the other side has failed.
            let _ = send.send(named);
        });
        if let Err(error) = started {
            let _ = failed.send(Verdict::Fail(format!("conform has no threads: {error}")));
        }
    }
    let first = ended.recv().unwrap_or(Verdict::Left);
    if matches!(first, Verdict::Fail(_)) {
        say_verdict(first);
        loop {
            thread::park();
        }
    }
    let second = ended.recv().unwrap_or(Verdict::Left);
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Pass => 0,
        // The other side has the reason.
        Verdict::Left => 1,
        Verdict::Skip(_) => 2,
        Verdict::Fail(_) => 3,
    };
    if rank(&first) > rank(&second) { first } else { second }
}

fn case(
    options: &Conform,
    role: usize,
    other: Option<UnixStream>,
    limit: Duration,
) -> Outcome<Case> {
    let version = options.abi.as_deref().and_then(|abi| abi.parse().ok()).unwrap_or(NEWEST);
    let mut case = Case::new(options.plugin(), version, role, other, limit)?;
    case.is_large = options.large;
    case.death_limit = Duration::from_secs(options.death);
    case.idle = Duration::from_secs(options.idle);
    Ok(case)
}

/// Ends this worker if its supervisor has gone, even if the plugin does not return.
fn end_for_certain(limit: Duration) {
    let abort = move || {
        thread::sleep(limit);
        std::process::abort();
    };
    // Without a thread, the worker's own limits remain.
    let _ = thread::Builder::new().spawn(abort);
}

/// Far beyond the time after which the supervisor ends a worker that hangs.
const ORPHANED: Duration = Duration::from_secs(30);
