//! Starts threads of our own in the user's process: with all signals blocked, and on every CPU that the process may use.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. It blocks all signals, so that the process's own threads receive them, and does not inherit its caller's CPU affinity.
///
/// # Errors
///
/// The system has no more threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let before = block_signals();
    let started = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
        run_anywhere();
        body();
    });
    if let Some(before) = before {
        set_signals(&before);
    }
    started
}

const STACK_BYTES: usize = 256 << 10;

/// Blocks all signals in this thread, which a new thread inherits. Returns the previous mask.
fn block_signals() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: a place for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::uninit();
    // SAFETY: a set that was filled, and a place for another.
    let code =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: pthread_sigmask has written it.
    (code == 0).then(|| unsafe { before.assume_init() })
}

fn set_signals(set: &libc::sigset_t) {
    // SAFETY: a set that pthread_sigmask has given; what was blocked before is not read.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}

/// Resets this thread's CPU affinity to all CPUs; the kernel restricts it to the process's cpuset.
fn run_anywhere() {
    // SAFETY: all bits zero is an empty set.
    let mut cpus: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    for cpu in 0..libc::CPU_SETSIZE.cast_unsigned() as usize {
        // SAFETY: a set of that size.
        unsafe { libc::CPU_SET(cpu, &mut cpus) };
    }
    // SAFETY: a set of that size, for this thread. Where it is refused, the affinity stays as it was.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_ours_blocks_all_signals_and_keeps_its_callers_mask() {
        fn blocked() -> bool {
            let mut now = MaybeUninit::uninit();
            // SAFETY: a place for the set.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr()) };
            // SAFETY: pthread_sigmask has written it.
            let now = unsafe { now.assume_init() };
            // SAFETY: a set, and a signal's number.
            unsafe { libc::sigismember(&raw const now, libc::SIGUSR1) == 1 }
        }
        let before = blocked();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = spawn("test", move || sender.send(blocked()).unwrap()).unwrap();
        thread.join().unwrap();
        assert_eq!((receiver.recv(), blocked()), (Ok(true), before));
    }
}
