//! Progress between calls: the thread that makes it, and the futures that it wakes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use super::{State, after_panic, try_lock};
use crate::error::GroupError;
use crate::mesh::{Connector, Moved};

/// The thread that makes progress between calls, and connections at all times.
#[derive(Debug)]
pub(super) struct Mover {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    pub(super) fn start(
        state: &Arc<Mutex<State>>,
        connector: Arc<Connector>,
        wakers: &Arc<Wakers>,
        moving: Duration,
    ) -> Result<Self, GroupError> {
        let stop = Arc::<AtomicBool>::default();
        let (ours, state, wakers) = (Arc::clone(&stop), Arc::clone(state), Arc::clone(wakers));
        let run = move || {
            let moves = || move_until(&ours, &state, &connector, &wakers, moving);
            if catch_unwind(AssertUnwindSafe(moves)).is_err() {
                // The panic hook has reported it, and with the lock the group fails.
                drop(state.lock().unwrap_or_else(after_panic));
            }
            // However it ends: nothing else would wake futures of a group that has failed, or that this rank has left.
            wakers.wake();
            connector.finish();
        };
        let thread = thread::Builder::new().name("progress".to_owned());
        let thread = signals::blocked(|| thread.spawn(run))
            .map_err(|error| GroupError::System { what: "starting a thread", error })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// The thread, until the mover is dropped.
    pub(super) fn thread(&self) -> Option<ThreadId> {
        self.thread.as_ref().map(|thread| thread.thread().id())
    }
}

/// Makes progress until it is to stop, or the group has failed.
fn move_until(
    stop: &AtomicBool,
    state: &Mutex<State>,
    connector: &Connector,
    wakers: &Wakers,
    moving: Duration,
) {
    let mut rest = moving;
    connector.settle();
    while !stop.load(Ordering::Acquire) {
        let connects = connector.step();
        let (moved, seen) = match try_lock(state) {
            // A waiting thread makes progress itself, and may have moved what a future waits for.
            None => (false, false),
            Some(mut state) => {
                let polled = state.mesh.poll(None);
                state.advance_receives();
                // Any thread's poll may have ended these operations.
                let ended = state.take_ended();
                state.mesh.sweep();
                drop(state);
                ended.into_iter().for_each(|(_, memory)| contained(|| drop(memory)));
                match polled {
                    Ok(moved) => (moved != Moved::Nothing, true),
                    Err(_) => return,
                }
            }
        };
        rest = if moved { moving } else { (rest * 2).min(CALM) };
        let waits = wakers.progress(moved || !seen);
        // Unparked where a connect begins.
        thread::park_timeout(if connects || waits { BRISK } else { rest });
    }
}

/// Runs foreign code, of a waker or of memory's owner. A panic in it is reported by the panic hook, and must not end the thread that makes
/// progress.
fn contained(run: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(run));
}

/// Futures that wait for the group.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    list: Mutex<(Vec<Waker>, Option<Instant>)>,
}

impl Wakers {
    /// Wakes `waker` when it should poll again.
    pub(crate) fn add(&self, waker: &Waker) {
        let (list, _) = &mut *self.lock();
        if !list.iter().any(|other| other.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    /// Wakes all if something moved, and periodically, so that they notice timeouts. Returns whether any waits.
    fn progress(&self, moved: bool) -> bool {
        let mut guard = self.lock();
        let (list, since) = &mut *guard;
        if list.is_empty() {
            *since = None;
            return false;
        }
        if moved || since.get_or_insert_with(Instant::now).elapsed() >= WAKE_EVERY {
            drop(guard);
            self.wake();
        }
        true
    }

    fn wake(&self) {
        let woken = {
            let (list, since) = &mut *self.lock();
            *since = None;
            std::mem::take(list)
        };
        // After the lock is released: a waker runs foreign code.
        woken.into_iter().for_each(|waker| contained(|| waker.wake()));
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Waker>, Option<Instant>)> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest sleep of a future.
const WAKE_EVERY: Duration = Duration::from_millis(5);

impl Drop for Mover {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The last handle of a group may be dropped with a waker, or with memory that this thread frees: then the thread ends by itself.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The pause between polls while something moves, with [`Builder::progress_thread`](super::Builder::progress_thread).
pub(super) const BRISK: Duration = Duration::from_micros(50);
/// The longest pause.
pub(super) const CALM: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::Instant;

    use proc_status::Status;

    use crate::support::{WAIT, library, ranks};

    /// The names of the library's threads, and the signals that one of each name does not block.
    fn unblocked() -> Vec<(String, u64)> {
        let of = |status: &Status| {
            let name = status.field("Name").filter(|name| OURS.contains(name))?.to_owned();
            Some((name, !status.signals("SigBlk")?))
        };
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        // A thread may have ended meanwhile.
        tasks
            .filter_map(|task| of(&Status::in_file(&task.ok()?.path().join("status")).ok()?))
            .collect()
    }

    /// The threads of a rendezvous have the name of the one that has started them.
    const OURS: [&str; 3] = ["hub", "mail", "progress"];

    #[test]
    fn the_librarys_threads_block_signals_and_those_of_the_program_do_not() {
        let bit = |signal: i32| 1_u64 << (signal - 1);
        ranks(&library(), 2, move |group| {
            group.barrier().unwrap();
            let end = Instant::now() + WAIT;
            let is_ready = |threads: &[(String, u64)]| {
                let is_there = |name: &str| threads.iter().any(|(other, _)| other == name);
                OURS.into_iter().all(is_there)
                    && threads.iter().all(|(_, open)| open & bit(libc::SIGSEGV) != 0)
            };
            // A thread has its name a moment after it has begun, and blocks all signals until then.
            let threads = loop {
                let threads = unblocked();
                if is_ready(&threads) {
                    break threads;
                }
                assert!(Instant::now() < end, "one is missing, or hides its faults: {threads:?}");
                thread::yield_now();
            };
            for (name, open) in threads {
                for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM] {
                    assert_eq!(open & bit(signal), 0, "{name} takes signal {signal}");
                }
            }
            let own = Status::of_this_thread().unwrap().signals("SigBlk").unwrap();
            assert_eq!(own & bit(libc::SIGTERM), 0, "a thread that has started others blocks more");
            group.meet(&[]).unwrap();
        });
    }
}
