//! The window of a connection: how many lines and messages may be outstanding, and their places in tables.

use crate::line::Line;

/// The window: how many lines may be posted from the oldest incomplete one on. Tables of lines have as many places.
///
/// The advert of line `n` leaves only after line `n - WINDOW` is complete, so two lines in use never share a place.
pub const WINDOW: u32 = 64;
/// The number of records of a sender, for messages that have begun and were not reported as done.
pub const RECORDS: usize = 64;
/// An immediate carries line numbers modulo this.
pub const RESIDUES: u32 = 256;

const _: () = {
    assert!(WINDOW.is_power_of_two(), "a line's place is its number, masked");
    assert!(WINDOW <= u64::BITS, "a bit set of lines is one word");
    assert!(WINDOW <= RESIDUES / 2, "an immediate names one line of the window");
    assert!(RECORDS <= u64::BITS as usize, "a bit set of records is one word");
    assert!(RECORDS >= crate::limits::NCCL_MAX_REQUESTS as usize);
    assert!(WINDOW as usize >= crate::limits::MAX_GROUP, "one group always fits");
};

/// A line's place in a table of [`WINDOW`] places.
#[inline]
pub const fn place(line: Line) -> usize {
    (line.number() % WINDOW) as usize
}

/// A line's bit in a word with one bit per place.
#[inline]
pub const fn bit(line: Line) -> u64 {
    1 << (line.number() % WINDOW)
}

/// Whether `line` is one of the `count` lines from `first` on.
#[inline]
pub const fn within(line: Line, first: Line, count: u32) -> bool {
    line.distance(first) < count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_of_a_window_never_share_a_place() {
        for start in [0, 1, 63, 64, u32::MAX - 70, u32::MAX] {
            let first = Line::new(start);
            let mut seen = 0;
            for ahead in 0..WINDOW {
                let line = first.plus(ahead);
                assert_eq!(seen & bit(line), 0);
                assert_eq!(bit(line), 1 << place(line));
                assert!(within(line, first, WINDOW));
                seen |= bit(line);
            }
            assert!(!within(first.plus(WINDOW), first, WINDOW));
            assert!(!within(first.plus(u32::MAX), first, WINDOW));
            assert_eq!(seen, u64::MAX);
        }
    }
}
