//! The processes of a job: their groups, their exit codes, and how they end.
//!
//! A rank leads a process group. It is waited for only when its group has been killed: until then its id, which is the group's, is not given
//! to another process.

use std::io::{self, PipeWriter};
use std::process::Child;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ironrail_group::error::GroupError;
use ironrail_group::patience;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::lines::relay;
use crate::output;
use crate::signals::{self, Heeded};

/// The processes of a job. The drop kills those that still run.
pub(super) struct Job {
    /// The ranks; empty when they have been killed.
    ranks: Vec<Rank>,
    /// Threads that write the output of ranks, and errors of the job.
    relays: Vec<JoinHandle<()>>,
    /// The first exit code that was not 0.
    code: u8,
    signals: Heeded,
    timeout: u64,
    deadline: Option<Instant>,
    /// A signal or the timeout ends the job, so that every wait is bounded from now on.
    hurries: bool,
    /// A pipe on which relays wait beside the output; a drop of `over` closes it.
    until: Arc<io::PipeReader>,
    over: Option<PipeWriter>,
}

struct Rank {
    number: usize,
    child: Child,
    ended: bool,
}

impl Job {
    /// A job without ranks. From now on signals no longer end or stop this process; `timeout` is in seconds, and 0 is none.
    pub(super) fn new(timeout: u64) -> Result<Self, GroupError> {
        let (until, over) =
            io::pipe().map_err(|error| GroupError::System { what: "starting a rank", error })?;
        Ok(Self {
            ranks: Vec::new(),
            relays: Vec::new(),
            code: 0,
            signals: Heeded::new(&HEEDED)?,
            timeout,
            deadline: None,
            hurries: false,
            until: Arc::new(until),
            over: Some(over),
        })
    }

    /// Adds the process of a rank, which leads a process group.
    ///
    /// # Errors
    ///
    /// The system has no more threads, which read the output of ranks.
    pub(super) fn add(&mut self, number: usize, mut child: Child) -> io::Result<()> {
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        self.ranks.push(Rank { number, child, ended: false });
        if let Some(out) = out {
            self.relays.push(relay(number, out, &self.until, output::bytes)?);
        }
        if let Some(errors) = errors {
            self.relays.push(relay(number, errors, &self.until, output::error_bytes)?);
        }
        Ok(())
    }

    /// Runs to the end of the ranks and of their output, which the processes that they have started may hold open. Returns the exit code.
    pub(super) fn run(mut self) -> u8 {
        self.deadline =
            (self.timeout > 0).then(|| patience::deadline(Duration::from_secs(self.timeout)));
        while self.code == 0 && self.runs() {
            self.watch();
            thread::sleep(WATCH);
        }
        if self.code != 0 {
            self.end();
        }
        self.code
    }

    fn runs(&self) -> bool {
        self.ranks.iter().any(|rank| !rank.ended) || self.shows()
    }

    /// Whether there may be output that has not been shown.
    fn shows(&self) -> bool {
        self.relays.iter().any(|relay| !relay.is_finished())
    }

    fn watch(&mut self) {
        for rank in &mut self.ranks {
            let Some((code, signal)) = rank.look() else { continue };
            let number = rank.number;
            if code != 0 && self.code == 0 {
                self.code = code;
                self.relays.extend(output::print_error_apart(match signal {
                    Some(signal) => format!("rank {number} died of signal {signal}"),
                    None => format!("rank {number} ended with code {code}"),
                }));
            }
        }
        if !self.is_interrupted()
            && self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
        {
            self.deadline = None;
            self.hurries = true;
            if self.code == 0 {
                self.code = TIMED_OUT;
                self.relays.extend(output::print_error_apart(format!(
                    "the job is killed: it still ran after {} s",
                    self.timeout
                )));
            }
        }
    }

    /// Passes signals on to the ranks, which may clean up. True if one that ends the job has come.
    pub(super) fn is_interrupted(&mut self) -> bool {
        for signal in self.signals.pending() {
            self.signal(signal);
            match signal {
                Signal::TSTP => self.pause(),
                Signal::CONT => {}
                _ => self.interrupt(signal),
            }
        }
        self.hurries
    }

    fn interrupt(&mut self, signal: Signal) {
        self.hurries = true;
        if self.code == 0 {
            self.code = code(None, Some(signal.as_raw()));
        }
    }

    /// Stops this process until CONT. That time does not count for the timeout.
    fn pause(&mut self) {
        let since = Instant::now();
        signals::stop();
        if let Some(deadline) = &mut self.deadline {
            *deadline += since.elapsed();
        }
    }

    /// Gives the others a moment to report the failure themselves, then kills all groups, and shows what they wrote.
    fn end(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        while self.runs() && Instant::now() < deadline {
            self.watch();
            thread::sleep(WATCH);
        }
        self.kill();
        self.over = None;
        // A rank whose output cannot be written ends by SIGPIPE.
        let lost = output::failure();
        self.relays.extend(lost.and_then(|error| output::print_error_apart(error.to_string())));
        // The reader of our output may be slow, for instance a pager.
        let deadline = Instant::now() + LAST_WORDS;
        while self.shows() && !(self.hurries && Instant::now() >= deadline) {
            self.watch();
            thread::sleep(WATCH);
        }
    }

    fn signal(&self, signal: Signal) {
        for rank in &self.ranks {
            signals::pass(signal, Some(Pid::from_child(&rank.child)));
        }
    }

    /// Kills all groups and waits for the ranks.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        for mut rank in self.ranks.drain(..) {
            // The rank may have left its group.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Rank {
    /// The rank's exit code and the signal that killed it, if the rank has ended since the last call.
    fn look(&mut self) -> Option<(u8, Option<i32>)> {
        if self.ended {
            return None;
        }
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(id, how).ok()??;
        self.ended = true;
        let signal = status.terminating_signal();
        Some((code(status.exit_status(), signal), signal))
    }
}

/// The exit code of a process; of one that a signal has killed, 128 plus the signal's number, as in shells.
fn code(code: Option<i32>, signal: Option<i32>) -> u8 {
    let code = code.or_else(|| signal.map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

const HEEDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::TSTP, Signal::CONT];
const WATCH: Duration = Duration::from_millis(10);
const LAST_WORDS: Duration = Duration::from_secs(1);
const TIMED_OUT: u8 = 124;
