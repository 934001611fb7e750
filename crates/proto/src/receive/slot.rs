//! What the receiver knows of one line: in 32 bytes, since a connection has one for each line of its ring.

use crate::bits::low8;
use crate::wire::Form;

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) len: u64,
    /// A bit per part that is there.
    pub(super) parts: u64,
    /// Until the advert is written, the check so far, over all but words 0 and 1, which may change until it travels.
    /// Then the sum of the parts' lengths; of a complete line, its size.
    pub(super) size: u64,
    tag: i32,
    /// A bit per rail that brought bytes.
    pub(super) carried: u16,
    /// How far it is; once the last part is known, its index.
    pub(super) stage: u8,
    /// Index, count and the flag "cut"; the highest bit says that it was reported before its bytes came.
    group: u8,
}

const _: () = assert!(size_of::<Slot>() == 32);

/// Parts are missing, and no last one has come.
pub(super) const NO_LAST: u8 = 64;
pub(super) const FREE: u8 = 65;
pub(super) const COMPLETE: u8 = 66;

/// All parts without a last one, which no message has.
const LOST: u64 = u64::MAX;

/// The flag "cut" in `group`, as [`Form::place`] has it.
const CUT: u8 = 8;
const TOLD_SHIFT: u32 = 7;

impl Slot {
    pub(super) const FREE: Self =
        Self { len: 0, parts: 0, size: 0, tag: 0, carried: 0, stage: FREE, group: 0 };

    /// A line that is posted, with its check so far.
    #[inline(always)]
    pub(super) fn posted(form: Form, len: u64, body: u64) -> Self {
        let group = low8(form.place().into());
        Self { len, size: body, tag: form.tag(), stage: NO_LAST, group, ..Self::FREE }
    }

    /// The form of its advert, still without its done.
    #[inline(always)]
    pub(super) fn form(&self) -> Form {
        Form::placed(self.group.into(), self.tag)
    }

    #[inline]
    pub(super) const fn is_free(&self) -> bool {
        self.stage == FREE
    }

    #[inline]
    pub(super) const fn is_incomplete(&self) -> bool {
        self.stage <= NO_LAST
    }

    #[inline]
    pub(super) const fn is_complete(&self) -> bool {
        self.stage == COMPLETE
    }

    /// Whether it is one of a group of one, and was not reported early.
    #[inline(always)]
    pub(super) const fn is_alone(&self) -> bool {
        self.group & !CUT == 0
    }

    /// All its bytes are there. A receive that was reported before gives its place back.
    #[inline]
    pub(super) const fn complete(&mut self) {
        self.stage = COMPLETE - (self.group >> TOLD_SHIFT);
    }

    /// Whether it was reported before its bytes came.
    #[inline]
    pub(super) const fn is_told(&self) -> bool {
        self.group >> TOLD_SHIFT == 1
    }

    pub(super) const fn tell(&mut self) {
        self.group |= 1 << TOLD_SHIFT;
    }

    /// Its message came, and its bytes are gone.
    pub(super) const fn lose(&mut self) {
        self.parts = LOST;
    }

    #[inline]
    pub(super) const fn is_lost(&self) -> bool {
        self.parts == LOST && self.stage == NO_LAST
    }

    /// How many lines its group has.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.form().count()
    }
}
