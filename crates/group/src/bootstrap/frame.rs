//! The rendezvous on the wire: length-prefixed frames; every length is checked before it is used.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{PART_BYTES_MAX, RANKS_MAX};
use crate::error::shown;

/// The first frame of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) secret: u64,
    pub(super) rank: u32,
    pub(super) size: u32,
}

const NAME: [u8; 7] = *b"IRONGRP";
/// The version of all frames.
const VERSION: u8 = 6;

impl Hello {
    pub(super) fn write(self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; 24];
        bytes[..7].copy_from_slice(&NAME);
        bytes[7] = VERSION;
        bytes[8..16].copy_from_slice(&self.secret.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..].copy_from_slice(&self.size.to_le_bytes());
        stream.write_all(&bytes)
    }

    /// Reads a hello. One of another version is [`io::ErrorKind::Unsupported`], and is read completely: if bytes are left unread when the
    /// connection closes, the answer is lost.
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        if array::<7>(stream)? != NAME {
            return Err(bad("not a rank's greeting"));
        }
        let [version] = array(stream)?;
        let hello = Self {
            secret: u64::from_le_bytes(array(stream)?),
            rank: u32::from_le_bytes(array(stream)?),
            size: u32::from_le_bytes(array(stream)?),
        };
        if version != VERSION {
            let why = format!(
                "a rank of version {version} of the rendezvous comes to one of version {VERSION}"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(hello)
    }
}

/// The later frames, in both directions. The hub answers a part with all parts or a failure, and a failure with a farewell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A rank's part of a round, with the rank's own number for the round, which the answer repeats. It is answered within `within_ms`
    /// milliseconds.
    Part { round: u32, within_ms: u32, bytes: Vec<u8> },
    /// All parts of a round.
    All { round: u32, parts: Vec<Vec<u8>> },
    /// A round has failed, with the reason.
    Missed { round: u32, why: String },
    /// A round has ended after `after_ms` milliseconds, since these ranks did not come.
    Late { round: u32, ranks: Vec<usize>, after_ms: u32 },
    /// A round cannot complete, since this rank has left.
    Gone { round: u32, rank: usize },
    /// The hub refuses a rank, or a rank gives up; with the reason. The same in all versions.
    Failed(String),
    /// This rank has finished. The hub answers with the same once it has notified all others.
    Bye,
    /// The hub has accepted a rank.
    Welcome,
    /// The hub accepts a rank once these have left.
    Later { ranks: Vec<usize> },
    /// Bytes from one rank to another: towards the hub `peer` is the receiver, from the hub it is the sender.
    Mail { peer: usize, bytes: Vec<u8> },
    /// This rank has made no progress for long: after this many milliseconds the hub names the silent ranks. 0: it makes progress again, or
    /// does not wait any more.
    Stuck(u32),
    /// An event of the group.
    News(News),
    /// The hub sends this frame back, after all its earlier frames.
    Echo(u32),
}

/// An event of the group, which the hub sends to every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A rank's connection ended without a farewell, or it reports why it gives up.
    Lost { rank: usize, why: String },
    /// A rank ended every operation of the group.
    Aborted { rank: usize },
    /// Some rank waits without progress, and these ranks have not answered the hub. None: all ranks wait.
    Silent { ranks: Vec<usize> },
    /// The hub itself is gone.
    Alone,
    /// Ranks left with a farewell.
    Left { ranks: Vec<usize> },
}

impl News {
    fn parts(&self) -> (u8, Vec<usize>, &str) {
        match self {
            Self::Lost { rank, why } => (1, vec![*rank], why),
            Self::Aborted { rank } => (2, vec![*rank], ""),
            Self::Silent { ranks } => (3, ranks.clone(), ""),
            Self::Alone => (4, Vec::new(), ""),
            Self::Left { ranks } => (5, ranks.clone(), ""),
        }
    }

    fn of(kind: u8, ranks: Vec<usize>, why: String) -> io::Result<Self> {
        let one =
            |ranks: &[usize]| ranks.first().copied().ok_or_else(|| bad("news without a rank"));
        Ok(match kind {
            1 => Self::Lost { rank: one(&ranks)?, why },
            2 => Self::Aborted { rank: one(&ranks)? },
            3 => Self::Silent { ranks },
            4 => Self::Alone,
            5 => Self::Left { ranks },
            _ => return Err(bad("unknown news")),
        })
    }
}

impl Frame {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        stream.write_all(&self.encode()?)
    }

    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self {
            Self::Part { round, within_ms, bytes: part } => {
                bytes.push(1);
                bytes.extend(round.to_le_bytes());
                bytes.extend(within_ms.to_le_bytes());
                put(&mut bytes, part)?;
            }
            Self::All { round, parts } => {
                bytes.extend(before_parts(*round));
                bytes.extend(&*encode_parts(parts)?);
            }
            Self::Failed(why) => {
                bytes.push(3);
                put(&mut bytes, cut(why))?;
            }
            Self::Bye => bytes.push(4),
            Self::Welcome => bytes.push(5),
            Self::Mail { peer, bytes: mail } => {
                bytes.push(6);
                number(&mut bytes, *peer)?;
                put(&mut bytes, mail)?;
            }
            Self::Stuck(within_ms) => {
                bytes.push(7);
                bytes.extend(within_ms.to_le_bytes());
            }
            Self::Missed { round, why } => {
                bytes.push(9);
                bytes.extend(round.to_le_bytes());
                put(&mut bytes, cut(why))?;
            }
            Self::Late { round, ranks, after_ms } => {
                bytes.push(10);
                bytes.extend(round.to_le_bytes());
                put_ranks(&mut bytes, ranks)?;
                bytes.extend(after_ms.to_le_bytes());
            }
            Self::News(news) => {
                let (kind, ranks, why) = news.parts();
                bytes.extend([8, kind]);
                put_ranks(&mut bytes, &ranks)?;
                put(&mut bytes, cut(why))?;
            }
            Self::Echo(number) => {
                bytes.push(11);
                bytes.extend(number.to_le_bytes());
            }
            Self::Later { ranks } => {
                bytes.push(12);
                put_ranks(&mut bytes, ranks)?;
            }
            Self::Gone { round, rank } => {
                bytes.push(13);
                bytes.extend(round.to_le_bytes());
                number(&mut bytes, *rank)?;
            }
        }
        Ok(bytes)
    }

    /// The round, or the echo, that this frame answers.
    pub(super) fn answers(&self) -> Option<u32> {
        match self {
            Self::All { round, .. }
            | Self::Missed { round, .. }
            | Self::Late { round, .. }
            | Self::Gone { round, .. }
            | Self::Echo(round) => Some(*round),
            _ => None,
        }
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let [kind] = array(stream)?;
        Ok(match kind {
            1 => Self::Part { round: word(stream)?, within_ms: word(stream)?, bytes: get(stream)? },
            2 => {
                let round = word(stream)?;
                Self::All { round, parts: decode_parts(stream)? }
            }
            3 => Self::Failed(text(stream)?),
            4 => Self::Bye,
            5 => Self::Welcome,
            6 => Self::Mail { peer: count(stream)?, bytes: get(stream)? },
            7 => Self::Stuck(word(stream)?),
            8 => {
                let [kind] = array(stream)?;
                let ranks = ranks(stream)?;
                Self::News(News::of(kind, ranks, text(stream)?)?)
            }
            9 => Self::Missed { round: word(stream)?, why: text(stream)? },
            10 => {
                Self::Late { round: word(stream)?, ranks: ranks(stream)?, after_ms: word(stream)? }
            }
            11 => Self::Echo(word(stream)?),
            12 => Self::Later { ranks: ranks(stream)? },
            13 => Self::Gone { round: word(stream)?, rank: count(stream)? },
            _ => return Err(bad("an unknown frame")),
        })
    }
}

/// All parts of a round, encoded as in the answers to all ranks, after [`before_parts`].
pub(super) fn encode_parts(parts: &[Vec<u8>]) -> io::Result<Arc<[u8]>> {
    let len = 4 + parts.iter().map(|part| 4 + part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(len);
    number(&mut bytes, parts.len())?;
    parts.iter().try_for_each(|part| put(&mut bytes, part))?;
    Ok(bytes.into())
}

pub(super) fn decode_parts(stream: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
    (0..count(stream)?).map(|_| get(stream)).collect()
}

/// The beginning of an answer, which differs from rank to rank.
pub(super) fn before_parts(round: u32) -> [u8; 5] {
    let [a, b, c, d] = round.to_le_bytes();
    [2, a, b, c, d]
}

fn cut(why: &str) -> &[u8] {
    let mut end = why.len().min(PART_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why.as_bytes()[..end]
}

fn number(bytes: &mut Vec<u8>, number: usize) -> io::Result<()> {
    let number = u32::try_from(number).map_err(|_| bad("too large a number"))?;
    bytes.extend(number.to_le_bytes());
    Ok(())
}

fn put_ranks(bytes: &mut Vec<u8>, ranks: &[usize]) -> io::Result<()> {
    number(bytes, ranks.len())?;
    ranks.iter().try_for_each(|rank| number(bytes, *rank))
}

fn ranks(stream: &mut impl Read) -> io::Result<Vec<usize>> {
    (0..count(stream)?).map(|_| count(stream)).collect()
}

fn word(stream: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_le_bytes(array(stream)?))
}

/// A reason, which is shown to users.
fn text(stream: &mut impl Read) -> io::Result<String> {
    Ok(shown(&String::from_utf8_lossy(&get(stream)?)))
}

/// A rank, or a number of ranks.
fn count(stream: &mut impl Read) -> io::Result<usize> {
    let count = word(stream)? as usize;
    if count > RANKS_MAX { Err(bad("more than there can be ranks")) } else { Ok(count) }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) -> io::Result<()> {
    if part.len() > PART_BYTES_MAX {
        return Err(bad("a part longer than a round carries"));
    }
    let len = u32::try_from(part.len()).map_err(|_| bad("too long"))?;
    bytes.extend(len.to_le_bytes());
    bytes.extend(part);
    Ok(())
}

fn get(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let len = u32::from_le_bytes(array(stream)?) as usize;
    if len > PART_BYTES_MAX {
        return Err(bad("a part longer than a round carries"));
    }
    let mut part = vec![0; len];
    stream.read_exact(&mut part)?;
    Ok(part)
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_read_as_it_was_written_and_never_from_less() {
        let frames = [
            Frame::Part { round: 1, within_ms: 250, bytes: vec![] },
            Frame::Part { round: u32::MAX, within_ms: u32::MAX, bytes: vec![1, 2, 3] },
            Frame::All { round: 2, parts: vec![vec![], vec![9; 300]] },
            Frame::Missed { round: 3, why: "rank 1 left".to_owned() },
            Frame::Late { round: 4, ranks: vec![0, 2], after_ms: 250 },
            Frame::Failed("rank 1 left".to_owned()),
            Frame::Bye,
            Frame::Welcome,
            Frame::Mail { peer: 3, bytes: vec![4; 128] },
            Frame::Stuck(250),
            Frame::News(News::Lost { rank: 2, why: "it left".to_owned() }),
            Frame::News(News::Aborted { rank: 1 }),
            Frame::News(News::Silent { ranks: vec![0, 3] }),
            Frame::News(News::Alone),
            Frame::News(News::Left { ranks: vec![1, 0] }),
            Frame::Echo(5),
            Frame::Later { ranks: vec![0, 2] },
            Frame::Gone { round: 6, rank: 1 },
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut bytes.as_slice()).unwrap(), frame);
            for short in 0..bytes.len() {
                assert!(Frame::read(&mut &bytes[..short]).is_err());
            }
        }
    }

    #[test]
    fn the_text_of_a_peer_is_one_line_without_commands_to_a_terminal() {
        let [raw, text] = ["\x1b[2Jrank 1\r\nléft\u{9b}", "?[2Jrank 1??léft?"].map(str::to_owned);
        let frames = |why: String| {
            let news = News::Lost { rank: 2, why: why.clone() };
            [Frame::Failed(why.clone()), Frame::Missed { round: 3, why }, Frame::News(news)]
        };
        for (frame, read) in frames(raw).iter().zip(frames(text)) {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut bytes.as_slice()).unwrap(), read);
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
        let (part, all) = ([1; 9], [2; 5]);
        for hostile in [
            &[&part[..], &[255; 4]].concat()[..],
            &[&all[..], &[255, 255, 255, 127]].concat(),
            &[3, 1, 0, 1, 0],
            &[14],
        ] {
            let error = Frame::read(&mut hostile.iter().as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
