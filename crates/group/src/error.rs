//! The errors between ranks, as sentences that a user can act on.

use std::fmt;
use std::io;
use std::time::Duration;

use net_abi::ResultCode;
use net_loader::LoadError;
use net_loader::calls::TooLong;

/// A text of one line that a terminal shows as it is: names and reasons may be another host's, or of a file that somebody sent.
pub fn shown(text: &str) -> String {
    text.chars().map(|letter| if is_shown(letter) { letter } else { '?' }).collect()
}

/// Whether a letter is no command to the terminal, not invisible, and does not change the direction of text. Rust escapes the others when
/// it writes a letter in quotes; it also escapes quotes and the backslash, which are shown.
pub fn is_shown(letter: char) -> bool {
    matches!(letter, '\'' | '"' | '\\') || letter.escape_debug().len() == 1
}

/// Any failure of the group library.
#[derive(Debug)]
pub enum GroupError {
    /// The plugin could not be loaded, or its table is not usable.
    Load(String),
    /// A call of the plugin failed.
    Plugin { call: &'static str, code: ResultCode, said: Option<String> },
    /// The plugin violated the contract of the tables.
    Contract(String),
    /// Nothing moved for `limit`; `awaited` says what was waited for, `peers` which ranks did not come, if known.
    Timeout { peers: Vec<usize>, awaited: String, limit: Duration },
    /// A rank died, left, or cannot be reached any more.
    PeerLost { rank: usize, why: String },
    /// A rank ended every operation of the group.
    Aborted { rank: usize },
    /// A rank cancelled an exchange; the group still works.
    Cancelled { rank: usize },
    /// A wrong argument; nothing moved.
    InvalidArgument(String),
    /// A message is longer than the matching receive. It is dropped, and the next one can be received.
    TooLong { source: usize, tag: u32, bytes: usize, room: usize },
    /// A message has elements of another type than the matching receive. It is dropped, and the next one can be received.
    OtherType { source: usize, tag: u32, sent: &'static str, wanted: &'static str },
    /// An object has another type than the matching receive. It is dropped, and the next one can be received.
    SchemaMismatch { rank: usize, expected: String, got: String },
    /// A rank calls another collective, or the same one with another size.
    Mismatch { rank: usize, why: String },
    /// The rendezvous failed: a rank left, or something else connected.
    Bootstrap(String),
    /// A copy from or to a GPU failed, or the wait before it.
    Device(gpu::DriverError),
    /// Memory was used in a way that its owner forbids.
    Memory(MemoryError),
    /// The operating system refused.
    System { what: &'static str, error: io::Error },
    /// An error of one rank.
    Rank { rank: usize, error: Box<Self> },
    /// The caller requested something that does not exist.
    Usage(String),
}

impl GroupError {
    /// Whether this rank lacks a resource for a connection, mostly open files or memory. Such an error says nothing about the peer.
    pub(crate) fn is_of_this_rank(&self) -> bool {
        match self {
            Self::Plugin { call: "listen" | "connect" | "regMr", code, .. } => {
                *code == ResultCode::SYSTEM_ERROR
            }
            Self::System { .. } => true,
            _ => false,
        }
    }

    /// Whether the error is the caller's.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Usage(_) | Self::InvalidArgument(_) => true,
            Self::Rank { error, .. } => error.is_usage(),
            _ => false,
        }
    }

    /// Adds the rank on which it happened.
    #[must_use]
    pub fn of_rank(self, rank: usize) -> Self {
        Self::Rank { rank, error: Box::new(self) }
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(why) | Self::Contract(why) | Self::Bootstrap(why) | Self::Usage(why) => {
                f.write_str(why)
            }
            Self::Plugin { call, code, said: Some(said) } => {
                write!(f, "the plugin's {call} returned {code}; it said: {said}")
            }
            Self::Plugin { call, code, said: None } => {
                write!(f, "the plugin's {call} returned {code}")
            }
            Self::Device(error) => error.fmt(f),
            Self::PeerLost { rank, why } => write!(f, "rank {rank} is lost: {why}"),
            Self::Aborted { rank } => write!(f, "rank {rank} aborted the group"),
            Self::SchemaMismatch { rank, expected, got } => {
                write!(f, "rank {rank} sent an object of {got} to a receive of {expected}")
            }
            Self::Cancelled { rank } => write!(f, "rank {rank} cancelled the exchange"),
            Self::InvalidArgument(why) | Self::Mismatch { why, .. } => f.write_str(why),
            Self::TooLong { source, tag, bytes, room } => write!(
                f,
                "a message of {bytes} bytes from rank {source} with tag {tag} came to a receive of {room}"
            ),
            Self::OtherType { source, tag, sent, wanted } => write!(
                f,
                "a message of {sent} from rank {source} with tag {tag} came to a receive of {wanted}"
            ),
            Self::Timeout { awaited, limit, .. } => {
                write!(
                    f,
                    "nothing moved for {:.1} s while waiting for {awaited}",
                    limit.as_secs_f64()
                )
            }
            Self::Memory(error) => error.fmt(f),
            Self::Rank { rank, error } => write!(f, "rank {rank}: {error}"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for GroupError {}

impl From<LoadError> for GroupError {
    fn from(error: LoadError) -> Self {
        Self::Load(error.0)
    }
}

impl From<TooLong> for GroupError {
    fn from(error: TooLong) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<MemoryError> for GroupError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// Why a part of a buffer cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    OutOfRange,
    /// The bytes do not start or end on an element.
    Misaligned,
    /// A request that is not done may access these bytes.
    InFlight,
    /// More requests at once than a buffer can track.
    TooManyRequests,
    /// The region belongs to other memory, or to another comm.
    ForeignRegion,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "the bytes asked for lie outside their buffer",
            Self::Misaligned => "the bytes asked for are not whole elements",
            Self::InFlight => "the bytes asked for are still in flight",
            Self::TooManyRequests => "too many requests are outstanding on one buffer",
            Self::ForeignRegion => "the region belongs to another buffer or another connection",
        })
    }
}

impl std::error::Error for MemoryError {}
