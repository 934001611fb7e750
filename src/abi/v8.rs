//! Message sizes are `int`, there are no grouped receives, and a message may be longer than its receive, since NCCL once relied on
//! truncation.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{NetV8, PropertiesV8, PropertiesV12, ResultCode};

use super::argument::Lists;
use super::entry::transfer::Form;
use super::entry::{self, connection, transfer};
use super::guard::guard;
use super::table::net_table;

/// The symbol that NCCL loads for version 8.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "cbindgen takes only public statics into the header")]
pub static ncclNetPlugin_v8: NetV8 = net_table!(NetV8 {
    entry: [devices, accept, reg_mr, reg_mr_dma_buf, dereg_mr, iflush, test, close_send, close_recv, close_listen],
    v9: [init, connect],
    v8: [get_properties, listen, isend, irecv],
} without [get_device_mr, irecv_consumed]);

/// Largest group up to v8, as a count and as `maxRecvs`.
const GROUP_MAX: usize = 1;
pub(super) const MAX_RECVS: c_int = 1;
const FORM: Form = Form { most: GROUP_MAX, cut: true, may_end_early: false };

/// As in newer versions, but without grouped receives.
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

pub(super) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    region: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { transfer::send(comm, data, size, tag, region, ptr::null_mut(), request) }
}

pub(super) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    regions: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let lists = Lists { data, sizes, tags, regions };
    // SAFETY: NCCL's place for the request, or null, and its lists, one entry per receive.
    unsafe { transfer::receive(comm, count, FORM, lists, ptr::null_mut(), request) }
}

pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV8,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { entry::properties_as(device, properties, narrow) }
}

fn narrow(newest: &PropertiesV12) -> PropertiesV8 {
    PropertiesV8 {
        name: newest.name,
        pci_path: newest.pci_path,
        guid: newest.guid,
        ptr_support: newest.ptr_support,
        // NCCL 2.21 and 2.22 would register on a connection to itself in the user's thread, whose endpoint is not that of the proxies
        // (NCCL 2.22 src/register.cc): that registers twice.
        reg_is_global: 0,
        speed: newest.speed,
        port: newest.port,
        latency: newest.latency,
        max_comms: newest.max_comms,
        max_recvs: MAX_RECVS,
        net_device_type: newest.net_device_type,
        net_device_version: newest.net_device_version,
    }
}
