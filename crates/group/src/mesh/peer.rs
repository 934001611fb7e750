//! Another rank: its lanes, and how they are opened.

mod ending;
mod farewell;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(super) use farewell::ANSWER;
use farewell::Farewell;

use super::header::{Header, Kind, Route};
use super::lane::{Lane, tag_of};
use super::long::Long;
use super::long_parts::PartReceiver;
use super::matching::{Claim, Matching, OpId, Position};
use super::opening::Opening;
use super::pair::{self, Pair, PairName};
use super::slots::{Arrival, Letter, SLOTS, SlotReceiver, SlotSender};
use super::staged::StagedReceiver;
use super::{Call, Moved, Shared};
use crate::bootstrap::Remote;
use crate::error::GroupError;
use crate::loader::{Buffer, Handle, Memory, Place, SendComm};

/// What a pair of comms carries. Each pair is opened on first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Small messages and headers, through slots.
    Small,
    /// Long messages between ranks, in the order of their headers.
    Long(Route),
    /// Long parts of collectives, in program order.
    Part(Route),
}

impl Way {
    pub(super) const ALL: [Self; 5] = [
        Self::Small,
        Self::Long(Route::Direct),
        Self::Part(Route::Direct),
        Self::Long(Route::Staged),
        Self::Part(Route::Staged),
    ];

    fn number(self) -> u8 {
        match self {
            Self::Small => 0,
            Self::Long(Route::Direct) => 1,
            Self::Part(Route::Direct) => 2,
            Self::Long(Route::Staged) => 3,
            Self::Part(Route::Staged) => 4,
        }
    }

    /// The index of the way in arrays.
    fn index(self) -> usize {
        self.number().into()
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    rank: usize,
    /// The device for this peer.
    device: usize,
    openings: [Opening; Way::ALL.len()],
    /// Whether any opening may be requested, so that a poll makes one test.
    is_opening: bool,
    // The order of these fields: the connection of small messages closes last, and its end tells a rank that leaves that the others have ended.
    /// Indexed by [`Route`].
    long: [Long; 2],
    /// Indexed by [`Route`].
    part_senders: [Lane<SendComm>; 2],
    /// Indexed by [`Route`].
    part_receivers: [PartReceiver; 2],
    pairs: Vec<Pair>,
    sender: SlotSender,
    receiver: SlotReceiver,
    /// The registry's numbers of the comms of the lanes above.
    comms: Vec<usize>,
    /// False once all lanes are closed except pairs and the lane of long parts that are due.
    has_lanes: bool,
    /// The peer has left, and its letters are read.
    has_left: bool,
    /// The last long part that the peer has begun to send, from its letter when it is asked, or leaves.
    last_part: Option<LastPart>,
    /// What the peer has sent and received, from its letter when it leaves.
    farewell: Farewell,
    /// The collective and the route of the last long part that this rank has begun to send.
    call: Option<(Call, Route)>,
    /// By way: nothing more comes from the peer. Other ways, and sends to the peer, may still complete.
    silent: [bool; Way::ALL.len()],
    /// Nothing more can be sent to the peer.
    is_closed: bool,
    /// The connection whose calls are being made. It stays set after an error, so that [`Peer::left`] knows which connection has ended.
    failing: Option<Failing>,
}

/// A long part that its rank has begun to send. Long parts have no header, so this says to which collective one belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastPart {
    route: Route,
    pub(super) scope: u32,
    /// The number of its collective in the group.
    pub(super) number: u32,
    pub(super) note: u64,
    /// The part's number among the long parts to this peer by this route.
    ordinal: u64,
}

impl LastPart {
    const BYTES: usize = 24;

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.scope.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.note.to_le_bytes());
        bytes[16..].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes
    }

    fn decode(route: Route, bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self { route, scope: word(0), number: word(4), note: long(8), ordinal: long(16) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Failing {
    /// Lanes that are open remain; the others are given up once the peer is known to have left.
    Opening,
    In(Way),
    /// A receive that was posted ahead, before it was known that the peer leaves. Messages that have come by that way can still be
    /// received.
    Ahead,
    Out,
}

impl Peer {
    pub(super) fn new(rank: usize, own: usize, device: usize) -> Self {
        let (sent, came) = (tag_of(own), tag_of(rank));
        Self {
            rank,
            device,
            openings: Default::default(),
            is_opening: false,
            long: [
                Long::new(rank, Lane::new(sent), Box::new(Lane::new(came))),
                Long::new(rank, Lane::new(sent), Box::new(StagedReceiver::new(came))),
            ],
            part_senders: Route::ALL.map(|route| Lane::of_parts(route, sent, rank)),
            part_receivers: Route::ALL.map(|route| PartReceiver::new(route, rank, came)),
            pairs: Vec::new(),
            sender: SlotSender::default(),
            receiver: SlotReceiver::default(),
            comms: Vec::new(),
            has_lanes: true,
            has_left: false,
            last_part: None,
            farewell: Farewell::default(),
            call: None,
            silent: [false; Way::ALL.len()],
            is_closed: false,
            failing: None,
        }
    }

    pub(super) fn device(&self) -> usize {
        self.device
    }

    /// Requests a pair of comms, once.
    pub(super) fn open(&mut self, way: Way, shared: &mut Shared<'_>) -> Result<(), GroupError> {
        let opening = &mut self.openings[way.index()];
        opening.request(self.rank, self.device, &[way.number()], shared)?;
        self.is_opening |= opening.is_requested();
        Ok(())
    }

    /// Handles a letter from the peer: its handle, the number of long parts that it has sent, its last long part, or a request for this
    /// rank's.
    pub(super) fn invited(
        &mut self,
        letter: &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        let nonsense =
            || GroupError::Bootstrap(format!("rank {} sent an invalid handle", self.rank));
        if let Some(letter) = pair::Letter::read(letter) {
            self.pair_letter(letter, shared);
            return Ok(());
        }
        if let Some(farewell) = Farewell::read(letter) {
            self.farewell = farewell;
            self.long[Route::Staged as usize].sent(farewell.staged);
            return Ok(());
        }
        let (number, bytes) = letter.split_first().ok_or_else(nonsense)?;
        let way = Way::ALL.into_iter().find(|way| way.number() == *number).ok_or_else(nonsense)?;
        if let Ok(sent) = bytes.try_into().map(u64::from_le_bytes) {
            match way {
                Way::Part(route) => self.part_receivers[route as usize].sent(sent),
                _ => self.openings[way.index()].taken_back(),
            }
            return Ok(());
        }
        if bytes.is_empty() {
            self.say_last_part(shared.place);
            return Ok(());
        }
        if let (Way::Part(route), Ok(part)) = (way, bytes.try_into()) {
            self.last_part = Some(LastPart::decode(route, part));
            return Ok(());
        }
        let handle = Handle(bytes.try_into().map_err(|_| nonsense())?);
        self.open(way, shared)?;
        self.openings[way.index()].invited(self.device, handle, shared);
        Ok(())
    }

    /// This rank leaves: small messages that wait for slots are not sent any more, which its farewell does not count.
    pub(super) fn drop_queued(&mut self, matching: &mut Matching) {
        self.sender.clear().for_each(|op| matching.lose(op, self.rank));
    }

    /// This rank leaves, and mails what the peer cannot find out: that nothing was sent by connections that are not open yet, and the
    /// number of long parts that were sent. Messages need no such letter: each is announced, and the peer sees the end of their
    /// connections. The peer answers the farewell once it has what the counts in [`Farewell`] say.
    pub(super) fn say_what_was_sent(&self, place: &mut Remote) {
        self.say_last_part(place);
        self.say_farewell(place);
        for way in Way::ALL {
            let opening = &self.openings[way.index()];
            let sent = match way {
                Way::Part(route) if !opening.is_closed() => {
                    self.part_senders[route as usize].done()
                }
                _ if opening.is_requested() && !self.is_open(way).0 => 0,
                _ => continue,
            };
            // Without a rendezvous the group has failed.
            let _ = place.mail(self.rank, &[&[way.number()][..], &sent.to_le_bytes()].concat());
        }
        self.pairs.iter().for_each(|pair| pair.leave(place));
    }

    /// Mails which long part this rank has begun to send last, if any.
    fn say_last_part(&self, place: &mut Remote) {
        let Some((Call { scope, number, what }, route)) = self.call else { return };
        let ordinal = self.part_senders[route as usize].pushed();
        let part = LastPart { route, scope, number, note: what.note(), ordinal };
        let way = Way::Part(route).number();
        // Without a rendezvous the group has failed.
        let _ = place.mail(self.rank, &[&[way][..], &part.encode()].concat());
    }

    /// Asks for the peer's last long part.
    pub(super) fn ask_for_last_part(&self, place: &mut Remote) {
        let _ = place.mail(self.rank, &[Way::Part(Route::Direct).number()]);
    }

    /// The peer's last long part, as far as is known, if this rank has not posted a receive for it.
    pub(super) fn unexpected_part(&self) -> Option<LastPart> {
        let expected = |route: Route| self.part_receivers[route as usize].expected();
        self.last_part.filter(|part| part.ordinal > expected(part.route))
    }

    /// Makes progress on everything. Returns whether anything moved.
    pub(super) fn progress(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let moved = self.move_all(shared);
        // After an error too: messages that were received before it count.
        let ended = self.end_long(shared.matching);
        Ok(moved? | ended)
    }

    fn move_all(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = self.is_opening && self.connect_all(shared)?;
        // At most `SLOTS` messages, so that a peer that sends all the time does not keep this poll.
        moved |= self.bring_in(SLOTS, shared)?;
        moved |= self.push_out(shared)?;
        for pair in &mut self.pairs {
            moved |= pair.progress();
        }
        self.pairs.retain(|pair| !pair.is_forgotten());
        Ok(moved)
    }

    fn push_out(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        if self.is_closed {
            return Ok(false);
        }
        self.failing = Some(Failing::Out);
        let mut moved = self.post_letters(shared.matching)?;
        moved |= self.sender.test()?;
        moved |= self.push_long(shared)?;
        moved |= self.push_parts(shared)?;
        self.failing = None;
        Ok(moved)
    }

    /// Sends long parts of collectives as far as possible now.
    fn push_parts(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        for sender in &mut self.part_senders {
            moved |= sender.progress(shared.registry)?;
        }
        Ok(moved)
    }

    /// Sends long messages as far as possible now.
    fn push_long(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        for long in &mut self.long {
            moved |= long.push_out(shared.registry)?;
        }
        Ok(moved)
    }

    /// Receives what has come; of messages in slots at most `most`.
    fn bring_in(&mut self, most: usize, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut parts = false;
        for route in Route::ALL {
            parts |= self.bring_parts(route, shared)?;
        }
        let small = self
            .bring_by(Way::Small, |peer| Ok(peer.take_in(most, shared)? | peer.receiver.post()?))?;
        let mut long = false;
        for route in Route::ALL {
            let bring_in = |peer: &mut Self| peer.long[route as usize].bring_in(shared.registry);
            long |= self.bring_by(Way::Long(route), bring_in)?;
        }
        Ok(parts | small | long)
    }

    /// Receives long parts of collectives.
    pub(super) fn bring_parts(
        &mut self,
        route: Route,
        shared: &mut Shared<'_>,
    ) -> Result<bool, GroupError> {
        self.bring_by(Way::Part(route), |peer| {
            peer.part_receivers[route as usize].progress(shared.registry)
        })
    }

    /// Receives by one way, unless nothing more comes by it.
    #[inline]
    fn bring_by(
        &mut self,
        way: Way,
        receive: impl FnOnce(&mut Self) -> Result<bool, GroupError>,
    ) -> Result<bool, GroupError> {
        if self.silent[way.index()] {
            return Ok(false);
        }
        self.failing = Some(Failing::In(way));
        let moved = receive(self)?;
        self.failing = None;
        Ok(moved)
    }

    /// Receives from this peer, for a rank that waits for a message from it, with the fewest calls of the plugin. A short message does not
    /// count as progress: the wait ends if it is the awaited one.
    pub(super) fn attend(&mut self, shared: &mut Shared<'_>) -> Result<Moved, GroupError> {
        let attended = self.move_awaited(shared);
        // As in `progress`.
        let ended = self.end_long(shared.matching);
        let (parts, any) = attended?;
        Ok(match (parts || ended, any) {
            (true, _) => Moved::Here,
            (false, true) => Moved::Elsewhere,
            (false, false) => Moved::Nothing,
        })
    }

    /// Returns whether a part or a piece has moved, and whether anything was received.
    #[inline]
    fn move_awaited(&mut self, shared: &mut Shared<'_>) -> Result<(bool, bool), GroupError> {
        let before = (self.receiver.parts(), self.received());
        // The group's own thread cannot open connections while a collective holds the lock.
        let opened = self.is_opening && self.connect_all(shared)?;
        let any = self.bring_in(1, shared)?;
        let mut parts = opened || (self.receiver.parts(), self.received()) != before;
        if !self.is_closed {
            self.failing = Some(Failing::Out);
            parts |= self.push_parts(shared)?;
            parts |= self.push_long(shared)?;
            if self.sender.lacks_slots() {
                parts |= self.sender.test()?;
                parts |= self.post_letters(shared.matching)?;
            }
            self.failing = None;
        }
        Ok((parts, any))
    }

    /// A count that changes whenever a piece is received.
    fn received(&self) -> u64 {
        self.part_receivers.iter().map(PartReceiver::moves).sum::<u64>() + self.pieces().1
    }

    /// A count that changes whenever a connection to the peer opens, or something that is sent there moves.
    pub(super) fn sends(&self) -> u64 {
        let open = Way::ALL.into_iter().filter(|way| self.is_open(*way).0).count() as u64;
        let parts = self.part_senders.iter().map(Lane::moves).sum::<u64>();
        let pairs = self.pairs.iter().map(Pair::sends).sum::<u64>();
        open + self.sender.moves() + self.pieces().0 + parts + pairs
    }

    /// Continues the openings that are requested.
    #[cold]
    fn connect_all(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        for way in Way::ALL {
            if self.openings[way.index()].is_requested() {
                moved |= self.connect(way, shared)?;
            }
        }
        self.is_opening = self.openings.iter().any(Opening::is_requested);
        Ok(moved)
    }

    /// Which directions of a way are open: to the peer, and from it.
    fn is_open(&self, way: Way) -> (bool, bool) {
        match way {
            Way::Small => (self.sender.is_open(), self.receiver.is_open()),
            Way::Long(route) => self.long[route as usize].is_open(),
            Way::Part(route) => {
                let route = route as usize;
                (self.part_senders[route].is_open(), self.part_receivers[route].is_open())
            }
        }
    }

    fn connect(&mut self, way: Way, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let is_open = self.is_open(way);
        self.failing = Some(Failing::Opening);
        let (send, receive) = self.openings[way.index()].brought(is_open)?;
        let moved = send.is_some() || receive.is_some();
        let mut number = || {
            *shared.comms += 1;
            self.comms.push(*shared.comms - 1);
            *shared.comms - 1
        };
        self.failing = None;
        if let Some(end) = send {
            match way {
                Way::Small => self.sender.open(end, tag_of(shared.rank))?,
                Way::Long(route) => self.long[route as usize].open_send(end, number()),
                Way::Part(route) => self.part_senders[route as usize].open(end, number()),
            }
        }
        if let Some(end) = receive {
            self.failing = Some(Failing::In(way));
            match way {
                Way::Small => self.receiver.open(end, tag_of(self.rank))?,
                Way::Long(route) => {
                    shared.lending.measure(self.device, &end)?;
                    self.long[route as usize].open_receive(end, number())?;
                }
                Way::Part(route) => self.part_receivers[route as usize].open(end, number())?,
            }
        }
        self.failing = None;
        Ok(moved)
    }

    fn take_in(&mut self, most: usize, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let (mut any, mut left) = (false, most);
        while left > 0 {
            left -= 1;
            let (moved, arrival) = self.receiver.arrived()?;
            if !moved {
                break;
            }
            any = true;
            let Some(arrival) = arrival else { continue };
            match arrival.header.kind {
                Kind::Long(route) => {
                    self.open(Way::Long(route), shared)?;
                    self.announced(route, arrival.header, shared.matching)?;
                    // Receives for both borders of a halo are then announced together.
                    left += usize::from(self.receiver.has_rest());
                }
                _ => shared.matching.short(self.rank, arrival.header, arrival.body),
            }
            self.receiver.release(arrival)?;
        }
        Ok(any)
    }

    /// The header of a long message has come.
    pub(super) fn announced(
        &mut self,
        route: Route,
        header: Header,
        matching: &mut Matching,
    ) -> Result<(), GroupError> {
        self.long[route as usize].announced(route, header, matching)
    }

    /// Makes memory for the messages before this one that no receive has taken. After an error no message is matched or received.
    pub(super) fn make_room(&mut self, position: Position) -> Result<(), GroupError> {
        self.long[position.route as usize].make_room(position.ordinal)
    }

    /// Matches a receive with a long message whose header came earlier.
    pub(super) fn claim(&mut self, position: Position, claim: Claim, matching: &mut Matching) {
        self.long[position.route as usize].claim(position.ordinal, claim, matching);
    }

    /// Ends the operations of long messages that were received or sent, and the receives of messages that never come.
    fn end_long(&mut self, matching: &mut Matching) -> bool {
        let mut moved = false;
        for route in Route::ALL {
            moved |= self.long[route as usize].end(matching);
            // Once all is read, the connections are closed instead, which ends these receives.
            if self.silent[Way::Long(route).index()] && !self.is_read() {
                moved |= self.long[route as usize].lose(matching);
            }
        }
        moved
    }

    fn post_letters(&mut self, matching: &mut Matching) -> Result<bool, GroupError> {
        self.sender.post(|op| matching.sent(op))
    }

    /// Sends a message through a slot, now if possible.
    pub(super) fn send(
        &mut self,
        letter: Letter,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.queue(letter, shared)?;
        self.send_queued(shared)
    }

    /// Queues a message for a slot; [`Peer::send_queued`] or the next poll sends it.
    pub(super) fn queue(
        &mut self,
        letter: Letter,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.open(Way::Small, shared)?;
        self.sender.push(letter);
        Ok(())
    }

    /// Queues the bytes of a long message, whose header is queued.
    pub(super) fn queue_long(
        &mut self,
        route: Route,
        place: Place,
        op: OpId,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.open(Way::Long(route), shared)?;
        self.long[route as usize].queue(place, op);
        Ok(())
    }

    /// Sends queued messages as far as possible now: first those in slots, then a piece of long messages.
    pub(super) fn send_queued(&mut self, shared: &mut Shared<'_>) -> Result<(), GroupError> {
        // Callers may use the memory of earlier messages again.
        if self.is_closed {
            return Ok(());
        }
        self.failing = Some(Failing::Out);
        self.post_letters(shared.matching)?;
        self.push_long(shared)?;
        self.failing = None;
        Ok(())
    }

    /// Queues a long part of this collective. Returns its number by this route.
    pub(super) fn send_part(
        &mut self,
        route: Route,
        call: Call,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Part(route), shared)?;
        // This poll announces receives that are posted, so that the peer can send into them while this rank sends.
        self.bring_parts(route, shared)?;
        self.call = Some((call, route));
        let sender = &mut self.part_senders[route as usize];
        let number = sender.push(place);
        self.failing = Some(Failing::Out);
        sender.progress(shared.registry)?;
        self.failing = None;
        Ok(number)
    }

    /// Queues the receive of a long part, which [`Peer::bring_parts`] posts. Returns its number by this route. `may_stay`: as in
    /// [`PartReceiver::expect`].
    pub(super) fn receive_part(
        &mut self,
        route: Route,
        place: Place,
        may_stay: bool,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Part(route), shared)?;
        Ok(self.part_receivers[route as usize].expect(place, may_stay))
    }

    /// The counts of pieces of long messages that were posted and completed so far: of those sent, and of those received.
    fn pieces(&self) -> (u64, u64) {
        self.pieces_by([true; 2])
    }

    /// As [`Peer::pieces`], of these routes alone.
    pub(super) fn pieces_by(&self, routes: [bool; 2]) -> (u64, u64) {
        let lanes = self.long.iter().zip(routes).filter(|(_, counts)| *counts);
        lanes
            .map(|(long, _)| long.pieces())
            .fold((0, 0), |(sent, came), (out, into)| (sent + out, came + into))
    }

    /// The number of long parts whose memory is free. After their connection is closed this is the largest number, as none is in flight.
    pub(super) fn sent_parts(&self, route: Route) -> u64 {
        if self.has_lanes { self.part_senders[route as usize].done() } else { u64::MAX }
    }

    /// The numbers of long parts that are in their places, by route.
    pub(super) fn received_parts(&self) -> [u64; 2] {
        self.part_receivers.each_ref().map(PartReceiver::done)
    }

    /// The oldest part by this route that stays where it has come, and its memory.
    pub(super) fn staying(&self, route: Route) -> Option<(Place, &Arc<Memory>)> {
        self.part_receivers[route as usize].staying()
    }

    /// Frees the memory of the part from [`Peer::staying`].
    pub(super) fn release(&mut self, route: Route) {
        self.part_receivers[route as usize].release();
    }

    /// The oldest part of a collective that was received in a slot.
    pub(super) fn held(&self) -> Option<Arrival> {
        self.receiver.held()
    }

    /// The memory of all parts from [`Peer::held`].
    pub(super) fn slots(&self) -> Option<&Arc<Memory>> {
        self.receiver.memory()
    }

    /// Frees the slot of the part from [`Peer::held`].
    pub(super) fn release_held(&mut self) -> Result<(), GroupError> {
        self.failing = Some(Failing::In(Way::Small));
        self.receiver.release_held()?;
        self.failing = None;
        Ok(())
    }

    /// Whether all small messages have left this rank's memory.
    pub(super) fn has_sent_slots(&self) -> bool {
        self.sender.is_taken()
    }

    /// Whether all long parts of collectives by this route have left this rank's memory.
    pub(super) fn has_sent_parts(&self, route: Route) -> bool {
        self.part_senders[route as usize].is_idle()
    }

    /// Whether a connection with the peer is requested and not open yet.
    pub(super) fn is_connecting(&self) -> bool {
        self.openings.iter().any(Opening::is_requested)
            || self.pairs.iter().any(Pair::is_connecting)
    }

    /// Whether the plugin has completed everything that this rank sends.
    pub(super) fn has_sent(&self) -> bool {
        let long = self.long.iter().all(Long::has_sent);
        let parts = self.part_senders.iter().all(Lane::is_idle);
        let lanes = self.sender.is_idle() && parts && long;
        lanes && self.pairs.iter().all(Pair::has_sent)
    }

    /// Whether any lane was ever requested.
    pub(super) fn is_known(&self) -> bool {
        self.openings.iter().any(|opening| !opening.is_closed()) || !self.pairs.is_empty()
    }

    // Pairs of lanes, each with one user.

    /// Opens this end of a pair, whose messages come from and go to this buffer.
    pub(super) fn open_pair(
        &mut self,
        name: PairName,
        buffer: &Buffer,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        let pair = self.pair_or_new(name, shared.rank);
        pair.open(buffer, shared)
    }

    pub(super) fn pair(&mut self, name: PairName) -> Option<&mut Pair> {
        self.pairs.iter_mut().find(|pair| pair.name() == name)
    }

    /// Closes this end once the peer closes its own. The buffer is kept until then.
    pub(super) fn close_pair(
        &mut self,
        name: PairName,
        buffer: Arc<Buffer>,
        shared: &mut Shared<'_>,
    ) {
        // A pair that was never opened here is closed too: the peer may have opened its end.
        let pair = self.pair_or_new(name, shared.rank);
        pair.close(buffer, shared);
        pair.progress();
        self.pairs.retain(|pair| !pair.is_forgotten());
    }

    fn pair_letter(&mut self, letter: pair::Letter, shared: &mut Shared<'_>) {
        self.pair_or_new(letter.name(), shared.rank).received(letter, shared);
        self.pairs.retain(|pair| !pair.is_forgotten());
    }

    fn pair_or_new(&mut self, name: PairName, own: usize) -> &mut Pair {
        let known = self.pairs.iter().position(|pair| pair.name() == name);
        let index = known.unwrap_or_else(|| {
            self.pairs.push(Pair::new(name, self.rank, own, self.device));
            self.pairs.len() - 1
        });
        &mut self.pairs[index]
    }
}

#[cfg(test)]
impl Peer {
    /// Whether any lane is open, apart from pairs.
    pub(super) fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    /// The number of long messages that are posted at their receivers.
    pub(super) fn posted(&self) -> usize {
        self.long.iter().map(Long::posted).sum()
    }

    /// The number of long messages that receives have taken.
    pub(super) fn claims(&self) -> usize {
        self.long.iter().map(Long::claims).sum()
    }
}
