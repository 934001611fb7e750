//! The requests that a listening side has heard: one that comes again makes no second connection.
//!
//! ```text
//!  New ──queued──▶ Waiting ──reply posted──▶ Open ──closed──▶ Closed: remembered among the last ones
//!   ▲                 │ refused, given up
//!   └─────────────────┘
//! ```
//!
//! A request that waits is dropped when it comes again; one that is answered gets the same reply again, since that may be what
//! was lost; one whose connection is closed gets no other.

use std::collections::{BTreeMap, VecDeque};

use crate::bits::mix;
use crate::handshake::Request;
use crate::ids::CommId;
use crate::limits::CLOSED_REQUESTS;

/// Tells a request from all others: whose it is, which connection it asks for, and its nonce. When it comes again, it has
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestMark(u64);

impl Request {
    pub fn mark(&self) -> RequestMark {
        let word = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let address = self.reply_to.as_bytes();
        let seed = mix(address.len() as u64, self.connection.0, self.nonce);
        RequestMark(address.chunks(8).fold(seed, |seed, chunk| mix(seed, word(chunk), seed >> 32)))
    }
}

/// What is known of a request that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    New,
    /// It was heard, and is yet to be answered.
    Waiting,
    /// Its reply was posted.
    Open(CommId),
    /// It was answered, and that connection is closed.
    Closed,
}

/// Every request that waits or is answered, and the last ones that were closed.
#[derive(Debug, Default)]
pub struct Answered {
    known: BTreeMap<RequestMark, Standing>,
    /// Oldest first.
    closed: VecDeque<RequestMark>,
}

impl Answered {
    pub fn standing(&self, mark: RequestMark) -> Standing {
        self.known.get(&mark).copied().unwrap_or(Standing::New)
    }

    /// The request is new, and waits to be answered.
    pub fn wait(&mut self, mark: RequestMark) {
        self.known.insert(mark, Standing::Waiting);
    }

    /// Its reply was posted.
    pub fn open(&mut self, mark: RequestMark, comm: CommId) {
        self.known.insert(mark, Standing::Open(comm));
    }

    /// It was refused, or nobody took it: when it comes again, it is new.
    pub fn forget(&mut self, mark: RequestMark) {
        if self.standing(mark) == Standing::Waiting {
            self.known.remove(&mark);
        }
    }

    /// Its connection is closed.
    pub fn close(&mut self, mark: RequestMark) {
        if !matches!(self.standing(mark), Standing::Open(_)) {
            return;
        }
        self.known.insert(mark, Standing::Closed);
        self.closed.push_back(mark);
        if self.closed.len() > CLOSED_REQUESTS
            && let Some(oldest) = self.closed.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}
