//! The case of a behaviour in its process: the plugin, a deadline, a channel to the other process.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use net_loader::raw::{Net, Wrong};
use net_loader::{Library, LoadError};

use super::said::Said;
use crate::answers;

/// Ends a behaviour early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Fail(String),
    /// A call of the plugin returned an error, which most behaviours take for a failure.
    Code(String),
    Skip(String),
    /// The other process has ended, and reports the reason.
    Left,
}

pub(super) type Outcome<T = ()> = Result<T, Stop>;

/// The plugin's library, if it is open.
pub(super) type Opened = Arc<Mutex<Weak<Library>>>;

impl From<Wrong> for Stop {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Code { .. } => Self::Code(wrong.to_string()),
            Wrong::Contract(why) => Self::Fail(why),
        }
    }
}

impl From<LoadError> for Stop {
    fn from(error: LoadError) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
                Self::Left
            }
            _ => Self::Fail(format!("a system call of conform's failed: {error}")),
        }
    }
}

pub(super) fn fail<T>(why: impl fmt::Display) -> Outcome<T> {
    Err(Stop::Fail(why.to_string()))
}

pub(super) fn skip<T>(why: impl fmt::Display) -> Outcome<T> {
    Err(Stop::Skip(why.to_string()))
}

/// Fails with the sentence unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return $crate::conform::case::fail(format_args!($($why)+));
        }
    };
}
pub(super) use hold;

/// What a behaviour runs with: the plugin, its role, the other process, limits.
#[derive(Debug)]
pub(super) struct Case {
    plugin: String,
    version: u32,
    role: usize,
    other: Option<Mutex<Channel>>,
    deadline: Instant,
    /// The plugin's library in this process. Threads that stand for the two sides share it, as communicators do.
    opened: Opened,
    /// Whether the other side is a thread of this process.
    pub(super) in_threads: bool,
    /// Whether the behaviour may use gigabytes of memory.
    pub(super) is_large: bool,
    /// The time limit for reporting a peer's death.
    pub(super) death_limit: Duration,
    /// How long a peer is idle.
    pub(super) idle: Duration,
}

impl Case {
    /// `other` is the channel to the other side, if there is one.
    pub(super) fn new(
        plugin: String,
        version: u32,
        role: usize,
        other: Option<UnixStream>,
        limit: Duration,
    ) -> Outcome<Self> {
        let other = other.map(Channel::new).transpose()?.map(Mutex::new);
        Ok(Self {
            plugin,
            version,
            role,
            other,
            deadline: Instant::now() + limit,
            opened: Opened::default(),
            in_threads: false,
            is_large: false,
            death_limit: limit,
            idle: Duration::ZERO,
        })
    }

    /// This case for another thread, which stands for the other side, of the process whose library is `opened`.
    pub(super) fn beside(self, opened: &Opened) -> Self {
        Self { opened: Arc::clone(opened), in_threads: true, ..self }
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// 0 or 1. A behaviour of one process has role 0.
    pub(super) fn role(&self) -> usize {
        self.role
    }

    pub(super) fn is_pair(&self) -> bool {
        self.other.is_some()
    }

    /// The role whose messages this side receives; in one process, its own.
    pub(super) fn source(&self) -> usize {
        if self.is_pair() { 1 - self.role } else { self.role }
    }

    /// Reports the current step, which the report shows if the step never ends.
    #[expect(clippy::unused_self, reason = "a stage belongs to a case")]
    pub(super) fn stage(&self, what: &str) {
        answers::say(&Said::Stage(what.to_owned()));
    }

    /// The plugin as NCCL has it: open once in a process, so that init is called once up to v10.
    pub(super) fn library(&self) -> Outcome<Arc<Library>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = opened.upgrade() {
            return Ok(library);
        }
        let library = self.open()?;
        *opened = Arc::downgrade(&library);
        Ok(library)
    }

    /// Opens the plugin's library once more, whether or not it is open.
    pub(super) fn open(&self) -> Outcome<Arc<Library>> {
        Ok(Library::open(&self.plugin, Some(self.version))?)
    }

    /// The plugin, loaded and initialised.
    pub(super) fn net(&self) -> Outcome<Net> {
        self.stage("load and init");
        let net = Net::init(&self.library()?, COMMUNICATOR)?;
        hold!(net.devices()? > 0, "there is no device");
        Ok(net)
    }

    /// The time until the deadline.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Fails once the deadline has passed.
    pub(super) fn in_time(&self, what: impl FnOnce() -> String) -> Outcome {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        fail(format_args!("no end in sight: {}", what()))
    }

    /// Calls `step` until it returns a value.
    pub(super) fn until<T>(
        &self,
        what: &str,
        mut step: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        self.stage(what);
        let mut idle = Idle::default();
        loop {
            if let Some(answer) = step()? {
                return Ok(answer);
            }
            self.in_time(|| what.to_owned())?;
            idle.pass();
        }
    }

    /// Calls `step` repeatedly for a time, and once after it, however rarely the machine lets this process run.
    pub(super) fn during(&self, time: Duration, mut step: impl FnMut() -> Outcome) -> Outcome {
        let end = Instant::now() + time;
        let mut idle = Idle::default();
        loop {
            let is_over = Instant::now() >= end;
            step()?;
            if is_over {
                return Ok(());
            }
            idle.pass();
        }
    }

    fn other(&self) -> Outcome<MutexGuard<'_, Channel>> {
        let other = self.other.as_ref();
        let other = other.ok_or_else(|| Stop::Fail("this behaviour has one process".to_owned()))?;
        Ok(other.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn send(&self, words: &[u8]) -> Outcome {
        self.other()?.send(words)
    }

    /// The message of the other process, if it has arrived.
    pub(super) fn received(&self) -> Outcome<Option<Vec<u8>>> {
        self.other()?.received()
    }

    /// Waits for a message, without calling the plugin.
    pub(super) fn receive(&self, what: &str) -> Outcome<Vec<u8>> {
        self.stage(what);
        loop {
            if let Some(words) = self.received()? {
                return Ok(words);
            }
            self.in_time(|| format!("{what}: the other process says nothing"))?;
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until both sides are here, without calling the plugin, as NCCL's proxies wait between operations.
    pub(super) fn meet(&self, what: &str) -> Outcome {
        if !self.is_pair() {
            return Ok(());
        }
        self.send(what.as_bytes())?;
        let words = self.receive(what)?;
        hold!(
            words == what.as_bytes(),
            "conform is at \"{what}\" here and at \"{}\" there",
            String::from_utf8_lossy(&words)
        );
        Ok(())
    }

    /// As [`Case::meet`], calling `step` meanwhile.
    pub(super) fn meet_while(&self, what: &str, mut step: impl FnMut() -> Outcome) -> Outcome {
        self.send(what.as_bytes())?;
        self.stage(what);
        let mut idle = Idle::default();
        while self.received()?.is_none() {
            step()?;
            self.in_time(|| what.to_owned())?;
            idle.pass();
        }
        Ok(())
    }

    /// Sends data to the other side and receives its data.
    pub(super) fn swap(&self, what: &str, words: &[u8]) -> Outcome<Vec<u8>> {
        self.send(words)?;
        self.receive(what)
    }
}

/// Back-off of a polling loop. The first polls follow each other as fast as NCCL's do; later ones are separated by short sleeps, which
/// leave the CPU to other processes.
#[derive(Debug, Default)]
pub(super) struct Idle {
    polls: u32,
}

impl Idle {
    /// To be called after a poll that moved nothing.
    pub(super) fn pass(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls < BUSY_POLLS {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }

    /// To be called after a poll that moved something.
    pub(super) fn end(&mut self) {
        self.polls = 0;
    }
}

const BUSY_POLLS: u32 = 1000;
const NAP: Duration = Duration::from_micros(100);

pub(super) const COMMUNICATOR: u64 = 0x0c0f_0c0f_1234_5678;

/// The channel to the other process: standard input.
pub(super) fn inherited() -> Outcome<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Length-prefixed messages over a socket.
#[derive(Debug)]
struct Channel {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Channel {
    fn new(stream: UnixStream) -> Outcome<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, pending: Vec::new() })
    }

    fn send(&mut self, words: &[u8]) -> Outcome {
        let len =
            u32::try_from(words.len()).map_err(|_| Stop::Fail("too long a word".to_owned()))?;
        let mut frame = len.to_le_bytes().to_vec();
        frame.extend_from_slice(words);
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_micros(200));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn received(&mut self) -> Outcome<Option<Vec<u8>>> {
        if let Some(words) = self.whole() {
            return Ok(Some(words));
        }
        let mut bytes = [0; 8192];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(Stop::Left),
            Ok(count) => {
                self.pending.extend_from_slice(&bytes[..count]);
                Ok(self.whole())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn whole(&mut self) -> Option<Vec<u8>> {
        let (head, rest) = self.pending.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*head)).ok()?;
        let words = rest.get(..len)?.to_vec();
        self.pending.drain(..4 + len);
        Some(words)
    }
}
