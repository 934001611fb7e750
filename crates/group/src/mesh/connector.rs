//! Connects to other ranks, always on one thread.
//!
//! Up to v10 a plugin identifies its caller only by the thread: NCCL continues a connect on the thread that began it, and Ironrail keeps an
//! endpoint per thread. A group's calls may come from any thread, and a waiting one holds the group's lock. So the thread that makes
//! progress between calls connects, without that lock, and callers poll for the result.
//!
//! The API has no call that cancels a connect: the plugin's memory for a connect is freed when the connect fails, or when its comm is
//! closed. So a connect that its caller has dropped is continued for a moment, and its comm, if there is one, is closed.

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
    /// The plugin keeps state in the handle from call to call, so its address must not change.
    handle: Box<Handle>,
    /// The handle as the peer sent it: a connect that begins again needs it unchanged.
    unused: Handle,
    begun: Instant,
    /// The time before the next attempt.
    pause: Duration,
    /// When to make the next attempt, after one that has failed.
    resumes: Option<Instant>,
    /// The plugin has begun the connect, and not ended it.
    is_in_progress: bool,
    /// When the caller had dropped the connect.
    dropped: Option<Instant>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Job {
    /// Calls connect once; returns whether the job continues.
    fn step(&mut self) -> bool {
        if Arc::strong_count(&self.outcome) == 1 {
            let dropped = *self.dropped.get_or_insert_with(Instant::now);
            if !self.is_in_progress || dropped.elapsed() >= LINGER {
                return false;
            }
        }
        if self.resumes.is_some_and(|resumes| Instant::now() < resumes) {
            return true;
        }
        let stepped = self.net.connect(self.device, &mut self.handle);
        self.is_in_progress = matches!(stepped, Ok(None));
        let outcome = match stepped {
            Ok(None) => return true,
            Ok(Some(comm)) => Ok(comm),
            // The system may lack a resource, as open files, for a moment only.
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

    /// Continues the connects that the plugin has begun, for a moment: the group has ended, and all callers have dropped theirs. The last
    /// call of the thread that has settled.
    pub(crate) fn finish(&self) {
        while self.step() {
            thread::sleep(POLL);
        }
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
            is_in_progress: false,
            dropped: None,
            outcome: Arc::clone(&outcome),
        };
        lock(&self.jobs).push(job);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        Connecting(outcome)
    }
}

/// How long after the first attempt a connect that fails is begun again. A connect that fails later, as by a timeout of the plugin, fails.
const PERIOD: Duration = Duration::from_secs(3);
/// The time before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a connect goes on after its caller has dropped it. The peer may be dead, and some plugins then wait for minutes.
const LINGER: Duration = Duration::from_millis(500);
/// The time between two calls of connect at the end of a group.
const POLL: Duration = Duration::from_micros(50);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::Buffer;
    use crate::support::{WAIT, buffering, ranks};

    /// The byte of the test plugin's handle that says how many attempts fail.
    const FAILING: usize = 12;

    /// Connects to a listener of this thread after so many failures.
    fn connect_after(failures: u8) -> Outcome {
        let net = Net::init(&buffering(), 1).unwrap();
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
            assert!(Instant::now() < deadline, "the connect neither succeeds nor fails");
            thread::yield_now();
        }
    }

    #[test]
    fn a_connect_that_the_system_refuses_for_a_moment_is_tried_again() {
        connect_after(3).unwrap();
        let failed = connect_after(u8::MAX);
        assert!(matches!(failed, Err(GroupError::Plugin { call: "connect", .. })), "{failed:?}");
    }

    /// The byte of the test plugin's handle that makes its connect never end.
    const NEVER_CONNECTS: usize = 16;

    #[test]
    fn no_thread_of_a_group_is_in_the_plugin_once_its_rank_has_left() {
        ranks(&buffering(), 1, |group| {
            let state = group.shared.lock();
            let mesh = &state.mesh;
            let (_listener, mut handle) = mesh.net.listen(0).unwrap();
            handle.0[NEVER_CONNECTS] = 1;
            let connecting = mesh.connector.begin(&mesh.net, 0, Box::new(handle));
            let deadline = Instant::now() + WAIT;
            while !lock(&mesh.connector.jobs)[0].is_in_progress {
                assert!(Instant::now() < deadline, "the plugin never begins the connect");
                thread::yield_now();
            }
            drop(state);
            assert_eq!(Arc::strong_count(&group.shared.wakers), 2, "the group's and its thread's");
            drop(connecting);
            group.downgrade().leave();
            assert_eq!(Arc::strong_count(&group.shared.wakers), 1, "the thread goes on");
        });
    }

    #[test]
    fn the_connection_of_a_connect_that_was_dropped_in_progress_is_closed() {
        let net = Net::init(&buffering(), 1).unwrap();
        let (listener, handle) = net.listen(0).unwrap();
        let connector = Connector::default();
        drop(connector.begin(&net, 0, Box::new(handle)));
        assert!(!connector.step(), "the plugin has not begun the connect");
        let connecting = connector.begin(&net, 0, Box::new(handle));
        assert!(connector.step(), "the plugin has begun the connect");
        drop(connecting);
        connector.finish();
        let deadline = Instant::now() + WAIT;
        let receiver = loop {
            if let Some(receiver) = listener.accept().unwrap() {
                break receiver;
            }
            assert!(Instant::now() < deadline, "the connect never succeeds");
        };
        let mut buffer = Buffer::new(8).unwrap();
        let region = receiver.register(&buffer).unwrap();
        // The end of the connection is an error of the receive.
        let mut receiving = receiver.irecv(&mut buffer, 0..8, &region, 0);
        while let Ok(Some(request)) = &mut receiving {
            assert!(Instant::now() < deadline, "the connection is open");
            if let Err(ended) = receiver.test(request, |_| Ok(())) {
                receiving = Err(ended);
            }
        }
        assert!(matches!(receiving, Err(GroupError::Plugin { .. })), "{receiving:?}");
    }
}
