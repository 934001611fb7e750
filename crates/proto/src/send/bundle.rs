//! Short messages that are held back, to travel together.
//!
//! ```text
//!             hold             next_bundle, bundle_posted        done passed the line
//!  submitted ─────▶ held ────────────────────────────▶ under way ───────────────────▶ over, once polled
//! ```
//!
//! Only where done is waited for: the write of a bundle has no end that says anything about one message.

use super::{PlainMessage, SendFlow, Slot, State};
use crate::bundle::{self, BUNDLE_PLACE_WORDS, BUNDLE_PLACES, BUNDLED_BYTES_MAX, PAYLOAD_WORDS};
use crate::flow::LineSink;
use crate::ids::Line;

/// What a sender knows of its bundles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bundles {
    /// Messages below this length may be held; 0 where none may.
    end: u64,
    /// How many lines are held, and the one after the last of them.
    held: u32,
    next: Line,
    /// Lines before this one have free places, as far as was looked.
    end_of_room: Line,
    /// Staging places from this line's on may still be read, while writes are under way.
    reading: Line,
    in_flight: u32,
    /// The first line whose message was held, and never will be written.
    pub(super) dropped: Option<Line>,
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
    pub fn may_hold(&mut self, line: Line, len: u64) -> bool {
        let Bundles { end, held, next, end_of_room, .. } = self.bundles;
        len < end
            && (held == 0 || line == next)
            && (has_room(end_of_room, line) || self.finds_room(line))
    }

    /// Whether messages of `len` bytes may be held back at all.
    #[inline(always)]
    pub fn bundles(&self, len: u64) -> bool {
        len < self.bundles.end
    }

    /// The same for the first line of which nobody knows yet whose it is.
    #[inline(always)]
    pub fn may_hold_next(&mut self, len: u64) -> bool {
        self.may_hold(self.first, len)
    }

    /// Looks again how far places are free.
    #[inline(never)]
    fn finds_room(&mut self, line: Line) -> bool {
        let Bundles { reading, in_flight, .. } = self.bundles;
        let read = in_flight > 0 && self.peer_done.is_after(reading);
        let oldest = if read { reading } else { self.peer_done };
        self.bundles.end_of_room = oldest.plus(BUNDLE_PLACES);
        has_room(self.bundles.end_of_room, line)
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
        *self.slot_mut(line) = Slot::new(len, 0, 0, State::Written);
        self.bundles.push(line);
    }

    /// The same for the message of [`match_plainly`](Self::match_plainly).
    #[inline(always)]
    pub fn hold_plainly<S: LineSink>(
        &mut self,
        staging: &mut S,
        message: &PlainMessage,
        payload: [u64; PAYLOAD_WORDS],
    ) {
        let (line, len) = (message.line, message.len);
        self.injected_plainly(message);
        bundle::pack(staging, self.parameters.nonce, line, len, payload);
        self.bundles.push(line);
    }

    /// Whether some message waits for a write.
    #[inline]
    pub fn holds_back(&self) -> bool {
        self.bundles.held > 0
    }

    /// The write for messages that wait: all, or those up to the end of the ring. None: nothing waits, or writes before it
    /// are under way.
    pub fn next_bundle(&self) -> Option<BundleWrite> {
        let Bundles { held, in_flight, .. } = self.bundles;
        let first = self.bundles.first();
        let count = held.min(bundle::run(first));
        if count == 0 || in_flight >= WRITES_MAX {
            return None;
        }
        let words = count as usize * BUNDLE_PLACE_WORDS;
        Some(BundleWrite { place: bundle::place(first), words, count, first })
    }

    /// The post of this bundle was accepted. `completes`: [`bundle_written`](Self::bundle_written) will be said.
    pub fn bundle_posted(&mut self, write: BundleWrite, completes: bool) {
        let bundles = &mut self.bundles;
        bundles.held -= write.count;
        if completes {
            if bundles.in_flight == 0 {
                bundles.reading = write.first;
            }
            bundles.in_flight += 1;
        }
    }

    /// The write of a bundle has completed, well or not.
    pub fn bundle_written(&mut self) {
        match self.bundles.in_flight.checked_sub(1) {
            Some(left) => self.bundles.in_flight = left,
            None => {
                self.miscounted();
            }
        }
    }

    /// What waits will not be written: the way to the peer has failed, and so does the flow. It counts as not begun, if
    /// nothing went by itself since.
    #[cold]
    pub fn drop_held(&mut self) {
        if self.holds_back() && self.bundles.next == self.first && self.group.taken == 0 {
            self.bundles.dropped = Some(self.bundles.first());
        }
        self.bundles.held = 0;
    }
}

/// Whether a line lies in the lap before `end`. Not just before it: an old look must not seem to be of lines to come.
#[inline(always)]
fn has_room(end: Line, line: Line) -> bool {
    end.distance(line).wrapping_sub(1) < BUNDLE_PLACES
}

impl Bundles {
    #[inline(always)]
    fn push(&mut self, line: Line) {
        self.held += 1;
        self.next = line.plus(1);
    }

    /// The first line that is held, if any is.
    fn first(&self) -> Line {
        Line::new(self.next.number().wrapping_sub(self.held))
    }

    /// The flow has failed: nothing more is begun.
    pub(super) fn end(&mut self) {
        self.end = 0;
    }
}
