//! How one object is sent: a packet, then its long leaves, each a message of its own.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use postcard_schema::Schema;
use serde::Serialize;

use super::bounded;
use super::parts::Leaving;
use super::rooms::{Sealed, encode};
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
        // A leaf stays in `outbox` until its send has begun, so that those of a send that fails are dropped without the lock.
        outbox.long.reverse();
        while let Some(leaf) = outbox.long.last() {
            let op = state.mesh.send(peer, name, leaf.element, leaf.place)?;
            outbound.flights.extend(outbox.long.pop().map(|leaf| (op, Flying::Leaf(leaf))));
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
        let operations = self.flights.iter().map(|(op, _)| *op);
        state.mesh.pieces_of(self.peer, operations).0.wrapping_sub(self.flights.len() as u64)
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

#[cfg(test)]
mod tests {
    use super::super::leaf::Leaf;
    use super::*;
    use crate::support::{library, ranks};

    #[test]
    fn a_message_in_registered_memory_does_not_move_an_object_in_other_memory() {
        ranks(&library(), 2, |group| {
            let object = Leaf::from(vec![1.0_f64; 4 << 20]);
            let mut other = group.buffer::<u8>(1 << 20).unwrap();
            if group.rank() == 1 {
                for _ in 0..100 {
                    group.recv(&mut other, 0, 1).unwrap();
                }
                assert!(group.recv_obj::<Leaf<f64>>(0, 5).unwrap().0 == object);
                return;
            }
            let route = Route { space: Space::OBJECTS, tag: 5 };
            let mut outbound = Outbound::begin(&group, &object, 1, route).unwrap();
            let mut stays = false;
            // Rank 1 does not receive the object, of which the connection takes the first pieces.
            for _ in 0..100 {
                let before = outbound.moves(&mut group.shared.lock());
                group.send(&other, 1, 1).unwrap();
                stays |= outbound.moves(&mut group.shared.lock()) == before;
            }
            assert!(stays);
            group.until(Some(1), |state| outbound.advance(state)).unwrap();
        });
    }
}
