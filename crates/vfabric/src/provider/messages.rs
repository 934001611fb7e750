//! Two-sided messages: fi_msg(3).

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as sys;

use super::object::Object;
use super::table::table;
use super::{answer_size, number};
use crate::engine::{Ask, Kind, Local, Remote, Tags, engine};
use crate::ledger::Rule;

table! {
    pub(super) fn calls() -> sys::fi_ops_msg {
        recv: receive,
        recvv: receive_vector,
        recvmsg: receive_message,
        send: send,
        sendv: send_vector,
        sendmsg: send_message,
        inject: inject,
        senddata: send_data,
        injectdata: inject_data,
    }
}

/// Local bytes from a call's arguments.
pub(super) fn local(buffer: *const c_void, len: usize, descriptor: *mut c_void) -> Local {
    Local { address: number(buffer), len: len as u64, descriptor: number(descriptor), shift: 0 }
}

/// The only iovec of an operation; with none, zero bytes.
///
/// # Safety
///
/// `pieces` must be `count` of them, and `descriptors` null or as many.
pub(super) unsafe fn piece(
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
) -> Option<Local> {
    if count == 0 {
        return Some(Local { address: 0, len: 0, descriptor: 0, shift: 0 });
    }
    if count > 1 {
        return None;
    }
    // SAFETY: the caller's.
    let piece = unsafe { pieces.read() };
    let descriptor = if descriptors.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the caller's.
        unsafe { descriptors.read() }
    };
    Some(local(piece.iov_base, piece.iov_len, descriptor))
}

/// The arguments of a send. With a tag it is one of fi_tagged(3).
pub(super) struct Sending {
    pub(super) local: Local,
    pub(super) peer: u64,
    pub(super) immediate: Option<u64>,
    pub(super) tag: Option<u64>,
    pub(super) flags: Option<u64>,
    pub(super) context: *mut c_void,
    pub(super) silent: bool,
}

impl Sending {
    /// The arguments of the short calls; other calls change the fields that differ.
    pub(super) fn new(local: Local, peer: u64, context: *mut c_void) -> Self {
        Self { local, peer, immediate: None, tag: None, flags: None, context, silent: false }
    }

    /// For the calls of the inject family.
    pub(super) fn injected(buffer: *const c_void, len: usize, peer: u64) -> Self {
        let local = local(buffer, len, ptr::null_mut());
        Self { silent: true, ..Self::new(local, peer, ptr::null_mut()) }
    }
}

/// # Safety
///
/// `endpoint` must be one of ours.
pub(super) unsafe fn post(endpoint: *mut sys::fid_ep, sending: Sending) -> isize {
    // SAFETY: the caller's.
    let Some(endpoint) = (unsafe { Object::of(endpoint) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let Sending { local, peer, immediate, tag, flags, context, silent } = sending;
    let _marks = endpoint.enter(if tag.is_some() { "a tagged send" } else { "a send" });
    answer_size(engine().post(Ask {
        endpoint: endpoint.id,
        kind: Kind::Send,
        local,
        peer,
        remote: Remote::default(),
        immediate,
        tag,
        flags,
        context: number(context),
        silent,
    }))
}

/// # Safety
///
/// `endpoint` must be one of ours.
pub(super) unsafe fn post_receive(
    endpoint: *mut sys::fid_ep,
    local: Local,
    tags: Option<Tags>,
    flags: Option<u64>,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's.
    let Some(endpoint) = (unsafe { Object::of(endpoint) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let _marks = endpoint.enter(if tags.is_some() { "a tagged receive" } else { "a receive" });
    if tags.is_some_and(|Tags { tag, ignore }| (tag | ignore) & !Tags::BITS != 0) {
        return -(sys::FI_EINVAL as isize);
    }
    answer_size(engine().post_receive(endpoint.id, local, tags, flags, number(context)))
}

unsafe extern "C" fn receive(
    endpoint: *mut sys::fid_ep,
    buffer: *mut c_void,
    len: usize,
    descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post_receive(endpoint, local(buffer, len, descriptor), None, None, context) }
}

unsafe extern "C" fn receive_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the user gives as many as they say.
    match unsafe { piece(pieces, descriptors, count) } {
        // SAFETY: libfabric gives an endpoint of ours.
        Some(local) => unsafe { post_receive(endpoint, local, None, None, context) },
        None => -(sys::FI_EINVAL as isize),
    }
}

unsafe extern "C" fn receive_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    // FI_MULTI_RECV needs a capability that no profile has.
    if flags & !(sys::FI_COMPLETION | sys::FI_MORE) != 0 {
        engine().broken(Rule::Arguments, || format!("a receive with flags {flags:#x}"));
        return -(sys::FI_EBADFLAGS as isize);
    }
    // SAFETY: the user gives a message.
    let message = unsafe { message.read() };
    // SAFETY: its vectors are as long as it says.
    match unsafe { piece(message.msg_iov, message.desc, message.iov_count) } {
        // SAFETY: libfabric gives an endpoint of ours.
        Some(local) => unsafe { post_receive(endpoint, local, None, Some(flags), message.context) },
        None => -(sys::FI_EINVAL as isize),
    }
}

unsafe extern "C" fn send(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    peer: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let local = local(buffer, len, descriptor);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending::new(local, peer, context)) }
}

unsafe extern "C" fn send_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the user gives as many as they say.
    let Some(local) = (unsafe { piece(pieces, descriptors, count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending::new(local, peer, context)) }
}

unsafe extern "C" fn send_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    // SAFETY: the user gives a message.
    let message = unsafe { message.read() };
    // SAFETY: its vectors are as long as it says.
    let Some(local) = (unsafe { piece(message.msg_iov, message.desc, message.iov_count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let immediate = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let sending = Sending::new(local, message.addr, message.context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { immediate, flags: Some(flags), ..sending }) }
}

unsafe extern "C" fn send_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    data: u64,
    peer: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(local(buffer, len, descriptor), peer, context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { immediate: Some(data), ..sending }) }
}

unsafe extern "C" fn inject(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    peer: sys::fi_addr_t,
) -> isize {
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending::injected(buffer, len, peer)) }
}

unsafe extern "C" fn inject_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    peer: sys::fi_addr_t,
) -> isize {
    let sending = Sending::injected(buffer, len, peer);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { immediate: Some(data), ..sending }) }
}
