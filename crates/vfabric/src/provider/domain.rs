//! Domains: one NIC each.

use std::ffi::{CStr, c_char, c_int, c_void};

use libfabric_sys as sys;

use super::object::Object;
use super::table::table;
use super::{answer, endpoint, info, queue, region, vector};
use crate::control;
use crate::engine::{DomainAsked, Errno, engine};
use crate::report;
use crate::serial::Serial;

table! {
    fn objects() -> sys::fi_ops { close: close, ops_open: open_ops }
}

table! {
    fn calls() -> sys::fi_ops_domain {
        av_open: vector::open,
        cq_open: queue::open,
        endpoint: endpoint::open,
    }
}

/// fi_domain(3).
pub(super) unsafe extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives a fabric of ours.
    let Some(fabric) = (unsafe { Object::of(fabric) }) else { return -sys::FI_EINVAL };
    // SAFETY: libfabric gives an info of ours, or a copy.
    let attributes = unsafe { (*info).domain_attr };
    // SAFETY: as above.
    let device_memory = unsafe { (*info).caps } & sys::FI_HMEM != 0;
    // SAFETY: as above: null or valid.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return -sys::FI_EINVAL };
    // SAFETY: a domain's name is null or a C string.
    let nic = unsafe { info::nic_of(attributes.name) };
    let Some(nic) = nic else { return -sys::FI_EINVAL };
    let modes = info::modes_in_force(attributes.mr_mode);
    let serialised = matches!(
        attributes.threading,
        sys::FI_THREAD_COMPLETION | sys::FI_THREAD_DOMAIN | sys::FI_THREAD_ENDPOINT
    );
    let asked = DomainAsked { fabric: fabric.id, nic, modes, device_memory };
    let id = match engine().open_domain(asked) {
        Ok(id) => id,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_domain {
        fid: sys::fid { fclass: sys::FI_CLASS_DOMAIN as usize, context, ops: objects() },
        ops: calls(),
        mr: region::calls(),
    };
    let object = Object::new(fid, id, serialised);
    if attributes.threading == sys::FI_THREAD_DOMAIN {
        object.join(&Serial::new());
    }
    // SAFETY: libfabric's user gives a valid place.
    unsafe { domain.write(object.publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of domains only.
    let Some(domain) = (unsafe { Object::<sys::fid_domain>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = domain.enter("fi_close");
    let mut engine = engine();
    let outcome = engine.close_domain(domain.id);
    if outcome.is_ok() {
        domain.bury();
        if engine.is_idle() {
            report::write(&engine);
        }
    }
    answer(outcome)
}

/// fi_cxi_dom_ops of cxi's fi_cxi_ext.h.
#[repr(C)]
struct CxiCalls {
    absent: [unsafe extern "C" fn() -> c_int; 2],
    enable_hybrid_mr_desc: unsafe extern "C" fn(*mut sys::fid, bool) -> c_int,
    absent_later: [unsafe extern "C" fn() -> c_int; 4],
}

static CXI_CALLS: CxiCalls = CxiCalls {
    absent: [absent; 2],
    enable_hybrid_mr_desc: enable_descriptors,
    absent_later: [absent; 4],
};

/// Takes any arguments: in the C ABI the caller removes them from the stack.
unsafe extern "C" fn absent() -> c_int {
    -sys::FI_ENOSYS
}

unsafe extern "C" fn enable_descriptors(fid: *mut sys::fid, enable: bool) -> c_int {
    // SAFETY: this table is of domains only.
    let Some(domain) = (unsafe { Object::<sys::fid_domain>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    answer(engine().use_descriptors(domain.id, enable))
}

/// Gives tests the control table, and users of profile cxi the calls of that provider's own.
unsafe extern "C" fn open_ops(
    _domain: *mut sys::fid,
    name: *const c_char,
    _flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the user gives a C string.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    let is_cxi = || {
        let settings = &engine().settings;
        settings.hybrid && settings.profile.protocol == sys::FI_PROTO_CXI
    };
    let table: *const c_void = match name {
        name if name == control::NAME => std::ptr::from_ref(control::table()).cast(),
        name if CXI_VERSIONS.contains(&name) && is_cxi() => (&raw const CXI_CALLS).cast(),
        _ => return -sys::FI_EINVAL,
    };
    // SAFETY: the user gives a valid place.
    unsafe { ops.write(table.cast_mut()) };
    0
}

/// The names of cxi's table: later versions append calls.
const CXI_VERSIONS: [&CStr; 6] =
    [c"dom_ops_v1", c"dom_ops_v2", c"dom_ops_v3", c"dom_ops_v4", c"dom_ops_v5", c"dom_ops_v6"];
