//! How much may travel inline without an advert: the receiver may have to park it.
//!
//! A message costs its length and 64 bytes, so that empty ones are bounded too. The sender counts a message from the
//! moment it is sent until an advert or a DONE shows that its receive is posted.

use crate::bits::count32;

/// Messages of one connection.
pub const CONNECTION_MESSAGES: usize = 64;
/// Cost of the messages of one connection.
pub const CONNECTION_BYTES: u32 = 16 << 10;
/// Cost of the messages of one channel.
pub const CHANNEL_BYTES: u32 = 64 << 10;
/// What a message costs beside its length.
pub const MESSAGE_COST: u32 = 64;

/// What a message of so many bytes costs.
#[inline]
pub const fn cost(len: u16) -> u32 {
    len as u32 + MESSAGE_COST
}

/// Whether a message fits that costs `cost`, beside `messages` of `connection` bytes on its connection and `channel` bytes on
/// its channel.
#[inline]
pub const fn fits(cost: u32, messages: usize, connection: u32, channel: u32) -> bool {
    messages < CONNECTION_MESSAGES
        && connection + cost <= CONNECTION_BYTES
        && channel + cost <= CHANNEL_BYTES
}

/// Whether a DONE is urgent, of which so much credit depends: at half of what a sender may use.
#[inline]
pub const fn is_half_used(messages: u32, connection: u32, channel: u32) -> bool {
    2 * messages >= count32(CONNECTION_MESSAGES)
        || 2 * connection >= CONNECTION_BYTES
        || 2 * channel >= CHANNEL_BYTES
}

const _: () = {
    assert!(count32(CONNECTION_MESSAGES) * MESSAGE_COST <= CONNECTION_BYTES);
    // Half of the credit is left for a message of any length, so a sender that waits has made a DONE urgent.
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
