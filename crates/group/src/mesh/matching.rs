//! Matches messages with receives: the operations between two ranks, and messages that arrived before their receive.
//!
//! [`Matching`] alone matches, so that no other call can take a message between its search and its match. Messages from one rank match in
//! the order in which they were sent, receives in the order in which they were posted.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use super::header::{self, Header, Route, SMALL_OBJECT, Space};
use super::lost;
use crate::error::GroupError;
use crate::loader::{DataType, Place};

/// An operation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId {
    index: usize,
    generation: u32,
}

/// The envelope of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The rank in the mesh.
    pub(crate) source: usize,
    pub(crate) tag: u32,
    pub(crate) bytes: usize,
    pub(crate) note: u64,
}

/// Why a receive did not take the message that matched it. The message is dropped; the next one is not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    TooLong {
        room: usize,
    },
    OtherType {
        sent: u8,
        wanted: u8,
    },
    /// The peer has left before the end.
    Lost,
}

type Outcome = (Envelope, Option<Refusal>);

#[derive(Clone, Copy, Debug)]
enum State {
    Free,
    /// The route is known once a long message is sent, or the receive has taken one.
    Pending(Option<Route>),
    /// The caller has dropped the operation, and needs no result.
    Abandoned,
    Done(Outcome),
}

/// What a receive matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) scope: u32,
    pub(crate) space: Space,
    /// The rank in the mesh; any, if None.
    pub(crate) source: Option<usize>,
    pub(crate) tag: Option<u32>,
    pub(crate) element: DataType,
    pub(crate) place: Place,
}

impl Wanted {
    fn takes(&self, source: usize, header: &Header) -> bool {
        self.scope == header.scope
            && self.space == header.space
            && self.source.is_none_or(|wanted| wanted == source)
            && self.tag.is_none_or(|wanted| wanted == header.tag)
    }

    fn outcome(&self, source: usize, header: &Header) -> Outcome {
        let bytes = usize::try_from(header.len).unwrap_or(usize::MAX);
        let envelope = Envelope { source, tag: header.tag, bytes, note: header.note };
        let room = self.place.len();
        let wanted = header::type_number(self.element);
        let refusal = if header.element != wanted {
            Some(Refusal::OtherType { sent: header.element, wanted })
        } else {
            (bytes > room).then_some(Refusal::TooLong { room })
        };
        (envelope, refusal)
    }
}

/// Counts the messages of a cancelled space that are still to come.
pub(crate) trait Due: fmt::Debug + Send {
    /// A message has come. Returns whether it was the last one.
    fn came(&mut self, source: usize, note: u64) -> bool;

    /// No more messages come from this rank. Returns whether no message is still to come.
    fn lost(&mut self, _source: usize) -> bool {
        false
    }
}

/// A receive that was matched with a message whose bytes are still to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    op: OpId,
    outcome: Outcome,
    place: Place,
}

impl Claim {
    pub(super) fn op(&self) -> OpId {
        self.op
    }

    /// Where the bytes go; None, if the receive refuses the message.
    pub(super) fn place(&self) -> Option<Place> {
        let (envelope, refusal) = self.outcome;
        refusal.is_none().then(|| self.place.part(0, envelope.bytes))
    }
}

/// A message that arrived before its receive: an unexpected message.
#[derive(Debug)]
struct Unexpected {
    source: usize,
    header: Header,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Bytes(Vec<u8>),
    Long(Position),
    /// This rank's message to itself, still in the sender's memory.
    Own(Place, OpId),
}

/// Where a long message's bytes come from its source: the route, and the message's number there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) route: Route,
    pub(super) ordinal: u64,
}

/// The result of posting a receive.
#[derive(Debug)]
pub(super) enum Found {
    /// No message yet, or a message that was delivered.
    Nothing,
    /// A long message of this rank.
    Long { source: usize, position: Position, claim: Claim },
}

#[derive(Debug)]
pub(super) struct Matching {
    ops: Vec<(State, u32)>,
    free: Vec<usize>,
    posted: VecDeque<(OpId, Wanted)>,
    unexpected: VecDeque<Unexpected>,
    /// Empty buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// Cancelled spaces, by scope and space: messages that still arrive for them are dropped.
    cancelled: HashMap<(u32, Space), Box<dyn Due>>,
}

/// The initial capacity of the lists of operations and of unexpected messages.
const QUEUE: usize = 64;
/// Unexpected messages for which memory is allocated at the start.
const SPARE: usize = 16;
/// The most empty buffers that are kept for later unexpected messages.
const SPARES_MAX: usize = 256;

impl Default for Matching {
    fn default() -> Self {
        Self {
            ops: Vec::with_capacity(QUEUE),
            free: Vec::with_capacity(QUEUE),
            posted: VecDeque::with_capacity(QUEUE),
            unexpected: VecDeque::with_capacity(QUEUE),
            spare: (0..SPARE).map(|_| Vec::with_capacity(SMALL_OBJECT)).collect(),
            cancelled: HashMap::new(),
        }
    }
}

impl Matching {
    pub(super) fn begin(&mut self) -> OpId {
        if let Some(index) = self.free.pop() {
            self.ops[index].0 = State::Pending(None);
            return OpId { index, generation: self.ops[index].1 };
        }
        self.ops.push((State::Pending(None), 0));
        OpId { index: self.ops.len() - 1, generation: 0 }
    }

    /// The state of an operation, unless it is forgotten.
    fn state(&mut self, op: OpId) -> Option<&mut State> {
        let (state, generation) = self.ops.get_mut(op.index)?;
        (*generation == op.generation).then_some(state)
    }

    /// The result of an operation, once it has ended. The operation is then forgotten.
    pub(super) fn ended(&mut self, op: OpId) -> Option<Result<Envelope, GroupError>> {
        let State::Done((envelope, refusal)) = *self.state(op)? else { return None };
        self.forget(op.index);
        let Envelope { source, tag, bytes, .. } = envelope;
        Some(match refusal {
            None => Ok(envelope),
            Some(Refusal::TooLong { room }) => {
                Err(GroupError::TooLong { source, tag, bytes, room })
            }
            Some(Refusal::OtherType { sent, wanted }) => Err(GroupError::OtherType {
                source,
                tag,
                sent: header::type_name(sent),
                wanted: header::type_name(wanted),
            }),
            Some(Refusal::Lost) => Err(lost(source)),
        })
    }

    /// The bytes of the operation's message travel by this route.
    pub(super) fn travels(&mut self, op: OpId, route: Route) {
        if let Some(State::Pending(by)) = self.state(op) {
            *by = Some(route);
        }
    }

    /// The route by which the bytes of a pending operation's message travel, if it is a long one and known.
    pub(super) fn route(&mut self, op: OpId) -> Option<Route> {
        if let Some(State::Pending(route)) = self.state(op) { *route } else { None }
    }

    /// The message of a send has left the caller's memory.
    pub(super) fn sent(&mut self, op: OpId) {
        let envelope = Envelope { source: 0, tag: 0, bytes: 0, note: 0 };
        self.end(op, (envelope, None));
    }

    /// Ends an operation as lost: its peer has left, and the plugin no longer accesses its memory.
    pub(super) fn lose(&mut self, op: OpId, source: usize) {
        let envelope = Envelope { source, tag: 0, bytes: 0, note: 0 };
        self.end(op, (envelope, Some(Refusal::Lost)));
    }

    pub(super) fn deliver(&mut self, claim: Claim) {
        self.end(claim.op, claim.outcome);
    }

    fn end(&mut self, op: OpId, outcome: Outcome) {
        let Some(state) = self.state(op) else { return };
        if matches!(state, State::Abandoned) {
            self.forget(op.index);
        } else {
            *state = State::Done(outcome);
        }
    }

    /// The oldest long message that a receive for `wanted` takes: its source and position.
    pub(super) fn waiting_long(&self, wanted: &Wanted) -> Option<(usize, Position)> {
        let takes = |message: &&Unexpected| wanted.takes(message.source, &message.header);
        let Unexpected { source, body, .. } = self.unexpected.iter().find(takes)?;
        let Body::Long(position) = body else { return None };
        Some((*source, *position))
    }

    /// Posts a receive: it takes the oldest message that matches, or waits for one.
    pub(super) fn receive(&mut self, op: OpId, wanted: Wanted) -> Found {
        let takes = |message: &Unexpected| wanted.takes(message.source, &message.header);
        let Some(index) = self.unexpected.iter().position(takes) else {
            self.posted.push_back((op, wanted));
            return Found::Nothing;
        };
        let Some(Unexpected { source, header, body }) = self.unexpected.remove(index) else {
            return Found::Nothing;
        };
        let claim = Claim { op, outcome: wanted.outcome(source, &header), place: wanted.place };
        match body {
            Body::Long(position) => {
                self.travels(op, position.route);
                return Found::Long { source, position, claim };
            }
            Body::Bytes(bytes) => {
                self.fill(claim, Place::reading(&bytes));
                self.give_back(bytes);
            }
            Body::Own(place, sent) => {
                self.fill(claim, place);
                self.sent(sent);
            }
        }
        Found::Nothing
    }

    /// A short message has arrived, with its bytes in `body`.
    pub(super) fn short(&mut self, source: usize, header: Header, body: Place) {
        if let Some(claim) = self.claim(source, &header) {
            return self.fill(claim, body);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(body.len(), 0);
        body.copy_to(&mut bytes);
        self.unexpected.push_back(Unexpected { source, header, body: Body::Bytes(bytes) });
    }

    /// The header of a long message has arrived: returns the receive that takes the message, if there is one.
    pub(super) fn long(
        &mut self,
        source: usize,
        header: Header,
        position: Position,
    ) -> Option<Claim> {
        let claim = self.claim(source, &header);
        match claim {
            Some(claim) => self.travels(claim.op, position.route),
            None => {
                let body = Body::Long(position);
                self.unexpected.push_back(Unexpected { source, header, body });
            }
        }
        claim
    }

    /// A message of this rank to itself.
    pub(super) fn own(&mut self, op: OpId, rank: usize, header: Header, place: Place) {
        if let Some(claim) = self.claim(rank, &header) {
            self.fill(claim, place);
            return self.sent(op);
        }
        self.unexpected.push_back(Unexpected { source: rank, header, body: Body::Own(place, op) });
    }

    /// Drops this rank's messages to itself in a group, and ends their sends.
    pub(super) fn drop_own(&mut self, scope: u32) {
        let mut ops = Vec::new();
        self.unexpected.retain(|message| match message.body {
            Body::Own(_, op) if message.header.scope == scope => {
                ops.push(op);
                false
            }
            _ => true,
        });
        ops.into_iter().for_each(|op| self.sent(op));
    }

    /// The oldest message that a receive for `wanted` would take, and its element type; it is not removed.
    pub(super) fn probe(&self, wanted: &Wanted) -> Option<(Envelope, u8)> {
        let found =
            self.unexpected.iter().find(|message| wanted.takes(message.source, &message.header))?;
        Some((wanted.outcome(found.source, &found.header).0, found.header.element))
    }

    /// Removes the oldest message that a receive for `wanted` would take; returns it with its bytes. None if the bytes are elsewhere, or of
    /// another element type.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, Vec<u8>)> {
        let takes = |message: &Unexpected| wanted.takes(message.source, &message.header);
        let index = self.unexpected.iter().position(takes)?;
        let Unexpected { source, header, body } = &mut self.unexpected[index];
        let (envelope, _) = wanted.outcome(*source, header);
        let is_of_type = header.element == header::type_number(wanted.element);
        let Body::Bytes(bytes) = body else { return None };
        let bytes = is_of_type.then(|| std::mem::take(bytes))?;
        self.unexpected.remove(index);
        Some((envelope, bytes))
    }

    /// Keeps the memory of a message from [`Matching::take`] for later messages.
    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARES_MAX {
            self.spare.push(bytes);
        }
    }

    /// The caller has dropped the operation. Returns whether its memory is free: it has ended, or it is a receive without a message so far,
    /// which is removed.
    pub(super) fn abandon(&mut self, op: OpId) -> bool {
        let over = self.take_back(op);
        if !over && let Some((state, _)) = self.ops.get_mut(op.index) {
            *state = State::Abandoned;
        }
        over
    }

    /// Removes the operation if it has ended, or is a receive without a message so far. Returns whether its memory is free.
    pub(super) fn take_back(&mut self, op: OpId) -> bool {
        if self.recall(op) {
            return true;
        }
        let Some(state) = self.state(op) else { return true };
        let is_done = matches!(state, State::Done(_));
        if is_done {
            self.forget(op.index);
        }
        is_done
    }

    /// Removes the operation if it is a receive without a message so far. Returns whether it was.
    pub(super) fn recall(&mut self, op: OpId) -> bool {
        let Some(index) = self.posted.iter().position(|(other, _)| *other == op) else {
            return false;
        };
        self.posted.remove(index);
        self.forget(op.index);
        true
    }

    fn forget(&mut self, index: usize) {
        let (state, generation) = &mut self.ops[index];
        *state = State::Free;
        *generation = generation.wrapping_add(1);
        self.free.push(index);
    }

    fn claim(&mut self, source: usize, header: &Header) -> Option<Claim> {
        let Some(index) = self.posted.iter().position(|(_, wanted)| wanted.takes(source, header))
        else {
            return self.refuse(source, header);
        };
        let (op, wanted) = self.posted.remove(index)?;
        Some(Claim { op, outcome: wanted.outcome(source, header), place: wanted.place })
    }

    /// Drops the messages of this space that will arrive, until `due` says that no more come.
    pub(super) fn cancel(&mut self, scope: u32, space: Space, due: Box<dyn Due>) {
        self.cancelled.insert((scope, space), due);
    }

    /// No more messages come from this rank: forgets cancelled spaces in which none is still to come.
    pub(super) fn rank_lost(&mut self, rank: usize) {
        self.cancelled.retain(|_, due| !due.lost(rank));
    }

    /// A claim that discards a message of a cancelled space, so that its sender need not wait.
    fn refuse(&mut self, source: usize, header: &Header) -> Option<Claim> {
        if self.cancelled.is_empty() {
            return None;
        }
        let space = (header.scope, header.space);
        if self.cancelled.get_mut(&space)?.came(source, header.note) {
            self.cancelled.remove(&space);
        }
        let op = self.begin();
        self.ops[op.index].0 = State::Abandoned;
        let bytes = usize::try_from(header.len).unwrap_or(usize::MAX);
        let envelope = Envelope { source, tag: header.tag, bytes, note: header.note };
        let refusal = Some(Refusal::TooLong { room: 0 });
        Some(Claim { op, outcome: (envelope, refusal), place: Place::empty() })
    }

    fn fill(&mut self, claim: Claim, body: Place) {
        if let Some(place) = claim.place() {
            place.copy_from(body);
        }
        self.deliver(claim);
    }
}

#[cfg(test)]
impl Matching {
    /// The number of operations whose results nothing has taken.
    pub(super) fn operations(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    /// The number of messages that wait for a receive.
    pub(super) fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// The number of cancelled spaces.
    pub(super) fn cancellations(&self) -> usize {
        self.cancelled.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::Kind;
    use super::*;

    fn header(tag: u32, len: u64) -> Header {
        Header {
            kind: Kind::Short,
            element: 1,
            scope: 0,
            tag,
            len,
            space: Space::MESSAGES,
            note: 0,
        }
    }

    fn wanted(tag: Option<u32>, place: Place) -> Wanted {
        let (scope, space) = (0, Space::MESSAGES);
        Wanted { scope, space, source: None, tag, element: DataType::U8, place }
    }

    #[test]
    fn receives_match_by_tag_in_any_order_of_posting() {
        let mut matching = Matching::default();
        let (mut a, mut b) = ([0_u8; 4], [0_u8; 4]);
        let first = matching.begin();
        matching.receive(first, wanted(Some(7), Place::writing(&mut a)));
        matching.short(3, header(8, 2), Place::reading(&[8_u8, 8]));
        assert!(matching.ended(first).is_none());
        matching.short(2, header(7, 4), Place::reading(&[7_u8; 4]));
        let envelope = matching.ended(first).unwrap().unwrap();
        assert_eq!((envelope.source, envelope.tag, envelope.bytes, a), (2, 7, 4, [7; 4]));
        let any = matching.begin();
        matching.receive(any, wanted(None, Place::writing(&mut b)));
        assert_eq!(matching.ended(any).unwrap().unwrap().bytes, 2);
        assert_eq!(b, [8, 8, 0, 0]);
    }

    #[test]
    fn a_result_that_was_taken_is_not_taken_from_a_later_operation_in_its_place() {
        let mut matching = Matching::default();
        let first = matching.begin();
        matching.sent(first);
        assert!(matching.ended(first).is_some());
        let second = matching.begin();
        assert_eq!(second.index, first.index);
        matching.sent(second);
        assert!(matching.ended(first).is_none());
        assert!(matching.ended(second).is_some());
    }

    #[test]
    fn take_removes_only_the_message_that_would_be_received() {
        let mut matching = Matching::default();
        matching.short(1, header(5, 3), Place::reading(&[1_u8; 3]));
        matching.short(1, header(6, 2), Place::reading(&[2_u8; 2]));
        matching.short(1, header(6, 4), Place::reading(&[3_u8; 4]));
        let spares = matching.spare.len();
        let other_type = Wanted { element: DataType::F64, ..wanted(Some(6), Place::empty()) };
        assert!(
            matching.take(&other_type).is_none(),
            "a message of another type is left for a receive, which refuses it"
        );
        let (envelope, bytes) = matching.take(&wanted(Some(6), Place::empty())).unwrap();
        assert_eq!((envelope.bytes, &bytes[..]), (2, &[2_u8; 2][..]));
        matching.give_back(bytes);
        assert_eq!(matching.spare.len(), spares + 1);
        let next = matching.probe(&wanted(None, Place::empty())).unwrap().0;
        assert_eq!((next.tag, next.bytes), (5, 3));
        matching.long(1, header(7, 9), Position { route: Route::Direct, ordinal: 0 });
        assert!(
            matching.take(&wanted(Some(7), Place::empty())).is_none(),
            "the bytes of a long message are not here"
        );
    }

    #[test]
    fn the_memory_of_many_early_messages_is_not_kept() {
        let mut matching = Matching::default();
        for _ in 0..10 * SPARES_MAX {
            matching.short(1, header(5, 3), Place::reading(&[1_u8; 3]));
        }
        let mut room = [0_u8; 3];
        for received in 0..10 * SPARES_MAX {
            if received % 2 == 0 {
                let op = matching.begin();
                matching.receive(op, wanted(Some(5), Place::writing(&mut room)));
                assert!(matching.ended(op).unwrap().is_ok());
            } else {
                let (_, bytes) = matching.take(&wanted(Some(5), Place::empty())).unwrap();
                matching.give_back(bytes);
            }
        }
        assert_eq!(matching.spare.len(), SPARES_MAX);
    }

    #[test]
    fn a_message_that_does_not_fit_is_refused_and_the_next_one_is_taken() {
        let mut matching = Matching::default();
        let mut room = [0_u8; 2];
        matching.short(1, header(5, 3), Place::reading(&[1_u8; 3]));
        matching.short(1, header(5, 2), Place::reading(&[2_u8; 2]));
        let refused = matching.begin();
        matching.receive(refused, wanted(Some(5), Place::writing(&mut room)));
        let why = matching.ended(refused).unwrap().unwrap_err();
        assert!(matches!(why, GroupError::TooLong { source: 1, bytes: 3, room: 2, .. }), "{why}");
        assert_eq!(room, [0; 2], "a refused message is not written");
        let next = matching.begin();
        matching.receive(next, wanted(Some(5), Place::writing(&mut room)));
        assert!(matching.ended(next).unwrap().is_ok());
        assert_eq!(room, [2; 2]);
    }
}
