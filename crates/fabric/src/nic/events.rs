//! An event queue (fi_eq(3)), for errors of endpoints that belong to no operation, such as that of a handshake with a peer that has died.
//! If an endpoint has no event queue, efa aborts the process at such an error (libfabric 1.20 to 2.6, prov/efa/src/efa_base_ep.c).

use std::ffi::c_int;
use std::ptr;

use libfabric_sys as sys;

use super::completion_error::CompletionError;
use crate::error::Call;
use crate::handle::Handle;
use crate::info::Info;
use crate::text::provider_text;

/// A fabric's event queue, or none.
#[derive(Debug)]
pub(super) struct Events(Handle<sys::fid_eq>);

impl Events {
    /// Opens an event queue for efa. No queue for other providers, or if efa refuses.
    pub(super) fn open(fabric: &Handle<sys::fid_fabric>, info: &Info) -> Self {
        if info.protocol() != sys::FI_PROTO_EFA {
            return Self(Handle::none());
        }
        let mut attributes =
            sys::Grown::new(sys::fi_eq_attr { wait_obj: sys::FI_WAIT_NONE, ..Default::default() });
        let open = |out| {
            let attributes = &raw mut attributes.known;
            // SAFETY: the fabric is open, and both places are valid.
            unsafe { sys::fi_eq_open(fabric.as_ptr(), attributes, out, ptr::null_mut()) }
        };
        // SAFETY: fi_eq_open gives us a queue of our own.
        let opened = unsafe { Handle::open(Call::fi_eq_open, open) };
        Self(opened.unwrap_or_else(|error| {
            log::debug!("endpoints have no event queue: {error}");
            Handle::none()
        }))
    }

    /// The queue, to bind endpoints to; null if there is none.
    pub(super) fn as_ptr(&self) -> *mut sys::fid_eq {
        self.0.as_ptr()
    }

    /// Leaks the queue.
    pub(super) fn leak(&mut self) {
        self.0.leak();
    }

    /// The next error. Other events are dropped.
    pub(super) fn next_error(&mut self) -> Option<CompletionError> {
        let queue = self.0.as_ptr();
        if queue.is_null() {
            return None;
        }
        for _ in 0..READS_MAX {
            let (mut event, mut entry) = (0_u32, sys::Grown::new(sys::fi_eq_entry::default()));
            let (place, len) = ((&raw mut entry).cast(), size_of_val(&entry));
            // SAFETY: the queue is open, and the places are valid and as long as we say.
            let read = unsafe { sys::fi_eq_read(queue, &raw mut event, place, len, 0) };
            if read == -(sys::FI_EAVAIL as isize) {
                return self.error();
            }
            if read < 0 {
                return None;
            }
        }
        None
    }

    fn error(&self) -> Option<CompletionError> {
        // No buffer for the provider's error data: err_data_size is 0, and err_data then points to the provider's own.
        let mut entry = sys::Grown::new(sys::fi_eq_err_entry::default());
        // SAFETY: the queue is open, and the entry has room for the form of every version.
        let read = unsafe { sys::fi_eq_readerr(self.as_ptr(), &raw mut entry.known, 0) };
        if read <= 0 {
            return None;
        }
        let sys::fi_eq_err_entry { err, prov_errno, err_data, .. } = entry.known;
        let text = provider_text(|buffer, len| {
            // SAFETY: the queue is open; the buffer is as long as we say; error data is the provider's, until the next read.
            unsafe { sys::fi_eq_strerror(self.as_ptr(), prov_errno, err_data, buffer, len) }
        });
        let errno: c_int = err.saturating_abs();
        Some(CompletionError { errno, provider_errno: prov_errno, text: text.into() })
    }
}

/// The most events that one call drops.
const READS_MAX: usize = 64;
