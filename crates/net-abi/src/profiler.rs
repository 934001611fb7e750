//! What the plugin reports to NCCL's profiler: one event per message (docs/decisions/0023-events-for-nccls-profiler.md).

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

/// What the callback is called for (NCCL src/include/nccl_common.h; up to 2.26 whatever is not a start is a stop).
pub const PROFILER_START: c_int = 0;
/// The data are final; the event ends.
pub const PROFILER_UPDATE_AND_STOP: c_int = 3;

/// The data of a `ncclProfileNetPlugin` event whose id is `PLUGIN`: one message, from the isend or irecv that accepted
/// it until test reports its end. Valid for the length of the profiler's call. At the start `failed` and `rails` are
/// 0; the update at the stop has all fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetEventV1 {
    /// `SEND` or `RECEIVE`.
    pub kind: u8,
    /// 1: the request ended in an error.
    pub failed: u8,
    /// The data rails that its parts were given to (a send) or that carried them (a receive), one bit each. 0: it went
    /// inside of a packet.
    pub rails: u16,
    /// The device's number in this process.
    pub device: u32,
    /// The communicator's rails on that device, and the connection there: together they name a comm of this process.
    pub endpoint: u32,
    pub connection: u32,
    /// The length of a send. Of a receive: at the start the room, at the stop what has arrived (0 if its completion was
    /// optional and left out). 0 at the stop if it failed.
    pub bytes: u64,
}

impl NetEventV1 {
    /// The plugin's id: its type ("IR") in the high 16 of 32 bits, the version of the data in the low ones.
    pub const PLUGIN: i64 = 0x4952_0001;
    pub const SEND: u8 = 1;
    pub const RECEIVE: u8 = 2;
}

const _: () = {
    assert!(size_of::<NetEventV1>() == 24);
    assert!(offset_of!(NetEventV1, rails) == 2);
    assert!(offset_of!(NetEventV1, device) == 4);
    assert!(offset_of!(NetEventV1, connection) == 12);
    assert!(offset_of!(NetEventV1, bytes) == 16);
};
