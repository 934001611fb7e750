//! No device offload: `connect` and `accept` have no place for a device handle.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{NetV6, PropertiesV6, PropertiesV12, ResultCode};

use super::entry::{self, connection};
use super::guard::guard_setup;
use super::table::net_table;
use super::v8::MAX_RECVS;

/// The symbol that NCCL loads for version 6.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v6: NetV6 = net_table!(NetV6 {
    entry: [devices, reg_mr_dma_buf, dereg_mr, iflush, test, close_send, close_recv, close_listen],
    v9: [init],
    v8: [listen, isend, irecv],
    v7: [reg_mr],
    v6: [get_properties, connect, accept],
} without []);

pub(super) unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own places, or null.
    guard_setup("connect", || unsafe {
        connection::connect_as(connection::of_thread, device, handle, comm)
    })
}

pub(super) unsafe extern "C" fn accept(
    listener: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own arguments.
    unsafe { entry::accept(listener, comm, ptr::null_mut()) }
}

pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV6,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { entry::properties_as(device, properties, narrow) }
}

fn narrow(newest: &PropertiesV12) -> PropertiesV6 {
    PropertiesV6 {
        name: newest.name,
        pci_path: newest.pci_path,
        guid: newest.guid,
        ptr_support: newest.ptr_support,
        speed: newest.speed,
        port: newest.port,
        latency: newest.latency,
        max_comms: newest.max_comms,
        max_recvs: MAX_RECVS,
    }
}
