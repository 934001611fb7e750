//! Event queues.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libfabric_sys as sys;

use super::answer;
use super::object::Object;
use super::queue::error_text_of;
use super::table::table;
use crate::engine::{Errno, engine};

table! {
    fn objects() -> sys::fi_ops { close: close }
}

table! {
    fn calls() -> sys::fi_ops_eq { read: read, readerr: read_error, strerror: error_text }
}

/// fi_eq_open in fi_eq(3). The queue has no wait object: it must be polled.
pub(super) unsafe extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attributes: *mut sys::fi_eq_attr,
    queue: *mut *mut sys::fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives a fabric of ours.
    let Some(fabric) = (unsafe { Object::of(fabric) }) else { return -sys::FI_EINVAL };
    // SAFETY: the user gives attributes, or none.
    let waits = unsafe { attributes.as_ref() }.map_or(sys::FI_WAIT_NONE, |asked| asked.wait_obj);
    if waits != sys::FI_WAIT_NONE {
        return -sys::FI_ENOSYS;
    }
    let id = match engine().open_event_queue(fabric.id) {
        Ok(id) => id,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_eq {
        fid: sys::fid { fclass: sys::FI_CLASS_EQ as usize, context, ops: objects() },
        ops: calls(),
    };
    // SAFETY: the user gives a valid place.
    unsafe { queue.write(Object::new(fid, id, false).publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of event queues only.
    let Some(queue) = (unsafe { Object::<sys::fid_eq>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let outcome = engine().close_event_queue(queue.id);
    if outcome.is_ok() {
        queue.bury();
    }
    answer(outcome)
}

/// There are no events but errors.
unsafe extern "C" fn read(
    queue: *mut sys::fid_eq,
    _event: *mut u32,
    _entry: *mut c_void,
    _len: usize,
    _flags: u64,
) -> isize {
    // SAFETY: libfabric gives a queue of ours.
    let Some(queue) = (unsafe { Object::of(queue) }) else { return -(sys::FI_EINVAL as isize) };
    let has_error = engine().has_event_error(queue.id);
    -(if has_error { sys::FI_EAVAIL } else { sys::FI_EAGAIN } as isize)
}

unsafe extern "C" fn read_error(
    queue: *mut sys::fid_eq,
    buffer: *mut sys::fi_eq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: libfabric gives a queue of ours.
    let Some(queue) = (unsafe { Object::of(queue) }) else { return -(sys::FI_EINVAL as isize) };
    let Some(Errno(code)) = engine().take_event_error(queue.id) else {
        return -(sys::FI_EAGAIN as isize);
    };
    let entry = sys::fi_eq_err_entry {
        fid: ptr::null_mut(),
        context: ptr::null_mut(),
        data: 0,
        err: code,
        prov_errno: code,
        err_data: ptr::null_mut(),
        err_data_size: 0,
    };
    // SAFETY: the user gives a valid place.
    unsafe { buffer.write(entry) };
    size_of::<sys::fi_eq_err_entry>().cast_signed()
}

unsafe extern "C" fn error_text(
    _queue: *mut sys::fid_eq,
    code: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the user's buffer is as long as they say.
    unsafe { error_text_of(code, buffer, len) }
}
