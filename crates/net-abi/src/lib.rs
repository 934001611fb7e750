//! The C tables of NCCL net plugins, v6 to v12, as NCCL lays them out.
//!
//! The plugin fills these tables, and the group library loads those of any plugin. So every call is an `Option` (a foreign table
//! may hold nulls, and NCCL allows some), every code is an integer (a foreign plugin may return any), and nothing here
//! checks or converts. The layouts are asserted at compile time against the sizes and offsets of NCCL's own headers.

mod calls;
mod profiler;
mod properties;
mod tables;
mod types;

pub use calls::*;
pub use profiler::{NetEventV1, PROFILER_START, PROFILER_UPDATE_AND_STOP};
pub use properties::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV10, PropertiesV11,
    PropertiesV12, VProps4, VProps8,
};
pub use tables::{NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};
pub use types::{CommAttr, CommConfig, DevHandle, NetAttr, ResultCode};

use std::ffi::{CStr, c_int};

/// Bytes of the handle that `listen` writes and `connect` reads; NCCL always passes a buffer of this size.
pub const HANDLE_MAX_BYTES: usize = 128;
/// Requests outstanding per comm; a grouped receive counts once, its sends each.
pub const MAX_REQUESTS: usize = 32;
/// Device indices, virtual ones included; NCCL indexes arrays of this size unchecked.
pub const MAX_DEVICES: usize = 128;
/// Places in the arrays that NCCL hands to `test`.
pub const MAX_GROUP: usize = 64;
/// Largest message NCCL sends, whatever a plugin reports (NCCL src/include/collectives.h).
pub const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// `maxP2pBytes` must lie in 1..=this.
pub const MAX_POINT_TO_POINT_BYTES: usize = 1 << 40;

/// Memory kinds of `regMr`, and bits of `ptrSupport`. A type is never DMABUF.
pub const PTR_HOST: c_int = 1;
pub const PTR_CUDA: c_int = 2;
pub const PTR_DMABUF: c_int = 4;

/// Kinds of device in `netDeviceType`.
pub const DEVICE_HOST: c_int = 0;
pub const DEVICE_UNPACK: c_int = 1;

/// What `*request` holds when NCCL calls `irecv` (v9 and newer) and does not need to know when it completes.
pub const OPTIONAL_RECEIVE_COMPLETION: usize = 1;

/// "Not set" in `CommConfig` and `NetAttr`, and "unknown" for `railId` and `planeId`.
pub const UNDEFINED: c_int = -1;

/// Log levels of NCCL's logger.
pub const LOG_NONE: c_int = 0;
pub const LOG_VERSION: c_int = 1;
pub const LOG_WARN: c_int = 2;
pub const LOG_INFO: c_int = 3;
pub const LOG_ABORT: c_int = 4;
pub const LOG_TRACE: c_int = 5;

/// Subsystems of NCCL's logger.
pub const SUBSYSTEM_INIT: u64 = 0x1;
pub const SUBSYSTEM_NET: u64 = 0x10;
pub const SUBSYSTEM_ALL: u64 = !0;

/// The data symbols that NCCL looks up, newest first, as it does.
pub const SYMBOLS: [(u32, &CStr); 7] = [
    (12, c"ncclNetPlugin_v12"),
    (11, c"ncclNetPlugin_v11"),
    (10, c"ncclNetPlugin_v10"),
    (9, c"ncclNetPlugin_v9"),
    (8, c"ncclNetPlugin_v8"),
    (7, c"ncclNetPlugin_v7"),
    (6, c"ncclNetPlugin_v6"),
];
/// The newest version, and the oldest that NCCL takes (its src/plugin/net.cc).
pub const NEWEST: u32 = SYMBOLS[0].0;
pub const OLDEST: u32 = SYMBOLS[SYMBOLS.len() - 1].0;
