//! How one object is sent: a packet, then its long leaves, each a message of its own.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use postcard_schema::Schema;
use serde::Serialize;

use super::bounded;
use super::packet;
use super::parts::{Leaving, Outbox, TOGETHER, collecting};
use super::schemas::{fingerprint, text};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::loader::{DataType, Place};
use crate::mesh::{Name, OpId, Space};

/// The space and tag of an object in a mesh: the user's tag, or a collective's number as the space and its
/// [`What::tag`](crate::mesh::What::tag).
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) space: Space,
    pub(super) tag: u32,
}

/// An object being sent. Its memory is kept until the plugin has read it.
#[derive(Debug)]
pub(super) struct Outbound {
    group: Group,
    peer: usize,
    flights: VecDeque<(OpId, Flying)>,
    /// Arrays that the plugin has read. They are dropped without the lock, because the drop runs their owners' code.
    sent: Vec<Leaving>,
}

/// Memory that the plugin reads.
#[derive(Debug)]
enum Flying {
    Packet(Sealed),
    Leaf(Leaving),
}

/// Encodes into the start of `rooms.body`, which grows to the object's length if it is too short; returns the number of encoded bytes.
/// Short leaves go to `rooms.inline`.
///
/// An encoder into a buffer that grows would keep its position in memory and not in a register, and take twice as long for short fields.
pub(super) fn encode<O: Serialize>(
    object: &O,
    rooms: &mut Rooms,
) -> (postcard::Result<usize>, Outbox) {
    let Rooms { body, inline } = rooms;
    let encode = |body: &mut [u8], inline| {
        collecting(inline, || postcard::to_slice(object, body).map(|encoded| encoded.len()))
    };
    body.resize(body.capacity(), 0);
    let ended = encode(body, std::mem::take(inline));
    if !matches!(ended, (Err(postcard::Error::SerializeBufferFull), _)) {
        return ended;
    }
    let size = || postcard::experimental::serialized_size(object);
    let (size, outbox) = collecting(ended.1.inline, size);
    match size {
        Ok(size) => {
            body.resize(size, 0);
            encode(body, outbox.inline)
        }
        Err(error) => (Err(error), outbox),
    }
}

impl Outbound {
    /// Whether the object is sent to this rank of the mesh.
    pub(super) fn is_to(&self, rank: usize) -> bool {
        self.peer == rank
    }

    pub(super) fn begin<O: Serialize + Schema>(
        group: &Group,
        object: &O,
        to: usize,
        route: Route,
    ) -> Result<Self, GroupError> {
        bounded::check::<O>()?;
        let peer = group.rank_of(to)?;
        let mut rooms = std::mem::take(&mut group.shared.enter()?.schemas.rooms);
        let (encoded, mut outbox) = encode(object, &mut rooms);
        let encoded = match encoded {
            Ok(encoded) => encoded,
            Err(error) => {
                if route.space.is_of_collective() {
                    Self::without(group, to, route);
                }
                return Err(GroupError::InvalidArgument(format!("the object: {error}")));
            }
        };
        let note = fingerprint::<O>();
        let mut outbound =
            Self { group: group.clone(), peer, flights: VecDeque::new(), sent: Vec::new() };
        // Declared after `outbound`, so that the lock is released before the sends that have begun are dropped.
        let mut state = group.shared.enter()?;
        state.schemas.serial += 1;
        let serial = (peer_number(group, group.rank()) << 40) | state.schemas.serial;
        let schema =
            if state.schemas.sent.insert((peer, note)) { text::<O>() } else { String::new() };
        let packet = rooms.seal(&mut outbox, encoded, &schema, serial);
        state.schemas.rooms = rooms;
        let name = Name { scope: group.scope, tag: route.tag, space: route.space, note };
        let op = state.mesh.send(peer, name, DataType::U8, Place::reading(&packet.bytes))?;
        match state.mesh.ended(op) {
            Some(ended) => {
                ended?;
                state.schemas.rooms.keep(packet);
            }
            None => outbound.flights.push_back((op, Flying::Packet(packet))),
        }
        let name = Name { space: Space::leaves(serial), note: 0, ..name };
        for leaf in outbox.long {
            let op = state.mesh.send(peer, name, leaf.element, leaf.place)?;
            outbound.flights.push_back((op, Flying::Leaf(leaf)));
        }
        drop(state);
        Ok(outbound)
    }

    /// Notifies a rank that waits for this rank's object, in a collective or a batch, that there is none. The caller has an error to
    /// return, so an error of this send is left to the next call.
    pub(super) fn without(group: &Group, to: usize, route: Route) {
        let Ok(peer) = group.rank_of(to) else { return };
        let name = Name { scope: group.scope, tag: route.tag, space: route.space, note: 0 };
        let Some(mut state) = group.shared.lock_here() else { return };
        if let Ok(op) = state.mesh.send(peer, name, DataType::U8, Place::empty()) {
            let _ = state.keep(op, ());
        }
    }

    /// Makes progress; returns whether the object has been sent.
    pub(super) fn advance(&mut self, state: &mut State) -> Result<bool, GroupError> {
        while let Some((op, _)) = self.flights.front() {
            state.mesh.check()?;
            let Some(ended) = state.mesh.ended(*op) else {
                state.mesh.reach(self.peer)?;
                return Ok(false);
            };
            let flown = self.flights.pop_front();
            match flown {
                Some((_, Flying::Packet(packet))) => state.schemas.rooms.keep(packet),
                Some((_, Flying::Leaf(leaf))) => self.sent.push(leaf),
                None => {}
            }
            ended?;
        }
        Ok(true)
    }

    /// The peer that is waited for, unless it is this rank.
    pub(super) fn focus(&self) -> Option<usize> {
        Some(self.peer).filter(|peer| *peer as u64 != peer_number(&self.group, self.group.rank()))
    }

    /// A count that changes whenever the send moves.
    pub(super) fn moves(&self, state: &mut State) -> u64 {
        if self.flights.is_empty() {
            return 0;
        }
        state.mesh.pieces(self.peer).0.wrapping_sub(self.flights.len() as u64)
    }

    /// Drops the arrays that were sent. Called without the lock.
    pub(super) fn free(&mut self) {
        self.sent.clear();
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let flights = std::mem::take(&mut self.flights);
        let Some(mut state) = self.group.shared.lock_here() else {
            // In a forked child: the owner's code must run in the parent only.
            let _never_dropped = ManuallyDrop::new(flights);
            return;
        };
        let flights = flights.into_iter();
        let free: Vec<_> = flights.filter_map(|(op, memory)| state.keep(op, memory)).collect();
        drop(state);
        drop(free);
    }
}

pub(super) fn peer_number(group: &Group, rank: usize) -> u64 {
    group.members.get(rank).map_or(0, |rank| *rank as u64)
}

/// Memory of earlier packets for the next one. Otherwise the C library gives it back to the system and fetches it again, page by page, for
/// each object of tens of KiB.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// Memory for the encoding.
    body: Vec<u8>,
    /// Memory for short leaves; a packet that has any is built in this memory.
    inline: Vec<u8>,
}

const BODY_MAX: usize = 64 << 10;
/// The most memory that is kept in bytes: short leaves and the rest of a packet, with a reserve for the growth of the memory.
const INLINE_MAX: usize = 3 * TOGETHER;

/// A packet, in the memory of one of the rooms.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) bytes: Vec<u8>,
    has_inline: bool,
}

impl Rooms {
    /// The packet of an object whose encoding is the body's first `encoded` bytes.
    pub(super) fn seal(
        &mut self,
        outbox: &mut Outbox,
        encoded: usize,
        schema: &str,
        serial: u64,
    ) -> Sealed {
        self.inline = std::mem::take(&mut outbox.inline);
        let inline = self.inline.len();
        let mut bytes = if inline == 0 {
            self.body.truncate(encoded);
            std::mem::take(&mut self.body)
        } else {
            self.inline.extend_from_slice(&self.body[..encoded]);
            if self.body.capacity() > BODY_MAX {
                self.body = Vec::new();
            }
            std::mem::take(&mut self.inline)
        };
        packet::seal(&mut bytes, inline, &outbox.long, schema, serial);
        Sealed { bytes, has_inline: inline > 0 }
    }

    fn keep(&mut self, Sealed { mut bytes, has_inline }: Sealed) {
        let (room, max) =
            if has_inline { (&mut self.inline, INLINE_MAX) } else { (&mut self.body, BODY_MAX) };
        if bytes.capacity() <= max {
            bytes.clear();
            *room = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::block::Block;
    use super::super::landing::Landing;
    use super::super::leaf::Leaf;
    use super::super::parts::{Inbox, dealing};
    use super::*;

    #[test]
    fn an_encoding_longer_than_its_room_has_each_array_once() {
        let object =
            (Leaf::from(vec![1.0_f64; 10_000]), vec![7_u64; 3000], Leaf::from(vec![2_u8; 100]));
        for room in [0, 1, 512, 4000, 10_000] {
            let mut rooms = Rooms { body: vec![0xFF; room], inline: vec![0xFF; room] };
            let (encoded, outbox) = encode(&object, &mut rooms);
            let lens: Vec<_> = outbox.long.iter().map(|leaf| leaf.place.len()).collect();
            assert_eq!((lens, outbox.inline.len()), (vec![80_000], 100));
            let long =
                VecDeque::from([Landing::copy(DataType::F64, outbox.long[0].place).unwrap()]);
            let block = Some(Arc::new(Block::copy(&outbox.inline).unwrap()));
            let inbox = Inbox { block, inline: 100, at: 0, long };
            let bytes = &rooms.body[..encoded.unwrap()];
            let (decoded, all) = dealing(inbox, || postcard::from_bytes(bytes));
            assert_eq!((decoded.as_ref(), all), (Ok(&object), true));
        }
    }

    #[test]
    fn the_memory_of_a_packet_is_kept_unless_it_is_very_long() {
        let leaf = |bytes: usize| Leaf::from(vec![1.0_f64; bytes / 8]);
        let kept = |object: &(Vec<u8>, Vec<Leaf<f64>>)| {
            let mut rooms = Rooms::default();
            let (encoded, mut outbox) = encode(object, &mut rooms);
            let sealed = rooms.seal(&mut outbox, encoded.unwrap(), "", 1);
            rooms.keep(sealed);
            [rooms.body.capacity() > 0, rooms.inline.capacity() > 0]
        };
        let numbers = |bytes: usize| vec![7_u8; bytes];
        assert_eq!(kept(&(numbers(8), vec![leaf(TOGETHER)])), [true, true]);
        assert_eq!(kept(&(numbers(8), vec![leaf(TOGETHER + 8)])), [true, false]);
        assert_eq!(kept(&(numbers(8), vec![leaf(4 << 10); 100])), [true, false]);
        assert_eq!(kept(&(numbers(2 * BODY_MAX), vec![])), [false, false]);
        assert_eq!(kept(&(numbers(2 * BODY_MAX), vec![leaf(800)])), [false, false]);
    }
}
