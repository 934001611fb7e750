//! Starts one process per rank, watches them, and ends all of them with the group.
//!
//! Each child gets its [`Meeting`] in the environment, and a pipe as standard input, which it reads until end of file: when the launcher
//! dies in any way, its ranks notice and exit. Ctrl-C and Ctrl-Z reach only the launcher: each rank has its own process group, so that it
//! can still clean up. A launcher that wants its ranks to stop with it passes the signal on.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::iter;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bootstrap::{Hub, Meeting};
use crate::error::GroupError;

/// Passes the [`Meeting`] to a child.
pub const MEETING_VARIABLE: &str = "IRON_GROUP_MEETING";

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    /// Variables with a value for each rank.
    pub environment_by_rank: Vec<(OsString, Vec<OsString>)>,
}

impl Program {
    /// This executable, with these arguments.
    pub fn this<A: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self, GroupError> {
        let path = std::env::current_exe()
            .map_err(|error| GroupError::System { what: "finding this executable", error })?;
        let arguments =
            arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        Ok(Self { path, arguments, environment: Vec::new(), environment_by_rank: Vec::new() })
    }

    /// Sets a variable to a value for each rank; ranks beyond the last value do not get it.
    #[must_use]
    pub fn with_each(
        mut self,
        name: impl Into<OsString>,
        values: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.environment_by_rank.push((name.into(), values));
        self
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

/// A running group of processes. Dropping it kills the processes that still run.
#[derive(Debug)]
pub struct Launch {
    children: Vec<Option<Child>>,
    lines: Receiver<String>,
    /// The readers of the ranks' standard error, and this process's ends of the pipes that they read.
    readers: Vec<JoinHandle<()>>,
    errors: Vec<PipeWriter>,
    /// The lines that were read there.
    complained: Arc<AtomicU64>,
    failure: Option<Failure>,
    killed: bool,
    hub: Hub,
}

impl Launch {
    /// Starts all ranks of `hub`'s group. Rank 0's standard output becomes [`Launch::next_line`]; the others' is discarded. `complaint` gets
    /// the rank and each line of its standard error, with the line's end; a line of more than 1 MiB comes in parts.
    pub fn start(
        program: &Program,
        hub: Hub,
        size: usize,
        complaint: impl Fn(usize, &[u8]) + Clone + Send + 'static,
    ) -> Result<Self, GroupError> {
        let system = |error| GroupError::System { what: "starting a rank", error };
        let (send, lines) = mpsc::channel();
        let mut launch = Self {
            children: Vec::new(),
            lines,
            readers: Vec::new(),
            errors: Vec::new(),
            complained: Arc::default(),
            failure: None,
            killed: false,
            hub,
        };
        for rank in 0..size {
            let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
            let (errors, writer) = io::pipe().map_err(system)?;
            let theirs = writer.try_clone().map_err(system)?;
            let mut child = Command::new(&program.path)
                .args(&program.arguments)
                .envs(program.environment.iter().map(|(name, value)| (name, value)))
                .envs(
                    program
                        .environment_by_rank
                        .iter()
                        .filter_map(|(name, values)| Some((name, values.get(rank)?))),
                )
                .env(MEETING_VARIABLE, launch.hub.meeting(rank).to_string())
                .stdin(Stdio::piped())
                .stdout(output)
                .stderr(theirs)
                .process_group(0)
                .spawn()
                .map_err(system)?;
            if let Some(output) = child.stdout.take() {
                let send = send.clone();
                let read = move || {
                    for line in lines_of(output) {
                        if send.send(line).is_err() {
                            return;
                        }
                    }
                };
                thread::Builder::new().spawn(read).map_err(system)?;
            }
            launch.children.push(Some(child));
            launch.errors.push(writer);
            let (complaint, complained) = (complaint.clone(), Arc::clone(&launch.complained));
            let read = move || {
                complaints(errors, |line| {
                    complaint(rank, line);
                    complained.fetch_add(1, Ordering::Relaxed);
                });
            };
            launch.readers.push(thread::Builder::new().spawn(read).map_err(system)?);
        }
        Ok(launch)
    }

    /// The next line of rank 0, while any rank runs. `None`: all ranks have ended, and all lines were returned. `meanwhile` is called again and
    /// again with the processes that are not waited for yet, each of which leads a process group.
    pub fn next_line(&mut self, mut meanwhile: impl FnMut(&[u32])) -> Option<String> {
        loop {
            let processes: Vec<_> = self.children.iter().flatten().map(Child::id).collect();
            meanwhile(&processes);
            let wait = if self.running() { WATCH } else { LAST_WORDS };
            match self.lines.recv_timeout(wait) {
                Ok(line) => return Some(line),
                Err(RecvTimeoutError::Timeout) if self.running() => self.watch(),
                Err(RecvTimeoutError::Timeout) => return None,
                // Rank 0 has closed its output: there are no more lines, but the others may still run.
                Err(RecvTimeoutError::Disconnected) => {
                    if !self.running() {
                        return None;
                    }
                    thread::sleep(WATCH);
                    self.watch();
                }
            }
        }
    }

    /// Waits for all ranks. Returns the causes of a failure as sentences, the first one first.
    pub fn finish(mut self) -> Result<(), Vec<String>> {
        while self.running() {
            self.watch();
            thread::sleep(WATCH);
        }
        self.hear_out();
        let Some(failure) = self.failure.take() else { return Ok(()) };
        let mut causes = self.hub.causes();
        // A signal that killed a rank comes before the reports of the others; a mere exit code says less than the rank's own report.
        if failure.killed || causes.is_empty() {
            causes.retain(|cause| !cause.ends_with(&failure.why));
            causes.insert(0, failure.why);
        }
        Err(causes)
    }

    /// Waits until everything that the ranks have written to standard error was passed to `complaint`, which may be slow: a pager, for
    /// instance.
    fn hear_out(&mut self) {
        for mut errors in self.errors.drain(..) {
            // A full pipe accepts the mark when its reader continues.
            let end = move || errors.write_all(END);
            let _waits = thread::Builder::new().spawn(end);
        }
        let mut heard = (0, Instant::now());
        while !self.readers.iter().all(JoinHandle::is_finished) && heard.1.elapsed() < STANDSTILL {
            thread::sleep(Duration::from_millis(1));
            let lines = self.complained.load(Ordering::Relaxed);
            if lines != heard.0 {
                heard = (lines, Instant::now());
            }
        }
    }

    fn running(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    /// Reaps the ranks that have ended; one that failed ends the others.
    fn watch(&mut self) {
        self.reap();
        if self.failure.is_some() && !self.killed {
            self.killed = true;
            self.end_the_rest();
        }
    }

    fn reap(&mut self) {
        for (rank, place) in self.children.iter_mut().enumerate() {
            let Some(child) = place else { continue };
            let failure = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => Failure::of(rank, status),
                Err(error) => {
                    Some(Failure { killed: true, why: format!("rank {rank} is lost: {error}") })
                }
            };
            *place = None;
            let Some(failure) = failure else { continue };
            self.hub.fail(failure.why.clone());
            // A rank that was killed is the cause; one that exited with a code may be a consequence.
            if self.failure.as_ref().is_none_or(|first| failure.killed && !first.killed) {
                self.failure = Some(failure);
            }
        }
    }

    /// Gives the others a moment to report what they saw, then kills them.
    fn end_the_rest(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        while Instant::now() < deadline && self.running() {
            thread::sleep(Duration::from_millis(10));
            self.reap();
        }
        self.kill();
    }

    fn kill(&mut self) {
        for mut child in self.children.iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The lines from a child's pipe, without their ends. A line of more than 1 MiB comes in parts. Lines may have any bytes: a plugin may
/// print them.
pub fn lines_of(pipe: impl Read) -> impl Iterator<Item = String> {
    whole_lines(pipe).map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        String::from_utf8_lossy(line).into_owned()
    })
}

/// The lines from a child's pipe as bytes, with their ends.
fn whole_lines(pipe: impl Read) -> impl Iterator<Item = Vec<u8>> {
    let mut pipe = BufReader::new(pipe);
    iter::from_fn(move || {
        let mut line = Vec::new();
        let read = (&mut pipe).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        matches!(read, Ok(1..)).then_some(line)
    })
}

/// Passes on each line, until [`END`] or the end of the pipe.
fn complaints(errors: PipeReader, complaint: impl Fn(&[u8])) {
    for line in whole_lines(errors) {
        match line.strip_suffix(END) {
            None => complaint(&line),
            Some([]) => return,
            Some(last) => return complaint(last),
        }
    }
}

/// Written to a rank's standard error once it has ended: what the rank has started may keep the pipe open.
const END: &[u8] = b"\0the rank has ended\0\n";
/// How long `complaint` may take for a line before the rest is dropped.
const STANDSTILL: Duration = Duration::from_secs(60);
/// The longest line. A child that ends no line must not fill this process's memory.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How often children are checked: rarely, since they need the CPUs.
const WATCH: Duration = Duration::from_millis(20);
/// How long ranks may run on after one has failed.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Failure {
    /// Killed by a signal.
    killed: bool,
    why: String,
}

impl Failure {
    fn of(rank: usize, status: ExitStatus) -> Option<Self> {
        let (killed, fate) = match (status.code(), status.signal()) {
            (Some(0), _) => return None,
            (Some(code), _) => (false, format!("ended with code {code}")),
            (None, Some(signal)) => (true, format!("died of signal {signal}")),
            (None, None) => (true, "ended in an unknown way".to_owned()),
        };
        Some(Self { killed, why: format!("rank {rank} {fate}") })
    }
}

/// In a child: its meeting, if it was started by [`Launch`]. From here on the child ends when the launcher does, after a last call of
/// `orphaned`.
pub fn child(orphaned: impl FnOnce() + Send + 'static) -> Result<Option<Meeting>, GroupError> {
    let Some(text) = std::env::var_os(MEETING_VARIABLE) else {
        return Ok(None);
    };
    let meeting = text.to_string_lossy().parse()?;
    let watch = || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        orphaned();
        process::exit(ORPHANED);
    };
    thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(watch)
        .map_err(|error| GroupError::System { what: "starting a thread", error })?;
    Ok(Some(meeting))
}

const ORPHANED: i32 = 3;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    /// A shell with this script, as the only rank.
    fn shell(script: &str, complaint: impl Fn(&[u8]) + Clone + Send + 'static) -> Launch {
        let (path, arguments) = ("sh".into(), vec!["-c".into(), script.into()]);
        let (environment, environment_by_rank) = (Vec::new(), Vec::new());
        let program = Program { path, arguments, environment, environment_by_rank };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let hub = Hub::start(any, 1, Duration::from_secs(60)).unwrap();
        Launch::start(&program, hub, 1, move |_, line| complaint(line)).unwrap()
    }

    #[test]
    fn the_last_lines_of_standard_error_are_waited_for_while_one_is_shown_slowly() {
        let (send, shown) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let has_ended = Arc::new(std::sync::Mutex::new(has_ended));
        let launch = shell("echo one >&2; echo two >&2", move |line| {
            // As a terminal that is stopped for longer than ranks may run on after one has failed.
            let early = has_ended.lock().unwrap().recv_timeout(4 * LAST_WORDS);
            send.send((line.to_owned(), early == Err(RecvTimeoutError::Timeout))).unwrap();
        });
        launch.finish().unwrap();
        let _ = ended.send(());
        let shown: Vec<_> = shown.try_iter().collect();
        assert_eq!(shown, [(b"one\n".to_vec(), true), (b"two\n".to_vec(), true)]);
    }

    #[test]
    fn a_process_that_a_rank_has_started_does_not_delay_the_end_by_its_standard_error() {
        let (send, shown) = mpsc::channel();
        let mut launch = shell("sleep 600 & echo $! >&2; printf last >&2", move |line| {
            send.send(String::from_utf8(line.to_owned()).unwrap()).unwrap();
        });
        assert_eq!(launch.next_line(|_| ()), None);
        launch.hear_out();
        let are_heard = launch.readers.iter().all(JoinHandle::is_finished);
        let shown: Vec<_> = shown.try_iter().collect();
        let kill = Command::new("kill").arg(shown[0].trim()).status();
        assert!(kill.unwrap().success());
        assert_eq!(shown[1..], ["last"]);
        assert!(are_heard, "it was waited for");
    }

    #[test]
    fn a_line_that_never_ends_comes_in_parts() {
        let endless = io::repeat(b'y').take(2 * LINE_BYTES_MAX + 1);
        let parts: Vec<_> = lines_of(endless).map(|part| part.len() as u64).collect();
        assert_eq!(parts, [LINE_BYTES_MAX, LINE_BYTES_MAX, 1]);
    }

    #[test]
    fn lines_come_without_their_ends_and_bytes_that_are_no_text_as_a_sign() {
        let said = &b"one\n\ntwo\xff\r\nthree"[..];
        assert_eq!(lines_of(said).collect::<Vec<_>>(), ["one", "", "two\u{fffd}\r", "three"]);
    }
}
