//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libfabric_sys as sys;

use super::object::Object;
use super::table::table;
use super::{answer, library, pointer};
use crate::engine::{Entry, Errno, Taken, engine};
use crate::serial::Serial;

table! {
    fn objects() -> sys::fi_ops { close: close }
}

table! {
    fn context_calls() -> sys::fi_ops_cq {
        read: read::<sys::fi_cq_entry>,
        readfrom: read_from::<sys::fi_cq_entry>,
        readerr: read_error,
        strerror: error_text,
    }
}

table! {
    fn message_calls() -> sys::fi_ops_cq {
        read: read::<sys::fi_cq_msg_entry>,
        readfrom: read_from::<sys::fi_cq_msg_entry>,
        readerr: read_error,
        strerror: error_text,
    }
}

table! {
    fn data_calls() -> sys::fi_ops_cq {
        read: read::<sys::fi_cq_data_entry>,
        readfrom: read_from::<sys::fi_cq_data_entry>,
        readerr: read_error,
        strerror: error_text,
    }
}

table! {
    fn tagged_calls() -> sys::fi_ops_cq {
        read: read::<sys::fi_cq_tagged_entry>,
        readfrom: read_from::<sys::fi_cq_tagged_entry>,
        readerr: read_error,
        strerror: error_text,
    }
}

/// fi_cq_open in fi_cq(3). The queue has no wait object: it must be polled.
pub(super) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attributes: *mut sys::fi_cq_attr,
    queue: *mut *mut sys::fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives a domain of ours.
    let Some(domain) = (unsafe { Object::of(domain) }) else { return -sys::FI_EINVAL };
    // SAFETY: the user gives attributes, or none.
    let (size, format, waits) = match unsafe { attributes.as_ref() } {
        Some(asked) => (asked.size, asked.format, asked.wait_obj),
        None => (0, sys::FI_CQ_FORMAT_UNSPEC, sys::FI_WAIT_NONE),
    };
    if !matches!(waits, sys::FI_WAIT_NONE | sys::FI_WAIT_UNSPEC) {
        return -sys::FI_ENOSYS;
    }
    let calls = match format {
        sys::FI_CQ_FORMAT_UNSPEC | sys::FI_CQ_FORMAT_CONTEXT => context_calls(),
        sys::FI_CQ_FORMAT_MSG => message_calls(),
        sys::FI_CQ_FORMAT_DATA => data_calls(),
        sys::FI_CQ_FORMAT_TAGGED => tagged_calls(),
        _ => return -sys::FI_ENOSYS,
    };
    let _marks = domain.enter("fi_cq_open");
    let id = match engine().open_queue(domain.id, size) {
        Ok(id) => id,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_cq {
        fid: sys::fid { fclass: sys::FI_CLASS_CQ as usize, context, ops: objects() },
        ops: calls,
    };
    let object = Object::new(fid, id, domain.serialised);
    object.join_groups_of(domain);
    if !object.is_grouped() {
        object.join(&Serial::new());
    }
    // SAFETY: the user gives a valid place.
    unsafe { queue.write(object.publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: this table is of queues only.
    let Some(queue) = (unsafe { Object::<sys::fid_cq>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = queue.enter("fi_close");
    let outcome = engine().close_queue(queue.id);
    if outcome.is_ok() {
        queue.bury();
    }
    answer(outcome)
}

/// An entry in one of the formats FI_CQ_FORMAT_*.
trait Format: From<Entry> {}

impl Format for sys::fi_cq_entry {}
impl Format for sys::fi_cq_msg_entry {}
impl Format for sys::fi_cq_data_entry {}
impl Format for sys::fi_cq_tagged_entry {}

impl From<Entry> for sys::fi_cq_entry {
    fn from(entry: Entry) -> Self {
        Self { op_context: pointer(entry.context) }
    }
}

impl From<Entry> for sys::fi_cq_msg_entry {
    fn from(entry: Entry) -> Self {
        Self {
            op_context: pointer(entry.context),
            flags: entry.flags,
            len: crate::memory::bits(entry.len),
        }
    }
}

impl From<Entry> for sys::fi_cq_data_entry {
    fn from(entry: Entry) -> Self {
        Self {
            op_context: pointer(entry.context),
            flags: entry.flags,
            len: crate::memory::bits(entry.len),
            buf: pointer(entry.buffer),
            data: entry.immediate,
        }
    }
}

impl From<Entry> for sys::fi_cq_tagged_entry {
    fn from(entry: Entry) -> Self {
        Self {
            op_context: pointer(entry.context),
            flags: entry.flags,
            len: crate::memory::bits(entry.len),
            buf: pointer(entry.buffer),
            data: entry.immediate,
            tag: entry.tag,
        }
    }
}

unsafe extern "C" fn read<F: Format>(
    queue: *mut sys::fid_cq,
    buffer: *mut c_void,
    count: usize,
) -> isize {
    // SAFETY: the caller's, and no sources are asked for.
    unsafe { read_from::<F>(queue, buffer, count, ptr::null_mut()) }
}

unsafe extern "C" fn read_from<F: Format>(
    queue: *mut sys::fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut sys::fi_addr_t,
) -> isize {
    // SAFETY: libfabric gives a queue of ours.
    let Some(queue) = (unsafe { Object::of(queue) }) else { return -(sys::FI_EINVAL as isize) };
    let _marks = queue.enter("fi_cq_read");
    let mut engine = engine();
    let entries = match engine.poll(queue.id, count) {
        Ok(Taken::Entries(entries)) => entries,
        Ok(Taken::Nothing) => return -(sys::FI_EAGAIN as isize),
        Ok(Taken::Error) => return -(sys::FI_EAVAIL as isize),
        Err(Errno(code)) => return -(code as isize),
    };
    let taken = entries.len();
    for (index, entry) in entries.into_iter().enumerate() {
        if !sources.is_null() {
            let source = engine.source_name(&entry);
            // SAFETY: the user gives room for `count` of them.
            let place = unsafe { sources.add(index) };
            // SAFETY: as above.
            unsafe { place.write(source) };
        }
        // SAFETY: the user gives room for `count` entries of the queue's format.
        let place = unsafe { buffer.cast::<F>().add(index) };
        // SAFETY: as above.
        unsafe { place.write(F::from(entry)) };
    }
    taken.cast_signed()
}

unsafe extern "C" fn read_error(
    queue: *mut sys::fid_cq,
    buffer: *mut sys::fi_cq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: libfabric gives a queue of ours.
    let Some(queue) = (unsafe { Object::of(queue) }) else { return -(sys::FI_EINVAL as isize) };
    let _marks = queue.enter("fi_cq_readerr");
    let taken = engine().take_error(queue.id);
    let entry = match taken {
        Ok(Some(entry)) => entry,
        Ok(None) => return -(sys::FI_EAGAIN as isize),
        Err(Errno(code)) => return -(code as isize),
    };
    let (Errno(code), cut) = entry.error.unwrap_or((Errno(sys::FI_EOTHER), 0));
    let error_entry = sys::fi_cq_err_entry {
        op_context: pointer(entry.context),
        flags: entry.flags,
        len: crate::memory::bits(entry.len),
        buf: pointer(entry.buffer),
        data: entry.immediate,
        tag: entry.tag,
        olen: crate::memory::bits(cut),
        err: code,
        prov_errno: code,
        err_data: ptr::null_mut(),
        err_data_size: 0,
    };
    // Only the part that 1.17 has: a user that asked for an older interface has no room for more.
    // SAFETY: the user gives a valid place.
    unsafe { buffer.write(error_entry) };
    1
}

unsafe extern "C" fn error_text(
    _queue: *mut sys::fid_cq,
    code: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the user's buffer is as long as they say.
    unsafe { error_text_of(code, buffer, len) }
}

/// Provider errors are libfabric's error numbers.
///
/// # Safety
///
/// `buffer` is null, or has room for `len` bytes.
pub(super) unsafe fn error_text_of(code: c_int, buffer: *mut c_char, len: usize) -> *const c_char {
    let text = match library() {
        // SAFETY: any number may be asked for.
        Some(library) => unsafe { (library.fi_strerror)(code) },
        None => c"an error of vfabric's".as_ptr(),
    };
    if !buffer.is_null() && len > 0 {
        // SAFETY: the text is static, and the user's buffer is as long as they say; the last byte stays zero.
        unsafe { libc::strncpy(buffer, text, len - 1) };
        // SAFETY: as above.
        let last = unsafe { buffer.add(len - 1) };
        // SAFETY: as above.
        unsafe { last.write(0) };
    }
    text
}
