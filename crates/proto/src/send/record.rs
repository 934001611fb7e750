//! The sender's record of a message until it is done: its source, its line, and the progress of its parts.
//!
//! ```text
//!  Free ─┬─▶ Inline ── its packet needs no help any more ─────────────▶ Sent ──────┐
//!        └─▶ Writing ─┬─ the last part has completed ─────────────────▶ Landed ────┼─ poll ─▶ Free
//!                     └─ the last part was delivered ─▶ FinPending ─ FIN ─▶ Landed ───┘
//! ```

use crate::limits::{MAX_PARTS, PART_ALIGN};
use crate::line::Line;
use crate::message::Source;
use crate::split::Split;

/// One message. Its target is the advert of its line, which is kept until the receiver has completed the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    address: u64,
    region: u32,
    /// The line that the message fills; for an inline message without an advert, its number.
    pub(super) line: Line,
    pub(super) len: u64,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Inline,
    Sent,
    Writing(Writing),
    FinPending,
    Landed { fin: bool },
}

/// The parts of one message, in rounds of up to 64. Only on the FIN path a message may have more than one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writing {
    /// A bit per part of this round that has completed.
    pub(super) completed: u64,
    /// In units of [`PART_ALIGN`].
    pub(super) step: u32,
    pub(super) round: u32,
    /// Parts of this round: 1 to 64.
    pub(super) parts: u8,
    /// How many of them were posted, in order.
    pub(super) posted: u8,
    pub(super) path: Path,
    /// A part has failed: its bit counts as completed, but the message never completes.
    pub(super) failed: bool,
}

/// How the receiver learns that a message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Each part carries an immediate. `whole`: the message fills its receive.
    Immediate { whole: bool },
    /// Writes without immediates that complete on delivery, then a FIN.
    Fin,
}

impl Record {
    #[inline]
    pub(super) const fn new(source: Source, line: Line, len: u64, state: State) -> Self {
        // The source is stored flat, so that 64 records take 3 KiB.
        let Source { address, region } = source;
        Self { address, region, line, len, state }
    }

    #[inline]
    pub(super) const fn source(&self) -> Source {
        Source { address: self.address, region: self.region }
    }

    pub(super) const FREE: Self =
        Self { address: 0, region: 0, line: Line::FIRST, len: 0, state: State::Free };
}

impl Writing {
    /// The state of a message that begins.
    #[inline]
    pub(super) fn new(split: Split, path: Path) -> Self {
        let step = crate::bits::low32(split.step / PART_ALIGN);
        let parts = parts_of(split.parts, 0);
        Self { completed: 0, step, round: 0, parts, posted: 0, path, failed: false }
    }

    /// Offset and length of a part of this round.
    #[inline]
    pub(super) const fn part(&self, part: u8, len: u64) -> (u64, u64) {
        let index = self.round as u64 * MAX_PARTS as u64 + part as u64;
        Split { step: self.step as u64 * PART_ALIGN, parts: 0 }.part(index, len)
    }

    /// The number of parts of the whole message.
    const fn all_parts(&self, len: u64) -> u64 {
        let parts = len.div_ceil(self.step as u64 * PART_ALIGN);
        if parts == 0 { 1 } else { parts }
    }

    /// The next round, if the message has more parts.
    pub(super) const fn next_round(&self, len: u64) -> Option<Self> {
        let round = self.round + 1;
        let parts = parts_of(self.all_parts(len), round);
        if parts == 0 {
            return None;
        }
        let (completed, step, path) = (0, self.step, self.path);
        Some(Self { completed, step, round, parts, posted: 0, path, failed: false })
    }

    /// Whether a part is the last of its message.
    #[inline]
    pub(super) const fn is_last(&self, part: u8) -> bool {
        part + 1 == self.parts
    }

    #[inline]
    pub(super) const fn is_posted(&self) -> bool {
        self.posted == self.parts
    }

    /// Whether all parts of the round have completed.
    #[inline]
    pub(super) const fn is_complete(&self) -> bool {
        !self.failed && self.completed == u64::MAX >> (MAX_PARTS - self.parts as u32)
    }

    pub(super) const fn is_fin(&self) -> bool {
        matches!(self.path, Path::Fin)
    }
}

/// The number of parts in a round.
const fn parts_of(all: u64, round: u32) -> u8 {
    let rest = all.saturating_sub(round as u64 * MAX_PARTS as u64);
    crate::bits::low8(if rest > MAX_PARTS as u64 { MAX_PARTS as u64 } else { rest })
}
