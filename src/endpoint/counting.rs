//! Counts messages per comm and parts per rail, into rows of `counter_pages`.

use counters::{Counter, Direction, Key, Kind, peer_text};
use proto::stall::WaitsFor;
use proto::{ChannelId, Flow, Moment, Slot};

use super::Endpoint;
use super::side::Side;
use crate::counter_pages::{Owned, Row};

/// One request in this many has its latency measured.
const SAMPLED: u16 = 16;

/// The counters of a comm.
#[derive(Debug, Default)]
pub(super) struct CommCounters {
    row: Option<Row>,
    /// The request whose latency is measured, if any, and when it began.
    sampled: Option<(u16, Moment)>,
    /// Requests begun.
    begun: u16,
}

impl CommCounters {
    pub(super) fn new(row: Option<Row>) -> Self {
        Self { row, ..Self::default() }
    }

    #[inline]
    pub(super) fn begun(&mut self, line: u16, now: Moment) {
        if self.begun.is_multiple_of(SAMPLED) {
            self.sampled = Some((line, now));
        }
        self.begun = self.begun.wrapping_add(1);
    }

    #[inline]
    pub(super) fn one(&self, counter: Counter) {
        if let Some(row) = &self.row {
            row.one(counter);
        }
    }

    #[inline]
    pub(super) fn inline(&self, inline: bool) {
        if inline {
            self.one(Counter::Inline);
        }
    }

    /// Receives of one request have ended, of which so many messages came inline.
    #[inline]
    pub(super) fn received(&self, inline: u64) {
        if inline > 0
            && let Some(row) = &self.row
        {
            row.add(Counter::Inline, inline);
        }
    }

    /// The end of a request is reported to NCCL.
    #[inline]
    pub(super) fn ended(&mut self, line: u16, (messages, bytes): (u64, u64), now: Moment) {
        let Some(row) = &self.row else { return };
        row.add(Counter::Messages, messages);
        row.add(Counter::Bytes, bytes);
        if let Some((_, began)) = self.sampled.take_if(|(sampled, _)| *sampled == line) {
            row.latency(now.since(began));
        }
    }
}

/// The rows of one direction of a channel, made with its first connection.
#[derive(Debug, Default)]
pub(super) struct Rows {
    messages: Option<Owned>,
    /// By data rail of the channel. None: there was no memory for the row.
    rails: Vec<Option<Owned>>,
}

impl Rows {
    /// Counts a part of a message on this rail.
    #[inline]
    pub(super) fn part(&self, rail: u8, bytes: u64) {
        if let Some(row) = self.rails.get(usize::from(rail)).and_then(Option::as_ref) {
            row.row().one(Counter::Parts);
            row.row().add(Counter::Bytes, bytes);
        }
    }

    #[cold]
    pub(super) fn on_rail(&self, rail: u8, counter: Counter) {
        self.add_on_rail(rail, counter, 1);
    }

    #[cold]
    pub(super) fn add_on_rail(&self, rail: u8, counter: Counter, more: u64) {
        if let Some(row) = self.rails.get(usize::from(rail)).and_then(Option::as_ref) {
            row.row().add(counter, more);
        }
    }
}

impl Endpoint {
    /// The counters for a comm on this channel.
    #[cold]
    pub(super) fn tally(&mut self, channel: ChannelId, side: Side) -> CommCounters {
        let (device, label) = (self.device.number, self.device.label);
        let direction = match side {
            Side::Send => Direction::Send,
            Side::Receive => Direction::Receive,
        };
        let Some((peer, nics)) = self.executor.peer_and_nics(channel) else {
            return CommCounters::default();
        };
        let key = |kind, rail, name: &str| Key {
            kind,
            direction,
            device,
            rail,
            peer: peer_text(&peer.name.host, peer.name.number, peer.name.namespace()),
            name: cut(name),
        };
        let rows = match side {
            Side::Send => &mut peer.sends,
            Side::Receive => &mut peer.receives,
        };
        if rows.messages.is_none() {
            let rail = |(rail, lane): (u8, &super::lane::Lane)| {
                Owned::new(key(Kind::Rail, rail, &nics[lane.nic].label))
            };
            rows.messages = Owned::new(key(Kind::Messages, 0, label.text()));
            rows.rails = (0..).zip(&peer.data).map(rail).collect();
        }
        CommCounters::new(rows.messages.as_ref().map(|row| row.row().clone()))
    }

    /// Counts the packets that were retransmitted since the last call.
    #[cold]
    pub(super) fn count_resent(&mut self) {
        for peer in self.executor.channel_ends_mut() {
            let Some(channel) = self.core.channel(peer.channel) else { continue };
            // Without a connection there is no row yet.
            let Some(row) = row_of_packets(&peer.sends, &peer.receives) else { continue };
            let resent = channel.resent();
            let more = resent.wrapping_sub(std::mem::replace(&mut peer.resent, resent));
            if more > 0 {
                row.add(Counter::Retries, more.into());
            }
        }
    }

    /// Counts why isend or irecv returned NULL.
    #[cold]
    pub(super) fn count_wait(&mut self, slot: Slot) {
        let Some(comm) = self.comms.at_mut(slot) else { return };
        comm.seen.refused();
        let counter = match self.core.connection(slot) {
            Some(Flow::Send(flow)) => match flow.refused_for() {
                WaitsFor::Receive | WaitsFor::Group => Counter::WaitsReceive,
                WaitsFor::Credit => Counter::WaitsCredit,
                _ => Counter::WaitsRoom,
            },
            Some(Flow::Receive(flow)) if flow.has_room() => Counter::WaitsQueue,
            _ => Counter::WaitsWindow,
        };
        comm.tally.one(counter);
    }
}

/// The row for packets to a peer, which both directions have.
fn row_of_packets<'a>(sends: &'a Rows, receives: &'a Rows) -> Option<&'a Row> {
    sends.messages.as_ref().or(receives.messages.as_ref()).map(Owned::row)
}

/// A name, cut to the room in a row.
fn cut(name: &str) -> String {
    let end = (0..=name.len().min(32)).rev().find(|end| name.is_char_boundary(*end));
    name[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter_pages;

    #[test]
    fn a_rail_without_a_row_does_not_move_the_counts_of_others() {
        const PEER: &str = "parts that are counted:1";
        let owned = |rail| {
            let (kind, direction, name) = (Kind::Rail, Direction::Send, "a device".to_owned());
            Owned::new(Key { kind, direction, device: 0, rail, peer: PEER.to_owned(), name })
        };
        let rows = Rows { messages: None, rails: vec![owned(0), None, owned(2)] };
        for (rail, bytes) in [(0, 1), (1, 10), (2, 100), (3, 1000)] {
            rows.part(rail, bytes);
        }
        let its = counter_pages::all().into_iter().filter(|row| row.key.peer == PEER);
        let counted: Vec<_> = its.map(|row| (row.key.rail, row.get(Counter::Bytes))).collect();
        assert_eq!(counted, [(0, 1), (2, 100)]);
    }

    #[test]
    fn packets_to_a_peer_that_only_sends_are_counted_where_its_messages_are() {
        const PEER: &str = "packets that are counted:1";
        let rows = |direction| {
            let (kind, peer, name) = (Kind::Messages, PEER.to_owned(), "a device".to_owned());
            let key = Key { kind, direction, device: 0, rail: 0, peer, name };
            Rows { messages: Owned::new(key), rails: Vec::new() }
        };
        let none = Rows::default();
        let (sends, receives) = (rows(Direction::Send), rows(Direction::Receive));
        let counted = || {
            let all = counter_pages::all().into_iter();
            let its = all.filter(|row| row.key.peer == PEER);
            its.map(|row| (row.key.direction, row.get(Counter::Retries))).collect::<Vec<_>>()
        };
        let add = |sends, receives| {
            row_of_packets(sends, receives).expect("a row").add(Counter::Retries, 2);
        };
        add(&none, &receives);
        assert_eq!(counted(), [(Direction::Send, 0), (Direction::Receive, 2)]);
        add(&sends, &receives);
        assert_eq!(counted(), [(Direction::Send, 2), (Direction::Receive, 2)]);
        assert!(row_of_packets(&none, &none).is_none());
    }
}
