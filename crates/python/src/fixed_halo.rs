//! Halos of fixed lengths: borders go through registered memory of the halo, one copy each way between it and the caller's arrays.

use std::fmt;

use ironrail_group::error::GroupError;
use ironrail_group::group::Group as Inner;
use ironrail_group::halo;
use ironrail_group::loader::{DataType, Element};
use ironrail_group::with_element;
use pyo3::prelude::*;

use crate::errors::invalid;
use crate::halo::of_type;
use crate::memory::Array;
use crate::part::Row;

/// A halo of whatever element type.
trait Halo: Send {
    fn neighbours(&self) -> Sides<Option<usize>>;
    fn begin(&mut self, out: &Sides<Option<Array>>) -> Result<(), GroupError>;
    fn end(&mut self, into: &mut Sides<Option<Array>>) -> Result<(), GroupError>;
}

/// A value for the left and one for the right.
type Sides<T> = (T, T);

impl<T: Element> Halo for halo::FixedHalo1d<T> {
    fn neighbours(&self) -> Sides<Option<usize>> {
        self.neighbours()
    }

    fn begin(&mut self, (left, right): &Sides<Option<Array>>) -> Result<(), GroupError> {
        let copy = |border: &mut [T], array: &Option<Array>| {
            if let Some(array) = array {
                border.copy_from_slice(array.elements());
            }
        };
        // Dropped, the round goes on.
        self.begin(|to_left, to_right| {
            copy(to_left, left);
            copy(to_right, right);
        })
        .map(drop)
    }

    fn end(&mut self, (left, right): &mut Sides<Option<Array>>) -> Result<(), GroupError> {
        let copy = |array: &mut Option<Array>, border: Option<&[T]>| {
            if let (Some(array), Some(border)) = (array, border) {
                array.elements_mut().copy_from_slice(border);
            }
        };
        let (from_left, from_right) = self.end()?;
        copy(left, from_left);
        copy(right, from_right);
        Ok(())
    }
}

/// This rank's place in a row, or in a ring, of all ranks of a group, whose borders have the same lengths in every round: faster than Halo1d.
/// Dropped, it is cancelled: what was sent arrives, and a neighbour that begins another round gets Cancelled.
#[pyclass(frozen, weakref, module = "ironrail")]
pub(crate) struct FixedHalo1d {
    row: Row<dyn Halo>,
    neighbours: Sides<Option<usize>>,
    lengths: Sides<usize>,
    element: DataType,
}

impl fmt::Debug for FixedHalo1d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedHalo1d").field("element", &self.element).finish_non_exhaustive()
    }
}

impl FixedHalo1d {
    pub(crate) fn new(
        group: &Inner,
        element: DataType,
        ring: bool,
        (left, right): Sides<usize>,
    ) -> Result<Self, GroupError> {
        let row: Box<dyn Halo> = with_element!(element, T => Box::new(if ring {
            halo::FixedHalo1d::<T>::ring(group, left, right)?
        } else {
            halo::FixedHalo1d::<T>::new(group, left, right)?
        }));
        let neighbours = row.neighbours();
        Ok(Self { row: Row::of(row), neighbours, lengths: (left, right), element })
    }

    /// The borders to send. Each neighbour that waits for a border must be sent one.
    fn out(&self, left: Given<'_, '_>, right: Given<'_, '_>) -> PyResult<Sides<Option<Array>>> {
        let side = |given: Given<'_, '_>, name: &str, there: Option<usize>, length: usize| {
            let (Some(rank), true) = (there, length > 0) else { return Ok(None) };
            let Some(given) = given else {
                return Err(invalid(format!("{name} is missing: rank {rank} waits for it")));
            };
            self.fits(Array::reading(given, name)?, name, length).map(Some)
        };
        let ((one, other), (short, long)) = (self.neighbours, self.lengths);
        Ok((side(left, "left", one, short)?, side(right, "right", other, long)?))
    }

    /// The arrays for the borders that come. Nothing comes from a side without a neighbour.
    fn into(&self, left: Given<'_, '_>, right: Given<'_, '_>) -> PyResult<Sides<Option<Array>>> {
        let side = |given: Given<'_, '_>, name: &str, there: Option<usize>, length: usize| {
            let given = given.filter(|_| there.is_some() && length > 0);
            given.map(|given| self.fits(Array::writing(given, name)?, name, length)).transpose()
        };
        let ((one, other), (short, long)) = (self.neighbours, self.lengths);
        let into = (side(left, "from_left", one, short)?, side(right, "from_right", other, long)?);
        if let (Some(left), Some(right)) = &into {
            left.goes_with(right)?;
        }
        Ok(into)
    }

    fn fits(&self, array: Array, name: &str, length: usize) -> PyResult<Array> {
        let array = of_type(array, name, self.element)?;
        if array.count() == length {
            return Ok(array);
        }
        Err(invalid(format!("{name} has {} elements, and this border {length}", array.count())))
    }
}

type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

#[pymethods]
impl FixedHalo1d {
    /// The ranks on the left and on the right, None at the ends of a row.
    #[getter]
    fn neighbours(&self) -> Sides<Option<usize>> {
        self.neighbours
    }

    /// Sends `left` to the left and `right` to the right, and writes what came from the left to `from_left`, and what came from the right to
    /// `from_right`. Arrays for a side without a neighbour, at the ends of a row, or with a border of length 0, are ignored: they are neither read nor
    /// written. A border that came is dropped if there is no array for it. Timeout names silent neighbours; the next round waits for this one first.
    #[pyo3(signature = (left=None, right=None, from_left=None, from_right=None))]
    fn round(
        &self,
        py: Python<'_>,
        left: Option<&Bound<'_, PyAny>>,
        right: Option<&Bound<'_, PyAny>>,
        from_left: Option<&Bound<'_, PyAny>>,
        from_right: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (out, mut into) = (self.out(left, right)?, self.into(from_left, from_right)?);
        self.row.step(py, |row| {
            row.begin(&out)?;
            row.end(&mut into)
        })
    }

    /// Begins a round, which goes on while this rank computes: `left` and `right` may be changed at once. A round that is not ended goes
    /// on, and the next one waits for it.
    #[pyo3(signature = (left=None, right=None))]
    fn begin(
        &self,
        py: Python<'_>,
        left: Option<&Bound<'_, PyAny>>,
        right: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let out = self.out(left, right)?;
        self.row.step(py, |row| row.begin(&out))
    }

    /// Waits for the round that was begun last, and writes what came by it, as round does.
    #[pyo3(signature = (from_left=None, from_right=None))]
    fn end(
        &self,
        py: Python<'_>,
        from_left: Option<&Bound<'_, PyAny>>,
        from_right: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut into = self.into(from_left, from_right)?;
        self.row.step(py, |row| row.end(&mut into))
    }
}
