//! Type–length–value fields, and the envelope around the fields of a connection message.
//!
//! ```text
//! 0..4 magic | 4..6 version | 6..8 kind | 8..12 length of all | 12..16 check over all | fields: type 2, length 2, value
//! ```
//!
//! No length is trusted: every slice is taken by `get`. Allocation is bounded by the length of the message, which is
//! bounded.

use std::fmt;

use crate::bits::{fold, mix, word_of};
use crate::limits::{MAX_ADDRESS_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES};

/// First bytes of every connection message: `IRRL`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"IRRL");
/// The newest version that this side speaks. Peers that have no version in common refuse each other.
pub const VERSION: u16 = 2;
/// The bytes before the first field.
pub const ENVELOPE_BYTES: usize = 16;

const CHECK_AT: std::ops::Range<usize> = 12..16;

/// A checksum over every bit, its position and the length. It detects accidental errors, not attacks.
pub fn check_of(bytes: &[u8]) -> u32 {
    let mixed = bytes
        .chunks(8)
        .fold(bytes.len() as u64, |seed, chunk| mix(seed, word_of(chunk), seed >> 32));
    fold(mix(mixed, 1, 2))
}

/// At most `MAX` bytes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounded<const MAX: usize> {
    len: u8,
    bytes: [u8; MAX],
}

/// The bytes of a libfabric address. Both ends use the address format of their common fabric.
pub type Address = Bounded<MAX_ADDRESS_BYTES>;
/// The name of a fabric, a host or a provider.
pub type Name = Bounded<MAX_NAME_BYTES>;

impl<const MAX: usize> Bounded<MAX> {
    /// None if there are more than `MAX` bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        const { assert!(MAX <= u8::MAX as usize) };
        let mut kept = [0; MAX];
        kept.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len: u8::try_from(bytes.len()).ok()?, bytes: kept })
    }

    /// As much of `text` as fits, cut between characters.
    pub fn cut(text: &str) -> Self {
        let end = text.floor_char_boundary_at(MAX);
        Self::new(text.as_bytes().get(..end).unwrap_or(&[])).unwrap_or_default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// For log lines. Everything but printable ASCII is escaped, so that text from a peer cannot forge log lines or
    /// send commands to a terminal.
    pub fn to_text(&self) -> String {
        self.as_bytes().escape_ascii().to_string()
    }
}

impl<const MAX: usize> Default for Bounded<MAX> {
    fn default() -> Self {
        Self { len: 0, bytes: [0; MAX] }
    }
}

impl<const MAX: usize> fmt::Debug for Bounded<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// `str::floor_char_boundary` is newer than our oldest toolchain.
pub(crate) trait FloorCharBoundary {
    fn floor_char_boundary_at(&self, end: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_at(&self, end: usize) -> usize {
        let end = end.min(self.len());
        (0..=end).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// Appends fields.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A writer that reuses the memory of an earlier message.
    pub(crate) fn reusing(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes }
    }

    /// Appends a field. A value too long for its length field makes the message too long, so `seal_as` refuses it.
    pub fn field(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&kind.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    /// Appends a field whose value is fields.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.field(kind, &inner.bytes);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts the envelope of a version around the fields.
    pub(crate) fn seal_as(self, version: u16, kind: u16) -> Result<Vec<u8>, HandshakeError> {
        let mut message = self.bytes;
        let (fields, len) = (message.len(), ENVELOPE_BYTES + message.len());
        if len > MAX_MESSAGE_BYTES {
            return Err(HandshakeError::TooLong { len });
        }
        message.resize(len, 0);
        message.copy_within(..fields, ENVELOPE_BYTES);
        message[..4].copy_from_slice(&MAGIC.to_le_bytes());
        message[4..6].copy_from_slice(&version.to_le_bytes());
        message[6..8].copy_from_slice(&kind.to_le_bytes());
        message[8..12].copy_from_slice(&crate::bits::count32(len).to_le_bytes());
        message[CHECK_AT].fill(0);
        let check = check_of(&message).to_le_bytes();
        message[CHECK_AT].copy_from_slice(&check);
        Ok(message)
    }
}

/// The contents of an envelope whose check is right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope<'a> {
    pub(crate) version: u16,
    pub(crate) kind: u16,
    pub(crate) fields: &'a [u8],
}

/// Opens a message of any version. `bytes` may be longer than the message, as a receive buffer is.
pub(crate) fn open(bytes: &[u8]) -> Result<Envelope<'_>, HandshakeError> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let (Some(magic), Some(form), Some(len), Some(check)) = (word(0), word(4), word(8), word(12))
    else {
        return Err(HandshakeError::Short);
    };
    if magic != MAGIC {
        return Err(HandshakeError::Magic);
    }
    let len = len as usize;
    if !(ENVELOPE_BYTES..=MAX_MESSAGE_BYTES).contains(&len) {
        return Err(HandshakeError::Length);
    }
    let message = bytes.get(..len).ok_or(HandshakeError::Short)?;
    let mut unsealed = [0; MAX_MESSAGE_BYTES];
    unsealed[..len].copy_from_slice(message);
    unsealed[CHECK_AT].fill(0);
    if check_of(&unsealed[..len]) != check {
        return Err(HandshakeError::Check);
    }
    let [v0, v1, k0, k1] = form.to_le_bytes();
    let (version, kind) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([k0, k1]));
    Ok(Envelope { version, kind, fields: &message[ENVELOPE_BYTES..] })
}

/// A field as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub kind: u16,
    pub value: &'a [u8],
}

impl Field<'_> {
    /// Reads the field into `target`, which must be empty: a repeated field is an error.
    pub fn once<T>(
        &self,
        target: &mut Option<T>,
        read: impl FnOnce(&Self) -> Result<T, HandshakeError>,
    ) -> Result<(), HandshakeError> {
        if target.is_some() {
            return Err(HandshakeError::Repeated(self.kind));
        }
        *target = Some(read(self)?);
        Ok(())
    }

    pub fn u8(&self) -> Result<u8, HandshakeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&self) -> Result<u16, HandshakeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&self) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&self) -> Result<u64, HandshakeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn bounded<const MAX: usize>(&self) -> Result<Bounded<MAX>, HandshakeError> {
        Bounded::new(self.value).ok_or(HandshakeError::FieldLength(self.kind))
    }

    pub(crate) fn array<const LEN: usize>(&self) -> Result<[u8; LEN], HandshakeError> {
        self.value.try_into().map_err(|_| HandshakeError::FieldLength(self.kind))
    }
}

/// Reads fields one after the other. A field that runs past the end is an error and ends the iteration.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self) -> Option<Field<'a>> {
        let [k0, k1, l0, l1, rest @ ..] = self.rest else { return None };
        let len = usize::from(u16::from_le_bytes([*l0, *l1]));
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(Field { kind: u16::from_le_bytes([*k0, *k1]), value })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Field<'a>, HandshakeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(self.take().ok_or_else(|| {
            self.rest = &[];
            HandshakeError::Short
        }))
    }
}

/// Why bytes are not a handle or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    Short,
    Magic,
    /// The peer speaks another version.
    Version {
        theirs: u16,
    },
    Check,
    Length,
    Kind(u16),
    Missing(&'static str),
    Repeated(u16),
    FieldLength(u16),
    Value(&'static str),
    /// The contents do not fit a message.
    TooLong {
        len: usize,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it ends too early"),
            Self::Magic => f.write_str("it is not of this plugin"),
            Self::Version { theirs } => {
                write!(f, "it is of protocol version {theirs}, ours is {VERSION}")
            }
            Self::Check => f.write_str("its checksum is wrong"),
            Self::Length => f.write_str("its length is out of bounds"),
            Self::Kind(kind) => write!(f, "its kind {kind} is unknown"),
            Self::Missing(name) => write!(f, "it lacks the {name}"),
            Self::Repeated(kind) => write!(f, "it has field {kind} twice"),
            Self::FieldLength(kind) => write!(f, "its field {kind} has a wrong length"),
            Self::Value(name) => write!(f, "its {name} is not valid"),
            Self::TooLong { len } => write!(f, "it would be {len} bytes long"),
        }
    }
}

impl std::error::Error for HandshakeError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other builds compute the check, too.
    #[test]
    fn the_check_of_bytes_never_changes() {
        let bytes: Vec<u8> = (1..=20).collect();
        let checks = [0, 7, 8, 9, 20].map(|len| check_of(&bytes[..len]));
        assert_eq!(checks, [0xb196_f295, 0x954d_1aaf, 0xaece_7e28, 0x9c50_e07e, 0x31a8_006d]);
    }

    #[test]
    fn a_message_is_refused_that_is_longer_than_the_longest() {
        for over in [0, 1, 2] {
            let fields = vec![0; MAX_MESSAGE_BYTES - ENVELOPE_BYTES + over];
            let sealed = Writer { bytes: fields }.seal_as(VERSION, 1);
            let len = MAX_MESSAGE_BYTES + over;
            match over {
                0 => assert_eq!(sealed.map(|message| message.len()), Ok(len)),
                _ => assert_eq!(sealed, Err(HandshakeError::TooLong { len })),
            }
        }
    }

    #[test]
    fn a_name_from_a_peer_forges_no_log_lines_and_no_commands() {
        let said = |bytes: &[u8]| Name::new(bytes).unwrap().to_text();
        assert_eq!(said(b"node-7.rack2"), "node-7.rack2");
        assert_eq!(said(b"a\n[WARN] all is lost\r"), r"a\n[WARN] all is lost\r");
        assert_eq!(said(b"\x1b]0;title\x07\x9b2J"), r"\x1b]0;title\x07\x9b2J");
        // A UTF-8 character that reverses the text's direction.
        assert_eq!(said("\u{202e}abc".as_bytes()), r"\xe2\x80\xaeabc");
        for byte in 0..=u8::MAX {
            let text = said(&[byte]);
            assert!(text.bytes().all(|shown| (b' '..=b'~').contains(&shown)), "{byte}: {text:?}");
        }
    }
}
