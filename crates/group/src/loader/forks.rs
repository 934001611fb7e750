//! Whether this process was forked from one that uses this library: connections, threads and locks belong to the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks are between this process and the first one that has called this. Mostly a load: getpid(2) would be a system call for each
/// poll.
#[inline]
pub(crate) fn forks() -> u32 {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(watch);
    FORKS.load(Ordering::Relaxed)
}

fn watch() {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler is async-signal-safe, and libc forgets it when this code is unloaded. It fails without memory only.
    let _refused = unsafe { libc::pthread_atfork(None, None, Some(count)) };
}
