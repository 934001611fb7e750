//! The keeper: a thread that polls endpoints in NCCL's place.
//!
//! NCCL may stop calling for good once its last request is reported, while packets are unacknowledged or a peer asks whether we live.
//! So one thread per process polls, under the same lock, an endpoint that was not polled for 10 ms while it owes something, and at longer
//! intervals one that owes nothing. The thread starts with the first endpoint, ends with the last, takes no signals, calls no CUDA, and
//! never waits for a lock: a thread that holds it polls the endpoint itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::registry;

/// The longest and the shortest sleep of the keeper.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(1);
/// When to try again an endpoint whose lock another thread holds.
const BUSY: Duration = Duration::from_millis(50);
/// Endpoints that a process has at most, as a rule.
const ROOM: usize = 64;
/// A keeper that wakes later than this is woken for an endpoint that owes something.
const SOON: Duration = Duration::from_millis(15);

#[derive(Debug)]
struct Keeper {
    endpoints: Vec<u16>,
    thread: Option<JoinHandle<()>>,
    /// Which thread it is, counted: one that is to end does not go on for endpoints that open meanwhile.
    generation: u64,
    /// It was woken before its time.
    is_woken: bool,
}

static KEEPER: Mutex<Keeper> =
    Mutex::new(Keeper { endpoints: Vec::new(), thread: None, generation: 0, is_woken: false });
static BELL: Condvar = Condvar::new();
/// When the keeper wakes next, in nanoseconds of [`clock`]; the end of time while there is none.
static WAKES: AtomicU64 = AtomicU64::new(u64::MAX);

/// An endpoint is open: it is kept from now on.
pub(super) fn watch(number: u16) {
    let mut keeper = lock();
    keeper.endpoints.push(number);
    if keeper.thread.is_none() {
        let generation = keeper.generation;
        match fabric::background::spawn("ironrail-keeper", move || run(generation)) {
            Ok(thread) => keeper.thread = Some(thread),
            Err(error) => log::warn!(
                "the keeper thread cannot be started ({error}): while NCCL makes no calls, peers may take this rank for dead"
            ),
        }
    }
}

/// An endpoint closes. The last one takes the keeper along.
pub(super) fn forget(number: u16) {
    if let Some(thread) = leave(number) {
        // It has caught what panicked.
        let _ended = thread.join();
    }
}

/// An endpoint is kept no more. The keeper, if it is to end: without the lock, its end can be waited for.
fn leave(number: u16) -> Option<JoinHandle<()>> {
    let mut keeper = lock();
    if let Some(at) = keeper.endpoints.iter().position(|kept| *kept == number) {
        keeper.endpoints.swap_remove(at);
    }
    if !keeper.endpoints.is_empty() {
        return None;
    }
    keeper.generation += 1;
    let thread = keeper.thread.take();
    drop(keeper);
    BELL.notify_all();
    thread
}

/// An endpoint owes something, and NCCL may not call again: the keeper polls it soon.
#[inline]
pub(super) fn wake() {
    let soon = clock().saturating_add(nanos(SOON));
    if WAKES.load(Ordering::Relaxed) > soon {
        ring();
    }
}

#[cold]
fn ring() {
    lock().is_woken = true;
    BELL.notify_all();
}

fn run(generation: u64) {
    // Kept from one time to the next, with room for as many as a process has: this runs between NCCL's calls, which allocate nothing.
    let mut endpoints = Vec::with_capacity(ROOM);
    let mut keeper = lock();
    while keeper.generation == generation {
        endpoints.clone_from(&keeper.endpoints);
        keeper.is_woken = false;
        drop(keeper);
        let wait = endpoints.iter().map(|number| keep(*number)).min().unwrap_or(LONGEST);
        let wait = super::dump::look(&endpoints).map_or(wait, |dump| wait.min(dump));
        let wait = wait.clamp(SHORTEST, LONGEST);
        keeper = lock();
        WAKES.store(clock().saturating_add(nanos(wait)), Ordering::Relaxed);
        if !keeper.is_woken && keeper.generation == generation {
            let waited = BELL.wait_timeout(keeper, wait);
            keeper = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    // Another one may keep endpoints that have opened since.
    if keeper.thread.is_none() {
        WAKES.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Polls an endpoint, if that is due; how long until it will be.
fn keep(number: u16) -> Duration {
    let Some(mut entry) = registry::try_lock(number) else { return BUSY };
    let Some(endpoint) = entry.as_deref_mut() else { return BUSY };
    let kept = catch_unwind(AssertUnwindSafe(|| endpoint.keep()));
    kept.unwrap_or_else(|_| {
        endpoint.panicked();
        None
    })
    .unwrap_or(LONGEST)
}

fn lock() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since the first call.
fn clock() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    nanos(BEGAN.get_or_init(Instant::now).elapsed())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Far more than a thread needs to end.
    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_keeper_ends_though_another_endpoint_opens_before_it_does() {
        watch(1);
        let first = leave(1).expect("it was the last one");
        watch(2);
        let (said, ended) = mpsc::channel();
        thread::spawn(move || {
            let _ended = first.join();
            let _heard = said.send(());
        });
        assert!(ended.recv_timeout(BOUND).is_ok(), "it keeps what another one keeps");
        assert!(lock().thread.is_some(), "the second endpoint has a keeper of its own");
        forget(2);
    }
}
