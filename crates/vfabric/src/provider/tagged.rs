//! Two-sided messages with tags: fi_tagged(3).

use std::ffi::c_void;

use libfabric_sys as sys;

use super::messages::{local, piece};
use super::object::Object;
use super::table::table;
use super::{answer_size, number};
use crate::engine::{Ask, Kind, Local, Remote, Tags, engine};

table! {
    pub(super) fn calls() -> sys::fi_ops_tagged {
        recv: receive,
        recvmsg: receive_message,
        send: send,
        sendmsg: send_message,
        inject: inject,
    }
}

/// A send's part of what a post needs.
struct Sending {
    local: Local,
    peer: u64,
    tag: u64,
    flags: u64,
    context: *mut c_void,
    silent: bool,
}

/// # Safety
///
/// `endpoint` must be one of ours.
unsafe fn post(endpoint: *mut sys::fid_ep, sending: Sending) -> isize {
    // SAFETY: the caller's.
    let Some(endpoint) = (unsafe { Object::of(endpoint) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let _turns = endpoint.enter("a tagged send");
    let Sending { local, peer, tag, flags, context, silent } = sending;
    answer_size(engine().post(Ask {
        endpoint: endpoint.id,
        kind: Kind::Send,
        local,
        peer,
        remote: Remote::default(),
        immediate: None,
        tag: Some(tag),
        flags,
        context: number(context),
        silent,
    }))
}

/// # Safety
///
/// `endpoint` must be one of ours.
unsafe fn post_receive(
    endpoint: *mut sys::fid_ep,
    local: Local,
    tags: Tags,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's.
    let Some(endpoint) = (unsafe { Object::of(endpoint) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let _turns = endpoint.enter("a tagged receive");
    answer_size(engine().post_receive(endpoint.id, local, Some(tags), number(context)))
}

unsafe extern "C" fn receive(
    endpoint: *mut sys::fid_ep,
    buffer: *mut c_void,
    len: usize,
    descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let tags = Tags { tag, ignore };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post_receive(endpoint, local(buffer, len, descriptor), tags, context) }
}

/// To look at a message and to claim one (FI_PEEK and its kin) is not offered.
unsafe extern "C" fn receive_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg_tagged,
    flags: u64,
) -> isize {
    if flags & !sys::FI_COMPLETION != 0 {
        return -(sys::FI_ENOSYS as isize);
    }
    // SAFETY: the user gives a message.
    let message = unsafe { message.read() };
    let tags = Tags { tag: message.tag, ignore: message.ignore };
    // SAFETY: its vectors are as long as it says.
    match unsafe { piece(message.msg_iov, message.desc, message.iov_count) } {
        // SAFETY: libfabric gives an endpoint of ours.
        Some(local) => unsafe { post_receive(endpoint, local, tags, message.context) },
        None => -(sys::FI_EINVAL as isize),
    }
}

unsafe extern "C" fn send(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    peer: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let local = local(buffer, len, descriptor);
    let sending = Sending { local, peer, tag, flags: 0, context, silent: false };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, sending) }
}

unsafe extern "C" fn send_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg_tagged,
    flags: u64,
) -> isize {
    // SAFETY: the user gives a message.
    let message = unsafe { message.read() };
    // SAFETY: its vectors are as long as it says.
    let Some(local) = (unsafe { piece(message.msg_iov, message.desc, message.iov_count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let (peer, tag, context) = (message.addr, message.tag, message.context);
    let sending = Sending { local, peer, tag, flags, context, silent: false };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, sending) }
}

unsafe extern "C" fn inject(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    peer: sys::fi_addr_t,
    tag: u64,
) -> isize {
    let local = local(buffer, len, std::ptr::null_mut());
    let context = std::ptr::null_mut();
    let sending = Sending { local, peer, tag, flags: 0, context, silent: true };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, sending) }
}
