//! The newest table: every call is `entry`'s.

use net_abi::NetV12;

use super::table::net_table;

/// The symbol that NCCL loads for version 12.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v12: NetV12 = net_table!(NetV12 {
    entry: [init, devices, get_properties, listen, connect, accept, reg_mr, reg_mr_dma_buf, dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen, make_v_device, finalize],
} without [get_device_mr, irecv_consumed, set_net_attr]);
