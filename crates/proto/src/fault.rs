//! Why a connection fails. A flow keeps its first cause.

use std::fmt;

use crate::line::Line;

/// Why a connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A message is longer than its receive, which does not truncate. Both ends get this error.
    TooLong { line: Line, sent: u64, posted: u64 },
    /// The message cannot be sent because the receiver could not learn its size: no immediate carries it, and the provider does not
    /// confirm delivery, which the FIN path needs.
    Unsendable { len: u64 },
    /// The peer broke a rule of the connection. The channel continues.
    Violation(Violation),
    /// The receiver withdrew its receives.
    Withdrawn,
    /// The peer has closed the connection.
    Closed,
    /// The channel has failed, or the peer has ended it.
    Ended,
    /// A write failed; the code is the caller's.
    Transport { code: i32 },
    /// Parts whose writes completed on this rail have not arrived, and their message was reported as sent.
    PartsLost { rail: u8 },
    /// The peer could not deliver a message that it had begun.
    PeerFailed { line: Line },
    /// A call that is not allowed: a bug of the plugin or a wrong argument.
    Misuse(&'static str),
}

/// How a frame or an immediate broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An advert for a line outside of the window, or over one that is in use.
    AdvertLine,
    /// A group with more receives than allowed.
    Group,
    /// The keys of an advert are not one per data rail.
    Keys,
    /// A DONE below an earlier one, or beyond what was sent.
    Done,
    /// An inline message for a line that is not open, or longer than its receive.
    Inline,
    /// Inline messages beyond the credit.
    Credit,
    /// A FIN for a line that is not open.
    Fin,
    /// A size beyond the receive.
    Size { said: u64, posted: u64 },
    /// An unexpected or repeated WITHDRAW, WITHDRAWN or CLOSE.
    Ending,
    /// An unexpected OPENED or REFUSED, or one with terms that were not requested.
    Opened,
    /// A frame of the other direction.
    Direction,
    /// A RAIL for a rail that the connection does not have, or that is not lost.
    Rail,
}

/// A violation that fails the whole channel: after such a frame nothing from that peer can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach(pub Violation);

impl Violation {
    /// The violation as a clause of a log line.
    pub const fn text(&self) -> &'static str {
        match self {
            Self::AdvertLine => "the peer advertised a line that cannot be open",
            Self::Group => "the peer advertised a group of more than 8 receives",
            Self::Keys => "the peer's advert does not have one key for each data rail",
            Self::Done => "the peer reports messages as complete that were not sent",
            Self::Inline => "the peer sent a message to a line that is not open",
            Self::Credit => "the peer sent more messages without an advert than it may",
            Self::Fin => "the peer ended a message that is not open",
            Self::Size { .. } => "the peer says it wrote more bytes than its receive has room for",
            Self::Ending => {
                "the peer closed or withdrew twice, or answered a question that was not asked"
            }
            Self::Opened => {
                "the peer answered a connect that was not sent, or with more than was asked for"
            }
            Self::Rail => "the peer named a data rail that does not exist or is not lost",
            Self::Direction => "the peer sent a frame of the other direction",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Size { said, posted } = self {
            return write!(f, "the peer says it wrote {said} bytes into a receive of {posted}");
        }
        f.write_str(self.text())
    }
}
