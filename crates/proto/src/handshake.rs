//! The messages that make and end a connection: request, reply, refusal, bye; and those that end a part of it.
//!
//! Fields of unknown type are skipped, missing ones refused, so that versions can add. The connection id and the reply
//! address keep their types in every version: even a request of another version can be refused by a message.

mod decode;
mod encode;
mod messages;
mod numbers;

pub use crate::codec::HandshakeError;
pub use messages::{
    Bye, Cease, Ceased, Identity, Message, Refusal, RefusalReason, Reply, Request, Ring, Side,
    Withdraw, Withdrawn,
};

/// Message kinds from here on are reserved for fences of rails.
pub const FIRST_RESERVED_KIND: u16 = 20;

/// The connection's nonce, of the sender's part and the receiver's.
pub fn mix_nonces(sender: u64, receiver: u64) -> u64 {
    crate::bits::mix(sender, receiver, sender.rotate_left(32) ^ 0x6972_6f6e_7261_696c)
}
