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

    /// In lists by way.
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
    /// Some of them may be requested: one test for each poll.
    is_opening: bool,
    sender: SlotSender,
    receiver: SlotReceiver,
    /// By [`Route`].
    long: [Long; 2],
    data_sender: Lane<SendComm>,
    data_receiver: Lane<ReceiveComm>,
    /// The numbers of the comms of the lanes above, by which the registry knows them.
    comms: Vec<usize>,
    pairs: Vec<Pair>,
    /// False once all is closed but its pairs, and long parts that are due.
    has_lanes: bool,
    /// It has left, and its letters are read.
    has_left: bool,
    /// The number of long parts that it has sent, which it says when it leaves.
    sent_data: Option<u64>,
    /// The last long part that it has begun to send, which it says when it is asked, and when it leaves.
    last_part: Option<LastPart>,
    /// The collective of the last long part that this rank has begun to send.
    call: Option<Call>,
    /// Per way: nothing more comes from the peer. Other ways, and sends to it, may still complete.
    silent: [bool; 4],
    /// Nothing more can be sent to the peer.
    is_closed: bool,
    /// Operations of small messages that never leave. They end with the peer.
    given_up: Vec<OpId>,
    /// The connection whose calls are being made. After an error it stays set, so that [`Peer::left`] knows which one has ended.
    failing: Option<Failing>,
}

/// A long part that its rank has begun to send: it has no header, so the receiver does not know what it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastPart {
    pub(super) scope: u32,
    /// Of its collective.
    pub(super) number: u32,
    pub(super) note: u64,
    /// Its number among the long parts.
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
    /// What is open remains, and what is not is given up once the peer is known to have left.
    Opening,
    In(Way),
    /// A receive that was posted ahead, before it was known that the peer leaves. What has come by that way can still be received.
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

    /// Requests a pair of comms, once.
    pub(super) fn open(&mut self, way: Way, shared: &mut Shared<'_>) -> Result<(), GroupError> {
        let opening = &mut self.openings[way.index()];
        opening.request(self.rank, self.device, &[way.number()], shared)?;
        self.is_opening |= opening.is_requested();
        Ok(())
    }

    /// A letter from the peer has arrived: its handle, how many long parts it has sent, or which one was the last, or that it asks for that.
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

    /// This rank leaves, and says what it has sent where the peer cannot find out: by connections that have not come about, nothing; by that
    /// of long parts, how many. Messages are announced, and the end of their connections is seen.
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

    /// Says which long part this rank has begun to send last, if any.
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

    /// The peer's last long part, as far as is known, if this rank has no place for it.
    pub(super) fn unexpected_part(&self) -> Option<LastPart> {
        self.last_part.filter(|part| part.ordinal > self.data_receiver.pushed())
    }

    /// Makes progress on everything. Returns whether anything moved.
    pub(super) fn progress(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let moved = self.move_all(shared);
        // After an error too: what has come by then counts.
        let ended = self.end_long(shared.matching);
        Ok(moved? | ended)
    }

    fn move_all(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = self.is_opening && self.connect_all(shared)?;
        // A peer that sends all the time must not keep this poll.
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

    /// Sends what it can of long messages.
    fn push_long(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        for long in &mut self.long {
            moved |= long.push_out(shared.registry)?;
        }
        Ok(moved)
    }

    /// Receives what is there, of messages in slots up to `most`.
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

    /// The peer leaves. What it has sent still comes.
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

    /// The peer has left, and the connection of the last error has ended because of that. False if it is unknown which.
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

    /// The operations that have not ended, when its connections close.
    pub(super) fn into_operations(mut self) -> Vec<OpId> {
        let mut operations = std::mem::take(&mut self.given_up);
        operations.extend(self.sender.clear());
        operations.extend(self.long.iter().flat_map(Long::operations));
        operations
    }

    /// Whether it has left, and nothing more of it is needed that is open here but pairs with a user, and long parts that are due.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.is_silent() && self.is_read() && (self.has_lanes || self.is_over())
    }

    /// Whether no pair has a user on this rank, and no long part comes any more.
    #[cold]
    pub(super) fn is_over(&self) -> bool {
        self.has_no_user() && self.has_all_data()
    }

    /// Leaves the pairs alone, and the long parts that are due: a collective that this rank has not begun takes them.
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

    /// Whether what has come of it has been received, where no more does.
    #[cold]
    fn is_read(&self) -> bool {
        self.receiver.held().is_none() && self.no_long(Long::awaits_none)
    }

    /// Whether it has left, and no more messages can be received from it or sent to it, pairs included. What has come may wait for its receive.
    pub(super) fn is_gone(&self) -> bool {
        self.is_silent() && self.has_no_user()
    }

    /// Whether no pair has a user on this rank.
    fn has_no_user(&self) -> bool {
        self.pairs.iter().all(Pair::is_over)
    }

    /// The same without its pairs.
    #[inline]
    fn is_silent(&self) -> bool {
        self.silent[Way::Small.index()] && self.is_silent_otherwise()
    }

    /// The rest of that, where no more small messages come.
    #[cold]
    fn is_silent_otherwise(&self) -> bool {
        (self.is_closed || self.has_sent()) && self.no_long(Long::receives_none)
    }

    /// Whether it has left, and all long parts are here that it has sent. They may have been sent long before they are expected.
    fn has_all_data(&self) -> bool {
        let are_here = |sent| self.data_receiver.done() >= sent;
        self.silent[Way::Data.index()]
            || self.sent_data.is_some_and(are_here)
            || self.has_left && self.is_in_vain(Way::Data)
    }

    /// Whether this holds of all long messages that may still come.
    fn no_long(&self, is_so: fn(&Long) -> bool) -> bool {
        let is_silent = |route| self.silent[Way::Long(route).index()];
        Route::ALL.into_iter().all(|route| is_silent(route) || is_so(&self.long[route as usize]))
    }

    /// Whether nothing more can be received from it or sent to it by this way, which may never have been opened. `has_left`: it has left, and
    /// its letters are read.
    pub(super) fn is_lost(&mut self, way: Way, has_left: bool) -> bool {
        if has_left {
            self.give_up_small();
            self.give_up_all_long();
        }
        // A part that is sent counts, if the plugin completes it: only what waits for a connection never arrives.
        let is_sending = !self.data_sender.is_idle();
        let is_in_vain = has_left && is_sending && !self.data_sender.is_open();
        match way {
            Way::Data if is_sending => is_in_vain || self.is_silent(),
            Way::Data => self.has_all_data(),
            // The collective that waits for a short part ends with this, and the long one with it.
            _ if is_in_vain => self.silent[Way::Small.index()] && self.no_long(Long::receives_none),
            _ => self.is_silent(),
        }
    }

    /// Of a peer that has left: whether nothing comes by this way that is not here.
    fn is_in_vain(&self, way: Way) -> bool {
        !self.is_open(way).1 && self.openings[way.index()].is_in_vain()
    }

    /// Whether the plugin may access the memory of anything long that is sent.
    fn sends_long(&self) -> bool {
        self.data_sender.is_in_flight() || self.long.iter().any(Long::is_in_flight)
    }

    /// Of a peer that has left: small messages that are not connected by now never leave. They are dropped, because their memory is their
    /// callers' again.
    fn give_up_small(&mut self) {
        if !self.sender.is_open() && (self.is_closed || !self.sends_long()) {
            self.given_up.extend(self.sender.clear());
            self.is_closed = true;
        }
        self.silent[Way::Small.index()] |= self.is_in_vain(Way::Small);
    }

    /// Of a peer that has left: long messages whose headers were sent or have come never move, if no more headers come and their way has
    /// never been opened.
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

    /// The least progress that receives what this peer sends, for a rank that waits for it. A short message does not
    /// count as progress towards the awaited one: if it is the awaited one, the wait ends.
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
        // A collective keeps the group's own thread from doing that.
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

    /// Continues what is requested.
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
                Way::Long(route) => self.long[route as usize].open_receive(end, number())?,
                Way::Data => self.data_receiver.open(end, number()),
            }
        }
        self.failing = None;
        Ok(moved)
    }

    fn take_in(&mut self, most: usize, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut any = false;
        for _ in 0..most {
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
                }
                _ => shared.matching.short(self.rank, arrival.header, arrival.body),
            }
            self.receiver.release(arrival)?;
        }
        Ok(any)
    }

    /// A long message's header has come.
    pub(super) fn announced(
        &mut self,
        route: Route,
        header: Header,
        matching: &mut Matching,
    ) -> Result<(), GroupError> {
        self.long[route as usize].announced(route, header, matching)
    }

    /// Makes memory for the messages before this one that no receive has taken. On an error nothing is matched or received.
    pub(super) fn make_room(&mut self, position: Position) -> Result<(), GroupError> {
        self.long[position.route as usize].make_room(position.ordinal)
    }

    /// Matches a receive with a long message whose header came earlier.
    pub(super) fn claim(&mut self, position: Position, claim: Claim, matching: &mut Matching) {
        self.long[position.route as usize].claim(position.ordinal, claim, matching);
    }

    /// Completes long messages that were received or sent, and ends the receives of those that never come.
    fn end_long(&mut self, matching: &mut Matching) -> bool {
        let mut moved = false;
        for route in Route::ALL {
            moved |= self.long[route as usize].end(matching);
            // Where all is read, the connections close first.
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

    /// A message for a slot, which leaves by [`Peer::send_queued`] or at the next poll.
    pub(super) fn queue(
        &mut self,
        letter: Letter,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.open(Way::Small, shared)?;
        self.sender.push(letter);
        Ok(())
    }

    /// The bytes of a long message, whose header is queued.
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

    /// Sends what is queued, as far as possible now: all headers, then a piece of long messages.
    pub(super) fn send_queued(&mut self, shared: &mut Shared<'_>) -> Result<(), GroupError> {
        // The memory of earlier messages may be their callers' again.
        if self.is_closed {
            return Ok(());
        }
        self.failing = Some(Failing::Out);
        self.post_letters(shared.matching)?;
        self.push_long(shared)?;
        self.failing = None;
        Ok(())
    }

    /// A long part of this collective.
    pub(super) fn send_data(
        &mut self,
        call: Call,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Data, shared)?;
        // A receive is announced by the poll after its post. The peer sends meanwhile what would otherwise wait until this rank has sent.
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

    /// The pieces of long messages posted and completed so far: those sent, and those received.
    pub(super) fn pieces(&self) -> (u64, u64) {
        let [(sent, came), (staged, landed)] = self.long.each_ref().map(Long::pieces);
        (sent + staged, came + landed)
    }

    /// How many long parts are sent; no more are under way once their connection is closed.
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

    /// Frees its slot.
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

    /// Whether all long parts of collectives have.
    pub(super) fn has_sent_data(&self) -> bool {
        self.data_sender.is_idle()
    }

    /// Whether a connection with it is requested and not open yet.
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

    // Pairs of lanes of one user each.

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

    /// Closes this end once the peer closes its own. It keeps the buffer until then.
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
    /// Whether anything but its pairs is open.
    pub(super) fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    /// The long messages whose bytes are received.
    pub(super) fn posted(&self) -> usize {
        self.long.iter().map(Long::posted).sum()
    }

    /// The long messages that receives have taken.
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
            assert!(Instant::now() < end, "it is never the turn {number}");
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

    /// Waits until rank 1 has gone, without a look at what it has sent.
    fn let_rank_1_go(turn: &AtomicUsize) {
        turn.store(1, Ordering::Release);
        await_turn(turn, 2);
    }

    /// Turn 1 lasts until rank 1 has left. Returns when the rendezvous has said so; nothing is polled meanwhile.
    fn let_rank_1_leave(turn: &AtomicUsize, mesh: &mut Mesh) {
        let_rank_1_go(turn);
        let end = Instant::now() + WAIT;
        while !mesh.left[1] {
            assert!(Instant::now() < end, "the rendezvous does not say that it has left");
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
                // It does not say where to connect.
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
    fn a_connection_with_the_awaited_peer_comes_about_by_polls_of_that_peer_alone() {
        ranks(&library(), 2, |group| {
            if group.rank() == 1 {
                return assert_eq!(group.recv_vec::<u8>(0, 1).unwrap().0, [7]);
            }
            // The group's own thread cannot poll meanwhile.
            let mut state = group.shared.lock();
            state.mesh.with(1, |peer, shared| peer.open(Way::Small, shared)).unwrap();
            let end = Instant::now() + WAIT;
            while state.mesh.peer(1).unwrap().is_connecting() {
                assert!(Instant::now() < end, "it never comes about");
                state.mesh.hear().unwrap();
                state.mesh.with(1, |peer, shared| peer.attend(shared).map(drop)).unwrap();
                std::thread::yield_now();
            }
            drop(state);
            group.send(&[7_u8], 1, 1).unwrap();
        });
    }

    /// Says farewell and closes all connections, without a look at what has come.
    fn leave(mesh: &mut Mesh) {
        mesh.farewell();
        mesh.fail(Failure::Other("this rank has left".to_owned()));
    }

    #[test]
    fn a_long_message_to_a_rank_that_has_left_is_lost_though_its_connection_never_comes_about() {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            let data = [0_u8; LONG];
            if group.rank() == 1 {
                // It does not say where to connect.
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

    /// One message for each receive that is posted ahead; the barrier has used one. The test plugin fails all of a connection that has ended where
    /// there are more receives.
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

    /// The last piece of a long message comes with the end of its connection, which the post after it sees. Rank 1 does `last` before it leaves.
    fn the_last_piece_comes_with_the_end(last: fn(&Group), is_known_to_leave: bool) {
        let turn = Arc::<AtomicUsize>::default();
        ranks_within(&keeping(), 2, TIMEOUT, move |group| {
            if group.rank() == 1 {
                // The connection is open then.
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
                assert!(mesh.with(1, take_in).unwrap(), "it has come");
            };
            if is_known_to_leave {
                let_rank_1_leave(&turn, mesh);
                header(mesh);
            } else {
                let_rank_1_go(&turn);
            }
            header(mesh);
            // The end comes after the look at small messages.
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
    fn the_same_where_a_later_one_was_announced_and_never_comes() {
        let announce = |group: &Group| {
            let kind = Kind::Long(Route::Staged);
            // Of more pieces than receives are posted for.
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
                assert!(Instant::now() < end, "it neither connects nor fails");
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
                // The other end has connected, and this one reads no letter.
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
                    assert!(Instant::now() < end, "its user waits");
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
    fn the_same_is_lost_for_a_receive_from_any_rank() {
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

    /// Longer than any lingering of a rank that leaves.
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
            // Rank 1 learns where to connect, and this rank polls nothing until it has gone.
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
                assert!(Instant::now() < end, "the end of its other connection is not seen");
                state.mesh.poll(None).unwrap();
            }
            drop(state);
            lost(group.recv(&mut [0_u8], 1, 9));
            let mut all = vec![0; 4 * SMALL];
            group.gather(&part, Some(&mut all), 0).unwrap();
            assert_eq!(all, [7; 4 * SMALL]);
            let mut state = group.shared.lock();
            state.mesh.poll(None).unwrap();
            assert!(state.mesh.peers[1].is_none(), "nothing more is due");
            drop(state);
            lost(group.gather(&part, Some(&mut all), 0));
        });
    }

    #[test]
    fn long_parts_of_a_rank_that_has_left_are_lost_where_their_connection_cannot_be_accepted() {
        let mut peer = Peer::new(1, 0, 0);
        peer.sent_data = Some(1);
        assert!(!peer.is_lost(Way::Data, false));
        // As after an error of accept.
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

    /// Rank 1 does `first`, and its header follows.
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
                // Its header has come.
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
