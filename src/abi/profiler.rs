//! Tells NCCL's profiler about messages: one event each, from the call that accepted it until `test` reports its end.
//!
//! Since v10 NCCL passes its callback to `init` and a parent for the event to `isend` and `irecv`, whether or not a profiler is loaded:
//! only if one is loaded does the callback return a handle when an event starts. The callback is called under the endpoint's lock, and only
//! while the request of the message is open: NCCL keeps the parent, and the profiler its event, for that time
//! (docs/decisions/0023-events-for-nccls-profiler.md). Its result changes no transfer.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;

use net_abi::{NetEventV1, PROFILER_START, PROFILER_UPDATE_AND_STOP, Profiler, ResultCode};

use super::argument::Bytes;
use super::published::Published;
use crate::object_id::RawId;
use crate::plugin::Locked;
use crate::types::MessageFacts;

type Call =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> ResultCode;

/// The callback in use.
static CURRENT: Published<Call> = Published(AtomicPtr::new(ptr::null_mut()));

/// Keeps NCCL's callback. May be called often, with the same one, another, or none (which changes nothing).
pub(super) fn install(profiler: Profiler) {
    let Some(call) = profiler else { return };
    if CURRENT.get().map(|call| call as usize) != Some(call as usize) {
        // One small leak per distinct callback, of which a process has one or two.
        CURRENT.publish(call);
    }
}

/// Begins the event of a send. `sent`: its request; None where isend returned NULL.
///
/// # Safety
///
/// `parent` is null or what the callback takes.
#[inline]
pub(super) unsafe fn send_begun(
    endpoint: &mut Locked,
    sent: Option<RawId>,
    len: usize,
    parent: *mut c_void,
) {
    if parent.is_null() {
        return;
    }
    if let (Some(call), Some(request)) = (CURRENT.get(), sent) {
        // SAFETY: passed on.
        unsafe { begin(call, endpoint, request, 0, len, parent) };
    }
}

/// Begins the events of a request's receives. No request where irecv returned NULL.
///
/// # Safety
///
/// `sizes` and `parents` are null or have `count` entries, each parent null or what the callback takes.
#[inline]
pub(super) unsafe fn receives_begun<B: Bytes>(
    endpoint: &mut Locked,
    posted: Option<RawId>,
    count: c_int,
    sizes: *mut B,
    parents: *mut *mut c_void,
) {
    if parents.is_null() {
        return;
    }
    let (Some(call), Some(request)) = (CURRENT.get(), posted) else { return };
    for index in 0..u16::try_from(count).unwrap_or(0) {
        // SAFETY: one entry per receive, as the caller vouches.
        let parent = unsafe { parents.add(index.into()) };
        // SAFETY: as above.
        let parent = unsafe { parent.read() };
        if parent.is_null() {
            continue;
        }
        // SAFETY: not null, since the request was accepted, and as above.
        let room = unsafe { sizes.add(index.into()) };
        // SAFETY: as above.
        let room = unsafe { room.read() }.bytes().unwrap_or(0);
        // SAFETY: passed on.
        unsafe { begin(call, endpoint, request, index, room, parent) };
    }
}

/// # Safety
///
/// `parent` is what `call` takes.
#[inline]
unsafe fn begin(
    call: Call,
    endpoint: &mut Locked,
    request: RawId,
    index: u16,
    bytes: usize,
    parent: *mut c_void,
) {
    let Some(facts) = endpoint.begun(request, bytes as u64) else { return };
    let mut data = layout(&facts);
    let mut event = ptr::null_mut();
    let data = (&raw mut data).cast();
    // SAFETY: NCCL's callback, which lives as long as NCCL; it writes the event's place, and reads the data during the call.
    let code = unsafe { call(&raw mut event, PROFILER_START, parent, NetEventV1::PLUGIN, data) };
    if code.is_success() && !event.is_null() {
        endpoint.keep_event(request, index, event.expose_provenance());
    }
}

/// Ends the events of the request whose end was just found.
#[inline]
pub(super) fn ended(endpoint: &mut Locked) {
    if endpoint.has_ended_events() {
        end(endpoint);
    }
}

#[cold]
fn end(endpoint: &mut Locked) {
    let Some(call) = CURRENT.get() else { return };
    while let Some((event, facts)) = endpoint.next_ended_event() {
        let (mut data, mut event) = (layout(&facts), ptr::with_exposed_provenance_mut(event));
        let data = (&raw mut data).cast();
        let (kind, parent) = (PROFILER_UPDATE_AND_STOP, ptr::null_mut());
        // SAFETY: as in `begin`; the event is one that the callback returned, and ends once.
        let _code = unsafe { call(&raw mut event, kind, parent, NetEventV1::PLUGIN, data) };
    }
}

fn layout(facts: &MessageFacts) -> NetEventV1 {
    let MessageFacts { is_send, failed, rails, device, endpoint, connection, bytes } = *facts;
    NetEventV1 {
        kind: if is_send { NetEventV1::SEND } else { NetEventV1::RECEIVE },
        failed: failed.into(),
        rails,
        device: device.into(),
        endpoint: endpoint.into(),
        connection: connection.into(),
        bytes,
    }
}
