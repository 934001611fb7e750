//! What a row counts: which device, rail, peer and direction.

use crate::counter::Counter;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Send,
    Receive,
}

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The messages of all connections with a peer.
    Messages,
    /// The parts of messages on one data rail.
    Rail,
}

/// What a row counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: Kind,
    pub direction: Direction,
    /// The number of the device in its process.
    pub device: u16,
    /// The place of the rail among those that the two ends share; 0 for messages.
    pub rail: u8,
    /// Host and process of the peer, as `host:process`.
    pub peer: String,
    /// The name of the device, or of the rail.
    pub name: String,
}

/// Whether a row counts, in its first word's first byte.
const USED: u64 = 1;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const MESSAGES: u64 = 1;
const RAIL: u64 = 2;

impl Direction {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

impl Kind {
    /// The counters that rows of this kind have.
    pub const fn counters(self) -> &'static [Counter] {
        match self {
            Self::Messages => &[
                Counter::Messages,
                Counter::Bytes,
                Counter::Inline,
                Counter::Retries,
                Counter::WaitsReceive,
                Counter::WaitsCredit,
                Counter::WaitsRoom,
                Counter::WaitsWindow,
                Counter::WaitsQueue,
                Counter::Stalls,
            ],
            Self::Rail => &[
                Counter::Parts,
                Counter::Bytes,
                Counter::Refused,
                Counter::Failed,
                Counter::Failovers,
                Counter::SlowMillis,
            ],
        }
    }
}

impl Key {
    /// The first word of a row.
    pub fn head(&self) -> u64 {
        let kind = match self.kind {
            Kind::Messages => MESSAGES,
            Kind::Rail => RAIL,
        };
        let direction = match self.direction {
            Direction::Send => SEND,
            Direction::Receive => RECEIVE,
        };
        USED | kind << 8
            | direction << 16
            | u64::from(self.rail) << 24
            | u64::from(self.device) << 32
    }

    /// The key that a row has; None for a row that is not used, or that no version of ours has written.
    pub fn of(head: u64, peer: String, name: String) -> Option<Self> {
        let byte = |shift: u32| head >> shift & 0xff;
        let kind = match byte(8) {
            MESSAGES => Kind::Messages,
            RAIL => Kind::Rail,
            _ => return None,
        };
        let direction = match byte(16) {
            SEND => Direction::Send,
            RECEIVE => Direction::Receive,
            _ => return None,
        };
        let rail = u8::try_from(byte(24)).ok()?;
        let device = u16::try_from(head >> 32).ok()?;
        (byte(0) == USED).then_some(Self { kind, direction, device, rail, peer, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        for kind in [Kind::Messages, Kind::Rail] {
            for direction in [Direction::Send, Direction::Receive] {
                let (peer, name) = ("host:7".to_owned(), "net eth0".to_owned());
                let key = Key { kind, direction, device: u16::MAX, rail: 15, peer, name };
                let again = Key::of(key.head(), key.peer.clone(), key.name.clone());
                assert_eq!(again, Some(key));
            }
        }
        assert_eq!(Key::of(0, String::new(), String::new()), None);
        assert_eq!(Key::of(u64::MAX, String::new(), String::new()), None);
    }
}
