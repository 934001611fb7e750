//! The memory of one side of a connection, in slots: each is for one message, and has bytes behind it that nothing may touch.
//!
//! Slots without a message are poisoned, so that a late write, or one to the wrong place, is seen by the next message there, or at the end.

use crate::support::calls::Buffer;

/// The longest receive: more than the adversary moves in one operation.
pub(super) const ROOM: usize = 72 << 10;
const GUARD: usize = 4 << 10;
const SLOT: usize = ROOM + GUARD;
const SLOTS: usize = 8;

static POISON: [u8; SLOT * SLOTS] = [0xee; SLOT * SLOTS];

#[derive(Clone, Copy)]
pub(super) struct Slot(usize);

pub(super) struct Memory {
    pub(super) buffer: Buffer,
    taken: [bool; SLOTS],
    is_given_back: bool,
}

impl Memory {
    pub(super) fn new() -> Self {
        let buffer = Buffer::new(SLOT * SLOTS);
        buffer.write(0, &POISON);
        Self { buffer, taken: [false; SLOTS], is_given_back: false }
    }

    /// `count` free slots, if there are as many; [`Self::take`] takes them.
    pub(super) fn free(&self, count: usize) -> Option<Vec<Slot>> {
        let slots: Vec<_> = (0..SLOTS).filter(|slot| !self.taken[*slot]).take(count).collect();
        (slots.len() == count).then(|| slots.into_iter().map(Slot).collect())
    }

    pub(super) fn take(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.taken[slot.0] = true);
    }

    /// Frees them, poisoned.
    pub(super) fn give(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.part(*slot).write(0, &POISON[..SLOT]);
            self.taken[slot.0] = false;
        }
    }

    pub(super) fn part(&self, slot: Slot) -> Buffer {
        self.buffer.part(slot.0 * SLOT, SLOT)
    }

    /// Whether a slot begins with these bytes.
    pub(super) fn begins(&self, slot: Slot, bytes: &[u8]) -> bool {
        self.part(slot).read(0, bytes.len()) == bytes
    }

    /// Whether a slot has nothing but these bytes.
    pub(super) fn has(&self, slot: Slot, bytes: &[u8]) -> bool {
        let rest = SLOT - bytes.len();
        self.begins(slot, bytes) && self.part(slot).read(bytes.len(), rest) == POISON[..rest]
    }

    /// The plugin may not touch it any more.
    pub(super) fn give_back(&mut self) {
        self.buffer.write(0, &POISON);
        self.is_given_back = true;
    }

    /// Whether nothing was written to it since.
    pub(super) fn is_untouched(&self) -> bool {
        !self.is_given_back || self.buffer.read(0, POISON.len()) == POISON
    }
}
