//! `ironrail-group` for Python: the module `ironrail._native`, which the package `ironrail` shows.
//!
//! A call checks its arguments with the interpreter attached, then lets go of the interpreter while it waits. It takes no lock of the
//! group's while it is attached, since another thread that holds the lock may wait for the interpreter.
//!
//! `unsafe` lives in `memory` only.
#![deny(unsafe_code)]

mod arguments;
mod encodable;
mod errors;
mod fixed_halo;
mod group;
mod halo;
mod held;
mod init;
mod member;
#[expect(unsafe_code, reason = "Python's memory, and DLPack's structures of C")]
mod memory;
mod numbers;
mod object_batch;
mod objects;
mod part;
mod reductions;
mod request;

use pyo3::prelude::*;

/// Ranks, messages and collectives over a network plugin for NCCL.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::class(module.py(), "Error")?;
    module.add_class::<group::Group>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<object_batch::ObjectBatch>()?;
    module.add_class::<request::Received>()?;
    module.add_class::<request::Coming>()?;
    module.add_class::<halo::Exchange>()?;
    module.add_class::<halo::Halo1d>()?;
    module.add_class::<fixed_halo::FixedHalo1d>()?;
    module.add_function(wrap_pyfunction!(reductions::check_reducible, module)?)?;
    module.add_function(wrap_pyfunction!(init::leave_all, module)?)?;
    module.add_function(wrap_pyfunction!(init::init, module)?)
}
