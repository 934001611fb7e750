//! A device's properties, whatever version of the struct they come in.

use std::ffi::{CStr, c_char};

use net_abi::{
    MAX_MESSAGE_BYTES, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11,
    PropertiesV12, UNDEFINED,
};

/// A device's properties. Fields that an older table lacks have the value that NCCL assumes then.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    pub name: String,
    pub pci_path: Option<String>,
    pub guid: u64,
    /// Bits: 1 host, 2 CUDA, 4 dmabuf.
    pub memory_kinds: i32,
    pub regions_are_global: bool,
    pub force_flush: bool,
    pub speed_mbps: i32,
    pub port: i32,
    pub latency_us: f32,
    pub comms_max: i32,
    pub group_max: i32,
    pub device_type: i32,
    pub device_version: i32,
    /// The physical devices it is made of.
    pub parts: Vec<i32>,
    pub point_to_point_bytes_max: usize,
    pub multi_request_max: i32,
    pub rail: Option<i16>,
    pub plane: Option<i16>,
}

/// The fields of v6; the other versions add to them.
macro_rules! common {
    ($p:ident) => {
        Self {
            // SAFETY: the caller vouches for the strings.
            name: unsafe { text($p.name) }.unwrap_or_default(),
            // SAFETY: as above.
            pci_path: unsafe { text($p.pci_path) },
            guid: $p.guid,
            memory_kinds: $p.ptr_support,
            regions_are_global: false,
            force_flush: false,
            speed_mbps: $p.speed,
            port: $p.port,
            latency_us: $p.latency,
            comms_max: $p.max_comms,
            group_max: $p.max_recvs,
            device_type: net_abi::DEVICE_HOST,
            device_version: 0,
            parts: Vec::new(),
            point_to_point_bytes_max: MAX_MESSAGE_BYTES,
            multi_request_max: 1,
            rail: None,
            plane: None,
        }
    };
}

/// The fields of v9; v11 and v12 add to them.
macro_rules! of_v9 {
    ($p:ident) => {
        Self {
            device_type: $p.net_device_type,
            device_version: $p.net_device_version,
            regions_are_global: $p.reg_is_global != 0,
            force_flush: $p.force_flush != 0,
            parts: parts($p.v_props.ndevs, &$p.v_props.devs),
            point_to_point_bytes_max: $p.max_p2p_bytes,
            ..common!($p)
        }
    };
}

/// `from_vN`: each relies on the strings in `p` being null or valid C strings.
impl Properties {
    pub(crate) unsafe fn from_v6(p: &PropertiesV6) -> Self {
        common!(p)
    }

    pub(crate) unsafe fn from_v7(p: &PropertiesV7) -> Self {
        let (device_type, device_version) = (p.net_device_type, p.net_device_version);
        Self { device_type, device_version, ..common!(p) }
    }

    pub(crate) unsafe fn from_v8(p: &PropertiesV8) -> Self {
        let (device_type, device_version) = (p.net_device_type, p.net_device_version);
        Self { device_type, device_version, regions_are_global: p.reg_is_global != 0, ..common!(p) }
    }

    pub(crate) unsafe fn from_v9(p: &PropertiesV9) -> Self {
        of_v9!(p)
    }

    pub(crate) unsafe fn from_v11(p: &PropertiesV11) -> Self {
        Self { multi_request_max: p.max_multi_request_size, ..of_v9!(p) }
    }

    pub(crate) unsafe fn from_v12(p: &PropertiesV12) -> Self {
        let defined = |id: i16| (i32::from(id) != UNDEFINED).then_some(id);
        Self {
            multi_request_max: p.max_multi_request_size,
            rail: defined(p.rail_id),
            plane: defined(p.plane_id),
            ..of_v9!(p)
        }
    }
}

fn parts(count: i32, devices: &[i32]) -> Vec<i32> {
    devices.iter().take(usize::try_from(count).unwrap_or(0)).copied().collect()
}

/// # Safety
///
/// `string` is null or a C string.
pub(crate) unsafe fn text(string: *const c_char) -> Option<String> {
    // SAFETY: not null here, and the caller vouches for the rest.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
}
