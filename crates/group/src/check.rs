//! Test data that says where it comes from, poison, and counting what is wrong.
//!
//! A value depends on rank, index and iteration, and is small, so that sums of thousands of them are exact in every
//! type. Poison is a value that test data never has.

use crate::error::MemoryError;
use crate::loader::{Buffer, DataType, Element};

/// The value of one element, below 128.
#[inline]
pub fn value(rank: usize, index: usize, iteration: usize) -> u32 {
    let seed = (rank as u64 + 1).wrapping_mul(RANK_ODD)
        ^ (iteration as u64 + 1).wrapping_mul(ITERATION_ODD);
    mixed(seed, index)
}

#[inline]
fn mixed(seed: u64, index: usize) -> u32 {
    let mixed = (index as u64 ^ seed).wrapping_mul(INDEX_ODD);
    // The top bits depend on every bit below them.
    u32::try_from(mixed >> 57).expect("seven bits")
}

const RANK_ODD: u64 = 0xD6E8_FEB8_6659_FD93;
const ITERATION_ODD: u64 = 0xA076_1D64_78BD_642F;
const INDEX_ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fills `count` elements, from byte `start` on, with `rank`'s data.
pub fn fill(
    buffer: &mut Buffer,
    kind: DataType,
    start: usize,
    count: usize,
    rank: usize,
    iteration: usize,
) -> Result<(), MemoryError> {
    fn typed<T: Element>(out: &mut [T], rank: usize, iteration: usize) {
        for (index, place) in out.iter_mut().enumerate() {
            *place = T::from_small(value(rank, index, iteration));
        }
    }
    let bytes = start..start + count * kind.bytes();
    match kind {
        DataType::U8 => typed(buffer.slice_mut::<u8>(bytes)?, rank, iteration),
        DataType::I32 => typed(buffer.slice_mut::<i32>(bytes)?, rank, iteration),
        DataType::I64 => typed(buffer.slice_mut::<i64>(bytes)?, rank, iteration),
        DataType::F32 => typed(buffer.slice_mut::<f32>(bytes)?, rank, iteration),
        DataType::F64 => typed(buffer.slice_mut::<f64>(bytes)?, rank, iteration),
    }
    Ok(())
}

/// All-ones: -1 or not a number.
pub const POISON: u8 = 0xFF;

/// Overwrites a whole buffer.
pub fn poison(buffer: &mut Buffer) -> Result<(), MemoryError> {
    let whole = 0..buffer.len();
    buffer.slice_mut::<u8>(whole)?.fill(POISON);
    Ok(())
}

/// Where each element of an output ought to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The sum over `ranks` ranks, from element `first` of their inputs on.
    Sum { ranks: usize, first: usize },
    /// The inputs of `ranks` ranks, `each` elements of each, one after the other.
    Inputs { ranks: usize, each: usize },
    /// The input of one rank.
    Input { rank: usize },
}

impl Expected {
    fn at<T: Element>(self, index: usize, iteration: usize) -> T {
        match self {
            Self::Sum { ranks, first } => (0..ranks)
                .map(|rank| T::from_small(value(rank, first + index, iteration)))
                .reduce(T::add)
                .unwrap_or_else(|| T::from_small(0)),
            Self::Inputs { each, .. } => {
                T::from_small(value(index / each.max(1), index % each.max(1), iteration))
            }
            Self::Input { rank } => T::from_small(value(rank, index, iteration)),
        }
    }
}

/// How many of `count` elements, from byte `start` on, are not what they ought to be.
pub fn count_wrong(
    buffer: &Buffer,
    kind: DataType,
    start: usize,
    count: usize,
    expected: Expected,
    iteration: usize,
) -> Result<u64, MemoryError> {
    fn typed<T: Element>(found: &[T], expected: Expected, iteration: usize) -> u64 {
        let wrong = |&(index, value): &(usize, &T)| *value != expected.at(index, iteration);
        found.iter().enumerate().filter(wrong).count() as u64
    }
    let bytes = start..start + count * kind.bytes();
    Ok(match kind {
        DataType::U8 => typed(buffer.slice::<u8>(bytes)?, expected, iteration),
        DataType::I32 => typed(buffer.slice::<i32>(bytes)?, expected, iteration),
        DataType::I64 => typed(buffer.slice::<i64>(bytes)?, expected, iteration),
        DataType::F32 => typed(buffer.slice::<f32>(bytes)?, expected, iteration),
        DataType::F64 => typed(buffer.slice::<f64>(bytes)?, expected, iteration),
    })
}

/// How many bytes of `range` are no longer poison.
pub fn count_unpoisoned(
    buffer: &Buffer,
    range: std::ops::Range<usize>,
) -> Result<u64, MemoryError> {
    Ok(buffer.slice::<u8>(range)?.iter().filter(|byte| **byte != POISON).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_differs_by_rank_index_and_iteration() {
        let same = |a: &dyn Fn(usize) -> u32, b: &dyn Fn(usize) -> u32| {
            (0..4096).filter(|i| a(*i) == b(*i)).count()
        };
        let base = |index| value(2, index, 3);
        for other in [
            &(|i| value(1, i, 3)) as &dyn Fn(usize) -> u32,
            &|i| value(2, i, 4),
            &|i| value(2, i + 1, 3),
            &|i| value(2, i + 64, 3),
        ] {
            assert!(same(&base, other) < 128, "one in 128 may agree by chance, and a few more");
        }
    }

    #[test]
    fn what_is_wrong_is_counted_element_by_element() {
        for kind in DataType::ALL {
            let mut buffer = Buffer::new(4096).unwrap();
            poison(&mut buffer).unwrap();
            let whole = Expected::Input { rank: 5 };
            assert_eq!(count_wrong(&buffer, kind, 0, 100, whole, 9).unwrap(), 100);
            fill(&mut buffer, kind, 0, 100, 5, 9).unwrap();
            assert_eq!(count_wrong(&buffer, kind, 0, 100, whole, 9).unwrap(), 0);
            assert_eq!(count_unpoisoned(&buffer, 100 * kind.bytes()..4096).unwrap(), 0);
            buffer.slice_mut::<u8>(0..4096).unwrap()[17 * kind.bytes()] ^= 1;
            assert_eq!(count_wrong(&buffer, kind, 0, 100, whole, 9).unwrap(), 1);
        }
    }

    #[test]
    fn sums_of_many_ranks_are_exact() {
        let sum = Expected::Sum { ranks: 1000, first: 3 };
        let wide: i64 = sum.at(7, 1);
        assert_eq!(f64::from(sum.at::<f32>(7, 1)), wide as f64);
    }
}
