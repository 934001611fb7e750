//! What a receiver keeps of one line.
//!
//! ```text
//!  Free ── post ─▶ Posted ─┬─ a part ──▶ Filling ── the last missing part ─┬─▶ Complete ── poll ─▶ Free
//!                          ├─ an inline message, a FIN ────────────────────┤
//!                          └─ a parked message ──▶ Copying ── copied ──────┘
//! ```

use crate::parking::Parked;

/// Where a receive's bytes go on this side. `proto` carries it and never writes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub address: u64,
    /// The caller's own name for the registered region.
    pub region: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) target: Target,
    /// As the peer is to name the buffer.
    pub(super) address: u64,
    /// How long the receive is.
    pub(super) len: u64,
    pub(super) tag: i32,
    /// A bit per rail that brought a part, once one has.
    pub(super) carried: u16,
    /// What the inline message cost that filled it before it was advertised; 0 where none did.
    pub(super) cost: u16,
    /// Its place in its group, and how many the group has.
    pub(super) index: u8,
    pub(super) count: u8,
    pub(super) cut: bool,
    pub(super) host: bool,
    /// Its completion is optional: it may be reported before its bytes are there.
    pub(super) optional: bool,
    /// It was.
    pub(super) early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Of a line between done and next: complete, and reported.
    Free,
    Posted,
    /// A bit per part that is there, their bytes, and the index of the last part, or [`NO_LAST`].
    Filling {
        parts: u64,
        sum: u64,
        last: u8,
    },
    /// The message lies where it was parked.
    Copying(Parked),
    Complete {
        size: u64,
        carried: u16,
    },
}

/// No last part has come.
pub(super) const NO_LAST: u8 = 64;

impl Slot {
    pub(super) const FREE: Self = Self {
        state: State::Free,
        target: Target { address: 0, region: 0 },
        address: 0,
        len: 0,
        tag: 0,
        carried: 0,
        cost: 0,
        index: 0,
        count: 0,
        cut: false,
        host: false,
        optional: false,
        early: false,
    };

    /// Its bytes are not all there.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Posted | State::Filling { .. } | State::Copying(_))
    }

    /// The peer may write to it, as far as its state says.
    pub(super) const fn is_writable(&self) -> bool {
        matches!(self.state, State::Posted | State::Filling { .. })
    }

    /// Its message is parked no more, and never copied.
    pub(super) fn forget_copy(&mut self) {
        if matches!(self.state, State::Copying(_)) {
            self.state = State::Posted;
        }
    }

    #[inline]
    pub(super) const fn ends_group(&self) -> bool {
        self.index + 1 == self.count
    }
}

/// The bit that stands for receives of about this length: the same power of two.
#[inline]
pub(super) const fn class_of(len: u64) -> u64 {
    let bits = u64::BITS - len.leading_zeros();
    1 << (if bits < 63 { bits } else { 63 })
}
