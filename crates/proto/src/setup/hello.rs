//! HELLO: the handshake message by which one endpoint describes itself to another. It is complete each time, so it may
//! be lost, repeated, or cross another.
//!
//! The envelope (magic, version, kind, length, check) and the type–length–value fields are those of version 1. Unknown
//! types are skipped; missing and repeated ones are refused, except that rails and entries may repeat, and the PID
//! namespace may be missing.

use crate::bits::low8;
use crate::capabilities::Capabilities;
use crate::codec::{self, Field, HandshakeError, Name, Reader, Writer};
use crate::limits::{FINGERPRINT_BYTES, MAX_DATA_RAILS, MAX_MESSAGE_BYTES};
use crate::rails::Rail;

use super::super::frame::INLINE_BYTES_MAX;
use super::super::ids::ListenerId;
use super::super::packet::Ring;
use super::presence::{Host, Offers};
use super::proof::{EndpointId, Nonces, Proof, Prove, Role, Secret, hello_words, verify};
use super::version::VERSION;

/// The most listeners that one HELLO can name.
pub const MAX_ENTRIES: usize = 16;
pub const MAX_HELLO_BYTES: usize = MAX_MESSAGE_BYTES;
/// The longest letter of the channel inside a HELLO.
pub const MAX_CHANNEL_BYTES: usize = 240;

/// A listener that the sender of a HELLO connects to or has made, with a proof that the sender has its secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub listener: ListenerId,
    /// `None` stands for no entry.
    pub role: Option<Role>,
    pub proof: Proof,
}

/// The entries of one HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    list: [Entry; MAX_ENTRIES],
    count: usize,
}

impl Entries {
    /// False if there is no room.
    pub fn push(&mut self, entry: Entry) -> bool {
        let Some(place) = self.list.get_mut(self.count) else { return false };
        *place = entry;
        self.count += 1;
        true
    }

    pub fn as_slice(&self) -> &[Entry] {
        &self.list[..self.count]
    }
}

/// The contents of a HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub from: EndpointId,
    /// The recipient.
    pub to: EndpointId,
    /// A random number for this peer; never 0.
    pub nonce: u64,
    /// The peer's nonce once it is known, otherwise 0.
    pub echo: u64,
    pub capabilities: Capabilities,
    pub offers: Offers,
    pub rails: Vec<Rail>,
    pub host: Host,
    pub entries: Entries,
    /// The channel's letter, without trailing zeros; empty before there is a channel.
    pub channel: codec::Bounded<MAX_CHANNEL_BYTES>,
}

impl Hello {
    /// Adds an entry with its proof. Nonces and ids must be set before.
    pub fn add_entry(
        &mut self,
        listener: ListenerId,
        role: Role,
        secret: &Secret,
        prove: &impl Prove,
    ) -> bool {
        let words = self.words_for(listener, role);
        let proof = prove.prove(secret, &words);
        self.entries.push(Entry { listener, role: Some(role), proof })
    }

    fn words_for(&self, listener: ListenerId, role: Role) -> [u64; 8] {
        let nonces = Nonces { prover: self.nonce, verifier: self.echo };
        hello_words(&self.from, &self.to, nonces, listener, role)
    }

    /// Whether the HELLO may have an effect: it is for us, its echo is our nonce or 0, and one of its entries is proven
    /// by our secret for its listener. `secret_of` gets the prover's role.
    pub fn is_proven(
        &self,
        us: &EndpointId,
        our_nonce: Option<u64>,
        secret_of: impl Fn(ListenerId, Role) -> Option<Secret>,
        prove: &impl Prove,
    ) -> bool {
        let echoes = self.echo == 0 || Some(self.echo) == our_nonce;
        let proven = |entry: &Entry| {
            let Some(role) = entry.role else { return false };
            let secret = secret_of(entry.listener, role);
            let words = self.words_for(entry.listener, role);
            secret.is_some_and(|secret| verify(prove, &secret, &words, entry.proof))
        };
        self.to == *us && self.nonce != 0 && echoes && self.entries.as_slice().iter().any(proven)
    }

    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = Writer::default();
        writer.field(FROM, &self.from.0);
        writer.field(TO, &self.to.0);
        writer.field(NONCE, &self.nonce.to_le_bytes());
        writer.field(ECHO, &self.echo.to_le_bytes());
        writer.nested(CAPABILITIES, |inner| self.capabilities.encode(inner));
        writer.field(OFFERS, &self.offers.encode());
        self.host.encode(&mut writer);
        writer.field(CHANNEL, self.channel.as_bytes());
        for entry in self.entries.as_slice() {
            writer.field(ENTRY, &entry.encode());
        }
        for rail in &self.rails {
            writer.nested(RAIL, |inner| rail.encode(inner));
        }
        writer.seal_as(VERSION, HELLO)
    }

    /// Decodes the message at the beginning of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let envelope = codec::open(bytes)?;
        if envelope.version != VERSION {
            return Err(HandshakeError::Version { theirs: envelope.version });
        }
        if envelope.kind != HELLO {
            return Err(HandshakeError::Kind(envelope.kind));
        }
        let mut fields = Fields::default();
        for field in Reader::new(envelope.fields) {
            fields.take(field?)?;
        }
        fields.hello()
    }
}

impl Host {
    fn encode(&self, writer: &mut Writer) {
        writer.field(HOST, self.host.as_bytes());
        writer.field(PROCESS, &self.process.to_le_bytes());
        writer.field(PROVIDER, self.provider.as_bytes());
        writer.field(PROVIDER_VERSION, &self.provider_version.to_le_bytes());
        writer.field(LIBFABRIC, &self.libfabric_version.to_le_bytes());
        writer.field(SETTINGS, &self.settings);
        if let Some(namespace) = self.pid_namespace {
            writer.field(PID_NAMESPACE, &namespace.to_le_bytes());
        }
    }
}

impl Offers {
    fn encode(self) -> [u8; OFFERS_BYTES] {
        let mut bytes = [0; OFFERS_BYTES];
        bytes[..4].copy_from_slice(&self.ring.bytes().to_le_bytes());
        bytes[4..6].copy_from_slice(&self.inline_bytes_max.to_le_bytes());
        bytes[6..].copy_from_slice(&self.shared_from.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; OFFERS_BYTES]) -> Result<Self, HandshakeError> {
        let [r0, r1, r2, r3, i0, i1, shared @ ..] = bytes;
        let ring = Ring::new(u32::from_le_bytes([r0, r1, r2, r3]));
        let inline_bytes_max = u16::from_le_bytes([i0, i1]);
        if usize::from(inline_bytes_max) > INLINE_BYTES_MAX {
            return Err(HandshakeError::Value("longest inline message"));
        }
        Ok(Self {
            ring: ring.ok_or(HandshakeError::Value("inbox length"))?,
            inline_bytes_max,
            shared_from: u64::from_le_bytes(shared),
        })
    }
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let [a, b] = self.proof.0;
        bytes[..4].copy_from_slice(&self.listener.0.to_le_bytes());
        bytes[4] = self.role.map_or(0, |role| low8(role as u64));
        bytes[5..13].copy_from_slice(&a.to_le_bytes());
        bytes[13..].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; ENTRY_BYTES]) -> Result<Self, HandshakeError> {
        let [l0, l1, l2, l3, role, proof @ ..] = bytes;
        let role = Role::from_u8(role).ok_or(HandshakeError::Value("role"))?;
        let (words, _) = proof.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Ok(Self {
            listener: ListenerId(u32::from_le_bytes([l0, l1, l2, l3])),
            role: Some(role),
            proof: Proof([word(0), word(1)]),
        })
    }
}

/// The known fields that a message has.
#[derive(Default)]
struct Fields {
    from: Option<EndpointId>,
    to: Option<EndpointId>,
    nonce: Option<u64>,
    echo: Option<u64>,
    capabilities: Option<Capabilities>,
    offers: Option<Offers>,
    rails: Vec<Rail>,
    entries: Entries,
    channel: Option<codec::Bounded<MAX_CHANNEL_BYTES>>,
    host: Option<Name>,
    process: Option<u32>,
    pid_namespace: Option<u64>,
    provider: Option<Name>,
    provider_version: Option<u32>,
    libfabric: Option<u32>,
    settings: Option<[u8; FINGERPRINT_BYTES]>,
}

impl Fields {
    fn take(&mut self, field: Field<'_>) -> Result<(), HandshakeError> {
        match field.kind {
            FROM => field.once(&mut self.from, |field| field.array().map(EndpointId)),
            TO => field.once(&mut self.to, |field| field.array().map(EndpointId)),
            NONCE => field.once(&mut self.nonce, |field| match field.u64()? {
                0 => Err(HandshakeError::Value("nonce")),
                nonce => Ok(nonce),
            }),
            ECHO => field.once(&mut self.echo, |field| field.u64()),
            CAPABILITIES => {
                field.once(&mut self.capabilities, |field| Capabilities::decode(field.value))
            }
            OFFERS => field.once(&mut self.offers, |field| Offers::decode(field.array()?)),
            RAIL if self.rails.len() == MAX_DATA_RAILS => {
                Err(HandshakeError::Value("number of rails"))
            }
            RAIL => Rail::decode(field.value).map(|rail| self.rails.push(rail)),
            ENTRY => match self.entries.push(Entry::decode(field.array()?)?) {
                true => Ok(()),
                false => Err(HandshakeError::Value("number of entries")),
            },
            CHANNEL => field.once(&mut self.channel, |field| field.bounded()),
            HOST => field.once(&mut self.host, |field| field.bounded()),
            PROCESS => field.once(&mut self.process, |field| field.u32()),
            PROVIDER => field.once(&mut self.provider, |field| field.bounded()),
            PROVIDER_VERSION => field.once(&mut self.provider_version, |field| field.u32()),
            LIBFABRIC => field.once(&mut self.libfabric, |field| field.u32()),
            SETTINGS => field.once(&mut self.settings, |field| field.array()),
            PID_NAMESPACE => field.once(&mut self.pid_namespace, |field| field.u64()),
            _ => Ok(()),
        }
    }

    fn hello(self) -> Result<Hello, HandshakeError> {
        if self.rails.is_empty() {
            return Err(HandshakeError::Missing("rail"));
        }
        Ok(Hello {
            from: have(self.from, "endpoint id")?,
            to: have(self.to, "recipient")?,
            nonce: have(self.nonce, "nonce")?,
            echo: have(self.echo, "echo")?,
            capabilities: have(self.capabilities, "capabilities")?,
            offers: have(self.offers, "offers")?,
            rails: self.rails,
            host: Host {
                host: have(self.host, "host")?,
                process: have(self.process, "process")?,
                pid_namespace: self.pid_namespace,
                provider: have(self.provider, "provider")?,
                provider_version: have(self.provider_version, "provider version")?,
                libfabric_version: have(self.libfabric, "libfabric version")?,
                settings: have(self.settings, "settings")?,
            },
            entries: self.entries,
            channel: have(self.channel, "channel")?,
        })
    }
}

fn have<T>(field: Option<T>, name: &'static str) -> Result<T, HandshakeError> {
    field.ok_or(HandshakeError::Missing(name))
}

const ENTRY_BYTES: usize = 21;
const OFFERS_BYTES: usize = 14;

/// The kind of the message.
const HELLO: u16 = 32;

// Types of fields. 1 and 2 belong to version 1.
const FROM: u16 = 40;
const TO: u16 = 41;
const NONCE: u16 = 42;
const ECHO: u16 = 43;
const CAPABILITIES: u16 = 44;
const RAIL: u16 = 45;
const ENTRY: u16 = 46;
const CHANNEL: u16 = 47;
const HOST: u16 = 48;
const PROCESS: u16 = 49;
const PROVIDER: u16 = 50;
const PROVIDER_VERSION: u16 = 51;
const LIBFABRIC: u16 = 52;
const SETTINGS: u16 = 53;
const OFFERS: u16 = 54;
const PID_NAMESPACE: u16 = 55;

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
