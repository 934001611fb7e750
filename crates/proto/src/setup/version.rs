//! The versions of the protocol that this side speaks, and the refusal of a peer that speaks an older one.

pub use crate::codec::VERSION;
use crate::codec::{self, HandshakeError, Reader, Writer};
use crate::limits::MAX_TEXT_BYTES;

/// The oldest version that this side speaks.
pub const OLDEST_VERSION: u16 = 2;

/// The versions that a side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub oldest: u16,
    pub newest: u16,
}

impl Versions {
    pub const OURS: Self = Self { oldest: OLDEST_VERSION, newest: VERSION };

    /// The newest version that both speak.
    pub const fn common(self, other: Self) -> Option<u16> {
        let newest = if self.newest < other.newest { self.newest } else { other.newest };
        let spoken = newest >= self.oldest && newest >= other.oldest;
        if spoken { Some(newest) } else { None }
    }
}

/// A request for a connection by version 1, as far as a refusal needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldRequest {
    /// The requester's name for the connection.
    connection: u64,
    pub reply_to: codec::Address,
}

/// Decodes a request for a connection by an older version: only the envelope and two fields are the same in all
/// versions. None if the bytes are not such a request.
pub fn speaks_old(bytes: &[u8]) -> Option<(u16, OldRequest)> {
    let envelope = codec::open(bytes).ok()?;
    if envelope.version >= OLDEST_VERSION || envelope.kind != OLD_REQUEST {
        return None;
    }
    let (mut connection, mut reply_to) = (None, None);
    for field in Reader::new(envelope.fields) {
        let field = field.ok()?;
        match field.kind {
            CONNECTION => field.once(&mut connection, |field| field.u64()).ok()?,
            REPLY_TO => field.once(&mut reply_to, |field| field.bounded()).ok()?,
            _ => {}
        }
    }
    Some((envelope.version, OldRequest { connection: connection?, reply_to: reply_to? }))
}

/// A refusal in the format of version 1, with a sentence for the peer's log.
pub fn refuse_old(request: &OldRequest, text: &str) -> Result<Vec<u8>, HandshakeError> {
    let mut writer = Writer::default();
    writer.field(CONNECTION, &request.connection.to_le_bytes());
    writer.field(REASON, &[REASON_VERSION]);
    let text = codec::Bounded::<{ MAX_TEXT_BYTES - 1 }>::cut(text);
    writer.field(TEXT, text.as_bytes());
    writer.seal_as(1, OLD_REFUSAL)
}

const OLD_REQUEST: u16 = 1;
const OLD_REFUSAL: u16 = 3;
const CONNECTION: u16 = 1;
const REPLY_TO: u16 = 2;
const REASON: u16 = 15;
const TEXT: u16 = 16;
const REASON_VERSION: u8 = 1;

/// A request of version 1, of which connection 77 is answered at `reply_to`.
#[cfg(test)]
pub(super) fn old_request(reply_to: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.field(CONNECTION, &77_u64.to_le_bytes());
    writer.field(REPLY_TO, reply_to);
    writer.field(200, &[9; 50]);
    writer.seal_as(1, OLD_REQUEST).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_version_is_the_newest_that_both_speak() {
        for a in 1..6 {
            for b in a..6 {
                for c in 1..6 {
                    for d in c..6 {
                        let one = Versions { oldest: a, newest: b };
                        let other = Versions { oldest: c, newest: d };
                        let both =
                            (1..6).rev().find(|v| (a..=b).contains(v) && (c..=d).contains(v));
                        assert_eq!(one.common(other), both);
                    }
                }
            }
        }
    }

    #[test]
    fn a_request_of_version_1_gets_a_refusal_that_version_1_reads() {
        let (version, request) = speaks_old(&old_request(&[1, 2, 3])).unwrap();
        assert_eq!((version, request.reply_to.as_bytes()), (1, &[1, 2, 3][..]));
        let refusal = refuse_old(&request, &"sentence ".repeat(60)).unwrap();
        let envelope = codec::open(&refusal).unwrap();
        assert_eq!((envelope.version, envelope.kind), (1, OLD_REFUSAL));
        let fields: Vec<_> = Reader::new(envelope.fields).map(Result::unwrap).collect();
        let [connection, reason, text] = &fields[..] else { panic!("three fields") };
        assert_eq!((connection.kind, connection.u64().unwrap()), (1, 77));
        assert_eq!((reason.kind, reason.value), (15, &[1][..]));
        assert_eq!(text.kind, 16);
        assert!(text.value.starts_with(b"sentence sentence") && text.value.len() > 200);
    }

    #[test]
    fn what_is_no_request_of_an_older_version_gets_none() {
        let mut writer = Writer::default();
        writer.field(CONNECTION, &77_u64.to_le_bytes());
        assert_eq!(speaks_old(&writer.clone().seal_as(1, OLD_REQUEST).unwrap()), None);
        writer.field(REPLY_TO, &[1]);
        assert_eq!(speaks_old(&writer.clone().seal_as(2, OLD_REQUEST).unwrap()), None);
        assert_eq!(speaks_old(&writer.clone().seal_as(1, 2).unwrap()), None);
        assert!(speaks_old(&writer.seal_as(1, OLD_REQUEST).unwrap()).is_some());
        assert_eq!(speaks_old(&[0; 40]), None);
    }
}
