//! The two-sided messages of version 2: HELLO with its letter, and the other letters on their own.

use super::super::letter::{Body, LETTER_WORDS, Letter};
use super::hello::{Hello, MAX_CHANNEL_BYTES};
use super::version::VERSION;
use crate::codec::{self, Bounded, HandshakeError, Reader, Writer};

/// A two-sided message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// HELLO. [`Hello::channel`] has the letter, once there is a channel.
    Hello(Box<Hello>),
    /// QUERY, STATUS or TRIAL. Its key identifies the channel.
    Letter(Letter),
}

impl Message {
    /// Decodes the message at the beginning of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let envelope = codec::open(bytes)?;
        if envelope.version != VERSION || envelope.kind != LETTER {
            return Hello::decode(bytes).map(|hello| Self::Hello(Box::new(hello)));
        }
        let mut letter = None;
        for field in Reader::new(envelope.fields) {
            let field = field?;
            if field.kind == WORDS {
                field.once(&mut letter, |field| letter_of(field.value))?;
            }
        }
        let letter = letter.ok_or(HandshakeError::Missing("letter"))?;
        match letter.body {
            Body::Hello(_) => Err(HandshakeError::Value("letter")),
            Body::Query(_) | Body::Status(_) | Body::Trial(_) => Ok(Self::Letter(letter)),
        }
    }

    /// The message for a letter that is not a HELLO, in the memory of an earlier message: nothing is allocated if that is long enough.
    pub fn encode_letter(letter: &Letter, into: Vec<u8>) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = Writer::reusing(into);
        let words = letter.encode();
        writer.field(WORDS, words.map(u64::to_le_bytes).as_flattened());
        writer.seal_as(VERSION, LETTER)
    }
}

/// The letter inside a HELLO: its words without trailing zeros.
pub(super) fn pack(letter: &Letter) -> Bounded<MAX_CHANNEL_BYTES> {
    let words = letter.encode();
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    Bounded::new(words.map(u64::to_le_bytes)[..used].as_flattened()).unwrap_or_default()
}

/// The letter inside a HELLO, if there is one. An error if the bytes are not a letter.
pub(super) fn unpack(bytes: &[u8]) -> Result<Option<Letter>, HandshakeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let letter = letter_of(bytes)?;
    match letter.body {
        Body::Hello(_) => Ok(Some(letter)),
        Body::Query(_) | Body::Status(_) | Body::Trial(_) => Err(HandshakeError::Value("letter")),
    }
}

fn letter_of(bytes: &[u8]) -> Result<Letter, HandshakeError> {
    let (chunks, []) = bytes.as_chunks::<8>() else {
        return Err(HandshakeError::Value("letter"));
    };
    let mut words = [0; LETTER_WORDS];
    let wrong = HandshakeError::Value("letter");
    let room = words.get_mut(..chunks.len()).ok_or(wrong)?;
    for (word, chunk) in room.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    Letter::decode(&words).ok_or(wrong)
}

/// The kind of a message that is only a letter.
const LETTER: u16 = 33;
/// The type of its field.
const WORDS: u16 = 60;

const _: () = assert!(8 * LETTER_WORDS <= MAX_CHANNEL_BYTES, "a HELLO has room for any letter");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::PeerCounts;
    use crate::ids::{Epoch, Nonce, PacketNumber};
    use crate::letter;
    use crate::memory::Lease;

    fn letters() -> [Letter; 2] {
        let (epoch, number) = (Epoch(3), PacketNumber::new(9));
        let lease = Lease { epoch, nonce: Nonce(8), rail: 0, address: 4096, key: 2 };
        let hello =
            letter::Hello { lease, key: 7, consumed: number, echo: epoch, requests_echo: true };
        let counts = PeerCounts::default();
        let query =
            letter::Query { epoch, completed: number, lost: true, rail: 0, counts, about: None };
        [Body::Hello(hello), Body::Query(query)].map(|body| Letter {
            key: 5,
            rails: letter::RailNumbers::default(),
            body,
        })
    }

    #[test]
    fn each_letter_is_decoded_from_its_own_kind_of_message_only() {
        let [hello, query] = letters();
        assert_eq!(unpack(pack(&hello).as_bytes()), Ok(Some(hello)));
        assert!(unpack(pack(&query).as_bytes()).is_err());
        assert_eq!(unpack(&[]), Ok(None));
        let bytes = Message::encode_letter(&query, Vec::new()).unwrap();
        assert_eq!(Message::decode(&bytes), Ok(Message::Letter(query)));
        let wrong = Message::encode_letter(&hello, Vec::new()).unwrap();
        assert!(Message::decode(&wrong).is_err());
    }

    #[test]
    fn bytes_that_are_no_letter_are_refused() {
        let bytes = pack(&letters()[0]);
        for cut in 1..bytes.as_bytes().len() {
            // Missing words at the end read as zeros, which makes another letter; the check of the HELLO detects that.
            let letter = unpack(&bytes.as_bytes()[..cut]);
            assert!(letter.is_err() || cut.is_multiple_of(8), "{cut}");
            assert_ne!(letter, Ok(Some(letters()[0])));
        }
        assert!(unpack(&[1; 240]).is_err());
        let whole = Message::encode_letter(&letters()[1], Vec::new()).unwrap();
        for bit in 0..8 * whole.len() {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Message::decode(&changed).is_err(), "bit {bit}");
        }
    }
}
