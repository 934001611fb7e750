//! The table of calls by which a test controls the fabric: in C, declared by this one file for both sides.
//!
//! A test gets it by `fi_open_ops(&domain->fid, "vfabric_control", ...)`, or, before any domain is open, by the symbol
//! `vfabric_control` of the provider's file. A test in Rust includes this file by `#[path]`.

use std::ffi::{CStr, c_char, c_int};

/// The name for fi_open_ops.
pub(crate) const NAME: &CStr = c"vfabric_control";

/// The calls. Codes are 0 or a negative number of fi_errno(3); every string is a C string.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// Size of the table in bytes; later versions are longer.
    pub(crate) size: usize,
    /// Starts again with other settings: `name=value`, separated by blanks, named as in the environment but in small letters. -FI_EBUSY
    /// while a domain is open, -FI_EINVAL for a setting that is wrong.
    pub(crate) configure: unsafe extern "C" fn(settings: *const c_char) -> c_int,
    /// Adds to the script of faults. -FI_EINVAL for a word that is no fault.
    pub(crate) fault: unsafe extern "C" fn(script: *const c_char) -> c_int,
    /// Stalls, resumes, kills or revives a NIC, now.
    pub(crate) nic: unsafe extern "C" fn(nic: u32, action: *const c_char) -> c_int,
    /// The time of the fabric: polls, or nanoseconds of virtual time.
    pub(crate) now: unsafe extern "C" fn() -> u64,
    /// Advances the time by `by`, and runs every event that falls due. Returns the new time.
    pub(crate) advance: unsafe extern "C" fn(by: u64) -> u64,
    /// The number of broken rules.
    pub(crate) violations: unsafe extern "C" fn() -> u64,
    /// Copies the text of one broken rule, `rule: text`, and returns its length; -FI_ENOENT beyond the last.
    pub(crate) violation:
        unsafe extern "C" fn(index: usize, buffer: *mut c_char, len: usize) -> isize,
    /// A number of the report by its name, such as `counter.posts.write`, `broken.bounds` or `open.regions`; 0 for one that was never counted.
    pub(crate) number: unsafe extern "C" fn(name: *const c_char) -> u64,
    /// Marks memory whose landed bytes stay invisible until a read by the same NIC completes. A length of 0 removes all marks.
    pub(crate) mark: unsafe extern "C" fn(address: u64, len: u64),
    /// Clears the record of broken rules and the counters, and nothing else. `counter.posts`, `counter.operations` and `counter.messages` stay,
    /// since the script names posts, operations and messages by them; so do `counter.calls` and `nic.N.*`.
    pub(crate) forget: unsafe extern "C" fn(),
}
