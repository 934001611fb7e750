//! An open domain (fi_domain(3)), which is one NIC or what the provider presents as one, its fabric (fi_fabric(3)), and the fabric's event
//! queue, if it has one.

use std::ptr;

use libfabric_sys as sys;

use super::events::Events;
use super::{NicOptions, cxi};
use crate::error::{Call, FabricError};
use crate::handle::Handle;
use crate::info::{Info, RegionMode};
use crate::library::Version;

/// A domain and a fabric of its own.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) events: Events,       // Closes before its fabric.
    handle: Handle<sys::fid_domain>, // Closes before its fabric: keep it first.
    fabric: Handle<sys::fid_fabric>,
    mode: RegionMode,
    supports_dmabuf: bool,
}

impl Domain {
    /// Opens fabric, domain and event queue. Options that the provider does not support are skipped.
    pub(super) fn open(info: &Info, options: &NicOptions<'_>) -> Result<Self, FabricError> {
        let library = info.library();
        let open = |out| {
            // SAFETY: the attributes live in `info`, which is of this library, and `out` is a valid place.
            unsafe { (library.symbols().fi_fabric)(info.fabric_ptr(), out, ptr::null_mut()) }
        };
        // SAFETY: fi_fabric gives us a fabric of our own.
        let fabric = unsafe { Handle::open(Call::fi_fabric, open) }?;
        let open = |out| {
            // SAFETY: the fabric is open, the library only reads `info`, and `out` is a valid place.
            unsafe { sys::fi_domain(fabric.as_ptr(), info.as_ptr(), out, ptr::null_mut()) }
        };
        // SAFETY: fi_domain gives us a domain of our own.
        let handle = unsafe { Handle::open(Call::fi_domain, open) }?;
        let supports_dmabuf = info.device_memory() && library.api() >= DMABUF_SINCE;
        if options.uses_descriptors
            && let Err(error) = cxi::use_descriptors(&handle)
        {
            log::debug!("the provider looks buffers up for each operation: {error}");
        }
        let events = Events::open(&fabric, info);
        Ok(Self { events, handle, fabric, mode: info.region_mode(), supports_dmabuf })
    }

    pub(super) fn mode(&self) -> RegionMode {
        self.mode
    }

    /// Whether device memory can be registered by a DMA-BUF: with FI_HMEM, from API version 1.20 on.
    pub(super) fn supports_dmabuf(&self) -> bool {
        self.supports_dmabuf
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_domain {
        self.handle.as_ptr()
    }

    /// Leaks domain, fabric and event queue.
    pub(super) fn leak(&mut self) {
        self.events.leak();
        self.handle.leak();
        self.fabric.leak();
    }
}

const DMABUF_SINCE: Version = Version::new(1, 20);
