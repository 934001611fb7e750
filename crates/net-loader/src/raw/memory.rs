//! Memory that a plugin may access at any time: it is copied in and out, never borrowed. Host memory is never freed, device memory on
//! request.

use std::alloc::{self, Layout};
use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpu::{DeviceMemory, Devices, DriverError};
use net_abi::{HANDLE_MAX_BYTES, PTR_CUDA, PTR_HOST};

use crate::page_bytes;

/// Page-aligned memory for buffers, of the host or of a device.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    /// Device memory, which the CPU cannot access, until it is freed.
    device: Option<&'static Mutex<Option<DeviceMemory>>>,
}

// SAFETY: it is memory for the rest of the process, and only copied in and out; a device's is reached by its driver alone.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed. `None`: there is not enough memory.
    pub fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), page_bytes()).ok()?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { base, len, device: None })
    }

    /// On a device, with undefined content.
    pub fn on_device(devices: &Devices, device: i32, len: usize) -> Result<Self, DriverError> {
        let memory = devices.allocate(device, len)?;
        let base = usize::try_from(memory.address()).unwrap_or(0);
        let base = NonNull::new(ptr::with_exposed_provenance_mut(base));
        let base = base.ok_or(DriverError { call: "cuMemAlloc", code: 0 })?;
        Ok(Self { base, len, device: Some(Box::leak(Box::new(Mutex::new(Some(memory))))) })
    }

    /// Frees device memory. Later copies from and to it fail, and its registrations are not informed.
    pub fn free(self) {
        if let Some(device) = self.device {
            drop(device.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Whether it is device memory.
    pub fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Its address as a number; a freed arena and a new one may share it.
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Its dmabuf, from its first byte.
    pub fn dmabuf(&self) -> Result<OwnedFd, DriverError> {
        let none = DriverError { call: "cuMemGetHandleForAddressRange", code: INVALID_VALUE };
        self.by_driver(DeviceMemory::dmabuf).unwrap_or(Err(none))
    }

    /// NCCL's value for the kind of memory.
    pub(super) fn kind(&self) -> c_int {
        if self.device.is_some() { PTR_CUDA } else { PTR_HOST }
    }

    /// `None`: it is host memory.
    fn by_driver<T>(&self, call: impl FnOnce(&DeviceMemory) -> T) -> Option<T> {
        let memory = self.device?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(call(memory.as_ref().expect("memory that was freed is not used")))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let place = self.at(at, bytes.len());
        if let Some(outcome) = self.by_driver(|memory| memory.write(at, bytes)) {
            return outcome.expect("a copy to a device");
        }
        // SAFETY: `at` proved the range inside the allocation, which no slice ever borrows.
        unsafe { ptr::copy(bytes.as_ptr(), place, bytes.len()) };
    }

    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let place = self.at(at, len);
        if self.device.is_some() {
            return self.write(at, &vec![byte; len]);
        }
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(place, byte, len) };
    }

    /// A copy of the current content.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let place = self.at(at, len);
        if let Some(outcome) = self.by_driver(|memory| memory.read(at, len)) {
            return outcome.expect("a copy from a device");
        }
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`; zeroed at allocation, so initialised.
        unsafe { ptr::copy(place, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// The aligned word of host memory at this offset, read as a kernel polls it.
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(8) && self.device.is_none(),
            "no word that can be polled at {at}"
        );
        let place: *mut u64 = self.at(at, 8).cast();
        // SAFETY: `at` proved the range inside the allocation, which begins on a page; no slice ever borrows it.
        unsafe { AtomicU64::from_ptr(place) }.load(Ordering::Acquire)
    }

    /// The address of a range inside of it.
    pub(super) fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} lies outside {}", self.len);
        self.base.as_ptr().wrapping_add(at)
    }
}

/// The 128 bytes of a handle between guards. They stay at one address when it is moved: what a plugin writes there later is seen.
#[derive(Clone, Debug)]
pub struct HandlePlace(Box<Guarded>);

/// Aligned, because plugins access the handle as a struct.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Guarded {
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
        let guard = [GUARD; GUARD_BYTES];
        Self(Box::new(Guarded { before: guard, handle, after: guard }))
    }

    pub fn bytes(&self) -> [u8; HANDLE_MAX_BYTES] {
        self.0.handle
    }

    /// Overwrites the handle where it is.
    pub fn fill(&mut self, byte: u8) {
        self.0.handle.fill(byte);
    }

    /// The number of overwritten guard bytes.
    pub fn overrun(&self) -> usize {
        // The plugin wrote through a pointer, so the guards are read again.
        self.0.before.iter().chain(&self.0.after).filter(|byte| **byte != GUARD).count()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut c_void {
        let whole: *mut Guarded = &raw mut *self.0;
        // SAFETY: the handle is within the whole; a pointer made from that may also reach the guards.
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
/// CUDA_ERROR_INVALID_VALUE (cuda.h).
const INVALID_VALUE: i32 = 1;

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
    fn a_handle_keeps_its_address_when_it_is_moved() {
        let mut place = HandlePlace::new();
        let start = place.as_mut_ptr();
        let mut moved = Some(place);
        assert_eq!(moved.as_mut().unwrap().as_mut_ptr(), start);
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
