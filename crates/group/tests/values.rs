//! Reductions of any values: extremes of integers, subnormal numbers, both zeros, infinities, NaNs of any bits. Every result is compared with
//! a reference that computes one element at a time, with the other ranks' results, and with those of a second call in other memory.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[allow(dead_code, reason = "shared with the random programs, which use all of it")]
#[path = "programs/random.rs"]
mod random;
mod support;

use std::env;
use std::fmt::Display;

use ironrail_group::group::{Builder, Group};
use ironrail_group::loader::{Complex64, DataType, Element, Op, bf16, f16};
use ironrail_group::tuning::Algorithm;
use ironrail_group::with_element;
use random::{Memory, Random, poison};
use support::{WAIT, library, ranks_built};

/// An element with its bits, and with arithmetic apart from the library's.
trait Value: Element {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    /// Bits of values at the ends of ranges, and between kinds of values.
    fn edges() -> Vec<u64>;
    fn reduced(self, op: Op, other: Self) -> Self;
    fn divided(self, ranks: u32) -> Self;
    /// Whether a result is the expected one. The bits of a NaN may be others, and of f32 and f64 the sign of a zero that is a minimum or a
    /// maximum.
    fn is(self, expected: Self, op: Op) -> bool;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            clippy::cast_sign_loss,
            clippy::cast_lossless,
            reason = "the low bits are what is meant"
        )]
        impl Value for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }

            fn bits(self) -> u64 {
                self as u64
            }

            fn edges() -> Vec<u64> {
                [Self::MIN, Self::MIN + 1, Self::MAX / 2, Self::MAX - 1, Self::MAX, 0, 1, !0]
                    .map(Value::bits)
                    .to_vec()
            }

            fn reduced(self, op: Op, other: Self) -> Self {
                let (a, b) = (self as i128, other as i128);
                let whole = match op {
                    Op::Sum | Op::Avg => a + b,
                    Op::Prod => a.wrapping_mul(b),
                    Op::Min => a.min(b),
                    Op::Max => a.max(b),
                };
                whole as Self
            }

            fn divided(self, ranks: u32) -> Self {
                let whole = self as i128;
                let towards_zero = whole.unsigned_abs() / u128::from(ranks);
                (towards_zero as i128 * whole.signum()) as Self
            }

            fn is(self, expected: Self, _: Op) -> bool {
                self == expected
            }
        }
    )*};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

macro_rules! floats {
    ($($type:ident $bits:ident $mantissa:literal: $reduced:ident, $divided:ident;)*) => {$(
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are what is meant")]
        impl Value for $type {
            fn of(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }

            fn edges() -> Vec<u64> {
                let (one, infinity) = (Self::from_small(1).bits(), Self::INFINITY.bits());
                let (least_normal, quiet) = (1 << $mantissa, infinity | 1 << ($mantissa - 1));
                let all = [
                    0, 1, least_normal - 1, least_normal, one - 1, one, infinity - 1, infinity,
                    infinity | 1, quiet, quiet | 5,
                ];
                let negative = 1 << ($bits::BITS - 1);
                all.into_iter().flat_map(|bits| [bits, bits | negative]).collect()
            }

            fn reduced(self, op: Op, other: Self) -> Self {
                $reduced!(self, op, other)
            }

            fn divided(self, ranks: u32) -> Self {
                $divided!(self, ranks)
            }

            fn is(self, expected: Self, op: Op) -> bool {
                let is_zero = |value: Self| value.bits() << (65 - $bits::BITS) == 0;
                let any_zero = size_of::<Self>() > 2 && matches!(op, Op::Min | Op::Max);
                self.bits() == expected.bits()
                    || self.is_nan() && expected.is_nan()
                    || any_zero && is_zero(self) && is_zero(expected)
            }
        }
    )*};
}

macro_rules! wide_reduced {
    ($a:ident, $op:ident, $b:ident) => {
        match $op {
            Op::Sum | Op::Avg => $a + $b,
            Op::Prod => $a * $b,
            _ if $a.is_nan() || $b.is_nan() => Self::NAN,
            Op::Min => $a.min($b),
            Op::Max => $a.max($b),
        }
    };
}

macro_rules! half_reduced {
    ($a:ident, $op:ident, $b:ident) => {
        match $op {
            Op::Sum | Op::Avg => Self::from_f32($a.to_f32() + $b.to_f32()),
            Op::Prod => Self::from_f32($a.to_f32() * $b.to_f32()),
            _ if $a.is_nan() || $b.is_nan() => Self::NAN,
            Op::Min => {
                if $a.total_cmp(&$b).is_le() {
                    $a
                } else {
                    $b
                }
            }
            Op::Max => {
                if $a.total_cmp(&$b).is_le() {
                    $b
                } else {
                    $a
                }
            }
        }
    };
}

macro_rules! f32_divided {
    ($whole:ident, $ranks:ident) => {
        $whole / f32::from(u16::try_from($ranks).unwrap())
    };
}

macro_rules! f64_divided {
    ($whole:ident, $ranks:ident) => {
        $whole / f64::from($ranks)
    };
}

macro_rules! half_divided {
    ($whole:ident, $ranks:ident) => {
        Self::from_f32($whole.to_f32() / f32::from(u16::try_from($ranks).unwrap()))
    };
}

floats! {
    f32 u32 23: wide_reduced, f32_divided;
    f64 u64 52: wide_reduced, f64_divided;
    f16 u16 10: half_reduced, half_divided;
    bf16 u16 7: half_reduced, half_divided;
}

impl Value for Complex64 {
    fn of(bits: u64) -> Self {
        Self { re: f32::of(bits), im: f32::of(bits >> 32) }
    }

    fn bits(self) -> u64 {
        self.re.bits() | self.im.bits() << 32
    }

    fn edges() -> Vec<u64> {
        let parts = f32::edges();
        parts.iter().flat_map(|re| parts.iter().map(move |im| re | im << 32)).collect()
    }

    fn reduced(self, op: Op, other: Self) -> Self {
        let (Self { re: a, im: b }, Self { re: c, im: d }) = (self, other);
        match op {
            Op::Prod => Self { re: a * c - b * d, im: a * d + b * c },
            _ => Self { re: a + c, im: b + d },
        }
    }

    fn divided(self, ranks: u32) -> Self {
        Self { re: self.re.divided(ranks), im: self.im.divided(ranks) }
    }

    fn is(self, expected: Self, op: Op) -> bool {
        self.re.is(expected.re, op) && self.im.is(expected.im, op)
    }
}

/// One reduction of all ranks.
struct Case<'a, T> {
    group: &'a Group,
    op: Op,
    /// Of all ranks.
    inputs: Vec<Vec<T>>,
    /// Whether this rank reduces in place.
    in_place: bool,
    name: String,
}

impl<'a, T: Value> Case<'a, T> {
    fn draw(
        group: &'a Group,
        common: &mut Random,
        own: &mut Random,
        (op, blocks): (Op, usize),
    ) -> Self {
        let count = blocks * common.count::<T>(MOST_BYTES);
        let (edges, mixture) = (T::edges(), common.below(4));
        let value = |random: &mut Random| match [0, 1, 2, random.below(3)][mixture] {
            0 => T::of(random.next()),
            1 => T::of(random.pick(&edges)),
            _ => T::from_small(u32::try_from(random.below(16)).unwrap()),
        };
        let mut input = |_| (0..count).map(|_| value(common)).collect();
        let inputs = (0..group.size()).map(&mut input).collect();
        let name = format!("{op} of {count} of {} among {}", T::TYPE, group.size());
        Self { group, op, inputs, in_place: own.one_in(2), name }
    }

    fn own_input(&self) -> &[T] {
        &self.inputs[self.group.rank()]
    }

    /// This element of all ranks, from a rank on.
    fn terms(&self, index: usize, first: usize) -> Vec<T> {
        let size = self.group.size();
        (0..size).map(|rank| self.inputs[(first + rank) % size][index]).collect()
    }

    /// The terms reduced from the left.
    fn folded(&self, index: usize, first: usize) -> T {
        let terms = self.terms(index, first).into_iter();
        self.finished(terms.reduce(|whole, term| whole.reduced(self.op, term)).unwrap())
    }

    /// The terms reduced in pairs, then these in pairs.
    fn paired(&self, index: usize) -> T {
        let mut terms = self.terms(index, 0);
        while terms.len() > 1 {
            terms = terms.chunks(2).map(|pair| pair[0].reduced(self.op, pair[1])).collect();
        }
        self.finished(terms[0])
    }

    fn finished(&self, whole: T) -> T {
        let ranks = u32::try_from(self.group.size()).unwrap();
        if self.op == Op::Avg { whole.divided(ranks) } else { whole }
    }

    /// Runs a call twice, each time in other memory, and checks its results.
    fn check(
        &self,
        own: &mut Random,
        expected: Vec<T>,
        how: &dyn Display,
        call: impl Fn(&mut [T], Option<&mut [T]>),
    ) -> Vec<T> {
        let mut before: Option<Vec<T>> = None;
        for _ in 0..2 {
            let (group, input) = (self.group, self.own_input().iter().copied());
            let mut input = Memory::filled(group, own, input);
            let mut output = Memory::new(group, own, expected.len());
            let output = if self.in_place {
                call(&mut input, None);
                &input
            } else {
                call(&mut input, Some(&mut output));
                assert!(all_same(&input, self.own_input()), "{}, {how}: another input", self.name);
                &output
            };
            assert!(input.is_untouched_around() && output.is_untouched_around());
            for (index, (found, expected)) in output.iter().zip(&expected).enumerate() {
                let (bits, due) = (found.bits(), expected.bits());
                let is_right = found.is(*expected, self.op);
                assert!(is_right, "{}, {how}: {index} is {bits:x}, not {due:x}", self.name);
            }
            let is_as_before = before.is_none_or(|before| all_same(&before, output));
            assert!(is_as_before, "{}, {how}: other bits than before", self.name);
            before = Some(output.to_vec());
        }
        before.unwrap()
    }

    fn all_reduce(self, common: &mut Random, own: &mut Random) {
        let (group, op, count) = (self.group, self.op, self.own_input().len());
        let size = group.size();
        let algorithms = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.takes(size));
        let given = common.pick(&algorithms.collect::<Vec<_>>());
        let is_given = common.one_in(2);
        let chosen = group.tuning().choose(size, count * size_of::<T>());
        let algorithm = if is_given { given } else { chosen };
        let share_of = |index| (0..size).find(|share| index < share_end(count, size, *share));
        let expected = |index| match algorithm {
            Algorithm::Doubling => self.paired(index),
            Algorithm::Ring => self.folded(index, share_of(index).unwrap()),
            Algorithm::OnePhase | Algorithm::Mesh => self.folded(index, 0),
        };
        let expected = (0..count).map(expected).collect();
        let found = self.check(own, expected, &algorithm, |input, output| match output {
            None if is_given => {
                let copy = input.to_vec();
                group.all_reduce_by(algorithm, &copy, input, op).unwrap();
            }
            None => group.all_reduce(input, op).unwrap(),
            Some(output) if is_given => {
                group.all_reduce_by(algorithm, input, output, op).unwrap();
            }
            Some(output) => group.all_reduce_into(input, output, op).unwrap(),
        });
        let bits: Vec<u64> = found.into_iter().map(T::bits).collect();
        let mut everyones = vec![0; size * count];
        group.all_gather(&bits, &mut everyones).unwrap();
        let is_same = everyones.chunks(count.max(1)).all(|theirs| theirs == bits);
        assert!(is_same, "{}, {algorithm}: other bits on another rank", self.name);
    }

    fn reduce(self, common: &mut Random, own: &mut Random) {
        let (group, op, count) = (self.group, self.op, self.own_input().len());
        let root = common.below(group.size());
        let (is_root, is_chain) = (group.rank() == root, count * size_of::<T>() > 32 << 10);
        let first = if is_chain { root + 1 } else { 0 };
        let reduced = |index| match is_root {
            true => self.folded(index, first),
            false if self.in_place => self.own_input()[index],
            false => poison(),
        };
        let expected = (0..count).map(reduced).collect();
        self.check(own, expected, &root, |input, output| match output {
            None => group.reduce_in_place(input, op, root).unwrap(),
            Some(output) => group.reduce(input, is_root.then_some(output), op, root).unwrap(),
        });
    }

    fn reduce_scatter(self, own: &mut Random) {
        let (group, op, count) = (self.group, self.op, self.own_input().len());
        let block = count / group.size() * group.rank()..count / group.size() * (group.rank() + 1);
        let reduced = |index| match block.contains(&index) {
            true => self.folded(index, 0),
            false => self.own_input()[index],
        };
        let whole = if self.in_place { 0..count } else { block.clone() };
        let expected = whole.map(reduced).collect();
        self.check(own, expected, &"reduce_scatter", |input, output| match output {
            None => group.reduce_scatter_in_place(input, op).unwrap(),
            Some(output) => group.reduce_scatter(input, output, op).unwrap(),
        });
    }
}

/// Where a share ends, when elements are divided among ranks: the first shares have one more.
fn share_end(count: usize, shares: usize, share: usize) -> usize {
    (share + 1) * (count / shares) + (share + 1).min(count % shares)
}

fn all_same<T: Value>(one: &[T], other: &[T]) -> bool {
    one.iter().map(|value| value.bits()).eq(other.iter().map(|value| value.bits()))
}

/// Of a block of a rank's input.
const MOST_BYTES: usize = 300 << 10;

fn step<T: Value>(group: &Group, common: &mut Random, own: &mut Random, op: Op) {
    let form = common.below(4);
    let blocks = if form == 3 { group.size() } else { 1 };
    let case = Case::<T>::draw(group, common, own, (op, blocks));
    match form {
        0 | 1 => case.all_reduce(common, own),
        2 => case.reduce(common, own),
        _ => case.reduce_scatter(own),
    }
}

/// Each program reduces every type by every operation. `GROUP_PROGRAMS` and `GROUP_FIRST` are as in the random programs.
#[test]
fn a_reduction_of_any_values_is_right_and_has_the_same_bits_on_all_ranks_and_again() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (programs, first) = (number("GROUP_PROGRAMS", 5), number("GROUP_FIRST", 0));
    for program in first..first + programs {
        let size = usize::try_from(program % 5 + 1).unwrap();
        ranks_built(&Builder::new(&library()).timeout(WAIT), size, move |group| {
            let mut common = Random::new(program);
            let mut own = Random::new(program ^ (group.rank() as u64 + 1) << 32);
            for kind in DataType::ALL {
                for op in Op::ALL.into_iter().filter(|op| kind.supports(*op)) {
                    with_element!(kind, T => step::<T>(&group, &mut common, &mut own, op));
                }
            }
            group.barrier().unwrap();
        });
    }
}
