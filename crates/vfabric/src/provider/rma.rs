//! One-sided reads and writes: fi_rma(3).

use std::ffi::c_void;

use libfabric_sys as sys;

use super::messages::{local, piece};
use super::object::Object;
use super::table::table;
use super::{answer_size, number};
use crate::engine::{Ask, Kind, Local, Remote, engine};
use crate::ledger::Rule;

table! {
    pub(super) fn calls() -> sys::fi_ops_rma {
        read: read,
        readv: read_vector,
        readmsg: read_message,
        write: write,
        writev: write_vector,
        writemsg: write_message,
        inject: inject,
        writedata: write_data,
        injectdata: inject_data,
    }
}

/// The arguments of a post, without the endpoint.
struct Moving {
    kind: Kind,
    local: Local,
    peer: u64,
    remote: Remote,
    immediate: Option<u64>,
    flags: Option<u64>,
    context: *mut c_void,
    silent: bool,
}

impl Moving {
    /// The arguments of the short calls; other calls change the fields that differ.
    fn new(
        kind: Kind,
        local: Local,
        peer: u64,
        address: u64,
        key: u64,
        context: *mut c_void,
    ) -> Self {
        let remote = Remote { address, key };
        Self { kind, local, peer, remote, immediate: None, flags: None, context, silent: false }
    }
}

/// # Safety
///
/// `endpoint` must be one of ours.
unsafe fn post(endpoint: *mut sys::fid_ep, moving: Moving) -> isize {
    // SAFETY: the caller's.
    let Some(endpoint) = (unsafe { Object::of(endpoint) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let _marks = endpoint.enter("a read or write");
    let Moving { kind, local, peer, remote, immediate, flags, context, silent } = moving;
    answer_size(engine().post(Ask {
        endpoint: endpoint.id,
        kind,
        local,
        peer,
        remote,
        immediate,
        tag: None,
        flags,
        context: number(context),
        silent,
    }))
}

/// # Safety
///
/// `endpoint` must be one of ours, and `message` valid with all that it points to.
unsafe fn post_message(
    endpoint: *mut sys::fid_ep,
    kind: Kind,
    message: *const sys::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: the caller's.
    let message = unsafe { message.read() };
    // SAFETY: the caller's.
    let local = unsafe { piece(message.msg_iov, message.desc, message.iov_count) };
    let remote = match message.rma_iov_count {
        // SAFETY: the caller's.
        1 => Some(unsafe { message.rma_iov.read() }),
        _ => None,
    };
    let there = remote.map(|remote| remote.len as u64);
    let (Some(local), Some(remote)) = (local, remote.filter(|_| there == local.map(|one| one.len)))
    else {
        engine().broken(Rule::Arguments, || {
            format!(
                "{there:?} bytes there and {local:?} here, which must be one piece of one length"
            )
        });
        return -(sys::FI_EINVAL as isize);
    };
    let remote = Remote { address: remote.addr, key: remote.key };
    let immediate = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let (peer, context) = (message.addr, message.context);
    let flags = Some(flags);
    let moving = Moving { kind, local, peer, remote, immediate, flags, context, silent: false };
    // SAFETY: the caller's.
    unsafe { post(endpoint, moving) }
}

unsafe extern "C" fn read(
    endpoint: *mut sys::fid_ep,
    buffer: *mut c_void,
    len: usize,
    descriptor: *mut c_void,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let local = local(buffer, len, descriptor);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving::new(Kind::Read, local, peer, address, key, context)) }
}

unsafe extern "C" fn read_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the user gives as many as they say.
    let Some(local) = (unsafe { piece(pieces, descriptors, count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving::new(Kind::Read, local, peer, address, key, context)) }
}

unsafe extern "C" fn read_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's user gives a message.
    unsafe { post_message(endpoint, Kind::Read, message, flags) }
}

unsafe extern "C" fn write(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let local = local(buffer, len, descriptor);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving::new(Kind::Write, local, peer, address, key, context)) }
}

unsafe extern "C" fn write_vector(
    endpoint: *mut sys::fid_ep,
    pieces: *const sys::iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the user gives as many as they say.
    let Some(local) = (unsafe { piece(pieces, descriptors, count) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving::new(Kind::Write, local, peer, address, key, context)) }
}

unsafe extern "C" fn write_message(
    endpoint: *mut sys::fid_ep,
    message: *const sys::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's user gives a message.
    unsafe { post_message(endpoint, Kind::Write, message, flags) }
}

unsafe extern "C" fn write_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    descriptor: *mut c_void,
    data: u64,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let local = local(buffer, len, descriptor);
    let moving = Moving::new(Kind::Write, local, peer, address, key, context);
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving { immediate: Some(data), ..moving }) }
}

unsafe extern "C" fn inject(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    let local = local(buffer, len, std::ptr::null_mut());
    let moving = Moving::new(Kind::Write, local, peer, address, key, std::ptr::null_mut());
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving { silent: true, ..moving }) }
}

unsafe extern "C" fn inject_data(
    endpoint: *mut sys::fid_ep,
    buffer: *const c_void,
    len: usize,
    data: u64,
    peer: sys::fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    let local = local(buffer, len, std::ptr::null_mut());
    let moving = Moving::new(Kind::Write, local, peer, address, key, std::ptr::null_mut());
    // SAFETY: libfabric gives an endpoint of ours.
    unsafe { post(endpoint, Moving { silent: true, immediate: Some(data), ..moving }) }
}
