//! Sends and receives of objects that run together.

use std::sync::{Arc, Mutex};

use ironrail_group::objects;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::arguments::{any_source, any_tag};
use crate::errors::{poisoned, raise};
use crate::member::Member;
use crate::objects::{Pickled, dump, load};

/// A queue of sends and receives of objects that run together: no order of them can wait for itself, and a rank may send to itself.
#[pyclass(frozen, module = "ironrail")]
#[derive(Debug)]
pub(crate) struct ObjectBatch {
    member: Arc<Member>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    sends: Vec<(Pickled, usize, u32)>,
    receives: Vec<(Option<usize>, Option<u32>)>,
}

impl ObjectBatch {
    pub(crate) fn new(member: Arc<Member>) -> Self {
        Self { member, queue: Mutex::default() }
    }
}

#[pymethods]
impl ObjectBatch {
    /// Adds a send. The object's arrays must be left alone until execute returns.
    #[pyo3(signature = (object, to, tag=0))]
    fn send(&self, object: &Bound<'_, PyAny>, to: usize, tag: u32) -> PyResult<()> {
        self.member.pickles([to])?;
        let pickled = dump(object)?;
        self.queue.lock().map_err(poisoned)?.sends.push((pickled, to, tag));
        Ok(())
    }

    /// Adds a receive. None for `source` or `tag` is any.
    #[pyo3(signature = (source=None, tag=None))]
    fn recv(&self, source: Option<usize>, tag: Option<u32>) -> PyResult<()> {
        self.member.pickles(source)?;
        self.queue.lock().map_err(poisoned)?.receives.push((source, tag));
        Ok(())
    }

    /// Runs all that was added, and empties the queue: the received objects, in the order of the receives. Of receives that match the same
    /// message, the one added first takes it. An error is raised after all have ended: its `received` is the list, with None for what did not
    /// come, or could not be unpickled.
    fn execute<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let Queue { sends, receives } = std::mem::take(&mut *self.queue.lock().map_err(poisoned)?);
        let (received, ended) = self.member.run(py, move |group| {
            let mut received: Vec<_> = receives.iter().map(|_| None).collect();
            let mut batch = objects::ObjectBatch::new();
            for ((source, tag), into) in receives.into_iter().zip(&mut received) {
                batch.recv::<Pickled>(into, any_source(source), any_tag(tag));
            }
            for (pickled, to, tag) in &sends {
                batch.send(pickled, *to, *tag);
            }
            let ended = batch.execute(group);
            Ok((received, ended))
        })?;
        let mut failed = ended.err().map(raise);
        let mut objects = Vec::new();
        for came in received {
            match came.map(|(pickled, _)| load(py, pickled)).transpose() {
                Ok(object) => objects.push(object),
                // Ctrl-C, and other exceptions that end the program.
                Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
                Err(error) => {
                    failed.get_or_insert(error);
                    objects.push(None);
                }
            }
        }
        let Some(error) = failed else { return Ok(objects.into_iter().flatten().collect()) };
        // An exception that takes no attributes is raised without the list.
        let _ = error.value(py).setattr("received", objects);
        Err(error)
    }
}
