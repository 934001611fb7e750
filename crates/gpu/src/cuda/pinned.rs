//! Memory of the host that the driver keeps in its place, so that copies need no detour through the driver's own.

use std::ptr::{self, NonNull};

use super::calls::{self, NOT_SUPPORTED, has};
use super::context::Context;
use super::devices::Devices;
use super::library::{DriverError, check};

/// A range of the host's memory, page-locked for all devices until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    address: usize,
    context: Context,
}

/// CU_MEMHOSTREGISTER_PORTABLE: for every context.
const PORTABLE: u32 = 1;

impl Pinned {
    /// Locks the pages of `len` bytes.
    ///
    /// # Errors
    ///
    /// The driver's: CUDA_ERROR_NOT_SUPPORTED where it has no such call, and where the range is locked already.
    ///
    /// # Safety
    ///
    /// The memory is the caller's, and stays allocated until this is dropped: copies to and from its addresses would go to the locked pages,
    /// whatever memory has these addresses then.
    pub unsafe fn new(
        _: &Devices,
        device: i32,
        place: NonNull<u8>,
        len: usize,
    ) -> Result<Self, DriverError> {
        const CALL: &str = "cuMemHostRegister";
        if !has(c"cuMemHostUnregister") {
            check(CALL, NOT_SUPPORTED)?;
        }
        let context = Context::of(device)?;
        context.within(|| {
            // SAFETY: the range is mapped, by the caller; that it is locked changes nothing for what uses it.
            check(CALL, unsafe {
                calls::cuMemHostRegister_v2(place.as_ptr().cast(), len, PORTABLE)
            })
        })?;
        Ok(Self { address: place.as_ptr().expose_provenance(), context })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let place = ptr::with_exposed_provenance_mut(self.address);
        // An error here has no remedy: the process ends soon, or the driver has.
        let _ = self.context.within(|| {
            // SAFETY: locked in `new`, unlocked once.
            check("cuMemHostUnregister", unsafe { calls::cuMemHostUnregister(place) })
        });
    }
}
