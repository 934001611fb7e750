//! Fabrics: all fabrics of a process are the same one.

use std::ffi::{c_int, c_void};

use libfabric_sys as sys;

use super::answer;
use super::object::Object;
use super::table::table;
use crate::engine::engine;

table! {
    fn objects() -> sys::fi_ops { close: close }
}

table! {
    fn calls() -> sys::fi_ops_fabric { domain: super::domain::open, eq_open: super::events::open }
}

/// fi_fabric(3). Libfabric fills in its own part.
pub(super) unsafe extern "C" fn open(
    _attributes: *mut sys::fi_fabric_attr,
    fabric: *mut *mut sys::fid_fabric,
    context: *mut c_void,
) -> c_int {
    let id = engine().open_fabric();
    let class = sys::FI_CLASS_FABRIC as usize;
    let fid = sys::fid_fabric {
        fid: sys::fid { fclass: class, context, ops: objects() },
        ops: calls(),
        api_version: 0,
    };
    // SAFETY: libfabric gives a valid place.
    unsafe { fabric.write(Object::new(fid, id, false).publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of fabrics only.
    let Some(fabric) = (unsafe { Object::<sys::fid_fabric>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let outcome = engine().close_fabric(fabric.id);
    if outcome.is_ok() {
        fabric.bury();
    }
    answer(outcome)
}
