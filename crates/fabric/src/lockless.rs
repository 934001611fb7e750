//! Shared state without locks: counts, numbers, and words that others write at any time.
//!
//! This file is compiled twice: here with the processor's atomics, and in tests/loom.rs with loom's, which explores every order that the
//! memory model allows. So it takes the atomics from its parent module. It has no constructors, since loom's atomics have no constant ones.

use super::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A count. A reader gets the exact value if it has synchronised with the threads that change the count, otherwise a current or earlier
/// one.
#[derive(Debug)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Count {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Issues each number once, until the numbers wrap.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) AtomicU32);

impl Numbers {
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Reads words that others may be writing, each atomically, in no guaranteed order.
#[inline(always)]
pub(crate) fn load_words<const COUNT: usize>(places: &[AtomicU64; COUNT]) -> [u64; COUNT] {
    std::array::from_fn(|index| places[index].load(Ordering::Relaxed))
}

/// Writes words, each atomically, in no guaranteed order.
#[inline(always)]
pub(crate) fn store_words<const COUNT: usize>(places: &[AtomicU64; COUNT], words: [u64; COUNT]) {
    for (place, word) in places.iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
}

/// Writes words, each atomically, front to back: what is seen of them is seen with all that was written before it (release). A store of
/// x86-64 is that by itself; one of aarch64 is not.
#[inline(always)]
pub(crate) fn store_in_order<const COUNT: usize>(places: &[AtomicU64; COUNT], words: [u64; COUNT]) {
    for (place, word) in places.iter().zip(words) {
        place.store(word, Ordering::Release);
    }
}

/// Orders what is read from here on behind what the caller has read before (acquire). It may have found by a plain load that memory is
/// ready which is read here: x86-64 makes loads in their order by itself, aarch64 does not.
#[inline(always)]
pub fn after_polls() {
    fence(Ordering::Acquire);
}
