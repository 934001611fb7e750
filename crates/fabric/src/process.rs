//! Detects a forked child, in each call: libfabric does not survive a fork.

use crate::pages::Pages;

/// The process that created it. A page that the kernel clears in forked children (MADV_WIPEONFORK, madvise(2)) shows a fork without a
/// system call; getpid(2) is one, and costs as much as a fifth of a poll.
#[derive(Debug)]
pub struct Process {
    id: u32,
    /// None if the kernel lacks MADV_WIPEONFORK (Linux before 4.14).
    mark: Option<Pages>,
}

impl Process {
    /// The calling process.
    pub fn this() -> Self {
        let mark = Pages::wiped_on_fork().ok();
        if let Some(page) = &mark {
            page.store(0, MARK);
        }
        Self { id: std::process::id(), mark }
    }

    /// Whether the caller is that process, and not a forked child of it.
    #[inline]
    pub fn is_this(&self) -> bool {
        match &self.mark {
            Some(page) => page.load(0) == MARK,
            None => self.id == std::process::id(),
        }
    }
}

const MARK: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_process() {
        let marked = Process::this();
        let counted = Process { id: marked.id, mark: None };
        assert!(marked.mark.is_some(), "this kernel wipes pages on fork");
        assert!(marked.is_this() && counted.is_this());
        // SAFETY: the child calls nothing but what is safe to call between fork(2) and _exit(2): it reads memory, and getpid(2).
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            let code = i32::from(marked.is_this()) + 2 * i32::from(counted.is_this());
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
