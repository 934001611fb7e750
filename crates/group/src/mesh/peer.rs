//! Another rank: its lanes, and how they are opened.

use std::sync::Arc;

use super::header::{Header, Kind, Route};
use super::lane::{Lane, tag_of};
use super::long::Long;
use super::matching::{Claim, Matching, OpId, Position};
use super::opening::Opening;
use super::pair::{self, Pair, PairName};
use super::slots::{Arrival, Letter, SLOTS, SlotReceiver, SlotSender};
use super::staged::StagedReceiver;
use super::{Call, Moved, Shared};
use crate::bootstrap::Remote;
use crate::error::GroupError;
use crate::loader::{Buffer, Handle, Place, ReceiveComm, SendComm};

/// What a pair of comms carries. Each pair is opened on first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Small messages and headers, through slots.
    Small,
    /// Long messages between ranks, in the order of their headers.
    Long(Route),
    /// Long parts of collectives, in program order.
    Data,
}

impl Way {
    pub(super) const ALL: [Self; 4] =
        [Self::Small, Self::Long(Route::Direct), Self::Data, Self::Long(Route::Staged)];

    fn number(self) -> u8 {
        match self {
            Self::Small => 0,
            Self::Long(Route::Direct) => 1,
            Self::Data => 2,
            Self::Long(Route::Staged) => 3,
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
    openings: [Opening; 4],
    /// Whether any opening may be requested, so that a poll makes one test.
    is_opening: bool,
    sender: SlotSender,
    receiver: SlotReceiver,
    /// Indexed by [`Route`].
    long: [Long; 2],
    data_sender: Lane<SendComm>,
    data_receiver: Lane<ReceiveComm>,
    /// The registry's numbers of the comms of the lanes above.
    comms: Vec<usize>,
    pairs: Vec<Pair>,
    /// False once all lanes are closed except pairs and the lane of long parts that are due.
    has_lanes: bool,
    /// The peer has left, and its letters are read.
    has_left: bool,
    /// The number of long parts that the peer has sent, from its letter when it leaves.
    sent_data: Option<u64>,
    /// The last long part that the peer has begun to send, from its letter when it is asked, or leaves.
    last_part: Option<LastPart>,
    /// The collective of the last long part that this rank has begun to send.
    call: Option<Call>,
    /// By way: nothing more comes from the peer. Other ways, and sends to the peer, may still complete.
    silent: [bool; 4],
    /// Nothing more can be sent to the peer.
    is_closed: bool,
    /// Operations of small messages that will not be sent. They end with the peer.
    given_up: Vec<OpId>,
    /// The connection whose calls are being made. It stays set after an error, so that [`Peer::left`] knows which connection has ended.
    failing: Option<Failing>,
}

/// A long part that its rank has begun to send. Long parts have no header, so this says to which collective one belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastPart {
    pub(super) scope: u32,
    /// The number of its collective in the group.
    pub(super) number: u32,
    pub(super) note: u64,
    /// The part's number among the long parts to this peer.
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

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self { scope: word(0), number: word(4), note: long(8), ordinal: long(16) }
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
            sender: SlotSender::default(),
            receiver: SlotReceiver::default(),
            long: [
                Long::new(rank, Lane::new(sent), Box::new(Lane::new(came))),
                Long::new(rank, Lane::new(sent), Box::new(StagedReceiver::new(came))),
            ],
            data_sender: Lane::of_parts(sent, rank),
            data_receiver: Lane::of_parts(came, rank),
            comms: Vec::new(),
            pairs: Vec::new(),
            has_lanes: true,
            has_left: false,
            sent_data: None,
            last_part: None,
            call: None,
            silent: [false; 4],
            is_closed: false,
            given_up: Vec::new(),
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
        let (number, bytes) = letter.split_first().ok_or_else(nonsense)?;
        let way = Way::ALL.into_iter().find(|way| way.number() == *number).ok_or_else(nonsense)?;
        if let Ok(sent) = bytes.try_into().map(u64::from_le_bytes) {
            match way {
                Way::Data => self.sent_data = Some(sent),
                _ => self.openings[way.index()].taken_back(),
            }
            return Ok(());
        }
        if bytes.is_empty() {
            self.say_last_part(shared.place);
            return Ok(());
        }
        if let Ok(part) = bytes.try_into() {
            self.last_part = Some(LastPart::decode(part));
            return Ok(());
        }
        let handle = Handle(bytes.try_into().map_err(|_| nonsense())?);
        self.open(way, shared)?;
        self.openings[way.index()].invited(self.device, handle, shared);
        Ok(())
    }

    /// This rank leaves, and mails what the peer cannot find out: that nothing was sent by connections that are not open yet, and the
    /// number of long parts that were sent. Messages need no such letter: each is announced, and the peer sees the end of their
    /// connections.
    pub(super) fn say_what_was_sent(&self, place: &mut Remote) {
        self.say_last_part(place);
        for way in Way::ALL {
            let opening = &self.openings[way.index()];
            let sent = match way {
                Way::Data if !opening.is_closed() => self.data_sender.done(),
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
        let Some(Call { scope, number, what }) = self.call else { return };
        let ordinal = self.data_sender.pushed();
        let part = LastPart { scope, number, note: what.note(), ordinal };
        // Without a rendezvous the group has failed.
        let _ = place.mail(self.rank, &[&[Way::Data.number()][..], &part.encode()].concat());
    }

    /// Asks for the peer's last long part.
    pub(super) fn ask_for_last_part(&self, place: &mut Remote) {
        let _ = place.mail(self.rank, &[Way::Data.number()]);
    }

    /// The peer's last long part, as far as is known, if this rank has not posted a receive for it.
    pub(super) fn unexpected_part(&self) -> Option<LastPart> {
        self.last_part.filter(|part| part.ordinal > self.data_receiver.pushed())
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
        moved |= self.data_sender.progress(shared.registry)?;
        self.failing = None;
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
        let data = self.bring_by(Way::Data, |peer| peer.data_receiver.progress(shared.registry))?;
        let small = self
            .bring_by(Way::Small, |peer| Ok(peer.take_in(most, shared)? | peer.receiver.post()?))?;
        let mut long = false;
        for route in Route::ALL {
            let bring_in = |peer: &mut Self| peer.long[route as usize].bring_in(shared.registry);
            long |= self.bring_by(Way::Long(route), bring_in)?;
        }
        Ok(data | small | long)
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

    /// The peer leaves. Messages that it has sent still come.
    pub(super) fn leaves(&mut self) {
        let small = self.receiver.leaves();
        let long = self.long.each_mut().map(Long::leaves);
        let failed_ahead = match self.failing {
            Some(Failing::In(Way::Small)) => small,
            Some(Failing::In(Way::Long(route))) => long[route as usize],
            _ => false,
        };
        if failed_ahead {
            self.failing = Some(Failing::Ahead);
        }
    }

    /// The peer has left, and the connection of the last error has ended because of that. Returns false if that connection is not known.
    pub(super) fn left(&mut self) -> bool {
        match self.failing.take() {
            Some(Failing::In(way)) => self.silent[way.index()] = true,
            Some(Failing::Out) => self.is_closed = true,
            Some(Failing::Opening | Failing::Ahead) => {}
            None => return false,
        }
        true
    }

    pub(super) fn comms(&self) -> &[usize] {
        &self.comms
    }

    /// The operations that have not ended, when the peer's connections close.
    pub(super) fn into_operations(mut self) -> Vec<OpId> {
        let mut operations = std::mem::take(&mut self.given_up);
        operations.extend(self.sender.clear());
        operations.extend(self.long.iter().flat_map(Long::operations));
        operations
    }

    /// Whether the peer has left, and its lanes are needed no more, except pairs with a user and long parts that are due.
    #[inline]
    pub(super) fn may_retire(&self) -> bool {
        self.is_silent() && self.is_read() && (self.has_lanes || self.is_over())
    }

    /// Whether no pair has a user on this rank, and no long part comes any more.
    #[cold]
    pub(super) fn is_over(&self) -> bool {
        self.has_no_user() && self.has_all_data()
    }

    /// Takes all lanes out of the peer except the pairs and the long parts that are due, which a later collective of this rank takes.
    pub(super) fn take_lanes(&mut self, own: usize) -> Self {
        let mut rest = Self {
            openings: [const { Opening::Open }; 4],
            pairs: std::mem::take(&mut self.pairs),
            silent: [true; 4],
            is_closed: true,
            has_lanes: false,
            ..Self::new(self.rank, own, self.device)
        };
        if !self.has_all_data() {
            let data = Way::Data.index();
            std::mem::swap(&mut rest.data_receiver, &mut self.data_receiver);
            std::mem::swap(&mut rest.openings[data], &mut self.openings[data]);
            rest.is_opening = rest.openings[data].is_requested();
            rest.comms.extend(rest.data_receiver.number());
            self.comms.retain(|number| !rest.comms.contains(number));
            (rest.silent[data], rest.has_left, rest.sent_data, rest.last_part) =
                (false, self.has_left, self.sent_data, self.last_part);
        }
        std::mem::replace(self, rest)
    }

    /// Whether all parts and messages that have come from the peer have been received, apart from long messages on ways by which no more
    /// come.
    #[cold]
    fn is_read(&self) -> bool {
        self.receiver.held().is_none() && self.no_long(Long::awaits_none)
    }

    /// Whether the peer has left, and no more messages can be received from it or sent to it, pairs included. Messages that have come may
    /// wait for a receive.
    pub(super) fn is_gone(&self) -> bool {
        self.is_silent() && self.has_no_user()
    }

    /// Whether no pair has a user on this rank.
    fn has_no_user(&self) -> bool {
        self.pairs.iter().all(Pair::is_over)
    }

    /// As [`Peer::is_gone`], without the pairs.
    #[inline]
    fn is_silent(&self) -> bool {
        self.silent[Way::Small.index()] && self.is_silent_otherwise()
    }

    /// The part of [`Peer::is_silent`] that is tested once no more small messages come.
    #[cold]
    fn is_silent_otherwise(&self) -> bool {
        (self.is_closed || self.has_sent()) && self.no_long(Long::receives_none)
    }

    /// Whether the peer has left, and all long parts that it has sent are received. They may come long before a collective expects them.
    fn has_all_data(&self) -> bool {
        let are_here = |sent| self.data_receiver.done() >= sent;
        self.silent[Way::Data.index()]
            || self.sent_data.is_some_and(are_here)
            || self.has_left && self.is_in_vain(Way::Data)
    }

    /// Whether `is_so` holds for the long messages of every route by which more may come.
    fn no_long(&self, is_so: fn(&Long) -> bool) -> bool {
        let is_silent = |route| self.silent[Way::Long(route).index()];
        Route::ALL.into_iter().all(|route| is_silent(route) || is_so(&self.long[route as usize]))
    }

    /// Whether nothing more can be received from the peer or sent to it by this way, which may never have been opened. `has_left`: the peer
    /// has left, and its letters are read.
    pub(super) fn is_lost(&mut self, way: Way, has_left: bool) -> bool {
        if has_left {
            self.give_up_small();
            self.give_up_all_long();
        }
        // A sent part counts, if the plugin completes it: only a part that waits for a connection never arrives.
        let is_sending = !self.data_sender.is_idle();
        let is_in_vain = has_left && is_sending && !self.data_sender.is_open();
        match way {
            Way::Data if is_sending => is_in_vain || self.is_silent(),
            Way::Data => self.has_all_data(),
            // A collective that waits for a short part ends with this, and its long part too.
            _ if is_in_vain => self.silent[Way::Small.index()] && self.no_long(Long::receives_none),
            _ => self.is_silent(),
        }
    }

    /// For a peer that has left: whether nothing more comes by this way.
    fn is_in_vain(&self, way: Way) -> bool {
        !self.is_open(way).1 && self.openings[way.index()].is_in_vain()
    }

    /// Whether the plugin may access the memory of a long message or long part to the peer.
    fn sends_long(&self) -> bool {
        self.data_sender.is_in_flight() || self.long.iter().any(Long::is_in_flight)
    }

    /// For a peer that has left: if the way of small messages is not open by now, they are not sent. They are dropped, because their
    /// callers may use the memory again.
    fn give_up_small(&mut self) {
        if !self.sender.is_open() && (self.is_closed || !self.sends_long()) {
            self.given_up.extend(self.sender.clear());
            self.is_closed = true;
        }
        self.silent[Way::Small.index()] |= self.is_in_vain(Way::Small);
    }

    /// For a peer that has left: gives up long messages whose headers were sent or have come, if no more headers come and their way was
    /// never opened.
    pub(super) fn give_up_all_long(&mut self) {
        self.has_left = true;
        if self.silent[Way::Small.index()] {
            Route::ALL.into_iter().for_each(|route| self.give_up_long(route));
        }
    }

    #[cold]
    fn give_up_long(&mut self, route: Route) {
        let way = Way::Long(route);
        let long = &self.long[route as usize];
        self.is_closed |= !long.is_open().0 && !long.has_sent() && !self.sends_long();
        self.silent[way.index()] |= self.is_in_vain(way);
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
            parts |= self.data_sender.progress(shared.registry)?;
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
        self.data_receiver.moves() + self.pieces().1
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
            Way::Data => (self.data_sender.is_open(), self.data_receiver.is_open()),
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
                Way::Data => self.data_sender.open(end, number()),
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
                Way::Data => self.data_receiver.open(end, number()),
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

    /// Queues a long part of this collective.
    pub(super) fn send_data(
        &mut self,
        call: Call,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Data, shared)?;
        // This poll announces receives that are posted, so that the peer can send into them while this rank sends.
        self.bring_by(Way::Data, |peer| peer.data_receiver.progress(shared.registry))?;
        self.call = Some(call);
        let number = self.data_sender.push(place);
        self.data_sender.progress(shared.registry)?;
        Ok(number)
    }

    pub(super) fn receive_data(
        &mut self,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Data, shared)?;
        let number = self.data_receiver.push(place);
        self.data_receiver.progress(shared.registry)?;
        Ok(number)
    }

    /// The counts of pieces of long messages that were posted and completed so far: of those sent, and of those received.
    pub(super) fn pieces(&self) -> (u64, u64) {
        let [(sent, came), (staged, landed)] = self.long.each_ref().map(Long::pieces);
        (sent + staged, came + landed)
    }

    /// The number of long parts whose memory is free. After their connection is closed this is the largest number, as none is in flight.
    pub(super) fn sent_data(&self) -> u64 {
        if self.has_lanes { self.data_sender.done() } else { u64::MAX }
    }

    pub(super) fn received_data(&self) -> u64 {
        self.data_receiver.done()
    }

    /// The oldest part of a collective that was received in a slot.
    pub(super) fn held(&self) -> Option<Arrival> {
        self.receiver.held()
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

    /// Whether all long parts of collectives have left this rank's memory.
    pub(super) fn has_sent_data(&self) -> bool {
        self.data_sender.is_idle()
    }

    /// Whether a connection with the peer is requested and not open yet.
    pub(super) fn is_connecting(&self) -> bool {
        self.openings.iter().any(Opening::is_requested)
            || self.pairs.iter().any(Pair::is_connecting)
    }

    /// Whether the plugin has completed everything that this rank sends.
    pub(super) fn has_sent(&self) -> bool {
        let long = self.long.iter().all(Long::has_sent);
        let lanes = self.sender.is_idle() && self.data_sender.is_idle() && long;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::group::Group;
    use crate::loader::DataType;
    use crate::mesh::failure::Failure;
    use crate::mesh::header::SMALL;
    use crate::mesh::{CallKind, Counts, Mesh, Name, Reached, Space, What};
    use crate::messages::{Any, From};
    use crate::support::{WAIT, buffering, keeping, library, ranks, ranks_within};

    const TIMEOUT: Duration = Duration::from_secs(4);
    const LONG: usize = 100_000;

    fn lost<T: std::fmt::Debug>(ended: Result<T, GroupError>) {
        assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
    }

    fn await_turn(turn: &AtomicUsize, number: usize) {
        let end = Instant::now() + WAIT;
        while turn.load(Ordering::Acquire) != number {
            assert!(Instant::now() < end, "turn {number} never comes");
            std::thread::yield_now();
        }
    }

    /// Rank 1, in its turn, does `last` and leaves.
    fn leave_in_turn(turn: &AtomicUsize, group: Group, last: impl FnOnce(&Group)) {
        await_turn(turn, 1);
        last(&group);
        drop(group);
        turn.store(2, Ordering::Release);
    }

    /// Waits until rank 1 has gone, without a poll.
    fn let_rank_1_go(turn: &AtomicUsize) {
        turn.store(1, Ordering::Release);
        await_turn(turn, 2);
    }

    /// Begins turn 1, in which rank 1 leaves. Returns when the rendezvous has said so; no peer is polled meanwhile.
    fn let_rank_1_leave(turn: &AtomicUsize, mesh: &mut Mesh) {
        let_rank_1_go(turn);
        let end = Instant::now() + WAIT;
        while !mesh.left[1] {
            assert!(Instant::now() < end, "the rendezvous does not say that rank 1 has left");
            mesh.read_mail().unwrap();
            std::thread::yield_now();
        }
    }

    /// Two ranks with a connection of small messages. Rank 1 does `last`, and leaves. Rank 0 polls nothing until it has gone, then does `first`
    /// under the lock, and `then` without it.
    fn after_rank_1_has_gone(last: fn(&Group), first: fn(&mut Mesh), then: fn(&Group)) {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, last);
            }
            let mut state = group.shared.lock();
            let_rank_1_leave(&turn, &mut state.mesh);
            first(&mut state.mesh);
            drop(state);
            then(&group);
        });
    }

    #[test]
    fn a_long_message_that_is_not_received_does_not_hide_the_end_of_its_rank_from_other_calls() {
        ranks_within(&library(), 2, TIMEOUT, |group| {
            if group.rank() == 1 {
                return group.send(&[7_u8; LONG], 0, 5).unwrap();
            }
            lost(group.recv(&mut [0_u8], 1, 9));
            lost(group.recv_obj::<u8>(1, 9));
            lost(group.send(&[1_u8; LONG], 1, 9));
            assert_eq!(group.recv_vec::<u8>(1, 5).unwrap().0, [7; LONG]);
            lost(group.recv(&mut [0_u8], 1, 5));
        });
    }

    #[test]
    fn a_short_part_of_a_rank_that_left_is_lost_though_a_long_one_to_it_never_leaves() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            let call = Call { scope: 0, number: 1, what: What::new(CallKind::AllReduce) };
            group.barrier().unwrap();
            if group.rank() == 1 {
                // Rank 1 does not send its handle.
                let mut state = group.shared.lock();
                turn.store(1, Ordering::Release);
                await_turn(&turn, 2);
                return leave(&mut state.mesh);
            }
            await_turn(&turn, 1);
            let (long, mut short) = ([7_u8; LONG], [0_u8; 8]);
            let mut state = group.shared.lock();
            state.mesh.send_part(1, call, Place::reading(&long)).unwrap();
            turn.store(2, Ordering::Release);
            let ended = state.mesh.take_part(1, call, Place::writing(&mut short));
            // As the collective does it, before the memory is its caller's again.
            lost(ended.map_err(|error| state.mesh.collective_failed(error)));
        });
    }

    #[test]
    fn a_last_part_is_read_as_it_was_written() {
        let part = LastPart { scope: 1, number: u32::MAX - 1, note: 3 << 40 | 7, ordinal: 1 << 33 };
        assert_eq!(LastPart::decode(&part.encode()), part);
    }

    #[test]
    fn a_part_that_is_not_read_does_not_hide_the_end_of_its_rank_from_messages() {
        ranks_within(&library(), 2, TIMEOUT, |group| {
            let call = Call { scope: 0, number: 0, what: What::new(CallKind::Gather) };
            let mut part = [group.rank(), 7].map(|number| number as u64);
            group.barrier().unwrap();
            if group.rank() == 1 {
                let mut state = group.shared.lock();
                state.mesh.send_part(0, call, Place::reading(&part)).unwrap();
                return state.mesh.flush(0).unwrap();
            }
            lost(group.recv(&mut [0_u8], 1, 9));
            group.shared.lock().mesh.take_part(1, call, Place::writing(&mut part)).unwrap();
            assert_eq!(part, [1, 7]);
        });
    }

    #[test]
    fn a_connection_with_the_awaited_peer_is_opened_by_polls_of_that_peer_alone() {
        ranks(&library(), 2, |group| {
            if group.rank() == 1 {
                return assert_eq!(group.recv_vec::<u8>(0, 1).unwrap().0, [7]);
            }
            // The group's own thread cannot poll meanwhile.
            let mut state = group.shared.lock();
            state.mesh.with(1, |peer, shared| peer.open(Way::Small, shared)).unwrap();
            let end = Instant::now() + WAIT;
            while state.mesh.peer(1).unwrap().is_connecting() {
                assert!(Instant::now() < end, "the connection is never open");
                state.mesh.hear().unwrap();
                state.mesh.with(1, |peer, shared| peer.attend(shared).map(drop)).unwrap();
                std::thread::yield_now();
            }
            drop(state);
            group.send(&[7_u8], 1, 1).unwrap();
        });
    }

    /// Sends the farewell and closes all connections, without a poll.
    fn leave(mesh: &mut Mesh) {
        mesh.farewell();
        mesh.fail(Failure::Other("this rank has left".to_owned()));
    }

    #[test]
    fn a_long_message_to_a_rank_that_has_left_is_lost_though_its_connection_is_never_open() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            let data = [0_u8; LONG];
            if group.rank() == 1 {
                // Rank 1 does not send its handle.
                let mut state = group.shared.lock();
                turn.store(1, Ordering::Release);
                await_turn(&turn, 2);
                return leave(&mut state.mesh);
            }
            await_turn(&turn, 1);
            let mut state = group.shared.lock();
            let name = Name { scope: 0, tag: 1, space: Space::MESSAGES, note: 0 };
            let op = state.mesh.send(1, name, DataType::U8, Place::reading(&data)).unwrap();
            turn.store(2, Ordering::Release);
            lost(state.mesh.until(Some((1, Way::Small)), |mesh| mesh.ended(op).is_some()));
            state.mesh.abandon(op);
            drop(state);
            lost(group.recv(&mut [0_u8], 1, 1));
        });
    }

    /// One message for each receive that is posted ahead; the barrier has used one. If more receives were posted than messages come, the
    /// test plugin would fail all receives of the connection when it ends.
    const MESSAGES: u64 = SLOTS as u64 - 1;

    fn send_all(group: &Group) {
        for number in 0..MESSAGES {
            group.send(&[number], 0, 1).unwrap();
        }
    }

    fn receive_all(group: &Group) {
        for number in 0..MESSAGES {
            assert_eq!(group.recv_vec::<u64>(1, 1).unwrap().0, [number]);
        }
        lost(group.recv(&mut [0_u8], 1, 1));
    }

    #[test]
    fn all_messages_that_are_here_are_received_though_no_more_receives_can_be_posted() {
        after_rank_1_has_gone(send_all, |_| {}, receive_all);
    }

    #[test]
    fn messages_that_are_here_are_received_though_their_connections_end_is_seen_before_the_news() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&keeping(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, send_all);
            }
            let mut state = group.shared.lock();
            let_rank_1_go(&turn);
            state.mesh.with(1, |peer, shared| peer.progress(shared).map(drop)).unwrap();
            assert!(state.mesh.left[1], "no error has made it read the news");
            drop(state);
            receive_all(&group);
        });
    }

    /// The last piece of a long message comes with the end of its connection, and the post after the piece fails. Rank 1 does `last` before
    /// it leaves.
    fn the_last_piece_comes_with_the_end(last: fn(&Group), is_known_to_leave: bool) {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&keeping(), 2, TIMEOUT, move |group| {
            if group.rank() == 1 {
                // This opens the connection.
                group.send(&[1_u8; LONG], 0, 1).unwrap();
                return leave_in_turn(&turn, group, |group| {
                    group.send(&[7_u8; LONG], 0, 2).unwrap();
                    last(group);
                });
            }
            group.recv(&mut [0_u8; LONG], 1, 1).unwrap();
            let receiving = group.irecv(vec![0_u8; LONG], 1, 2).unwrap();
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            let header = |mesh: &mut Mesh| {
                let take_in = |peer: &mut Peer, shared: &mut Shared<'_>| {
                    peer.bring_by(Way::Small, |peer| peer.take_in(1, shared))
                };
                assert!(mesh.with(1, take_in).unwrap(), "the last piece has come");
            };
            if is_known_to_leave {
                let_rank_1_leave(&turn, mesh);
                header(mesh);
            } else {
                let_rank_1_go(&turn);
            }
            header(mesh);
            // As if the end came after the poll of small messages.
            let small = Way::Small.index();
            mesh.peer(1).unwrap().silent[small] = true;
            mesh.with(1, |peer, shared| peer.progress(shared).map(drop)).unwrap();
            assert!(mesh.left[1], "no error has made it read the news");
            mesh.peer(1).unwrap().silent[small] = false;
            drop(state);
            assert_eq!(receiving.wait().unwrap().0, [7; LONG]);
        });
    }

    #[test]
    fn a_long_message_is_received_though_the_post_after_its_last_piece_fails() {
        the_last_piece_comes_with_the_end(|_| {}, false);
    }

    #[test]
    fn a_long_message_is_received_though_a_later_one_was_announced_and_never_comes() {
        let announce = |group: &Group| {
            let kind = Kind::Long(Route::Staged);
            // A message of more pieces than receives are posted for.
            let len = 1 << 30;
            let header =
                Header { kind, element: 0, scope: 0, tag: 3, len, space: Space::MESSAGES, note: 0 };
            let letter = Letter { header, body: Place::empty(), op: None };
            let mut state = group.shared.lock();
            state.mesh.with(0, |peer, shared| peer.send(letter, shared)).unwrap();
        };
        the_last_piece_comes_with_the_end(announce, true);
    }

    #[test]
    fn a_connect_to_a_rank_that_has_left_fails_without_the_messages_that_are_here() {
        let send = |group: &Group| {
            send_all(group);
            let mut state = group.shared.lock();
            let (listener, handle) = state.mesh.net.listen(0).unwrap();
            drop(listener);
            let way = Way::Long(Route::Staged).number();
            state.mesh.place().mail(0, &[&[way][..], &handle.0].concat()).unwrap();
        };
        let connect = |mesh: &mut Mesh| {
            mesh.hear().unwrap();
            let end = Instant::now() + WAIT;
            while mesh.connector.step() {
                assert!(Instant::now() < end, "the connect neither succeeds nor fails");
                std::thread::yield_now();
            }
            mesh.poll(None).unwrap();
        };
        after_rank_1_has_gone(send, connect, receive_all);
    }

    #[test]
    fn a_pair_with_a_rank_that_left_before_it_connected_is_closed() {
        const NAME: PairName = PairName { scope: 0, number: 7 };
        const DUE: Counts = Counts { sent: 0, received: 1 };
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            let buffer = Buffer::new(8).unwrap();
            if group.rank() == 1 {
                let mut state = group.shared.lock();
                state.mesh.open_pair(0, NAME, &buffer).unwrap();
                turn.store(1, Ordering::Release);
                // The other end has connected, and this rank reads no letter.
                await_turn(&turn, 2);
                return leave(&mut state.mesh);
            }
            await_turn(&turn, 1);
            let end = Instant::now() + WAIT;
            let until = |reached: fn(&mut Mesh) -> bool| {
                loop {
                    let mut state = group.shared.lock();
                    state.mesh.poll_pairs(NAME, [1].into_iter()).unwrap();
                    if reached(&mut state.mesh) {
                        return;
                    }
                    drop(state);
                    assert!(Instant::now() < end, "the pair neither opens nor closes");
                    std::thread::yield_now();
                }
            };
            group.shared.lock().mesh.open_pair(1, NAME, &buffer).unwrap();
            until(|mesh| mesh.pair_progress(1, NAME) > 0);
            turn.store(2, Ordering::Release);
            until(|mesh| mesh.reached(1, NAME, DUE).unwrap() == Reached::Closed);
        });
    }

    #[test]
    fn a_long_message_of_a_rank_that_left_before_it_connected_is_lost() {
        receive_of_a_rank_that_left_before_it_connected(1.into(), |_| {});
    }

    #[test]
    fn a_long_message_of_a_rank_that_left_before_it_connected_is_lost_for_a_receive_from_any_rank()
    {
        receive_of_a_rank_that_left_before_it_connected(Any.into(), |_| {});
    }

    #[test]
    fn the_same_is_lost_though_a_part_of_its_rank_is_not_read() {
        let send_part = |mesh: &mut Mesh| {
            let call = Call { scope: 0, number: 1, what: What::new(CallKind::Gather) };
            mesh.send_part(0, call, Place::reading(&[7_u8])).unwrap();
            mesh.flush(0).unwrap();
        };
        receive_of_a_rank_that_left_before_it_connected(Any.into(), send_part);
    }

    /// Longer than a rank that leaves waits for the others.
    const LONG_AGO: Duration = Duration::from_millis(600);

    #[test]
    fn a_long_part_comes_though_its_rank_left_long_before_it_was_accepted() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            let part = vec![7_u8; 2 * SMALL];
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, |group| group.gather(&part, None, 0).unwrap());
            }
            let mut state = group.shared.lock();
            // Rank 1 gets the handle, and this rank polls nothing until rank 1 has gone.
            state.mesh.with(1, |peer, shared| peer.open(Way::Data, shared)).unwrap();
            let_rank_1_leave(&turn, &mut state.mesh);
            std::thread::sleep(LONG_AGO);
            drop(state);
            let mut all = vec![0; 4 * SMALL];
            group.gather(&part, Some(&mut all), 0).unwrap();
            assert_eq!(all, [7; 4 * SMALL]);
            lost(group.gather(&part, Some(&mut all), 0));
        });
    }

    #[test]
    fn a_long_part_comes_though_its_rank_and_its_other_connections_have_gone() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            let mut part = vec![7_u8; 2 * SMALL];
            // Both connections are open.
            group.broadcast(&mut part, 0).unwrap();
            group.barrier().unwrap();
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, |group| group.gather(&part, None, 0).unwrap());
            }
            let mut state = group.shared.lock();
            let_rank_1_leave(&turn, &mut state.mesh);
            let end = Instant::now() + WAIT;
            let has_lanes = |mesh: &mut Mesh| mesh.peer(1).is_some_and(|peer| peer.has_lanes());
            while has_lanes(&mut state.mesh) {
                assert!(Instant::now() < end, "the end of the other connection is not seen");
                state.mesh.poll(None).unwrap();
            }
            drop(state);
            lost(group.recv(&mut [0_u8], 1, 9));
            let mut all = vec![0; 4 * SMALL];
            group.gather(&part, Some(&mut all), 0).unwrap();
            assert_eq!(all, [7; 4 * SMALL]);
            let mut state = group.shared.lock();
            state.mesh.poll(None).unwrap();
            assert!(state.mesh.peers[1].is_none(), "no long part is due");
            drop(state);
            lost(group.gather(&part, Some(&mut all), 0));
        });
    }

    #[test]
    fn long_parts_of_a_rank_that_has_left_are_lost_where_their_connection_cannot_be_accepted() {
        let mut peer = Peer::new(1, 0, 0);
        peer.sent_data = Some(1);
        assert!(!peer.is_lost(Way::Data, false));
        // The state after an error of accept.
        assert!(peer.openings[Way::Data.index()].is_closed());
        assert!(peer.is_lost(Way::Data, true));
    }

    #[test]
    fn messages_come_though_their_rank_left_long_before_it_was_accepted() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, |group| group.send(&[7_u8], 0, 1).unwrap());
            }
            let mut state = group.shared.lock();
            state.mesh.with(1, |peer, shared| peer.open(Way::Small, shared)).unwrap();
            let_rank_1_leave(&turn, &mut state.mesh);
            std::thread::sleep(LONG_AGO);
            drop(state);
            lost(group.send(&[1_u8], 1, 1));
            assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [7]);
            lost(group.recv(&mut [0_u8], 1, 1));
        });
    }

    /// Rank 1 does `first`, and then its header is sent.
    fn receive_of_a_rank_that_left_before_it_connected(from: From, first: fn(&mut Mesh)) {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let mut state = group.shared.lock();
                let name = Name { scope: 0, tag: 1, space: Space::MESSAGES, note: 0 };
                let data = [0_u8; LONG];
                first(&mut state.mesh);
                state.mesh.send(0, name, DataType::U8, Place::reading(&data)).unwrap();
                turn.store(1, Ordering::Release);
                // The header of the message has come.
                await_turn(&turn, 2);
                return leave(&mut state.mesh);
            }
            await_turn(&turn, 1);
            assert_eq!(group.probe(1, 1).unwrap().bytes, LONG);
            turn.store(2, Ordering::Release);
            lost(group.recv(&mut [0_u8; LONG], from, 1));
            lost(group.recv(&mut [0_u8], 1, 2));
        });
    }
}
