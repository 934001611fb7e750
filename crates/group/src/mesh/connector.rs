//! Connects to other ranks, always on one thread.
//!
//! Up to v10 a plugin knows its caller only by the thread: NCCL goes on with a connect on the thread that began it, and Ironrail keeps an
//! endpoint for each. A group's calls may come from any thread, and one that waits keeps the group's lock. So the thread that makes
//! progress between calls connects, without that lock, and callers look for what it has brought.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::error::GroupError;
use crate::loader::{Handle, Net, SendComm};

/// What became of a connect.
type Outcome = Result<SendComm, GroupError>;

/// A connect that goes on until it is dropped.
#[derive(Debug)]
pub(super) struct Connecting(Arc<Mutex<Option<Outcome>>>);

impl Connecting {
    /// The comm, once it is there.
    pub(super) fn take(&self) -> Result<Option<SendComm>, GroupError> {
        lock(&self.0).take().transpose()
    }
}

#[derive(Debug)]
struct Job {
    net: Arc<Net>,
    device: usize,
    /// Carries the plugin's state from call to call, at one address.
    handle: Box<Handle>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Job {
    /// Whether it goes on.
    fn step(&mut self) -> bool {
        // The caller has gone.
        if Arc::strong_count(&self.outcome) == 1 {
            return false;
        }
        let outcome = match self.net.connect(self.device, &mut self.handle) {
            Ok(None) => return true,
            Ok(Some(comm)) => Ok(comm),
            Err(why) => Err(why),
        };
        *lock(&self.outcome) = Some(outcome);
        false
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Connector {
    jobs: Mutex<Vec<Job>>,
    thread: OnceLock<Thread>,
}

impl Connector {
    /// The calling thread is the one that connects from now on.
    pub(crate) fn settle(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Goes on with all connects; whether any is left. For the thread that has settled.
    pub(crate) fn step(&self) -> bool {
        let mut jobs = lock(&self.jobs);
        jobs.retain_mut(Job::step);
        !jobs.is_empty()
    }

    /// Begins a connect.
    pub(super) fn begin(&self, net: &Arc<Net>, device: usize, handle: Box<Handle>) -> Connecting {
        let outcome = Arc::default();
        let job = Job { net: Arc::clone(net), device, handle, outcome: Arc::clone(&outcome) };
        lock(&self.jobs).push(job);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        Connecting(outcome)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
