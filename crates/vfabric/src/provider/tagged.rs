//! Two-sided messages with tags: fi_tagged(3).

use std::ffi::c_void;

use libfabric_sys as sys;

use super::messages::{Sending, local, piece, post, post_receive};
use super::table::table;
use crate::engine::Tags;

table! {
    pub(super) fn calls() -> sys::fi_ops_tagged {
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
    unsafe { post_receive(endpoint, local(buffer, len, descriptor), Some(tags), None, context) }
}

unsafe extern "C" fn receive_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let tags = Tags { tag, ignore };
    // SAFETY: the user gives as many as they say.
    match unsafe { piece(pieces, descriptors, count) } {
        // SAFETY: libfabric gives an endpoint of ours.
        Some(local) => unsafe { post_receive(endpoint, local, Some(tags), None, context) },
        None => -(sys::FI_EINVAL as isize),
    }
}

/// FI_PEEK and FI_CLAIM are not offered.
unsafe extern "C" fn receive_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg_tagged,
    flags: u64,
) -> isize {
    if flags & !(sys::FI_COMPLETION | sys::FI_MORE) != 0 {
        return -(sys::FI_ENOSYS as isize);
    }
    // SAFETY: the user gives a message.
    let message = unsafe { message.read() };
    let tags = Tags { tag: message.tag, ignore: message.ignore };
    // SAFETY: its vectors are as long as it says.
    match unsafe { piece(message.msg_iov, message.desc, message.iov_count) } {
        // SAFETY: libfabric gives an endpoint of ours.
        Some(local) => unsafe {
            post_receive(endpoint, local, Some(tags), Some(flags), message.context)
        },
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
    let sending = Sending::new(local(buffer, len, descriptor), peer, context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { tag: Some(tag), ..sending }) }
}

unsafe extern "C" fn send_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the user gives as many as they say.
    let Some(local) = (unsafe { piece(pieces, descriptors, count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let sending = Sending::new(local, peer, context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { tag: Some(tag), ..sending }) }
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
    let immediate = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let sending = Sending::new(local, message.addr, message.context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe {
        post(endpoint, Sending { immediate, tag: Some(message.tag), flags: Some(flags), ..sending })
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    peer: sys::fi_addr_t,
    tag: u64,
) -> isize {
    let sending = Sending::injected(buffer, len, peer);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { tag: Some(tag), ..sending }) }
}

unsafe extern "C" fn send_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    data: u64,
    peer: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let sending = Sending::new(local(buffer, len, descriptor), peer, context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { immediate: Some(data), tag: Some(tag), ..sending }) }
}

unsafe extern "C" fn inject_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    peer: sys::fi_addr_t,
    tag: u64,
) -> isize {
    let sending = Sending::injected(buffer, len, peer);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Sending { immediate: Some(data), tag: Some(tag), ..sending }) }
}
