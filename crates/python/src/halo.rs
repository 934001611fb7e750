//! Sparse exchanges and halos. Their messages are of unknown length, so the group library owns their memory: a copy each way.

use std::fmt;

use ironrail_group::error::GroupError;
use ironrail_group::exchange;
use ironrail_group::group::Group as Inner;
use ironrail_group::halo;
use ironrail_group::loader::{DataType, Element};
use ironrail_group::with_element;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use crate::arguments::seconds;
use crate::errors::{invalid, raise};
use crate::memory::{Array, bytes_of};
use crate::part::{Part, Row};

/// One sparse exchange: this rank sends any number of messages of any length to some ranks, and receives what some ranks send. Any thread may
/// insert. Dropped before its end it is cancelled, at the destinations too unless it is finished.
#[pyclass(frozen, weakref, module = "ironrail")]
#[derive(Debug)]
pub(crate) struct Exchange(Part<exchange::Exchange<u8>>);

impl Exchange {
    pub(crate) fn new(
        group: &Inner,
        sources: &[usize],
        destinations: &[usize],
    ) -> Result<Self, GroupError> {
        Ok(Self(Part::new(group.exchange(sources, destinations)?)))
    }
}

#[pymethods]
impl Exchange {
    /// Sends the bytes of `data`, and those of `meta`, to one of the destinations. They are copied: `data` may be changed.
    #[pyo3(signature = (destination, data, meta=None))]
    fn insert(
        &self,
        py: Python<'_>,
        destination: usize,
        data: &Bound<'_, PyAny>,
        meta: Option<Vec<u8>>,
    ) -> PyResult<()> {
        let data = Array::reading(data, "data")?;
        let data = with_element!(data.element(), T => bytes_of(data.elements::<T>()).to_vec());
        let meta = meta.unwrap_or_default();
        let inner = self.0.get()?;
        py.detach(|| inner.insert(destination, meta, data)).map_err(raise)
    }

    /// Says that this rank inserts nothing more.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.0.get()?;
        py.detach(|| inner.finish()).map_err(raise)
    }

    /// Waits until all messages have come, and all of this rank's have gone. Timeout names the silent sources; by default it comes
    /// after three quarters of the group's timeout.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = timeout.map(seconds).transpose()?;
        let inner = self.0.get()?;
        py.detach(|| match limit {
            Some(limit) => inner.wait_timeout(limit),
            None => inner.wait(),
        })
        .map_err(raise)
    }

    /// Whether it is complete. Makes progress, and does not wait.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.0.get()?;
        py.detach(|| inner.test()).map_err(raise)
    }

    /// A source's messages in the order in which it inserted them, as pairs of meta and data; once, when the exchange is complete.
    fn take<'py>(
        &self,
        py: Python<'py>,
        source: usize,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyByteArray>)>> {
        let inner = self.0.get()?;
        let messages = py.detach(|| inner.take(source)).map_err(raise)?;
        let pair = |message: &exchange::Message<u8>| {
            (PyBytes::new(py, &message.meta), PyByteArray::new(py, &message.data))
        };
        Ok(messages.iter().map(pair).collect())
    }
}

/// A border that came.
type View<'py> = Bound<'py, PyMemoryView>;

/// A halo of whatever element type.
trait Halo: Send {
    fn neighbours(&self) -> (Option<usize>, Option<usize>);
    /// Sends the given borders to the left and to the right. Returns the bytes that came from the left and from the right.
    fn round(
        &mut self,
        left: Option<Array>,
        right: Option<Array>,
    ) -> Result<[Option<Vec<u8>>; 2], GroupError>;
}

impl<T: Element> Halo for halo::Halo1d<T> {
    fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        self.neighbours()
    }

    fn round(
        &mut self,
        left: Option<Array>,
        right: Option<Array>,
    ) -> Result<[Option<Vec<u8>>; 2], GroupError> {
        let own = |array: Option<Array>| array.map(|array| array.elements::<T>().to_vec());
        let (from_left, from_right) = self.round(own(left), own(right))?;
        let bytes = |border: Option<Vec<T>>| border.map(|border| bytes_of(&border).to_vec());
        Ok([bytes(from_left), bytes(from_right)])
    }
}

/// This rank's place in a row, or in a ring, of all ranks of a group: each round swaps borders with the neighbours.
#[pyclass(frozen, weakref, module = "ironrail")]
pub(crate) struct Halo1d {
    row: Row<dyn Halo>,
    neighbours: (Option<usize>, Option<usize>),
    element: DataType,
}

impl fmt::Debug for Halo1d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Halo1d").field("element", &self.element).finish_non_exhaustive()
    }
}

impl Halo1d {
    pub(crate) fn new(group: &Inner, element: DataType, ring: bool) -> Self {
        let row: Box<dyn Halo> = with_element!(element, T => Box::new(if ring {
            halo::Halo1d::<T>::ring(group)
        } else {
            halo::Halo1d::<T>::new(group)
        }));
        let neighbours = row.neighbours();
        Self { row: Row::of(row), neighbours, element }
    }

    fn border(&self, array: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Option<Array>> {
        array.map(|array| of_type(Array::reading(array, name)?, name, self.element)).transpose()
    }
}

/// A border of a halo of this element type.
pub(crate) fn of_type(array: Array, name: &str, element: DataType) -> PyResult<Array> {
    if array.element() == element {
        return Ok(array);
    }
    let (own, element) = (array.element().numpy_name(), element.numpy_name());
    Err(invalid(format!("{name} is of {own}, and this halo of {element}")))
}

#[pymethods]
impl Halo1d {
    /// The ranks on the left and on the right, None at the ends of a row.
    #[getter]
    fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        self.neighbours
    }

    /// Sends `left` to the left and `right` to the right, and returns what came from the left and from the right: writable memory, which
    /// numpy.frombuffer(border, dtype) takes without a copy, or None where nothing came. What is sent to a neighbour that does not exist is ignored.
    #[pyo3(signature = (left=None, right=None))]
    fn round<'py>(
        &self,
        py: Python<'py>,
        left: Option<&Bound<'py, PyAny>>,
        right: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Option<View<'py>>, Option<View<'py>>)> {
        let (left, right) = (self.border(left, "left")?, self.border(right, "right")?);
        let [left, right] = self.row.step(py, |row| row.round(left, right))?;
        let view = |border: Option<Vec<u8>>| {
            border.map(|bytes| PyMemoryView::from(&PyByteArray::new(py, &bytes))).transpose()
        };
        Ok((view(left)?, view(right)?))
    }
}
