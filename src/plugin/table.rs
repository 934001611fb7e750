//! The table of the process's endpoints, which ids index.
//!
//! An entry is never freed. Its lock is the only lock of the data path, held for the length of one call: NCCL's service thread, its
//! progress thread and the keeper all take it.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use fabric::{Guard, Lock};

use super::wait::wait_until;
use crate::endpoint::Endpoint;
use crate::object_id::RawId;

/// Endpoints of one process: as many as an id can name.
pub(super) const ENTRIES: usize = 1 << 12;

static TABLE: [Entry; ENTRIES] = [const { Lock::new(None) }; ENTRIES];
/// Where libfabric cannot be used, a call gets this in place of an entry: it never holds an endpoint, and no thread of a parent locks it.
static NO_ENTRY: Entry = Lock::new(None);

/// Attempts on a contended lock before this thread sleeps.
const TRIES: u32 = 1000;

type Entry = Lock<Option<Box<Endpoint>>>;
/// An endpoint's entry, locked.
pub(super) type LockedEntry = Guard<'static, Option<Box<Endpoint>>>;

/// Locks the entry that an id names, without checking whether the id is current. In a forked child locks an empty entry: a thread of the
/// parent may have held the lock at the fork, and the endpoint's NICs are the parent's. As the process ends, too: see [`close`].
#[inline(always)]
pub(super) fn lock(name: RawId) -> LockedEntry {
    if !fabric::is_usable() {
        return no_entry();
    }
    let entry = &TABLE[name.endpoint() % ENTRIES];
    // The lock is mostly free, and trying it is one atomic operation.
    entry.try_lock().unwrap_or_else(|| wait_for(entry))
}

#[cold]
#[inline(never)]
fn no_entry() -> LockedEntry {
    NO_ENTRY.lock()
}

#[cold]
#[inline(never)]
fn wait_for(entry: &'static Entry) -> LockedEntry {
    // Yield first: mostly the keeper holds the lock, for microseconds. Sleeping would take longer, and a thread's first sleep allocates.
    for _ in 0..TRIES {
        std::thread::yield_now();
        if let Some(locked) = entry.try_lock() {
            return locked;
        }
    }
    entry.lock()
}

/// Locks an endpoint's entry.
#[inline(always)]
pub(super) fn entry(number: u16) -> LockedEntry {
    TABLE[usize::from(number) % ENTRIES].lock()
}

/// Locks an endpoint's entry, unless another thread holds it.
pub(super) fn try_lock(number: u16) -> Option<LockedEntry> {
    TABLE[usize::from(number) % ENTRIES].try_lock()
}

/// Ends all use of endpoints, before libfabric goes: waits within a bound until no call is in one, and lets none in. A call that has passed
/// the check in [`lock`] already waits until the process is gone.
pub(super) fn close(bound: Duration) {
    fabric::stop_use();
    let began = Instant::now();
    for entry in &TABLE {
        let mut locked = None;
        wait_until(bound.saturating_sub(began.elapsed()), || {
            locked = entry.try_lock();
            locked.is_some()
        });
        if let Some(locked) = locked.filter(|locked| locked.is_some()) {
            let _never_unlocked = ManuallyDrop::new(locked);
        }
    }
}

/// Held by one test at a time: tests depend on which numbers are free, and on which endpoints the keeper has.
#[cfg(test)]
pub(super) static NUMBERS: std::sync::Mutex<()> = std::sync::Mutex::new(());
