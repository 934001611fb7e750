//! Properties without rails and planes, and virtual devices of at most four.

use std::ffi::c_int;

use net_abi::{NetV11, PropertiesV11, PropertiesV12, ResultCode};

use super::entry;
use super::table::net_table;
use super::v9::{narrow_devices, narrowed};

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
    narrowed!(newest, PropertiesV11 { max_multi_request_size })
}
