//! Properties without rails and planes, and virtual devices of at most four.

use std::ffi::c_int;

use net_abi::{NetV11, PropertiesV11, PropertiesV12, ResultCode};

use super::entry;
use super::table::net_table;
use super::v9::narrow_devices;

/// The symbol that NCCL loads for version 11.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v11: NetV11 = net_table!(NetV11 {
    entry: [init, devices, listen, connect, accept, reg_mr, reg_mr_dma_buf, dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen, finalize],
    v11: [get_properties],
    v9: [make_v_device],
} without [get_device_mr, irecv_consumed, set_net_attr]);

pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV11,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { entry::properties_as(device, properties, narrow) }
}

fn narrow(newest: &PropertiesV12) -> PropertiesV11 {
    PropertiesV11 {
        name: newest.name,
        pci_path: newest.pci_path,
        guid: newest.guid,
        ptr_support: newest.ptr_support,
        reg_is_global: newest.reg_is_global,
        force_flush: newest.force_flush,
        speed: newest.speed,
        port: newest.port,
        latency: newest.latency,
        max_comms: newest.max_comms,
        max_recvs: newest.max_recvs,
        net_device_type: newest.net_device_type,
        net_device_version: newest.net_device_version,
        v_props: narrow_devices(&newest.v_props),
        max_p2p_bytes: newest.max_p2p_bytes,
        max_coll_bytes: newest.max_coll_bytes,
        max_multi_request_size: newest.max_multi_request_size,
    }
}
