//! The calls of the tables. One that changed over time carries the version that brought this form.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use crate::properties::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VProps4,
    VProps8,
};
use crate::types::{CommConfig, DevHandle, NetAttr, ResultCode};

/// NCCL's logger, printf-like: call it with "%s" and one string.
pub type Logger = Option<
    unsafe extern "C" fn(
        level: c_int,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    ),
>;

/// NCCL's profiler callback, v10 and newer.
pub type Profiler = Option<
    unsafe extern "C" fn(
        event: *mut *mut c_void,
        kind: c_int,
        parent: *mut c_void,
        plugin: i64,
        data: *mut c_void,
    ) -> ResultCode,
>;

pub type InitV6 = Option<unsafe extern "C" fn(logger: Logger) -> ResultCode>;
pub type InitV10 = Option<unsafe extern "C" fn(logger: Logger, profiler: Profiler) -> ResultCode>;
/// Once per communicator.
pub type InitV11 = Option<
    unsafe extern "C" fn(
        context: *mut *mut c_void,
        communicator: u64,
        config: *mut CommConfig,
        logger: Logger,
        profiler: Profiler,
    ) -> ResultCode,
>;

pub type Devices = Option<unsafe extern "C" fn(count: *mut c_int) -> ResultCode>;

pub type GetPropertiesV6 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV6) -> ResultCode>;
pub type GetPropertiesV7 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV7) -> ResultCode>;
pub type GetPropertiesV8 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV8) -> ResultCode>;
pub type GetPropertiesV9 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV9) -> ResultCode>;
pub type GetPropertiesV11 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV11) -> ResultCode>;
pub type GetPropertiesV12 =
    Option<unsafe extern "C" fn(device: c_int, properties: *mut PropertiesV12) -> ResultCode>;

pub type ListenV6 = Option<
    unsafe extern "C" fn(
        device: c_int,
        handle: *mut c_void,
        listener: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type ListenV11 = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        listener: *mut *mut c_void,
    ) -> ResultCode,
>;

/// Success with a null comm: not yet, call again with the same handle.
pub type ConnectV6 = Option<
    unsafe extern "C" fn(device: c_int, handle: *mut c_void, comm: *mut *mut c_void) -> ResultCode,
>;
pub type ConnectV7 = Option<
    unsafe extern "C" fn(
        device: c_int,
        handle: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode,
>;
pub type ConnectV10 = Option<
    unsafe extern "C" fn(
        device: c_int,
        config: *mut CommConfig,
        handle: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode,
>;
pub type ConnectV11 = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode,
>;

/// Success with a null comm: not yet, call again.
pub type AcceptV6 =
    Option<unsafe extern "C" fn(listener: *mut c_void, comm: *mut *mut c_void) -> ResultCode>;
pub type AcceptV7 = Option<
    unsafe extern "C" fn(
        listener: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode,
>;

pub type RegMrV6 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: c_int,
        kind: c_int,
        region: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type RegMrV8 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        kind: c_int,
        region: *mut *mut c_void,
    ) -> ResultCode,
>;
/// NCCL closes the descriptor right after the call.
pub type RegMrDmaBuf = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        kind: c_int,
        offset: u64,
        descriptor: c_int,
        region: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type DeregMr =
    Option<unsafe extern "C" fn(comm: *mut c_void, region: *mut c_void) -> ResultCode>;

/// Success with a null request: cannot be posted now, call again.
pub type IsendV6 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: c_int,
        tag: c_int,
        region: *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type IsendV9 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        region: *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type IsendV10 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        region: *mut c_void,
        profiler_parent: *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;

/// Success with a null request: cannot be posted now, call again.
pub type IrecvV6 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        tags: *mut c_int,
        regions: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type IrecvV9 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut usize,
        tags: *mut c_int,
        regions: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type IrecvV10 = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut usize,
        tags: *mut c_int,
        regions: *mut *mut c_void,
        profiler_parents: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;

/// Success with a null request: nothing to wait for. Sizes are `int` in every version.
pub type Iflush = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        regions: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode,
>;
/// Sizes may be null, and are `int` in every version.
pub type Test = Option<
    unsafe extern "C" fn(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ResultCode,
>;
/// closeSend, closeRecv, closeListen.
pub type Close = Option<unsafe extern "C" fn(comm: *mut c_void) -> ResultCode>;

pub type GetDeviceMr = Option<
    unsafe extern "C" fn(
        comm: *mut c_void,
        region: *mut c_void,
        device_region: *mut *mut c_void,
    ) -> ResultCode,
>;
pub type IrecvConsumed = Option<
    unsafe extern "C" fn(comm: *mut c_void, count: c_int, request: *mut c_void) -> ResultCode,
>;

pub type MakeVDeviceV9 =
    Option<unsafe extern "C" fn(device: *mut c_int, properties: *mut VProps4) -> ResultCode>;
pub type MakeVDeviceV12 =
    Option<unsafe extern "C" fn(device: *mut c_int, properties: *mut VProps8) -> ResultCode>;
pub type Finalize = Option<unsafe extern "C" fn(context: *mut c_void) -> ResultCode>;
pub type SetNetAttr =
    Option<unsafe extern "C" fn(context: *mut c_void, attributes: *mut NetAttr) -> ResultCode>;
