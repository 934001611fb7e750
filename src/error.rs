//! What a call can fail with, before it becomes NCCL's code.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Who has to act, in NCCL's terms (NCCL plugins/net/README.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The network or the operating system failed: ncclSystemError.
    System,
    /// A bug of ours: ncclInternalError.
    Internal,
    /// A wrong argument, a stale handle: ncclInvalidArgument.
    InvalidArgument,
    /// A legal call at the wrong time, or a wrong setting: ncclInvalidUsage.
    InvalidUsage,
    /// The peer is gone or broke the protocol: ncclRemoteError.
    Remote,
}

/// An error with the sentence a user gets: what was asked, what was found, what to do.
///
/// One pointer: every call returns through several layers, and most of them never see an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error(Box<Body>);

/// What an error says. [`Error`] gives its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) kind: Kind,
    pub(crate) sentence: String,
    /// Set once the sentence is in NCCL's log, so that a sticky error is logged once.
    pub(crate) logged: bool,
}

impl Error {
    #[cold]
    pub(crate) fn new(kind: Kind, sentence: impl Into<String>) -> Self {
        Self(Box::new(Body { kind, sentence: sentence.into(), logged: false }))
    }

    #[cold]
    pub(crate) fn stale(what: &str) -> Self {
        Self::new(Kind::InvalidArgument, format!("the {what} given is not open (any more)"))
    }
}

impl Deref for Error {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

pub(crate) type Result<T> = std::result::Result<T, Error>;
