//! What the connections of one channel share: the credit for inline messages without an advert.

/// One per channel, handed to each connection while it is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The cost of the inline messages sent without an advert, on lines that are not known complete.
    pub sent: u32,
    /// The cost of such messages that were received and are complete, and of which no DONE has told the peer.
    pub untold: u32,
}
