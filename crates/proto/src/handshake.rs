//! The messages that make and end a connection: request, reply, refusal, bye.
//!
//! Fields of unknown type are skipped, missing ones refused, so that versions can add. The connection id and the reply
//! address keep their types in every version: even a request of another version can be refused by a message.

use std::fmt;

use crate::capabilities::Capabilities;
use crate::codec::{Address, FloorCharBoundary, Name, VERSION, Writer, open};
use crate::fence::Begun;
use crate::fields::{
    BEGUN, BUNDLE_BYTES, BUNDLE_RING, CAPABILITIES, COMM, CONNECTION, CONTROL_PAIRS, DATA_PAIRS,
    DONE, EAGER_BYTES, EAGER_END, EAGER_RING, FIN_ONLY, FROM, Fields, HOST, LIBFABRIC, LISTENER,
    LISTENER_NONCE, MAX_GROUP_FIELD, NONCE, PROCESS, PROVIDER, PROVIDER_VERSION, RAIL, REASON,
    REPLY_TO, RING, SETTINGS, TEXT, WINDOW,
};
use crate::ids::{CommId, ConnectionId, Line};
use crate::limits::{FINGERPRINT_BYTES, MAX_CONTROL_RAILS, MAX_DATA_RAILS, MAX_TEXT_BYTES};
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

/// Message kinds from here on are reserved for fences of rails.
pub const FIRST_RESERVED_KIND: u16 = 20;

const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const REFUSAL: u16 = 3;
const BYE: u16 = 4;
const WITHDRAW: u16 = 16;
const WITHDRAWN: u16 = 17;
const CEASE: u16 = 18;
const CEASED: u16 = 19;

/// The connection's nonce, of the sender's part and the receiver's.
pub fn mix_nonces(sender: u64, receiver: u64) -> u64 {
    crate::bits::mix(sender, receiver, sender.rotate_left(32) ^ 0x6972_6f6e_7261_696c)
}

impl Message {
    /// Reads the message at the beginning of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let envelope = open(bytes)?;
        let fields = Fields::read(envelope.fields)?;
        if envelope.version != VERSION {
            let reply = fields.connection.zip(fields.reply_to);
            return Err(HandshakeError::Version { theirs: envelope.version, reply });
        }
        match envelope.kind {
            REQUEST => fields.request().map(Box::new).map(Self::Request),
            REPLY => fields.reply().map(Box::new).map(Self::Reply),
            REFUSAL => fields.refusal().map(Self::Refusal),
            BYE => fields.bye().map(Self::Bye),
            WITHDRAW => fields.withdraw().map(Self::Withdraw),
            WITHDRAWN => fields.withdrawn().map(Self::Withdrawn),
            CEASE => fields.cease().map(Self::Cease),
            CEASED => fields.ceased().map(Self::Ceased),
            kind => Err(HandshakeError::Kind(kind)),
        }
    }
}

impl Request {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = Writer::default();
        writer.field(CONNECTION, &self.connection.0.to_le_bytes());
        writer.field(REPLY_TO, self.reply_to.as_bytes());
        writer.field(LISTENER, &self.listener.to_le_bytes());
        writer.field(LISTENER_NONCE, &self.listener_nonce.to_le_bytes());
        writer.field(NONCE, &self.nonce.to_le_bytes());
        writer.nested(CAPABILITIES, |inner| self.capabilities.encode(inner));
        encode_rails(&mut writer, &self.rails)?;
        self.mailbox.encode(&mut writer, RING);
        encode_window(&mut writer, self.window);
        writer.field(MAX_GROUP_FIELD, &[self.max_group]);
        writer.field(EAGER_BYTES, &self.eager_bytes.to_le_bytes());
        writer.field(BUNDLE_BYTES, &self.bundle_bytes.to_le_bytes());
        self.identity.encode(&mut writer);
        writer.seal(REQUEST)
    }
}

impl Reply {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = about(self.connection, self.comm, self.nonce);
        writer.nested(CAPABILITIES, |inner| self.capabilities.encode(inner));
        encode_rails(&mut writer, &self.rails)?;
        self.pairing.encode(&mut writer, DATA_PAIRS, CONTROL_PAIRS);
        self.fins.encode(&mut writer, RING);
        encode_window(&mut writer, self.window);
        writer.field(FIN_ONLY, &[u8::from(self.fin_only)]);
        if let Some(eager) = &self.eager {
            eager.encode(&mut writer, EAGER_RING);
        }
        if let Some(bundles) = &self.bundles {
            bundles.encode(&mut writer, BUNDLE_RING);
        }
        self.identity.encode(&mut writer);
        writer.seal(REPLY)
    }
}

impl Refusal {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = Writer::default();
        writer.field(CONNECTION, &self.connection.0.to_le_bytes());
        writer.field(REASON, &[self.reason as u8]);
        let end = self.text.floor_char_boundary_at(MAX_TEXT_BYTES);
        writer.field(TEXT, self.text.as_bytes().get(..end).unwrap_or(&[]));
        writer.seal(REFUSAL)
    }
}

impl Bye {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = about(self.connection, self.comm, self.nonce);
        writer.field(FROM, &[self.from as u8]);
        writer.field(EAGER_END, &self.eager_end.to_le_bytes());
        encode_begun(&mut writer, self.begun);
        writer.field(DONE, &self.done.number().to_le_bytes());
        writer.seal(BYE)
    }
}

/// Begins a message about a connection that both ends know.
fn about(connection: ConnectionId, comm: CommId, nonce: u64) -> Writer {
    let mut writer = Writer::default();
    writer.field(CONNECTION, &connection.0.to_le_bytes());
    writer.field(COMM, &comm.get().to_le_bytes());
    writer.field(NONCE, &nonce.to_le_bytes());
    writer
}

impl Withdraw {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = about(self.connection, self.comm, self.nonce);
        writer.field(REPLY_TO, self.reply_to.as_bytes());
        writer.field(DONE, &self.done.number().to_le_bytes());
        writer.seal(WITHDRAW)
    }
}

impl Withdrawn {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = about(self.connection, self.comm, self.nonce);
        writer.field(EAGER_END, &self.eager_end.to_le_bytes());
        encode_begun(&mut writer, self.begun);
        writer.seal(WITHDRAWN)
    }
}

impl Cease {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        about(self.connection, self.comm, self.nonce).seal(CEASE)
    }
}

impl Ceased {
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = about(self.connection, self.comm, self.nonce);
        writer.field(EAGER_END, &self.eager_end.to_le_bytes());
        writer.seal(CEASED)
    }
}

impl Ring {
    fn encode(&self, writer: &mut Writer, field: u16) {
        let mut value = self.address.to_le_bytes().to_vec();
        value.extend(self.keys.iter().flat_map(|key| key.to_le_bytes()));
        writer.field(field, &value);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [address, keys @ ..] = words else { return Err(HandshakeError::Value("ring")) };
        if !rest.is_empty() || keys.is_empty() || keys.len() > MAX_CONTROL_RAILS {
            return Err(HandshakeError::Value("ring"));
        }
        let keys = keys.iter().map(|key| u64::from_le_bytes(*key)).collect();
        Ok(Self { address: u64::from_le_bytes(*address), keys })
    }
}

impl Identity {
    fn encode(&self, writer: &mut Writer) {
        writer.field(HOST, self.host.as_bytes());
        writer.field(PROCESS, &self.process.to_le_bytes());
        writer.field(PROVIDER, self.provider.as_bytes());
        writer.field(LIBFABRIC, &self.libfabric_version.to_le_bytes());
        writer.field(PROVIDER_VERSION, &self.provider_version.to_le_bytes());
        writer.field(SETTINGS, &self.settings);
    }
}

fn encode_rails(writer: &mut Writer, rails: &[Rail]) -> Result<(), HandshakeError> {
    if rails.is_empty() || rails.len() > MAX_DATA_RAILS {
        return Err(HandshakeError::Value("number of rails"));
    }
    for rail in rails {
        writer.nested(RAIL, |inner| rail.encode(inner));
    }
    Ok(())
}

fn encode_begun(writer: &mut Writer, begun: Begun) {
    let mut value = begun.base.number().to_le_bytes().to_vec();
    value.extend(begun.more.to_le_bytes());
    writer.field(BEGUN, &value);
}

fn encode_window(writer: &mut Writer, window: Window) {
    let values = [window.lines(), window.eager(), window.outstanding()];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    writer.field(WINDOW, &bytes);
}

impl RefusalReason {
    pub(crate) fn from_u8(value: u8) -> Result<Self, HandshakeError> {
        let all = [
            Self::Version,
            Self::Check,
            Self::Feature,
            Self::Nonce,
            Self::Rails,
            Self::Busy,
            Self::Closed,
        ];
        all.into_iter().find(|reason| *reason as u8 == value).ok_or(HandshakeError::Value("reason"))
    }
}

/// Why bytes are not a handle or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    Short,
    Magic,
    /// Of another version; from a request, whom to tell.
    Version {
        theirs: u16,
        reply: Option<(ConnectionId, Address)>,
    },
    Check,
    Length,
    Kind(u16),
    Missing(&'static str),
    Repeated(u16),
    FieldLength(u16),
    Value(&'static str),
    /// What is to be sent does not fit a message.
    TooLong {
        len: usize,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it ends too early"),
            Self::Magic => f.write_str("it is not of this plugin"),
            Self::Version { theirs, .. } => {
                write!(f, "it is of protocol version {theirs}, ours is {VERSION}")
            }
            Self::Check => f.write_str("its check does not hold"),
            Self::Length => f.write_str("its length is out of bounds"),
            Self::Kind(kind) => write!(f, "its kind {kind} is unknown"),
            Self::Missing(name) => write!(f, "it lacks the {name}"),
            Self::Repeated(kind) => write!(f, "it has field {kind} twice"),
            Self::FieldLength(kind) => write!(f, "its field {kind} has a wrong length"),
            Self::Value(name) => write!(f, "its {name} makes no sense"),
            Self::TooLong { len } => write!(f, "it would have {len} bytes"),
        }
    }
}

impl std::error::Error for HandshakeError {}
