//! What a row counts: which device, rail, peer and direction.

use crate::counter::Counter;
use crate::layout::PEER_BYTES;

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

/// What a row counts. In the order of its fields the messages with a peer come before the rails that carry them, and these are together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The number of the device in its process.
    pub device: u16,
    /// Host and process of the peer, by [`peer_text`].
    pub peer: String,
    pub direction: Direction,
    pub kind: Kind,
    /// The place of the rail among those that the two ends share; 0 for messages.
    pub rail: u8,
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

/// `host:process`, or `host:process@namespace` with the PID namespace that distinguishes two processes, cut to the size that a row has. The
/// middle of a long host name is left out: such names differ at their ends.
pub fn peer_text(host: &str, process: u32, namespace: Option<u64>) -> String {
    let namespace = namespace.map_or_else(String::new, |namespace| format!("@{namespace}"));
    let process = format!(":{process}{namespace}");
    let room = PEER_BYTES - process.len();
    if host.len() <= room {
        return format!("{host}{process}");
    }
    let room = room - LEFT_OUT.len();
    let is_boundary = |at: &usize| host.is_char_boundary(*at);
    let first = (0..=room / 2).rev().find(is_boundary).unwrap_or(0);
    let last = host.len() - (room - room / 2);
    let last = (last..=host.len()).find(is_boundary).unwrap_or(host.len());
    format!("{}{LEFT_OUT}{}{process}", &host[..first], &host[last..])
}

const LEFT_OUT: &str = "..";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_hosts_with_long_names_have_texts_of_their_own() {
        let host = |last| format!("{}{last}", "a-job-of-some-team-".repeat(3) + "worker");
        let texts = [(1, 7), (1, 4_000_000_000), (2, 7)];
        let texts = texts.map(|(worker, process)| peer_text(&host(worker), process, None));
        for (at, text) in texts.iter().enumerate() {
            assert!(text.len() <= PEER_BYTES && !texts[..at].contains(text), "{texts:?}");
        }
        assert!(texts[1].ends_with(":4000000000"), "{texts:?}");
        assert_eq!(peer_text("node7", 12, None), "node7:12");
        assert_eq!(peer_text("node7", 12, Some(34)), "node7:12@34");
        let cut = peer_text(&"é".repeat(32), 12, None);
        assert!(cut.len() <= PEER_BYTES && cut.contains("é..é"), "{cut}");
        let longest = peer_text(&host(1), u32::MAX, Some(u64::MAX));
        assert!(longest.len() <= PEER_BYTES && longest.contains("r1:4294967295@"), "{longest}");
    }

    #[test]
    fn rows_of_one_peer_and_direction_are_together_and_messages_come_before_their_rails() {
        let key = |(device, peer, direction, kind, rail): (u16, &str, Direction, Kind, u8)| {
            let (peer, name) = (peer.to_owned(), String::new());
            Key { kind, direction, device, rail, peer, name }
        };
        let (send, receive) = (Direction::Send, Direction::Receive);
        let ordered = [
            (0, "a:1", send, Kind::Messages, 0),
            (0, "a:1", send, Kind::Rail, 0),
            (0, "a:1", send, Kind::Rail, 1),
            (0, "a:1", receive, Kind::Messages, 0),
            (0, "b:1", send, Kind::Messages, 0),
            (1, "a:1", send, Kind::Messages, 0),
        ]
        .map(key);
        assert!(ordered.is_sorted(), "{ordered:#?}");
    }

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
