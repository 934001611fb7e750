//! A child of fork(2).

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seconds that a child may take.
const BOUND: u32 = 30;

/// Runs `body` in a forked child, which ends without destructors of this program's. False: `body` panicked there, or did not end.
pub(crate) fn in_child(body: impl FnOnce()) -> bool {
    let (child, mut status) = (start_child(body), 0);
    // SAFETY: the child is ours, and the place lives through the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// Starts a child as [`in_child`] does, and returns its process. A caller that ends first leaves it.
pub(crate) fn start_child(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs this thread alone, and no other thread here holds a lock for long.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: no handler is set, so the signal ends the child.
        unsafe { libc::alarm(BOUND) };
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    child
}
