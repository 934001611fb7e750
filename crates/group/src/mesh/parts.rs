//! Parts of collectives. They are matched by their order alone. A short part goes through a slot, a long one from memory to memory.

use std::fmt;

use super::call::{Call, Said};
use super::failure::Failure;
use super::header::{Header, Kind, SMALL, Space};
use super::peer::Way;
use super::slots::Letter;
use super::{Mesh, lost};
use crate::error::GroupError;
use crate::loader::Place;

impl Mesh {
    /// A collective of this rank has ended in an error: the group fails, for all ranks by the same cause. Parts are matched by their order
    /// alone, so parts on their way would be taken for parts of the next collective, and long ones are posted in memory that the caller may
    /// use again.
    pub(crate) fn collective_failed(&mut self, error: GroupError) -> GroupError {
        if self.failure.is_some() {
            return error;
        }
        let (rank, why, failure) = match &error {
            GroupError::PeerLost { rank, why } => {
                (*rank, why.clone(), Failure::Lost { rank: *rank, why: why.clone() })
            }
            GroupError::Mismatch { rank, why } => {
                (self.rank, why.clone(), Failure::Mismatch { rank: *rank, why: why.clone() })
            }
            other => (self.rank, other.to_string(), Failure::Other(other.to_string())),
        };
        let _ = self.place.accuse(rank, &why);
        self.fail(failure);
        error
    }

    /// Sends a part of a collective, in a slot if it fits one. Its memory is free after [`Mesh::flush`]. Returns its number for
    /// [`Mesh::await_sent`]; None for a part in a slot, which is for [`Mesh::await_taken`].
    pub(crate) fn send_part(
        &mut self,
        to: usize,
        call: Call,
        place: Place,
    ) -> Result<Option<u64>, GroupError> {
        if place.len() > SMALL {
            self.reach_by(to, Way::Data)?;
            let number =
                self.with(to, |peer, shared| peer.send_data(call, place, shared).map(Some))?;
            return number.map(Some).ok_or_else(|| lost(to));
        }
        self.reach(to)?;
        let Call { scope, number, what } = call;
        let (kind, space, len) = (Kind::Part, Space::MESSAGES, place.len() as u64);
        let note = what.note();
        let header = Header { kind, element: 0, scope, tag: number, len, space, note };
        let letter = Letter { header, body: place, op: None };
        self.with(to, |peer, shared| peer.send(letter, shared))?;
        Ok(None)
    }

    /// Posts the receive of a part of `call` that is too long for a slot; returns the part's number.
    pub(crate) fn expect_part(
        &mut self,
        from: usize,
        call: Call,
        place: Place,
    ) -> Result<u64, GroupError> {
        let announced = self.reach_by(from, Way::Data).and_then(|()| {
            let number =
                self.with(from, |peer, shared| peer.receive_data(place, shared).map(Some))?;
            // None: the call found that the rank has left.
            number.ok_or_else(|| lost(from))
        });
        announced.map_err(|error| {
            let held = self.held(from);
            self.never_comes(error, from, call, place.len(), held)
        })
    }

    /// Waits for the long part of this number, whose length is `len` bytes.
    pub(crate) fn await_part(
        &mut self,
        from: usize,
        call: Call,
        (number, len): (u64, usize),
    ) -> Result<(), GroupError> {
        let mut held = None;
        let ended = self.until(Some((from, Way::Data)), |mesh| {
            let came = mesh.peer(from).map_or(0, |peer| peer.received_data());
            let is_there = mesh.came[from] + came >= number;
            if !is_there {
                held = mesh.held(from);
            }
            is_there
        });
        ended.map_err(|error| self.never_comes(error, from, call, len, held))
    }

    /// The header of the oldest short part that has come from a rank. None once the group has failed.
    fn held(&mut self, from: usize) -> Option<Header> {
        Some(self.peer(from)?.held()?.header)
    }

    /// The error of a long part that never comes. If its rank has left, or nothing moves any more, and a short part has come that was sent
    /// in its place or after it, this is a mismatch of collectives. Otherwise the short part means nothing, as it may overtake long ones.
    fn never_comes(
        &mut self,
        error: GroupError,
        from: usize,
        call: Call,
        len: usize,
        held: Option<Header>,
    ) -> GroupError {
        let is_later = |header: &Header| {
            (header.scope, header.tag.wrapping_sub(call.number).cast_signed() >= 0)
                == (call.scope, true)
        };
        let Some(header) = held.filter(is_later).filter(|_| self.is_end_of_parts(&error)) else {
            return error;
        };
        let Header { scope, tag, note, len: sent, .. } = header;
        let why = self.other_part(from, call, (scope, tag, note), sent, len);
        self.differ(from, why)
    }

    /// Whether an error says only that a part never comes: its rank has left, or nothing moves any more.
    fn is_end_of_parts(&self, error: &GroupError) -> bool {
        match &self.failure {
            None => matches!(error, GroupError::PeerLost { .. }),
            Some(failure) => matches!(failure, Failure::Silent { .. }),
        }
    }

    /// The error of different collectives called by this rank and another one. It becomes the cause of the group's failure, if the group
    /// has failed.
    fn differ(&mut self, rank: usize, why: String) -> GroupError {
        if let Some(failure) = &mut self.failure {
            *failure = Failure::Mismatch { rank, why: why.clone() };
        }
        GroupError::Mismatch { rank, why }
    }

    /// Waits until a long part's memory is free.
    pub(crate) fn await_sent(&mut self, to: usize, number: u64) -> Result<(), GroupError> {
        let sent = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.sent_data() >= number);
        self.until(Some((to, Way::Data)), sent)
    }

    /// Waits until all short parts are copied into slots. A part stays in its memory while the connection is not open, or no slot is free.
    pub(crate) fn await_taken(&mut self, to: usize) -> Result<(), GroupError> {
        let is_taken = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_slots());
        self.until(Some((to, Way::Small)), is_taken)
    }

    /// Waits for a short part of a collective and copies it to its place. If the part never comes, and its rank has sent a long part that
    /// this rank does not expect, the error is a mismatch of collectives.
    pub(crate) fn take_part(
        &mut self,
        from: usize,
        call: Call,
        place: Place,
    ) -> Result<(), GroupError> {
        self.with(from, |peer, shared| peer.open(Way::Small, shared))?;
        let (mut found, mut long) = (None, None);
        let ended = self.until(Some((from, Way::Small)), |mesh| {
            let peer = mesh.peer(from);
            found = peer.as_ref().and_then(|peer| peer.held());
            long = peer.map_or(long, |peer| peer.unexpected_part());
            found.is_some()
        });
        if let (Err(error), Some(part)) = (&ended, long)
            && self.is_end_of_parts(error)
        {
            let theirs = (part.scope, part.number, part.note);
            let why = self.other_part(from, call, theirs, format!("over {SMALL}"), place.len());
            return Err(self.differ(from, why));
        }
        ended?;
        let Some(arrival) = found else { return self.check() };
        let Header { scope, tag, note, len, .. } = arrival.header;
        if (scope, tag, note, arrival.body.len())
            != (call.scope, call.number, call.what.note(), place.len())
        {
            let why = self.other_part(from, call, (scope, tag, note), len, place.len());
            return Err(GroupError::Mismatch { rank: from, why });
        }
        place.copy_from(arrival.body);
        self.with(from, |peer, _| peer.release_held())
    }

    /// Describes a mismatch: rank `from` has sent a part of `sent` bytes, where one of `len` bytes of `call` is due. `theirs`: the group,
    /// number and note of the collective of `from`.
    fn other_part(
        &self,
        from: usize,
        Call { scope, number, what }: Call,
        theirs: (u32, u32, u64),
        sent: impl fmt::Display,
        len: usize,
    ) -> String {
        let (theirs, tag, note) = theirs;
        let (own, said, what) = (self.rank, Said(note), Said(what.note()));
        format!(
            "rank {from} is in collective {tag} of group {theirs} ({said}) with a part of {sent} bytes, rank {own} in {number} of \
             group {scope} ({what}) and waits for {len}"
        )
    }

    /// Waits until the memory of all sent parts is free. For a part in a slot this needs no call of the peer.
    pub(crate) fn flush(&mut self, to: usize) -> Result<(), GroupError> {
        if to == self.rank {
            return Ok(());
        }
        self.await_taken(to)?;
        let sent = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_data());
        self.until(Some((to, Way::Data)), sent)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::super::{CallKind, What};
    use super::*;
    use crate::halo::FixedHalo1d;
    use crate::support::{WAIT, library, ranks};

    fn gather() -> Call {
        Call { scope: 0, number: 0, what: What::new(CallKind::Gather) }
    }

    /// As at the root of a gather before it knows that a rank has left.
    #[test]
    fn a_part_of_a_rank_that_has_left_unnoticed_does_not_count_as_received() {
        let turn = Arc::<AtomicUsize>::default();
        ranks(&library(), 2, move |group| {
            let await_turn = |number| {
                let end = Instant::now() + WAIT;
                while turn.load(Ordering::Acquire) != number {
                    assert!(Instant::now() < end, "turn {number} never comes");
                    std::thread::yield_now();
                }
            };
            let gather = gather();
            // The connection of long parts is open.
            let mut part = vec![7_u8; 4 * SMALL];
            group.broadcast(&mut part, 1).unwrap();
            if group.rank() == 1 {
                await_turn(1);
                drop(group);
                return turn.store(2, Ordering::Release);
            }
            // Nothing is polled meanwhile.
            let mut state = group.shared.lock();
            turn.store(1, Ordering::Release);
            await_turn(2);
            let expected = state.mesh.expect_part(1, gather, Place::writing(&mut part));
            assert!(matches!(expected, Err(GroupError::PeerLost { rank: 1, .. })), "{expected:?}");
        });
    }

    /// As in a ring whose next rank has all that it needs, and leaves, while the one before is late.
    #[test]
    fn a_part_counts_as_sent_though_its_rank_has_left_and_a_halo_with_it_is_open() {
        ranks(&library(), 2, |group| {
            let _halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            group.barrier().unwrap();
            let gather = gather();
            let mut part = vec![7_u8; 4 * SMALL];
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            if group.rank() == 1 {
                let number = mesh.expect_part(0, gather, Place::writing(&mut part)).unwrap();
                return mesh.await_part(0, gather, (number, 4 * SMALL)).unwrap();
            }
            let number = mesh.send_part(1, gather, Place::reading(&part)).unwrap();
            let is_closed =
                |mesh: &mut Mesh| mesh.peers[1].as_ref().is_some_and(|peer| !peer.has_lanes());
            mesh.until(None, is_closed).unwrap();
            mesh.await_sent(1, number.unwrap()).unwrap();
        });
    }

    /// As the root of a gather waits for a slow rank first, while another one has ended its part, and its process.
    #[test]
    fn a_part_counts_though_its_rank_has_left_before_it_is_awaited() {
        ranks(&library(), 2, |group| {
            // The connection of short messages is open, so that its end is seen.
            group.barrier().unwrap();
            let gather = gather();
            let mut part = vec![7_u8; 4 * SMALL];
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            if group.rank() == 1 {
                let number = mesh.send_part(0, gather, Place::reading(&part)).unwrap();
                return mesh.await_sent(0, number.unwrap()).unwrap();
            }
            part.fill(0);
            let number = mesh.expect_part(1, gather, Place::writing(&mut part)).unwrap();
            mesh.until(None, |mesh| mesh.peers[1].is_none()).unwrap();
            mesh.await_part(1, gather, (number, 4 * SMALL)).unwrap();
            assert_eq!(part, vec![7; 4 * SMALL]);
            let next = mesh.expect_part(1, gather, Place::writing(&mut part));
            assert!(matches!(next, Err(GroupError::PeerLost { rank: 1, .. })), "{next:?}");
        });
    }
}
