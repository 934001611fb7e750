//! Connects to other ranks, always on one thread.
//!
//! Up to v10 a plugin identifies its caller only by the thread: NCCL continues a connect on the thread that began it, and Ironrail keeps an
//! endpoint per thread. A group's calls may come from any thread, and a waiting one holds the group's lock. So the thread that makes
//! progress between calls connects, without that lock, and callers poll for the result.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

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
    /// As it came: a connect that begins again needs it so.
    unused: Handle,
    begun: Instant,
    /// Before it begins again the next time.
    pause: Duration,
    /// When to begin again.
    resumes: Option<Instant>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Job {
    /// One attempt; returns whether it continues.
    fn step(&mut self) -> bool {
        // The caller has dropped it.
        if Arc::strong_count(&self.outcome) == 1 {
            return false;
        }
        if self.resumes.is_some_and(|resumes| Instant::now() < resumes) {
            return true;
        }
        let outcome = match self.net.connect(self.device, &mut self.handle) {
            Ok(None) => return true,
            Ok(Some(comm)) => Ok(comm),
            // It may be over in a moment.
            Err(why) if why.is_of_this_rank() && self.begun.elapsed() < PERIOD => {
                log::warn!("a connect failed, and is tried again: {why}");
                *self.handle = self.unused;
                self.resumes = Some(Instant::now() + self.pause);
                self.pause *= 2;
                return true;
            }
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
        let job = Job {
            net: Arc::clone(net),
            device,
            unused: *handle,
            handle,
            begun: Instant::now(),
            pause: PAUSE,
            resumes: None,
            outcome: Arc::clone(&outcome),
        };
        lock(&self.jobs).push(job);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        Connecting(outcome)
    }
}

/// How long a connect is begun again. One that fails later, as by a timeout of the plugin, has had its time.
const PERIOD: Duration = Duration::from_secs(3);
/// Before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{WAIT, library};

    /// The byte of the test plugin's handle that says how many attempts fail.
    const FAILING: usize = 12;

    /// Connects to a listener of this thread after so many failures.
    fn connect_after(failures: u8) -> Outcome {
        let net = Net::init(&library(), 1).unwrap();
        let (listener, mut handle) = net.listen(0).unwrap();
        handle.0[FAILING] = failures;
        let connector = Connector::default();
        let connecting = connector.begin(&net, 0, Box::new(handle));
        let deadline = Instant::now() + WAIT;
        loop {
            connector.step();
            listener.accept().unwrap();
            if let Some(comm) = connecting.take().transpose() {
                return comm;
            }
            assert!(Instant::now() < deadline, "it neither connects nor fails");
            thread::yield_now();
        }
    }

    #[test]
    fn a_connect_that_the_system_refuses_for_a_moment_is_tried_again() {
        connect_after(3).unwrap();
        let failed = connect_after(u8::MAX);
        assert!(matches!(failed, Err(GroupError::Plugin { call: "connect", .. })), "{failed:?}");
    }
}
