//! A device's queue of work, for a library that takes one (NCCL), and the context of the thread that calls it.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::calls::{self, NOT_READY, SUCCESS, has};
use super::context::Context;
use super::devices::Devices;
use super::library::{DriverError, Unavailable, check};

/// A stream of a device; destroyed when it is dropped.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
}

/// What is called here and not in `devices`.
const FUNCTIONS: [&CStr; 5] = [
    c"cuCtxSetCurrent",
    c"cuStreamCreate",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuStreamDestroy_v2",
];

impl Stream {
    /// A new stream of `device`, whose primary context becomes this thread's current one for good: what cudaSetDevice does, and what
    /// NCCL asks of a thread that calls it.
    ///
    /// # Errors
    ///
    /// A driver that lacks a function, or the driver's error.
    pub fn new(_: &Devices, device: i32) -> Result<Self, StreamError> {
        if let Some(missing) = FUNCTIONS.iter().find(|name| !has(name)) {
            return Err(StreamError::Lacking(Unavailable::NoSymbol(missing)));
        }
        let context = Context::of(device)?;
        context.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the place lives through the call; 0 asks for a stream like the default one.
        check("cuStreamCreate", unsafe { calls::cuStreamCreate(&raw mut raw, 0) })?;
        Ok(Self { raw, context })
    }

    /// Whether all work that was put into the stream has ended.
    ///
    /// # Errors
    ///
    /// The driver's: also that of work that failed.
    pub fn is_idle(&self) -> Result<bool, DriverError> {
        let mut idle = false;
        self.context.within(|| {
            // SAFETY: the stream lives.
            let answer = unsafe { calls::cuStreamQuery(self.raw) };
            idle = answer == SUCCESS;
            if answer == NOT_READY {
                return Ok(());
            }
            check("cuStreamQuery", answer)
        })?;
        Ok(idle)
    }

    /// Waits for all work that was put into the stream.
    ///
    /// # Errors
    ///
    /// The driver's: also that of work that failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.within(|| {
            // SAFETY: the stream lives.
            check("cuStreamSynchronize", unsafe { calls::cuStreamSynchronize(self.raw) })
        })
    }

    /// As C takes it: a `cudaStream_t` is the same.
    pub fn as_ptr(&self) -> *mut c_void {
        self.raw.cast()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // An error here has no remedy: the process ends soon, or the driver has.
        let _ = self.context.within(|| {
            // SAFETY: created by this driver, destroyed once.
            check("cuStreamDestroy", unsafe { calls::cuStreamDestroy_v2(self.raw) })
        });
    }
}

/// Why there is no stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The driver lacks a function.
    Lacking(Unavailable),
    /// A call failed.
    Refused(DriverError),
}

impl From<DriverError> for StreamError {
    fn from(error: DriverError) -> Self {
        Self::Refused(error)
    }
}

impl std::fmt::Display for StreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lacking(why) => why.fmt(f),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StreamError {}
