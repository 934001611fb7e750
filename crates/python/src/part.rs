//! What a child of `os.fork` leaves to its parent: connections are the parent's, and a lock that a thread had at the fork is never released.

use std::fmt;
use std::mem::ManuallyDrop;
use std::process;
use std::sync::Mutex;

use ironrail_group::error::GroupError;
use pyo3::prelude::*;

use crate::errors::{invalid, poisoned, raise};

/// A part of a group. It is dropped without the interpreter, since that takes the group's lock and may leave the group. In a child it is never dropped.
pub(crate) struct Part<T: Send> {
    /// Until the drop.
    part: Option<T>,
    /// The process that joined.
    process: u32,
}

impl<T: Send> Part<T> {
    pub(crate) fn new(part: T) -> Self {
        Self { part: Some(part), process: process::id() }
    }

    /// Whether this is a copy in a child of the process that joined.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    /// Refuses the calls of such a child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.is_forked() {
            return Err(invalid(
                "this process was forked from the one that joined the group, and cannot use it: start processes by spawn, or before the first one joins",
            ));
        }
        Ok(self.part.as_ref().expect("it is taken out when this is dropped"))
    }
}

impl<T: Send> Drop for Part<T> {
    fn drop(&mut self) {
        let part = self.part.take();
        if self.is_forked() {
            let _never_dropped = ManuallyDrop::new(part);
            return;
        }
        Python::try_attach(|py| py.detach(move || drop(part)));
    }
}

impl<T: Send> fmt::Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").finish_non_exhaustive()
    }
}

/// A row of neighbours, which is in one round at a time; taken out during a step.
pub(crate) type Row<R> = Part<Mutex<Option<Box<R>>>>;

impl<R: Send + ?Sized> Row<R> {
    pub(crate) fn of(row: Box<R>) -> Self {
        Self::new(Mutex::new(Some(row)))
    }

    /// Runs a step of a round without the interpreter.
    pub(crate) fn step<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut R) -> Result<T, GroupError> + Send,
    ) -> PyResult<T> {
        let row = self.get()?;
        let taken = row.lock().map_err(poisoned)?.take();
        let mut taken =
            taken.ok_or_else(|| invalid("another thread is in a round of this halo"))?;
        let ended = py.detach(|| step(&mut taken));
        *row.lock().map_err(poisoned)? = Some(taken);
        ended.map_err(raise)
    }
}
