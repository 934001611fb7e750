//! DLPack's structures of C, versions 0 and 1 (dlpack.h), and the capsules that carry them.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use ironrail_group::loader::DataType;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule};
use pyo3::{ffi, intern};

use super::format::Kind;
use crate::errors::invalid;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Described {
    data: *mut u8,
    device: Device,
    dimensions: i32,
    element: Type,
    shape: *const i64,
    /// In elements; null for a contiguous tensor.
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Described,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Described,
}

/// A tensor in host memory, held until this is dropped.
pub(super) struct Tensor(Form);

enum Form {
    Unversioned(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

impl Tensor {
    /// Asks an object for its tensor.
    pub(super) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let py = object.py();
        let refused = |error| refused(py, name, error);
        let device = object.call_method0("__dlpack_device__").map_err(refused)?;
        let (device, _): (i64, i64) = device.extract().map_err(refused)?;
        if ![CPU, CUDA_HOST].contains(&device) {
            return Err(invalid(format!(
                "{name} lies on a device (of DLPack's type {device}), and only host memory is taken: copy it to the CPU first"
            )));
        }
        let method = object.getattr(intern!(py, "__dlpack__"))?;
        let newest = [("max_version", (1_u32, 0_u32))].into_py_dict(py)?;
        let capsule = match method.call((), Some(&newest)) {
            // A producer of version 0 does not know the argument.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call0(),
            other => other,
        };
        let capsule = capsule.and_then(|given| Ok(given.cast_into::<PyCapsule>()?));
        let capsule = capsule.map_err(refused)?;
        if let Some(found) = take(&capsule, c"dltensor_versioned", c"used_dltensor_versioned") {
            let tensor = Self(Form::Versioned(found.cast()));
            if tensor.major() > 1 {
                return Err(invalid(format!("{name} has a version of DLPack after 1")));
            }
            return Ok(tensor);
        }
        match take(&capsule, c"dltensor", c"used_dltensor") {
            Some(found) => Ok(Self(Form::Unversioned(found.cast()))),
            None => Err(invalid(format!(
                "{name} gives an invalid DLPack capsule, or one that was used before"
            ))),
        }
    }

    fn described(&self) -> &Described {
        match &self.0 {
            // SAFETY: the capsule's name said that it is this structure, and its deleter was not called yet.
            Form::Unversioned(managed) => unsafe { &managed.as_ref().tensor },
            // SAFETY: as above.
            Form::Versioned(managed) => unsafe { &managed.as_ref().tensor },
        }
    }

    fn major(&self) -> u32 {
        match &self.0 {
            Form::Unversioned(_) => 0,
            // SAFETY: as in `described`; the version stands first in all versions.
            Form::Versioned(managed) => unsafe { managed.as_ref().version[0] },
        }
    }

    /// Version 0 does not say.
    pub(super) fn is_read_only(&self) -> bool {
        match &self.0 {
            Form::Unversioned(_) => false,
            // SAFETY: as in `described`.
            Form::Versioned(managed) => unsafe { managed.as_ref().flags & READ_ONLY != 0 },
        }
    }

    pub(super) fn base(&self) -> *mut u8 {
        let Described { data, byte_offset, .. } = self.described();
        data.wrapping_add(usize::try_from(*byte_offset).unwrap_or(0))
    }

    fn dimensions(&self) -> usize {
        usize::try_from(self.described().dimensions).unwrap_or(0)
    }

    fn shape(&self) -> &[i64] {
        let shape = self.described().shape;
        if shape.is_null() {
            return &[];
        }
        // SAFETY: dlpack.h: as many numbers as the tensor has dimensions.
        unsafe { std::slice::from_raw_parts(shape, self.dimensions()) }
    }

    /// The number of elements, of `bytes` bytes each. None if no memory has room for them: strides of 0 make any number of a single one.
    pub(super) fn count(&self, bytes: usize) -> Option<usize> {
        if self.shape().len() != self.dimensions() {
            return None;
        }
        let count = self
            .shape()
            .iter()
            .try_fold(1_usize, |count, len| count.checked_mul(usize::try_from(*len).ok()?))?;
        isize::try_from(count.checked_mul(bytes)?).is_ok().then_some(count)
    }

    /// Whether `count` elements lie one after the other.
    pub(super) fn is_contiguous(&self, count: usize) -> bool {
        let strides = self.described().strides;
        if strides.is_null() || count == 0 {
            return true;
        }
        // SAFETY: as in `shape`.
        let strides = unsafe { std::slice::from_raw_parts(strides, self.dimensions()) };
        let mut expected = 1;
        self.shape().iter().zip(strides).rev().all(|(len, stride)| {
            let fits = *len == 1 || *stride == expected;
            expected *= len;
            fits
        })
    }

    /// The type of its elements as text, for the error about a type that is not supported.
    pub(super) fn type_name(&self) -> String {
        let Type { code, bits, lanes } = self.described().element;
        let name = match code {
            SIGNED => "int",
            UNSIGNED => "uint",
            FLOAT => "float",
            BFLOAT => "bfloat",
            COMPLEX => "complex",
            BOOL => "bool",
            _ => return format!("DLPack's type {code} of {bits} bits"),
        };
        let lanes = if lanes == 1 { String::new() } else { format!("x{lanes}") };
        format!("DLPack's {name}{bits}{lanes}")
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        let Type { code, bits, lanes } = self.described().element;
        if lanes != 1 || bits % 8 != 0 {
            return None;
        }
        let element = match (code, bits) {
            (SIGNED, _) => Kind::integer(true, usize::from(bits / 8))?,
            (UNSIGNED, _) => Kind::integer(false, usize::from(bits / 8))?,
            (FLOAT, 16) => DataType::F16,
            (FLOAT, 32) => DataType::F32,
            (FLOAT, 64) => DataType::F64,
            (BFLOAT, 16) => DataType::BF16,
            (COMPLEX, 64) => DataType::C64,
            (BOOL, 8) => return Some(Kind::BOOL),
            _ => return None,
        };
        Some(Kind::of(element))
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // A deleter may touch Python's objects, which are gone if the interpreter is.
        Python::try_attach(|_| match self.0 {
            Form::Unversioned(managed) => {
                // SAFETY: as in `described`.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: called once, for what the capsule gave us to delete.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Form::Versioned(managed) => {
                // SAFETY: as above.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        });
    }
}

/// A producer's error as InvalidArgument. An exception that ends a program, such as KeyboardInterrupt, is raised as it is.
fn refused(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let refusal = invalid(format!("{name} gives no tensor of DLPack: {}", error.value(py)));
    refusal.set_cause(py, Some(error));
    refusal
}

/// Takes what a capsule of this name carries, and renames it, so that it is not taken twice.
fn take(
    capsule: &Bound<'_, PyCapsule>,
    name: &CStr,
    used: &'static CStr,
) -> Option<NonNull<c_void>> {
    // SAFETY: a capsule, and a name that ends in a zero.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: valid by that name.
    let found =
        NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) })?;
    // SAFETY: the new name lives as long as the program.
    let renamed = unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) };
    (renamed == 0).then_some(found)
}

const CPU: i64 = 1;
const CUDA_HOST: i64 = 3;
const READ_ONLY: u64 = 1;
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;
