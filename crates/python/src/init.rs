//! How a process of Python's joins its group.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::Interrupt;
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, WeakGroup};
use ironrail_group::loader::Library;
use ironrail_group::start::Start;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::errors::{poisoned, raise};
use crate::group::Group;
use crate::member::PICKLES;
use crate::request::Orphans;

/// Joins the group. All its ranks call it.
#[pyfunction]
#[pyo3(signature = (net, *, coordinator=None, rank=None, size=None, device=None, timeout=60.0, token=None, progress_thread=false, allow_pickle=false))]
#[expect(clippy::too_many_arguments, reason = "Python's callers name them")]
pub(crate) fn init(
    py: Python<'_>,
    net: String,
    coordinator: Option<String>,
    rank: Option<usize>,
    size: Option<usize>,
    device: Option<usize>,
    timeout: f64,
    token: Option<String>,
    progress_thread: bool,
    allow_pickle: bool,
) -> PyResult<Group> {
    // Warnings of the plugin and of libfabric go to standard error, unless RUST_LOG says otherwise.
    let _ = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .format_timestamp(None)
        .try_init();
    let timeout = seconds(timeout)?;
    let given = Given { coordinator, rank, size, token };
    let join = move |interrupt: Interrupt| {
        let start = given.start()?;
        let library = Library::open(&net, None)?;
        let joining = timeout.max(JOINING_MIN);
        let (place, hub) = start.join_unless(joining, &interrupt)?;
        let builder = Builder::new(&library).device(device).timeout(timeout).joining(joining);
        let matrix = start.matrix().cloned();
        let features = if allow_pickle { PICKLES } else { 0 };
        let builder = builder.progress_thread(progress_thread).matrix(matrix).features(features);
        builder.join_with(place, hub)
    };
    let group = interruptible(py, join)?.map_err(raise)?;
    let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
    joined.retain(|group| !group.is_gone());
    joined.push(group.downgrade());
    drop(joined);
    Ok(Group::new(group))
}

/// Runs a call without the interpreter in a thread of its own, and Python's signal handlers meanwhile. If one raises, the call is interrupted;
/// the thread then ends on its own, and drops its result.
fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce(Interrupt) -> R + Send + 'static,
) -> PyResult<R> {
    let (send, mut receive) = mpsc::channel();
    let interrupt = Interrupt::default();
    let given = interrupt.clone();
    let call = move || drop(send.send(call(given)));
    thread::Builder::new().name("join".to_owned()).spawn(call)?;
    loop {
        let receiving = &mut receive;
        match py.detach(move || receiving.recv_timeout(TICK)) {
            // Handles signals since the last look, too: a handler that raises after this call has returned would lose the group.
            Ok(ended) => {
                return match py.check_signals() {
                    Ok(()) => Ok(ended),
                    Err(raised) => {
                        interrupt.set();
                        py.detach(|| drop(ended));
                        Err(raised)
                    }
                };
            }
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| interrupt.set())?;
            }
            Err(error) => return Err(poisoned(error)),
        }
    }
}

/// How long a signal may wait for its handler.
const TICK: Duration = Duration::from_millis(50);

/// The groups that this process has joined; it may have left them.
static JOINED: Mutex<Vec<WeakGroup>> = Mutex::new(Vec::new());

/// Leaves all groups, whatever still holds them: for the end of the interpreter. Operations in them, and in groups split from them, end
/// first. Groups are left in the order in which they were joined, the same on all ranks: rank 0 of a group may wait for the others to leave it.
#[pyfunction]
pub(crate) fn leave_all(py: Python<'_>) {
    let joined = std::mem::take(&mut *JOINED.lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        Orphans::wait_for_all();
        joined.iter().for_each(WeakGroup::leave);
    });
}

/// The arguments of the call; the environment gives the rest.
struct Given {
    coordinator: Option<String>,
    rank: Option<usize>,
    size: Option<usize>,
    token: Option<String>,
}

impl Given {
    fn start(self) -> Result<Start, GroupError> {
        let Self { coordinator, rank, size, token } = self;
        if coordinator.is_none() && rank.is_none() && size.is_none() {
            return Start::from_variables(|name| match name {
                "IRONRAIL_GROUP_TOKEN" if token.is_some() => token.clone(),
                other => std::env::var(other).ok(),
            });
        }
        let (Some(coordinator), Some(rank), Some(size)) = (coordinator, rank, size) else {
            return Err(GroupError::Usage(
                "give all of coordinator, rank and size, or none: then they come from the environment".to_owned(),
            ));
        };
        let token = token.or_else(|| std::env::var("IRONRAIL_GROUP_TOKEN").ok());
        Start::at(&coordinator, rank, size, token.as_deref())
    }
}

/// A group whose calls time out soon still takes a moment to meet.
const JOINING_MIN: Duration = Duration::from_secs(30);
