//! The tables themselves: what stands behind the symbol `ncclNetPlugin_vN`.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

use crate::calls::{
    AcceptV6, AcceptV7, Close, ConnectV6, ConnectV7, ConnectV10, ConnectV11, DeregMr, Devices,
    Finalize, GetDeviceMr, GetPropertiesV6, GetPropertiesV7, GetPropertiesV8, GetPropertiesV9,
    GetPropertiesV11, GetPropertiesV12, Iflush, InitV6, InitV10, InitV11, IrecvConsumed, IrecvV6,
    IrecvV9, IrecvV10, IsendV6, IsendV9, IsendV10, ListenV6, ListenV11, MakeVDeviceV9,
    MakeVDeviceV12, RegMrDmaBuf, RegMrV6, RegMrV8, SetNetAttr, Test,
};

/// v6: the oldest form that NCCL still looks for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV6 {
    pub name: *const c_char,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: GetPropertiesV6,
    pub listen: ListenV6,
    pub connect: ConnectV6,
    pub accept: AcceptV6,
    pub reg_mr: RegMrV6,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV6 {}

/// v7: device offload.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV7 {
    pub name: *const c_char,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: GetPropertiesV7,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV6,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV7 {}

/// v8: regions of 2 GiB and more, which may be global.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV8 {
    pub name: *const c_char,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: GetPropertiesV8,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV6,
    pub irecv: IrecvV6,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV8 {}

/// v9: message sizes are `size_t`; virtual devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV9 {
    pub name: *const c_char,
    pub init: InitV6,
    pub devices: Devices,
    pub get_properties: GetPropertiesV9,
    pub listen: ListenV6,
    pub connect: ConnectV7,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV9,
    pub irecv: IrecvV9,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
    pub make_v_device: MakeVDeviceV9,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV9 {}

/// v10: traffic class in `connect`, profiler handles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV10 {
    pub name: *const c_char,
    pub init: InitV10,
    pub devices: Devices,
    pub get_properties: GetPropertiesV9,
    pub listen: ListenV6,
    pub connect: ConnectV10,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
    pub make_v_device: MakeVDeviceV9,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV10 {}

/// v11: a context per communicator, `finalize`, hints.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV11 {
    pub name: *const c_char,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: GetPropertiesV11,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
    pub make_v_device: MakeVDeviceV9,
    pub finalize: Finalize,
    pub set_net_attr: SetNetAttr,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV11 {}

/// v12: wider virtual devices, rails and planes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetV12 {
    pub name: *const c_char,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: GetPropertiesV12,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: AcceptV7,
    pub reg_mr: RegMrV8,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: GetDeviceMr,
    pub irecv_consumed: IrecvConsumed,
    pub make_v_device: MakeVDeviceV12,
    pub finalize: Finalize,
    pub set_net_attr: SetNetAttr,
}

// SAFETY: a table is never written after it is made, and reading through its pointers is the reader's own `unsafe`.
unsafe impl Sync for NetV12 {}

/// Asserts that a table is the calls all versions share and then the ones named, in this order, one pointer each.
macro_rules! order {
    ($type:ident is $size:literal: $($added:ident)*) => {
        order!(@ $type $size: name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr
            isend irecv iflush test close_send close_recv close_listen $($added)*);
    };
    (@ $type:ident $size:literal: $($field:ident)*) => {
        const _: () = {
            let mut place = 0;
            $(
                assert!(offset_of!($type, $field) == place);
                place += size_of::<usize>();
            )*
            assert!(size_of::<$type>() == place && place == $size);
        };
    };
}

order!(NetV6 is 136:);
order!(NetV7 is 152: get_device_mr irecv_consumed);
order!(NetV8 is 152: get_device_mr irecv_consumed);
order!(NetV9 is 160: get_device_mr irecv_consumed make_v_device);
order!(NetV10 is 160: get_device_mr irecv_consumed make_v_device);
order!(NetV11 is 176: get_device_mr irecv_consumed make_v_device finalize set_net_attr);
order!(NetV12 is 176: get_device_mr irecv_consumed make_v_device finalize set_net_attr);
