//! Connects to other ranks, always on one thread.
//!
//! Up to v10 a plugin identifies its caller only by the thread: NCCL continues a connect on the thread that began it, and Ironrail keeps an
//! endpoint per thread. A group's calls may come from any thread, and a waiting one holds the group's lock. So the thread that makes
//! progress between calls connects, without that lock, and callers poll for the result.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::error::GroupError;
use crate::loader::{Handle, Net, SendComm};

/// The result of a connect.
type Outcome = Result<SendComm, GroupError>;

/// A connect in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct Connecting(Arc<Mutex<Option<Outcome>>>);

impl Connecting {
    /// The comm, once it is connected.
    pub(super) fn take(&self) -> Result<Option<SendComm>, GroupError> {
        lock(&self.0).take().transpose()
    }
}

#[derive(Debug)]
struct Job {
    net: Arc<Net>,
    device: usize,
    /// The plugin keeps state in it from call to call, so its address must not change.
    handle: Box<Handle>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Job {
    /// One attempt; returns whether it continues.
    fn step(&mut self) -> bool {
        // The caller has dropped it.
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
    /// Makes the calling thread the one that connects from now on.
    pub(crate) fn settle(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Continues all connects; returns whether any is left. For the thread that has settled.
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
