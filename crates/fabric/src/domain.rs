//! An open domain: one NIC, or what the provider takes for one. fi_domain(3).

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::{FabricError, check};
use crate::fabric::Fabric;
use crate::handle::Handle;
use crate::info::{Info, RegionMode};
use crate::keys::Keys;
use crate::library::Version;
use crate::lock::Lock;
use crate::scope::Scope;

/// An open domain, the parent of endpoints, regions, queues and address vectors.
#[derive(Debug)]
pub struct Domain {
    handle: Handle<sys::fid_domain>,
    fabric: Arc<Fabric>,
    region_mode: RegionMode,
    device_memory: bool,
    scope: Scope,
    keys: Lock<Keys>,
}

impl Domain {
    /// Opens the domain that `info` names.
    ///
    /// # Errors
    ///
    /// What fi_domain(3) returned.
    pub fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Self>, FabricError> {
        let open = |out| {
            // SAFETY: the fabric is open, the library only reads `info`, and `out` is a valid place.
            unsafe { sys::fi_domain(fabric.as_ptr(), info.as_ptr(), out, ptr::null_mut()) }
        };
        // SAFETY: fi_domain gives us a domain of our own.
        let handle = unsafe { Handle::open("fi_domain", open) }?;
        Ok(Arc::new(Self {
            handle,
            fabric: Arc::clone(fabric),
            region_mode: info.region_mode(),
            device_memory: info.device_memory(),
            scope: Scope::new(),
            keys: Lock::new(Keys::new(info.key_bytes())),
        }))
    }

    /// The fabric it belongs to.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// What registration asks of us here. No caller need branch on it: `Region::register` obeys it.
    pub fn region_mode(&self) -> RegionMode {
        self.region_mode
    }

    /// Whether device memory can be registered here (FI_HMEM).
    pub fn device_memory(&self) -> bool {
        self.device_memory
    }

    /// Whether device memory can be registered by its dmabuf: with FI_HMEM, from version 1.20 of the interface on.
    pub fn takes_dmabuf(&self) -> bool {
        self.device_memory && self.fabric.library().api() >= DMABUF_SINCE
    }

    /// A provider's own table of calls, by name (fi_open_ops in fi_fabric(3)). The table is the provider's, and stays while
    /// the domain is open.
    ///
    /// # Errors
    ///
    /// What the provider returned: -FI_EINVAL or -FI_ENOSYS for a name it does not know.
    pub fn open_ops(&self, name: &CStr) -> Result<NonNull<c_void>, FabricError> {
        let mut ops = ptr::null_mut();
        // SAFETY: the domain is open, the name is a C string, and `ops` is a valid place.
        let code = unsafe {
            sys::fi_open_ops(self.as_ptr().cast(), name.as_ptr(), 0, &raw mut ops, ptr::null_mut())
        };
        check("fi_open_ops", code)?;
        NonNull::new(ops).ok_or(FabricError::new("fi_open_ops", sys::FI_ENOSYS))
    }

    pub(crate) fn take_key(&self) -> Option<u64> {
        self.keys.lock().take()
    }

    pub(crate) fn give_back_key(&self, key: u64) {
        self.keys.lock().give_back(key);
    }

    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_domain {
        self.handle.as_ptr()
    }
}

const DMABUF_SINCE: Version = Version::new(1, 20);
