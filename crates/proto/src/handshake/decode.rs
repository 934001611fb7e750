//! Bytes to messages: whatever the message, every field is read the same way; the message then takes what it must have.

use super::messages::{
    Bye, Cease, Ceased, Identity, Message, Refusal, RefusalReason, Reply, Request, Ring, Side,
    Withdraw, Withdrawn,
};
use super::numbers::{
    BEGUN, BUNDLE_BYTES, BUNDLE_RING, BYE, CAPABILITIES, CEASE, CEASED, COMM, CONNECTION,
    CONTROL_PAIRS, DATA_PAIRS, DONE, EAGER_BYTES, EAGER_END, EAGER_RING, FIN_ONLY, FROM, HOST,
    LIBFABRIC, LISTENER, LISTENER_NONCE, MAX_GROUP_FIELD, NONCE, PROCESS, PROVIDER,
    PROVIDER_VERSION, RAIL, REASON, REFUSAL, REPLY, REPLY_TO, REQUEST, RING, SETTINGS, TEXT,
    WINDOW, WITHDRAW, WITHDRAWN,
};
use crate::capabilities::Capabilities;
use crate::codec::{Address, Field, HandshakeError, Name, Reader, VERSION, open};
use crate::eager::FIRST_EAGER;
use crate::fence::Begun;
use crate::ids::{CommId, ConnectionId, Line};
use crate::limits::{
    FINGERPRINT_BYTES, MAX_CONTROL_RAILS, MAX_DATA_RAILS, MAX_GROUP, MAX_TEXT_BYTES,
};
use crate::rails::{Pairing, Rail, RailPair, decode_pairs};
use crate::window::Window;

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

/// Every field there is, as far as a message has it.
#[derive(Default)]
struct Fields {
    connection: Option<ConnectionId>,
    reply_to: Option<Address>,
    listener: Option<u64>,
    listener_nonce: Option<u64>,
    nonce: Option<u64>,
    capabilities: Option<Capabilities>,
    rails: Vec<Rail>,
    ring: Option<Ring>,
    window: Option<Window>,
    max_group: Option<u8>,
    comm: Option<CommId>,
    data_pairs: Option<Vec<RailPair>>,
    control_pairs: Option<Vec<RailPair>>,
    fin_only: Option<bool>,
    reason: Option<RefusalReason>,
    text: Option<String>,
    from: Option<Side>,
    host: Option<Name>,
    process: Option<u32>,
    provider: Option<Name>,
    libfabric: Option<u32>,
    settings: Option<[u8; FINGERPRINT_BYTES]>,
    provider_version: Option<u32>,
    begun: Option<Begun>,
    done: Option<Line>,
    eager_bytes: Option<u32>,
    eager_ring: Option<Ring>,
    eager_end: Option<u32>,
    bundle_bytes: Option<u32>,
    bundle_ring: Option<Ring>,
}

impl Fields {
    fn read(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut fields = Self::default();
        for field in Reader::new(bytes) {
            fields.take(field?)?;
        }
        Ok(fields)
    }

    fn take(&mut self, field: Field<'_>) -> Result<(), HandshakeError> {
        match field.kind {
            CONNECTION => field.once(&mut self.connection, |field| field.u64().map(ConnectionId)),
            REPLY_TO => field.once(&mut self.reply_to, |field| field.bounded()),
            LISTENER => field.once(&mut self.listener, |field| field.u64()),
            LISTENER_NONCE => field.once(&mut self.listener_nonce, |field| field.u64()),
            NONCE => field.once(&mut self.nonce, |field| field.u64()),
            CAPABILITIES => {
                field.once(&mut self.capabilities, |field| Capabilities::decode(field.value))
            }
            RAIL if self.rails.len() == MAX_DATA_RAILS => {
                Err(HandshakeError::Value("number of rails"))
            }
            RAIL => Rail::decode(field.value).map(|rail| self.rails.push(rail)),
            RING => field.once(&mut self.ring, |field| Ring::decode(field.value)),
            WINDOW => field.once(&mut self.window, |field| decode_window(field.array()?)),
            MAX_GROUP_FIELD => field.once(&mut self.max_group, |field| match field.u8()? {
                group if (1..=MAX_GROUP).contains(&usize::from(group)) => Ok(group),
                _ => Err(HandshakeError::Value("largest group")),
            }),
            COMM => field.once(&mut self.comm, |field| {
                CommId::new(field.u16()?).ok_or(HandshakeError::Value("comm id"))
            }),
            DATA_PAIRS => {
                field.once(&mut self.data_pairs, |field| decode_pairs(field.value, MAX_DATA_RAILS))
            }
            CONTROL_PAIRS => field.once(&mut self.control_pairs, |field| {
                decode_pairs(field.value, MAX_CONTROL_RAILS)
            }),
            FIN_ONLY => field.once(&mut self.fin_only, |field| field.u8().map(|value| value != 0)),
            REASON => field.once(&mut self.reason, |field| RefusalReason::from_u8(field.u8()?)),
            TEXT => field.once(&mut self.text, |field| match field.value {
                text if text.len() > MAX_TEXT_BYTES => Err(HandshakeError::FieldLength(TEXT)),
                text => Ok(String::from_utf8_lossy(text).into_owned()),
            }),
            FROM => field.once(&mut self.from, |field| match field.u8()? {
                1 => Ok(Side::Sender),
                2 => Ok(Side::Receiver),
                _ => Err(HandshakeError::Value("side")),
            }),
            HOST => field.once(&mut self.host, |field| field.bounded()),
            PROCESS => field.once(&mut self.process, |field| field.u32()),
            PROVIDER => field.once(&mut self.provider, |field| field.bounded()),
            LIBFABRIC => field.once(&mut self.libfabric, |field| field.u32()),
            SETTINGS => field.once(&mut self.settings, |field| field.array()),
            PROVIDER_VERSION => field.once(&mut self.provider_version, |field| field.u32()),
            BEGUN => field.once(&mut self.begun, |field| field.array().map(decode_begun)),
            DONE => field.once(&mut self.done, |field| field.u32().map(Line::new)),
            EAGER_BYTES => field.once(&mut self.eager_bytes, |field| field.u32()),
            EAGER_RING => field.once(&mut self.eager_ring, |field| Ring::decode(field.value)),
            EAGER_END => field.once(&mut self.eager_end, |field| field.u32()),
            BUNDLE_BYTES => field.once(&mut self.bundle_bytes, |field| field.u32()),
            BUNDLE_RING => field.once(&mut self.bundle_ring, |field| Ring::decode(field.value)),
            _ => Ok(()),
        }
    }

    fn request(mut self) -> Result<Request, HandshakeError> {
        Ok(Request {
            connection: self.connection()?,
            reply_to: have(self.reply_to.take(), "reply address")?,
            listener: have(self.listener, "listener")?,
            listener_nonce: have(self.listener_nonce, "listener nonce")?,
            nonce: have(self.nonce, "nonce")?,
            capabilities: have(self.capabilities, "capabilities")?,
            mailbox: have(self.ring.take(), "mailbox")?,
            window: have(self.window, "window")?,
            max_group: have(self.max_group, "largest group")?,
            eager_bytes: self.eager_bytes.unwrap_or(0),
            bundle_bytes: self.bundle_bytes.unwrap_or(0),
            identity: self.identity()?,
            rails: self.rails()?,
        })
    }

    fn reply(mut self) -> Result<Reply, HandshakeError> {
        Ok(Reply {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
            capabilities: have(self.capabilities, "capabilities")?,
            pairing: Pairing {
                data: have(self.data_pairs.take(), "data rail pairs")?,
                control: have(self.control_pairs.take(), "control rail pairs")?,
            },
            fins: have(self.ring.take(), "fin ring")?,
            window: have(self.window, "window")?,
            fin_only: have(self.fin_only, "fin path")?,
            eager: self.eager_ring.take(),
            bundles: self.bundle_ring.take(),
            identity: self.identity()?,
            rails: self.rails()?,
        })
    }

    fn refusal(mut self) -> Result<Refusal, HandshakeError> {
        Ok(Refusal {
            connection: self.connection()?,
            reason: have(self.reason, "reason")?,
            text: have(self.text.take(), "sentence")?,
        })
    }

    fn bye(self) -> Result<Bye, HandshakeError> {
        Ok(Bye {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
            from: have(self.from, "side")?,
            begun: have(self.begun, "lines begun")?,
            eager_end: self.eager_end.unwrap_or(FIRST_EAGER),
            done: have(self.done, "done")?,
        })
    }

    fn withdraw(self) -> Result<Withdraw, HandshakeError> {
        Ok(Withdraw {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
            done: have(self.done, "done")?,
            reply_to: have(self.reply_to, "reply address")?,
        })
    }

    fn withdrawn(self) -> Result<Withdrawn, HandshakeError> {
        Ok(Withdrawn {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
            begun: have(self.begun, "lines begun")?,
            eager_end: self.eager_end.unwrap_or(FIRST_EAGER),
        })
    }

    fn cease(self) -> Result<Cease, HandshakeError> {
        Ok(Cease {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
        })
    }

    fn ceased(self) -> Result<Ceased, HandshakeError> {
        Ok(Ceased {
            connection: self.connection()?,
            comm: have(self.comm, "comm id")?,
            nonce: have(self.nonce, "nonce")?,
            eager_end: have(self.eager_end, "end of eager messages")?,
        })
    }

    fn connection(&self) -> Result<ConnectionId, HandshakeError> {
        have(self.connection, "connection id")
    }

    fn identity(&self) -> Result<Identity, HandshakeError> {
        Ok(Identity {
            host: have(self.host, "host")?,
            process: have(self.process, "process")?,
            provider: have(self.provider, "provider")?,
            libfabric_version: have(self.libfabric, "libfabric version")?,
            provider_version: have(self.provider_version, "provider version")?,
            settings: have(self.settings, "settings")?,
        })
    }

    fn rails(self) -> Result<Vec<Rail>, HandshakeError> {
        if self.rails.is_empty() { Err(HandshakeError::Missing("rail")) } else { Ok(self.rails) }
    }
}

fn have<T>(field: Option<T>, name: &'static str) -> Result<T, HandshakeError> {
    field.ok_or(HandshakeError::Missing(name))
}

fn decode_begun([b0, b1, b2, b3, m0, m1]: [u8; 6]) -> Begun {
    let base = Line::new(u32::from_le_bytes([b0, b1, b2, b3]));
    Begun { base, more: u16::from_le_bytes([m0, m1]) }
}

fn decode_window(bytes: [u8; 12]) -> Result<Window, HandshakeError> {
    let ([lines, eager, outstanding], _) = bytes.as_chunks::<4>() else {
        return Err(HandshakeError::Value("window"));
    };
    let [lines, eager, outstanding] = [lines, eager, outstanding].map(|v| u32::from_le_bytes(*v));
    Window::new(lines, eager, outstanding).ok_or(HandshakeError::Value("window"))
}

impl Ring {
    fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [address, keys @ ..] = words else { return Err(HandshakeError::Value("ring")) };
        if !rest.is_empty() || keys.is_empty() || keys.len() > MAX_CONTROL_RAILS {
            return Err(HandshakeError::Value("ring"));
        }
        let keys = keys.iter().map(|key| u64::from_le_bytes(*key)).collect();
        Ok(Self { address: u64::from_le_bytes(*address), keys })
    }
}

impl RefusalReason {
    fn from_u8(value: u8) -> Result<Self, HandshakeError> {
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
