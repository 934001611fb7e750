//! CUDA's driver without a GPU (`crates/gpu/tests/support/cuda.c`), loaded before the plugin searches for one, and memory of its devices.
//!
//! Addresses of that memory are not mapped: a plugin that accesses them with the CPU crashes. The virtual fabric finds the bytes as a NIC
//! does.

use std::ffi::{CStr, CString, c_char, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use gpu::{DeviceMemory, Devices};

#[path = "../../crates/gpu/tests/support/mod.rs"]
mod standin;

/// The stand-in's file, built by the process that starts the play.
pub(crate) fn driver() -> (&'static str, &'static str) {
    static FILE: OnceLock<String> = OnceLock::new();
    let built = || {
        let folder = standin::folder(env!("CARGO_TARGET_TMPDIR"));
        folder.join("libcuda.so.1").to_str().expect("the target folder is text").to_owned()
    };
    let named = || std::env::var(format!("IRONRAIL_{DRIVER}")).unwrap_or_else(|_| built());
    (DRIVER, FILE.get_or_init(named))
}

/// The test's own setting, without its prefix.
pub(crate) const DRIVER: &str = "TEST_DRIVER";

/// The loaded stand-in: a later dlopen of `libcuda.so.1` finds it.
pub(crate) struct Gpus {
    devices: Devices,
    calls: Calls,
}

type Calls = extern "C" fn(*const c_char, *const c_char) -> c_ulong;

impl Gpus {
    /// Loads the library in this file. `words` are for STANDIN_CUDA.
    pub(crate) fn load(file: &Path, words: &str) -> Self {
        Self::try_load(file, words).expect("the stand-in has devices")
    }

    /// The same where the words may say that there are no devices.
    pub(crate) fn try_load(file: &Path, words: &str) -> Option<Self> {
        super::virtual_fabric::set("STANDIN_CUDA", words);
        let name = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: its initialisers do nothing.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{} does not open", file.display());
        // SAFETY: the library is open.
        let symbol: *const c_void = unsafe { libc::dlsym(library, c"standin_calls".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: the stand-in defines it so; a symbol's address is a function pointer.
        let calls = unsafe { (&raw const symbol).cast::<Calls>().read() };
        Some(Self { devices: Devices::open().ok()?, calls })
    }

    /// Memory of a device.
    pub(crate) fn allocate(&self, device: i32, len: usize) -> DeviceMemory {
        self.devices.allocate(device, len).expect("there is room")
    }

    /// How often the library in a file of this name has made this call of the driver; `None`: any call.
    pub(crate) fn calls_of(&self, file: &CStr, call: Option<&CStr>) -> u64 {
        (self.calls)(file.as_ptr(), call.map_or(std::ptr::null(), CStr::as_ptr))
    }
}
