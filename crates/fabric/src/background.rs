//! Starts threads of our own in the user's process: with signals blocked, and on the CPUs of its main thread.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. It blocks signals, so that the process's own threads receive them, apart from [`signals::FAULTS`]. It runs on the
/// CPUs of the main thread, as the user has bound the process: NCCL binds the threads that call a plugin to fewer.
///
/// # Errors
///
/// The system has no more threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    signals::blocked(|| {
        thread.spawn(move || {
            run_as_the_main_thread();
            body();
        })
    })
}

const STACK_BYTES: usize = 256 << 10;

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
