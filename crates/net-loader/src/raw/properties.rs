//! Properties on a poisoned struct, to see which bytes a plugin writes.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::Arc;

use net_abi::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
};

use super::{Net, Wrong, check_once, missing};
use crate::calls::GetProperties;
use crate::properties::text;
use crate::{Library, Properties};

/// A field of a version's struct, by NCCL's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub at: usize,
    pub len: usize,
}

/// Calls getProperties with a struct whose bytes are all `$poison`, and passes it to `$use`.
macro_rules! fetch {
    ($self:ident, $device:ident, $poison:expr, $read:ident) => {{
        macro_rules! of {
            ($get:ident, $type:ident, $from:ident) => {{
                let mut raw = MaybeUninit::<$type>::uninit();
                // SAFETY: the struct's own bytes.
                unsafe { ptr::write_bytes(raw.as_mut_ptr(), $poison, 1) };
                // SAFETY: the place lives through the call.
                check_once("getProperties", unsafe { $get($device, raw.as_mut_ptr()) })?;
                $read!(raw, $type, $from)
            }};
        }
        match $self.0.calls()?.properties {
            GetProperties::V6(Some(get)) => of!(get, PropertiesV6, from_v6),
            GetProperties::V7(Some(get)) => of!(get, PropertiesV7, from_v7),
            GetProperties::V8(Some(get)) => of!(get, PropertiesV8, from_v8),
            GetProperties::V9(Some(get)) => of!(get, PropertiesV9, from_v9),
            GetProperties::V11(Some(get)) => of!(get, PropertiesV11, from_v11),
            GetProperties::V12(Some(get)) => of!(get, PropertiesV12, from_v12),
            _ => return Err(missing("getProperties")),
        }
    }};
}

macro_rules! typed {
    ($raw:ident, $type:ident, $from:ident) => {{
        // SAFETY: all-zero bits were a value of this C struct, and the plugin wrote over some.
        let raw = unsafe { $raw.assume_init() };
        // SAFETY: a plugin's strings live as long as it is loaded.
        unsafe { Properties::$from(&raw) }
    }};
}

macro_rules! bytes {
    ($raw:ident, $type:ident, $from:ident) => {{
        let len = size_of::<$type>();
        // SAFETY: every byte was written above, padding included, and nothing has been copied since.
        unsafe { slice::from_raw_parts($raw.as_ptr().cast::<u8>(), len) }.to_vec()
    }};
}

macro_rules! pointers {
    ($raw:ident, $type:ident, $from:ident) => {{
        // SAFETY: all-zero bits were a value of this C struct, and the plugin wrote over some.
        let raw = unsafe { $raw.assume_init() };
        (raw.name, raw.pci_path)
    }};
}

/// A device's strings, kept by pointer as NCCL does.
#[derive(Debug)]
pub struct Strings {
    name: *const c_char,
    path: *const c_char,
    _library: Arc<Library>,
}

impl Strings {
    /// The current name and path.
    pub fn read(&self) -> (Option<String>, Option<String>) {
        // SAFETY: a plugin's strings live as long as it is loaded, and the library is open.
        let name = unsafe { text(self.name) };
        // SAFETY: as above.
        (name, unsafe { text(self.path) })
    }
}

impl Net {
    pub fn properties(&self, device: c_int) -> Result<Properties, Wrong> {
        Ok(fetch!(self, device, 0, typed))
    }

    /// The struct's bytes after the call; before it, all were `poison`.
    pub fn properties_over(&self, device: c_int, poison: u8) -> Result<Vec<u8>, Wrong> {
        Ok(fetch!(self, device, poison, bytes))
    }

    /// The pointers to a device's name and path, and the library that they point into.
    pub fn keep_strings(&self, device: c_int) -> Result<Strings, Wrong> {
        let (name, path) = fetch!(self, device, 0, pointers);
        Ok(Strings { name, path, _library: Arc::clone(&self.0.library) })
    }

    /// The fields that NCCL reads in this version's struct. Of a virtual device's parts only the first one is certain to exist.
    pub fn property_fields(&self) -> Vec<Field> {
        fields(self.version())
    }
}

fn fields(version: u32) -> Vec<Field> {
    let words: &[(&str, usize)] = match version {
        6 => &SINCE_V6,
        7 => &SINCE_V7,
        8 => &SINCE_V8,
        9 | 10 => &SINCE_V9,
        11 => &SINCE_V11,
        _ => &SINCE_V12,
    };
    let mut at = 0;
    let mut fields = Vec::new();
    for &(name, len) in words {
        at = if name == PADDING { at } else { usize::next_multiple_of(at, len.min(8)) };
        if name != PADDING {
            fields.push(Field { name, at, len });
        }
        at += len;
    }
    fields
}

const PADDING: &str = "";

const SINCE_V6: [(&str, usize); 9] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
];

const SINCE_V7: [(&str, usize); 11] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
    ("netDeviceType", 4),
    ("netDeviceVersion", 4),
];

const SINCE_V8: [(&str, usize); 12] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("regIsGlobal", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
    ("netDeviceType", 4),
    ("netDeviceVersion", 4),
];

const SINCE_V9: [(&str, usize); 18] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("regIsGlobal", 4),
    ("forceFlush", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
    ("netDeviceType", 4),
    ("netDeviceVersion", 4),
    ("vProps.ndevs", 4),
    ("vProps.devs[0]", 4),
    (PADDING, 12),
    ("maxP2pBytes", 8),
    ("maxCollBytes", 8),
];

const SINCE_V11: [(&str, usize); 19] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("regIsGlobal", 4),
    ("forceFlush", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
    ("netDeviceType", 4),
    ("netDeviceVersion", 4),
    ("vProps.ndevs", 4),
    ("vProps.devs[0]", 4),
    (PADDING, 12),
    ("maxP2pBytes", 8),
    ("maxCollBytes", 8),
    ("maxMultiRequestSize", 4),
];

const SINCE_V12: [(&str, usize); 21] = [
    ("name", 8),
    ("pciPath", 8),
    ("guid", 8),
    ("ptrSupport", 4),
    ("regIsGlobal", 4),
    ("forceFlush", 4),
    ("speed", 4),
    ("port", 4),
    ("latency", 4),
    ("maxComms", 4),
    ("maxRecvs", 4),
    ("netDeviceType", 4),
    ("netDeviceVersion", 4),
    ("vProps.ndevs", 4),
    ("vProps.devs[0]", 4),
    (PADDING, 28),
    ("maxP2pBytes", 8),
    ("maxCollBytes", 8),
    ("maxMultiRequestSize", 4),
    ("railId", 2),
    ("planeId", 2),
];

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_fields_lie_where_the_structs_have_them() {
        let place = |version, name| {
            fields(version).iter().find(|field| field.name == name).map(|field| field.at).unwrap()
        };
        assert_eq!(place(6, "maxRecvs"), offset_of!(PropertiesV6, max_recvs));
        assert_eq!(place(7, "netDeviceVersion"), offset_of!(PropertiesV7, net_device_version));
        assert_eq!(place(8, "netDeviceVersion"), offset_of!(PropertiesV8, net_device_version));
        assert_eq!(place(9, "maxCollBytes"), offset_of!(PropertiesV9, max_coll_bytes));
        let multi = offset_of!(PropertiesV11, max_multi_request_size);
        assert_eq!(place(11, "maxMultiRequestSize"), multi);
        assert_eq!(place(12, "maxP2pBytes"), offset_of!(PropertiesV12, max_p2p_bytes));
        assert_eq!(place(12, "planeId"), offset_of!(PropertiesV12, plane_id));
    }
}
