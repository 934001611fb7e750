//! Test data that identifies its origin, poison, and counts of wrong elements.
//!
//! A value depends on rank, index and iteration. It is small, so that reductions are exact in every type and in any order of ranks: of
//! [`TERMS`] ranks where the type or the operation allows no more, the others contributing what changes nothing. Poison is a value that test
//! data never has.

use crate::error::MemoryError;
use crate::loader::{Buffer, DataType, Element, Op};
use crate::with_element;

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

/// What `rank` contributes to a reduction over [`TERMS`] ranks or fewer.
pub fn sample<T: Element>(op: Op, rank: usize, index: usize, iteration: usize) -> T {
    term(op, TERMS, rank, index, iteration)
}

/// What `rank` contributes to a reduction over `ranks` ranks.
pub fn term<T: Element>(op: Op, ranks: usize, rank: usize, index: usize, iteration: usize) -> T {
    let is_bounded = match op {
        Op::Sum | Op::Avg => matches!(T::TYPE, DataType::F16 | DataType::BF16),
        Op::Prod => true,
        Op::Min | Op::Max => false,
    };
    // At each index other ranks contribute.
    if is_bounded && ranks > TERMS && !(rank + index).is_multiple_of(ranks.div_ceil(TERMS)) {
        return T::from_small(u32::from(op == Op::Prod));
    }
    let value = value(rank, index, iteration);
    T::from_small(match op {
        Op::Prod => 1 + value % 2,
        // bf16 has eight significant bits.
        _ if T::TYPE == DataType::BF16 => value % 16,
        _ => value,
    })
}

/// The number of values whose sums are exact in f16 and bf16, and whose products are exact complex numbers.
pub const TERMS: usize = 16;

/// Fills `count` elements from byte `start` with `rank`'s data, which it sends or contributes to a sum over [`TERMS`] ranks or fewer.
pub fn fill(
    buffer: &mut Buffer,
    kind: DataType,
    start: usize,
    count: usize,
    rank: usize,
    iteration: usize,
) -> Result<(), MemoryError> {
    fill_for(buffer, (kind, Op::Sum, TERMS), start, count, rank, iteration)
}

/// Fills as [`fill`], for any operation over `ranks` ranks.
pub fn fill_for(
    buffer: &mut Buffer,
    (kind, op, ranks): (DataType, Op, usize),
    start: usize,
    count: usize,
    rank: usize,
    iteration: usize,
) -> Result<(), MemoryError> {
    let bytes = start..start + count * kind.bytes();
    with_element!(kind, T => {
        for (index, place) in buffer.slice_mut::<T>(bytes)?.iter_mut().enumerate() {
            *place = term::<T>(op, ranks, rank, index, iteration);
        }
    });
    Ok(())
}

/// All bits set: -1, or not a number.
pub const POISON: u8 = 0xFF;

/// Overwrites a whole buffer.
pub fn poison(buffer: &mut Buffer) -> Result<(), MemoryError> {
    let whole = 0..buffer.len();
    buffer.slice_mut::<u8>(whole)?.fill(POISON);
    Ok(())
}

/// Where each element of an output should come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The reduction over `ranks` ranks, from element `first` of their inputs.
    Reduced { op: Op, ranks: usize, first: usize },
    /// The inputs of `ranks` ranks, `each` elements of each, one after the other.
    Inputs { ranks: usize, each: usize },
    /// The input of one rank.
    Input { rank: usize },
    /// The input of one rank, from element `first` on.
    Part { rank: usize, first: usize },
    /// Elements `to * each` to `(to + 1) * each` of every rank's input, one after the other.
    Dealt { to: usize, each: usize },
}

impl Expected {
    fn at<T: Element>(self, index: usize, iteration: usize) -> T {
        let input = |rank, index| sample::<T>(Op::Sum, rank, index, iteration);
        match self {
            Self::Reduced { op, ranks, first } => {
                let of = |rank| term::<T>(op, ranks, rank, first + index, iteration);
                let mut whole = [of(0)];
                (1..ranks).for_each(|rank| T::reduce(op, &mut whole, &[of(rank)]));
                if op == Op::Avg {
                    T::divide(&mut whole, u32::try_from(ranks).unwrap_or(u32::MAX));
                }
                whole[0]
            }
            Self::Inputs { each, .. } => input(index / each.max(1), index % each.max(1)),
            Self::Input { rank } => input(rank, index),
            Self::Part { rank, first } => input(rank, first + index),
            Self::Dealt { to, each } => {
                let each = each.max(1);
                input(index / each, to * each + index % each)
            }
        }
    }
}

/// Counts wrong elements among `count` elements from byte `start`.
pub fn count_wrong(
    buffer: &Buffer,
    kind: DataType,
    start: usize,
    count: usize,
    expected: Expected,
    iteration: usize,
) -> Result<u64, MemoryError> {
    let bytes = start..start + count * kind.bytes();
    Ok(with_element!(kind, T => {
        let found = buffer.slice::<T>(bytes)?.iter().enumerate();
        found.filter(|&(index, value)| *value != expected.at::<T>(index, iteration)).count() as u64
    }))
}

/// Counts the bytes of `range` that are no longer poison.
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
    fn wrong_elements_are_counted_one_by_one() {
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
        let sum = Expected::Reduced { op: Op::Sum, ranks: 1000, first: 3 };
        let wide: i64 = sum.at(7, 1);
        assert_eq!(f64::from(sum.at::<f32>(7, 1)), wide as f64);
    }

    /// In any order of ranks: an order that loses bits would give another result.
    #[test]
    fn reductions_are_exact_in_every_type_and_order() {
        for kind in DataType::ALL {
            for op in Op::ALL.into_iter().filter(|op| kind.supports(*op)) {
                for ranks in [16, 17, 32, 33, 100, 1000] {
                    with_element!(kind, T => for index in 0..64 {
                        let expected: T = Expected::Reduced { op, ranks, first: 0 }.at(index, 5);
                        let of = |rank| term::<T>(op, ranks, rank, index, 5);
                        let mut backwards = [of(ranks - 1)];
                        for rank in (0..ranks - 1).rev() {
                            T::reduce(op, &mut backwards, &[of(rank)]);
                        }
                        if op == Op::Avg {
                            T::divide(&mut backwards, u32::try_from(ranks).unwrap());
                        }
                        assert_eq!(backwards[0], expected, "{kind} {op} of {ranks}, {index}");
                    });
                }
            }
        }
    }

    #[test]
    fn every_rank_contributes_to_every_reduction() {
        for kind in DataType::ALL {
            for op in [Op::Sum, Op::Prod, Op::Avg] {
                with_element!(kind, T => for rank in 0..1000 {
                    let nothing = T::from_small(u32::from(op == Op::Prod));
                    let some = (0..100_000).any(|index| term::<T>(op, 1000, rank, index, 5) != nothing);
                    assert!(some, "{kind} {op} of {rank}");
                });
            }
        }
    }
}
