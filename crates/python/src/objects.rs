//! Picklable objects: what pickle takes out of an object, such as the memory of NumPy's arrays, is sent and received beside it without a copy.

use ironrail_group::objects::Leaf;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::encodable::Encodable;
use crate::memory::{Array, Memory};

/// What is sent for an object: the pickle, and the memory that pickle took out of it.
pub(crate) type Pickled = (Encodable<Leaf<u8>>, Vec<Leaf<u8>>);

/// The first protocol that takes memory out of objects.
const PROTOCOL: u8 = 5;

/// Pickles an object. Its memory is exported until the result is dropped.
pub(crate) fn dump(object: &Bound<'_, PyAny>) -> PyResult<Pickled> {
    let (text, views) = dump_apart(object)?;
    let arrays = views.iter().map(|view| lent(view)).collect::<PyResult<_>>()?;
    Ok((Encodable(Ok(lent(&text)?)), arrays))
}

/// Pickles an object for a collective. One that cannot be pickled takes part as well, since other ranks wait for it; its error is the
/// caller's to return.
pub(crate) fn dump_part(object: &Bound<'_, PyAny>) -> (Pickled, PyResult<()>) {
    match dump(object) {
        Ok(pickled) => (pickled, Ok(())),
        Err(error) => ((Encodable(Err("it cannot be pickled")), Vec::new()), Err(error)),
    }
}

fn lent(bytes: &Bound<'_, PyAny>) -> PyResult<Leaf<u8>> {
    Ok(Array::reading(bytes, "object")?.into_foreign::<u8>().into())
}

/// The pickle, and views of the memory outside of it, as bytes.
fn dump_apart<'py>(
    object: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)> {
    let py = object.py();
    let outside = PyList::empty(py);
    let options = PyDict::new(py);
    options.set_item("protocol", PROTOCOL)?;
    options.set_item("buffer_callback", outside.getattr("append")?)?;
    let text = py.import("pickle")?.call_method("dumps", (object,), Some(&options))?;
    let views = outside.iter().map(|buffer| buffer.call_method0("raw"));
    Ok((text, views.collect::<PyResult<_>>()?))
}

/// The object that was sent, in memory of its own.
pub(crate) fn load(py: Python<'_>, pickled: Pickled) -> PyResult<Bound<'_, PyAny>> {
    load_into(py, pickled, &mut Offer::default())
}

/// The same, where arrays may be in memory that was offered.
pub(crate) fn load_into<'py>(
    py: Python<'py>,
    (text, arrays): Pickled,
    offer: &mut Offer<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let buffers = PyList::empty(py);
    let views: Vec<_> = arrays.iter().map(|array| offer.take(array.len())).collect();
    // A long array may have been received into the view of another array. It is copied elsewhere before that array is copied to its view.
    let is_view = |address| views.iter().flatten().any(|view| view.address == address);
    let is_in = |array: &[u8], view: &Lent<'_>| array.as_ptr().addr() == view.address;
    let displaced = |(array, view): (&Leaf<u8>, &Option<Lent<'_>>)| {
        let is_home = view.as_ref().is_some_and(|view| is_in(array, view));
        (!is_home && is_view(array.as_ptr().addr())).then(|| array.to_vec())
    };
    let displaced: Vec<_> = arrays.iter().zip(&views).map(displaced).collect();
    for ((array, view), displaced) in arrays.into_iter().zip(views).zip(displaced) {
        let Some(view) = view else {
            buffers.append(Memory::of(displaced.unwrap_or_else(|| array.into_vec())))?;
            continue;
        };
        if !is_in(&array, &view) {
            let bytes = displaced.as_deref().unwrap_or(&array);
            Array::writing(&view.view, "into")?.elements_mut().copy_from_slice(bytes);
        }
        buffers.append(view.view)?;
    }
    let options = PyDict::new(py);
    options.set_item("buffers", buffers)?;
    let text = Bound::new(py, Memory::of(text.0.unwrap_or_default().into_vec()))?;
    py.import("pickle")?.call_method("loads", (text,), Some(&options))
}

/// Memory of an earlier object, to receive into.
#[derive(Default)]
pub(crate) struct Offer<'py> {
    /// Views that no array uses so far.
    views: Vec<Lent<'py>>,
}

struct Lent<'py> {
    address: usize,
    view: Bound<'py, PyAny>,
    len: usize,
}

impl<'py> Offer<'py> {
    /// The memory that pickle takes out of an object: the parts that may be written and do not overlap others.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<(Self, Pickled)> {
        let (mut views, mut arrays) = (Vec::<Lent<'_>>::new(), Vec::new());
        for view in dump_apart(object)?.1 {
            let Ok(array) = Array::writing(&view, "into") else { continue };
            let (address, len) = (array.address(), array.count());
            let apart = |other: &Lent<'_>| {
                address + len <= other.address || other.address + other.len <= address
            };
            if len > 0 && views.iter().all(apart) {
                arrays.push(array.into_foreign_mut::<u8>().into());
                views.push(Lent { address, view, len });
            }
        }
        Ok((Self { views }, (Encodable(Ok(Leaf::default())), arrays)))
    }

    /// The first view of this length that is left.
    fn take(&mut self, len: usize) -> Option<Lent<'py>> {
        let fits = self.views.iter().position(|lent| lent.len == len)?;
        Some(self.views.remove(fits))
    }
}
