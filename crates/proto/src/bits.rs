//! Truncating casts that are meant to truncate, words of bytes, and the mixing step of the checks.

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting to the low bits is the point")]
pub(crate) const fn low8(word: u64) -> u8 {
    word as u8
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting to the low bits is the point")]
pub(crate) const fn low16(word: u64) -> u16 {
    word as u16
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting to the low bits is the point")]
pub(crate) const fn low32(word: u64) -> u32 {
    word as u32
}

/// A count that the caller has bounded far below 2^32.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "every caller's count is bounded by a limit")]
pub(crate) const fn count32(count: usize) -> u32 {
    count as u32
}

/// The word of at most 8 bytes, little-endian, with zeros behind them.
#[inline]
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Mixes two words into a seed, by both halves of the 128-bit product: every bit of every input affects the result, and
/// the order of the calls matters. (The step of wyhash, by Wang Yi.)
#[inline]
pub(crate) const fn mix(seed: u64, first: u64, second: u64) -> u64 {
    let product = (first ^ MIX_SECRET) as u128 * (second ^ seed) as u128;
    #[expect(clippy::cast_possible_truncation, reason = "the high half is folded in beside it")]
    let low = product as u64;
    low ^ (product >> 64) as u64
}

/// Folds a mixed word to the 32 bits of a check on the wire.
#[inline]
pub(crate) const fn fold(word: u64) -> u32 {
    low32(word ^ (word >> 32))
}

const MIX_SECRET: u64 = 0xa076_1d64_78bd_642f;
