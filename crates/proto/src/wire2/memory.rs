//! How the channel reaches the memory that a peer writes into, and the memory that its own writes leave from.

/// An inbox: aligned words that a peer may write at any time, in any order, without an agreement.
pub trait InboxMemory {
    /// Loads a word. What was written before it by the same write may not be there yet; later loads are not moved before it.
    fn load(&self, word: usize) -> u64;

    /// Overwrites a word that was consumed.
    fn store(&mut self, word: usize, value: u64);
}

/// A shadow: the bytes that packets are written from. No peer can reach it.
pub trait ShadowMemory {
    fn load(&self, word: usize) -> u64;

    fn store(&mut self, word: usize, value: u64);
}

/// The payload of an INLINE, in the inbox or in the shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Its first word.
    pub word: usize,
    pub bytes: usize,
}
