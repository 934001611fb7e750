//! The versions of the protocol that this side speaks.

pub use crate::codec::VERSION;

/// The oldest version that this side speaks.
pub const OLDEST_VERSION: u16 = 2;

/// The versions that a side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub oldest: u16,
    pub newest: u16,
}

impl Versions {
    pub const OURS: Self = Self { oldest: OLDEST_VERSION, newest: VERSION };

    /// The newest version that both speak.
    pub const fn common(self, other: Self) -> Option<u16> {
        let newest = if self.newest < other.newest { self.newest } else { other.newest };
        let spoken = newest >= self.oldest && newest >= other.oldest;
        if spoken { Some(newest) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_version_is_the_newest_that_both_speak() {
        for a in 1..6 {
            for b in a..6 {
                for c in 1..6 {
                    for d in c..6 {
                        let one = Versions { oldest: a, newest: b };
                        let other = Versions { oldest: c, newest: d };
                        let both =
                            (1..6).rev().find(|v| (a..=b).contains(v) && (c..=d).contains(v));
                        assert_eq!(one.common(other), both);
                    }
                }
            }
        }
    }
}
