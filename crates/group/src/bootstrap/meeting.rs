//! What a rank needs to join: where the rendezvous is, and as which rank it comes.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use super::RANKS_MAX;
use crate::error::GroupError;
use crate::launch::MEETING_VARIABLE;

/// The address of the rendezvous, and the rank. Passed in an environment variable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    pub address: SocketAddr,
    pub secret: u64,
    pub rank: usize,
    pub size: usize,
}

/// Omits the secret, with which anyone could come as a rank.
impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, rank, size, .. } = self;
        let mut text = f.debug_struct("Meeting");
        text.field("address", address).field("rank", rank).field("size", size);
        text.finish_non_exhaustive()
    }
}

/// Shows the secret: this text is passed to the rank.
impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, secret, rank, size } = self;
        write!(f, "{rank}/{size}/{secret:016x}/{address}")
    }
}

impl FromStr for Meeting {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        let parse = || {
            let mut fields = text.splitn(4, '/');
            let rank = fields.next()?.parse().ok()?;
            let size = fields.next()?.parse().ok()?;
            let secret = u64::from_str_radix(fields.next()?, 16).ok()?;
            let address = fields.next()?.parse().ok()?;
            (rank < size && size <= RANKS_MAX).then_some(Self { address, secret, rank, size })
        };
        // The error does not show the text, which may have a secret.
        let unknown = || format!("{MEETING_VARIABLE} does not say where ranks meet");
        parse().ok_or_else(|| GroupError::Usage(unknown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meeting_has_a_rank_of_a_group_of_1_to_1024_ranks() {
        let parsed = |text: &str| text.parse::<Meeting>().map(|meeting| meeting.to_string());
        for text in ["0/1/00000000000000ff/127.0.0.1:77", "1023/1024/ffffffffffffffff/[::1]:77"] {
            assert_eq!(parsed(text).unwrap(), text);
        }
        for text in [
            "0/0/ff/127.0.0.1:77",
            "1/1/ff/127.0.0.1:77",
            "2/1/ff/127.0.0.1:77",
            "0/1025/ff/127.0.0.1:77",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
