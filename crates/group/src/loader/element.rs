//! The element types that collectives move and reduce, and their names at run time.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::halves::{Half, Sum};
use super::picks::{self, Greatest, Least};
use crate::error::GroupError;

/// A type for which every bit pattern is a value, so that a buffer's bytes may be read as it.
pub trait Element: sealed::Sealed + Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// Its runtime name.
    const TYPE: DataType;

    /// A small integer as this type. `value` is below 128, which is exact in every type.
    fn from_small(value: u32) -> Self;

    /// `into[i] = into[i] op terms[i]`, up to the shorter length. [`Op::Avg`] adds; [`Element::divide`] completes it.
    ///
    /// Integers wrap. `Min` and `Max` of floating-point numbers are NaN if either operand is; for f16 and bf16 the negative zero is smaller
    /// than the positive one. Sums and products of f16 and bf16 are computed as f32, and rounded to nearest even once per call. Complex
    /// numbers have no order: their `Min` and `Max` keep the first operand; [`DataType::supports`] reports that.
    fn reduce(op: Op, into: &mut [Self], terms: &[Self]);

    /// `out[i] = a[i] op b[i]` in one pass; otherwise as [`Element::reduce`].
    fn reduce_into(op: Op, out: &mut [Self], a: &[Self], b: &[Self]);

    /// `into[i] = terms[i] op into[i]`: as [`Element::reduce`] with swapped operands.
    fn reduce_before(op: Op, into: &mut [Self], terms: &[Self]);

    /// Divides each value by a number of ranks: integers exactly, rounding towards zero.
    fn divide(values: &mut [Self], ranks: u32);
}

/// How elements are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Sum,
    Prod,
    Min,
    Max,
    /// The sum, divided by the number of ranks.
    Avg,
}

impl Op {
    /// In the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// nccl-tests' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| format!("{text} is none of {}", listed(&Self::ALL.map(Self::name))))
    }
}

/// A complex number of two floats, as `float _Complex` lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex64 {
    pub re: f32,
    pub im: f32,
}

/// The runtime name of an [`Element`] type, in nccl-tests' spelling where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
    C64,
}

/// Runs `$body` with `$T` as the element type that a [`DataType`] names.
#[macro_export]
macro_rules! with_element {
    ($kind:expr, $T:ident => $body:expr) => {
        $crate::with_element!(@ $kind, $T, $body,
            I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64,
            F16 $crate::loader::f16, BF16 $crate::loader::bf16, F32 f32, F64 f64, C64 $crate::loader::Complex64)
    };
    (@ $kind:expr, $T:ident, $body:expr, $($name:ident $type:ty),*) => {
        match $kind {
            $($crate::loader::DataType::$name => {
                type $T = $type;
                $body
            })*
        }
    };
}

impl DataType {
    pub const ALL: [Self; 13] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::C64,
    ];

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        with_element!(self, T => size_of::<T>())
    }

    /// nccl-tests' name, or one in its style.
    pub fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::U16 => "uint16",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::BF16 => "bfloat16",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::C64 => "complex64",
        }
    }

    /// NumPy's name, and that of bfloat16, which NumPy has not.
    pub fn numpy_name(self) -> &'static str {
        match self {
            Self::F16 => "float16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            other => other.name(),
        }
    }

    /// A shorter name, as in Rust and NumPy.
    fn short_name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::C64 => "c64",
        }
    }

    /// Whether the operation is defined: complex numbers have no order.
    pub fn supports(self, op: Op) -> bool {
        !(self == Self::C64 && matches!(op, Op::Min | Op::Max))
    }

    /// Refuses an operation that is not defined.
    pub(crate) fn check(self, op: Op) -> Result<(), GroupError> {
        if self.supports(op) {
            return Ok(());
        }
        Err(GroupError::InvalidArgument(format!("elements of type {self} have no {op}")))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let alias = if text == "int" { "int32" } else { text };
        let is_named =
            |kind: &Self| [kind.name(), kind.short_name(), kind.numpy_name()].contains(&alias);
        let found = Self::ALL.into_iter().find(is_named);
        found.ok_or_else(|| format!("{text} is none of {}", listed(&Self::ALL.map(Self::name))))
    }
}

fn listed(names: &[&str]) -> String {
    names.join(", ")
}

mod sealed {
    /// # Safety
    ///
    /// Zero bytes are a value: the type's zero.
    pub unsafe trait Sealed {}
}

/// `into[i] = f(into[i], terms[i])`, in a form that compilers vectorise.
#[inline]
fn in_place<T: Copy>(f: impl Fn(T, T) -> T, into: &mut [T], terms: &[T]) {
    for (value, term) in into.iter_mut().zip(terms) {
        *value = f(*value, *term);
    }
}

/// `out[i] = f(a[i], b[i])`, in a form that compilers vectorise.
#[inline]
fn apart<T: Copy>(f: impl Fn(T, T) -> T, out: &mut [T], a: &[T], b: &[T]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
}

/// Both forms of a reduction, from one table of the operations on two elements.
macro_rules! reductions {
    ($($op:pat => $f:expr),*) => {
        fn reduce(op: Op, into: &mut [Self], terms: &[Self]) {
            match op {
                $($op => in_place($f, into, terms),)*
            }
        }

        fn reduce_into(op: Op, out: &mut [Self], a: &[Self], b: &[Self]) {
            match op {
                $($op => apart($f, out, a, b),)*
            }
        }

        fn reduce_before(op: Op, into: &mut [Self], terms: &[Self]) {
            match op {
                $($op => in_place(|into, term| ($f)(term, into), into, terms),)*
            }
        }
    };
}

macro_rules! integers {
    ($($type:ty: $name:ident),*) => {$(
        // SAFETY: its bits of 0 are 0.
        unsafe impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: DataType = DataType::$name;

            #[inline]
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the value is below 128")]
            fn from_small(value: u32) -> Self {
                value as Self
            }

            reductions! {
                Op::Sum | Op::Avg => Self::wrapping_add,
                Op::Prod => Self::wrapping_mul,
                Op::Min => Self::min,
                Op::Max => Self::max
            }

            fn divide(values: &mut [Self], ranks: u32) {
                match Self::try_from(ranks) {
                    Ok(ranks) => values.iter_mut().for_each(|value| *value /= ranks.max(1)),
                    // All values are smaller, and their quotients 0, except for the least value divided by its own magnitude.
                    Err(_) => values.iter_mut().for_each(|value| {
                        let quotient = i128::from(*value) / i128::from(ranks);
                        *value = Self::try_from(quotient).unwrap_or(0);
                    }),
                }
            }
        }
    )*};
}

integers!(i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64);

macro_rules! floats {
    ($($type:ty: $name:ident),*) => {$(
        // SAFETY: its bits of 0 are 0.
        unsafe impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: DataType = DataType::$name;

            #[inline]
            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "the value is below 128")]
            fn from_small(value: u32) -> Self {
                value as Self
            }

            // Comparisons with NaN are false, so a NaN in `a` stays.
            reductions! {
                Op::Sum | Op::Avg => |a, b| a + b,
                Op::Prod => |a, b| a * b,
                Op::Min => |a: Self, b: Self| if b < a || b.is_nan() { b } else { a },
                Op::Max => |a: Self, b: Self| if b > a || b.is_nan() { b } else { a }
            }

            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "ranks are few")]
            fn divide(values: &mut [Self], ranks: u32) {
                values.iter_mut().for_each(|value| *value /= ranks as Self);
            }
        }
    )*};
}

floats!(f32: F32, f64: F64);

macro_rules! halves {
    ($($type:ty: $name:ident),*) => {$(
        // SAFETY: its bits of 0 are 0.
        unsafe impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: DataType = DataType::$name;

            #[inline]
            #[allow(clippy::cast_precision_loss, reason = "the value is below 128")]
            fn from_small(value: u32) -> Self {
                Self::from_f32(value as f32)
            }

            fn reduce(op: Op, into: &mut [Self], terms: &[Self]) {
                const INFINITY: u16 = <$type>::INFINITY.to_bits();
                match op {
                    Op::Sum | Op::Avg => Half::in_place(Sum, into, terms),
                    Op::Prod => Half::in_place(|a: f32, b: f32| a * b, into, terms),
                    Op::Min => picks::in_place(Least, INFINITY, into, terms),
                    Op::Max => picks::in_place(Greatest, INFINITY, into, terms),
                }
            }

            fn reduce_into(op: Op, out: &mut [Self], a: &[Self], b: &[Self]) {
                const INFINITY: u16 = <$type>::INFINITY.to_bits();
                match op {
                    Op::Sum | Op::Avg => Half::apart(Sum, out, a, b),
                    Op::Prod => Half::apart(|a: f32, b: f32| a * b, out, a, b),
                    Op::Min => picks::apart(Least, INFINITY, out, a, b),
                    Op::Max => picks::apart(Greatest, INFINITY, out, a, b),
                }
            }

            /// The order only decides which of two NaNs is the result.
            fn reduce_before(op: Op, into: &mut [Self], terms: &[Self]) {
                Self::reduce(op, into, terms);
            }

            #[allow(clippy::cast_precision_loss, reason = "ranks are few")]
            fn divide(values: &mut [Self], ranks: u32) {
                for values in values.chunks_mut(BLOCK) {
                    Half::in_place(|value, _| value / ranks as f32, values, &[Self::ZERO; BLOCK]);
                }
            }
        }
    )*};
}

/// The number of elements divided at a time.
const BLOCK: usize = 512;

halves!(f16: F16, bf16: BF16);

// SAFETY: both parts are 0.
unsafe impl sealed::Sealed for Complex64 {}
impl Element for Complex64 {
    const TYPE: DataType = DataType::C64;

    fn from_small(value: u32) -> Self {
        Self { re: f32::from_small(value), im: f32::from_small(value / 2) }
    }

    reductions! {
        Op::Sum | Op::Avg => |a: Self, b: Self| Self { re: a.re + b.re, im: a.im + b.im },
        Op::Prod => |a: Self, b: Self| Self {
            re: a.re * b.re - a.im * b.im,
            im: a.re * b.im + a.im * b.re,
        },
        Op::Min | Op::Max => |a, _| a
    }

    #[allow(clippy::cast_precision_loss, reason = "ranks are few")]
    fn divide(values: &mut [Self], ranks: u32) {
        for value in values {
            *value = Self { re: value.re / ranks as f32, im: value.im / ranks as f32 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One element reduced with another.
    fn pair<T: Element>(op: Op, a: T, b: T) -> T {
        let mut into = [a];
        T::reduce(op, &mut into, &[b]);
        into[0]
    }

    #[test]
    fn every_type_is_known_by_its_names_and_has_its_size() {
        for kind in DataType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.short_name().parse(), Ok(kind));
            assert_eq!(with_element!(kind, T => T::TYPE), kind);
        }
        assert_eq!(DataType::ALL.map(DataType::bytes), [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8]);
        assert!("floatt".parse::<DataType>().unwrap_err().contains("bfloat16"));
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert!("xor".parse::<Op>().unwrap_err().contains("sum, prod, min, max, avg"));
    }

    #[test]
    fn every_type_takes_every_operation_at_every_length() {
        for kind in DataType::ALL {
            for op in Op::ALL.into_iter().filter(|op| kind.supports(*op)) {
                for len in [1, 7, 1023, 65_537] {
                    with_element!(kind, T => {
                        let small = |value: usize| T::from_small(u32::try_from(value % 3 + 1).unwrap());
                        let mut into: Vec<T> = (0..len).map(small).collect();
                        let terms: Vec<T> = (0..len).map(|index| small(index + 1)).collect();
                        let single: Vec<T> =
                            into.iter().zip(&terms).map(|(a, b)| pair(op, *a, *b)).collect();
                        let mut out = vec![small(0); len];
                        T::reduce_into(op, &mut out, &into, &terms);
                        let mut before = terms.clone();
                        T::reduce_before(op, &mut before, &into);
                        assert_eq!(before, out, "{kind} {op} {len}");
                        T::reduce(op, &mut into, &terms);
                        assert_eq!((&into, &out), (&single, &single), "{kind} {op} {len}");
                    });
                }
            }
        }
    }

    #[test]
    fn the_operations_are_what_their_names_say() {
        assert_eq!(pair(Op::Sum, 250_u8, 10), 4, "integers wrap");
        assert_eq!(pair(Op::Prod, -3_i16, 5), -15);
        assert_eq!((pair(Op::Min, -3_i64, 5), pair(Op::Max, -3_i64, 5)), (-3, 5));
        assert_eq!(pair(Op::Avg, 2.5_f64, 4.0), 6.5, "the average is divided later");
        let (a, b) = (f16::from_f32(1.5), f16::from_f32(2.25));
        assert_eq!(pair(Op::Sum, a, b).to_f32(), 3.75);
        assert_eq!(pair(Op::Max, bf16::from_f32(-1.0), bf16::from_f32(2.0)).to_f32(), 2.0);
        let (a, b) = (Complex64 { re: 1.0, im: 2.0 }, Complex64 { re: 3.0, im: -1.0 });
        assert_eq!(pair(Op::Sum, a, b), Complex64 { re: 4.0, im: 1.0 });
        assert_eq!(pair(Op::Prod, a, b), Complex64 { re: 5.0, im: 5.0 });
        assert!(!DataType::C64.supports(Op::Min) && DataType::C64.supports(Op::Avg));
    }

    #[test]
    fn a_half_is_rounded_to_nearest_even() {
        // 2048 + 1 lies between 2048 and 2050, 2048 + 3 between 2050 and 2052.
        let sum = |a: f32, b: f32| pair(Op::Sum, f16::from_f32(a), f16::from_f32(b)).to_f32();
        assert_eq!((sum(2048.0, 1.0), sum(2048.0, 3.0)), (2048.0, 2052.0));
        let sum = |a: f32, b: f32| pair(Op::Sum, bf16::from_f32(a), bf16::from_f32(b)).to_f32();
        assert_eq!((sum(256.0, 1.0), sum(256.0, 3.0)), (256.0, 260.0));
    }

    #[test]
    fn the_minimum_and_the_maximum_with_a_nan_are_nan() {
        for op in [Op::Min, Op::Max] {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
                assert!(pair(op, a, b).is_nan(), "{op} of {a} and {b}");
                assert!(pair(op, f64::from(a), f64::from(b)).is_nan());
                assert!(pair(op, f16::from_f32(a), f16::from_f32(b)).is_nan());
                assert!(pair(op, bf16::from_f32(a), bf16::from_f32(b)).is_nan());
            }
        }
    }

    /// Multiplying by 1/n loses one of exact multiples for n = 25, 29, 31, 41 and more.
    #[test]
    fn averages_of_integers_are_exact_and_round_towards_zero() {
        for ranks in 1..=64_u32 {
            for value in -200..=200_i64 {
                let mut values =
                    [value * i64::from(ranks), value * i64::from(ranks) + value.signum()];
                i64::divide(&mut values, ranks);
                let rest = if ranks == 1 { value + value.signum() } else { value };
                assert_eq!(values, [value, rest], "{value} of {ranks}");
                let mut short = [i32::try_from(value).unwrap() * i32::try_from(ranks).unwrap()];
                i32::divide(&mut short, ranks);
                assert_eq!(i64::from(short[0]), value);
            }
        }
        let mut tiny = [127_i8, -128, 5];
        i8::divide(&mut tiny, 200);
        assert_eq!(tiny, [0; 3]);
    }

    #[test]
    fn the_least_integer_divided_by_its_magnitude_is_minus_one() {
        let mut values = [i8::MIN, -127, 127];
        i8::divide(&mut values, 128);
        assert_eq!(values, [-1, 0, 0]);
        let mut values = [i16::MIN, -32_767, 32_767];
        i16::divide(&mut values, 1 << 15);
        assert_eq!(values, [-1, 0, 0]);
    }

    #[test]
    fn averages_of_floating_point_numbers_are_quotients() {
        let mut values = [bf16::from_f32(12.0), bf16::from_f32(-3.0)];
        bf16::divide(&mut values, 4);
        assert_eq!(values.map(bf16::to_f32), [3.0, -0.75]);
        let mut values = [Complex64 { re: 2.0, im: -4.0 }];
        Complex64::divide(&mut values, 2);
        assert_eq!(values, [Complex64 { re: 1.0, im: -2.0 }]);
    }
}
