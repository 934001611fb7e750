//! Access to the user's memory, which may be freed at any time: copies that fail instead of crashing.
//!
//! The kernel copies, by process_vm_readv(2) on this process, and answers EFAULT for memory that was freed too early. No reference to the
//! user's memory is ever made.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set where a sandbox forbids the call: copies are then made directly, and a bad address crashes.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Copies memory at `address` into `into`; false if part of it is not mapped.
pub(crate) fn read(address: u64, into: &mut [u8]) -> bool {
    copy(address, into.as_mut_ptr(), into.len(), Direction::In)
}

/// Copies `from` to memory at `address`; false if part of it is not mapped or not writable.
pub(crate) fn write(address: u64, from: &[u8]) -> bool {
    copy(address, from.as_ptr().cast_mut(), from.len(), Direction::Out)
}

/// Whether every page of these bytes is mapped, be it readable or not.
pub(crate) fn is_mapped(address: u64, len: u64) -> bool {
    let page = page_bytes();
    let mut at = address - address % page;
    let end = address.saturating_add(len);
    let mut seen = vec![0; bits((end - at).div_ceil(page).min(PAGES_AT_ONCE))];
    while at < end {
        let part = (end - at).min(page * PAGES_AT_ONCE);
        let place = std::ptr::with_exposed_provenance_mut(bits(at));
        // SAFETY: the kernel writes a byte for each page, for which there is room, and touches none of the pages.
        if unsafe { libc::mincore(place, bits(part), seen.as_mut_ptr()) } != 0 {
            return false;
        }
        at += part;
    }
    true
}

fn page_bytes() -> u64 {
    // SAFETY: a number that the system knows.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// How many pages are asked about in one call.
const PAGES_AT_ONCE: u64 = 1 << 16;

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

fn copy(address: u64, ours: *mut u8, len: usize, direction: Direction) -> bool {
    let theirs = std::ptr::with_exposed_provenance_mut::<u8>(bits(address));
    let mut done = 0;
    while done < len {
        if FORBIDDEN.load(Ordering::Relaxed) {
            return copy_directly(theirs, ours, len, direction);
        }
        let local = libc::iovec { iov_base: ours.wrapping_add(done).cast(), iov_len: len - done };
        let remote =
            libc::iovec { iov_base: theirs.wrapping_add(done).cast(), iov_len: len - done };
        // SAFETY: getpid has no preconditions.
        let process = unsafe { libc::getpid() };
        let count = match direction {
            // SAFETY: `ours` is valid for the length; the kernel checks the rest.
            Direction::In => unsafe {
                libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0)
            },
            // SAFETY: as above; `ours` is only read.
            Direction::Out => unsafe {
                libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0)
            },
        };
        match usize::try_from(count) {
            Ok(count) if count > 0 => done += count,
            _ => {
                let code = std::io::Error::last_os_error().raw_os_error();
                if !matches!(code, Some(libc::EPERM | libc::ENOSYS)) {
                    return false;
                }
                FORBIDDEN.store(true, Ordering::Relaxed);
            }
        }
    }
    true
}

fn copy_directly(theirs: *mut u8, ours: *mut u8, len: usize, direction: Direction) -> bool {
    let (from, to) = match direction {
        Direction::In => (theirs, ours),
        Direction::Out => (ours, theirs),
    };
    // SAFETY: the user owes valid memory until an operation's completion, and here nothing can check it.
    unsafe { std::ptr::copy(from, to, len) };
    true
}

/// A mapping of a file of our own.
#[derive(Debug)]
pub(crate) struct Mapping {
    first: *mut libc::c_void,
    len: usize,
}

// SAFETY: nothing refers to the bytes; they are copied by the kernel.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of an open file. None if the system refuses.
    pub(crate) fn of(descriptor: std::ffi::c_int, len: usize) -> Option<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room; a descriptor may be anything.
        let first = unsafe {
            libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, descriptor, 0)
        };
        (first != libc::MAP_FAILED).then_some(Self { first, len })
    }

    pub(crate) fn address(&self) -> u64 {
        self.first.expose_provenance() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and not used any more.
        unsafe { libc::munmap(self.first, self.len) };
    }
}

/// A fingerprint that shows whether a buffer was changed: of its first and last bytes only, since buffers may be large.
pub(crate) fn print(address: u64, len: usize) -> Option<u64> {
    let mut bytes = [0; 2 * EDGE];
    let head = len.min(EDGE);
    let tail = (len - head).min(EDGE);
    let seen = read(address, &mut bytes[..head])
        && read(address + (len - tail) as u64, &mut bytes[head..head + tail]);
    seen.then(|| {
        bytes[..head + tail].iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    })
}

const EDGE: usize = 256;

/// An address as `usize`: this crate is for 64-bit machines.
pub(crate) fn bits(address: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    usize::from_ne_bytes(address.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_travel_both_ways() {
        let mut target = [0_u8; 16];
        let address = target.as_mut_ptr().expose_provenance() as u64;
        assert!(write(address + 4, b"hello"));
        let mut seen = [0; 5];
        assert!(read(address + 4, &mut seen));
        assert_eq!(&seen, b"hello");
        assert_eq!(print(address, 16), print(address, 16));
    }

    #[test]
    fn bytes_are_mapped_if_all_of_their_pages_are() {
        let bytes = [0_u8; 16];
        let address = bytes.as_ptr().expose_provenance() as u64;
        assert!(is_mapped(address, 16));
        assert!(!is_mapped(8, 8));
        assert!(!is_mapped(address, u64::MAX - address));
    }

    #[test]
    fn memory_that_is_not_there_is_no_crash() {
        let mut bytes = [0; 8];
        assert!(!read(8, &mut bytes));
        assert!(!write(8, &bytes));
        assert_eq!(print(8, 8), None);
    }
}
