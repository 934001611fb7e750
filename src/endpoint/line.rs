//! The lines in the ids of requests, which have room for 16 bits.

use proto::{Line, MessageId};

/// The message of a send request, by the line in its id.
#[inline]
pub(super) fn message_of(line: u16) -> MessageId {
    MessageId::new((line & 63) as u8)
}

/// The full number of a receive's line: a request's id has the low half, and `near` is at most a window away.
#[inline]
pub(super) fn line_near(near: Line, low: u16) -> Line {
    near.plus(u32::from(low16(near.number()).wrapping_sub(low)).wrapping_neg())
}

/// The low half of a line's number.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting to the low half is the point")]
pub(super) const fn low16(number: u32) -> u16 {
    number as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_low_half_across_the_wrap() {
        for (near, low, line) in
            [(5_u32, 3_u16, 3_u32), (0x1_0002, 0xffff, 0xffff), (2, 0xfffe, 0xffff_fffe)]
        {
            assert_eq!(line_near(Line::new(near), low), Line::new(line));
        }
    }
}
