//! The sending end of a rank's connection to the hub.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frame::Frame;
use crate::loader::Private;
use crate::patience::deadline;

/// Shared with the waits of this rank that are stuck.
#[derive(Clone, Debug)]
pub(super) struct Line(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    stream: Private<TcpStream>,
    /// The process that joined. A forked child has its socket, and must not speak for it.
    process: u32,
    /// The waits that are stuck, the oldest first: a number, and when the hub may decide.
    stuck: VecDeque<(u64, Instant)>,
    /// The number of the next one.
    next: u64,
}

/// A wait in which nothing has moved for long. The hub knows of the oldest one of this rank; dropped, the report is withdrawn.
#[derive(Debug)]
pub(crate) struct Stuck {
    line: Line,
    number: u64,
}

impl Line {
    pub(super) fn new(stream: Private<TcpStream>) -> Self {
        let (process, stuck) = (process::id(), VecDeque::new());
        Self(Arc::new(Mutex::new(State { stream, process, stuck, next: 0 })))
    }

    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut self.lock().stream()?)
    }

    /// The hub may decide on this wait after `within`.
    pub(super) fn stuck(&self, within: Duration) -> Stuck {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.stuck.push_back((number, deadline(within)));
        if state.stuck.len() == 1 {
            state.report();
        }
        Stuck { line: self.clone(), number }
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        let _ = self.lock().stream().and_then(|stream| stream.shutdown(how));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// None of a forked child's.
    fn stream(&self) -> io::Result<&TcpStream> {
        if self.process == process::id() {
            Ok(&self.stream)
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    }

    /// Reports the time that is left to the oldest wait, or that none is stuck. A hub that is gone reports that itself.
    fn report(&mut self) {
        let left = |(_, end): &(u64, Instant)| end.saturating_duration_since(Instant::now());
        let ms = |left: Duration| u32::try_from(left.as_millis() + 1).unwrap_or(u32::MAX);
        let ms = self.stuck.front().map(left).map_or(0, ms);
        let _ = self.stream().and_then(|mut stream| Frame::Stuck(ms).write(&mut stream));
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        let was_oldest = state.stuck.front().is_some_and(|(number, _)| *number == self.number);
        state.stuck.retain(|(number, _)| *number != self.number);
        if was_oldest {
            state.report();
        }
    }
}
