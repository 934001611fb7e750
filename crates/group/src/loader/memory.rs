//! Host memory that a plugin may read and write.

use std::alloc::{self, Layout};
use std::any::Any;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Devices, DriverError, Pinned};
use net_loader::page_bytes;

use super::claims::{Claims, Use};
use super::element::Element;
use super::place::Place;
use crate::error::{GroupError, MemoryError};

/// Owns zeroed, page-aligned memory, or a vector's. Bytes in flight cannot be borrowed.
#[derive(Debug)]
pub struct Buffer {
    memory: Arc<Memory>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.abandoned.store(true, Ordering::Release);
    }
}

impl Buffer {
    /// `len` may be 0; at least one page is allocated.
    pub fn new(len: usize) -> Result<Self, GroupError> {
        Ok(Self { memory: Arc::new(Memory::new(len)?) })
    }

    /// The elements of a vector, until [`Buffer::into_vec`].
    pub(crate) fn of<T: Element>(vector: Vec<T>) -> Self {
        Self { memory: Arc::new(Memory::of(vector)) }
    }

    /// The vector that the buffer was made of; the buffer itself while it is registered, for good where a deregistration has failed.
    pub(crate) fn into_vec<T: Element>(mut self) -> Result<Vec<T>, Self> {
        let vector = Arc::get_mut(&mut self.memory).and_then(Memory::take_vec);
        vector.ok_or(self)
    }

    /// A copy of the elements.
    pub(crate) fn to_vec<T: Element>(&self) -> Vec<T> {
        self.memory.place().elements::<T>().to_vec()
    }

    pub fn len(&self) -> usize {
        self.memory.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements in `bytes`, unless a request may write there.
    pub fn slice<T: Element>(&self, bytes: Range<usize>) -> Result<&[T], MemoryError> {
        let len = self.memory.check::<T>(&bytes, Use::Read)?;
        // SAFETY: `check` proved the range inside the allocation, and it is aligned to an element.
        let start = unsafe { self.memory.base.add(bytes.start) }.cast::<T>();
        // SAFETY: initialised at allocation, any bits are a `T`, and nothing writes: requests that write are refused by
        // `check` and need `&mut Buffer` to begin, as does `slice_mut`.
        Ok(unsafe { slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// The elements in `bytes`, unless a request may access them.
    pub fn slice_mut<T: Element>(&mut self, bytes: Range<usize>) -> Result<&mut [T], MemoryError> {
        let len = self.memory.check::<T>(&bytes, Use::Write)?;
        // SAFETY: as in `slice`.
        let start = unsafe { self.memory.base.add(bytes.start) }.cast::<T>();
        // SAFETY: as in `slice`; no request touches the range, and one that begins needs this buffer, now borrowed.
        Ok(unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Has the driver of GPUs keep the memory in its place, for copies to and from this device.
    pub(crate) fn pin(&self, devices: &Devices, device: i32) -> Result<PinnedMemory, DriverError> {
        let memory = Arc::clone(&self.memory);
        // SAFETY: the allocation has so many bytes, and the share of it that is kept beside is dropped later.
        let pinned = unsafe { Pinned::new(devices, device, memory.base, memory.len) }?;
        Ok(PinnedMemory { _pinned: pinned, _memory: memory })
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

/// The memory of a [`Buffer`], page-locked until this is dropped.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    _pinned: Pinned, // Unlocked before the memory may go.
    _memory: Arc<Memory>,
}

/// From this length on huge pages are requested: the kernel copies such memory to and from sockets in less time, and a NIC needs fewer
/// entries.
const HUGE_PAGE: usize = 2 << 20;

/// The allocation behind a [`Buffer`], shared with its regions and requests.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
    claims: Claims,
    /// The buffer was dropped: only regions are left, which may be deregistered.
    abandoned: AtomicBool,
}

/// What frees the memory.
#[derive(Debug)]
enum Owner {
    Allocation(Layout),
    Vector(Box<dyn Any + Send + Sync>),
}

// SAFETY: it owns its bytes. They are reached through `Buffer`, by the rules of borrowing and the claims, and by plugins, which may be
// called from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Result<Self, GroupError> {
        let refused = || GroupError::System {
            what: "allocating a buffer",
            error: io::Error::from(io::ErrorKind::OutOfMemory),
        };
        let page = page_bytes();
        let whole = len.max(1).checked_next_multiple_of(page).ok_or_else(refused)?;
        let align = if whole < HUGE_PAGE { page } else { HUGE_PAGE };
        let layout = Layout::from_size_align(whole, align).map_err(|_| refused())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or_else(refused)?;
        if whole >= HUGE_PAGE {
            // Advice: what it returns does not matter.
            // SAFETY: the pages from `base` on are this allocation's.
            unsafe { libc::madvise(base.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: `base` has `whole` bytes, which nothing else refers to.
        unsafe { base.as_ptr().write_bytes(0, whole) };
        Ok(Self::owned(base, len, Owner::Allocation(layout)))
    }

    fn of<T: Element>(mut vector: Vec<T>) -> Self {
        let len = size_of_val(&vector[..]);
        let base = NonNull::from(&mut vector[..]).cast();
        Self::owned(base, len, Owner::Vector(Box::new(vector)))
    }

    fn owned(base: NonNull<u8>, len: usize, owner: Owner) -> Self {
        Self { base, len, owner, claims: Claims::new(), abandoned: AtomicBool::new(false) }
    }

    fn take_vec<T: Element>(&mut self) -> Option<Vec<T>> {
        let Owner::Vector(vector) = &mut self.owner else { return None };
        vector.downcast_mut::<Vec<T>>().map(mem::take)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The whole memory, for operations that keep the rule of [`Place`].
    pub(crate) fn place(&self) -> Place {
        Place::new(self.base, self.len)
    }

    pub(crate) fn is_vector(&self) -> bool {
        matches!(self.owner, Owner::Vector(_))
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Checks that `range` is inside, and claims it for a request that uses it until the claim is released.
    pub(super) fn claim(&self, range: &Range<usize>, what: Use) -> Result<u8, MemoryError> {
        self.inside(range)?;
        self.claims.claim(range, what).ok_or(MemoryError::TooManyRequests)
    }

    pub(super) fn release(&self, claim: u8) {
        self.claims.release(claim);
    }

    fn inside(&self, range: &Range<usize>) -> Result<(), MemoryError> {
        if range.start <= range.end && range.end <= self.len {
            Ok(())
        } else {
            Err(MemoryError::OutOfRange)
        }
    }

    /// The number of elements in `range`, if the caller may do `what` with them.
    fn check<T: Element>(&self, range: &Range<usize>, what: Use) -> Result<usize, MemoryError> {
        self.inside(range)?;
        let size = size_of::<T>();
        let len = range.end - range.start;
        if !range.start.is_multiple_of(size) || !len.is_multiple_of(size) {
            return Err(MemoryError::Misaligned);
        }
        if !self.claims.allow(range, what) {
            return Err(MemoryError::InFlight);
        }
        Ok(len / size)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.claims.is_idle() {
            log::warn!("{} bytes leak: requests that never ended may touch them", self.len);
            let nothing = Owner::Vector(Box::new(()));
            let _leaked = ManuallyDrop::new(mem::replace(&mut self.owner, nothing));
            return;
        }
        if let Owner::Allocation(layout) = self.owner {
            // SAFETY: allocated with this layout in `new`; nothing else points to the memory any more.
            unsafe { alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// `count` zeros; a long vector takes pages only as they are written. None: there is not enough memory.
pub(crate) fn zeros<T: Element>(count: usize) -> Option<Vec<T>> {
    let layout = Layout::array::<T>(count).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?.cast::<T>();
    // SAFETY: it is the allocator's, with the layout of a `Vec` of this capacity, and zero bytes are elements: the trait is for such types only.
    Some(unsafe { Vec::from_raw_parts(start.as_ptr(), count, count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_elements_inside_the_buffer() {
        let mut buffer = Buffer::new(100).unwrap();
        buffer.slice_mut::<f32>(4..12).unwrap().copy_from_slice(&[1.5, 2.5]);
        assert_eq!(buffer.slice::<f32>(0..12).unwrap(), [0.0, 1.5, 2.5]);
        assert_eq!(buffer.slice::<f32>(2..6), Err(MemoryError::Misaligned));
        assert_eq!(buffer.slice::<f32>(0..6), Err(MemoryError::Misaligned));
        assert_eq!(buffer.slice::<u8>(0..101), Err(MemoryError::OutOfRange));
        assert_eq!(buffer.slice::<i64>(96..104), Err(MemoryError::OutOfRange));
    }

    #[test]
    fn bytes_in_flight_cannot_be_borrowed() {
        let mut buffer = Buffer::new(64).unwrap();
        let claim = buffer.memory().claim(&(0..32), Use::Write).unwrap();
        assert_eq!(buffer.slice::<u8>(31..64), Err(MemoryError::InFlight));
        assert!(buffer.slice_mut::<u8>(32..64).is_ok());
        buffer.memory().release(claim);
        assert!(buffer.slice_mut::<u8>(0..64).is_ok());
    }
}
