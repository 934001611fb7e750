//! The buffers of each collective, in nccl-tests' terms, and its expected output; pure.

use clap::ValueEnum;
use ironrail_group::check;
use ironrail_group::loader::{DataType, Element, Op};
use nccl::{Collective, Kind};
use serde::{Deserialize, Serialize};

/// A collective by nccl-tests' name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Test {
    /// Every rank ends with the sum of all inputs
    AllReduce,
    /// Every rank ends with all inputs; the size is that of the output
    AllGather,
    /// Every rank ends with its part of the sum; the size is that of the input
    ReduceScatter,
    /// Every rank sends a part of its input to each; the size is that of the input
    Alltoall,
    /// Every rank sends to the next and receives from the previous one
    #[value(name = "sendrecv")]
    SendReceive,
}

/// The buffers of a size on `ranks` ranks, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The count argument of NCCL's call.
    pub(super) count: usize,
    /// Elements of this rank's input and output.
    pub(super) input: usize,
    pub(super) output: usize,
    /// The size column of nccl-tests, in elements.
    pub(super) whole: usize,
}

impl Test {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Alltoall => "alltoall",
            Self::SendReceive => "sendrecv",
        }
    }

    /// The redop column of nccl-tests.
    pub(super) fn operation(self) -> &'static str {
        match self {
            Self::AllReduce | Self::ReduceScatter => "sum",
            _ => "none",
        }
    }

    pub(super) fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::Alltoall => Collective::AllToAll,
            Self::SendReceive => Collective::SendReceive,
        }
    }

    /// The shape that fits into `elements`.
    pub(super) fn shape(self, elements: usize, ranks: usize) -> Shape {
        let each = elements / ranks;
        let whole = each * ranks;
        match self {
            Self::AllReduce | Self::SendReceive => {
                Shape { count: elements, input: elements, output: elements, whole: elements }
            }
            Self::AllGather => Shape { count: each, input: each, output: whole, whole },
            Self::ReduceScatter => Shape { count: each, input: whole, output: each, whole },
            Self::Alltoall => Shape { count: each, input: whole, output: whole, whole },
        }
    }

    /// Where this rank's input lies in its output when one buffer serves both; for reduce-scatter, the output's place in the input. `None`:
    /// NCCL has no such form.
    pub(super) fn in_place(self, rank: usize, shape: Shape) -> Option<InPlace> {
        let own = rank * shape.count;
        match self {
            Self::AllReduce => Some(InPlace { input: 0, output: 0 }),
            Self::AllGather => Some(InPlace { input: own, output: 0 }),
            Self::ReduceScatter => Some(InPlace { input: 0, output: own }),
            Self::Alltoall | Self::SendReceive => None,
        }
    }

    /// nccl-tests' factor from algorithm bandwidth to bus bandwidth.
    #[allow(clippy::cast_precision_loss, reason = "a few ranks")]
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::AllGather | Self::ReduceScatter | Self::Alltoall => share,
            Self::SendReceive => 1.0,
        }
    }

    /// How many ranks' elements are added up.
    pub(super) fn terms(self, ranks: usize) -> usize {
        match self {
            Self::AllReduce | Self::ReduceScatter => ranks,
            Self::AllGather | Self::Alltoall | Self::SendReceive => 1,
        }
    }

    /// Element `index` of rank `rank`'s output.
    fn expected<T: Element>(self, at: At, index: usize) -> T {
        let At { rank, ranks, count, iteration } = at;
        let terms = self.terms(ranks);
        let input = |rank, index| check::term::<T>(Op::Sum, terms, rank, index, iteration);
        let sum = |index: usize| {
            let mut sum = [input(0, index)];
            (1..ranks).for_each(|rank| T::reduce(Op::Sum, &mut sum, &[input(rank, index)]));
            sum[0]
        };
        match self {
            Self::AllReduce => sum(index),
            Self::ReduceScatter => sum(rank * count + index),
            Self::AllGather => input(index / count, index % count),
            Self::Alltoall => input(index / count, rank * count + index % count),
            Self::SendReceive => input((rank + ranks - 1) % ranks, index),
        }
    }

    /// How many of the elements of rank `at.rank`'s output differ from the expected ones.
    pub(super) fn count_wrong<T: Element>(self, found: &[T], at: At) -> u64 {
        let wrong = |&(index, value): &(usize, &T)| *value != self.expected::<T>(at, index);
        found.iter().enumerate().filter(wrong).count() as u64
    }
}

/// The place of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// The count argument of NCCL's call.
    pub(super) count: usize,
    pub(super) iteration: usize,
}

/// Offsets in elements from the start of the shared buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InPlace {
    pub(super) input: usize,
    pub(super) output: usize,
}

/// NCCL's data type. `None`: NCCL has none.
pub(super) fn kind(of: DataType) -> Option<Kind> {
    Some(match of {
        DataType::I8 => Kind::I8,
        DataType::U8 => Kind::U8,
        DataType::I32 => Kind::I32,
        DataType::U32 => Kind::U32,
        DataType::I64 => Kind::I64,
        DataType::U64 => Kind::U64,
        DataType::F16 => Kind::F16,
        DataType::BF16 => Kind::BF16,
        DataType::F32 => Kind::F32,
        DataType::F64 => Kind::F64,
        DataType::I16 | DataType::U16 | DataType::C64 => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Test; 5] =
        [Test::AllReduce, Test::AllGather, Test::ReduceScatter, Test::Alltoall, Test::SendReceive];

    /// The expected result, computed naively from all inputs.
    fn by_hand(test: Test, rank: usize, ranks: usize, shape: Shape) -> Vec<i64> {
        let input = |rank: usize| -> Vec<i64> {
            (0..shape.input).map(|index| check::value(rank, index, 3).into()).collect()
        };
        let inputs: Vec<_> = (0..ranks).map(input).collect();
        let part =
            |rank: usize, part: usize| inputs[rank][part * shape.count..][..shape.count].to_vec();
        let sum = |range: std::ops::Range<usize>| -> Vec<i64> {
            range.map(|index| inputs.iter().map(|input| input[index]).sum()).collect()
        };
        match test {
            Test::AllReduce => sum(0..shape.input),
            Test::ReduceScatter => sum(rank * shape.count..(rank + 1) * shape.count),
            Test::AllGather => inputs.concat(),
            Test::Alltoall => (0..ranks).flat_map(|from| part(from, rank)).collect(),
            Test::SendReceive => inputs[(rank + ranks - 1) % ranks].clone(),
        }
    }

    #[test]
    fn every_collective_has_the_output_that_it_has_by_hand() {
        for test in ALL {
            for ranks in 1..5 {
                for elements in [0, 1, 5, 64] {
                    let shape = test.shape(elements, ranks);
                    for rank in 0..ranks {
                        let at = At { rank, ranks, count: shape.count, iteration: 3 };
                        let mut output = by_hand(test, rank, ranks, shape);
                        assert_eq!(output.len(), shape.output, "{test:?}");
                        assert_eq!(test.count_wrong(&output, at), 0, "{test:?} {rank} of {ranks}");
                        if let Some(last) = output.last_mut() {
                            *last ^= 1;
                            assert_eq!(test.count_wrong(&output, at), 1, "{test:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn in_place_ranges_lie_inside_the_larger_buffer() {
        for test in ALL {
            for rank in 0..4 {
                let shape = test.shape(64, 4);
                let Some(InPlace { input, output }) = test.in_place(rank, shape) else { continue };
                let whole = shape.input.max(shape.output);
                assert!(input + shape.input <= whole && output + shape.output <= whole, "{test:?}");
            }
        }
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert!((Test::AllReduce.bus_factor(4) - 1.5).abs() < 1e-12);
        assert!((Test::Alltoall.bus_factor(2) - 0.5).abs() < 1e-12);
        assert!((Test::SendReceive.bus_factor(2) - 1.0).abs() < 1e-12);
    }
}
