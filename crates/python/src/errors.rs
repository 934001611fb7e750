//! Errors of the group library as exceptions of `ironrail._errors`.

use ironrail_group::error::GroupError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// The exception for a failure. An exception that cannot be made is itself what is raised.
pub(crate) fn raise(error: GroupError) -> PyErr {
    Python::attach(|py| of(py, &error, &error.to_string()).unwrap_or_else(|failed| failed))
}

/// The exception for an invalid argument; no data has moved.
pub(crate) fn invalid(why: impl Into<String>) -> PyErr {
    raise(GroupError::InvalidArgument(why.into()))
}

fn of(py: Python<'_>, error: &GroupError, text: &str) -> PyResult<PyErr> {
    let make = |name: &str| class(py, name)?.call1((text,));
    let made = match error {
        GroupError::Rank { error, .. } => return of(py, error, text),
        GroupError::PeerLost { rank, .. } => with(make("PeerLost")?, &[("rank", *rank)])?,
        GroupError::Aborted { rank } => with(make("Aborted")?, &[("rank", *rank)])?,
        GroupError::Cancelled { rank } => with(make("Cancelled")?, &[("rank", *rank)])?,
        GroupError::Mismatch { rank, .. } => with(make("Mismatch")?, &[("rank", *rank)])?,
        GroupError::Timeout { peers, .. } => {
            let made = make("Timeout")?;
            made.setattr("peers", PyTuple::new(py, peers)?)?;
            made
        }
        GroupError::TooLong { source, tag, bytes, room } => {
            let tag = usize::try_from(*tag).unwrap_or(usize::MAX);
            let fields = [("source", *source), ("tag", tag), ("bytes", *bytes), ("room", *room)];
            with(make("TooLong")?, &fields)?
        }
        GroupError::OtherType { source, tag, .. } => {
            let tag = usize::try_from(*tag).unwrap_or(usize::MAX);
            with(make("OtherType")?, &[("source", *source), ("tag", tag)])?
        }
        other if other.is_usage() => make("InvalidArgument")?,
        _ => make("Error")?,
    };
    Ok(PyErr::from_value(made))
}

/// What `ironrail._errors` has. It is kept because calls of the interpreter's last moments, as in `__del__`, can import nothing.
static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// The exception of this name.
pub(crate) fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let load = || Ok::<_, PyErr>(py.import("ironrail._errors")?.dict().copy()?.unbind());
    CLASSES.get_or_try_init(py, load)?.bind(py).as_any().get_item(name)
}

fn with<'py>(made: Bound<'py, PyAny>, fields: &[(&str, usize)]) -> PyResult<Bound<'py, PyAny>> {
    for (name, value) in fields {
        made.setattr(*name, *value)?;
    }
    Ok(made)
}

/// No holder of a lock has panicked: pyo3 turns panics into exceptions.
pub(crate) fn poisoned<T>(_: T) -> PyErr {
    PyRuntimeError::new_err("another thread panicked in this object")
}
