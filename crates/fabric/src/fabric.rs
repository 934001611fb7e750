//! An open fabric: the network as one provider sees it. fi_fabric(3).

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::FabricError;
use crate::handle::Handle;
use crate::info::Info;
use crate::library::Library;

/// An open fabric, the parent of domains.
#[derive(Debug)]
pub struct Fabric {
    handle: Handle<sys::fid_fabric>,
    library: Arc<Library>,
}

impl Fabric {
    /// Opens the fabric that `info` names.
    ///
    /// # Errors
    ///
    /// What fi_fabric(3) returned.
    pub fn open(library: &Arc<Library>, info: &Info) -> Result<Arc<Self>, FabricError> {
        let open = |out| {
            // SAFETY: the attributes live in `info`, and `out` is a valid place.
            unsafe { (library.symbols().fi_fabric)(info.fabric_ptr(), out, ptr::null_mut()) }
        };
        // SAFETY: fi_fabric gives us a fabric of our own.
        let handle = unsafe { Handle::open("fi_fabric", open) }?;
        Ok(Arc::new(Self { handle, library: Arc::clone(library) }))
    }

    /// The library it was opened with.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_fabric {
        self.handle.as_ptr()
    }
}
