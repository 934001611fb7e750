//! What can go wrong on a connection. The first cause sticks to its flow.

use std::fmt;

use crate::ids::Line;

/// Why a flow cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A message longer than the receive it matches, without truncation agreed; known on both ends.
    TooLong { line: Line, sent: u64, posted: u64 },
    /// The peer broke the protocol in a way that cannot be dropped.
    Violation(Violation),
    /// The size cannot be told to the receiver: no immediate that carries it, and no fins.
    Unsendable { len: u64 },
    /// The caller broke the flow's contract: a bug of ours or a wrong argument.
    Misuse(&'static str),
    /// The receives were withdrawn: a buffer of theirs was deregistered, or the connection closed.
    Withdrawn,
    /// What the caller reported by `fail`: the code is the caller's own.
    Transport { code: i32 },
}

/// A valid line or immediate that says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A line whose check holds has a kind that does not belong where it lies.
    LineKind,
    /// The lines of a group disagree about it.
    Group,
    /// More bytes are said to have arrived than the receive has room for.
    Size { said: u64, posted: u64 },
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { line, sent, posted } => {
                let line = line.number();
                write!(
                    f,
                    "message {line} has {sent} bytes, and its receive was posted with {posted}"
                )
            }
            Self::Violation(Violation::LineKind) => f.write_str(
                "the peer wrote a control line of a kind that does not belong in its place",
            ),
            Self::Violation(Violation::Group) => {
                f.write_str("the peer's adverts disagree about the group that they form")
            }
            Self::Violation(Violation::Size { said, posted }) => {
                write!(f, "the peer says it wrote {said} bytes into a receive of {posted}")
            }
            Self::Unsendable { len } => {
                write!(
                    f,
                    "a message of {len} bytes needs a fin line, and the provider does not tell of delivery"
                )
            }
            Self::Withdrawn => f.write_str("the receives were withdrawn"),
            Self::Misuse(what) => f.write_str(what),
            Self::Transport { code } => write!(f, "the transport failed (code {code})"),
        }
    }
}

impl std::error::Error for ProtocolError {}
