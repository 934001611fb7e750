//! Connections: listen, connect, accept, close.
//!
//! NCCL polls connect and accept: success with a null comm is "not yet". Device handles are for plugins that offload to
//! the GPU; NCCL passes the address of a null, or null itself, and this plugin ignores both.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{CommConfig, DevHandle, ResultCode};

use crate::abi::argument::{self, GROUP_MAX};
use crate::abi::guard::{guard, guard_comm, guard_setup};
use crate::abi::object;
use crate::abi::place::place;
use crate::error::{Noun, Result, SetupError};
use crate::object_id::RawId;
use crate::plugin::{self, Owner};
use crate::types::HANDLE_BYTES;

pub(in crate::abi) unsafe extern "C" fn listen(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own places, or null.
    guard("listen", || unsafe {
        listen_as(|| of_context(context), GROUP_MAX, device, handle, listener)
    })
}

/// # Safety
///
/// The pointers are NCCL's: null, or places for a handle of 128 bytes and for a comm.
pub(in crate::abi) unsafe fn listen_as(
    owner: impl FnOnce() -> Result<Owner>,
    max_group: usize,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: the caller vouches for both.
    let listener = unsafe { place(listener, ptr::null_mut(), Noun::ListenComm) };
    // SAFETY: NCCL's buffer always has the full size.
    let handle = unsafe { place(handle.cast(), [0; HANDLE_BYTES], Noun::Handle) }?;
    let listener = listener?;
    *listener =
        object::pointer(plugin::listen(owner()?, argument::device(device)?, handle, max_group)?);
    Ok(())
}

pub(in crate::abi) unsafe extern "C" fn connect(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut *mut DevHandle,
) -> ResultCode {
    // SAFETY: NCCL's own places, or null.
    guard_setup("connect", || unsafe { connect_as(|| of_context(context), device, handle, comm) })
}

/// # Safety
///
/// The pointers are NCCL's: null, or a handle of 128 bytes that `listen` wrote and a place for a comm.
pub(in crate::abi) unsafe fn connect_as(
    owner: impl FnOnce() -> Result<Owner>,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Result<(), SetupError> {
    // SAFETY: the caller vouches for it.
    let comm = unsafe { place(comm, ptr::null_mut(), Noun::SendComm) }?;
    // SAFETY: NCCL's buffer has the full size, and is the same at each retry.
    let handle = unsafe { argument::handle(handle) }?;
    *comm = object::pointer_or_null(plugin::connect(owner()?, argument::device(device)?, handle)?);
    Ok(())
}

fn of_context(context: *mut c_void) -> Result<Owner> {
    object::raw(context).context().map(Owner::Context)
}

/// Up to v10 NCCL has no contexts.
pub(in crate::abi) fn of_thread() -> Result<Owner> {
    Ok(Owner::Thread(None))
}

/// In v10 each connect has a traffic class.
///
/// # Safety
///
/// `config` is null or NCCL's.
pub(in crate::abi) unsafe fn of_thread_in_class(config: *const CommConfig) -> Owner {
    // SAFETY: the caller vouches for it.
    Owner::Thread(unsafe { argument::traffic_class(config) })
}

pub(in crate::abi) unsafe extern "C" fn accept(
    listener: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut *mut DevHandle,
) -> ResultCode {
    let listener = object::raw(listener);
    guard_comm("accept", listener, || {
        // SAFETY: NCCL's place for the comm, or null.
        let comm = unsafe { place(comm, ptr::null_mut(), Noun::ReceiveComm) }?;
        *comm = object::pointer_or_null(plugin::accept(listener.listener()?)?);
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn close_send(comm: *mut c_void) -> ResultCode {
    close("closeSend", comm, |comm| plugin::close_send(comm.sender()?))
}

pub(in crate::abi) unsafe extern "C" fn close_recv(comm: *mut c_void) -> ResultCode {
    close("closeRecv", comm, |comm| plugin::close_receive(comm.receiver()?))
}

pub(in crate::abi) unsafe extern "C" fn close_listen(listener: *mut c_void) -> ResultCode {
    close("closeListen", listener, |listener| plugin::close_listen(listener.listener()?))
}

/// Closing null succeeds: where NCCL's bootstrap uses the plugin, it closes all three comms, also those that were never made, and stops at
/// the first error (NCCL src/bootstrap.cc:1323-1326).
fn close(
    call: &'static str,
    comm: *mut c_void,
    body: impl FnOnce(RawId) -> Result<()>,
) -> ResultCode {
    let comm = object::raw(comm);
    guard_comm(call, comm, || if comm.is_null() { Ok(()) } else { body(comm) })
}
