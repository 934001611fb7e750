//! The memory that this process has from malloc, and the limit of its address space.

use std::ffi::CStr;
use std::ptr;

/// Bytes that malloc has handed out, from all of its arenas: malloc_info(3).
pub(crate) fn handed_out() -> usize {
    let (mut text, mut len) = (ptr::null_mut(), 0);
    // SAFETY: both places live until the stream is closed.
    let stream = unsafe { libc::open_memstream(&raw mut text, &raw mut len) };
    assert!(!stream.is_null(), "there is memory for a page of text");
    // SAFETY: an open stream.
    assert_eq!(unsafe { libc::malloc_info(0, stream) }, 0);
    // SAFETY: as above, and it is used up here.
    assert_eq!(unsafe { libc::fclose(stream) }, 0);
    // SAFETY: the stream left a C string.
    let page = unsafe { CStr::from_ptr(text) }.to_str().expect("malloc writes ASCII").to_owned();
    // SAFETY: it is ours to free, once.
    unsafe { libc::free(text.cast()) };
    // Each arena has its own lines, followed by the sums.
    let (_, sums) = page.rsplit_once("</heap>").expect("there is an arena");
    let sum = |begin: &str| {
        let line = sums.lines().find(|line| line.starts_with(begin)).expect("malloc has this sum");
        let size = line.split("size=\"").nth(1).and_then(|rest| rest.split('"').next());
        size.and_then(|size| size.parse::<usize>().ok()).expect("a sum has a size")
    };
    let free = sum("<total type=\"fast\"") + sum("<total type=\"rest\"");
    sum("<system type=\"current\"") - free + sum("<total type=\"mmap\"")
}

/// The address space of this process may grow by so many bytes and no more; None: without a limit.
pub(crate) fn limit_address_space(room: Option<u64>) {
    let status = proc_status::Status::of_this_process().expect("proc is mounted");
    let used = status.kib("VmSize").expect("a size") << 10;
    let most = room.map_or(libc::RLIM_INFINITY, |room| used + room);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it reads the limit, and changes no memory.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}
