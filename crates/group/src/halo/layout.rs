//! Where the borders of a halo are in its buffer.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, Element};

/// One or two sets of borders to send, then the sets to receive into. Rounds use the sets of each kind in turn. Ranges are bytes of the
/// first set of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<T> {
    /// The length of a border to or from the left, and of one to or from the right.
    left: usize,
    right: usize,
    /// The distance from a left border to the right border that is sent with it.
    left_to_right: usize,
    /// The distance from a right border to the left border that comes with it.
    right_to_left: usize,
    /// The distance from one set to the next.
    stride: usize,
    /// The number of sets to send.
    outs: u64,
    /// The number of sets to receive into.
    ahead: u64,
    elements: PhantomData<T>,
}

impl<T: Element> Layout<T> {
    /// The layout for borders of these lengths in elements. `together`: both borders go to one rank, in one message.
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

    /// The length of the buffer.
    pub(super) fn bytes(&self) -> usize {
        self.first_in() + bytes(self.ahead) * self.stride
    }

    /// After `rounds` rounds: the sends of how many rounds must have ended before the next round may be written.
    pub(super) fn sent_before_next(&self, rounds: u64) -> u64 {
        (rounds + 1).saturating_sub(self.outs)
    }

    /// For how many rounds borders can be received while the oldest are still read.
    pub(super) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The distance from the first set to send to that of this round.
    pub(super) fn sent(&self, round: u64) -> usize {
        bytes(round % self.outs) * self.stride
    }

    /// The distance from the first set to receive into to that of this round.
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

    /// The border from the right. It is before the one from the left: a neighbour on both sides sends its left border first, which is this
    /// rank's right one.
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

/// Borders begin on cache lines, unless two are one message.
const ALIGNMENT: usize = 64;
/// Sets of each kind: as many as fit [`CACHED_BYTES`], within these bounds. Past the size of a cache they cost more than they save.
const CACHED_BYTES: usize = 512 << 10;
/// With two sets to send, one is written while the other is still being sent, so that a send is waited for one round later.
const OUTS_MAX: usize = 2;
/// A plugin announces several unused receives together, so more sets to receive into need fewer messages.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 8;
/// For sets of this length or more there is only one: a second one would cost more cache misses than waiting for the announcement.
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

    #[test]
    fn borders_whose_sets_are_together_longer_than_memory_are_refused() {
        let longest = isize::MAX.unsigned_abs() / (OUTS_MAX + AHEAD_MAX) / ALIGNMENT * ALIGNMENT;
        assert!(Layout::<u8>::new((longest, 0), false).is_ok());
        assert!(Layout::<u8>::new((longest, 1), false).is_err());
    }
}
