//! What libfabric sees: tables of C functions, each of which makes one call of the engine.
//!
//! Every object that libfabric holds is a `fid` of its kind, followed by its number in the engine (`object`). Empty slots answer -FI_ENOSYS
//! (`table`), because the inline functions of the C headers call a slot without checking it.

mod domain;
mod endpoint;
mod events;
mod fabric;
mod info;
mod messages;
mod nic;
mod object;
mod queue;
mod region;
mod rma;
mod table;
mod tagged;
mod text;
mod vector;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libfabric_sys as sys;
use sys::Symbols;

use crate::engine::{Errno, Outcome, engine};
use crate::report;

/// The libfabric that loaded this provider. It is not linked: the user may have opened it with RTLD_LOCAL.
fn library() -> Option<&'static Symbols> {
    static LIBRARY: OnceLock<Option<Symbols>> = OnceLock::new();
    LIBRARY.get_or_init(find_library).as_ref()
}

fn find_library() -> Option<Symbols> {
    // SAFETY: the name is a C string, and a library that is loaded already runs nothing.
    let loaded = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if loaded.is_null() {
        return None;
    }
    // The loader finds it by this name now, wherever its file lies.
    Symbols::load(&[SONAME.to_str().ok()?]).ok()
}

const SONAME: &std::ffi::CStr = c"libfabric.so.1";

/// The entry point of a provider's file.
///
/// # Safety
///
/// None: it only allocates a structure. Libfabric calls it once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    let Some(library) = library() else { return ptr::null_mut() };
    if let Some(reason) = &engine().misconfigured {
        say(reason);
    }
    // SAFETY: fi_version has no preconditions.
    let release = unsafe { (library.fi_version)() };
    engine().names_rma_limit = release >= sys::version(1, 22);
    let provider = sys::fi_provider {
        version: sys::version(0, 1),
        // A provider older than what is asked for would be skipped.
        fi_version: release,
        name: NAME.as_ptr(),
        getinfo: Some(info::getinfo),
        fabric: Some(fabric::open),
        cleanup: Some(cleanup),
        ..Default::default()
    };
    // Libfabric writes to it, and keeps it.
    Box::into_raw(Box::new(provider))
}

/// The provider's name, and the fabric's.
const NAME: &std::ffi::CStr = c"vfabric";

unsafe extern "C" fn cleanup() {
    object::begin_cleanup();
    // Not under the lock of the engine: a late call is to be recorded.
    let takes = engine().settings.cleanup;
    std::thread::sleep(takes);
    report::write(&engine());
}

#[expect(
    clippy::print_stderr,
    reason = "a provider has no other voice, and silence would hide a wrong setting"
)]
fn say(line: &str) {
    eprintln!("vfabric: {line}; it offers nothing");
}

/// An outcome as a return code.
fn answer(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Errno(code)) => -code,
    }
}

/// The same for calls that return `ssize_t`.
fn answer_size(outcome: Outcome) -> isize {
    answer(outcome) as isize
}

/// An address as a number.
fn number(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// A number as an address; only passed back to the user, or copied from by the kernel.
fn pointer(number: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(crate::memory::bits(number))
}
