//! Errors that completion queues and event queues report.

use std::fmt;

use libfabric_sys as sys;

use crate::error::error_text;

/// Why an operation failed: fi_cq_err_entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// A positive error number: fi_errno(3).
    pub errno: i32,
    /// The provider's own number.
    pub provider_errno: i32,
    /// The provider's text for it; may be empty.
    pub text: Box<str>,
}

impl CompletionError {
    /// Whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.errno == sys::FI_ECANCELED
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, provider_errno, text } = self;
        write!(f, "{} ({errno}), provider says {text:?} ({provider_errno})", error_text(*errno))
    }
}

impl std::error::Error for CompletionError {}
