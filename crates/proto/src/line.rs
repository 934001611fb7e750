//! The number of a line: the sequence number of a sub-receive within its connection.

/// The number of a line within its connection. It wraps, so compare distances, not numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line(u32);

impl Line {
    pub const FIRST: Self = Self(0);

    #[inline]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    #[inline]
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// How many lines this one is after `earlier`, wrapping.
    #[inline]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this line comes after `other`, for two lines of one window.
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right_across_the_wrap() {
        for start in [0, 1, 65535, 65536, u32::MAX - 3, u32::MAX] {
            for count in 0..300 {
                let line = Line::new(start);
                assert_eq!(line.plus(count).distance(line), count);
                assert_eq!(line.plus(count).is_after(line), count > 0);
                assert!(!line.is_after(line.plus(count)));
            }
        }
    }
}
