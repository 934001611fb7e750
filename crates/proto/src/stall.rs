//! What a connection waits for, as far as this side knows; and, with what its peer says, who is late.
//!
//! Nothing here is called while nothing waits for long: the owner of an endpoint looks now and then.

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// Nothing of the peer's and nothing of the fabric's.
    #[default]
    Nothing,
    /// A sender: an advert, which is a receive that the peer has posted.
    Receive,
    /// A sender: messages without a receive, of which as many have left as may.
    Credit,
    /// Either side: packets that have not left, or whose reader has not consumed them.
    Room,
    /// Parts of a message, of which some are missing; a sender knows their rail.
    Data { rail: Option<u8> },
    /// A sender: the receiver's word that all is there.
    Done,
    /// A receiver: a message for a receive that is posted.
    Message,
    /// A connect: the accept of the peer's listener.
    Accept,
}

/// How far one end of a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    pub want: Want,
    /// Messages that this end has begun: sent, or receives that are posted.
    pub begun: u32,
    /// Those of them that are complete, as far as this end knows.
    pub done: u32,
}
