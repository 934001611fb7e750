//! Where the borders of a halo are in its buffer.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, Element};

/// One or two sets of borders to send, then those that borders come into, each used by every so many-th round. Ranges are bytes of the first
/// set of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<T> {
    /// Of a border to or from the left, and to or from the right.
    left: usize,
    right: usize,
    /// From a left border to the right one that is sent with it.
    left_to_right: usize,
    /// From a right border to the left one that comes with it.
    right_to_left: usize,
    /// From one set to the next.
    stride: usize,
    /// Sets to send.
    outs: u64,
    /// Sets that borders come into.
    ahead: u64,
    elements: PhantomData<T>,
}

impl<T: Element> Layout<T> {
    /// Of borders of so many elements. `together`: both go to one rank, in one message.
    pub(super) fn new((left, right): (usize, usize), together: bool) -> Result<Self, GroupError> {
        let fit = || {
            let left = left.checked_mul(size_of::<T>())?;
            let right = right.checked_mul(size_of::<T>())?;
            let padded = |bytes: usize| bytes.checked_next_multiple_of(ALIGNMENT);
            let (left_to_right, right_to_left) =
                if together { (left, right) } else { (padded(left)?, padded(right)?) };
            let stride = padded(left)?.checked_add(padded(right)?)?;
            let fitting = CACHED_BYTES / stride.max(1);
            let outs = fitting.clamp(1, OUTS_MAX) as u64;
            let ahead_min = if stride < LONG_SET { AHEAD_MIN } else { 1 };
            let ahead = fitting.clamp(ahead_min, AHEAD_MAX) as u64;
            isize::try_from(stride.checked_mul(OUTS_MAX + AHEAD_MAX)?).ok()?;
            let elements = PhantomData;
            Some(Self { left, right, left_to_right, right_to_left, stride, outs, ahead, elements })
        };
        fit().ok_or_else(|| {
            let why = format!("borders of {left} and {right} elements do not fit memory");
            GroupError::InvalidArgument(why)
        })
    }

    /// Of the buffer.
    pub(super) fn bytes(&self) -> usize {
        self.first_in() + bytes(self.ahead) * self.stride
    }

    /// How many of so many rounds must have left their memory before the next one is written.
    pub(super) fn sent_before_next(&self, rounds: u64) -> u64 {
        (rounds + 1).saturating_sub(self.outs)
    }

    /// For how many rounds borders can come before the oldest are no longer read.
    pub(super) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// From the first set that is sent to that of this round.
    pub(super) fn sent(&self, round: u64) -> usize {
        bytes(round % self.outs) * self.stride
    }

    /// From the first set that borders come into to that of this round.
    pub(super) fn came(&self, round: u64) -> usize {
        bytes(round % self.ahead) * self.stride
    }

    fn first_in(&self) -> usize {
        bytes(self.outs) * self.stride
    }

    pub(super) fn out_left(&self) -> Range<usize> {
        0..self.left
    }

    pub(super) fn out_right(&self) -> Range<usize> {
        self.left_to_right..self.left_to_right + self.right
    }

    /// Before what comes from the left: a neighbour on both sides sends its left border first, and that is to the right of this rank.
    pub(super) fn in_right(&self) -> Range<usize> {
        let start = self.first_in();
        start..start + self.right
    }

    pub(super) fn in_left(&self) -> Range<usize> {
        let start = self.first_in() + self.right_to_left;
        start..start + self.left
    }

    /// The borders to send.
    pub(super) fn out<'a>(
        &self,
        buffer: &'a mut Buffer,
        round: u64,
    ) -> Result<(&'a mut [T], &'a mut [T]), GroupError> {
        let shift = self.sent(round);
        let whole = shift..self.out_right().end + shift;
        let (left, rest) = buffer.slice_mut::<T>(whole)?.split_at_mut(self.left / size_of::<T>());
        let gap = rest.len() - self.right / size_of::<T>();
        Ok((left, &mut rest[gap..]))
    }
}

/// Borders begin on cache lines, but where two are one message.
const ALIGNMENT: usize = 64;
/// Sets of each kind: as many as fit [`CACHED_BYTES`], within these bounds. Past the size of a cache they cost more than they save.
const CACHED_BYTES: usize = 512 << 10;
/// Of two sets to send one is written while the other is still being sent, so that what was sent is waited for a round later.
const OUTS_MAX: usize = 2;
/// A plugin announces receives in groups where it has several that are not used yet, so more sets that borders come into are fewer messages.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 8;
/// Of sets of this length there is one: two push more out of the caches than a wait for the announcement takes.
const LONG_SET: usize = 3 << 19;

/// A small number.
fn bytes(sets: u64) -> usize {
    usize::try_from(sets).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_do_not_overlap_and_two_of_one_message_stand_together() {
        for (left, right) in [(0, 0), (1, 0), (0, 3), (5, 16), (16, 16), (1000, 7)] {
            for together in [false, true] {
                let layout = Layout::<f32>::new((left, right), together).unwrap();
                let (out, into) = (0..layout.outs, 0..layout.ahead());
                let sent =
                    out.map(|round| (layout.sent(round), layout.out_left(), layout.out_right()));
                let came =
                    into.map(|round| (layout.came(round), layout.in_left(), layout.in_right()));
                let mut taken = vec![false; layout.bytes()];
                for (shift, left, right) in sent.chain(came) {
                    for place in left.chain(right) {
                        assert!(!std::mem::replace(&mut taken[place + shift], true), "{place}");
                    }
                }
                assert_eq!(layout.sent(4), layout.sent(2));
                assert_eq!(layout.came(3), layout.came(3 + layout.ahead()));
                assert_eq!(layout.out_left().len(), 4 * left);
                assert_eq!(layout.in_right().len(), 4 * right);
                let mut buffer = Buffer::new(layout.bytes()).unwrap();
                let (out_left, out_right) = layout.out(&mut buffer, 1).unwrap();
                assert_eq!((out_left.len(), out_right.len()), (left, right));
                if together {
                    assert_eq!(layout.out_left().end, layout.out_right().start);
                    assert_eq!(layout.in_right().end, layout.in_left().start);
                }
            }
        }
        assert!(Layout::<f64>::new((usize::MAX / 8, 1), false).is_err());
    }

    #[test]
    fn long_borders_are_sent_from_one_place_and_short_ones_from_two() {
        let sent = |bytes| {
            let layout = Layout::<u8>::new((bytes, bytes), true).unwrap();
            let rounds = [0, 1, 2, 7].map(|rounds| layout.sent_before_next(rounds));
            (layout.sent(1) == layout.sent(0), rounds)
        };
        for bytes in [1, 4096, 128 << 10] {
            assert_eq!(sent(bytes), (false, [0, 0, 1, 6]), "{bytes}");
        }
        for bytes in [(128 << 10) + 1, 1 << 20] {
            assert_eq!(sent(bytes), (true, [0, 1, 2, 7]), "{bytes}");
        }
    }

    #[test]
    fn short_borders_have_many_places_to_come_to_and_the_longest_one() {
        let ahead = |bytes| Layout::<u8>::new((bytes, bytes), true).unwrap().ahead();
        assert_eq!([0, 100, 4096, 32 << 10].map(ahead), [8; 4]);
        assert_eq!([64 << 10, 100 << 10, 512 << 10].map(ahead), [4, 2, 2]);
        assert_eq!([LONG_SET / 2, 1 << 20, 64 << 20].map(ahead), [1; 3]);
    }
}
