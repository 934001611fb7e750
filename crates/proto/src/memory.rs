//! Access to inboxes, which a peer writes into, and shadows, which our packets are written from.

use super::ids::{Epoch, Nonce};

/// An inbox: aligned words that a peer may write at any time and in any order, without synchronisation.
pub trait InboxMemory {
    /// Loads a word with acquire ordering: later loads are not moved before it. Words before it in the same RDMA write
    /// may not have landed yet.
    fn load(&self, word: usize) -> u64;

    /// Overwrites a word that was consumed.
    fn store(&mut self, word: usize, value: u64);

    /// Loads eight words, in any order. The check of a packet needs none: what it has seen is not older when it is loaded again.
    fn load_eight(&self, word: usize) -> [u64; 8] {
        std::array::from_fn(|index| self.load(word + index))
    }

    /// Overwrites words that were consumed.
    fn fill(&mut self, words: std::ops::Range<usize>, value: u64) {
        words.for_each(|word| self.store(word, value));
    }
}

/// A shadow: the memory that packets are written from. No peer can access it.
pub trait ShadowMemory {
    fn load(&self, word: usize) -> u64;

    fn store(&mut self, word: usize, value: u64);

    /// Fetches the cache line of a word that is stored soon. A hint, without any other effect.
    fn prefetch(&self, _word: usize) {}

    /// Loads eight words.
    fn load_eight(&self, word: usize) -> [u64; 8] {
        std::array::from_fn(|index| self.load(word + index))
    }
}

/// The payload of an INLINE, in the inbox or in the shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Its first word.
    pub word: usize,
    pub bytes: usize,
}

/// Identifies memory that [`Perform`](super::progress::Perform) has lent: an inbox with its cell, or a shadow with its
/// cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(pub u32);

/// Access to shadows by id.
pub trait Shadows {
    type Shadow: ShadowMemory;

    fn shadow(&mut self, id: MemoryId) -> &mut Self::Shadow;
}

/// An inbox of the peer to write packets into, and behind it, on the next 64 bytes, the cell to write acknowledgements
/// of its packets into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub epoch: Epoch,
    pub nonce: Nonce,
    /// The control rail that the inbox's region is registered on, as an index among the channel's pairs of rails, which are the
    /// same on both ends.
    pub rail: u8,
    pub address: u64,
    pub key: u64,
}

/// Memory of a test: both an inbox and a shadow.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Words(pub(crate) Vec<u64>);

#[cfg(test)]
impl InboxMemory for Words {
    fn load(&self, word: usize) -> u64 {
        self.0[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word] = value;
    }
}

#[cfg(test)]
impl ShadowMemory for Words {
    fn load(&self, word: usize) -> u64 {
        self.0[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word] = value;
    }
}
