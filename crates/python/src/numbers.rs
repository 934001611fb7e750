//! The numbers of an object that `_objects.py` has taken apart, to be reduced.

use std::collections::BTreeMap;

use ironrail_group::error::GroupError;
use ironrail_group::loader::{Complex64, DataType, bf16, f16};
use ironrail_group::objects::Leaf;
use postcard_schema::Schema;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::{Deserialize, Serialize};

use crate::encodable::Encodable;
use crate::errors::raise;
use crate::memory::Array;

/// An object's numbers, below the digest of its shape: a key is not reduced, but must be the same on all ranks.
pub(crate) type Apart = BTreeMap<u64, Vec<Column>>;
/// The same, or why there are none.
pub(crate) type Numbers = Encodable<Apart>;

macro_rules! columns {
    ($($name:ident $type:ty),*) => {
        /// Numbers of one type.
        #[derive(Debug, Serialize, Deserialize, Schema)]
        pub(crate) enum Column {
            $($name(Leaf<$type>),)*
        }

        impl Column {
            pub(crate) fn of(array: Array) -> Self {
                match array.element() {
                    $(DataType::$name => Self::$name(array.into_foreign().into()),)*
                }
            }

            /// Copies the numbers to an array. Returns whether it has the same type and length, without which nothing is copied.
            fn copy_to(&self, array: &mut Array) -> bool {
                match self {
                    $(Self::$name(numbers) => {
                        let fits = array.element() == DataType::$name && array.count() == numbers.len();
                        if fits {
                            array.elements_mut().copy_from_slice(numbers);
                        }
                        fits
                    })*
                }
            }
        }
    };
}

columns! {
    I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, F16 f16, BF16 bf16, F32 f32, F64 f64, C64 Complex64
}

/// The arrays of an object that `_objects.py` has taken apart.
pub(crate) fn arrays(begun: &Bound<'_, PyAny>) -> PyResult<Vec<Array>> {
    let numbers = begun.getattr("numbers")?.cast_into::<PyTuple>()?;
    numbers.iter().map(|numbers| Array::writing(&numbers, "object")).collect()
}

/// The numbers of the new object.
#[derive(Debug)]
pub(crate) struct Reduced {
    pub(crate) numbers: Numbers,
    /// What builds it.
    pub(crate) begun: Py<PyAny>,
}

impl Reduced {
    /// The new object.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let begun = self.begun.bind(py);
        let mut columns = self.numbers.0.iter().flat_map(Apart::values).flatten();
        for mut array in arrays(begun)? {
            if !columns.next().is_some_and(|column| column.copy_to(&mut array)) {
                let why = "rank 0 sent an object of another shape".to_owned();
                return Err(raise(GroupError::Mismatch { rank: 0, why }));
            }
        }
        Ok(begun.call_method0("built")?.unbind())
    }
}
