//! Memory to register: our own pages, or a user's memory, which the creator of a [`UserMemory`] promises to keep valid.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::lockless::{load_words, store_in_order, store_words};
use crate::pages::Pages;

/// A reference to memory that rails may use. The memory stays valid while any reference exists, and a region holds one.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Ours.
    Pages(Arc<Pages>),
    /// A user's.
    User(Arc<UserMemory>),
}

/// A user's memory: an address and a length, under the contract of [`UserMemory::host`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct UserMemory {
    address: u64,
    len: usize,
    kind: MemoryKind,
    buffer: u64,
    dmabuf: Option<Dmabuf>,
}

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// A CUDA device's.
    Cuda {
        /// The device's ordinal.
        device: i32,
    },
}

/// Device memory as a file descriptor: fi_mr(3), FI_MR_DMABUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dmabuf {
    /// The dmabuf; it must stay open while the region is being registered.
    pub fd: RawFd,
    /// The offset of the memory in it, in bytes.
    pub offset: u64,
}

impl UserMemory {
    /// `len` bytes of host memory at `address`.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped, readable and writable, until the value is dropped, and until operations that peers began before its regions
    /// closed have ended (fi_mr(3)). Peers, the provider and the value's users may read and write them meanwhile, and the owner expects
    /// that.
    pub const unsafe fn host(address: u64, len: usize) -> Self {
        Self { address, len, kind: MemoryKind::Host, buffer: 0, dmabuf: None }
    }

    /// `len` bytes of a CUDA device's memory at `address`, by its dmabuf if there is one.
    ///
    /// # Safety
    ///
    /// As for [`UserMemory::host`]; `device` owns the memory, and `dmabuf` covers it.
    pub const unsafe fn cuda(
        address: u64,
        len: usize,
        device: i32,
        dmabuf: Option<Dmabuf>,
    ) -> Self {
        Self { address, len, kind: MemoryKind::Cuda { device }, buffer: 0, dmabuf }
    }

    /// Sets the id of the memory's buffer (CU_POINTER_ATTRIBUTE_BUFFER_ID), which is unique in the process: memory that is freed and
    /// allocated again at the same address has another id. 0: not known.
    pub const fn in_buffer(mut self, buffer: u64) -> Self {
        self.buffer = buffer;
        self
    }

    /// The first byte's address.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind of memory.
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The number of its buffer, on a device; 0 where that is not known.
    pub const fn buffer(&self) -> u64 {
        self.buffer
    }

    /// Its dmabuf, if it has one.
    pub const fn dmabuf(&self) -> Option<Dmabuf> {
        self.dmabuf
    }
}

impl From<Pages> for Memory {
    fn from(pages: Pages) -> Self {
        Self::Pages(Arc::new(pages))
    }
}

impl From<Arc<Pages>> for Memory {
    fn from(pages: Arc<Pages>) -> Self {
        Self::Pages(pages)
    }
}

impl From<UserMemory> for Memory {
    fn from(memory: UserMemory) -> Self {
        Self::User(Arc::new(memory))
    }
}

impl Memory {
    /// The first byte's address.
    pub fn address(&self) -> u64 {
        match self {
            Self::Pages(pages) => pages.address(),
            Self::User(memory) => memory.address(),
        }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::User(memory) => memory.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Pages(_) => MemoryKind::Host,
            Self::User(memory) => memory.kind(),
        }
    }

    /// The number of its buffer, on a device; 0 where that is not known.
    pub fn buffer(&self) -> u64 {
        match self {
            Self::Pages(_) => 0,
            Self::User(memory) => memory.buffer(),
        }
    }

    /// Its dmabuf, if it has one.
    pub fn dmabuf(&self) -> Option<Dmabuf> {
        match self {
            Self::Pages(_) => None,
            Self::User(memory) => memory.dmabuf(),
        }
    }
}

/// An address as a usize: this crate requires 64-bit addresses.
#[inline]
pub(crate) fn address_bits(address: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    usize::from_ne_bytes(address.to_ne_bytes())
}

/// `COUNT` words of memory.
///
/// # Safety
///
/// They are mapped and aligned as long as the answer is used, and code of this program uses them only atomically meanwhile.
#[inline(always)]
unsafe fn words_at<'a, const COUNT: usize>(place: *mut u64) -> &'a [AtomicU64; COUNT] {
    // SAFETY: the caller vouches for it.
    unsafe { &*place.cast::<[AtomicU64; COUNT]>() }
}

/// Copies from memory that others may write meanwhile, in no guaranteed order, by whole words where it is aligned.
///
/// # Safety
///
/// `bytes.len()` bytes are mapped and readable, and code of this program writes them only atomically meanwhile.
pub(crate) unsafe fn copy_out(from: *mut u8, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = from.wrapping_add(done);
        match bytes[done..].first_chunk_mut::<WORD>() {
            Some(word) if at.addr().is_multiple_of(WORD) => {
                // SAFETY: the caller vouches for these bytes; they are aligned.
                let [value] = load_words(unsafe { words_at(at.cast()) });
                *word = value.to_ne_bytes();
                done += WORD;
            }
            _ => {
                // SAFETY: the caller vouches for it.
                bytes[done] = unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed);
                done += 1;
            }
        }
    }
}

/// Copies to memory that others may read and write meanwhile, by whole words where it is aligned, front to back: what is seen of a word is
/// seen with all bytes before it.
///
/// # Safety
///
/// `bytes.len()` bytes are mapped and writable, and code of this program reads and writes them only atomically meanwhile.
pub(crate) unsafe fn copy_in(to: *mut u8, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = to.wrapping_add(done);
        match bytes[done..].first_chunk::<WORD>() {
            Some(word) if at.addr().is_multiple_of(WORD) => {
                // SAFETY: the caller vouches for these bytes; they are aligned.
                let place = unsafe { words_at(at.cast()) };
                store_in_order(place, [u64::from_ne_bytes(*word)]);
                done += WORD;
            }
            _ => {
                // SAFETY: the caller vouches for it.
                unsafe { AtomicU8::from_ptr(at) }.store(bytes[done], Ordering::Relaxed);
                done += 1;
            }
        }
    }
}

/// Copies whole words, front to back if `IN_ORDER`.
///
/// # Safety
///
/// As [`words_at`], for `COUNT` words from `from` and from `to` on.
#[inline(always)]
unsafe fn copy_words<const COUNT: usize, const IN_ORDER: bool>(from: *mut u64, to: *mut u64) {
    // SAFETY: the caller vouches for it.
    let from = unsafe { words_at::<COUNT>(from) };
    // SAFETY: as above.
    let to = unsafe { words_at::<COUNT>(to) };
    let words = load_words(from);
    if IN_ORDER {
        store_in_order(to, words);
    } else {
        store_words(to, words);
    }
}

/// Copies between memory that others may read and write meanwhile, by whole words where both are aligned; front to back, as [`copy_in`], if
/// `IN_ORDER`.
///
/// # Safety
///
/// As [`copy_out`] at `from` and [`copy_in`] at `to`, for `len` bytes.
pub(crate) unsafe fn copy_across<const IN_ORDER: bool>(from: *mut u8, to: *mut u8, len: usize) {
    let aligned = from.addr().is_multiple_of(WORD) && to.addr().is_multiple_of(WORD);
    let words = if aligned { len / WORD } else { 0 };
    let (source, target) = (from.cast::<u64>(), to.cast::<u64>());
    // Eight words at a time take two thirds of the time of single words.
    let eights = words / 8 * 8;
    for index in (0..eights).step_by(8) {
        let (source, target) = (source.wrapping_add(index), target.wrapping_add(index));
        // SAFETY: the caller vouches for these bytes; they are aligned.
        unsafe { copy_words::<8, IN_ORDER>(source, target) };
    }
    for index in eights..words {
        let (source, target) = (source.wrapping_add(index), target.wrapping_add(index));
        // SAFETY: as above.
        unsafe { copy_words::<1, IN_ORDER>(source, target) };
    }
    let mut done = words * WORD;
    while done < len {
        let mut bytes = [0; 4 * WORD];
        let count = bytes.len().min(len - done);
        // SAFETY: the caller vouches for these bytes.
        unsafe { copy_out(from.wrapping_add(done), &mut bytes[..count]) };
        // SAFETY: as above.
        unsafe { copy_in(to.wrapping_add(done), &bytes[..count]) };
        done += count;
    }
}

/// The bytes of a word.
const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_all_bytes_and_no_others_at_any_length_and_alignment() {
        const ROOM: usize = 200;
        let source: Vec<u8> = (0..ROOM).map(|at| (at * 7 + 1).to_le_bytes()[0]).collect();
        for (from, to) in [(0, 0), (8, 0), (0, 16), (1, 0), (0, 3), (5, 5)] {
            for len in 0..ROOM - 32 {
                // Words, so that the offsets are from an aligned place.
                let mut held = vec![0_u64; ROOM / WORD];
                let mut place = vec![u64::MAX; ROOM / WORD];
                let (held, place): (*mut u8, *mut u8) =
                    (held.as_mut_ptr().cast(), place.as_mut_ptr().cast());
                // SAFETY: both have room for them.
                unsafe { copy_in(held, &source) };
                // SAFETY: as above.
                unsafe {
                    copy_across::<true>(held.wrapping_add(from), place.wrapping_add(to), len)
                };
                let mut copied = vec![0; ROOM];
                // SAFETY: as above.
                unsafe { copy_out(place, &mut copied) };
                let expected = |at: usize| match at.checked_sub(to) {
                    Some(index) if index < len => source[from + index],
                    _ => 0xff,
                };
                let expected: Vec<u8> = (0..ROOM).map(expected).collect();
                assert_eq!(copied, expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}
