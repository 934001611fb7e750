//! What the two flows share: how they see memory, and what connect has settled for both.

use crate::capabilities::{Capabilities, ImmediateWidth};
use crate::error::ProtocolError;
use crate::ids::{CommId, Line};
use crate::limits::{MAX_DATA_RAILS, MAX_PARTS, PART_ALIGN};
use crate::window::Window;
use crate::wire::LineFormat;

/// Memory that the peer writes into: a ring of places, each of so many little-endian 64-bit words.
pub trait LineSource {
    /// An acquire load. The peer may be writing at this moment.
    fn word(&self, place: u32, index: usize) -> u64;

    /// The first words of a place, each by an acquire load. Worth its own form where a place is bounds-checked once.
    #[inline]
    fn words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        std::array::from_fn(|index| self.word(place, index))
    }

    /// The words of one place, each by an acquire load when it is asked for. Worth its own form where a place is looked up.
    #[inline]
    fn reader(&self, place: u32) -> impl Fn(usize) -> u64 {
        move |index| self.word(place, index)
    }
}

/// Memory that travels to the peer's ring: the same places and words, registered by the caller.
pub trait LineSink {
    fn store(&mut self, place: u32, index: usize, word: u64);

    /// Stores words side by side, from word `first` on.
    #[inline]
    fn store_words<const COUNT: usize>(&mut self, place: u32, first: usize, words: [u64; COUNT]) {
        for (index, word) in words.into_iter().enumerate() {
            self.store(place, first + index, word);
        }
    }

    /// Stores words of the place of a line, one of so many, a power of two. Worth its own form where a place is looked up.
    #[inline]
    fn writer(&mut self, line: Line, places: u32) -> impl FnMut(usize, u64) {
        let place = line.number() % places;
        move |index, word| self.store(place, index, word)
    }

    /// Stores a line: its first two words, and the others.
    #[inline]
    fn store_line<const COUNT: usize>(&mut self, place: u32, head: [u64; 2], rest: [u64; COUNT]) {
        self.store_words(place, 0, head);
        self.store_words(place, 2, rest);
    }
}

/// How the bytes of a message are told to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Each part carries an immediate, with the length in it where `eight` bytes are carried.
    Immediate { eight: bool },
    /// Plain writes with delivery completion, then a fin line.
    Fin,
}

/// What connect has settled for a connection; equal on both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowParameters {
    pub window: Window,
    /// Data rails in use: an advert carries one key for each.
    pub rails: usize,
    /// Mixed from the parts of both ends ([`handshake::mix_nonces`](crate::handshake::mix_nonces)).
    pub nonce: u64,
    /// The receiver's, as immediates carry it.
    pub comm: CommId,
    /// What messages take unless they cannot.
    pub path: Path,
    /// Whether messages may take the fin path: where delivery is known. The ring is there in any case, for failures.
    pub fins: bool,
    /// Completions of writes with an immediate tell their true length.
    pub true_lengths: bool,
    /// The completion of a write proves that its bytes are at the peer: then nobody waits for done.
    pub sends_arrive_when_complete: bool,
    /// The longest write of the provider, in bytes.
    pub largest_write: u64,
    /// The first line; 0, except in tests that begin near a wrap.
    pub first_line: Line,
}

impl FlowParameters {
    /// What the capabilities of both ends (already agreed) make of a connection.
    ///
    /// `fin_only` is a setting: every message by the fin path.
    pub fn settle(
        agreed: &Capabilities,
        window: Window,
        rails: usize,
        nonce: u64,
        comm: CommId,
        fin_only: bool,
    ) -> Result<Self, ProtocolError> {
        let path = match agreed.immediate {
            ImmediateWidth::None => Path::Fin,
            _ if fin_only => Path::Fin,
            width => Path::Immediate { eight: width == ImmediateWidth::Eight },
        };
        let parameters = Self {
            window,
            rails,
            nonce,
            comm,
            path,
            // A fin may be written only when the parts before it are known to have landed.
            fins: agreed.delivery_complete || agreed.proves_arrival,
            true_lengths: agreed.true_lengths,
            sends_arrive_when_complete: agreed.proves_arrival,
            largest_write: agreed.largest_write,
            first_line: Line::FIRST,
        };
        parameters.validate().map(|()| parameters)
    }

    /// The length of lines on this connection.
    pub fn format(&self) -> LineFormat {
        LineFormat::for_rails(self.rails)
    }

    /// Whether a flow can be made of these.
    pub fn validate(&self) -> Result<(), ProtocolError> {
        if self.rails == 0 || self.rails > MAX_DATA_RAILS {
            Err(ProtocolError::Misuse("a connection has 1 to 16 data rails"))
        } else if self.largest_write < PART_ALIGN {
            Err(ProtocolError::Misuse("the largest write of the provider is below 128 bytes"))
        } else if self.path == Path::Fin && !self.fins {
            Err(ProtocolError::Misuse(
                "neither immediates nor delivery completion: the receiver could not be told of an arrival",
            ))
        } else {
            Ok(())
        }
    }

    /// The length from which on a message cannot take immediates: [`MAX_PARTS`] parts do not hold it, or, where it
    /// does not fill its receive, nothing tells its size.
    pub(crate) fn immediates_end(&self, whole: bool) -> u64 {
        // Starts stay aligned when parts of this length follow each other.
        let longest_part = self.largest_write & !(PART_ALIGN - 1);
        let held = longest_part.saturating_mul(u64::from(MAX_PARTS)).saturating_add(1);
        match self.path {
            Path::Fin => 0,
            _ if whole => held,
            Path::Immediate { eight: true } => held.min(1 << u32::BITS),
            Path::Immediate { eight: false } if self.true_lengths => held,
            Path::Immediate { eight: false } => 0,
        }
    }
}
