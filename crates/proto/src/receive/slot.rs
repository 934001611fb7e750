//! What the receiver knows of one line: in 32 bytes, since a connection has one for each line of its ring.

use crate::bits::low8;
use crate::wire::Form;

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// How long the receive is; of a complete line, the message.
    pub(super) len: u64,
    /// A bit per part that is there; none of a line that is free or complete.
    pub(super) parts: u64,
    /// Until the advert is written, the check so far, over all but words 0 and 1, which may change until it travels.
    /// Then the sum of the parts' lengths.
    pub(super) sum: u64,
    tag: i32,
    /// A bit per rail that brought bytes.
    pub(super) carried: u16,
    /// How far it is; once the last part is known, its index.
    pub(super) stage: u8,
    /// Index, count and the flag "cut"; the highest bit says that it was reported before its bytes came.
    group: u8,
}

const _: () = assert!(size_of::<Slot>() == 32);

/// Nothing has come for a receive that was posted alone, and is not empty: what the common case is asked for, in one comparison.
pub(super) const FRESH: u8 = 64;
/// Parts are missing, and no last one has come.
pub(super) const NO_LAST: u8 = 65;
pub(super) const FREE: u8 = 66;
/// Complete, and posted alone: the same for the end of the common case.
pub(super) const COMPLETE_ALONE: u8 = 67;
const COMPLETE: u8 = 68;

/// All parts without a last one, which no message has.
const LOST: u64 = u64::MAX;

/// The flag "cut" in `group`, as [`Form::place`] has it.
const CUT: u8 = 8;
const TOLD_SHIFT: u32 = 7;

impl Slot {
    pub(super) const FREE: Self =
        Self { len: 0, parts: 0, sum: 0, tag: 0, carried: 0, stage: FREE, group: 0 };

    /// The line is posted, still without its check so far. It was free, so it has no parts.
    #[inline(always)]
    pub(super) fn post(&mut self, form: Form, len: u64, stage: u8) {
        assert!(self.is_free() && self.parts == 0, "a line is posted once");
        (self.len, self.tag, self.carried) = (len, form.tag(), 0);
        self.group = low8(form.place().into());
        self.stage = stage;
    }

    /// The stage of a line that is posted.
    #[inline(always)]
    pub(super) fn first_stage(form: Form, len: u64) -> u8 {
        if form.count() == 1 && len != 0 { FRESH } else { NO_LAST }
    }

    /// Something comes for it that is not the common case.
    #[inline]
    pub(super) const fn touch(&mut self) {
        if self.stage == FRESH {
            self.stage = NO_LAST;
        }
    }

    /// Whether nothing has come for it.
    #[inline]
    pub(super) const fn is_untouched(&self) -> bool {
        self.stage == FRESH || self.stage == NO_LAST && self.parts == 0
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
        self.stage >= COMPLETE_ALONE
    }

    /// Whether it is one of a group of one, and was not reported early.
    #[inline(always)]
    pub(super) const fn is_alone(&self) -> bool {
        self.group & !CUT == 0
    }

    /// All its bytes are there. A receive that was reported before gives its place back.
    #[inline]
    pub(super) const fn complete(&mut self) {
        if self.stage == FRESH {
            self.stage = COMPLETE_ALONE;
            return;
        }
        self.stage = if self.is_alone() {
            COMPLETE_ALONE
        } else if self.is_told() {
            FREE
        } else {
            COMPLETE
        };
        self.parts = 0;
    }

    /// Whether it was reported before its bytes came.
    #[inline]
    pub(super) const fn is_told(&self) -> bool {
        self.group >> TOLD_SHIFT == 1
    }

    /// Whether a receive holds it: it was posted, and not yet reported.
    pub(super) const fn is_held(&self) -> bool {
        !self.is_free() && !self.is_told()
    }

    /// The same for the first line of its group alone.
    pub(super) fn is_outstanding(&self) -> bool {
        self.is_held() && self.form().index() == 0
    }

    pub(super) const fn tell(&mut self) {
        self.touch();
        self.group |= 1 << TOLD_SHIFT;
    }

    /// Its message came, and its bytes are gone.
    pub(super) const fn lose(&mut self) {
        self.touch();
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
