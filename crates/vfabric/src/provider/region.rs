//! Regions: registered, bound, enabled, closed.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use libfabric_sys as sys;

use super::object::Object;
use super::table::table;
use super::{answer, number, pointer};
use crate::engine::{self, Errno, Region, engine};
use crate::ledger::Rule;
use crate::memory::Mapping;

table! {
    fn objects() -> sys::fi_ops { close: close, bind: bind, control: control }
}

table! {
    pub(super) fn calls() -> sys::fi_ops_mr {
        reg: register,
        regv: register_vector,
        regattr: register_attributes,
    }
}

unsafe extern "C" fn register(
    domain: *mut sys::fid,
    buffer: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    region: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    let made = Region::new(number(buffer), len as u64, access, number(context));
    // SAFETY: the caller's.
    unsafe { open(domain, made, requested_key, context, region) }
}

unsafe extern "C" fn register_vector(
    domain: *mut sys::fid,
    pieces: *const sys::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    region: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -sys::FI_EINVAL;
    }
    // SAFETY: the user gives one piece.
    let piece = unsafe { pieces.read() };
    let made = Region::new(number(piece.iov_base), piece.iov_len as u64, access, number(context));
    // SAFETY: the caller's.
    unsafe { open(domain, made, requested_key, context, region) }
}

unsafe extern "C" fn register_attributes(
    domain: *mut sys::fid,
    attributes: *const sys::fi_mr_attr,
    flags: u64,
    region: *mut *mut sys::fid_mr,
) -> c_int {
    // SAFETY: the user gives attributes.
    let asked = unsafe { attributes.read() };
    let device_memory = asked.iface != sys::FI_HMEM_SYSTEM || flags & sys::FI_MR_DMABUF != 0;
    if device_memory {
        // SAFETY: libfabric gives a domain of ours.
        let Some(domain) = (unsafe { Object::<sys::fid_domain>::of(domain.cast()) }) else {
            return -sys::FI_EINVAL;
        };
        if let Err(Errno(code)) = engine().may_take_device_memory(domain.id) {
            return -code;
        }
    }
    let mut mapping = None;
    let (base, len) = if flags & sys::FI_MR_DMABUF != 0 {
        // SAFETY: with this flag, the first field points to one of these.
        let dmabuf = unsafe { asked.mr_iov.cast::<sys::fi_mr_dmabuf>().read() };
        let end = dmabuf.offset.checked_add(dmabuf.len as u64);
        match (size_of_file(dmabuf.fd), end) {
            (None, _) => return -libc::EBADF,
            (Some(size), Some(end)) if end <= size => {
                mapping = Mapping::of(dmabuf.fd, crate::memory::bits(end)).map(Arc::new);
            }
            _ => return -sys::FI_EINVAL,
        }
        if mapping.is_none() {
            return -sys::FI_EINVAL;
        }
        // A region below its offset has a base before address 0 (fi_mr(3), FI_MR_DMABUF: only the sum is an address).
        (number(dmabuf.base_addr).wrapping_add(dmabuf.offset), dmabuf.len)
    } else if asked.iov_count == 1 {
        // SAFETY: the user gives one piece.
        let piece = unsafe { asked.mr_iov.read() };
        (number(piece.iov_base), piece.iov_len)
    } else {
        return -sys::FI_EINVAL;
    };
    let made = Region::new(base, len as u64, asked.access, number(asked.context));
    if device_memory && !is_of_device(base, device_of(&asked)) {
        return -sys::FI_EINVAL;
    }
    let made = match mapping {
        _ if !device_memory => made,
        Some(mapping) => {
            // SAFETY: with FI_MR_DMABUF, as above.
            let dmabuf = unsafe { asked.mr_iov.cast::<sys::fi_mr_dmabuf>().read() };
            let place = mapping.address() + dmabuf.offset;
            made.of_device(device_of(&asked), place, Some(mapping))
        }
        None => made.of_device(device_of(&asked), place_by_driver(base, len), None),
    };
    // SAFETY: the caller's.
    unsafe { open(domain, made, asked.requested_key, asked.context, region) }
}

/// The device, from the union's member for its kind of memory.
fn device_of(asked: &sys::fi_mr_attr) -> c_int {
    if asked.iface == sys::FI_HMEM_CUDA {
        // SAFETY: the member for this kind; every member of the union is numbers.
        unsafe { asked.device.cuda }
    } else {
        0
    }
}

/// Whether CUDA's driver, if it is loaded, says that this address is on this device. Otherwise it is recorded as a broken rule: a real
/// provider would pin the wrong memory.
fn is_of_device(address: u64, device: c_int) -> bool {
    let Some(call) = of_driver(c"cuPointerGetAttribute") else { return true };
    // SAFETY: the driver's reference declares it so; a symbol's address is a function pointer.
    let call = unsafe {
        (&raw const call).cast::<unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int>().read()
    };
    let mut found: c_int = -1;
    // SAFETY: the attribute is an int; an address may be any number.
    let code = unsafe { call((&raw mut found).cast(), DEVICE_ORDINAL, address) };
    let is_so = code == 0 && found == device;
    if !is_so {
        engine().broken(Rule::Arguments, || {
            format!(
                "memory at {address:#x} is registered as device {device}'s, and is device {found}'s"
            )
        });
    }
    is_so
}

/// CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, cuda.h.
const DEVICE_ORDINAL: c_int = 9;

/// A function of CUDA's driver, or of the stand-in for it, if that is loaded.
fn of_driver(name: &CStr) -> Option<*const c_void> {
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: a C string; nothing is loaded by it.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is open.
    let symbol: *const c_void = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// The CPU's address of bytes at a device address. A real provider asks the GPU's driver (nvidia-peermem); the stand-in for the driver has
/// a function of its own for it, since the CPU cannot access its device addresses. Without a driver, the address itself.
fn place_by_driver(address: u64, len: usize) -> u64 {
    let Some(place) = of_driver(c"standin_view") else { return address };
    // SAFETY: the stand-in defines it so; a symbol's address is a function pointer.
    let place =
        unsafe { (&raw const place).cast::<extern "C" fn(u64, usize) -> *mut c_void>().read() };
    let place = place(address, len);
    if place.is_null() { address } else { number(place) }
}

/// The length of the dmabuf. A real provider maps it at registration: the descriptor must be open, and the file long enough.
fn size_of_file(descriptor: c_int) -> Option<u64> {
    // SAFETY: numbers, of which any bits are valid.
    let mut found = unsafe { std::mem::zeroed::<libc::stat>() };
    // SAFETY: the place is ours; a descriptor may be anything.
    let code = unsafe { libc::fstat(descriptor, &raw mut found) };
    if code == 0 { u64::try_from(found.st_size).ok() } else { None }
}

/// # Safety
///
/// `domain` must be a domain of ours, and `place` valid.
unsafe fn open(
    domain: *mut sys::fid,
    region: Region,
    requested_key: u64,
    context: *mut c_void,
    place: *mut *mut sys::fid_mr,
) -> c_int {
    // SAFETY: the caller's.
    let Some(domain) = (unsafe { Object::<sys::fid_domain>::of(domain.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = domain.enter("a registration");
    let registered = engine().register(domain.id, region, requested_key);
    let (id, key) = match registered {
        Ok(registered) => registered,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_mr {
        fid: sys::fid { fclass: sys::FI_CLASS_MR as usize, context, ops: objects() },
        mem_desc: pointer(engine::descriptor(id)),
        key,
    };
    let object = Object::new(fid, id, domain.serialised);
    object.join_groups_of(domain);
    // SAFETY: the caller's.
    unsafe { place.write(object.publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of regions only.
    let Some(region) = (unsafe { Object::<sys::fid_mr>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = region.enter("fi_close");
    let outcome = engine().close_region(region.id);
    if outcome.is_ok() {
        region.bury();
    }
    answer(outcome)
}

unsafe extern "C" fn bind(fid: *mut sys::fid, object: *mut sys::fid, flags: u64) -> c_int {
    // SAFETY: this table is of regions only.
    let Some(region) = (unsafe { Object::<sys::fid_mr>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    // SAFETY: the user gives an open object.
    if unsafe { (*object).fclass } != sys::FI_CLASS_EP as usize {
        return -sys::FI_EINVAL;
    }
    // SAFETY: its class says that it is an endpoint.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(object.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = endpoint.enter("fi_mr_bind");
    let outcome = engine().bind_region(region.id, endpoint.id, flags);
    if outcome.is_ok() {
        region.join_groups_of(endpoint);
    }
    answer(outcome)
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: this table is of regions only.
    let Some(region) = (unsafe { Object::<sys::fid_mr>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    if command.cast_unsigned() != sys::FI_ENABLE {
        return -sys::FI_ENOSYS;
    }
    let _marks = region.enter("fi_mr_enable");
    let enabled = engine().enable_region(region.id);
    match enabled {
        Ok(key) => {
            // SAFETY: the user reads the key after this call has returned, and not at the same time.
            unsafe { (*region.fid()).key = key };
            0
        }
        Err(Errno(code)) => -code,
    }
}
