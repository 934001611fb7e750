//! A device's primary context, in which all calls on its memory and streams are made. The runtime library uses it, too.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;

use super::calls;
use super::library::{DriverError, check};

/// A retained context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context(usize);

impl Context {
    /// The context of a device. The first call for a device retains it, and nothing releases it: the last release in a process destroys the
    /// context with the memory and the streams in it, even while it is a thread's current one (CUDA Driver API, Primary Context Management),
    /// as it stays for threads that have made a stream.
    pub(super) fn of(device: i32) -> Result<Self, DriverError> {
        static RETAINED: Mutex<BTreeMap<i32, Context>> = Mutex::new(BTreeMap::new());
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = retained.get(&device) {
            return Ok(*context);
        }
        let context = Self::retain(device)?;
        retained.insert(device, context);
        Ok(context)
    }

    fn retain(device: i32) -> Result<Self, DriverError> {
        let mut ordinal = 0;
        // SAFETY: the place lives through the call.
        check("cuDeviceGet", unsafe { calls::cuDeviceGet(&raw mut ordinal, device) })?;
        let mut context: sys::CUcontext = ptr::null_mut();
        let place = &raw mut context;
        // SAFETY: as above.
        let answer = unsafe { calls::cuDevicePrimaryCtxRetain(place, ordinal) };
        check("cuDevicePrimaryCtxRetain", answer)?;
        Ok(Self(context.expose_provenance()))
    }

    fn raw(self) -> sys::CUcontext {
        ptr::with_exposed_provenance_mut(self.0)
    }

    /// Makes it this thread's current context for good.
    pub(super) fn make_current(self) -> Result<(), DriverError> {
        // SAFETY: the context is retained, and never released.
        check("cuCtxSetCurrent", unsafe { calls::cuCtxSetCurrent(self.raw()) })
    }

    /// Runs `body` with it as the current context, then restores the thread's own.
    pub(super) fn within(
        self,
        body: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut context = self.raw();
        // SAFETY: the context is retained, and never released.
        check("cuCtxPushCurrent", unsafe { calls::cuCtxPushCurrent_v2(context) })?;
        let outcome = body();
        // SAFETY: the place lives through the call; what is popped was pushed above.
        let popped =
            check("cuCtxPopCurrent", unsafe { calls::cuCtxPopCurrent_v2(&raw mut context) });
        outcome.and(popped)
    }
}
