//! The state of one line at the receiver.
//!
//! ```text
//!  Free ── post ─▶ Posted ─┬─ a part ──▶ Filling ── the last missing part ─┬─▶ Complete ── poll ─▶ Free
//!                          ├─ an inline message, a FIN ────────────────────┤
//!                          └─ a parked message ──▶ Copying ── copied ──────┘
//! ```

use crate::parking::Parked;
use crate::rail_set::RailSet;

/// Where a receive's bytes go on this side. `proto` only passes this on and never writes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub address: u64,
    /// The caller's id of the registered region.
    pub region: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) target: Target,
    /// The buffer's address as the peer uses it.
    pub(super) address: u64,
    /// The length of the receive, or of the message once it was reported.
    pub(super) len: u64,
    pub(super) tag: i32,
    /// Rails that have carried a part.
    pub(super) carried: RailSet,
    /// The cost of the inline message that filled the line before it was advertised; otherwise 0.
    pub(super) cost: u16,
    /// Its index in its group, and the length of the group.
    pub(super) index: u8,
    pub(super) count: u8,
    pub(super) cut: bool,
    pub(super) host: bool,
    /// The receive's completion is optional: it may be reported before its bytes are there.
    pub(super) optional: bool,
    /// The receive was reported early.
    pub(super) early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not in use. For a line between `done` and `next`: complete and reported.
    Free,
    Posted,
    /// A bit per part that has arrived, the sum of their bytes, and the index of the last part, or [`NO_LAST`].
    Filling {
        parts: u64,
        sum: u64,
        last: u8,
    },
    /// The line's message has to be copied from parking, or had to be when this side closed.
    Copying(Parked),
    Complete {
        size: u64,
        carried: RailSet,
    },
}

/// The last part has not arrived.
pub(super) const NO_LAST: u8 = 64;

impl Slot {
    pub(super) const FREE: Self = Self {
        state: State::Free,
        target: Target { address: 0, region: 0 },
        address: 0,
        len: 0,
        tag: 0,
        carried: RailSet::NONE,
        cost: 0,
        index: 0,
        count: 0,
        cut: false,
        host: false,
        optional: false,
        early: false,
    };

    /// Whether the line is incomplete.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Posted | State::Filling { .. } | State::Copying(_))
    }

    /// Whether the peer may write to the line, by its state.
    pub(super) const fn is_writable(&self) -> bool {
        matches!(self.state, State::Posted | State::Filling { .. })
    }

    #[inline]
    pub(super) const fn ends_group(&self) -> bool {
        self.index + 1 == self.count
    }
}
