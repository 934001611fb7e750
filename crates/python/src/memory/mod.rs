//! Arrays of Python's as memory that the group library moves: whatever has the buffer protocol, and CPU tensors with DLPack.
//!
//! The memory stays exported, so that its owner neither frees nor resizes it, until the [`Array`] is dropped. Nothing else may
//! use its elements meanwhile: no call of Python's can enforce that, so docs/python.md asks it of callers. Elements are plain numbers, so
//! a caller that breaks this law gets wrong numbers.

mod dlpack;
mod format;
mod registered;

use std::fmt;
use std::ptr::NonNull;

use ironrail_group::loader::{DataType, Element, Foreign, ForeignMut, Op};
use ironrail_group::with_element;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::errors::invalid;
use dlpack::Tensor;
use format::Kind;
pub(crate) use registered::Memory;

/// Contiguous elements of one type.
pub(crate) struct Array {
    base: NonNull<u8>,
    count: usize,
    kind: Kind,
    read_only: bool,
    /// Held for its drop alone.
    _keeps: Keeps,
}

/// What exports the memory.
#[expect(dead_code, reason = "held for their drop")]
enum Keeps {
    Buffer(PyUntypedBuffer),
    Tensor(Tensor),
}

// SAFETY: the exported memory may be read and written from any thread, by the law of this file; both owners attach to the interpreter
// before they let go of it.
unsafe impl Send for Array {}
// SAFETY: a shared one only reads.
unsafe impl Sync for Array {}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} of {})", self.count, self.kind.element)
    }
}

impl Array {
    /// Elements to be read. `name` is the name of the argument, for errors.
    pub(crate) fn reading(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        match exported(object) {
            Ok(buffer) => Self::of_buffer(buffer, name, None),
            Err(_) if is_scalar(object) => {
                // This is a copy: what is written to it would be lost.
                let array = Self::reading(&object.call_method0("__array__")?, name)?;
                Ok(Self { read_only: true, ..array })
            }
            Err(_) if is_bfloat16(object) => {
                let words = object.call_method1("view", ("uint16",))?;
                Self::of_buffer(PyUntypedBuffer::get(&words)?, name, Some(Kind::BF16))
            }
            Err(_) if object.hasattr("__dlpack__")? => Self::of_tensor(object, name),
            Err(_) if PyMemoryView::from(object).is_ok() => Err(invalid(format!(
                "{name} is a {} without dimensions: give an array of one element",
                object.get_type().name()?
            ))),
            Err(_) => Err(invalid(format!(
                "{name} is a {}, which has neither the buffer protocol, as NumPy's arrays have it, nor DLPack",
                object.get_type().name()?
            ))),
        }
    }

    /// Elements to be written, and perhaps read.
    pub(crate) fn writing(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let array = Self::reading(object, name)?;
        if array.read_only {
            return Err(invalid(format!("{name} is read-only, and this call writes to it")));
        }
        Ok(array)
    }

    fn of_buffer(buffer: PyUntypedBuffer, name: &str, known: Option<Kind>) -> PyResult<Self> {
        let format = buffer.format().to_string_lossy();
        let found = known.or_else(|| Kind::of_format(&format, buffer.item_size()));
        let kind = found.ok_or_else(|| not_taken(name, &format!("format {format:?}")))?;
        if !buffer.is_c_contiguous() {
            let strides = buffer.strides();
            return Err(invalid(format!(
                "{name} is not C-contiguous (strides {strides:?}): give a copy, as numpy.ascontiguousarray makes it"
            )));
        }
        let (base, count) = (buffer.buf_ptr().cast::<u8>(), buffer.item_count());
        let read_only = buffer.readonly();
        Self::checked(base, count, kind, read_only, Keeps::Buffer(buffer), name)
    }

    fn of_tensor(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let tensor = Tensor::of(object, name)?;
        let kind = tensor.kind().ok_or_else(|| not_taken(name, &tensor.type_name()))?;
        let Some(count) = tensor.count(kind.element.bytes()) else {
            return Err(invalid(format!("{name} has a shape that no memory has room for")));
        };
        if !tensor.is_contiguous(count) {
            return Err(invalid(format!("{name} is not C-contiguous: give a contiguous copy")));
        }
        let (base, read_only) = (tensor.base(), tensor.is_read_only());
        Self::checked(base, count, kind, read_only, Keeps::Tensor(tensor), name)
    }

    fn checked(
        base: *mut u8,
        count: usize,
        kind: Kind,
        read_only: bool,
        keeps: Keeps,
        name: &str,
    ) -> PyResult<Self> {
        // A complex number is aligned as its parts are.
        let aligned = with_element!(kind.element, T => align_of::<T>());
        // No element of an empty array is read, so its address does not matter.
        let base = if count == 0 { std::ptr::without_provenance_mut(aligned) } else { base };
        let found = NonNull::new(base).filter(|base| base.addr().get().is_multiple_of(aligned));
        let Some(base) = found else {
            return Err(invalid(format!("{name} is not aligned to its elements: give a copy")));
        };
        Ok(Self { base, count, kind, read_only, _keeps: keeps })
    }

    /// How many elements there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Where they are.
    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    pub(crate) fn element(&self) -> DataType {
        self.kind.element
    }

    /// Refuses arithmetic on truth values, which have an order only.
    pub(crate) fn reduces_by(&self, op: Op) -> PyResult<()> {
        if self.kind.is_bool && !matches!(op, Op::Min | Op::Max) {
            return Err(invalid(format!("bool has no {op}: min is all, max is any")));
        }
        Ok(())
    }

    /// Checks that both have elements of one type, and no byte in common.
    pub(crate) fn goes_with(&self, other: &Self) -> PyResult<()> {
        if self.kind != other.kind {
            let (one, two) = (self.kind.name(), other.kind.name());
            return Err(invalid(format!("one array is of {one}, the other of {two}")));
        }
        let (one, two) = (self.base.addr().get(), other.base.addr().get());
        let bytes = self.kind.element.bytes();
        if one < two + other.count * bytes && two < one + self.count * bytes {
            return Err(invalid("the two arrays share memory: leave one out to work in place"));
        }
        Ok(())
    }

    /// # Panics
    ///
    /// For another type than [`Array::element`].
    pub(crate) fn elements<T: Element>(&self) -> &[T] {
        assert_eq!(T::TYPE, self.element());
        // SAFETY: exported, aligned and contiguous, as was checked when this was made; any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.base.cast::<T>().as_ptr(), self.count) }
    }

    /// # Panics
    ///
    /// For another type than [`Array::element`], and where the memory is read-only.
    pub(crate) fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        assert!(T::TYPE == self.element() && !self.read_only);
        // SAFETY: as in `elements`, and the owner lets it be written.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast::<T>().as_ptr(), self.count) }
    }

    /// The memory for an operation that goes on after its call has returned.
    ///
    /// # Panics
    ///
    /// As [`Array::elements`].
    pub(crate) fn into_foreign<T: Element>(self) -> Foreign<T> {
        let (base, count) = self.parts::<T>();
        // SAFETY: checked when this was made, and exported until it is dropped.
        unsafe { Foreign::new(base, count, Box::new(self)) }
    }

    /// The same to be written.
    ///
    /// # Panics
    ///
    /// As [`Array::elements_mut`].
    pub(crate) fn into_foreign_mut<T: Element>(self) -> ForeignMut<T> {
        assert!(!self.read_only);
        let (base, count) = self.parts::<T>();
        // SAFETY: as in `into_foreign`, and the owner lets it be written.
        unsafe { ForeignMut::new(base, count, Box::new(self)) }
    }

    fn parts<T: Element>(&self) -> (NonNull<T>, usize) {
        assert_eq!(T::TYPE, self.element());
        (self.base.cast(), self.count)
    }
}

/// Elements as the bytes that they are.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an element is plain numbers without padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// What an object exports. Arrays of ctypes leave out their strides, which a view of them has.
fn exported(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object).or_else(|_| {
        let view = PyMemoryView::from(object)?;
        PyUntypedBuffer::get(&view)
    })
}

/// Whether it is one of NumPy's scalars, whose buffers have no dimension.
fn is_scalar(object: &Bound<'_, PyAny>) -> bool {
    // Where NumPy was not imported, there is none.
    let modules = object.py().import("sys").and_then(|sys| sys.getattr("modules"));
    let numpy = modules.and_then(|modules| modules.get_item("numpy"));
    let scalars = numpy.and_then(|numpy| numpy.getattr("generic"));
    scalars.and_then(|scalars| object.is_instance(&scalars)).unwrap_or(false)
}

/// NumPy knows bfloat16 only from other packages, and exports no buffer of it.
fn is_bfloat16(object: &Bound<'_, PyAny>) -> bool {
    let name = object.getattr("dtype").and_then(|kind| kind.getattr("name"));
    name.and_then(|name| name.extract::<String>()).is_ok_and(|name| name == "bfloat16")
}

fn not_taken(name: &str, what: &str) -> PyErr {
    invalid(format!(
        "{name} has elements of {what}; supported are bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64 and \
         complex64, in this machine's byte order"
    ))
}
