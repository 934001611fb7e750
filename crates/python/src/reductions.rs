//! Reductions of objects that go on when their call has returned.
//!
//! `_objects.py` takes an object apart and builds the new one; in between its numbers are an object of the group library.

use std::collections::BTreeMap;
use std::time::Duration;

use ironrail_group::error::GroupError;
use ironrail_group::loader::{Complex64, DataType, Op, bf16, f16};
use ironrail_group::objects::{Leaf, ReducingObject};
use postcard_schema::Schema;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::{Deserialize, Serialize};

use crate::encodable::Encodable;
use crate::errors::raise;
use crate::group::operation;
use crate::memory::Array;
use crate::request::{Outcome, Pending};

/// An object's numbers, below the digest of its shape: a key is not reduced, but must be the same on all ranks.
type Apart = BTreeMap<u64, Vec<Column>>;
type Numbers = Encodable<Apart>;

macro_rules! columns {
    ($($name:ident $type:ty),*) => {
        /// Numbers of one type.
        #[derive(Debug, Serialize, Deserialize, Schema)]
        pub(crate) enum Column {
            $($name(Leaf<$type>),)*
        }

        impl Column {
            fn of(array: Array) -> Self {
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

/// This rank's object before its reduction begins.
pub(crate) struct Own {
    numbers: Numbers,
    begun: Result<Py<PyAny>, String>,
}

impl Own {
    /// One that cannot be reduced takes part as well: other ranks wait for it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, op: Op) -> PyResult<Self> {
        let py = object.py();
        let made = py.import("ironrail._objects")?.call_method1("Begun", (object, op.to_string()));
        let apart = made.and_then(|begun| {
            let columns = arrays(&begun)?.into_iter().map(Column::of).collect();
            let numbers = Apart::from([(begun.getattr("digest")?.extract()?, columns)]);
            Ok(Self { numbers: Encodable(Ok(numbers)), begun: Ok(begun.unbind()) })
        });
        let refusal = py.import("ironrail._errors")?.getattr("InvalidArgument")?;
        match apart {
            Err(error) if error.matches(py, refusal)? => {
                let why = error.value(py).to_string();
                Ok(Self { numbers: Encodable(Err("it cannot be reduced")), begun: Err(why) })
            }
            apart => apart,
        }
    }

    pub(crate) fn begin(
        self,
        begin: impl FnOnce(&Numbers) -> Result<ReducingObject<Numbers>, GroupError>,
    ) -> Result<Reducing, GroupError> {
        let Self { numbers, begun } = self;
        match (begin(&numbers), begun) {
            (Ok(reducing), Ok(begun)) => {
                Ok(Reducing::Begun { reducing: Box::new(reducing), begun })
            }
            // The other ranks know it, and this rank gets its error when it tests or waits.
            (Ok(_) | Err(GroupError::InvalidArgument(_)), Err(why)) => Ok(Reducing::Refused(why)),
            (Err(error), _) => Err(error),
        }
    }
}

/// Refuses an array that the operation cannot reduce in place; `name` is what errors call it.
#[pyfunction]
pub(crate) fn check_reducible(array: &Bound<'_, PyAny>, name: &str, op: &str) -> PyResult<()> {
    Array::writing(array, name)?.reduces_by(operation(op)?)
}

fn arrays(begun: &Bound<'_, PyAny>) -> PyResult<Vec<Array>> {
    let numbers = begun.getattr("numbers")?.cast_into::<PyTuple>()?;
    numbers.iter().map(|numbers| Array::writing(&numbers, "object")).collect()
}

/// A reduction of an object in progress.
pub(crate) enum Reducing {
    Begun {
        reducing: Box<ReducingObject<Numbers>>,
        /// What builds the new object.
        begun: Py<PyAny>,
    },
    /// Why this rank's object cannot be reduced.
    Refused(String),
}

fn refused<R>(why: &str) -> Result<R, GroupError> {
    Err(GroupError::InvalidArgument(why.to_owned()))
}

impl Pending for Reducing {
    fn test(&mut self) -> Result<bool, GroupError> {
        self.wait_for(Duration::ZERO)
    }

    fn wait_for(&mut self, limit: Duration) -> Result<bool, GroupError> {
        match self {
            Self::Begun { reducing, .. } => reducing.wait_timeout(limit),
            Self::Refused(why) => refused(why),
        }
    }

    fn wait(self: Box<Self>) -> Result<Outcome, GroupError> {
        match *self {
            Self::Begun { reducing, begun } => Ok(match reducing.wait()? {
                Some(numbers) => Outcome::Reduced(Reduced { numbers, begun }),
                None => Outcome::Nothing,
            }),
            Self::Refused(why) => refused(&why),
        }
    }

    fn take_back(&mut self) -> bool {
        false
    }

    fn goes_on(&self) -> bool {
        matches!(self, Self::Begun { reducing, .. } if reducing.is_awaited())
    }
}

/// The numbers of the new object.
#[derive(Debug)]
pub(crate) struct Reduced {
    numbers: Numbers,
    begun: Py<PyAny>,
}

impl Reduced {
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
