//! Starts threads of our own in the user's process: with signals blocked, and on the CPUs of its main thread.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. It blocks signals, so that the process's own threads receive them, apart from those of its own [`FAULTS`]. It runs on the
/// CPUs of the main thread, as the user has bound the process: NCCL binds the threads that call a plugin to fewer.
///
/// # Errors
///
/// The system has no more threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let before = block_signals();
    let started = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
        run_as_the_main_thread();
        body();
    });
    if let Some(before) = before {
        set_signals(&before);
    }
    started
}

const STACK_BYTES: usize = 256 << 10;

/// Signals of what a thread itself has done. If it blocks them, the kernel ends the process and runs no handler (pthread_sigmask(3)): not
/// one that reports a crash, as Python's faulthandler, nor one that continues, as that of a program that watches its memory by mprotect(2),
/// or of a sandbox.
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

fn set_signals(set: &libc::sigset_t) {
    // SAFETY: a set that pthread_sigmask has given; what was blocked before is not read.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}

/// Gives this thread the CPU affinity of the main thread. If the system refuses, the affinity stays unchanged.
fn run_as_the_main_thread() {
    if let Some(cpus) = cpus_of(std::process::id().cast_signed()) {
        // SAFETY: a set of that size, for this thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus) };
    }
}

/// The CPU affinity of a thread; the main thread has the number of its process (sched_setaffinity(2)).
fn cpus_of(thread: libc::pid_t) -> Option<libc::cpu_set_t> {
    // SAFETY: all bits zero is an empty set.
    let mut cpus: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a place for a set of that size.
    let code =
        unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut cpus) };
    (code == 0).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::*;

    fn set(thread: libc::pid_t, cpus: &libc::cpu_set_t) {
        // SAFETY: a set of that size.
        let code = unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), cpus) };
        assert_eq!(code, 0);
    }

    /// Runs in a separate process, whose main thread waits on other CPUs than it had at the start.
    #[test]
    fn a_thread_of_ours_runs_on_the_cpus_of_the_main_thread() {
        if std::env::var_os("FABRIC_TEST_ALONE").is_none() {
            let test = a_thread_of_ours_runs_on_the_cpus_of_the_main_thread;
            return harness::again(test, &[("FABRIC_TEST_ALONE", "1".as_ref())]);
        }
        let caller = std::thread::spawn(runs_on_the_cpus_of_the_main_thread);
        caller.join().unwrap();
    }

    /// The caller is bound to one CPU, and the main thread to another, if there is one.
    fn runs_on_the_cpus_of_the_main_thread() {
        let main = std::process::id().cast_signed();
        let before = cpus_of(main).unwrap();
        // SAFETY: a CPU's number below the size.
        let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &before) };
        let mut cpus = (0..libc::CPU_SETSIZE.cast_unsigned() as usize).filter(has).map(|cpu| {
            // SAFETY: all bits zero is an empty set.
            let mut one: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
            // SAFETY: as above.
            unsafe { libc::CPU_SET(cpu, &mut one) };
            one
        });
        let first = cpus.next().unwrap();
        let last = cpus.next_back().unwrap_or(first);
        set(0, &first);
        set(main, &last);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = spawn("test", move || sender.send(cpus_of(0).unwrap()).unwrap());
        thread.unwrap().join().unwrap();
        let its = receiver.recv().unwrap();
        // SAFETY: two sets.
        assert!(unsafe { libc::CPU_EQUAL(&its, &last) });
    }

    #[test]
    fn a_thread_of_ours_blocks_signals_and_keeps_its_callers_mask() {
        fn blocked(signal: libc::c_int) -> bool {
            let mut now = MaybeUninit::uninit();
            // SAFETY: a place for the set.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr()) };
            // SAFETY: pthread_sigmask has written it.
            let now = unsafe { now.assume_init() };
            // SAFETY: a set, and a signal's number.
            unsafe { libc::sigismember(&raw const now, signal) == 1 }
        }
        let before = blocked(libc::SIGUSR1);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = spawn("test", move || {
            let of_others = blocked(libc::SIGUSR1) && blocked(libc::SIGTERM);
            sender.send((of_others, FAULTS.iter().any(|fault| blocked(*fault)))).unwrap();
        });
        thread.unwrap().join().unwrap();
        assert_eq!((receiver.recv(), blocked(libc::SIGUSR1)), (Ok((true, false)), before));
    }

    /// The page that a thread faults on.
    static FAULTY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

    /// Runs in a separate process, which ends if the handler does not run.
    #[test]
    fn the_handler_of_the_process_runs_for_a_fault_in_a_thread_of_ours() {
        extern "C" fn allow(_signal: libc::c_int) {
            let page = FAULTY.load(Ordering::Relaxed);
            // SAFETY: our own mapping.
            unsafe { libc::mprotect(page, PAGE_MAX, libc::PROT_READ) };
        }
        const PAGE_MAX: usize = 64 << 10;
        if std::env::var_os("FABRIC_TEST_ALONE").is_none() {
            let test = the_handler_of_the_process_runs_for_a_fault_in_a_thread_of_ours;
            return harness::again(test, &[("FABRIC_TEST_ALONE", "1".as_ref())]);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_MAX, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        FAULTY.store(page, Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int) = allow;
        // SAFETY: the handler makes one system call.
        unsafe { libc::signal(libc::SIGSEGV, handler as libc::sighandler_t) };
        let thread = spawn("test", || {
            let page = FAULTY.load(Ordering::Relaxed).cast::<u8>();
            // SAFETY: a page of ours, which the handler makes readable.
            assert_eq!(unsafe { page.read_volatile() }, 0);
        });
        thread.unwrap().join().unwrap();
    }
}
