//! Messages between two ranks: begun, matched and ended, even if they are not received any more.

use std::fmt;

use super::Mesh;
use super::header::{self, Header, Kind, Name, Route, SMALL, SMALL_OBJECT, Space};
use super::matching::{Due, Envelope, Found, Matching, OpId, Wanted};
use super::peer::{Peer, Way};
use super::slots::Letter;
use crate::error::GroupError;
use crate::loader::{DataType, Place};

/// The memory of a message that announces others: the packet of an object, which its long leaves follow.
pub(crate) trait Announces: fmt::Debug + Send {
    /// Memory for a message of `bytes` bytes, and the place to receive it into. The place is empty if no valid message is so long.
    fn room(bytes: usize) -> Result<(Self, Place), GroupError>
    where
        Self: Sized;

    /// The space and number of the messages that the received message announces, if any.
    fn announces(&self) -> Option<(Space, Count)>;
}

/// A number of messages, at least 1.
#[derive(Debug)]
pub(crate) struct Count(pub(crate) usize);

impl Due for Count {
    fn came(&mut self, _: usize, _: u64) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

/// A receive in progress whose caller has gone: the bytes that its message announces are not received.
#[derive(Debug)]
pub(super) struct Dropped {
    op: OpId,
    scope: u32,
    memory: Box<dyn Announces>,
}

/// A message that no caller receives any more. It is received when it comes: only the message itself shows what it announces.
#[derive(Debug)]
pub(super) struct Unwanted {
    wanted: Wanted,
    room: fn(usize) -> Result<Room, GroupError>,
}

/// Memory for a message, and its place.
type Room = (Box<dyn Announces>, Place);

impl Mesh {
    /// Begins a send; [`Mesh::ended`] reports when its memory is free.
    pub(crate) fn send(
        &mut self,
        to: usize,
        name: Name,
        element: DataType,
        place: Place,
    ) -> Result<OpId, GroupError> {
        let op = self.send_with_next(to, name, element, place)?;
        self.with(to, |peer, shared| peer.send_queued(shared))?;
        Ok(op)
    }

    /// Begins a send of a message that another message to this peer follows at once, so that both may leave together. Without another one
    /// it leaves at the next poll.
    pub(crate) fn send_with_next(
        &mut self,
        to: usize,
        Name { scope, tag, space, note }: Name,
        element: DataType,
        place: Place,
    ) -> Result<OpId, GroupError> {
        self.reach(to)?;
        let op = self.matching.begin();
        let route = self.route(to, space, place);
        let header = Header {
            kind: route.map_or(Kind::Short, Kind::Long),
            element: header::type_number(element),
            scope,
            tag,
            len: place.len() as u64,
            space,
            note,
        };
        if to == self.rank {
            self.matching.own(op, to, header, place);
            return Ok(op);
        }
        let queued = self.with(to, |peer, shared| {
            match route {
                None => peer.queue(Letter { header, body: place, op: Some(op) }, shared)?,
                Some(route) => {
                    shared.matching.travels(op, route);
                    peer.queue(Letter { header, body: Place::empty(), op: None }, shared)?;
                    peer.queue_long(route, place, op, shared)?;
                }
            }
            Ok(Some(()))
        })?;
        if queued.is_none() {
            // The peer has left, and the message was not queued, so nothing else ends the operation.
            self.matching.lose(op, to);
        }
        Ok(op)
    }

    /// How the bytes of a long message travel. None for a message that fits in a slot, and for a message to this rank.
    fn route(&mut self, to: usize, space: Space, place: Place) -> Option<Route> {
        let small = if space.is_of_objects() { SMALL_OBJECT } else { SMALL };
        if place.len() <= small || to == self.rank {
            None
        } else if self.registry.has(place) {
            Some(Route::Direct)
        } else {
            Some(Route::Staged)
        }
    }

    /// Begins a receive.
    pub(crate) fn receive(&mut self, wanted: Wanted) -> Result<OpId, GroupError> {
        self.check()?;
        if let Some(source) = wanted.source
            && source != self.rank
        {
            self.with(source, |peer, shared| peer.open(Way::Small, shared))?;
        }
        begin_receive(&mut self.peers, &mut self.matching, wanted)
    }

    /// Begins a receive of a message that was announced. If there is no memory for an earlier message, the receive waits.
    pub(crate) fn receive_announced(&mut self, wanted: Wanted) -> Result<OpId, GroupError> {
        self.check()?;
        Ok(match_receive(&mut self.peers, &mut self.matching, wanted))
    }

    pub(crate) fn ended(&mut self, op: OpId) -> Option<Result<Envelope, GroupError>> {
        self.matching.ended(op)
    }

    /// Whether an operation without a waiting caller may still access its memory. An operation that has ended is forgotten.
    pub(crate) fn is_open(&mut self, op: OpId) -> bool {
        self.failure.is_none() && self.matching.ended(op).is_none()
    }

    /// The caller has dropped the operation. Returns whether its memory is free.
    pub(crate) fn abandon(&mut self, op: OpId) -> bool {
        self.matching.abandon(op) || self.failure.is_some()
    }

    /// Removes the operation if it has ended, or is a receive without a message so far. Returns whether its memory is free.
    pub(crate) fn take_back(&mut self, op: OpId) -> bool {
        self.matching.take_back(op) || self.failure.is_some()
    }

    /// Drops all messages of a space: those that have arrived, and those that will, which `due` counts.
    pub(crate) fn cancel(&mut self, scope: u32, space: Space, mut due: impl Due + 'static) {
        let (element, place) = (DataType::U8, Place::empty());
        let all = Wanted { scope, space, source: None, tag: None, element, place };
        while let Some((envelope, _)) = self.matching.probe(&all) {
            let op = match_receive(&mut self.peers, &mut self.matching, all);
            self.matching.abandon(op);
            if due.came(envelope.source, envelope.note) {
                return;
            }
        }
        for rank in 0..self.left.len() {
            if self.left[rank] && self.is_lost(rank, Way::Small) && due.lost(rank) {
                return;
            }
        }
        self.matching.cancel(scope, space, Box::new(due));
    }

    /// Ends this rank's messages to itself in a group whose last handle is dropped: no call receives them.
    pub(crate) fn drop_own(&mut self, scope: u32) {
        self.matching.drop_own(scope);
    }

    /// Removes the operation if it is a receive without a message so far. Returns whether it was.
    pub(crate) fn recall(&mut self, op: OpId) -> bool {
        self.matching.recall(op)
    }

    /// The caller of a receive has gone. The memory is kept until the message is received; the messages that it announces are then dropped.
    pub(crate) fn drop_receive(&mut self, op: OpId, scope: u32, memory: impl Announces + 'static) {
        self.dropped.push(Dropped { op, scope, memory: Box::new(memory) });
        self.end_dropped();
    }

    pub(super) fn end_dropped(&mut self) {
        for index in (0..self.dropped.len()).rev() {
            let Some(ended) = self.matching.ended(self.dropped[index].op) else { continue };
            let Dropped { scope, memory, .. } = self.dropped.swap_remove(index);
            if ended.is_ok()
                && let Some((space, count)) = memory.announces()
            {
                self.cancel(scope, space, count);
            }
        }
    }

    /// Drops the next message that a receive for `wanted` would take, when it comes, with those that it announces. The message is received
    /// into memory of the type `M`.
    pub(crate) fn refuse<M: Announces + 'static>(&mut self, wanted: Wanted) {
        if self.failure.is_some() {
            return;
        }
        let room = |bytes| M::room(bytes).map(|(memory, place)| (Box::new(memory) as _, place));
        self.unwanted.push(Unwanted { wanted, room });
        self.drop_unwanted();
    }

    pub(super) fn drop_unwanted(&mut self) {
        let mut unwanted = std::mem::take(&mut self.unwanted);
        unwanted.retain(|unwanted| !self.drop_one(unwanted));
        self.unwanted = unwanted;
    }

    /// Receives the message, to drop it. Returns whether it has come, or never will.
    fn drop_one(&mut self, Unwanted { wanted, room }: &Unwanted) -> bool {
        let Some((envelope, _)) = self.matching.probe(wanted) else {
            let source = wanted.source.filter(|rank| *rank != self.rank);
            return source.is_some_and(|rank| self.is_lost(rank, Way::Small));
        };
        // Without memory for the message it waits: it must be received, because it says which messages it announces.
        let Ok((memory, place)) = room(envelope.bytes) else { return false };
        let (source, tag) = (Some(envelope.source), Some(envelope.tag));
        let wanted = Wanted { source, tag, place, ..*wanted };
        let op = match_receive(&mut self.peers, &mut self.matching, wanted);
        self.dropped.push(Dropped { op, scope: wanted.scope, memory });
        self.end_dropped();
        true
    }

    /// The counts of pieces of long messages to this peer, and from it, that were posted and completed on the lanes by which the messages of
    /// these operations travel. A lane keeps the order of its messages, so a piece of another message is progress too.
    pub(crate) fn pieces_of(
        &mut self,
        rank: usize,
        ops: impl IntoIterator<Item = OpId>,
    ) -> (u64, u64) {
        let mut routes = [false; 2];
        for route in ops.into_iter().filter_map(|op| self.matching.route(op)) {
            routes[route as usize] = true;
        }
        self.peer(rank).map_or((0, 0), |peer| peer.pieces_by(routes))
    }

    pub(crate) fn probe(&self, wanted: &Wanted) -> Option<(Envelope, u8)> {
        self.matching.probe(wanted)
    }

    /// Removes the message that [`Mesh::probe`] finds, if it is a short one; returns it with its memory, for [`Mesh::give_back`].
    pub(crate) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, Vec<u8>)> {
        self.matching.take(wanted)
    }

    pub(crate) fn give_back(&mut self, bytes: Vec<u8>) {
        self.matching.give_back(bytes);
    }
}

#[cfg(test)]
impl Mesh {
    /// As [`Mesh::pieces_of`], of all lanes.
    pub(crate) fn pieces(&mut self, rank: usize) -> (u64, u64) {
        self.peer(rank).map_or((0, 0), |peer| peer.pieces_by([true; 2]))
    }

    /// Announces a message of more bytes than any memory has; the bytes never come.
    pub(crate) fn announce_huge(&mut self, to: usize, scope: u32) {
        let (kind, space, len) = (Kind::Long(Route::Direct), Space::MESSAGES, isize::MAX as u64);
        let header = Header { kind, element: 0, scope, tag: 0, len, space, note: 0 };
        let letter = Letter { header, body: Place::empty(), op: None };
        self.with(to, |peer, shared| peer.send(letter, shared)).unwrap();
    }
}

/// Posts a receive, after memory is made for earlier messages that no receive has taken. After an error the receive has taken no message,
/// and all messages can still be received.
fn begin_receive(
    peers: &mut [Option<Peer>],
    matching: &mut Matching,
    wanted: Wanted,
) -> Result<OpId, GroupError> {
    if let Some((source, position)) = matching.waiting_long(&wanted)
        && let Some(Some(peer)) = peers.get_mut(source)
    {
        peer.make_room(position)?;
    }
    Ok(match_receive(peers, matching, wanted))
}

/// Posts a receive. If there is no memory for earlier messages that no receive has taken, its message waits for them.
fn match_receive(peers: &mut [Option<Peer>], matching: &mut Matching, wanted: Wanted) -> OpId {
    let op = matching.begin();
    if let Found::Long { source, position, claim } = matching.receive(op, wanted) {
        match peers.get_mut(source) {
            Some(Some(peer)) => peer.claim(position, claim, matching),
            // The peer was forgotten, and the bytes of the message with it.
            _ => matching.lose(op, source),
        }
    }
    op
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::CLAIMED_BYTES_MAX;

    /// More than any memory, as a peer may say.
    const HUGE: usize = isize::MAX as usize;

    fn header(tag: u32, len: usize) -> Header {
        let (kind, element) = (Kind::Long(Route::Direct), header::type_number(DataType::U8));
        let (space, len) = (Space::MESSAGES, len as u64);
        Header { kind, element, scope: 0, tag, len, space, note: 0 }
    }

    /// A peer that has announced messages of these lengths, with tags from 0.
    fn announced(lengths: &[usize]) -> ([Option<Peer>; 2], Matching) {
        let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
        for (tag, len) in (0..).zip(lengths) {
            peer.announced(Route::Direct, header(tag, *len), &mut matching).unwrap();
        }
        ([None, Some(peer)], matching)
    }

    fn wanted(tag: u32, room: &mut [u8]) -> Wanted {
        let (space, element, place) = (Space::MESSAGES, DataType::U8, Place::writing(room));
        Wanted { scope: 0, space, source: Some(1), tag: Some(tag), element, place }
    }

    #[test]
    fn a_receive_that_finds_no_memory_for_an_earlier_message_takes_none() {
        let (mut peers, mut matching) = announced(&[HUGE, 100_000]);
        let mut room = vec![0; 100_000];
        let wanted = wanted(1, &mut room);
        for _ in 0..2 {
            let ended = begin_receive(&mut peers, &mut matching, wanted);
            assert!(matches!(ended, Err(GroupError::System { .. })), "{ended:?}");
            assert_eq!(
                peers[1].as_ref().unwrap().claims(),
                0,
                "no message has the receive's place"
            );
            assert!(matching.probe(&wanted).is_some(), "the message can still be received");
        }
    }

    #[test]
    fn no_memory_is_made_for_an_earlier_message_longer_than_the_limit() {
        let (mut peers, mut matching) = announced(&[CLAIMED_BYTES_MAX + 1, 100_000]);
        let mut room = vec![0; 100_000];
        let why = begin_receive(&mut peers, &mut matching, wanted(1, &mut room)).unwrap_err();
        assert!(why.to_string().ends_with("bytes, more than 68719476736"), "{why}");
    }

    #[test]
    fn a_message_that_its_receive_refuses_needs_no_memory() {
        let (mut peers, mut matching) = announced(&[HUGE, 100_000]);
        let (mut short, mut room) = ([0; 4], vec![0; 100_000]);
        let (refused, taken) = (wanted(0, &mut short), wanted(1, &mut room));
        begin_receive(&mut peers, &mut matching, refused).unwrap();
        begin_receive(&mut peers, &mut matching, taken).unwrap();
        assert_eq!(peers[1].as_ref().unwrap().claims(), 2);
    }

    #[test]
    fn a_message_with_a_receive_waits_for_one_before_it_that_finds_no_memory() {
        let (mut peers, mut matching) = announced(&[]);
        let (mut short, mut room) = ([0; 4], vec![0; 100_000]);
        begin_receive(&mut peers, &mut matching, wanted(1, &mut room)).unwrap();
        let peer = peers[1].as_mut().unwrap();
        peer.announced(Route::Direct, header(0, HUGE), &mut matching).unwrap();
        peer.announced(Route::Direct, header(1, 100_000), &mut matching).unwrap();
        assert_eq!((peer.claims(), peer.posted()), (1, 0));
        begin_receive(&mut peers, &mut matching, wanted(0, &mut short)).unwrap();
        let peer = peers[1].as_ref().unwrap();
        assert_eq!(
            (peer.claims(), peer.posted()),
            (2, 2),
            "both are matched and posted, in their order"
        );
    }

    #[test]
    fn a_long_message_of_a_peer_that_is_forgotten_is_lost_with_its_receive() {
        // The first forgets the whole peer, the second all but its pairs.
        let forget: [fn(&mut Option<Peer>); 2] =
            [|peer| *peer = None, |peer| drop(peer.as_mut().unwrap().take_lanes(0))];
        for forget in forget {
            let (mut peers, mut matching) = announced(&[100_000]);
            forget(&mut peers[1]);
            let mut room = vec![0; 100_000];
            let from_any = Wanted { source: None, ..wanted(0, &mut room) };
            let op = begin_receive(&mut peers, &mut matching, from_any).unwrap();
            let ended = matching.ended(op);
            assert!(matches!(ended, Some(Err(GroupError::PeerLost { rank: 1, .. }))), "{ended:?}");
            assert!(
                matching.probe(&from_any).is_none(),
                "a later receive does not find the lost message"
            );
        }
    }
}
