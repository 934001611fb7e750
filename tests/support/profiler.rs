//! A profiler callback as NCCL passes it, which records its calls.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use net_abi::{NetEventV1, Profiler, ResultCode};

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) kind: c_int,
    /// The handle that a start returned, or that was passed otherwise.
    pub(crate) event: usize,
    pub(crate) parent: usize,
    pub(crate) plugin: i64,
    pub(crate) data: NetEventV1,
}

static RECORDED: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());
static FAILS: AtomicBool = AtomicBool::new(false);
static IS_FULL: AtomicBool = AtomicBool::new(false);

pub(crate) fn profiler() -> Profiler {
    Some(callback)
}

/// Each call from now on returns an error, and handles nevertheless.
pub(crate) fn fail() {
    FAILS.store(true, Ordering::Relaxed);
}

/// No start returns a handle from now on, as without a profiler, or one that has no room.
pub(crate) fn be_full() {
    IS_FULL.store(true, Ordering::Relaxed);
}

/// All calls so far.
pub(crate) fn recorded() -> Vec<Recorded> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

unsafe extern "C" fn callback(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    plugin: i64,
    data: *mut c_void,
) -> ResultCode {
    let mut all = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the plugin passes the place of a handle.
    let place = unsafe { &mut *event };
    if kind == net_abi::PROFILER_START {
        assert!(place.is_null(), "a start passes an empty place");
        if !IS_FULL.load(Ordering::Relaxed) {
            *place = ptr::without_provenance_mut(0x1000 + all.len());
        }
    }
    // SAFETY: what the plugin's id says.
    let data = unsafe { data.cast::<NetEventV1>().read() };
    all.push(Recorded { kind, event: place.addr(), parent: parent.addr(), plugin, data });
    match FAILS.load(Ordering::Relaxed) {
        true => ResultCode::INTERNAL_ERROR,
        false => ResultCode::SUCCESS,
    }
}
