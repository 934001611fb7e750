//! Threads of a library in a process that is not its own: its signals go to the threads of the process.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `start` while this thread blocks signals. A thread that is started meanwhile inherits that, and never takes a signal that is meant
/// for the process: a program may block one in its own threads, and wait for it (sigwait(3), signalfd(2)).
///
/// The signals of [`FAULTS`] are not blocked.
pub fn blocked<T>(start: impl FnOnce() -> T) -> T {
    let _before = Mask::block();
    start()
}

/// Signals of what a thread itself has done. If it blocks them, the kernel ends the process and runs no handler (pthread_sigmask(3)): not
/// one that reports a crash, as Python's faulthandler, nor one that continues, as that of a program that watches its memory by mprotect(2),
/// or of a sandbox.
pub const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// What a thread blocked before, restored when this is dropped. None: the system did not say.
struct Mask(Option<libc::sigset_t>);

impl Mask {
    /// Blocks all signals but [`FAULTS`] in this thread.
    fn block() -> Self {
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
        Self((code == 0).then(|| unsafe { before.assume_init() }))
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: a set that pthread_sigmask has given; what was blocked before is not read.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: a place for the set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr()) };
        // SAFETY: pthread_sigmask has written it.
        let now = unsafe { now.assume_init() };
        // SAFETY: a set, and a signal's number.
        unsafe { libc::sigismember(&raw const now, signal) == 1 }
    }

    #[test]
    fn a_thread_blocks_all_signals_but_its_faults_and_its_starter_as_many_as_before() {
        let before = is_blocked(libc::SIGUSR1);
        let ours = || [libc::SIGUSR1, libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS].map(is_blocked);
        let thread = blocked(|| thread::spawn(ours));
        assert_eq!(thread.join().unwrap(), [true, true, false, false]);
        assert_eq!(is_blocked(libc::SIGUSR1), before);
    }
}
