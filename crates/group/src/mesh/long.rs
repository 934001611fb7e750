//! Long messages to and from a peer by one route: their bytes travel in the order of their headers, which are small messages.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::header::{Header, Route};
use super::lane::Lane;
use super::matching::{Claim, Matching, OpId, Position};
use super::registry::Registry;
use crate::error::GroupError;
use crate::loader::{Memory, Place, ReceiveComm, SendComm};
use crate::memory::{check_claimed, zeroed};

/// Long messages that may be in flight before the queues grow.
const QUEUE: usize = 64;

/// Receives messages of known sizes, in order. They are numbered from 1.
pub(super) trait Receiver: fmt::Debug + Send {
    /// `number` identifies the comm in the mesh.
    fn open(&mut self, end: ReceiveComm, number: usize) -> Result<(), GroupError>;
    fn is_open(&self) -> bool;
    /// A message of `len` bytes will come. Its place may not be known yet.
    fn announced(&mut self, len: usize);
    /// The peer leaves, and sends nothing more. Returns whether a receive that was posted ahead has failed before this
    /// call.
    fn leaves(&mut self) -> bool;
    /// The peer has left, and had sent so many pieces to receives that are posted ahead.
    fn sent(&mut self, pieces: u64);
    /// Whether the end of the connection may lose what has come. `is_announced`: it is known how much the peer has sent.
    fn may_lose(&self, is_announced: bool) -> bool;
    /// Sets the place of the next message; returns the message's number. `place` None: no receive takes the message, and its bytes are
    /// dropped.
    fn expect(&mut self, place: Option<Place>, len: usize) -> u64;
    /// As `expect`, of a message that may stay in the receiver's own memory until [`Receiver::release`]; `spare` is where it goes
    /// otherwise.
    fn expect_staying(&mut self, spare: Place) -> u64 {
        self.expect(Some(spare), spare.len())
    }
    /// The oldest complete message that stays in the receiver's memory, and this memory.
    fn staying(&self) -> Option<(Place, &Arc<Memory>)> {
        None
    }
    /// Frees the memory of the message from [`Receiver::staying`].
    fn release(&mut self) {}
    /// The number up to which all messages are complete.
    fn done(&self) -> u64;
    /// A count that changes whenever a piece moves.
    fn moves(&self) -> u64;
    /// No more pieces come: closes the connection, if memory of callers is posted there.
    fn close(&mut self, _: &mut Registry) {}
    /// Posts and tests receives; returns whether anything moved.
    fn progress(&mut self, registry: &mut Registry) -> Result<bool, GroupError>;
}

impl Receiver for Lane<ReceiveComm> {
    fn open(&mut self, end: ReceiveComm, number: usize) -> Result<(), GroupError> {
        self.open(end, number);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }

    // This lane posts receives only for messages that have a place.
    fn announced(&mut self, _: usize) {}

    fn leaves(&mut self) -> bool {
        false
    }

    fn sent(&mut self, _: u64) {}

    fn may_lose(&self, _: bool) -> bool {
        false
    }

    fn expect(&mut self, place: Option<Place>, len: usize) -> u64 {
        self.add(place, len)
    }

    fn done(&self) -> u64 {
        self.done()
    }

    fn moves(&self) -> u64 {
        self.moves()
    }

    fn close(&mut self, registry: &mut Registry) {
        self.close(registry);
    }

    fn progress(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        self.progress(registry)
    }
}

#[derive(Debug)]
pub(super) struct Long {
    /// The peer's rank.
    rank: usize,
    sender: Lane<SendComm>,
    receiver: Box<dyn Receiver>,
    outgoing: VecDeque<(u64, OpId)>,
    incoming: VecDeque<Incoming>,
    /// The ordinal of the first message in `incoming`.
    first: u64,
    /// There was no memory for a message without a receive; later messages wait.
    lacks_memory: bool,
    /// The peer has left, and pieces may come before their headers are read.
    has_left: bool,
}

/// A message whose header has arrived.
#[derive(Debug)]
struct Incoming {
    len: usize,
    /// The message's number at the [`Receiver`].
    posted: Option<u64>,
    /// Memory made for the message because a later message had a receive and this one had none.
    spill: Option<Vec<u8>>,
    claim: Option<Claim>,
    over: bool,
}

impl Long {
    pub(super) fn new(rank: usize, sender: Lane<SendComm>, receiver: Box<dyn Receiver>) -> Self {
        let (outgoing, incoming) = (VecDeque::new(), VecDeque::new());
        Self {
            rank,
            sender,
            receiver,
            outgoing,
            incoming,
            first: 0,
            lacks_memory: false,
            has_left: false,
        }
    }

    pub(super) fn open_send(&mut self, end: SendComm, number: usize) {
        self.sender.open(end, number);
        self.outgoing.reserve(QUEUE);
    }

    pub(super) fn open_receive(
        &mut self,
        end: ReceiveComm,
        number: usize,
    ) -> Result<(), GroupError> {
        self.incoming.reserve(QUEUE);
        self.receiver.open(end, number)
    }

    /// Closes the connection to the peer. Messages that are not sent are lost.
    pub(super) fn close_send(&mut self, registry: &mut Registry, matching: &mut Matching) {
        self.sender.close(registry);
        self.end(matching);
        self.outgoing.drain(..).for_each(|(_, op)| matching.lose(op, self.rank));
    }

    /// As [`Receiver::close`].
    pub(super) fn close_receive(&mut self, registry: &mut Registry) {
        self.receiver.close(registry);
    }

    /// Which directions are open: to the peer, and from it.
    pub(super) fn is_open(&self) -> (bool, bool) {
        (self.sender.is_open(), self.receiver.is_open())
    }

    /// Queues the bytes of a message, whose header is sent.
    pub(super) fn queue(&mut self, place: Place, op: OpId) {
        let number = self.sender.push(place);
        self.outgoing.push_back((number, op));
    }

    #[inline]
    pub(super) fn push_out(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        self.sender.progress(registry)
    }

    #[inline]
    pub(super) fn bring_in(&mut self, registry: &mut Registry) -> Result<bool, GroupError> {
        if self.awaits_none() && !self.has_left {
            return Ok(false);
        }
        if self.lacks_memory {
            self.expect();
        }
        self.receiver.progress(registry)
    }

    /// The peer leaves: messages that it has sent still come. Returns as [`Receiver::leaves`].
    pub(super) fn leaves(&mut self) -> bool {
        self.receiver.leaves()
    }

    /// As [`Receiver::sent`].
    pub(super) fn sent(&mut self, pieces: u64) {
        self.has_left = true;
        self.receiver.sent(pieces);
    }

    /// For a peer that has left, and has said how much it has sent: as [`Receiver::may_lose`].
    pub(super) fn may_lose(&self) -> bool {
        self.receiver.may_lose(true)
    }

    /// The numbers of messages that were sent, and that were received.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.sender.done(), self.receiver.done())
    }

    /// Whether the plugin may access the memory of any message to the peer.
    pub(super) fn is_in_flight(&self) -> bool {
        self.sender.is_in_flight()
    }

    /// Whether the plugin has completed all sends.
    pub(super) fn has_sent(&self) -> bool {
        self.sender.is_idle()
    }

    /// The operations of sends and receives that have not ended.
    pub(super) fn operations(&self) -> impl Iterator<Item = OpId> {
        let claims = self.incoming.iter().filter(|incoming| !incoming.over);
        let receives = claims.filter_map(|incoming| Some(incoming.claim?.op()));
        self.outgoing.iter().map(|(_, op)| *op).chain(receives)
    }

    /// Whether all messages that receives have taken are over.
    pub(super) fn receives_none(&self) -> bool {
        self.incoming.iter().all(|incoming| incoming.over || incoming.claim.is_none())
    }

    /// Whether all messages whose headers have come are over.
    pub(super) fn awaits_none(&self) -> bool {
        self.incoming.is_empty()
    }

    /// The number of pieces that the plugin has taken to send.
    pub(super) fn posted_out(&self) -> u64 {
        self.sender.posted()
    }

    /// The counts of pieces sent and of pieces received, as [`Lane::moves`].
    pub(super) fn pieces(&self) -> (u64, u64) {
        (self.sender.moves(), self.receiver.moves())
    }

    /// The header of a message has come.
    pub(super) fn announced(
        &mut self,
        route: Route,
        header: Header,
        matching: &mut Matching,
    ) -> Result<(), GroupError> {
        let ordinal = self.first + self.incoming.len() as u64;
        let claim = matching.long(self.rank, header, Position { route, ordinal });
        let len = usize::try_from(header.len).map_err(|_| {
            GroupError::Contract("a message longer than memory was announced".to_owned())
        })?;
        self.receiver.announced(len);
        self.incoming.push_back(Incoming { len, posted: None, spill: None, claim, over: false });
        if claim.is_some() {
            self.expect();
        }
        Ok(())
    }

    /// Makes memory for the messages before this one that no receive has taken. After an error no message is matched or expected.
    pub(super) fn make_room(&mut self, ordinal: u64) -> Result<(), GroupError> {
        self.spill(self.index(ordinal))
    }

    /// Matches a receive with a message whose header came earlier.
    pub(super) fn claim(&mut self, ordinal: u64, claim: Claim, matching: &mut Matching) {
        let index = self.index(ordinal);
        match self.incoming.get_mut(index) {
            Some(incoming) => incoming.claim = Some(claim),
            // The connection of the message was closed, and the bytes are lost.
            None => matching.lose(claim.op(), self.rank),
        }
        self.expect();
        self.end(matching);
    }

    fn index(&self, ordinal: u64) -> usize {
        usize::try_from(ordinal - self.first).unwrap_or(usize::MAX)
    }

    /// Makes memory for each of the first `count` messages that no receive has taken.
    fn spill(&mut self, count: usize) -> Result<(), GroupError> {
        for incoming in self.incoming.iter_mut().take(count) {
            let is_free = incoming.claim.is_none() && incoming.posted.is_none();
            if is_free && incoming.spill.is_none() {
                check_claimed(incoming.len)?;
                incoming.spill = Some(zeroed(incoming.len)?);
            }
        }
        Ok(())
    }

    /// Sets the places of messages in order, up to the last message that has a receive. Messages before it that have no receive get memory.
    /// If there is none for a message, this message and later ones wait until there is, or until a receive takes it.
    fn expect(&mut self) {
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
            let place = match (&incoming.claim, &mut incoming.spill) {
                (Some(claim), _) => claim.place(),
                (None, Some(spill)) => Some(Place::writing(spill)),
                (None, None) => return,
            };
            if incoming.claim.is_some() {
                // Memory that was made for an earlier receive, which then found none for another message.
                incoming.spill = None;
            }
            incoming.posted = Some(self.receiver.expect(place, incoming.len));
        }
    }

    /// Ends the operations of messages that the lanes have completed. Returns whether there were any.
    pub(super) fn end(&mut self, matching: &mut Matching) -> bool {
        if self.outgoing.is_empty() && self.incoming.is_empty() {
            return false;
        }
        let mut moved = false;
        while let Some((number, op)) = self.outgoing.front().copied() {
            if self.sender.done() < number {
                break;
            }
            matching.sent(op);
            self.outgoing.pop_front();
            moved = true;
        }
        let done = self.receiver.done();
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
        self.forget_first();
        moved
    }

    /// No more bytes come: ends the receives of messages that are not complete. Returns whether there were any.
    pub(super) fn lose(&mut self, matching: &mut Matching) -> bool {
        let mut moved = false;
        for incoming in self.incoming.iter_mut().filter(|incoming| !incoming.over) {
            let Some(claim) = incoming.claim else { continue };
            matching.lose(claim.op(), self.rank);
            incoming.over = true;
            moved = true;
        }
        self.forget_first();
        moved
    }

    fn forget_first(&mut self) {
        while self.incoming.front().is_some_and(|incoming| incoming.over) {
            self.incoming.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
impl Long {
    /// The number of messages that are posted at the [`Receiver`].
    pub(super) fn posted(&self) -> usize {
        self.incoming.iter().filter(|incoming| incoming.posted.is_some()).count()
    }

    /// The number of messages that receives have taken.
    pub(super) fn claims(&self) -> usize {
        self.incoming.iter().filter(|incoming| incoming.claim.is_some()).count()
    }
}
