//! Who is at the other end, for the log.

use std::fmt;

/// What a peer said of itself at connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) host: String,
    pub(crate) process: u32,
    pub(crate) provider: String,
    pub(crate) libfabric: (u16, u16),
    pub(crate) settings: u64,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.process, self.host)
    }
}
