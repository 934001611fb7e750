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
/// What a message costs in addition to its length.
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

/// Whether a DONE that returns so much credit is urgent: from half of any bound on.
#[inline]
pub const fn is_half_used(messages: u32, connection: u32, channel: u32) -> bool {
    2 * messages >= count32(CONNECTION_MESSAGES)
        || 2 * connection >= CONNECTION_BYTES
        || 2 * channel >= CHANNEL_BYTES
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
                        assert!(!waits || is_half_used(count, connection, channel));
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
        assert!(is_half_used(32, 0, 0) && !is_half_used(31, 0, 0));
        assert!(is_half_used(0, 8192, 0) && !is_half_used(0, 8191, 0));
        assert!(is_half_used(0, 0, 32768) && !is_half_used(0, 0, 32767));
    }
}
