//! Memory that a plugin may touch at any time: it is copied in and out, never borrowed, never freed.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use net_abi::HANDLE_MAX_BYTES;

use super::super::page_bytes;

/// Page-aligned memory for buffers.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory for the rest of the process, and only copied in and out.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed. `None`: there is not that much.
    pub fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), page_bytes()).ok()?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { base, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let place = self.at(at, bytes.len());
        // SAFETY: `at` proved the range inside the allocation, which no slice ever borrows.
        unsafe { ptr::copy(bytes.as_ptr(), place, bytes.len()) };
    }

    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let place = self.at(at, len);
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(place, byte, len) };
    }

    /// A copy of what stands there now.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let place = self.at(at, len);
        // SAFETY: as in `write`; zeroed at allocation, so initialised.
        unsafe { ptr::copy(place, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// The address of a range that lies inside.
    pub(super) fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} lies outside {}", self.len);
        // SAFETY: just checked.
        unsafe { self.base.as_ptr().add(at) }
    }
}

/// The 128 bytes of a handle between guards. Aligned, because plugins read it as a struct.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct HandlePlace {
    before: [u8; GUARD_BYTES],
    handle: [u8; HANDLE_MAX_BYTES],
    after: [u8; GUARD_BYTES],
}

impl HandlePlace {
    pub fn new() -> Self {
        Self::of([0; HANDLE_MAX_BYTES])
    }

    /// A handle that came from elsewhere.
    pub fn of(handle: [u8; HANDLE_MAX_BYTES]) -> Self {
        Self { before: [GUARD; GUARD_BYTES], handle, after: [GUARD; GUARD_BYTES] }
    }

    pub fn bytes(&self) -> [u8; HANDLE_MAX_BYTES] {
        self.handle
    }

    /// How many bytes around the handle were overwritten.
    pub fn overrun(&self) -> usize {
        // The plugin wrote through a pointer to the whole, so this is read afresh.
        self.before.iter().chain(&self.after).filter(|byte| **byte != GUARD).count()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut c_void {
        let whole: *mut Self = self;
        // SAFETY: the handle lies in the whole; a pointer made from that may also reach the guards.
        unsafe { whole.cast::<u8>().add(GUARD_BYTES) }.cast()
    }
}

impl Default for HandlePlace {
    fn default() -> Self {
        Self::new()
    }
}

const GUARD: u8 = 0xee;
const GUARD_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overrun_of_the_handle_is_counted_on_both_sides() {
        let mut place = HandlePlace::new();
        let start = place.as_mut_ptr().cast::<u8>().wrapping_sub(2);
        // SAFETY: two bytes before, the handle and one byte after it, all in `place`.
        unsafe { ptr::write_bytes(start, 1, HANDLE_MAX_BYTES + 3) };
        assert_eq!((place.overrun(), place.bytes()), (3, [1; HANDLE_MAX_BYTES]));
    }

    #[test]
    fn an_arena_gives_back_what_was_put_in() {
        let arena = Arena::new(10).unwrap();
        arena.write(3, &[1, 2, 3]);
        arena.fill(5, 2, 9);
        assert_eq!(arena.read(2, 6), [0, 1, 2, 9, 9, 0]);
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn an_arena_has_an_end() {
        Arena::new(10).unwrap().fill(8, 3, 0);
    }
}
