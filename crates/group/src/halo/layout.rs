//! Where the borders of a halo are in its buffer.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, Element};

/// Two sets of borders to send, then two of borders that come, by the parity of a round. Ranges are bytes of the first set of each.
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
            isize::try_from(stride.checked_mul(SETS)?).ok()?;
            Some(Self { left, right, left_to_right, right_to_left, stride, elements: PhantomData })
        };
        fit().ok_or_else(|| {
            let why = format!("borders of {left} and {right} elements do not fit memory");
            GroupError::InvalidArgument(why)
        })
    }

    /// Of the buffer.
    pub(super) fn bytes(&self) -> usize {
        SETS * self.stride
    }

    /// From the first set to that of this parity.
    pub(super) fn shift(&self, parity: usize) -> usize {
        parity * self.stride
    }

    pub(super) fn out_left(&self) -> Range<usize> {
        0..self.left
    }

    pub(super) fn out_right(&self) -> Range<usize> {
        self.left_to_right..self.left_to_right + self.right
    }

    /// Before what comes from the left: a neighbour on both sides sends its left border first, and that is to the right of this rank.
    pub(super) fn in_right(&self) -> Range<usize> {
        let start = SETS / 2 * self.stride;
        start..start + self.right
    }

    pub(super) fn in_left(&self) -> Range<usize> {
        let start = SETS / 2 * self.stride + self.right_to_left;
        start..start + self.left
    }

    /// The borders to send.
    pub(super) fn out<'a>(
        &self,
        buffer: &'a mut Buffer,
        parity: usize,
    ) -> Result<(&'a mut [T], &'a mut [T]), GroupError> {
        let shift = self.shift(parity);
        let whole = shift..self.out_right().end + shift;
        let (left, rest) = buffer.slice_mut::<T>(whole)?.split_at_mut(self.left / size_of::<T>());
        let gap = rest.len() - self.right / size_of::<T>();
        Ok((left, &mut rest[gap..]))
    }
}

/// Borders begin on cache lines, but where two are one message.
const ALIGNMENT: usize = 64;
const SETS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_do_not_overlap_and_two_of_one_message_stand_together() {
        for (left, right) in [(0, 0), (1, 0), (0, 3), (5, 16), (16, 16), (1000, 7)] {
            for together in [false, true] {
                let layout = Layout::<f32>::new((left, right), together).unwrap();
                let sets = [0, 1].map(|parity| layout.shift(parity));
                let firsts =
                    [layout.out_left(), layout.out_right(), layout.in_left(), layout.in_right()];
                let mut taken = vec![false; layout.bytes()];
                for (shift, range) in sets.iter().flat_map(|s| firsts.iter().map(move |r| (s, r))) {
                    for place in &mut taken[range.start + shift..range.end + shift] {
                        assert!(!std::mem::replace(place, true), "{left} {right}");
                    }
                }
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
}
