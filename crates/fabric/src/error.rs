//! What libfabric says when it says no.

use std::ffi::c_int;
use std::fmt;
use std::io;

use libfabric_sys as sys;

/// A libfabric call and the code it returned: negative, by fi_errno(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// The call, by its C name.
    pub call: &'static str,
    /// What it returned: a negated error number.
    pub code: c_int,
}

impl FabricError {
    /// `call` refused with `-errno`.
    pub(crate) const fn new(call: &'static str, errno: c_int) -> Self {
        Self { call, code: -errno }
    }

    /// The call, by its C name.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The positive error number.
    pub fn errno(&self) -> c_int {
        self.code.saturating_neg()
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code } = self;
        write!(f, "{call}: {} ({code})", error_text(self.errno()))
    }
}

impl std::error::Error for FabricError {}

/// A negative answer as an error, anything else as success. Counts are the caller's to read.
#[inline]
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), FabricError> {
    if code < 0 { Err(FabricError { call, code }) } else { Ok(()) }
}

/// The words for a positive error number: libfabric's for its own, the system's for the rest.
///
/// They stand here because the loaded library's `fi_strerror` is not at hand in `Display`, and says the same.
pub fn error_text(errno: c_int) -> String {
    let own = match errno {
        sys::FI_EOTHER => "unspecified error",
        sys::FI_ETOOSMALL => "provided buffer is too small",
        sys::FI_EOPBADSTATE => "operation not permitted in current state",
        sys::FI_EAVAIL => "error available",
        sys::FI_EBADFLAGS => "flags not supported",
        sys::FI_ENOEQ => "missing or unavailable event queue",
        sys::FI_EDOMAIN => "invalid resource domain",
        sys::FI_ENOCQ => "missing or unavailable completion queue",
        sys::FI_ECRC => "checksum error",
        sys::FI_ETRUNC => "truncation error",
        sys::FI_ENOKEY => "required key not available",
        sys::FI_ENOAV => "missing or unavailable address vector",
        sys::FI_EOVERRUN => "queue has been overrun",
        sys::FI_ENORX => "receiver not ready, no receive buffers available",
        _ => {
            let text = io::Error::from_raw_os_error(errno).to_string();
            let words = text.rsplit_once(" (os error").map_or(text.as_str(), |(words, _)| words);
            return words.to_owned();
        }
    };
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_call_the_words_and_the_code() {
        let error = FabricError::new("fi_domain", sys::FI_EBUSY);
        assert_eq!(error.to_string(), "fi_domain: Device or resource busy (-16)");
        let error = FabricError::new("fi_mr_regattr", sys::FI_ENOKEY);
        assert_eq!(error.to_string(), "fi_mr_regattr: required key not available (-266)");
    }
}
