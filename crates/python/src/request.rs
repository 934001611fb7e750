//! Sends and receives that go on when their call has returned.
//!
//! A request holds its array's memory until it has ended. A receive whose request is dropped before a message has come to it is
//! taken back; other operations that go on are kept by their group until they end.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ironrail_group::error::GroupError;
use ironrail_group::loader::{Element, Foreign, ForeignMut};
use ironrail_group::messages;
use ironrail_group::objects::{
    BroadcastingObject, GatheringObjects, ReceivingObject, SendingObject,
};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::arguments::seconds;
use crate::errors::{invalid, poisoned, raise};
use crate::held::Held;
use crate::numbers::Reduced;
use crate::objects::{self, Pickled};
use crate::part::Part;

/// What a receive got: `source`, the rank that sent it; `tag`; and `count`, elements from the start of the array on. The rest of the array
/// is as it was.
#[pyclass(frozen, get_all, module = "ironrail")]
#[derive(Debug)]
pub(crate) struct Received {
    source: usize,
    tag: u32,
    count: usize,
}

#[pymethods]
impl Received {
    fn __repr__(&self) -> String {
        let Self { source, tag, count } = self;
        format!("Received(source={source}, tag={tag}, count={count})")
    }
}

impl From<messages::Received> for Received {
    fn from(messages::Received { source, tag, count }: messages::Received) -> Self {
        Self { source, tag, count }
    }
}

/// A message that can be received: `source`, the rank that sends it; `tag`; `bytes`, its length; and `dtype`, the type of its elements by its name in
/// NumPy, "uint8" of booleans and "bfloat16", which NumPy lacks.
#[pyclass(frozen, get_all, module = "ironrail")]
#[derive(Debug)]
pub(crate) struct Coming {
    source: usize,
    tag: u32,
    bytes: usize,
    dtype: &'static str,
}

#[pymethods]
impl Coming {
    fn __repr__(&self) -> String {
        let Self { source, tag, bytes, dtype } = self;
        format!("Coming(source={source}, tag={tag}, bytes={bytes}, dtype={dtype:?})")
    }
}

impl From<messages::Coming> for Coming {
    fn from(messages::Coming { source, tag, bytes, element }: messages::Coming) -> Self {
        Self { source, tag, bytes, dtype: element.numpy_name() }
    }
}

/// What an operation has given at its end.
#[derive(Debug)]
pub(crate) enum Outcome {
    Nothing,
    Received(messages::Received),
    Object(Box<Pickled>),
    Objects(Vec<Pickled>),
    Reduced(Reduced),
}

impl Outcome {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Nothing => py.None(),
            Self::Received(received) => Py::new(py, Received::from(received))?.into_any(),
            Self::Object(pickled) => objects::load(py, *pickled)?.unbind(),
            Self::Objects(all) => {
                let all: PyResult<Vec<_>> =
                    all.into_iter().map(|one| objects::load(py, one)).collect();
                PyList::new(py, all?)?.into_any().unbind()
            }
            Self::Reduced(reduced) => reduced.into_python(py)?,
        })
    }
}

/// An operation of whatever element type.
pub(crate) trait Pending: Send {
    fn test(&mut self) -> Result<bool, GroupError>;
    fn wait_for(&mut self, limit: Duration) -> Result<bool, GroupError>;
    fn wait(self: Box<Self>) -> Result<Outcome, GroupError>;
    /// Takes the operation back, if that is possible. Returns whether it was taken back, and so has ended.
    fn take_back(&mut self) -> bool;
    /// Whether the group goes on testing it until it ends if its request is dropped. Otherwise it is dropped too: messages that it sends still go out,
    /// and those that come for it are dropped at once, so that no other rank waits for a call of this one.
    fn goes_on(&self) -> bool;
    /// Whether it is a send to this rank, which ends when this rank receives it, and never once its group is gone.
    fn is_to_itself(&self) -> bool {
        false
    }
}

impl<T: Element> Pending for messages::Sending<T, Foreign<T>> {
    fn is_to_itself(&self) -> bool {
        self.is_to_itself()
    }

    fn test(&mut self) -> Result<bool, GroupError> {
        self.test()
    }

    fn wait_for(&mut self, limit: Duration) -> Result<bool, GroupError> {
        self.wait_timeout(limit)
    }

    fn wait(self: Box<Self>) -> Result<Outcome, GroupError> {
        (*self).wait().map(|_| Outcome::Nothing)
    }

    fn take_back(&mut self) -> bool {
        false
    }

    fn goes_on(&self) -> bool {
        true
    }
}

impl<T: Element> Pending for messages::Receiving<T, ForeignMut<T>> {
    fn test(&mut self) -> Result<bool, GroupError> {
        self.test()
    }

    fn wait_for(&mut self, limit: Duration) -> Result<bool, GroupError> {
        self.wait_timeout(limit)
    }

    fn wait(self: Box<Self>) -> Result<Outcome, GroupError> {
        (*self).wait().map(|(_, received)| Outcome::Received(received))
    }

    fn take_back(&mut self) -> bool {
        self.take_back()
    }

    fn goes_on(&self) -> bool {
        true
    }
}

/// Operations of objects: what each has given, whether it can be taken back, whether it goes on, and whether it is to this rank.
macro_rules! of_objects {
    ($($operation:ty: $outcome:expr, $take_back:expr, $goes_on:expr, $is_to_itself:expr;)*) => {$(
        impl Pending for $operation {
            fn test(&mut self) -> Result<bool, GroupError> {
                self.test()
            }

            fn wait_for(&mut self, limit: Duration) -> Result<bool, GroupError> {
                self.wait_timeout(limit)
            }

            fn wait(self: Box<Self>) -> Result<Outcome, GroupError> {
                (*self).wait().map($outcome)
            }

            fn take_back(&mut self) -> bool {
                $take_back(self)
            }

            fn goes_on(&self) -> bool {
                $goes_on
            }

            fn is_to_itself(&self) -> bool {
                $is_to_itself(self)
            }
        }
    )*};
}

of_objects! {
    SendingObject: |()| Outcome::Nothing, |_: &mut Self| false, true, Self::is_to_itself;
    ReceivingObject<Pickled>: |(object, _)| Outcome::Object(Box::new(object)), Self::take_back, false, |_: &Self| false;
    BroadcastingObject<Pickled>: |object| Outcome::Object(Box::new(object)), |_: &mut Self| false, false, |_: &Self| false;
    GatheringObjects<Pickled>: |all| all.map_or(Outcome::Nothing, Outcome::Objects), |_: &mut Self| false, false, |_: &Self| false;
}

/// Operations whose requests were dropped before their end.
#[derive(Debug)]
pub(crate) struct Orphans(Part<Held<Box<dyn Pending>>>);

impl Default for Orphans {
    fn default() -> Self {
        Self(Part::new(Held::default()))
    }
}

/// Those of all groups, in the order in which the groups came about.
static OF_ALL: Mutex<Vec<Weak<Orphans>>> = Mutex::new(Vec::new());

impl Orphans {
    pub(crate) fn of_a_group() -> Arc<Self> {
        let orphans = Arc::<Self>::default();
        let mut all = OF_ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|others| others.strong_count() > 0);
        all.push(Arc::downgrade(&orphans));
        orphans
    }

    /// As [`Orphans::wait`].
    pub(crate) fn wait_for_all() {
        let all = std::mem::take(&mut *OF_ALL.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter().filter_map(Weak::upgrade).for_each(|orphans| orphans.wait());
    }

    /// Refuses a call in a child of the process that joined.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.0.get().map(drop)
    }

    fn adopt(&self, pending: Box<dyn Pending>) {
        if let Ok(held) = self.0.get() {
            held.keep(pending, has_ended);
        }
    }

    /// Drops those that have ended. Not to be called with the interpreter attached.
    pub(crate) fn sweep(&self) {
        if let Ok(held) = self.0.get() {
            held.sweep(has_ended);
        }
    }

    /// Waits for all of them, except sends that no rank receives any more. Not to be called with the interpreter attached.
    pub(crate) fn wait(&self) {
        let Ok(held) = self.0.get() else { return };
        held.wait(|pending| {
            if !pending.is_to_itself()
                && let Err(error) = pending.wait()
            {
                report(error);
            }
        });
    }
}

/// Reports the error of an operation whose request was dropped, by `sys.unraisablehook`: on standard error, if the program has not set another hook.
fn report(error: GroupError) {
    if matches!(error, GroupError::Aborted { .. }) {
        return;
    }
    Python::try_attach(|py| {
        let what = PyString::new(py, "an operation whose request was dropped");
        raise(error).write_unraisable(py, Some(&what));
    });
}

/// An error ends the operation too.
fn has_ended(pending: &mut Box<dyn Pending>) -> bool {
    pending.test().unwrap_or_else(|error| {
        report(error);
        true
    })
}

/// An operation that goes on. Its array's memory is exported until it has ended: leave it alone until then.
///
/// A receive that is dropped before a message has come to it is taken back. Any other goes on, and the group keeps its memory; but objects that
/// would come for it are thrown away.
#[pyclass(frozen, weakref, generic, module = "ironrail")]
pub(crate) struct Request {
    state: Mutex<State>,
    orphans: Arc<Orphans>,
}

enum State {
    Running(Box<dyn Pending>),
    /// A thread is in a call of the request.
    Busy,
    Ended(Outcome),
    /// What `wait` returns from now on.
    Given(Py<PyAny>),
    Failed(String),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}

impl Request {
    pub(crate) fn new(pending: Box<dyn Pending>, orphans: &Arc<Orphans>) -> Self {
        Self { state: Mutex::new(State::Running(pending)), orphans: Arc::clone(orphans) }
    }

    /// Runs a step of the operation without the interpreter. Returns whether the operation has ended.
    fn step(
        &self,
        py: Python<'_>,
        step: impl FnOnce(Box<dyn Pending>) -> Result<State, GroupError> + Send,
    ) -> PyResult<bool> {
        self.orphans.check()?;
        let taken = std::mem::replace(&mut *self.state.lock().map_err(poisoned)?, State::Busy);
        let (next, failed) = match taken {
            State::Running(pending) => match py.detach(|| step(pending)) {
                Ok(next) => (next, None),
                Err(error) => (State::Failed(error.to_string()), Some(raise(error))),
            },
            State::Busy => return Err(invalid("another thread is in a call of this request")),
            State::Failed(why) => {
                let error = invalid(format!("this request has failed: {why}"));
                (State::Failed(why), Some(error))
            }
            ended @ (State::Ended(_) | State::Given(_)) => (ended, None),
        };
        let ended = matches!(next, State::Ended(_) | State::Given(_));
        *self.state.lock().map_err(poisoned)? = next;
        failed.map_or(Ok(ended), Err)
    }

    /// What an operation that has ended gives. Unpickling may run any code, so the lock is free meanwhile.
    fn given(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let taken = std::mem::replace(&mut *self.state.lock().map_err(poisoned)?, State::Busy);
        let (next, given) = match taken {
            State::Ended(outcome) => match outcome.into_python(py) {
                Ok(given) => (State::Given(given.clone_ref(py)), Ok(given)),
                Err(error) => (State::Failed(error.to_string()), Err(error)),
            },
            State::Given(given) => (State::Given(given.clone_ref(py)), Ok(given)),
            other => (other, Err(invalid("another thread is in a call of this request"))),
        };
        *self.state.lock().map_err(poisoned)? = next;
        given
    }
}

#[pymethods]
impl Request {
    /// Whether it has ended. Makes progress, and does not wait.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        self.step(py, |mut pending| {
            let ended = pending.test()?;
            if ended { pending.wait().map(State::Ended) } else { Ok(State::Running(pending)) }
        })
    }

    /// Waits for the end: of a send it gives None, of a receive what was received, of operations of objects the object or the list of them. With a
    /// timeout in seconds it raises Timeout where that has passed, and the operation goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = timeout.map(seconds).transpose()?;
        let ended = self.step(py, |mut pending| match limit {
            Some(limit) if !pending.wait_for(limit)? => Ok(State::Running(pending)),
            _ => pending.wait().map(State::Ended),
        })?;
        if !ended {
            let limit = limit.unwrap_or_default();
            let awaited = "a request, which goes on".to_owned();
            return Err(raise(GroupError::Timeout { peers: Vec::new(), awaited, limit }));
        }
        self.given(py)
    }

    /// Takes a receive back that no message has come to. Returns whether it was taken back; wait then returns None. A send, or an operation that
    /// has ended, is not taken back.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !matches!(&*self.state.lock().map_err(poisoned)?, State::Running(_)) {
            return Ok(false);
        }
        self.step(py, |mut pending| {
            if pending.take_back() {
                Ok(State::Ended(Outcome::Nothing))
            } else {
                Ok(State::Running(pending))
            }
        })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let State::Running(mut pending) = std::mem::replace(
            self.state.get_mut().unwrap_or_else(|error| error.into_inner()),
            State::Busy,
        ) else {
            return;
        };
        // Taken, so that the last handle of it is dropped there too: an operation in it may have the last handle of the group.
        let orphans = std::mem::take(&mut self.orphans);
        if orphans.0.is_forked() {
            let _never_dropped = ManuallyDrop::new(pending);
            return;
        }
        let release = move || {
            if !pending.take_back() && pending.goes_on() {
                orphans.adopt(pending);
            }
        };
        // Python drops it with the interpreter attached.
        Python::try_attach(|py| py.detach(release));
    }
}
