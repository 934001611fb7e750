//! Starts threads of this library's own in the user's process.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. It blocks signals, so that the process's own threads receive them: a program may block one in its threads, and wait for it
/// (sigwait(3), signalfd(2)). It does not block the signals of its own [`FAULTS`]. A thread that it starts inherits that.
///
/// # Errors
///
/// The system has no more threads.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let before = block_signals();
    let started = Builder::new().name(name.to_owned()).spawn(body);
    if let Some(before) = before {
        // SAFETY: a set that pthread_sigmask has given; what was blocked before is not read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    }
    started
}

/// Signals of what a thread itself has done: if it blocks them, the kernel ends the process and runs no handler (pthread_sigmask(3)).
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Blocks all signals but [`FAULTS`] in this thread, which a new thread inherits. Returns the previous mask.
fn block_signals() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: a place for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for fault in FAULTS {
        // SAFETY: a set that was filled.
        unsafe { libc::sigdelset(all.as_mut_ptr(), fault) };
    }
    let mut before = MaybeUninit::uninit();
    // SAFETY: that set, and a place for another.
    let code =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: pthread_sigmask has written it.
    (code == 0).then(|| unsafe { before.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
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
            // A thread has its name a moment after it has begun.
            while OURS.iter().any(|name| !unblocked().iter().any(|(other, _)| other == name)) {
                assert!(Instant::now() < end, "{:?}", unblocked());
                thread::yield_now();
            }
            let names: BTreeSet<_> = unblocked().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), OURS.len());
            for (name, open) in unblocked() {
                for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM] {
                    assert_eq!(open & bit(signal), 0, "{name} takes signal {signal}");
                }
                assert_ne!(open & bit(libc::SIGSEGV), 0, "{name} hides its faults");
            }
            let own = Status::of_this_thread().unwrap().signals("SigBlk").unwrap();
            assert_eq!(own & bit(libc::SIGTERM), 0, "a thread that has started others blocks more");
            group.meet(&[]).unwrap();
        });
    }
}
