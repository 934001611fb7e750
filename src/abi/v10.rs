//! No contexts: `init` is called once per process, and connections belong to the calling thread. `connect` has the traffic class, `listen`
//! none, so connects with a class use rails of their own. Data is sent from them; what the listening rails send back is control traffic.

use std::ffi::{c_int, c_void};

use net_abi::{CommConfig, DevHandle, Logger, NetV10, Profiler, ResultCode};

use super::argument::GROUP_MAX;
use super::entry::{self, connection};
use super::guard::{guard, guard_setup};
use super::profiler;
use super::table::net_table;

/// The symbol that NCCL loads for version 10.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v10: NetV10 = net_table!(NetV10 {
    entry: [devices, accept, reg_mr, reg_mr_dma_buf, dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen],
    v10: [init, listen, connect],
    v9: [get_properties, make_v_device],
} without [get_device_mr, irecv_consumed]);

pub(super) unsafe extern "C" fn init(logger: Logger, profiler: Profiler) -> ResultCode {
    profiler::install(profiler);
    entry::start(logger)
}

pub(super) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own places, or null.
    guard("listen", || unsafe {
        connection::listen_as(connection::of_thread, GROUP_MAX, device, handle, listener)
    })
}

pub(super) unsafe extern "C" fn connect(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_comm: *mut *mut DevHandle,
) -> ResultCode {
    guard_setup("connect", || {
        // SAFETY: NCCL's configuration of the communicator, or null.
        let owner = unsafe { connection::of_thread_in_class(config) };
        // SAFETY: NCCL's own places, or null.
        unsafe { connection::connect_as(|| Ok(owner), device, handle, comm) }
    })
}
