//! The face that libfabric sees: tables of C calls, each of which becomes one call of the engine's.
//!
//! Every object that libfabric holds is a `fid` of its kind, followed by our number for it (`object`). Slots that are not
//! ours answer -FI_ENOSYS (`table`), since the inline calls of C headers jump without looking.

mod domain;
mod endpoint;
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
mod vector;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libfabric_sys as sys;
use sys::Symbols;

use crate::engine::{Errno, Outcome, engine};
use crate::report;

pub(crate) use object::calls;

/// The libfabric that loaded us. Nothing of it is linked: its user may have opened it for itself alone.
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
    // Wherever its file lies, the loader knows it by this name now.
    Symbols::load(&[SONAME.to_str().ok()?]).ok()
}

const SONAME: &std::ffi::CStr = c"libfabric.so.1";

/// What libfabric asks of a file that it takes for a provider.
///
/// # Safety
///
/// None: it only makes a structure. Libfabric calls it once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    let Some(library) = library() else { return ptr::null_mut() };
    if let Some(reason) = &engine().misconfigured {
        say(reason);
    }
    let provider = sys::fi_provider {
        version: sys::version(0, 1),
        // SAFETY: fi_version has no preconditions. A provider older than what is asked for would be skipped.
        fi_version: unsafe { (library.fi_version)() },
        name: NAME.as_ptr(),
        getinfo: Some(info::getinfo),
        fabric: Some(fabric::open),
        cleanup: Some(cleanup),
        ..Default::default()
    };
    // Libfabric writes to it, and keeps it.
    Box::into_raw(Box::new(provider))
}

/// Also the fabric's name.
const NAME: &std::ffi::CStr = c"vfabric";

unsafe extern "C" fn cleanup() {
    report::write(&engine());
}

#[expect(
    clippy::print_stderr,
    reason = "a provider has no other voice, and silence would hide a wrong setting"
)]
fn say(line: &str) {
    eprintln!("vfabric: {line}; it offers nothing");
}

/// An outcome as calls answer it.
fn answer(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Errno(code)) => -code,
    }
}

/// The same for calls that answer a size.
fn answer_size(outcome: Outcome) -> isize {
    answer(outcome) as isize
}

/// An address as a number.
fn number(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// A number as an address; only ever handed back, or copied from by the kernel.
fn pointer(number: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(crate::memory::bits(number))
}
