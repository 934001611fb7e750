//! The element types that collectives move and add.

use std::fmt;
use std::str::FromStr;

/// A type whose every bit pattern is a value, so a buffer's bytes may be read as it.
pub trait Element: sealed::Sealed + Copy + PartialEq + fmt::Debug + 'static {
    const TYPE: DataType;
    /// A small whole number as this type. `value` is below 2^16.
    fn from_small(value: u32) -> Self;
    /// Integers wrap.
    fn add(self, other: Self) -> Self;
}

/// Names an [`Element`] at run time, as nccl-tests spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    U8,
    I32,
    I64,
    F32,
    F64,
}

impl DataType {
    pub const ALL: [Self; 5] = [Self::U8, Self::I32, Self::I64, Self::F32, Self::F64];

    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// nccl-tests' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F32 => "float",
            Self::F64 => "double",
        }
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
        Ok(match text {
            "uint8" | "u8" => Self::U8,
            "int32" | "int" | "i32" => Self::I32,
            "int64" | "i64" => Self::I64,
            "float" | "float32" | "f32" => Self::F32,
            "double" | "float64" | "f64" => Self::F64,
            _ => return Err(format!("{text} is none of uint8, int32, int64, float, double")),
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($type:ty, $name:ident, $add:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: DataType = DataType::$name;
            #[inline]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_precision_loss,
                reason = "the value is small"
            )]
            fn from_small(value: u32) -> Self {
                value as Self
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                let add: fn(Self, Self) -> Self = $add;
                add(self, other)
            }
        }
    };
}

element!(u8, U8, |a, b| a.wrapping_add(b));
element!(i32, I32, |a, b| a.wrapping_add(b));
element!(i64, I64, |a, b| a.wrapping_add(b));
element!(f32, F32, |a, b| a + b);
element!(f64, F64, |a, b| a + b);
