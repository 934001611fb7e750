//! How one object is received: its packet is found, then its long leaves come, then it is decoded.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postcard_schema::Schema;
use serde::de::DeserializeOwned;

use super::block::Block;
use super::bounded;
use super::landing::Landing;
use super::packet::{self, Long, Packet};
use super::parts::{Inbox, dealing};
use super::schemas::{fingerprint, text};
use super::sending::{Route, peer_number};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::loader::{DataType, Place};
use crate::memory::CLAIMED_BYTES_MAX;
use crate::mesh::{Announces, Count, Envelope, Mesh, OpId, Said, Space, Wanted};

/// The sender and the tag of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The rank that sent the object.
    pub source: usize,
    pub tag: u32,
}

/// An object being received.
#[derive(Debug)]
pub(super) struct Inbound<O> {
    receive: Arc<Mutex<Receive>>,
    /// Whether the group has the receive, too, and advances it while the owner of this waits for something else.
    is_shared: bool,
    /// The object, once it was decoded.
    done: Option<(O, Origin)>,
}

/// What of a receive does not depend on the object's type.
#[derive(Debug)]
pub(crate) struct Receive {
    group: Group,
    space: Space,
    source: Option<usize>,
    tag: Option<u32>,
    /// For a collective: the tag of a rank that calls the same collective.
    due: Option<u32>,
    limit: usize,
    /// Memory for long leaves.
    spare: VecDeque<Landing>,
    kind: Kind,
    stage: Stage,
    /// An error that the owner has not got yet.
    failed: Option<GroupError>,
}

/// The type of the object.
#[derive(Clone, Copy, Debug)]
struct Kind {
    fingerprint: fn() -> u64,
    text: fn() -> String,
}

/// The stage of a receive, with the parts that have come. The envelope is that of the packet: its note is the fingerprint of the object's
/// type.
#[derive(Debug)]
enum Stage {
    /// No packet was found yet.
    Probing,
    /// The packet is being received.
    Packet { op: OpId, bytes: Block, from: Envelope },
    /// The packet has come, and its type is the wanted one.
    Opened { packet: Packet, bytes: Bytes, from: Envelope },
    /// The long leaves are being received.
    Leaves {
        ops: VecDeque<(OpId, usize)>,
        landings: VecDeque<Landing>,
        packet: Packet,
        bytes: Bytes,
        from: Envelope,
    },
    /// The packet and all long leaves have come.
    Arrived { packet: Packet, bytes: Bytes, long: VecDeque<Landing>, from: Envelope },
    /// All was taken, or an error was returned.
    Over,
}

/// The stage to which a receive makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// A packet of the wanted type has come; long leaves may be missing.
    Found,
    /// The packet and all long leaves have come.
    Arrived,
}

/// A received packet.
#[derive(Debug)]
enum Bytes {
    /// A packet without short leaves. It is decoded in the memory in which it has come, which later messages reuse.
    Lent(Vec<u8>),
    Own(Block),
}

impl Bytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Own(block) => block.bytes(),
        }
    }
}

impl<O: DeserializeOwned + Schema> Inbound<O> {
    /// A receive from a rank of the group, or from any.
    pub(super) fn new(
        group: &Group,
        space: Space,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> Result<Self, GroupError> {
        bounded::check::<O>()?;
        let source = source.map(|rank| group.rank_of(rank)).transpose()?;
        let receive = Receive {
            group: group.clone(),
            space,
            source,
            tag,
            due: None,
            limit: LIMIT,
            spare: VecDeque::new(),
            kind: Kind { fingerprint: fingerprint::<O>, text: text::<O> },
            stage: Stage::Probing,
            failed: None,
        };
        Ok(Self { receive: Arc::new(Mutex::new(receive)), is_shared: false, done: None })
    }

    /// A receive of a rank's object in a collective. It takes any object that the rank sends in the collective of this number. The group
    /// advances it, too.
    pub(super) fn of_collective(
        group: &Group,
        route: Route,
        rank: usize,
    ) -> Result<Self, GroupError> {
        let mut inbound = Self::of_route(group, route, rank)?;
        if let Some(mut state) = group.shared.lock_here() {
            state.receives.push(Arc::clone(&inbound.receive));
            inbound.is_shared = true;
        }
        Ok(inbound)
    }

    fn of_route(
        group: &Group,
        Route { space, tag }: Route,
        rank: usize,
    ) -> Result<Self, GroupError> {
        let inbound = Self::new(group, space, Some(rank), None)?;
        inbound.lock().due = Some(tag);
        Ok(inbound)
    }

    /// A receive for an object of a collective that has come without being expected. None: there is no such object.
    pub(super) fn found(group: &Group, route: Route, state: &State) -> Option<Self> {
        let (scope, space, element) = (group.scope, route.space, DataType::U8);
        let place = Place::empty();
        let any = Wanted { scope, space, source: None, tag: None, element, place };
        let (envelope, _) = state.mesh.probe(&any)?;
        Self::of_route(group, route, group.rank_in_group(envelope.source)).ok()
    }

    /// As [`Receive::focus`].
    pub(super) fn focus(&self) -> Option<usize> {
        self.lock().focus()
    }

    /// A count that changes whenever the receive moves.
    pub(super) fn moves(&self, state: &mut State) -> u64 {
        self.lock().moves(state)
    }

    /// Takes the receive back if no packet was found yet; returns whether it did.
    pub(super) fn take_back(&mut self) -> bool {
        self.lock().take_back()
    }

    /// The received object, once all of it has come. Called without the lock, as [`Inbound::decode`].
    pub(super) fn take(&mut self) -> Result<Option<(O, Origin)>, GroupError> {
        self.decode()?;
        Ok(self.done.take())
    }

    /// Decodes the object, if all of it has come. Called without the lock, because this runs the type's own code.
    pub(super) fn decode(&mut self) -> Result<(), GroupError> {
        let arrived = {
            let mut receive = self.lock();
            receive.take_arrived().map(|arrived| (receive.group.clone(), arrived))
        };
        if let Some((group, (packet, bytes, long, from))) = arrived {
            self.done = Some(build(&group, &packet, bytes, long, from)?);
        }
        Ok(())
    }

    /// Makes progress; returns whether all of the object has come, so that [`Inbound::decode`] can follow. After an error the object is
    /// dropped.
    pub(super) fn advance(&mut self, state: &mut State) -> Result<bool, GroupError> {
        if self.done.is_some() { Ok(true) } else { self.lock().advance_to(Goal::Arrived, state) }
    }

    /// Makes progress; returns whether an object of this type has been found. Its long leaves may still be missing.
    pub(super) fn find(&mut self, state: &mut State) -> Result<bool, GroupError> {
        if self.done.is_some() { Ok(true) } else { self.lock().advance_to(Goal::Found, state) }
    }

    /// Offers memory for the long leaves, which is tried in this order.
    pub(super) fn offer(&mut self, memory: VecDeque<Landing>) {
        self.lock().spare = memory;
    }
}

impl<O> Inbound<O> {
    fn lock(&self) -> MutexGuard<'_, Receive> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O> Drop for Inbound<O> {
    fn drop(&mut self) {
        if self.is_shared {
            let group = self.lock().group.clone();
            // A forked child keeps it: the owner's code must run in the parent only.
            let Some(mut state) = group.shared.lock_here() else { return };
            state.receives.retain(|receive| !Arc::ptr_eq(receive, &self.receive));
        }
    }
}

impl Receive {
    /// The peer that is waited for, if it is a single one.
    fn focus(&self) -> Option<usize> {
        match &self.stage {
            Stage::Packet { from, .. }
            | Stage::Opened { from, .. }
            | Stage::Leaves { from, .. } => Some(from.source),
            _ => self
                .source
                .filter(|peer| *peer as u64 != peer_number(&self.group, self.group.rank())),
        }
    }

    /// A count that changes whenever the receive moves.
    fn moves(&self, state: &mut State) -> u64 {
        match &self.stage {
            Stage::Probing => 0,
            Stage::Packet { op, from, .. } => {
                state.mesh.pieces_of(from.source, [*op]).1.wrapping_add(1)
            }
            Stage::Leaves { ops, from, .. } => {
                let operations = ops.iter().map(|(op, _)| *op);
                state.mesh.pieces_of(from.source, operations).1.wrapping_sub(ops.len() as u64)
            }
            Stage::Opened { .. } => 1,
            Stage::Arrived { .. } | Stage::Over => 2,
        }
    }

    /// Takes the receive back if no packet was found yet; returns whether it did.
    fn take_back(&mut self) -> bool {
        let is_probing = matches!(self.stage, Stage::Probing);
        if is_probing {
            self.stage = Stage::Over;
        }
        is_probing
    }

    /// What has come, if all has.
    fn take_arrived(&mut self) -> Option<(Packet, Bytes, VecDeque<Landing>, Envelope)> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Arrived { packet, bytes, long, from } => Some((packet, bytes, long, from)),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Makes progress for an owner that waits for something else, which gets an error later.
    pub(crate) fn advance_for_owner(&mut self, state: &mut State) {
        let is_open = matches!(self.stage, Stage::Probing) || self.stage.is_receiving();
        if is_open && let Err(error) = self.advance_to(Goal::Arrived, state) {
            self.failed = Some(error);
        }
    }

    fn advance_to(&mut self, goal: Goal, state: &mut State) -> Result<bool, GroupError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let ended = self.step(goal, state);
        if ended.is_err() {
            // The leaves' memory is dropped with this object, without the lock.
            self.spare.extend(self.stage.drop_receive(self.group.scope, state));
        }
        ended
    }

    fn step(&mut self, goal: Goal, state: &mut State) -> Result<bool, GroupError> {
        loop {
            state.mesh.check()?;
            match &mut self.stage {
                Stage::Arrived { .. } => return Ok(true),
                Stage::Over => {
                    return Err(GroupError::Usage("this object was received before".to_owned()));
                }
                Stage::Probing => {
                    if !self.has_arrived(state)? {
                        return Ok(false);
                    }
                }
                Stage::Packet { op, bytes, from } => {
                    let Some(ended) = state.mesh.ended(*op) else { return Ok(false) };
                    let (bytes, from) = (std::mem::take(bytes), *from);
                    self.stage = Stage::Over;
                    self.group.named(ended)?;
                    self.stage = self.open(state, Bytes::Own(bytes), from)?;
                }
                Stage::Opened { .. } if goal == Goal::Found => return Ok(true),
                Stage::Opened { .. } => self.expect_leaves(state)?,
                Stage::Leaves { ops, from, .. } => {
                    let from = *from;
                    while let Some((op, len)) = ops.front().copied() {
                        let Some(ended) = state.mesh.ended(op) else { return Ok(false) };
                        ops.pop_front();
                        if self.group.named(ended)?.bytes != len {
                            return Err(self.broken(from, "an array shorter than announced"));
                        }
                    }
                    if let Stage::Leaves { landings: long, packet, bytes, .. } =
                        std::mem::replace(&mut self.stage, Stage::Over)
                    {
                        self.stage = Stage::Arrived { packet, bytes, long, from };
                    }
                }
            }
        }
    }

    fn has_arrived(&mut self, state: &mut State) -> Result<bool, GroupError> {
        if let Some((envelope, bytes)) = state.mesh.take(&self.wanted(Place::empty())) {
            self.stage = Stage::Over;
            self.stage = self.open(state, Bytes::Lent(bytes), envelope)?;
            return Ok(true);
        }
        let Some((envelope, _)) = state.mesh.probe(&self.wanted(Place::empty())) else {
            if let Some(peer) = self.source {
                state.mesh.reach(peer)?;
            }
            return Ok(false);
        };
        let room = if envelope.bytes > self.limit { 0 } else { envelope.bytes };
        let mut bytes = Block::new(room)?;
        // A receive that is too short is an error, and the message is dropped.
        let op = state.mesh.receive(Wanted {
            source: Some(envelope.source),
            tag: Some(envelope.tag),
            ..self.wanted(bytes.place())
        })?;
        self.stage = Stage::Packet { op, bytes, from: envelope };
        Ok(true)
    }

    fn open(&self, state: &mut State, bytes: Bytes, from: Envelope) -> Result<Stage, GroupError> {
        let opened = packet::open(bytes.bytes(), self.limit);
        if let Some(packet) = &opened {
            // Also of an object that is refused: its schema does not come again.
            let schema = &bytes.bytes()[packet.schema.clone()];
            state.schemas.learn(from.source, from.note, schema);
        }
        let other = self.due.filter(|due| *due != from.tag);
        if let Some(due) = other {
            if let Some(packet) = opened {
                self.cancel(state, &packet);
            }
            let (rank, own) = (self.group.rank_in_group(from.source), self.group.rank());
            let (said, due) = (Said::by(from.tag), Said::by(due));
            let why = format!("rank {rank} calls {said} of objects, and rank {own} {due}");
            return Err(GroupError::Mismatch { rank, why });
        }
        if bytes.bytes().is_empty() {
            return Err(self.broken(
                from,
                "no object: it has none, or one that cannot be encoded, or has dropped its request",
            ));
        }
        let Some(packet) = opened else { return Err(self.broken(from, "no object")) };
        if from.note == (self.kind.fingerprint)() {
            let bytes = match bytes {
                Bytes::Lent(lent) if packet.inline > 0 => {
                    let own = Block::copy(&lent).inspect_err(|_| self.cancel(state, &packet))?;
                    state.mesh.give_back(lent);
                    Bytes::Own(own)
                }
                bytes => bytes,
            };
            return Ok(Stage::Opened { packet, bytes, from });
        }
        self.cancel(state, &packet);
        Err(GroupError::SchemaMismatch {
            rank: self.group.rank_in_group(from.source),
            expected: (self.kind.text)(),
            got: state.schemas.name(from.source, from.note),
        })
    }

    fn expect_leaves(&mut self, state: &mut State) -> Result<(), GroupError> {
        let Stage::Opened { packet, bytes, from } = std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Ok(());
        };
        let mut landings = VecDeque::new();
        for long in &packet.long {
            match self.landing(*long) {
                Ok(landing) => landings.push_back(landing),
                Err(error) => {
                    // Offered memory is dropped with this object, without the lock.
                    self.spare.extend(landings);
                    self.cancel(state, &packet);
                    return Err(error);
                }
            }
        }
        let (mut ops, space) = (VecDeque::new(), Space::leaves(packet.serial));
        // Only a failure of the group is an error here, after which the memory of the leaves is free.
        for landing in &landings {
            let (scope, element, place) = (self.group.scope, landing.element(), landing.place());
            let wanted =
                Wanted { scope, space, source: Some(from.source), tag: None, element, place };
            ops.push_back((state.mesh.receive_announced(wanted)?, place.len()));
        }
        self.stage = Stage::Leaves { ops, landings, packet, bytes, from };
        Ok(())
    }

    /// Memory for a long leaf: offered memory that fits, or new memory.
    fn landing(
        &mut self,
        Long { element, is_aligned, count }: Long,
    ) -> Result<Landing, GroupError> {
        let spare = self.spare.iter_mut().position(|spare| spare.takes(element, count));
        let spare = spare.filter(|_| !is_aligned).and_then(|at| self.spare.remove(at));
        match spare {
            Some(spare) => Ok(spare.resized(count)),
            None if is_aligned => Landing::aligned(count * element.bytes()),
            None => Landing::new(element, count),
        }
    }

    /// Drops the long leaves of a packet that is not received.
    fn cancel(&self, state: &mut State, packet: &Packet) {
        cancel_leaves(&mut state.mesh, self.group.scope, packet);
    }

    fn broken(&self, from: Envelope, what: &str) -> GroupError {
        broken(&self.group, from, what)
    }

    fn wanted(&self, place: Place) -> Wanted {
        let Self { space, source, tag, group, .. } = self;
        let (scope, element) = (group.scope, DataType::U8);
        Wanted { scope, space: *space, source: *source, tag: *tag, element, place }
    }

    /// Whether the packet is still to be found, and no other receive can take it: a packet of a collective comes for this receive alone.
    fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Probing) && self.space.is_of_collective()
    }
}

fn broken(group: &Group, from: Envelope, what: &str) -> GroupError {
    let rank = group.rank_in_group(from.source);
    GroupError::Mismatch { rank, why: format!("rank {rank} sent {what}") }
}

/// Decodes an object.
fn build<O: DeserializeOwned>(
    group: &Group,
    packet: &Packet,
    bytes: Bytes,
    long: VecDeque<Landing>,
    from: Envelope,
) -> Result<(O, Origin), GroupError> {
    let broken = || broken(group, from, "an object that does not match its type");
    let (block, lent) = match bytes {
        Bytes::Own(block) => (Some(Arc::new(block)), Vec::new()),
        Bytes::Lent(lent) => (None, lent),
    };
    let inbox = Inbox { block: block.clone(), inline: packet.inline, at: 0, long };
    let body = block.as_ref().map_or(&lent[..], |block| block.bytes());
    let body = &body[packet.body.clone()];
    let (decoded, whole) = dealing(inbox, || postcard::take_from_bytes::<O>(body));
    let (object, rest) = decoded.map_err(|_| broken())?;
    if !whole || !rest.is_empty() {
        return Err(broken());
    }
    if block.is_none() {
        group.shared.enter()?.mesh.give_back(lent);
    }
    let source = group.rank_in_group(from.source);
    Ok((object, Origin { source, tag: from.tag }))
}

impl Stage {
    fn is_receiving(&self) -> bool {
        matches!(self, Self::Packet { .. } | Self::Opened { .. } | Self::Leaves { .. })
    }

    /// Drops the receive. Its memory is kept as long as the plugin writes to it. The memory of long leaves is returned if it is free.
    fn drop_receive(&mut self, scope: u32, state: &mut State) -> VecDeque<Landing> {
        match std::mem::replace(self, Self::Over) {
            Self::Packet { op, bytes, .. } => state.mesh.drop_receive(op, scope, bytes),
            Self::Opened { packet, .. } => cancel_leaves(&mut state.mesh, scope, &packet),
            Self::Leaves { ops, landings, .. } => {
                let memory = Arc::new(Mutex::new(landings));
                for (op, _) in ops {
                    drop(state.keep(op, Arc::clone(&memory)));
                }
                let free = Arc::into_inner(memory).map(Mutex::into_inner);
                return free.and_then(Result::ok).unwrap_or_default();
            }
            other => *self = other,
        }
        VecDeque::new()
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if !self.stage.is_receiving() && !self.is_due() {
            return;
        }
        let Some(mut state) = self.group.shared.lock_here() else {
            // In a forked child: the owner's code must run in the parent only.
            let _never_dropped = ManuallyDrop::new(std::mem::replace(&mut self.stage, Stage::Over));
            return;
        };
        let free = if self.stage.is_receiving() {
            self.stage.drop_receive(self.group.scope, &mut state)
        } else {
            state.mesh.refuse::<Block>(self.wanted(Place::empty()));
            VecDeque::new()
        };
        drop(state);
        drop(free);
    }
}

/// The longest packet, and the most bytes of long leaves, of an object.
const LIMIT: usize = CLAIMED_BYTES_MAX;

// A packet announces its long leaves.
impl Announces for Block {
    fn room(bytes: usize) -> Result<(Self, Place), GroupError> {
        let mut block = Self::new(if bytes > LIMIT { 0 } else { bytes })?;
        let place = block.place();
        Ok((block, place))
    }

    fn announces(&self) -> Option<(Space, Count)> {
        leaves(&packet::open(self.bytes(), LIMIT)?)
    }
}

/// The space and number of a packet's long leaves, if there are any.
fn leaves(packet: &Packet) -> Option<(Space, Count)> {
    let count = packet.long.len();
    (count > 0).then_some((Space::leaves(packet.serial), Count(count)))
}

fn cancel_leaves(mesh: &mut Mesh, scope: u32, packet: &Packet) {
    if let Some((space, count)) = leaves(packet) {
        mesh.cancel(scope, space, count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use std::time::Instant;

    use postcard_schema::schema::NamedType;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::super::leaf::Leaf;
    use super::super::rooms::{Rooms, encode};
    use super::*;
    use crate::mesh::Name;
    use crate::support::{WAIT, library, ranks};

    /// More than sockets buffer.
    const LONG: usize = 4 << 20;

    /// Sends the packet of an array of `LONG` elements, with `count` as its length, and `sent` of the elements.
    fn send_by_hand(group: &Group, count: u64, sent: usize) -> Result<(), GroupError> {
        let leaf = Leaf::from(vec![1.0_f64; LONG]);
        let mut rooms = Rooms::default();
        let (encoded, mut outbox) = encode(&leaf, &mut rooms);
        let mut packet = rooms.seal(&mut outbox, encoded.unwrap(), "", 7).bytes;
        // The count precedes five words: lengths and the serial number.
        let at = packet.len() - 48;
        packet[at..][..8].copy_from_slice(&count.to_le_bytes());
        let (scope, space) = (group.scope, Space::OBJECTS);
        let name = Name { scope, tag: 0, space, note: fingerprint::<Leaf<f64>>() };
        let leaves = Name { space: Space::leaves(7), note: 0, ..name };
        let elements = outbox.long[0].place.part(0, sent * 8);
        let mut ops = {
            let mesh = &mut group.shared.lock().mesh;
            let packet = Place::reading(&packet);
            vec![
                mesh.send(1, name, DataType::U8, packet)?,
                mesh.send(1, leaves, DataType::F64, elements)?,
            ]
        };
        group.until(None, |state| {
            ops.retain(|op| state.mesh.ended(*op).is_none());
            Ok(ops.is_empty())
        })
    }

    fn receiving<O: DeserializeOwned + Schema>(group: &Group) -> Inbound<O> {
        Inbound::new(group, Space::OBJECTS, Some(0), None).unwrap()
    }

    #[test]
    fn an_array_shorter_than_its_packet_says_is_an_error_and_no_object_after_it() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                return send_by_hand(&group, LONG as u64, 10_000).unwrap();
            }
            let mut inbound = receiving::<Leaf<f64>>(&group);
            let ended = group.until(Some(0), |state| inbound.advance(state));
            assert!(matches!(ended, Err(GroupError::Mismatch { rank: 0, .. })), "{ended:?}");
            let again = inbound.advance(&mut group.shared.lock());
            assert!(matches!(again, Err(GroupError::Usage(_))), "{again:?}");
        });
    }

    /// Two bytes, of which the decoding takes one.
    struct Longer;

    impl Serialize for Longer {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            (1_u8, 2_u8).serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Longer {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            u8::deserialize(deserializer).map(|_| Self)
        }
    }

    impl Schema for Longer {
        const SCHEMA: &'static NamedType = <(u8, u8)>::SCHEMA;
    }

    #[test]
    fn an_object_of_which_its_decoding_leaves_a_part_is_a_mismatch() {
        ranks(&library(), 1, |group| {
            drop(group.isend_obj(&Longer, 0, 5).unwrap());
            for ended in
                [group.recv_obj::<Longer>(0, 5).map(drop), group.all_gather_obj(&Longer).map(drop)]
            {
                assert!(matches!(ended, Err(GroupError::Mismatch { rank: 0, .. })), "{ended:?}");
            }
        });
    }

    /// A schema is sent once.
    #[test]
    fn the_schema_of_an_object_that_is_refused_is_known_later() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                let _mismatch = group.gather_obj(&(1_u8, 2_u16), 1);
                return group.send_obj(&(1_u8, 2_u16), 1, 5).unwrap();
            }
            let refused = group.all_gather_obj(&"a text".to_owned());
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 0, .. })), "{refused:?}");
            let why = group.recv_obj::<String>(0, 5).unwrap_err().to_string();
            assert!(why.contains("u16"), "{why}");
        });
    }

    #[test]
    fn a_sendrecv_of_objects_is_lost_if_its_receiver_leaves_after_its_own_object() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                let long = Leaf::from(vec![1.0_f64; LONG]);
                let ended = group.sendrecv_obj::<_, u8>(&long, 1, 1, 5);
                assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
                return;
            }
            let (scope, space, place) = (group.scope, Space::OBJECTS, Place::empty());
            let (source, tag, element) = (Some(0), Some(5), DataType::U8);
            let packet = Wanted { scope, space, source, tag, element, place };
            group.until(Some(0), |state| Ok(state.mesh.probe(&packet).is_some())).unwrap();
            group.send_obj(&7_u8, 0, 5).unwrap();
        });
    }

    #[test]
    fn arrays_that_there_is_no_memory_for_are_dropped_so_that_their_sender_goes_on() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                send_by_hand(&group, 1 << 60, LONG).unwrap();
                return group.send(&[8_u8], 1, 6).unwrap();
            }
            let mut inbound = receiving::<Leaf<f64>>(&group);
            inbound.lock().limit = usize::MAX;
            let ended = group.until(Some(0), |state| inbound.advance(state));
            assert!(matches!(ended, Err(GroupError::System { .. })), "{ended:?}");
            assert_eq!(group.recv_vec::<u8>(0, 6).unwrap().0, [8]);
        });
    }

    #[test]
    fn an_object_longer_than_the_limit_names_its_senders_rank_in_the_group_that_was_split() {
        ranks(&library(), 2, |group| {
            let split = group.split(Some(0), -(group.rank() as i64)).unwrap().unwrap();
            if split.rank() == 1 {
                return split.send_obj(&vec![7_u8; 1 << 20], 0, 5).unwrap();
            }
            let mut inbound =
                Inbound::<Vec<u8>>::new(&split, Space::OBJECTS, Some(1), None).unwrap();
            inbound.lock().limit = 100;
            let ended = split.until(None, |state| inbound.advance(state));
            assert!(matches!(ended, Err(GroupError::TooLong { source: 1, .. })), "{ended:?}");
        });
    }

    #[test]
    fn offered_memory_is_not_dropped_with_the_lock_if_another_array_finds_none() {
        ranks(&library(), 1, |group| {
            let inbound = receiving::<Leaf<f64>>(&group);
            let mut receive = inbound.lock();
            receive.spare = VecDeque::from([Landing::new(DataType::F64, 10_000).unwrap()]);
            let long = [10_000, 1 << 60].map(|count| Long {
                element: DataType::F64,
                is_aligned: false,
                count,
            });
            let packet =
                Packet { inline: 0, body: 0..0, long: long.into(), schema: 0..0, serial: 7 };
            let (bytes, from) =
                (Bytes::Lent(Vec::new()), Envelope { source: 0, tag: 0, bytes: 0, note: 0 });
            receive.stage = Stage::Opened { packet, bytes, from };
            let ended = receive.expect_leaves(&mut group.shared.lock());
            assert!(matches!(ended, Err(GroupError::System { .. })), "{ended:?}");
            assert_eq!(receive.spare.len(), 1);
        });
    }

    /// An object with a long packet, and an array that is sent separately.
    type Packed = (Vec<u8>, Leaf<f64>);

    /// Sends such an object to rank 1, and then a message.
    fn send_two(group: &Group) {
        let object: Packed = (vec![7; 1 << 20], vec![1.0; LONG].into());
        group.send_obj(&object, 1, 5).unwrap();
        group.send(&[8_u8], 1, 6).unwrap();
    }

    #[test]
    fn an_object_that_is_dropped_between_its_packet_and_its_arrays_leaves_no_sender_waiting() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                return send_two(&group);
            }
            let mut inbound = receiving::<Packed>(&group);
            let deadline = Instant::now() + WAIT;
            while !matches!(inbound.lock().stage, Stage::Packet { .. }) {
                assert!(Instant::now() < deadline);
                let mut state = group.shared.lock();
                state.mesh.poll(None).unwrap();
                assert!(!inbound.advance(&mut state).unwrap());
            }
            drop(inbound);
            assert_eq!(group.recv_vec::<u8>(0, 6).unwrap().0, [8]);
        });
    }

    #[test]
    fn an_object_that_is_dropped_before_a_collective_leaves_no_sender_waiting() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                return send_two(&group);
            }
            let mut inbound = receiving::<Packed>(&group);
            let mut state = group.shared.lock();
            let deadline = Instant::now() + WAIT;
            let poll = |state: &mut State| {
                assert!(Instant::now() < deadline, "the sender still waits");
                state.mesh.poll(Some(0)).unwrap();
            };
            while !matches!(inbound.lock().stage, Stage::Packet { .. }) {
                poll(&mut state);
                assert!(!inbound.advance(&mut state).unwrap());
            }
            inbound.lock().stage.drop_receive(group.scope, &mut state);
            // A collective of elements keeps the lock, too.
            let (scope, space, tag) = (group.scope, Space::MESSAGES, Some(6));
            let (element, place) = (DataType::U8, Place::empty());
            let next = Wanted { scope, space, source: Some(0), tag, element, place };
            while state.mesh.probe(&next).is_none() {
                poll(&mut state);
            }
        });
    }

    #[test]
    fn nothing_is_kept_of_an_object_that_was_refused_once_its_arrays_have_come() {
        ranks(&library(), 2, |group| {
            let arrays = vec![Leaf::from(vec![1.0_f64; LONG / 8]); 3];
            for _ in 0..3 {
                if group.rank() == 0 {
                    group.send_obj(&arrays, 1, 5).unwrap();
                } else {
                    let refused = group.recv_obj::<u8>(0, 5);
                    assert!(
                        matches!(refused, Err(GroupError::SchemaMismatch { .. })),
                        "{refused:?}"
                    );
                }
            }
            group.barrier().unwrap();
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
        });
    }

    #[test]
    fn an_object_behind_a_message_that_there_is_no_memory_for_waits_or_is_dropped_whole() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                group.shared.lock().mesh.announce_huge(1, group.scope);
                let object = Leaf::from(vec![1.0_f64; LONG]);
                let _sending = [5, 6].map(|tag| group.isend_obj(&object, 1, tag).unwrap());
                group.send(&[8_u8], 1, 7).unwrap();
                return drop(group.recv_vec::<u8>(1, 8));
            }
            // The headers of all messages have come with this one.
            group.recv_vec::<u8>(0, 7).unwrap();
            let mut inbound = Inbound::<Leaf<f64>>::new(&group, Space::OBJECTS, Some(0), Some(5));
            let inbound = inbound.as_mut().unwrap();
            let advanced = inbound.advance(&mut group.shared.lock());
            assert!(matches!(advanced, Ok(false)), "{advanced:?}");
            let refused = group.recv_obj::<u8>(0, 6);
            assert!(matches!(refused, Err(GroupError::SchemaMismatch { .. })), "{refused:?}");
            let (scope, space, place) = (group.scope, Space::leaves(2), Place::empty());
            let (source, tag, element) = (Some(0), None, DataType::F64);
            let left = Wanted { scope, space, source, tag, element, place };
            assert!(
                group.shared.lock().mesh.probe(&left).is_none(),
                "the array of the dropped object is left"
            );
            group.abort();
        });
    }

    type Anything = (Vec<Leaf<i32>>, BTreeMap<String, Vec<(i64, Leaf<f64>)>>, Option<Box<[u8]>>);

    #[test]
    fn random_bytes_are_refused_or_decoded_and_never_more_than_there_is() {
        let mut seed = 7_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut decoded = 0;
        for _ in 0..30_000 {
            let mut bytes = |most: u64| -> Vec<u8> {
                let len = random() % most;
                // Small numbers are frequent, as they may be valid lengths.
                let mut byte =
                    || random().to_le_bytes()[2] & if random() & 1 == 0 { 3 } else { 255 };
                (0..len).map(|_| byte()).collect()
            };
            let (body, inline) = (bytes(40), bytes(30));
            let long = VecDeque::from([Landing::new(DataType::F64, 4000).unwrap()]);
            let block = Some(Arc::new(Block::copy(&inline).unwrap()));
            let inbox = Inbox { block, inline: inline.len(), at: 0, long };
            let (ended, _) = dealing(inbox, || postcard::take_from_bytes::<Anything>(&body));
            decoded += usize::from(ended.is_ok());
        }
        assert!(decoded > 30, "only {decoded} packets were decoded");
    }

    #[test]
    fn an_object_that_a_few_bytes_could_make_endless_is_refused() {
        ranks(&library(), 2, |group| {
            if group.rank() == 0 {
                // The packet of `vec![(); 1 << 60]`, which takes no memory.
                let packet = {
                    let mut bytes = postcard::to_stdvec(&(1_u64 << 60)).unwrap();
                    packet::seal(&mut bytes, 0, &[], "", 1);
                    bytes
                };
                let (scope, space, note) = (group.scope, Space::OBJECTS, fingerprint::<Vec<()>>());
                let name = Name { scope, tag: 0, space, note };
                let sent = |state: &mut State| {
                    let mesh = &mut state.mesh;
                    mesh.send(1, name, DataType::U8, Place::reading(&packet))
                };
                let op = sent(&mut group.shared.lock()).unwrap();
                group.until(None, |state| Ok(state.mesh.ended(op).is_some())).unwrap();
            } else {
                let came = group.recv_obj::<Vec<()>>(0, 0);
                assert!(matches!(came, Err(GroupError::InvalidArgument(_))), "{came:?}");
            }
            group.barrier().unwrap();
        });
    }
}
