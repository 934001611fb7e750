//! What `getProperties` fills, version by version.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

/// The devices a virtual one is made of, v9 to v11. A physical device names itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VProps4 {
    pub ndevs: c_int,
    pub devs: [c_int; 4],
}

/// The devices a virtual one is made of, v12.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VProps8 {
    pub ndevs: c_int,
    pub devs: [c_int; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV6 {
    pub name: *const c_char,
    /// Null where the device is on no PCI bus.
    pub pci_path: *const c_char,
    pub guid: u64,
    /// `PTR_HOST` and what else `regMr` takes.
    pub ptr_support: c_int,
    /// Megabits per second.
    pub speed: c_int,
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    pub max_comms: c_int,
    /// Largest group of receives.
    pub max_recvs: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV7 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV8 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    /// 1: a region is good for every comm, and registering a part of it again costs next to nothing.
    pub reg_is_global: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV9 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    /// 1: NCCL flushes even where the GPU would not need it.
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VProps4,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
}

/// v10 changed calls, not properties.
pub type PropertiesV10 = PropertiesV9;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV11 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VProps4,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    pub max_multi_request_size: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV12 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VProps8,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    pub max_multi_request_size: c_int,
    /// -1: undefined; 0 is a rail like any other.
    pub rail_id: i16,
    pub plane_id: i16,
}

/// Asserts a struct's size and the offset of every field named.
macro_rules! layout {
    ($type:ident is $size:literal: $($field:ident $offset:literal),* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };
    };
}

layout!(VProps4 is 20: ndevs 0, devs 4);
layout!(VProps8 is 36: ndevs 0, devs 4);
layout!(PropertiesV6 is 48: name 0, pci_path 8, guid 16, ptr_support 24, speed 28, port 32, latency 36, max_comms 40,
    max_recvs 44);
layout!(PropertiesV7 is 56: name 0, pci_path 8, guid 16, ptr_support 24, speed 28, port 32, latency 36, max_comms 40,
    max_recvs 44, net_device_type 48, net_device_version 52);
layout!(PropertiesV8 is 64: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, speed 32, port 36,
    latency 40, max_comms 44, max_recvs 48, net_device_type 52, net_device_version 56);
layout!(PropertiesV9 is 104: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, force_flush 32, speed 36,
    port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56, net_device_version 60, v_props 64,
    max_p2p_bytes 88, max_coll_bytes 96);
layout!(PropertiesV11 is 112: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, force_flush 32, speed 36,
    port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56, net_device_version 60, v_props 64,
    max_p2p_bytes 88, max_coll_bytes 96, max_multi_request_size 104);
layout!(PropertiesV12 is 128: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, force_flush 32, speed 36,
    port 40, latency 44, max_comms 48, max_recvs 52, net_device_type 56, net_device_version 60, v_props 64,
    max_p2p_bytes 104, max_coll_bytes 112, max_multi_request_size 120, rail_id 124, plane_id 126);
