//! Short messages that are held back, to travel together.
//!
//! ```text
//!             hold             next_bundle, bundle_posted        done passed the line
//!  submitted ─────▶ held ────────────────────────────▶ under way ───────────────────▶ over, once polled
//! ```
//!
//! Only where done is waited for: the write of a bundle has no end that says anything about one message.

use super::{SendFlow, Slot, State};
use crate::bundle::{
    self, BUNDLE_PLACE_WORDS, BUNDLE_PLACES, BUNDLED_BYTES_MAX, PAYLOAD_WORDS, words_of,
};
use crate::flow::LineSink;
use crate::ids::Line;

/// What a sender knows of its bundles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bundles {
    /// Messages below this length may be held; 0 where none may.
    end: u64,
    /// The first line that is held, if any is.
    first: Line,
    held: u32,
    /// Staging places from this line's on may still be read, while writes are under way.
    reading: Line,
    in_flight: u32,
}

/// Writes that complete and have not. More would only make bundles smaller.
const WRITES_MAX: u32 = 2;

/// A bundle that lies in the staging ring, to be written to the same places of the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleWrite {
    pub first: Line,
    pub count: u32,
    /// Of the first line.
    pub place: u32,
    /// From the beginning of that place on.
    pub words: usize,
}

impl SendFlow {
    /// Messages of up to `limit` bytes may be held back: the receiver has lent a ring for them.
    pub fn allow_bundles(&mut self, limit: u64) {
        if !self.parameters.sends_arrive_when_complete {
            self.bundles.end = limit.min(BUNDLED_BYTES_MAX) + 1;
        }
    }

    /// Whether a message of `len` bytes may be held back whose line is `line`, and whose receive allows a copy.
    #[inline(always)]
    pub fn may_hold(&self, line: Line, len: u64) -> bool {
        let Bundles { end, first, held, reading, in_flight } = self.bundles;
        len < end
            && line.distance(self.peer_done) < BUNDLE_PLACES
            && (held == 0 || line == first.plus(held))
            && (in_flight == 0 || line.distance(reading) < BUNDLE_PLACES)
    }

    /// Holds back a message that was submitted: it lies in the staging ring now.
    #[inline(always)]
    pub fn hold<S: LineSink>(
        &mut self,
        staging: &mut S,
        line: Line,
        len: u64,
        payload: [u64; PAYLOAD_WORDS],
    ) {
        bundle::pack(staging, self.parameters.nonce, line, len, payload);
        *self.slot_mut(line) = Slot { len, operations: 0, carried: 0, state: State::Written };
        if self.bundles.held == 0 {
            self.bundles.first = line;
        }
        self.bundles.held += 1;
    }

    /// The same for the message of [`match_plainly`](Self::match_plainly).
    #[inline(always)]
    pub fn hold_plainly<S: LineSink>(
        &mut self,
        staging: &mut S,
        line: Line,
        len: u64,
        payload: [u64; PAYLOAD_WORDS],
    ) {
        self.first = line.plus(1);
        self.hold(staging, line, len, payload);
    }

    /// Whether some message waits for a write.
    #[inline]
    pub fn holds_back(&self) -> bool {
        self.bundles.held > 0
    }

    /// The write for messages that wait: all, or those up to the end of the ring. None: nothing waits, or writes before it
    /// are under way.
    pub fn next_bundle(&self) -> Option<BundleWrite> {
        let Bundles { first, held, in_flight, .. } = self.bundles;
        let count = held.min(bundle::run(first));
        if count == 0 || in_flight >= WRITES_MAX {
            return None;
        }
        let last = self.slot(first.plus(count - 1));
        let words = (count as usize - 1) * BUNDLE_PLACE_WORDS + words_of(last.len);
        Some(BundleWrite { place: bundle::place(first), words, count, first })
    }

    /// The post of this bundle was accepted. `completes`: [`bundle_written`](Self::bundle_written) will be said.
    pub fn bundle_posted(&mut self, write: BundleWrite, completes: bool) {
        let bundles = &mut self.bundles;
        bundles.held -= write.count;
        bundles.first = write.first.plus(write.count);
        if completes {
            if bundles.in_flight == 0 {
                bundles.reading = write.first;
            }
            bundles.in_flight += 1;
        }
    }

    /// The write of a bundle has completed, well or not.
    pub fn bundle_written(&mut self) {
        self.bundles.in_flight = self.bundles.in_flight.saturating_sub(1);
    }

    /// What waits will not be written: the way to the peer has failed.
    #[cold]
    pub fn drop_held(&mut self) {
        self.bundles.held = 0;
    }
}

impl Bundles {
    /// The flow has failed: nothing more is begun.
    pub(super) fn end(&mut self) {
        self.end = 0;
    }
}
