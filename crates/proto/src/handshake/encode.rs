//! Messages to bytes.

use super::messages::{
    Bye, Cease, Ceased, Identity, Refusal, Reply, Request, Ring, Withdraw, Withdrawn,
};
use super::numbers::{
    BEGUN, BUNDLE_BYTES, BUNDLE_RING, BYE, CAPABILITIES, CEASE, CEASED, COMM, CONNECTION,
    CONTROL_PAIRS, DATA_PAIRS, DONE, EAGER_BYTES, EAGER_END, EAGER_RING, FIN_ONLY, FROM, HOST,
    LIBFABRIC, LISTENER, LISTENER_NONCE, MAX_GROUP_FIELD, NONCE, PROCESS, PROVIDER,
    PROVIDER_VERSION, RAIL, REASON, REFUSAL, REPLY, REPLY_TO, REQUEST, RING, SETTINGS, TEXT,
    WINDOW, WITHDRAW, WITHDRAWN,
};
use crate::codec::{FloorCharBoundary, HandshakeError, Writer};
use crate::fence::Begun;
use crate::ids::{CommId, ConnectionId};
use crate::limits::{MAX_DATA_RAILS, MAX_TEXT_BYTES};
use crate::rails::Rail;
use crate::window::Window;
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
