//! Element types by the names that Python's buffers and DLPack give them.

use ironrail_group::loader::DataType;

/// A type of the group library, and whether its bytes are truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) element: DataType,
    pub(super) is_bool: bool,
}

impl Kind {
    pub(super) const BF16: Self = Self::of(DataType::BF16);
    pub(super) const BOOL: Self = Self { element: DataType::U8, is_bool: true };

    pub(super) const fn of(element: DataType) -> Self {
        Self { element, is_bool: false }
    }

    pub(super) fn name(self) -> &'static str {
        if self.is_bool { "bool" } else { self.element.numpy_name() }
    }

    /// By a format of the module `struct`, for elements of `bytes` bytes. Other byte orders are not supported.
    pub(super) fn of_format(format: &str, bytes: usize) -> Option<Self> {
        let native = if cfg!(target_endian = "little") { '<' } else { '>' };
        let code = match format.strip_prefix(['@', '=', '|', native]) {
            Some(code) => code,
            None if bytes == 1 => format.trim_start_matches(['<', '>', '!']),
            None => format,
        };
        let element = match (code, bytes) {
            ("?", 1) => return Some(Self::BOOL),
            ("B" | "c" | "", 1) => DataType::U8,
            ("b", 1) => DataType::I8,
            ("e", 2) => DataType::F16,
            ("f", 4) => DataType::F32,
            ("d", 8) => DataType::F64,
            ("Zf", 8) => DataType::C64,
            ("h" | "i" | "l" | "q" | "n", _) => Self::integer(true, bytes)?,
            ("H" | "I" | "L" | "Q" | "N", _) => Self::integer(false, bytes)?,
            _ => return None,
        };
        Some(Self::of(element))
    }

    pub(super) fn integer(signed: bool, bytes: usize) -> Option<DataType> {
        Some(match (signed, bytes) {
            (true, 1) => DataType::I8,
            (true, 2) => DataType::I16,
            (true, 4) => DataType::I32,
            (true, 8) => DataType::I64,
            (false, 1) => DataType::U8,
            (false, 2) => DataType::U16,
            (false, 4) => DataType::U32,
            (false, 8) => DataType::U64,
            _ => return None,
        })
    }
}
