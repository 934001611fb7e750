//! Credit-based flow control: how much may be sent inline without an advert, since the receiver may have to park it.
//!
//! A message costs its length plus 64 bytes, so that empty messages are bounded too. A message uses credit from when it
//! is sent until an advert or a DONE shows that its receive is posted.

use crate::bits::count32;

/// Credit of one connection, in messages.
pub const CONNECTION_MESSAGES: usize = 64;
/// Credit of one connection, in cost.
pub const CONNECTION_BYTES: u32 = 16 << 10;
/// Credit of one channel, in cost.
pub const CHANNEL_BYTES: u32 = 64 << 10;
/// The cost of a message in addition to its length.
pub const MESSAGE_COST: u32 = 64;

/// The cost of a message of `len` bytes.
#[inline]
pub const fn cost(len: u16) -> u32 {
    len as u32 + MESSAGE_COST
}

/// Whether there is credit for a message of cost `cost`, when `messages` messages of cost `connection` are uncovered on
/// its connection, and of cost `channel` on its channel.
#[inline]
pub const fn fits(cost: u32, messages: usize, connection: u32, channel: u32) -> bool {
    messages < CONNECTION_MESSAGES
        && connection + cost <= CONNECTION_BYTES
        && channel + cost <= CHANNEL_BYTES
}

/// How much of the credit is used, by the bound of which the largest share is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Used {
    Little,
    /// A DONE joins any packet. With less credit used it would only add a frame to each packet.
    Eighth,
    /// A DONE is urgent.
    Half,
}

/// How much of the credit is used, if a DONE would return these messages and costs.
#[inline]
pub const fn used(messages: u32, connection: u32, channel: u32) -> Used {
    if !reaches(8, messages, connection, channel) {
        Used::Little
    } else if !reaches(2, messages, connection, channel) {
        Used::Eighth
    } else {
        Used::Half
    }
}

/// Whether any of the three reaches the fraction 1/`share` of its bound.
#[inline]
const fn reaches(share: u32, messages: u32, connection: u32, channel: u32) -> bool {
    messages >= count32(CONNECTION_MESSAGES) / share
        || connection >= CONNECTION_BYTES / share
        || channel >= CHANNEL_BYTES / share
}

const _: () = {
    assert!(count32(CONNECTION_MESSAGES) * MESSAGE_COST <= CONNECTION_BYTES);
    // The longest message needs at most half of the credit. So a sender that has to wait has used half, and the DONE
    // that it needs is urgent.
    assert!(2 * (count32(super::frame::INLINE_BYTES_MAX) + MESSAGE_COST) <= CONNECTION_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_must_wait_has_made_done_urgent() {
        for messages in 0..=CONNECTION_MESSAGES {
            for connection in (0..=CONNECTION_BYTES).step_by(64) {
                for channel in (connection..=CHANNEL_BYTES).step_by(1024) {
                    for len in [0, 8, 512, 4096] {
                        let waits = !fits(cost(len), messages, connection, channel);
                        let count = u32::try_from(messages).unwrap();
                        assert!(!waits || used(count, connection, channel) == Used::Half);
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_message_that_fits_uses_all_credit() {
        assert!(fits(cost(0), 63, CONNECTION_BYTES - 64, CHANNEL_BYTES - 64));
        assert!(!fits(cost(0), 64, 0, 0));
        assert!(!fits(cost(1), 0, CONNECTION_BYTES - 64, 0));
        assert!(!fits(cost(1), 0, 0, CHANNEL_BYTES - 64));
    }

    #[test]
    fn the_bound_of_which_the_largest_share_is_used_counts() {
        for bounds in [[64, 0, 0], [0, CONNECTION_BYTES, 0], [0, 0, CHANNEL_BYTES]] {
            let at = |share: u32, less: u32| {
                let [messages, connection, channel] =
                    bounds.map(|bound: u32| (bound / share).saturating_sub(less));
                used(messages, connection, channel)
            };
            assert_eq!((at(2, 0), at(2, 1)), (Used::Half, Used::Eighth));
            assert_eq!((at(8, 0), at(8, 1)), (Used::Eighth, Used::Little));
        }
    }
}
