//! An open libfabric object. The only call of fi_close in the plugin.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use libfabric_sys as sys;

use crate::census::{self, Class};
use crate::error::{Call, FabricError, check};

/// Owns one object, and closes it on drop.
///
/// In a struct, declare a `Handle` before the references to its parents: fields drop in declaration order, so the object closes before its
/// parents can.
#[derive(Debug)]
pub(crate) struct Handle<T: Closable>(Option<NonNull<T>>);

impl<T: Closable> Handle<T> {
    /// Runs `call`, which opens an object and writes its address to the given place.
    ///
    /// # Safety
    ///
    /// When `call` returns 0, the place must hold an object that nothing else closes.
    pub(crate) unsafe fn open(
        name: Call,
        call: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, FabricError> {
        let mut object = ptr::null_mut();
        check(name, call(&raw mut object))?;
        let object = NonNull::new(object).ok_or_else(|| FabricError::new(name, sys::FI_EOTHER))?;
        T::CLASS.opened();
        Ok(Self(Some(object)))
    }

    /// No object.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Leaks the object.
    pub(crate) fn leak(&mut self) {
        self.0 = None;
    }

    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Closes the object, once, and returns the result. An object whose close fails leaks, since something may still use it.
    pub(crate) fn close(&mut self) -> Result<(), FabricError> {
        let Some(object) = self.0.take() else { return Ok(()) };
        // SAFETY: `T: Closable` starts with a `fid`, and `open` gave us the only right to close it.
        let code = unsafe { sys::fi_close(object.as_ptr().cast()) };
        let closed = check(Call::fi_close, code);
        match &closed {
            Ok(()) => T::CLASS.closed(),
            Err(_) => census::close_failed(),
        }
        closed
    }
}

impl<T: Closable> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            // `Drop` can neither return the error nor panic across the C ABI.
            log::error!("closing a {}: {error}; it leaks", T::CLASS.name());
        }
    }
}

/// An object that `fi_close` accepts.
///
/// # Safety
///
/// The type must be `repr(C)`, and start with a `fid`.
pub(crate) unsafe trait Closable {
    const CLASS: Class;
}

// SAFETY: as declared in rdma/fabric.h, rdma/fi_domain.h, rdma/fi_endpoint.h and rdma/fi_eq.h.
unsafe impl Closable for sys::fid_fabric {
    const CLASS: Class = Class::Fabric;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_domain {
    const CLASS: Class = Class::Domain;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_ep {
    const CLASS: Class = Class::Endpoint;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_cq {
    const CLASS: Class = Class::Queue;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_eq {
    const CLASS: Class = Class::EventQueue;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_av {
    const CLASS: Class = Class::AddressVector;
}
// SAFETY: as above.
unsafe impl Closable for sys::fid_mr {
    const CLASS: Class = Class::Region;
}
