//! fi_info.nic: the bus address, the link and the speed of a virtual NIC. fi_nic(3).
//!
//! Its memory comes from libfabric's allocator and is larger than needed: a later release copies structures of its own size.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libfabric_sys as sys;

use super::table::table;
use super::text::duplicate;
use crate::settings::Settings;

table! {
    fn objects() -> sys::fi_ops { close: close, control: control, tostr: describe }
}

/// Zeroed memory for a `T`, with spare bytes behind it.
fn allocate<T>() -> *mut T {
    const SPARE: usize = 128;
    // SAFETY: calloc has no preconditions; of these types, all zeroes is a value.
    unsafe { libc::calloc(1, size_of::<T>() + SPARE) }.cast()
}

/// The NIC of one fi_info; null when there is no memory.
pub(super) fn make(settings: &Settings, number: usize, name: &str) -> *mut sys::fid_nic {
    let profile = &settings.profile;
    let text =
        |text: String| CString::new(text).map_or(std::ptr::null_mut(), |text| duplicate(&text));
    let made = allocate::<sys::fid_nic>();
    // SAFETY: null or zeroed, which is a value, and so for the three below.
    let Some(nic) = (unsafe { made.as_mut() }) else { return made };
    nic.fid.fclass = sys::FI_CLASS_NIC as usize;
    nic.fid.ops = objects();
    nic.device_attr = allocate();
    // SAFETY: as above.
    if let Some(device) = unsafe { nic.device_attr.as_mut() } {
        device.name = text(name.to_owned());
        device.device_id = text(format!("vfabric-{}", profile.name));
        device.vendor_id = text("0x5646".to_owned());
        device.driver = text("vfabric".to_owned());
        device.firmware = text(env!("CARGO_PKG_VERSION").to_owned());
    }
    nic.bus_attr = allocate();
    // SAFETY: as above.
    if let Some(bus) = unsafe { nic.bus_attr.as_mut() } {
        let address = settings.pci_of(number);
        bus.bus_type = sys::FI_BUS_PCI;
        bus.attr.pci = sys::fi_pci_attr {
            domain_id: address.domain,
            bus_id: address.bus,
            device_id: address.device,
            function_id: address.function,
        };
    }
    nic.link_attr = allocate();
    // SAFETY: as above.
    if let Some(link) = unsafe { nic.link_attr.as_mut() } {
        link.address = text(format!("02:00:00:00:00:{number:02x}"));
        link.mtu = profile.mtu;
        let bits = Settings::of_nic(&settings.speed_mbps, number).saturating_mul(1_000_000);
        link.speed = crate::memory::bits(bits);
        link.state = sys::FI_LINK_UP;
        link.network_type = text(profile.network.to_owned());
    }
    made
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    let raw = fid.cast::<sys::fid_nic>();
    // SAFETY: this table is of NICs only, made by `make` or `copy`.
    let nic = unsafe { raw.read() };
    // SAFETY: each part is null or valid.
    if let Some(device) = unsafe { nic.device_attr.as_ref() } {
        for text in
            [device.name, device.device_id, device.vendor_id, device.driver, device.firmware]
        {
            free(text);
        }
    }
    // SAFETY: as above.
    if let Some(link) = unsafe { nic.link_attr.as_ref() } {
        free(link.address);
        free(link.network_type);
    }
    free(nic.device_attr);
    free(nic.bus_attr);
    free(nic.link_attr);
    free(raw);
    0
}

fn free<T>(memory: *mut T) {
    // SAFETY: null, or of malloc's, and owned by nothing any more.
    unsafe { libc::free(memory.cast()) };
}

/// FI_DUP: fi_dupinfo copies the NIC by this call.
unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, argument: *mut c_void) -> c_int {
    if command.cast_unsigned() != sys::FI_DUP {
        return -sys::FI_ENOSYS;
    }
    // SAFETY: this table is of NICs only.
    let nic = unsafe { fid.cast::<sys::fid_nic>().read() };
    let made = copy(&nic);
    if made.is_null() {
        return -sys::FI_ENOMEM;
    }
    // SAFETY: with this command, the argument is a place for a NIC.
    unsafe { argument.cast::<*mut sys::fid_nic>().write(made) };
    0
}

fn copy(nic: &sys::fid_nic) -> *mut sys::fid_nic {
    let made = allocate::<sys::fid_nic>();
    // SAFETY: null or zeroed, which is a value.
    let Some(target) = (unsafe { made.as_mut() }) else { return made };
    target.fid = nic.fid;
    target.device_attr = copy_part(nic.device_attr);
    target.bus_attr = copy_part(nic.bus_attr);
    target.link_attr = copy_part(nic.link_attr);
    // SAFETY: each part is null or valid.
    if let Some(device) = unsafe { target.device_attr.as_mut() } {
        for text in [
            &mut device.name,
            &mut device.device_id,
            &mut device.vendor_id,
            &mut device.driver,
            &mut device.firmware,
        ] {
            *text = copy_text(*text);
        }
    }
    // SAFETY: as above.
    if let Some(link) = unsafe { target.link_attr.as_mut() } {
        link.address = copy_text(link.address);
        link.network_type = copy_text(link.network_type);
    }
    made
}

fn copy_part<T: Copy>(part: *const T) -> *mut T {
    // SAFETY: a part of a NIC is null or valid.
    let Some(part) = (unsafe { part.as_ref() }) else { return std::ptr::null_mut() };
    let made = allocate::<T>();
    if !made.is_null() {
        // SAFETY: it is as large as that.
        unsafe { made.write(*part) };
    }
    made
}

fn copy_text(text: *const c_char) -> *mut c_char {
    if text.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string of `make`'s.
    duplicate(unsafe { CStr::from_ptr(text) })
}

unsafe extern "C" fn describe(_fid: *const sys::fid, buffer: *mut c_char, len: usize) -> c_int {
    // SAFETY: libfabric's buffer is as long as it says, and both are C strings.
    unsafe { libc::snprintf(buffer, len, c"%s".as_ptr(), c"vfabric NIC\n".as_ptr()) };
    0
}
