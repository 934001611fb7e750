//! The sender's id of a message, and where its bytes are.

/// Index of the message's record, which completions and requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(pub(crate) u8);

impl MessageId {
    #[inline]
    pub const fn new(index: u8) -> Self {
        Self(index)
    }

    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A message that was longer than its receive, and was truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub sent: u64,
    pub posted: u64,
}

/// Where the bytes of a message are on this side. `proto` passes it on and never reads there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub address: u64,
    /// The caller's id of the registered region.
    pub region: u32,
}
