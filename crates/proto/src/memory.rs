//! How the channel reaches the memory that a peer writes into, and the memory that its own writes leave from.

use super::ids::{Epoch, Nonce};

/// An inbox: aligned words that a peer may write at any time, in any order, without an agreement.
pub trait InboxMemory {
    /// Loads a word. What was written before it by the same write may not be there yet; later loads are not moved before it.
    fn load(&self, word: usize) -> u64;

    /// Overwrites a word that was consumed.
    fn store(&mut self, word: usize, value: u64);

    /// Eight words from this one on, in order.
    fn load_eight(&self, word: usize) -> [u64; 8] {
        std::array::from_fn(|index| self.load(word + index))
    }

    /// Overwrites words that were consumed.
    fn fill(&mut self, words: std::ops::Range<usize>, value: u64) {
        words.for_each(|word| self.store(word, value));
    }
}

/// A shadow: the bytes that packets are written from. No peer can reach it.
pub trait ShadowMemory {
    fn load(&self, word: usize) -> u64;

    fn store(&mut self, word: usize, value: u64);

    /// Eight words from this one on.
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

/// Names memory that the performer of the actions has lent: an inbox with its cell, or a shadow with its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(pub u32);

/// Finds shadows by name.
pub trait Shadows {
    type Shadow: ShadowMemory;

    fn shadow(&mut self, id: MemoryId) -> &mut Self::Shadow;
}

/// Where the peer reads: an inbox of its own, and behind that, on the next 64 bytes, the cell in which it is told what was
/// consumed of its own packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub epoch: Epoch,
    pub nonce: Nonce,
    /// The control rail that its region is bound to: its place among the pairs of the channel, equal on both ends.
    pub rail: u8,
    pub address: u64,
    pub key: u64,
}
