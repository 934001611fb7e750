//! NCCL net plugins, opened as NCCL does: the file, its newest table or a requested one, and the calls in it.
//!
//! | | for |
//! |---|---|
//! | [`Library`] | an open file and its table |
//! | [`calls`] | the calls of whatever version, unchecked: what safe code over a plugin is made of |
//! | [`raw`] | the same as objects that hide nothing: tests of a plugin's contract |
//!
//! What a plugin logs goes to the crate `log`.

pub mod calls;
mod library;
mod logger;
mod properties;
pub mod raw;

pub use library::{Library, LoadError, candidates};
pub use logger::{expecting_ends, forget_last_warning, take_last_warning};
pub use net_abi::{NEWEST, OLDEST};
pub use properties::Properties;

/// The system's page size.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf(3) has no preconditions.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}
