//! Regions are smaller than 2 GiB, and never global.

use std::ffi::{c_int, c_void};

use net_abi::{NetV7, PropertiesV7, PropertiesV12, ResultCode};

use super::entry::{self, memory};
use super::guard::guard_comm;
use super::object;
use super::table::net_table;
use super::v8::MAX_RECVS;

/// The symbol that NCCL loads for version 7.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v7: NetV7 = net_table!(NetV7 {
    entry: [devices, accept, reg_mr_dma_buf, dereg_mr, iflush, test, close_send, close_recv, close_listen],
    v9: [init, connect],
    v8: [listen, isend, irecv],
    v7: [get_properties, reg_mr],
} without [get_device_mr, irecv_consumed]);

pub(super) unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    region: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    guard_comm("regMr", object::raw(comm), || unsafe {
        memory::register(comm, data, size, kind, region)
    })
}

pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV7,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { entry::properties_as(device, properties, narrow) }
}

fn narrow(newest: &PropertiesV12) -> PropertiesV7 {
    PropertiesV7 {
        name: newest.name,
        pci_path: newest.pci_path,
        guid: newest.guid,
        ptr_support: newest.ptr_support,
        speed: newest.speed,
        port: newest.port,
        latency: newest.latency,
        max_comms: newest.max_comms,
        max_recvs: MAX_RECVS,
        net_device_type: newest.net_device_type,
        net_device_version: newest.net_device_version,
    }
}
