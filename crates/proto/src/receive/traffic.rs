//! Statistics of earlier messages. By these, adverts are delayed if they are probably not needed, and collected while the
//! rails are busy.

use crate::terms::COPIED_AT_MOST;

#[derive(Debug)]
pub(super) struct Traffic {
    /// A bit per class of lengths: set if the last message into a receive of such a length came inline.
    inline_classes: u64,
    /// The size of the newest message.
    newest: u64,
    /// The number of bytes that keep the rails busy while an advert travels.
    busy_bytes: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { inline_classes: 0, newest: 0, busy_bytes: u64::MAX }
    }
}

impl Traffic {
    pub(super) fn set_busy_bytes(&mut self, bytes: u64) {
        self.busy_bytes = bytes;
    }

    /// A message of `size` bytes is complete.
    #[inline]
    pub(super) fn completed(&mut self, size: u64) {
        self.newest = size;
    }

    /// A message came inline into a receive of `posted` bytes.
    #[inline]
    pub(super) fn came_inline(&mut self, posted: u64) {
        self.inline_classes |= class_of(posted);
    }

    /// A message was written into a receive of `posted` bytes.
    #[inline]
    pub(super) fn was_written(&mut self, posted: u64) {
        self.inline_classes &= !class_of(posted);
    }

    /// Whether the last message into a receive of about this length needed no advert.
    #[inline]
    pub(super) const fn comes_inline(&self, posted: u64) -> bool {
        self.inline_classes & class_of(posted) != 0
    }

    /// Whether the newest message is so long that such messages should be written, not copied, if receives are posted ahead.
    #[inline]
    pub(super) const fn is_long(&self) -> bool {
        self.newest > COPIED_AT_MOST
    }

    /// Whether `messages` messages of the newest one's size keep the rails busy.
    #[inline]
    pub(super) fn keeps_busy(&self, messages: u32) -> bool {
        self.newest.saturating_mul(messages.into()) >= self.busy_bytes
    }
}

/// The bit of a length's class: all lengths with the same highest bit.
#[inline]
const fn class_of(len: u64) -> u64 {
    let bits = u64::BITS - len.leading_zeros();
    1 << (if bits < 63 { bits } else { 63 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_one_class_have_the_same_highest_bit() {
        let all: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, u64::MAX >> (63 - bit)]).collect();
        for posted in &all {
            let mut traffic = Traffic::default();
            traffic.came_inline(*posted);
            for other in &all {
                // The two longest classes are one.
                let class = |len: u64| len.ilog2().min(62);
                let same = class(*posted) == class(*other);
                assert_eq!(traffic.comes_inline(*other), same, "{posted} {other}");
            }
            assert!(!traffic.comes_inline(0));
            traffic.was_written(*posted);
            assert!(!all.iter().any(|other| traffic.comes_inline(*other)));
        }
    }

    #[test]
    fn messages_above_3_kib_are_long() {
        let mut traffic = Traffic::default();
        for (size, long) in [(0, false), (3072, false), (3073, true), (1 << 40, true), (8, false)] {
            traffic.completed(size);
            assert_eq!(traffic.is_long(), long, "{size} bytes");
        }
    }
}
