//! What each message says.

use crate::capabilities::Capabilities;
use crate::codec::{Address, Name};
use crate::fence::Begun;
use crate::ids::{CommId, ConnectionId, Line};
use crate::limits::FINGERPRINT_BYTES;
use crate::rails::{Pairing, Rail};
use crate::window::Window;

/// The sender's, to the control address of a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub connection: ConnectionId,
    /// Where the reply goes: the control address of the sender.
    pub reply_to: Address,
    /// From the handle.
    pub listener: u64,
    /// From the handle.
    pub listener_nonce: u64,
    /// The sender's part of the connection's nonce.
    pub nonce: u64,
    pub capabilities: Capabilities,
    pub rails: Vec<Rail>,
    /// Where the receiver's adverts go.
    pub mailbox: Ring,
    pub window: Window,
    pub max_group: u8,
    /// The longest message that the sender would send eagerly; 0: none.
    pub eager_bytes: u32,
    /// The longest message that the sender would send in a bundle; 0: none.
    pub bundle_bytes: u32,
    pub identity: Identity,
}

/// The receiver's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// From the request.
    pub connection: ConnectionId,
    /// What immediates are to carry.
    pub comm: CommId,
    /// The receiver's part of the connection's nonce.
    pub nonce: u64,
    /// The receiver's own; both ends compute the intersection.
    pub capabilities: Capabilities,
    pub rails: Vec<Rail>,
    pub pairing: Pairing,
    /// Where the sender's fins go.
    pub fins: Ring,
    /// The window agreed.
    pub window: Window,
    /// Whether every message takes the fin path, by a setting of the receiver's.
    pub fin_only: bool,
    /// Where eager messages go, if there may be any: places for [`Window::eager`].
    pub eager: Option<Ring>,
    /// Where bundles go, if there may be any: [`BUNDLE_PLACES`](crate::bundle::BUNDLE_PLACES) places.
    pub bundles: Option<Ring>,
    pub identity: Identity,
}

/// The receiver's answer when it must not or cannot be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub connection: ConnectionId,
    pub reason: RefusalReason,
    /// A sentence for the sender's log.
    pub text: String,
}

/// Why a request is refused. Nothing else is a reason, and what is merely not ready stays unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalReason {
    Version = 1,
    Check = 2,
    Feature = 3,
    Nonce = 4,
    Rails = 5,
    /// The listener's queue is full: ask again, it is only deferred.
    Busy = 6,
    /// The connection was accepted, and is closed by now.
    Closed = 7,
}

/// Each end's last word on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    pub connection: ConnectionId,
    pub comm: CommId,
    /// The connection's nonce: a bye for an earlier tenant of the id is told apart.
    pub nonce: u64,
    pub from: Side,
    /// The sender's: what it has begun, for a receiver that still has receives posted.
    pub begun: Begun,
    /// The sender's: the number from which on it has sent no eager message.
    pub eager_end: u32,
    /// The receiver's: how far it is. This message may overtake the done that was written.
    pub done: Line,
}

/// The receiver's, when memory that it has advertised must go: begin nothing more, and say what was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdraw {
    pub connection: ConnectionId,
    pub comm: CommId,
    /// The connection's nonce.
    pub nonce: u64,
    /// How far the receiver is.
    pub done: Line,
    /// Where the answer goes if the sender does not know the connection yet, or any more.
    pub reply_to: Address,
}

/// The sender's answer: it begins nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    pub connection: ConnectionId,
    pub comm: CommId,
    pub nonce: u64,
    pub begun: Begun,
    /// The number from which on no eager message was sent.
    pub eager_end: u32,
}

/// The receiver's: send no eager messages any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cease {
    pub connection: ConnectionId,
    pub comm: CommId,
    /// The connection's nonce.
    pub nonce: u64,
}

/// The sender's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceased {
    pub connection: ConnectionId,
    pub comm: CommId,
    pub nonce: u64,
    /// The number from which on none was sent, and none will be.
    pub eager_end: u32,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    Sender = 1,
    Receiver = 2,
}

/// A ring in control memory, as the peer names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Address or offset, as the owner's provider wants it.
    pub address: u64,
    /// One per control rail, in the order of the owner's rails that have one.
    pub keys: Vec<u64>,
}

/// Who one talks to; for words to the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub host: Name,
    pub process: u32,
    pub provider: Name,
    /// The provider's own version, and libfabric's: major in the high half, minor in the low one.
    pub provider_version: u32,
    pub libfabric_version: u32,
    /// A fingerprint of the settings that both ends should share: a byte for each, zeros behind.
    pub settings: [u8; FINGERPRINT_BYTES],
}

/// A connection message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Request(Box<Request>),
    Reply(Box<Reply>),
    Refusal(Refusal),
    Bye(Bye),
    Withdraw(Withdraw),
    Withdrawn(Withdrawn),
    Cease(Cease),
    Ceased(Ceased),
}
