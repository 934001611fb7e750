//! Which consumed packets are acknowledged to the peer. Acknowledgements are cumulative, and go in packets, in the peer's cell, and in
//! letters.
//!
//! The cell is written only if no packet carries the acknowledgement in the same poll: when half of the ring or half of the packets are
//! unacknowledged, or, for less, after a delay. It is also written so often that its number never is half of all numbers ago. One write of
//! the cell is in flight at a time.

use super::super::bound::{ACKNOWLEDGE_AFTER, ACKNOWLEDGE_AFTER_PACKETS, CELL_AFTER_PACKETS};
use super::super::ids::{Moment, PacketNumber};
use super::super::packet::Ring;

#[derive(Debug)]
pub struct Acknowledgement {
    ring: Ring,
    consumed: PacketNumber,
    acknowledged: PacketNumber,
    /// The number in the peer's cell, or a later number of the same window.
    in_cell: PacketNumber,
    /// Bytes of the ring that were consumed since the last acknowledgement.
    pending_bytes: u32,
    pending_since: Moment,
    cell: Cell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Idle,
    Posted,
}

impl Acknowledgement {
    pub fn new(ring: Ring, consumed: PacketNumber) -> Self {
        Self {
            ring,
            consumed,
            acknowledged: consumed,
            in_cell: consumed,
            pending_bytes: 0,
            pending_since: Moment::default(),
            cell: Cell::Idle,
        }
    }

    #[inline]
    pub fn consumed(&mut self, number: PacketNumber, bytes: u32, now: Moment) {
        if self.is_complete() {
            self.pending_since = now;
        }
        self.consumed = number;
        // A peer that waits for no acknowledgement may send any number of bytes while one write of the cell is in flight.
        self.pending_bytes = self.pending_bytes.saturating_add(bytes);
    }

    /// An acknowledgement left in a packet or a letter, or by a write of the cell.
    #[inline]
    pub fn acknowledged(&mut self) {
        self.acknowledged = self.consumed;
        self.pending_bytes = 0;
    }

    pub fn is_complete(&self) -> bool {
        self.acknowledged == self.consumed
    }

    /// Whether everything is acknowledged, and no write of the cell is in flight.
    pub fn is_settled(&self) -> bool {
        self.is_complete() && !self.is_writing()
    }

    /// Whether a write of the cell is in flight.
    pub fn is_writing(&self) -> bool {
        self.cell == Cell::Posted
    }

    /// Whether the cell is to be written now. `last`: the peer has said END, which no packet of ours may acknowledge any more.
    #[inline]
    pub fn is_due(&self, last: bool, now: Moment) -> bool {
        if self.cell == Cell::Posted {
            return false;
        }
        if self.is_complete() {
            return self.is_cell_old();
        }
        self.pending_bytes >= self.ring.acknowledged_at()
            || self.consumed.distance(self.acknowledged) >= ACKNOWLEDGE_AFTER_PACKETS
            || last
            || now.since(self.pending_since) >= ACKNOWLEDGE_AFTER
    }

    /// When the delay ends after which the cell is written for few packets. None: nothing waits for that.
    pub fn due_at(&self) -> Option<Moment> {
        let waits = self.cell == Cell::Idle && !self.is_complete();
        waits.then(|| self.pending_since.plus(ACKNOWLEDGE_AFTER))
    }

    /// Whether the cell is to be written although packets acknowledge everything: the peer compares its number with the one that it knows,
    /// and numbers wrap.
    #[inline]
    fn is_cell_old(&self) -> bool {
        self.consumed.distance(self.in_cell) >= CELL_AFTER_PACKETS
    }

    /// Makes the cell old, as if it was not written for [`CELL_AFTER_PACKETS`] packets.
    #[cfg(test)]
    pub fn age_cell(&mut self) {
        self.in_cell = self.consumed.plus(CELL_AFTER_PACKETS.wrapping_neg());
    }

    pub fn cell_posted(&mut self) {
        self.acknowledged();
        self.in_cell = self.consumed;
        self.cell = Cell::Posted;
    }

    pub fn cell_written(&mut self) {
        self.cell = Cell::Idle;
    }

    /// The peer has lent a new inbox, and with it a new cell, which holds the acknowledgement that the peer knew then. The peer may never
    /// have read later ones in the old cell.
    ///
    /// Returns whether a write of the old cell is in flight.
    pub fn moved(&mut self, now: Moment) -> bool {
        let posted = self.cell == Cell::Posted;
        self.cell = Cell::Idle;
        self.in_cell = self.consumed;
        self.acknowledged = self.consumed.plus(u32::MAX);
        self.pending_since = now;
        posted
    }
}
