//! The rendezvous on the wire: length-prefixed frames, every length checked before it is believed.

use std::io::{self, Read, Write};

use super::{PART_BYTES_MAX, RANKS_MAX};

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) secret: u64,
    pub(super) rank: u32,
    pub(super) size: u32,
}

const MAGIC: [u8; 8] = *b"IRONGRP\x01";

impl Hello {
    pub(super) fn write(self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.secret.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..].copy_from_slice(&self.size.to_le_bytes());
        stream.write_all(&bytes)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        if array::<8>(stream)? != MAGIC {
            return Err(bad("not a rank's greeting"));
        }
        Ok(Self {
            secret: u64::from_le_bytes(array(stream)?),
            rank: u32::from_le_bytes(array(stream)?),
            size: u32::from_le_bytes(array(stream)?),
        })
    }
}

/// What follows, in both directions. The hub answers a part with all of them or a failure, a failure with a farewell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A rank's part of a round.
    Part(Vec<u8>),
    /// All parts of a round.
    All(Vec<Vec<u8>>),
    /// The group has failed, or a rank gives up, and why.
    Failed(String),
    /// This rank is done.
    Bye,
}

impl Frame {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        match self {
            Self::Part(part) => {
                bytes.push(1);
                put(&mut bytes, part)?;
            }
            Self::All(parts) => {
                bytes.push(2);
                let count = u32::try_from(parts.len()).map_err(|_| bad("too many parts"))?;
                bytes.extend(count.to_le_bytes());
                for part in parts {
                    put(&mut bytes, part)?;
                }
            }
            Self::Failed(why) => {
                bytes.push(3);
                let mut end = why.len().min(PART_BYTES_MAX);
                while !why.is_char_boundary(end) {
                    end -= 1;
                }
                put(&mut bytes, &why.as_bytes()[..end])?;
            }
            Self::Bye => bytes.push(4),
        }
        stream.write_all(&bytes)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let [kind] = array(stream)?;
        Ok(match kind {
            1 => Self::Part(get(stream)?),
            2 => {
                let count = u32::from_le_bytes(array(stream)?);
                if count as usize > RANKS_MAX {
                    return Err(bad("more parts than there can be ranks"));
                }
                Self::All((0..count).map(|_| get(stream)).collect::<io::Result<_>>()?)
            }
            3 => Self::Failed(String::from_utf8_lossy(&get(stream)?).into_owned()),
            4 => Self::Bye,
            _ => return Err(bad("an unknown frame")),
        })
    }
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
            Frame::Part(vec![]),
            Frame::Part(vec![1, 2, 3]),
            Frame::All(vec![vec![], vec![9; 300]]),
            Frame::Failed("rank 1 left".to_owned()),
            Frame::Bye,
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
    fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
        for hostile in
            [&[1, 255, 255, 255, 255][..], &[2, 255, 255, 255, 127], &[3, 1, 0, 1, 0], &[7]]
        {
            let error = Frame::read(&mut hostile.iter().as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
