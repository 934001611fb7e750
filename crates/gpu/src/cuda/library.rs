//! CUDA's driver library, as cudarc finds it at run time, and why it cannot be used.

use std::error::Error;
use std::ffi::{CStr, c_int};
use std::fmt;

use cudarc::driver::sys;

use super::calls::{self, SUCCESS, has};

/// A driver that is loaded, is initialised and has a device. cudarc keeps it loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    devices: c_int,
}

impl Library {
    /// Loads and initialises the driver; both are no-ops where the process has done so already. `functions` are what the caller is
    /// going to call: each is looked up here, so that an error names the one that the driver lacks.
    pub(crate) fn open(functions: &[&'static CStr]) -> Result<Self, Unavailable> {
        // SAFETY: the driver's constructors may run on any thread. cudarc panics where there is no driver and this was not asked.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable::NoLibrary(loader_message()));
        }
        let own = [c"cuInit", c"cuDeviceGetCount"];
        let mut needed = own.iter().chain(functions);
        if let Some(missing) = needed.find(|name| !has(name)) {
            return Err(Unavailable::NoSymbol(missing));
        }
        // SAFETY: 0 is the only flag there is.
        check("cuInit", unsafe { calls::cuInit(0) }).map_err(Unavailable::Refused)?;
        let mut devices = 0;
        // SAFETY: the place lives through the call.
        let counted = unsafe { calls::cuDeviceGetCount(&raw mut devices) };
        check("cuDeviceGetCount", counted).map_err(Unavailable::Refused)?;
        if devices < 1 { Err(Unavailable::NoDevice) } else { Ok(Self { devices }) }
    }

    /// How many devices this process sees.
    pub(crate) fn devices(self) -> c_int {
        self.devices
    }
}

/// The outcome of a driver's call.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), DriverError> {
    if code == SUCCESS { Ok(()) } else { Err(DriverError { call, code }) }
}

/// A call that failed: its name, and a number of CUresult.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The driver's function.
    pub call: &'static str,
    /// CUresult.
    pub code: i32,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.code {
            1 => " (invalid value)",
            2 => " (out of memory)",
            3 => " (not initialised)",
            34 => " (a stub of the CUDA toolkit's, which the loader finds before the driver)",
            100 => " (no device)",
            101 => " (invalid device)",
            201 => " (invalid context)",
            700 => " (a kernel accessed an illegal address)",
            719 => " (a kernel failed)",
            801 => " (not supported)",
            803 => " (the driver and the kernel's module differ)",
            _ => "",
        };
        write!(f, "{} answered {}{word}", self.call, self.code)
    }
}

impl Error for DriverError {}

/// Why there is no CUDA to ask. Each is a phrase that fits behind "no GPU memory: ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The loader finds no driver; in its words.
    NoLibrary(String),
    /// The driver lacks a function.
    NoSymbol(&'static CStr),
    /// It did not start.
    Refused(DriverError),
    /// It started, and has nothing.
    NoDevice,
    /// This process is a child of the one that uses it: CUDA does not survive fork(2).
    Forked,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary(reason) => write!(f, "no CUDA driver ({reason})"),
            Self::NoSymbol(name) => {
                write!(f, "the CUDA driver has no {}", name.to_string_lossy())
            }
            Self::Refused(error) => write!(f, "the CUDA driver does not start: {error}"),
            Self::NoDevice => f.write_str("the CUDA driver has no device"),
            Self::Forked => f.write_str("CUDA does not outlive a fork"),
        }
    }
}

impl Error for Unavailable {}

/// Why the loader does not open the driver, in its own words: cudarc tries many names and keeps no reason.
fn loader_message() -> String {
    // SAFETY: the driver's constructors may run on any thread.
    let handle =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: dlerror has no preconditions.
    let message = unsafe { libc::dlerror() };
    if !handle.is_null() || message.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: a C string of the loader's, valid until this thread's next call into it.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
