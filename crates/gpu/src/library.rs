//! libcuda.so.1, opened at run time, and why it cannot be used.

use std::error::Error;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::process;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// An open driver that is initialised and has a device. It stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
    devices: c_int,
}

// SAFETY: the loader's handle may be used from any thread (dlsym(3) is MT-safe), and is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The name that the driver's package gives it; nothing else is called so.
pub(crate) const NAME: &CStr = c"libcuda.so.1";

type Init = unsafe extern "C" fn(flags: c_uint) -> c_int;
type DeviceCount = unsafe extern "C" fn(count: *mut c_int) -> c_int;

impl Library {
    /// Loads and initialises it: what a process has done already is not done again.
    pub(crate) fn open(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: the driver's constructors may run in any thread.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle =
            NonNull::new(handle).ok_or_else(|| Unavailable::NoLibrary(loader_message()))?;
        let mut library = Self { handle, devices: 0 };
        // SAFETY: the driver's reference declares cuInit so.
        let init: Init = unsafe { library.symbol(c"cuInit") }?;
        // SAFETY: as above, cuDeviceGetCount.
        let count: DeviceCount = unsafe { library.symbol(c"cuDeviceGetCount") }?;
        // SAFETY: no flags exist.
        check("cuInit", unsafe { init(0) }).map_err(Unavailable::Refused)?;
        let place = &raw mut library.devices;
        // SAFETY: the place lives through the call.
        check("cuDeviceGetCount", unsafe { count(place) }).map_err(Unavailable::Refused)?;
        if library.devices < 1 { Err(Unavailable::NoDevice) } else { Ok(library) }
    }

    /// A function of the driver's.
    ///
    /// # Safety
    ///
    /// `F` must be a function pointer of the type that the driver's reference gives this name.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &'static CStr) -> Result<F, Unavailable> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the library is open, and the name is a C string.
        let symbol = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        if symbol.is_null() {
            return Err(Unavailable::NoSymbol(name));
        }
        // SAFETY: the sizes agree, and POSIX makes a symbol's address a function pointer of its type.
        Ok(unsafe { (&raw const symbol).cast::<F>().read() })
    }

    /// How many devices this process sees.
    pub(crate) fn devices(&self) -> c_int {
        self.devices
    }
}

/// Whether this is a child of the process that first asked, where no call may be made: CUDA does not work there, and another thread may
/// have been in the middle of one.
pub(crate) fn is_child() -> bool {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let own = process::id();
    // Nothing but the number itself is handed over.
    let before = FIRST.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    before.is_err_and(|first| first != own)
}

/// What a driver's call answered.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
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

/// What the loader last said in this thread.
fn loader_message() -> String {
    // SAFETY: dlerror has no preconditions.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: a C string of the loader's, valid until this thread's next call of it.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_named_in_the_loaders_words() {
        let error = Library::open(c"libcuda-of-nobody.so.1").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no CUDA driver (libcuda-of-nobody.so.1: "), "{text}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_named_by_what_it_lacks() {
        let error = Library::open(c"libc.so.6").unwrap_err();
        assert_eq!(error, Unavailable::NoSymbol(c"cuInit"));
        assert_eq!(error.to_string(), "the CUDA driver has no cuInit");
    }
}
