//! The process that the plugin is loaded into: whether libfabric can be used in it, which a forked child cannot, and no process as it ends;
//! whether its standard streams are open; and the name of its host.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::pages::Pages;

/// The word that says whether libfabric can be used: [`USABLE`], [`FORKED`] or [`ENDS`]. It is never unmapped. Reading it needs no system
/// call, as getpid(2) would, which costs as much as a fifth of a poll.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const OWN_WORD).cast_mut());

/// The word until [`watch_forks`], which shows no fork; also afterwards if the kernel lacks MADV_WIPEONFORK (Linux before 4.14).
static OWN_WORD: AtomicU64 = AtomicU64::new(USABLE);

/// What the kernel leaves of the page in a forked child.
const FORKED: u64 = 0;
const USABLE: u64 = 1;
/// The process ends: its libraries' destructors run.
const ENDS: u64 = 2;

/// From the first call on, [`is_forked`] recognises children that this process forks. The kernel clears their copy of a page
/// (MADV_WIPEONFORK, madvise(2)), also after a clone(2) without libc.
pub fn watch_forks() {
    static PAGE: OnceLock<Option<Pages>> = OnceLock::new();
    PAGE.get_or_init(|| {
        let Ok(page) = Pages::wiped_on_fork() else {
            by_handler();
            return None;
        };
        page.store(0, USABLE);
        let word = usize::try_from(page.address()).expect("an address fits into a pointer");
        WORD.store(ptr::with_exposed_provenance_mut(word), Ordering::Release);
        Some(page)
    });
}

/// Registers a handler by which libc clears the word in children.
fn by_handler() {
    extern "C" fn clear() {
        OWN_WORD.store(FORKED, Ordering::Relaxed);
    }
    // SAFETY: the handler is async-signal-safe, and part of a library that is never unloaded. It fails without memory only.
    let _refused = unsafe { libc::pthread_atfork(None, None, Some(clear)) };
}

#[inline(always)]
fn word() -> &'static AtomicU64 {
    // SAFETY: a static, or a page that is never unmapped; both are accessed by atomics alone.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// Whether libfabric can be used: the caller is no child that was forked after [`watch_forks`], and [`stop_use`] was not called.
#[inline(always)]
pub fn is_usable() -> bool {
    word().load(Ordering::Relaxed) == USABLE
}

/// Whether the caller is a child that was forked after [`watch_forks`].
pub fn is_forked() -> bool {
    word().load(Ordering::Relaxed) == FORKED
}

/// From now on [`is_usable`] is false in all threads of this process.
pub fn stop_use() {
    let _not_in_a_child =
        word().compare_exchange(USABLE, ENDS, Ordering::SeqCst, Ordering::Relaxed);
}

/// Registers a handler that runs when the process ends by exit(3) or by a return from its main function: before the destructors of
/// libraries that are loaded already, and before handlers that are registered already.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler is part of a library that is never unloaded. It fails without memory only.
    let _refused = unsafe { libc::atexit(handler) };
}

/// Registers the one handler that runs after those of [`at_exit`], and before the destructors of libraries that this one has opened: the
/// loader ends a library before those whose symbols dlsym(3) has found for it.
pub fn before_destructors(handler: fn()) {
    let _first = LAST.set(handler);
}

static LAST: OnceLock<fn()> = OnceLock::new();

extern "C" fn end_library() {
    if let Some(handler) = LAST.get() {
        handler();
    }
}

// SAFETY: the loader calls what this section names once, without arguments, as the process ends; the library is never unloaded.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = end_library;

/// The name of this host (uname(2)), as this container sees it; empty where there is none. It needs no /proc, which a service's sandbox may
/// hide.
pub fn host_name() -> String {
    // SAFETY: arrays of characters, for which zeros are a value.
    let mut said: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: a place of ours for the answer, which stays as it is where the kernel refuses one.
    let _refused = unsafe { libc::uname(&raw mut said) };
    let name = said.nodename.map(|character| character.to_ne_bytes()[0]);
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned()
}

/// The file under a descriptor other than those of the standard streams. If a standard stream is closed, a new file gets its number, and
/// the process's output would go into the file.
///
/// # Errors
///
/// The process has no more descriptors.
pub fn away_from_streams(file: File) -> io::Result<File> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file);
    }
    // The copy's number is 3 or more.
    file.try_clone()
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::fd::FromRawFd;

    use super::*;

    /// Runs in a separate process, whose standard input is closed at the end.
    #[test]
    fn a_file_in_the_place_of_a_standard_stream_moves_away() {
        if env::var_os("FABRIC_TEST_ALONE").is_none() {
            let test = a_file_in_the_place_of_a_standard_stream_moves_away;
            return harness::again(test, &[("FABRIC_TEST_ALONE", "1".as_ref())]);
        }
        let file = File::open("/proc/self/status").expect("proc is mounted");
        let other = file.as_raw_fd();
        assert_eq!(away_from_streams(file).expect("it stays").as_raw_fd(), other);
        let file = File::open("/proc/self/status").expect("proc is mounted");
        // SAFETY: nothing reads the standard input, whose descriptor another file gets.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), libc::STDIN_FILENO) }, 0);
        // SAFETY: nothing else owns it.
        let as_input = unsafe { File::from_raw_fd(libc::STDIN_FILENO) };
        assert!(away_from_streams(as_input).expect("there are more").as_raw_fd() > 2);
    }

    #[test]
    fn the_name_of_the_host_is_the_kernels() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("proc is mounted");
        assert_eq!(host_name(), name.trim());
        assert_ne!(host_name(), "");
    }

    #[test]
    fn a_forked_child_is_another_process_with_and_without_a_page_that_is_wiped() {
        watch_forks();
        by_handler();
        let by_handler = || OWN_WORD.load(Ordering::Relaxed) == FORKED;
        assert_ne!(WORD.load(Ordering::Relaxed).cast_const(), &raw const OWN_WORD, "Linux 4.14");
        assert!(!is_forked() && !by_handler());
        // SAFETY: the child calls nothing but what is safe to call between fork(2) and _exit(2): it reads memory.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            let code = i32::from(!is_forked()) + 2 * i32::from(!by_handler());
            // SAFETY: it ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: a place of ours for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "neither takes the child for its parent");
    }
}
