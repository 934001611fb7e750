//! Another rank: its lanes, how they are opened, and its long messages in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Moved;
use super::connector::Connector;
use super::header::{Header, Kind};
use super::lane::Lane;
use super::matching::{Claim, Matching, OpId};
use super::opening::Opening;
use super::pair::{self, Pair, PairName};
use super::registry::Registry;
use super::slots::{Arrival, SLOTS, SlotReceiver, SlotSender};
use crate::bootstrap::Remote;
use crate::error::GroupError;
use crate::loader::{Buffer, Handle, Net, Place, ReceiveComm, SendComm};
use crate::memory::zeroed;

/// Long messages that may be in flight before the queues grow.
const QUEUE: usize = 64;

/// What a pair of comms carries. Each pair is opened on first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Small messages and headers, through slots.
    Small,
    /// Long messages between ranks, in the order of their headers.
    Bulk,
    /// Long parts of collectives, in program order.
    Data,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Bulk, Self::Data];

    fn number(self) -> u8 {
        self as u8
    }
}

/// What the lanes of every peer need.
pub(super) struct Shared<'a> {
    pub(super) net: &'a Arc<Net>,
    pub(super) rank: usize,
    pub(super) connector: &'a Connector,
    pub(super) place: &'a mut Remote,
    pub(super) registry: &'a mut Registry,
    pub(super) matching: &'a mut Matching,
    pub(super) comms: &'a mut usize,
}

#[derive(Debug)]
pub(super) struct Peer {
    rank: usize,
    /// The device for this peer.
    device: usize,
    openings: [Opening; 3],
    sender: SlotSender,
    receiver: SlotReceiver,
    bulk: (Lane<SendComm>, Lane<ReceiveComm>),
    data: (Lane<SendComm>, Lane<ReceiveComm>),
    pairs: Vec<Pair>,
    outgoing: VecDeque<(u64, OpId)>,
    incoming: VecDeque<Incoming>,
    /// The number of the first of those.
    first: u64,
    /// A long message without a receive keeps later ones waiting, because there was no memory for it.
    lacks_memory: bool,
    /// Per way: nothing more comes from the peer. Other ways, and sends to it, may still complete.
    silent: [bool; 3],
    /// Nothing more can be sent to the peer.
    is_closed: bool,
    /// The connection of an error that is being reported.
    failing: Option<Failing>,
}

#[derive(Clone, Copy, Debug)]
enum Failing {
    In(Way),
    Out,
}

/// A long message whose header has arrived.
#[derive(Debug)]
struct Incoming {
    len: usize,
    /// Its number on the bulk lane.
    posted: Option<u64>,
    /// Its own memory, if no receive took it in time.
    spill: Option<Vec<u8>>,
    claim: Option<Claim>,
    over: bool,
}

impl Peer {
    pub(super) fn new(rank: usize, own: usize, device: usize) -> Self {
        let tag = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
        Self {
            rank,
            device,
            openings: Default::default(),
            sender: SlotSender::default(),
            receiver: SlotReceiver::default(),
            bulk: (Lane::new(tag(own)), Lane::new(tag(rank))),
            data: (Lane::new(tag(own)), Lane::new(tag(rank))),
            pairs: Vec::new(),
            outgoing: VecDeque::with_capacity(QUEUE),
            incoming: VecDeque::with_capacity(QUEUE),
            first: 0,
            lacks_memory: false,
            silent: [false; 3],
            is_closed: false,
            failing: None,
        }
    }

    /// Requests a pair of comms, once.
    pub(super) fn open(&mut self, way: Way, shared: &mut Shared<'_>) -> Result<(), GroupError> {
        self.openings[way as usize].request(self.rank, self.device, &[way.number()], shared)
    }

    /// The peer's handle has arrived.
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
        let handle = Handle(bytes.try_into().map_err(|_| nonsense())?);
        self.open(way, shared)?;
        self.openings[way as usize].invited(self.device, handle, shared);
        Ok(())
    }

    /// Makes progress on everything. Returns whether anything moved.
    pub(super) fn progress(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        for way in Way::ALL {
            if self.openings[way as usize].is_requested() {
                moved |= self.connect(way, shared)?;
            }
        }
        // A peer that sends all the time must not keep this poll.
        moved |= self.bring_in(SLOTS, shared)?;
        moved |= self.push_out(shared)?;
        for pair in &mut self.pairs {
            moved |= pair.progress();
        }
        self.pairs.retain(|pair| !pair.is_forgotten());
        Ok(moved | self.end_long(shared.matching))
    }

    fn push_out(&mut self, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        if self.is_closed {
            return Ok(false);
        }
        self.failing = Some(Failing::Out);
        let mut moved = self.post_letters(shared.matching)?;
        moved |= self.sender.test()?;
        moved |= self.bulk.0.progress(shared.registry)?;
        moved |= self.data.0.progress(shared.registry)?;
        self.failing = None;
        Ok(moved)
    }

    /// Receives what is there, of messages in slots up to `most`.
    fn bring_in(&mut self, most: usize, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let data = self.bring_by(Way::Data, |peer| peer.data.1.progress(shared.registry))?;
        let small = self
            .bring_by(Way::Small, |peer| Ok(peer.take_in(most, shared)? | peer.receiver.post()?))?;
        let bulk = self.bring_by(Way::Bulk, |peer| {
            if peer.lacks_memory {
                peer.post_long();
            }
            peer.bulk.1.progress(shared.registry)
        })?;
        Ok(data | small | bulk)
    }

    /// Receives by one way, unless nothing more comes by it.
    #[inline]
    fn bring_by(
        &mut self,
        way: Way,
        receive: impl FnOnce(&mut Self) -> Result<bool, GroupError>,
    ) -> Result<bool, GroupError> {
        if self.silent[way as usize] {
            return Ok(false);
        }
        self.failing = Some(Failing::In(way));
        let moved = receive(self)?;
        self.failing = None;
        Ok(moved)
    }

    /// The peer has left, and a connection with it has ended. False if it is unknown which.
    pub(super) fn left(&mut self) -> bool {
        match self.failing.take() {
            Some(Failing::In(way)) => self.silent[way as usize] = true,
            Some(Failing::Out) => self.is_closed = true,
            None => return false,
        }
        true
    }

    /// Whether it has left, and nothing more can be received from it or sent to it.
    pub(super) fn is_over(&self) -> bool {
        self.is_silent() && self.pairs.iter().all(Pair::is_over)
    }

    /// The same, whatever its pairs do.
    #[inline]
    fn is_silent(&self) -> bool {
        self.silent[Way::Small as usize] && self.is_silent_otherwise()
    }

    /// The same, where no more small messages come.
    #[cold]
    fn is_silent_otherwise(&self) -> bool {
        let [_, bulk, data] = self.silent;
        (self.is_closed || self.has_sent())
            && self.receiver.held().is_none()
            && (bulk || self.incoming.is_empty())
            && (data || self.data.1.is_idle())
    }

    /// Whether nothing more can be received from it or sent to it by this way, which may never have been opened. `settled`: it has left,
    /// and whatever it had connected before is open by then.
    pub(super) fn is_lost(&mut self, way: Way, settled: Option<Instant>) -> bool {
        let never = settled.is_some_and(|settled| self.openings[way as usize].is_in_vain(settled));
        match way {
            Way::Small if never && (self.is_closed || !self.bulk.0.is_in_flight()) => {
                self.give_up_small();
            }
            Way::Data if never => return true,
            _ => {}
        }
        self.is_silent()
    }

    /// The small messages never leave: they are dropped, because their memory is their callers' again.
    fn give_up_small(&mut self) {
        self.openings[Way::Small as usize] = Opening::default();
        self.sender.clear();
        self.is_closed = true;
        self.silent[Way::Small as usize] |= !self.receiver.is_open();
    }

    /// The least progress that receives what this peer sends, for a rank that waits for it. A short message does not
    /// count as progress towards the awaited one: if it is the awaited one, the wait ends.
    pub(super) fn attend(&mut self, shared: &mut Shared<'_>) -> Result<Moved, GroupError> {
        let before = self.receiver.parts();
        let done = (self.data.1.posted(), self.bulk.1.posted());
        let any = self.bring_in(1, shared)?;
        let mut parts =
            self.receiver.parts() != before || done != (self.data.1.posted(), self.bulk.1.posted());
        if !self.is_closed {
            self.failing = Some(Failing::Out);
            parts |= self.data.0.progress(shared.registry)?;
            parts |= self.bulk.0.progress(shared.registry)?;
            if self.sender.lacks_slots() {
                parts |= self.sender.test()?;
                parts |= self.post_letters(shared.matching)?;
            }
            self.failing = None;
        }
        parts |= self.end_long(shared.matching);
        Ok(match (parts, any) {
            (true, _) => Moved::Here,
            (false, true) => Moved::Elsewhere,
            (false, false) => Moved::Nothing,
        })
    }

    fn connect(&mut self, way: Way, shared: &mut Shared<'_>) -> Result<bool, GroupError> {
        let has = match way {
            Way::Small => (self.sender.is_open(), self.receiver.is_open()),
            Way::Bulk => (self.bulk.0.is_open(), self.bulk.1.is_open()),
            Way::Data => (self.data.0.is_open(), self.data.1.is_open()),
        };
        let (send, receive) = self.openings[way as usize].brought(has)?;
        let moved = send.is_some() || receive.is_some();
        let mut number = || {
            *shared.comms += 1;
            *shared.comms - 1
        };
        let tag = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
        if let Some(end) = send {
            match way {
                Way::Small => self.sender.open(end, tag(shared.rank))?,
                Way::Bulk => self.bulk.0.open(end, number()),
                Way::Data => self.data.0.open(end, number()),
            }
        }
        if let Some(end) = receive {
            match way {
                Way::Small => self.receiver.open(end, tag(self.rank))?,
                Way::Bulk => self.bulk.1.open(end, number()),
                Way::Data => self.data.1.open(end, number()),
            }
        }
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
            if arrival.header.kind == Kind::Short {
                shared.matching.short(self.rank, arrival.header, arrival.body);
            } else {
                self.open(Way::Bulk, shared)?;
                self.announced(arrival.header, shared.matching)?;
            }
            self.receiver.release(arrival)?;
        }
        Ok(any)
    }

    /// A long message's header has come.
    pub(super) fn announced(
        &mut self,
        header: Header,
        matching: &mut Matching,
    ) -> Result<(), GroupError> {
        let ordinal = self.first + self.incoming.len() as u64;
        let claim = matching.long(self.rank, header, ordinal);
        let len = usize::try_from(header.len).map_err(|_| {
            GroupError::Contract("a message longer than memory was announced".to_owned())
        })?;
        self.incoming.push_back(Incoming { len, posted: None, spill: None, claim, over: false });
        if claim.is_some() {
            self.post_long();
        }
        Ok(())
    }

    /// Makes memory for the messages before this one that no receive has taken. On an error nothing is matched or posted.
    pub(super) fn make_room(&mut self, ordinal: u64) -> Result<(), GroupError> {
        self.spill(self.index(ordinal))
    }

    /// Matches a receive with a long message whose header came earlier.
    pub(super) fn claim(&mut self, ordinal: u64, claim: Claim, matching: &mut Matching) {
        let index = self.index(ordinal);
        if let Some(incoming) = self.incoming.get_mut(index) {
            incoming.claim = Some(claim);
        }
        self.post_long();
        self.end_long(matching);
    }

    fn index(&self, ordinal: u64) -> usize {
        usize::try_from(ordinal - self.first).unwrap_or(usize::MAX)
    }

    /// Makes memory for those of the first `count` long messages that no receive has taken.
    fn spill(&mut self, count: usize) -> Result<(), GroupError> {
        for incoming in self.incoming.iter_mut().take(count) {
            let is_free = incoming.claim.is_none() && incoming.posted.is_none();
            if is_free && incoming.spill.is_none() {
                incoming.spill = Some(zeroed(incoming.len)?);
            }
        }
        Ok(())
    }

    /// Posts receives for long messages in order, up to the last one that has a receive. The others before it get memory; one for which
    /// there is none stops this until there is, or a receive takes it.
    fn post_long(&mut self) {
        let last_claimed = self.incoming.iter().rposition(|incoming| incoming.claim.is_some());
        let Some(last_claimed) = last_claimed else { return };
        let made = self.spill(last_claimed + 1);
        let lacked = std::mem::replace(&mut self.lacks_memory, made.is_err());
        if let (Err(why), false) = (made, lacked) {
            log::warn!("messages of rank {} wait for an earlier one: {why}", self.rank);
        }
        for incoming in self.incoming.iter_mut().take(last_claimed + 1) {
            if incoming.posted.is_some() {
                continue;
            }
            let lane = &mut self.bulk.1;
            let number = match (&incoming.claim, &mut incoming.spill) {
                (Some(claim), _) => match claim.place() {
                    Some(place) => lane.push(place),
                    None => lane.push_discarded(incoming.len),
                },
                (None, Some(spill)) => lane.push(Place::writing(spill)),
                (None, None) => return,
            };
            if incoming.claim.is_some() {
                // Made for an earlier receive, which found no memory for another message.
                incoming.spill = None;
            }
            incoming.posted = Some(number);
        }
    }

    /// Completes long messages that were received or sent.
    fn end_long(&mut self, matching: &mut Matching) -> bool {
        if self.outgoing.is_empty() && self.incoming.is_empty() {
            return false;
        }
        let mut moved = false;
        while let Some((number, op)) = self.outgoing.front().copied() {
            if self.bulk.0.done() < number {
                break;
            }
            matching.sent(op);
            self.outgoing.pop_front();
            moved = true;
        }
        let done = self.bulk.1.done();
        for incoming in &mut self.incoming {
            if incoming.over {
                continue;
            }
            if incoming.posted.is_none_or(|number| number > done) {
                break;
            }
            if let Some(claim) = incoming.claim {
                if let (Some(spill), Some(place)) = (&incoming.spill, claim.place()) {
                    place.copy_from(Place::reading(spill));
                }
                matching.deliver(claim);
                incoming.over = true;
                incoming.spill = None;
                moved = true;
            }
        }
        while self.incoming.front().is_some_and(|incoming| incoming.over) {
            self.incoming.pop_front();
            self.first += 1;
        }
        moved
    }

    fn post_letters(&mut self, matching: &mut Matching) -> Result<bool, GroupError> {
        self.sender.post(|op| matching.sent(op))
    }

    /// Sends a message through a slot, now if possible.
    pub(super) fn send(
        &mut self,
        letter: super::slots::Letter,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.open(Way::Small, shared)?;
        self.sender.push(letter);
        self.failing = Some(Failing::Out);
        self.post_letters(shared.matching)?;
        self.failing = None;
        Ok(())
    }

    /// Sends the bytes of a long message, whose header was sent.
    pub(super) fn send_long(
        &mut self,
        place: Place,
        op: OpId,
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        self.open(Way::Bulk, shared)?;
        let number = self.bulk.0.push(place);
        self.outgoing.push_back((number, op));
        self.bulk.0.progress(shared.registry).map(drop)
    }

    pub(super) fn send_data(
        &mut self,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Data, shared)?;
        // A receive is announced by the poll after its post. The peer sends meanwhile what would otherwise wait until this rank has sent.
        self.bring_by(Way::Data, |peer| peer.data.1.progress(shared.registry))?;
        let number = self.data.0.push(place);
        self.data.0.progress(shared.registry)?;
        Ok(number)
    }

    pub(super) fn receive_data(
        &mut self,
        place: Place,
        shared: &mut Shared<'_>,
    ) -> Result<u64, GroupError> {
        self.open(Way::Data, shared)?;
        let number = self.data.1.push(place);
        self.data.1.progress(shared.registry)?;
        Ok(number)
    }

    /// The pieces of long messages posted and completed so far: those sent, and those received.
    pub(super) fn pieces(&self) -> (u64, u64) {
        (self.bulk.0.posted(), self.bulk.1.posted())
    }

    pub(super) fn sent_data(&self) -> u64 {
        self.data.0.done()
    }

    pub(super) fn received_data(&self) -> u64 {
        self.data.1.done()
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
        self.data.0.is_idle()
    }

    /// Whether a connection with it is requested and not open yet.
    pub(super) fn is_connecting(&self) -> bool {
        self.openings.iter().any(Opening::is_requested)
            || self.pairs.iter().any(Pair::is_connecting)
    }

    /// Whether the plugin has completed everything that this rank sends.
    pub(super) fn has_sent(&self) -> bool {
        let lanes = self.sender.is_idle() && self.data.0.is_idle() && self.bulk.0.is_idle();
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
    /// The long messages whose bytes the bulk lane receives.
    pub(super) fn posted(&self) -> usize {
        self.incoming.iter().filter(|incoming| incoming.posted.is_some()).count()
    }

    /// The long messages that receives have taken.
    pub(super) fn claims(&self) -> usize {
        self.incoming.iter().filter(|incoming| incoming.claim.is_some()).count()
    }
}
