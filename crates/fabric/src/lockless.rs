//! What threads share without a lock: counts, numbers, and words that others write at any time.
//!
//! This file is compiled twice: here over the processor's atomics, and in tests/loom.rs over loom's, which tries every
//! order that the memory model allows. So it takes them from its parent module, and has no constructors, since loom's are
//! not constant.

use super::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A count. It is exact once the threads that change it have met; before that it may be of any moment.
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

/// Numbers that are given out once each, until they wrap.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) AtomicU32);

impl Numbers {
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Reads words that a writer may be changing, each whole, in order: what was written before a word that is seen is seen too,
/// if its writer was on this machine.
#[inline(always)]
pub(crate) fn load_words<const COUNT: usize>(places: &[AtomicU64; COUNT]) -> [u64; COUNT] {
    std::array::from_fn(|index| places[index].load(Ordering::Acquire))
}

/// Writes words, each whole, in no order that a reader may rely on.
#[inline(always)]
pub(crate) fn store_words<const COUNT: usize>(places: &[AtomicU64; COUNT], words: [u64; COUNT]) {
    for (place, word) in places.iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
}
