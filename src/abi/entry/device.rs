//! Calls before any connection: the plugin's start and end, its devices and their properties.

use std::ffi::{c_int, c_void};
use std::ptr;

use net_abi::{
    CommConfig, DEVICE_HOST, Logger, MAX_DEVICES, MAX_POINT_TO_POINT_BYTES, PTR_CUDA, PTR_DMABUF,
    PTR_HOST, Profiler, PropertiesV12, ResultCode, VProps8,
};

use crate::abi::guard::{guard, report_panics};
use crate::abi::place::place;
use crate::abi::{argument, logger, object, profiler};
use crate::error::{Cause, List, Noun, Result};
use crate::plugin::{self, DeviceProperties};

/// Once per communicator: each gets a context of its own.
pub(in crate::abi) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _communicator: u64,
    config: *mut CommConfig,
    logger: Logger,
    profiler: Profiler,
) -> ResultCode {
    listen_to_nccl(logger);
    profiler::install(profiler);
    guard("init", || {
        // SAFETY: NCCL's configuration of the communicator, or null.
        let class = unsafe { argument::traffic_class(config) };
        // SAFETY: NCCL's place for the context, or null.
        let context = unsafe { place(context, ptr::null_mut(), Noun::Context) }?;
        *context = object::pointer(plugin::open_context(class)?);
        Ok(())
    })
}

/// The `init` of v6 to v10, once per process while the library is loaded.
pub(in crate::abi) fn start(logger: Logger) -> ResultCode {
    listen_to_nccl(logger);
    guard("init", plugin::start)
}

fn listen_to_nccl(logger: Logger) {
    logger::install(logger);
    report_panics();
}

pub(in crate::abi) unsafe extern "C" fn finalize(context: *mut c_void) -> ResultCode {
    guard("finalize", || plugin::close_context(object::raw(context)))
}

pub(in crate::abi) unsafe extern "C" fn devices(count: *mut c_int) -> ResultCode {
    guard("devices", || {
        // SAFETY: NCCL's place for the count, or null.
        let count = unsafe { place(count, 0, Noun::Devices) }?;
        // NCCL indexes arrays of this size unchecked.
        *count = c_int::try_from(plugin::devices()?.min(MAX_DEVICES)).expect("a small number");
        Ok(())
    })
}

pub(in crate::abi) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut PropertiesV12,
) -> ResultCode {
    // SAFETY: NCCL's own place, or null.
    unsafe { properties_as(device, properties, |newest| *newest) }
}

/// `narrow` converts the newest properties to a version's.
///
/// # Safety
///
/// `properties` is null or a place for that version's properties.
pub(in crate::abi) unsafe fn properties_as<T>(
    device: c_int,
    properties: *mut T,
    narrow: fn(&PropertiesV12) -> T,
) -> ResultCode {
    guard("getProperties", || {
        // SAFETY: the caller vouches for it.
        let place = unsafe { place(properties, narrow(&UNKNOWN_DEVICE), Noun::Properties) }?;
        *place = narrow(&newest(plugin::properties(argument::device(device)?)?));
        Ok(())
    })
}

/// Fills every field: NCCL's struct is uninitialised memory.
fn newest(found: &DeviceProperties) -> PropertiesV12 {
    PropertiesV12 {
        name: found.name.as_ptr(),
        pci_path: found.pci_path.map_or(ptr::null(), |path| path.as_ptr()),
        guid: found.guid,
        ptr_support: PTR_HOST | bit(found.device_memory, PTR_CUDA) | bit(found.dmabuf, PTR_DMABUF),
        reg_is_global: found.regions_are_global.into(),
        speed: found.speed_mbps,
        port: found.port,
        latency: found.latency_us,
        max_comms: found.max_comms,
        max_recvs: found.max_receives,
        v_props: parts(&found.parts),
        // NCCL's set-up fails outside of these bounds.
        max_p2p_bytes: found.max_point_to_point_bytes.clamp(1, MAX_POINT_TO_POINT_BYTES),
        max_coll_bytes: found.max_collective_bytes.clamp(1, MAX_POINT_TO_POINT_BYTES),
        rail_id: found.rail.unwrap_or(UNDEFINED_ID),
        plane_id: found.plane.unwrap_or(UNDEFINED_ID),
        ..UNKNOWN_DEVICE
    }
}

/// NCCL reads `ndevs` entries, unchecked.
fn parts(found: &[usize]) -> VProps8 {
    let mut devs = [0; 8];
    let mut ndevs = 0;
    for (place, part) in devs.iter_mut().zip(found) {
        *place = c_int::try_from(*part).expect("NCCL counts 128 devices at most");
        ndevs += 1;
    }
    VProps8 { ndevs, devs }
}

/// Makes one device with the rails of several: NICs that NCCL merges.
pub(in crate::abi) unsafe extern "C" fn make_v_device(
    device: *mut c_int,
    parts: *mut VProps8,
) -> ResultCode {
    guard("makeVDevice", || {
        // SAFETY: NCCL's own, or null.
        let parts = unsafe { parts.as_ref() }.ok_or(Cause::NoList(List::Devices))?;
        // SAFETY: NCCL's own place, or null.
        unsafe { make_of(device, parts.ndevs, &parts.devs) }
    })
}

/// # Safety
///
/// `device` is null or a place for an index.
pub(in crate::abi) unsafe fn make_of(
    device: *mut c_int,
    count: c_int,
    devs: &[c_int],
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let device = unsafe { place(device, NO_DEVICE, Noun::DeviceIndex) }?;
    let given = usize::try_from(count).ok().and_then(|count| devs.get(..count));
    let wrong = || Cause::PartsOfDevice { count: usize::try_from(count).unwrap_or(0) };
    let parts = given.ok_or_else(wrong)?.iter().map(|part| argument::device(*part));
    let made = plugin::make_device(&parts.collect::<Result<Vec<_>>>()?)?;
    *device = c_int::try_from(made).expect("NCCL counts 128 devices at most");
    Ok(())
}

const NO_DEVICE: c_int = -1;

fn bit(set: bool, bit: c_int) -> c_int {
    if set { bit } else { 0 }
}

/// The properties when the call fails, and the fields that never change. NCCL does not use multi-requests. 0 would be a valid rail id. No
/// flush is forced: GPUs that need one get it (before compute capability 9.0, or on NVLink-C2C and on the NIC's PCI switch, NCCL
/// src/graph/paths.cc:572-597), and on the others NCCL forces one only for NICs whose data and completions take different paths, which ours
/// do not.
const UNKNOWN_DEVICE: PropertiesV12 = PropertiesV12 {
    name: c"".as_ptr(),
    pci_path: ptr::null(),
    guid: 0,
    ptr_support: PTR_HOST,
    reg_is_global: 0,
    force_flush: 0,
    speed: 0,
    port: 0,
    latency: 0.0,
    max_comms: 0,
    max_recvs: 1,
    net_device_type: DEVICE_HOST,
    net_device_version: 0,
    v_props: VProps8 { ndevs: 1, devs: [0; 8] },
    max_p2p_bytes: 1,
    max_coll_bytes: 1,
    max_multi_request_size: 1,
    rail_id: UNDEFINED_ID,
    plane_id: UNDEFINED_ID,
};

/// NCCL_NET_ID_UNDEF.
const UNDEFINED_ID: i16 = -1;

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn found() -> DeviceProperties {
        DeviceProperties {
            name: c"cxi0",
            pci_path: Some(c"/sys/devices/pci0000:00/0000:00:01.0"),
            guid: 7,
            speed_mbps: 200_000,
            port: 1,
            latency_us: 2.0,
            max_comms: 65536,
            max_receives: 8,
            device_memory: true,
            dmabuf: true,
            regions_are_global: true,
            max_point_to_point_bytes: usize::MAX,
            max_collective_bytes: 0,
            rail: Some(3),
            plane: None,
            parts: vec![3],
        }
    }

    #[test]
    fn properties_say_what_was_found_within_nccls_limits() {
        let written = newest(&found());
        // SAFETY: 'static.
        assert_eq!(unsafe { CStr::from_ptr(written.name) }, c"cxi0");
        assert!(!written.pci_path.is_null());
        assert_eq!(
            (written.guid, written.speed, written.port, written.max_comms),
            (7, 200_000, 1, 65536)
        );
        assert_eq!((written.ptr_support, written.reg_is_global, written.max_recvs), (7, 1, 8));
        assert_eq!((written.v_props.ndevs, written.v_props.devs[0]), (1, 3));
        assert_eq!((written.max_p2p_bytes, written.max_coll_bytes), (1 << 40, 1));
        assert_eq!(
            (written.force_flush, written.net_device_type, written.max_multi_request_size),
            (0, 0, 1)
        );
        assert_eq!((written.rail_id, written.plane_id), (3, -1));
    }

    #[test]
    fn a_device_of_several_names_them_all_and_no_more_than_there_is_room_for() {
        let of = |parts: &[usize]| {
            newest(&DeviceProperties { parts: parts.to_vec(), ..found() }).v_props
        };
        assert_eq!((of(&[1, 0, 5]).ndevs, of(&[1, 0, 5]).devs), (3, [1, 0, 5, 0, 0, 0, 0, 0]));
        assert_eq!(of(&[9; 12]).ndevs, 8);
    }

    #[test]
    fn host_memory_is_always_supported_and_a_path_may_be_missing() {
        let found =
            DeviceProperties { device_memory: false, dmabuf: false, pci_path: None, ..found() };
        let written = newest(&found);
        assert_eq!(written.ptr_support, PTR_HOST);
        assert!(written.pci_path.is_null());
    }
}
