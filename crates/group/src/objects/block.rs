//! Memory that an object is received into, and that its arrays then refer to.

use crate::error::GroupError;
use crate::loader::{Element, Place};
use crate::memory::zeroed;

/// Bytes that begin at a multiple of [`ALIGN`].
#[derive(Debug, Default)]
pub(super) struct Block {
    words: Vec<u64>,
    /// The number of bytes of `words` before the block's first byte.
    start: usize,
    len: usize,
}

/// The alignment in bytes that Arrow recommends for its buffers; a multiple of every element's alignment.
pub(super) const ALIGN: usize = 64;

const WORD: usize = size_of::<u64>();

impl Block {
    /// `len` zeros.
    pub(super) fn new(len: usize) -> Result<Self, GroupError> {
        // An aligned allocation would have to be zeroed here; the system returns an allocation of words zeroed.
        let words = zeroed::<u64>(len.div_ceil(WORD) + ALIGN / WORD - 1)?;
        let start = Place::reading(&words).address().wrapping_neg() % ALIGN;
        Ok(Self { words, start, len })
    }

    /// A block with a copy of the bytes.
    pub(super) fn copy(bytes: &[u8]) -> Result<Self, GroupError> {
        let mut block = Self::new(bytes.len())?;
        block.place().copy_from(Place::reading(bytes));
        Ok(block)
    }

    /// The whole block, for writing. Its memory does not move with the block.
    pub(super) fn place(&mut self) -> Place {
        Place::writing(&mut self.words).part(self.start, self.len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.elements(0, self.len)
    }

    /// `count` elements from byte `start`, a multiple of their size, clipped to the block.
    pub(super) fn elements<T: Element>(&self, start: usize, count: usize) -> &[T] {
        let whole = Place::reading(&self.words).part(self.start, self.len);
        whole.part(start, count * size_of::<T>()).elements()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_begins_on_its_boundary_and_has_the_bytes_it_was_given() {
        for len in [0, 1, 63, 64, 65, 4096, 100_001] {
            let bytes: Vec<u8> = (0_u8..=250).cycle().take(len).collect();
            let block = Block::copy(&bytes).unwrap();
            assert_eq!(block.bytes(), bytes);
            assert!(block.bytes().as_ptr().addr().is_multiple_of(ALIGN), "{len}");
            assert_eq!(block.elements::<u64>(0, 8).len(), (len / 8).min(8));
        }
    }
}
