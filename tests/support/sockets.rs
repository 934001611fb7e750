//! The sockets of this process, opened by the provider: makes their buffers small, and inspects them.

use std::ffi::c_int;
use std::fs;

use libc::{
    AF_UNSPEC, FIONREAD, POLLOUT, SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, TIOCOUTQ, pollfd, sa_family_t,
    sockaddr, socklen_t,
};

/// Gives every socket the system's smallest send buffer.
pub(crate) fn squeeze() {
    files().into_iter().for_each(|file| limit(file, SO_SNDBUF, 1));
}

/// Gives every socket a receive buffer that does not grow.
pub(crate) fn keep_small() {
    files().into_iter().for_each(|file| limit(file, SO_RCVBUF, 64 << 10));
}

fn limit(file: c_int, option: c_int, bytes: c_int) {
    let len = socklen_t::try_from(size_of::<c_int>()).expect("small");
    let value = (&raw const bytes).cast();
    // SAFETY: the value is an int of ours. A file that is no socket refuses the call, which does no harm.
    unsafe { libc::setsockopt(file, SOL_SOCKET, option, value, len) };
}

/// The number of sockets that accept no more data, because their peers read nothing.
pub(crate) fn full() -> usize {
    files().into_iter().filter(|file| !is_writable(*file) && holds_bytes(*file)).count()
}

/// Resets one connection in which so many bytes wait to be read, as connect(2) with AF_UNSPEC does: its peer gets a reset. False: there
/// is none.
pub(crate) fn reset_one_that_holds(unread: c_int) -> bool {
    let holds = |file: &c_int| {
        let mut bytes: c_int = 0;
        // SAFETY: the call writes an int of ours, or refuses.
        let code = unsafe { libc::ioctl(*file, FIONREAD, &raw mut bytes) };
        code == 0 && bytes >= unread
    };
    let nowhere =
        sockaddr { sa_family: sa_family_t::try_from(AF_UNSPEC).expect("small"), sa_data: [0; 14] };
    let len = socklen_t::try_from(size_of::<sockaddr>()).expect("small");
    let resets = |file: c_int| {
        // SAFETY: an address of ours. A file that is no socket refuses the call.
        unsafe { libc::connect(file, &raw const nowhere, len) == 0 }
    };
    files().into_iter().filter(holds).any(resets)
}

fn is_writable(file: c_int) -> bool {
    let mut look = pollfd { fd: file, events: POLLOUT, revents: 0 };
    // SAFETY: one entry of ours, and no wait.
    unsafe { libc::poll(&raw mut look, 1, 0) };
    look.revents & POLLOUT != 0
}

fn holds_bytes(file: c_int) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: the call writes an int of ours, or refuses.
    let code = unsafe { libc::ioctl(file, TIOCOUTQ, &raw mut bytes) };
    code == 0 && bytes > 0
}

fn files() -> Vec<c_int> {
    let names = fs::read_dir("/proc/self/fd").expect("proc is mounted").flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
