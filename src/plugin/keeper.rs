//! The keeper: a progress thread that polls endpoints while NCCL does not.
//!
//! NCCL may stop calling once its last request is reported, while packets are unacknowledged or a peer sends keepalive queries. So one
//! thread per process polls, under the same lock, endpoints that were not polled for 10 ms and have frames due, and the others at longer
//! intervals. It starts with the first endpoint, ends with the last, blocks signals, calls no CUDA, opens no file, and never waits for a
//! lock: the thread that holds it polls the endpoint itself.
//!
//! If the process ends with endpoints open, the keeper ends first: see [`super::exit`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{Lock, monotonic_nanos};

use super::table;

/// The longest and the shortest sleep of the keeper.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(1);
/// When to try again an endpoint whose lock another thread holds.
const BUSY: Duration = Duration::from_millis(50);
/// Preallocated room for endpoints. Few processes have more.
const ROOM: usize = 64;
/// An endpoint with frames due wakes the keeper if its sleep ends later than this.
const SOON: Duration = Duration::from_millis(15);
/// In place of a time: the keeper does not sleep, or there is no keeper.
const AWAKE: u64 = u64::MAX;

#[derive(Debug)]
struct Keeper {
    endpoints: Vec<u16>,
    thread: Option<JoinHandle<()>>,
    /// Incremented when the thread is to end, so that it does end even if another endpoint opens before that.
    generation: u64,
}

/// The thread holds its lock only before it polls, never while it polls or sleeps.
static KEEPER: Lock<Keeper> =
    Lock::new(Keeper { endpoints: Vec::new(), thread: None, generation: 0 });
/// Whether there are endpoints. Stored under the lock.
static HAS_ENDPOINTS: AtomicBool = AtomicBool::new(false);
/// When the keeper's sleep ends, by [`monotonic_nanos`], or [`AWAKE`]. Stored before the keeper sleeps: frames that fall due after its poll
/// unpark it, which ends a sleep that has not begun.
static SLEEPS_UNTIL: AtomicU64 = AtomicU64::new(AWAKE);
/// The process ends: the keeper begins no poll, and none is started.
static EXITS: AtomicBool = AtomicBool::new(false);

impl Keeper {
    /// Ends the thread's sleep. Every other holder of the lock calls this before it releases the lock: meanwhile [`wake`] may have found
    /// the lock taken and given up.
    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// Adds an endpoint that was opened.
pub(super) fn watch(number: u16) {
    let mut keeper = KEEPER.lock();
    keeper.endpoints.push(number);
    HAS_ENDPOINTS.store(true, Ordering::Relaxed);
    if keeper.thread.is_some() {
        return keeper.unpark();
    }
    if exits() {
        return;
    }
    let generation = keeper.generation;
    match fabric::background::spawn("ironrail-keeper", move || run(generation)) {
        Ok(thread) => keeper.thread = Some(thread),
        Err(error) => log::warn!(
            "the keeper thread cannot be started ({error}): while NCCL makes no calls, peers may take this rank for dead"
        ),
    }
}

/// Removes an endpoint that closes. With the last one the thread ends; returns whether it has.
pub(super) fn forget(number: u16) -> bool {
    let Some(thread) = remove(number) else { return false };
    // The thread catches its panics.
    let _ended = thread.join();
    true
}

/// The endpoints that are open.
pub(super) fn endpoints() -> Vec<u16> {
    let keeper = KEEPER.lock();
    keeper.unpark();
    keeper.endpoints.clone()
}

/// Whether any endpoint is open. Takes no lock: the dump's thread calls this at each of its checks.
pub(super) fn has_endpoints() -> bool {
    HAS_ENDPOINTS.load(Ordering::Relaxed)
}

/// Removes an endpoint. Returns the thread if it is to end, to be joined without the lock.
fn remove(number: u16) -> Option<JoinHandle<()>> {
    let mut keeper = KEEPER.lock();
    if let Some(at) = keeper.endpoints.iter().position(|kept| *kept == number) {
        keeper.endpoints.swap_remove(at);
    }
    keeper.unpark();
    if !keeper.endpoints.is_empty() {
        return None;
    }
    HAS_ENDPOINTS.store(false, Ordering::Relaxed);
    keeper.generation += 1;
    keeper.thread.take()
}

/// An endpoint has frames due, and NCCL may not call again: the keeper polls it soon.
#[inline]
pub(super) fn wake() {
    if SLEEPS_UNTIL.load(Ordering::Relaxed) > monotonic_nanos() + nanos(SOON) {
        unpark();
    }
}

#[cold]
fn unpark() {
    // Not waited for, since waiting allocates. The lock's holder is the keeper's thread, which polls next, or a thread that unparks it.
    if let Some(keeper) = KEEPER.try_lock() {
        keeper.unpark();
    }
}

fn run(generation: u64) {
    // Preallocated and reused: nothing is allocated while NCCL moves data.
    let mut endpoints = Vec::with_capacity(ROOM);
    while copy_endpoints(generation, &mut endpoints) {
        let wait = endpoints.iter().map(|number| poll(*number)).min().unwrap_or(LONGEST);
        let wait = wait.clamp(SHORTEST, LONGEST);
        SLEEPS_UNTIL.store(monotonic_nanos() + nanos(wait), Ordering::Relaxed);
        std::thread::park_timeout(wait);
        SLEEPS_UNTIL.store(AWAKE, Ordering::Relaxed);
    }
}

/// Copies the endpoints to poll. False: the keeper of this generation is to end.
fn copy_endpoints(generation: u64, endpoints: &mut Vec<u16>) -> bool {
    let keeper = KEEPER.lock();
    endpoints.clone_from(&keeper.endpoints);
    keeper.generation == generation && !exits()
}

fn exits() -> bool {
    EXITS.load(Ordering::Relaxed)
}

/// The process ends: the thread begins no poll from now on, and ends.
pub(super) fn begin_end() {
    EXITS.store(true, Ordering::Relaxed);
}

/// Whether there is no thread any more; wakes one that sleeps. Does not wait for the lock, which the caller of exit(3) may hold.
pub(super) fn has_ended() -> bool {
    let Some(keeper) = KEEPER.try_lock() else { return false };
    keeper.unpark();
    keeper.thread.as_ref().is_none_or(JoinHandle::is_finished)
}

/// Polls an endpoint, if a poll is due. Returns the time until the next one.
fn poll(number: u16) -> Duration {
    if exits() {
        return Duration::ZERO;
    }
    let Some(mut entry) = table::try_lock(number) else { return BUSY };
    let Some(endpoint) = entry.as_deref_mut() else { return BUSY };
    let kept = catch_unwind(AssertUnwindSafe(|| endpoint.keep()));
    kept.unwrap_or_else(|_| {
        endpoint.panicked();
        None
    })
    .unwrap_or(LONGEST)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{PoisonError, mpsc};
    use std::thread;

    use super::table::NUMBERS;
    use super::*;

    /// Far more than a thread needs to end.
    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_keeper_ends_though_another_endpoint_opens_before_it_does() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        watch(1);
        let first = remove(1).expect("it was the last one");
        watch(2);
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            let _ended = first.join();
            let _sent = sender.send(());
        });
        assert!(ended.recv_timeout(BOUND).is_ok(), "it keeps the second endpoint");
        assert!(KEEPER.lock().thread.is_some(), "the second endpoint has a keeper of its own");
        forget(2);
    }

    #[test]
    fn reading_the_list_of_endpoints_wakes_the_keeper_for_a_call_that_found_the_lock_taken() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, woken) = mpsc::channel();
        let keeper = thread::spawn(move || {
            thread::park();
            let _sent = sender.send(());
        });
        KEEPER.lock().thread = Some(keeper);
        assert!(endpoints().is_empty());
        let woken = woken.recv_timeout(BOUND);
        KEEPER.lock().thread = None;
        assert!(woken.is_ok(), "it was not woken");
    }

    #[test]
    fn whether_an_endpoint_is_open_is_known_without_the_lock() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, known) = mpsc::channel();
        watch(1);
        let held = KEEPER.lock();
        thread::spawn(move || sender.send(has_endpoints()));
        let open = known.recv_timeout(BOUND);
        drop(held);
        assert_eq!(open, Ok(true));
        forget(1);
        assert!(!has_endpoints());
    }
}
