//! A rank's membership in a group: what all classes of Python that belong to a group call it by.

use std::sync::{Arc, Mutex};

use ironrail_group::error::GroupError;
use ironrail_group::group::Group as Inner;
use pyo3::prelude::*;

use crate::errors::{invalid, poisoned, raise};
use crate::request::{Orphans, Pending, Request};

#[derive(Debug)]
pub(crate) struct Member {
    /// None once this rank has left.
    inner: Mutex<Option<Inner>>,
    orphans: Arc<Orphans>,
    rank: usize,
    size: usize,
    /// For each rank, whether it has set allow_pickle.
    pickles: Vec<bool>,
}

impl Member {
    pub(crate) fn new(inner: Inner) -> Self {
        let (rank, size) = (inner.rank(), inner.size());
        let pickles = (0..size).map(|rank| inner.features(rank) & PICKLES != 0).collect();
        let orphans = Orphans::of_a_group();
        Self { inner: Mutex::new(Some(inner)), orphans, rank, size, pickles }
    }

    /// Runs a call without the interpreter.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Inner) -> Result<R, GroupError> + Send,
    ) -> PyResult<R> {
        self.orphans.check()?;
        let inner = self.inner.lock().map_err(poisoned)?.clone();
        let inner = inner.ok_or_else(|| invalid("this group is closed"))?;
        py.detach(move || {
            self.orphans.sweep();
            let ended = call(&inner);
            // The last handle of a group waits for others to leave.
            drop(inner);
            ended
        })
        .map_err(raise)
    }

    /// Begins an operation that goes on when the call has returned.
    pub(crate) fn begin<P: Pending + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Inner) -> Result<P, GroupError> + Send,
    ) -> PyResult<Request> {
        let pending = self.run(py, |group| Ok(Box::new(call(group)?) as Box<dyn Pending>))?;
        Ok(Request::new(pending, &self.orphans))
    }

    /// Leaves the group, as soon as all groups split from it and all requests are gone too.
    pub(crate) fn leave(&self, py: Python<'_>) {
        let inner = self.inner.lock().ok().and_then(|mut inner| inner.take());
        py.detach(|| {
            self.orphans.wait();
            drop(inner);
        });
    }

    /// Refuses pickles where this rank, or one of those that take part, has not allowed them.
    pub(crate) fn pickles(&self, with: impl IntoIterator<Item = usize>) -> PyResult<()> {
        let refuses = |rank: &usize| self.pickles.get(*rank) == Some(&false);
        if refuses(&self.rank) {
            return Err(invalid(
                "objects travel as pickles, which can run any code where they are received: init(allow_pickle=True) allows them",
            ));
        }
        with.into_iter().find(refuses).map_or(Ok(()), |rank| {
            Err(invalid(format!(
                "rank {rank} sends and receives no pickles: its init was called without allow_pickle=True"
            )))
        })
    }

    /// As [`Self::pickles`], with all ranks.
    pub(crate) fn pickles_of_all(&self) -> PyResult<()> {
        self.pickles(0..self.size)
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.orphans.check()?;
        let inner = self.inner.lock().map_err(poisoned)?.clone();
        py.detach(move || {
            if let Some(inner) = inner {
                inner.abort();
            }
        });
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        Python::try_attach(|py| self.leave(py));
    }
}

/// Of [`Inner::features`]: allow_pickle.
pub(crate) const PICKLES: u32 = 1;
