//! Arguments of calls, as Python gives them.

use std::time::Duration;

use ironrail_group::loader::{DataType, Op};
use ironrail_group::messages::{Any, From as Source, Tag};
use ironrail_group::patience::LONGEST;
use pyo3::prelude::*;

use crate::errors::invalid;

/// A sender; None: any.
pub(crate) fn any_source(rank: Option<usize>) -> Source {
    rank.map_or_else(|| Any.into(), Into::into)
}

/// A tag; None: any.
pub(crate) fn any_tag(tag: Option<u32>) -> Tag {
    tag.map_or_else(|| Any.into(), Into::into)
}

/// The operation of this name.
pub(crate) fn operation(name: &str) -> PyResult<Op> {
    name.parse().map_err(|why: String| invalid(why))
}

/// The element type of this name in NumPy. The names of nccl-tests are not taken: `float` has 32 bits there, and 64 in NumPy.
pub(crate) fn element(text: &str) -> PyResult<DataType> {
    let found = DataType::ALL.into_iter().find(|element| element.numpy_name() == text);
    let names = || DataType::ALL.map(DataType::numpy_name).join(", ");
    found.ok_or_else(|| invalid(format!("{text} is none of {}", names())))
}

/// A time as Python gives it. One that is too long, `math.inf` too, is the longest.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    if value > LONGEST.as_secs_f64() {
        return Ok(LONGEST);
    }
    Duration::try_from_secs_f64(value)
        .map_err(|_| invalid(format!("{value} is no number of seconds to wait")))
}
