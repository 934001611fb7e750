//! No traffic class, no profiler.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{
    DevHandle, Logger, NetV9, PropertiesV9, PropertiesV12, ResultCode, VProps4, VProps8,
};

use super::entry::{self, connection};
use super::guard::{guard, guard_setup};
use super::table::net_table;
use crate::error::{Cause, List};

/// The symbol that NCCL loads for version 9.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v9: NetV9 = net_table!(NetV9 {
    entry: [devices, accept, reg_mr, reg_mr_dma_buf, dereg_mr, iflush, test, close_send, close_recv, close_listen],
    v10: [listen],
    v9: [init, get_properties, connect, isend, irecv, make_v_device],
} without [get_device_mr, irecv_consumed]);

pub(super) unsafe extern "C" fn init(logger: Logger) -> ResultCode {
    entry::start(logger)
}

pub(super) unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut *mut DevHandle,
) -> ResultCode {
    // SAFETY: NCCL's own places, or null.
    guard_setup("connect", || unsafe {
        connection::connect_as(connection::of_thread, device, handle, comm)
    })
}

pub(super) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own arguments.
    unsafe { entry::isend(comm, data, size, tag, region, ptr::null_mut(), request) }
}

pub(super) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own arguments.
    unsafe { entry::irecv(comm, count, data, sizes, tags, regions, ptr::null_mut(), request) }
}

pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV9,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { entry::properties_as(device, properties, narrow) }
}

fn narrow(newest: &PropertiesV12) -> PropertiesV9 {
    narrowed!(newest, PropertiesV9 {})
}

/// The newest properties as a version's from v9 on, with the fields that it has added.
macro_rules! narrowed {
    ($newest:ident, $version:ident { $($added:ident),* }) => {
        $version {
            name: $newest.name,
            pci_path: $newest.pci_path,
            guid: $newest.guid,
            ptr_support: $newest.ptr_support,
            reg_is_global: $newest.reg_is_global,
            force_flush: $newest.force_flush,
            speed: $newest.speed,
            port: $newest.port,
            latency: $newest.latency,
            max_comms: $newest.max_comms,
            max_recvs: $newest.max_recvs,
            net_device_type: $newest.net_device_type,
            net_device_version: $newest.net_device_version,
            v_props: narrow_devices(&$newest.v_props),
            max_p2p_bytes: $newest.max_p2p_bytes,
            max_coll_bytes: $newest.max_coll_bytes,
            $($added: $newest.$added,)*
        }
    };
}
pub(super) use narrowed;

/// Devices of at most four.
pub(super) unsafe extern "C" fn make_v_device(
    device: *mut c_int,
    parts: *mut VProps4,
) -> ResultCode {
    guard("makeVDevice", || {
        // SAFETY: NCCL's own, or null.
        let parts = unsafe { parts.as_ref() }.ok_or(Cause::NoList(List::Devices))?;
        // SAFETY: NCCL's own place, or null.
        unsafe { entry::make_of(device, parts.ndevs, &parts.devs) }
    })
}

pub(super) fn narrow_devices(newest: &VProps8) -> VProps4 {
    let [first, second, third, fourth, ..] = newest.devs;
    VProps4 { ndevs: newest.ndevs.min(4), devs: [first, second, third, fourth] }
}
