//! Reductions of objects that go on when their call has returned.
//!
//! `_objects.py` takes an object apart and builds the new one; in between its numbers are an object of the group library.

use std::time::Duration;

use ironrail_group::error::GroupError;
use ironrail_group::loader::Op;
use ironrail_group::objects::ReducingObject;
use pyo3::prelude::*;

use crate::arguments::operation;
use crate::encodable::Encodable;
use crate::errors;
use crate::memory::Array;
use crate::numbers::{Apart, Column, Numbers, Reduced, arrays};
use crate::request::{Outcome, Pending};

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
        let refusal = errors::class(py, "InvalidArgument")?;
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
