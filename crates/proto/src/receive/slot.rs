//! What the receiver knows of one line.

use crate::wire::Form;

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The check so far, over all but words 0 and 1, which are known only when the advert travels.
    pub(super) body: u64,
    pub(super) form: Form,
    pub(super) len: u64,
    /// A bit per part that is there.
    pub(super) parts: u64,
    /// The sum of the parts' lengths; of a complete line, its size.
    pub(super) size: u64,
    /// A bit per rail that brought bytes.
    pub(super) carried: u16,
    /// The index of the last part, or `NO_LAST`.
    pub(super) last: u8,
    /// Of the first line of a group: how many of its lines are incomplete.
    pub(super) left: u8,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Incomplete,
    Complete,
}

pub(super) const NO_LAST: u8 = 64;

impl Slot {
    pub(super) const FREE: Self = Self {
        body: 0,
        form: Form::from_word(0),
        len: 0,
        parts: 0,
        size: 0,
        carried: 0,
        last: NO_LAST,
        left: 0,
        state: State::Free,
    };
}
