//! Memory as an object with the buffer protocol: registered, for arrays that go on the wire from where they are, or what an object was
//! received into.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::memory::Registered;
use pyo3::ffi;
use pyo3::prelude::*;

/// Zeroed memory that the plugin reads and writes where it is: numpy.frombuffer(memory, dtype) is an array in it.
#[pyclass(frozen, module = "ironrail")]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    _owner: Owner,
}

/// Owns the memory that `base` points to, and is never accessed directly.
#[expect(dead_code, reason = "held for their drop")]
enum Owner {
    Registered(Registered<u8>),
    Vec(Vec<u8>),
}

// SAFETY: an address of memory that this owns. Python's callers read and write it, by the law of `Array`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Memory {
    pub(crate) fn new(group: &Group, bytes: usize) -> Result<Self, GroupError> {
        let mut owner = group.buffer::<u8>(bytes)?;
        let base = NonNull::from(&mut *owner).cast();
        Ok(Self { base, len: bytes, _owner: Owner::Registered(owner) })
    }

    /// Not registered.
    pub(crate) fn of(mut bytes: Vec<u8>) -> Self {
        let base = NonNull::from(&mut *bytes).cast();
        Self { base, len: bytes.len(), _owner: Owner::Vec(bytes) }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let len = ffi::Py_ssize_t::try_from(this.len)?;
        // SAFETY: the interpreter gives a view to be filled. It holds this object, and so the memory, as long as it exports it.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.base.as_ptr().cast(), len, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
