//! Parts of collectives. They are matched by their order alone.
//!
//! A short part goes through a slot. A longer one is sent from its memory to a receive: of middle length to one that was posted ahead, in
//! staging memory, and a long one to one in its place, which must be announced first.

use std::fmt;
use std::sync::Arc;

use super::call::{Call, Said};
use super::failure::Failure;
use super::header::{Header, Kind, Route, SMALL, Space};
use super::peer::{LastPart, Peer, Way};
use super::slots::{Arrival, Letter};
use super::{Mesh, Shared, lost};
use crate::error::GroupError;
use crate::loader::{Memory, Place};

/// A part: how it travels, and its number among the parts to or from its peer that travel this way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// None: in a slot.
    route: Option<Route>,
    number: u64,
}

/// Parts of a rank that a collective which waits for another part of it does not expect.
#[derive(Clone, Copy, Debug, Default)]
struct Stray {
    /// The oldest one that has come in a slot.
    short: Option<Header>,
    /// The last one that was begun, if it is a long one, and as far as its rank has said.
    long: Option<LastPart>,
}

/// A part that may be where it has come, in memory of this rank's own.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) place: Place,
    /// Keeps the memory alive though the peer's connections close.
    _memory: Option<Arc<Memory>>,
}

impl Term {
    /// A part in memory of its caller's.
    pub(crate) fn at(place: Place) -> Self {
        Self { place, _memory: None }
    }
}

impl Part {
    const IN_SLOT: Self = Self { route: None, number: 0 };
}

impl Mesh {
    /// How a part of this length travels, the same on both ranks; None: in a slot.
    fn part_route(&self, call: Call, len: usize) -> Option<Route> {
        if len <= SMALL {
            return None;
        }
        let is_staged = self.stages_parts && len <= call.what.staged_most();
        Some(if is_staged { Route::Staged } else { Route::Direct })
    }

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

    /// Sends a part of a collective. Its memory is free after [`Mesh::await_sent`] or [`Mesh::flush`].
    pub(crate) fn send_part(
        &mut self,
        to: usize,
        call: Call,
        place: Place,
    ) -> Result<Part, GroupError> {
        if let Some(route) = self.part_route(call, place.len()) {
            self.reach_by(to, Way::Part(route))?;
            let send = |peer: &mut Peer, shared: &mut Shared<'_>| {
                peer.send_part(route, call, place, shared).map(Some)
            };
            let number = self.with(to, send)?.ok_or_else(|| lost(to))?;
            return Ok(Part { route: Some(route), number });
        }
        self.reach(to)?;
        let Call { scope, number, what } = call;
        let (kind, space, len) = (Kind::Part, Space::MESSAGES, place.len() as u64);
        let note = what.note();
        let header = Header { kind, element: 0, scope, tag: number, len, space, note };
        let letter = Letter { header, body: place, op: None };
        self.with(to, |peer, shared| peer.send(letter, shared))?;
        Ok(Part::IN_SLOT)
    }

    /// Queues the receive of the next part of `call` from a rank, unless it comes in a slot. [`Mesh::await_part`] waits for it, or
    /// [`Mesh::await_term`] if it may stay where it comes; then `place` is where it goes otherwise.
    pub(crate) fn expect_part(
        &mut self,
        from: usize,
        call: Call,
        place: Place,
        may_stay: bool,
    ) -> Result<Part, GroupError> {
        let Some(route) = self.part_route(call, place.len()) else { return Ok(Part::IN_SLOT) };
        let expected = self.reach_by(from, Way::Part(route)).and_then(|()| {
            let receive = |peer: &mut Peer, shared: &mut Shared<'_>| {
                peer.receive_part(route, place, may_stay, shared).map(Some)
            };
            // None: the call found that the rank has left.
            let number = self.with(from, receive)?.ok_or_else(|| lost(from))?;
            // Apart from that: parts that have come count, even if the receive of a later one fails.
            self.with(from, |peer, shared| peer.bring_parts(route, shared))?;
            Ok(number)
        });
        let number = expected.map_err(|error| {
            let stray = self.stray(from).unwrap_or_default();
            self.never_comes(error, from, call, place.len(), stray)
        })?;
        Ok(Part { route: Some(route), number })
    }

    /// Waits for a part whose place is known since [`Mesh::expect_part`].
    pub(crate) fn await_part(
        &mut self,
        from: usize,
        call: Call,
        Part { route, number }: Part,
        place: Place,
    ) -> Result<(), GroupError> {
        match route {
            None => self.take_part(from, call, place),
            Some(route) => self.await_long(from, call, (route, number), place.len()),
        }
    }

    /// As [`Mesh::await_part`], of a part that may stay where it comes. Returns where it is, until [`Mesh::release_term`].
    pub(crate) fn await_term(
        &mut self,
        from: usize,
        call: Call,
        Part { route, number }: Part,
        spare: Place,
    ) -> Result<Term, GroupError> {
        let Some(route) = route else {
            let Some(arrival) = self.hold_part(from, call, spare.len())? else {
                return Err(lost(from));
            };
            let memory = self.peer(from).and_then(|peer| peer.slots().cloned());
            return Ok(Term { place: arrival.body, _memory: memory });
        };
        self.await_long(from, call, (route, number), spare.len())?;
        if route == Route::Direct {
            return Ok(Term::at(spare));
        }
        let peer = self.peer(from).ok_or_else(|| lost(from))?;
        let (place, memory) = peer.staying(route).ok_or_else(|| lost(from))?;
        Ok(Term { place, _memory: Some(Arc::clone(memory)) })
    }

    /// The oldest part from [`Mesh::await_term`] is needed no more.
    pub(crate) fn release_term(
        &mut self,
        from: usize,
        Part { route, .. }: Part,
    ) -> Result<(), GroupError> {
        self.with(from, |peer, _| match route {
            None => peer.release_held(),
            Some(route) => {
                peer.release(route);
                Ok(())
            }
        })
    }

    /// Waits for a long part.
    fn await_long(
        &mut self,
        from: usize,
        call: Call,
        (route, number): (Route, u64),
        len: usize,
    ) -> Result<(), GroupError> {
        let mut stray = Stray::default();
        let ended = self.until(Some((from, Way::Part(route))), |mesh| {
            let came = mesh.peer(from).map_or(0, |peer| peer.received_parts()[route as usize]);
            let is_there = mesh.came[from][route as usize] + came >= number;
            if !is_there {
                stray = mesh.stray(from).unwrap_or(stray);
            }
            is_there
        });
        ended.map_err(|error| self.never_comes(error, from, call, len, stray))
    }

    /// The parts of a rank that this rank does not wait for. None once the group has failed.
    fn stray(&mut self, from: usize) -> Option<Stray> {
        let peer = self.peer(from)?;
        Some(Stray { short: peer.held().map(|held| held.header), long: peer.unexpected_part() })
    }

    /// The error of a part that never comes. If its rank has left, or nothing moves any more, and it has sent another part in its place or
    /// after it, this is a mismatch of collectives. Otherwise the other part means nothing, as it may overtake parts that move in another
    /// way.
    fn never_comes(
        &mut self,
        error: GroupError,
        from: usize,
        call: Call,
        len: usize,
        Stray { short, long }: Stray,
    ) -> GroupError {
        let is_later = |header: &Header| {
            (header.scope, header.tag.wrapping_sub(call.number).cast_signed() >= 0)
                == (call.scope, true)
        };
        let (theirs, sent) = match (short.filter(is_later), long) {
            _ if !self.is_end_of_parts(&error) => return error,
            (Some(header), _) => ((header.scope, header.tag, header.note), header.len.to_string()),
            (None, Some(part)) => ((part.scope, part.number, part.note), format!("over {SMALL}")),
            (None, None) => return error,
        };
        let why = self.other_part(from, call, theirs, sent, len);
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

    /// Waits until a part's memory is free.
    pub(crate) fn await_sent(
        &mut self,
        to: usize,
        Part { route, number }: Part,
    ) -> Result<(), GroupError> {
        let Some(route) = route else { return self.await_taken(to) };
        let sent =
            |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.sent_parts(route) >= number);
        self.until(Some((to, Way::Part(route))), sent)
    }

    /// Waits until all short parts are copied into slots. A part stays in its memory while the connection is not open, or no slot is free.
    fn await_taken(&mut self, to: usize) -> Result<(), GroupError> {
        let is_taken = |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_slots());
        self.until(Some((to, Way::Small)), is_taken)
    }

    /// Waits for a short part of a collective and copies it to its place.
    pub(super) fn take_part(
        &mut self,
        from: usize,
        call: Call,
        place: Place,
    ) -> Result<(), GroupError> {
        let Some(arrival) = self.hold_part(from, call, place.len())? else { return self.check() };
        place.copy_from(arrival.body);
        self.with(from, |peer, _| peer.release_held())
    }

    /// Waits for a short part of a collective, which stays in its slot.
    fn hold_part(
        &mut self,
        from: usize,
        call: Call,
        due: usize,
    ) -> Result<Option<Arrival>, GroupError> {
        self.with(from, |peer, shared| peer.open(Way::Small, shared))?;
        let (mut found, mut stray) = (None, Stray::default());
        let ended = self.until(Some((from, Way::Small)), |mesh| {
            found = mesh.peer(from).and_then(|peer| peer.held());
            stray = mesh.stray(from).unwrap_or(stray);
            found.is_some()
        });
        ended.map_err(|error| self.never_comes(error, from, call, due, stray))?;
        let Some(arrival) = found else { return Ok(None) };
        let Header { scope, tag, note, len, .. } = arrival.header;
        if (scope, tag, note, arrival.body.len())
            != (call.scope, call.number, call.what.note(), due)
        {
            let why = self.other_part(from, call, (scope, tag, note), len, due);
            return Err(GroupError::Mismatch { rank: from, why });
        }
        Ok(Some(arrival))
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
        for route in Route::ALL {
            let sent =
                |mesh: &mut Self| mesh.peer(to).is_none_or(|peer| peer.has_sent_parts(route));
            self.until(Some((to, Way::Part(route))), sent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::super::lane::PART;
    use super::super::{CallKind, What};
    use super::*;
    use crate::halo::FixedHalo1d;
    use crate::support::{WAIT, library, ranks};

    /// Longer than a part in staging memory.
    const LONG: usize = PART + 1;

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
            let mut part = vec![7_u8; LONG];
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
            let place = Place::writing(&mut part);
            let expected = state.mesh.expect_part(1, gather, place, false);
            let ended = expected.and_then(|part| state.mesh.await_part(1, gather, part, place));
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
        });
    }

    /// As in a ring whose next rank has all that it needs, and leaves, while the one before is late.
    #[test]
    fn a_part_counts_as_sent_though_its_rank_has_left_and_a_halo_with_it_is_open() {
        ranks(&library(), 2, |group| {
            let _halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            group.barrier().unwrap();
            let gather = gather();
            let mut part = vec![7_u8; LONG];
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            if group.rank() == 1 {
                let place = Place::writing(&mut part);
                let due = mesh.expect_part(0, gather, place, false).unwrap();
                return mesh.await_part(0, gather, due, place).unwrap();
            }
            let sending = mesh.send_part(1, gather, Place::reading(&part)).unwrap();
            let is_closed =
                |mesh: &mut Mesh| mesh.peers[1].as_ref().is_some_and(|peer| !peer.has_lanes());
            mesh.until(None, is_closed).unwrap();
            mesh.await_sent(1, sending).unwrap();
        });
    }

    /// Rank 1 sends a part of `len` bytes, and leaves. Rank 0 waits until `has_gone` holds for it, and then does `then`, with the part and
    /// the place where it was expected.
    fn once_its_rank_has_left(
        (len, may_stay): (usize, bool),
        has_gone: fn(&Option<Peer>) -> bool,
        then: fn(&mut Mesh, Part, Place),
    ) {
        ranks(&library(), 2, move |group| {
            // The connection of short messages is open, so that its end is seen.
            group.barrier().unwrap();
            let mut part = vec![7_u8; len];
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            if group.rank() == 1 {
                let sending = mesh.send_part(0, gather(), Place::reading(&part)).unwrap();
                return mesh.await_sent(0, sending).unwrap();
            }
            part.fill(0);
            let place = Place::writing(&mut part);
            let due = mesh.expect_part(1, gather(), place, may_stay).unwrap();
            mesh.until(None, |mesh| has_gone(&mesh.peers[1])).unwrap();
            then(mesh, due, place);
        });
    }

    /// As the root of a gather waits for a slow rank first, while another one has ended its part, and its process.
    #[test]
    fn a_part_counts_though_its_rank_has_left_before_it_is_awaited() {
        once_its_rank_has_left((LONG, false), Option::is_none, |mesh, due, place| {
            mesh.await_part(1, gather(), due, place).unwrap();
            assert_eq!(place.elements::<u8>(), vec![7; LONG]);
            let next = mesh.expect_part(1, gather(), place, false);
            assert!(matches!(next, Err(GroupError::PeerLost { rank: 1, .. })), "{next:?}");
        });
    }

    /// As a term of a reduction that has come while the one of another rank is awaited.
    #[test]
    fn a_part_that_stays_where_it_has_come_is_there_though_its_rank_has_left() {
        let has_gone = |peer: &Option<Peer>| peer.as_ref().is_none_or(|peer| !peer.has_lanes());
        once_its_rank_has_left((PART, true), has_gone, |mesh, due, spare| {
            mesh.poll(None).unwrap();
            let term = mesh.await_term(1, gather(), due, spare).unwrap();
            mesh.release_term(1, due).unwrap();
            mesh.poll(None).unwrap();
            assert!(mesh.peers[1].is_none(), "no part is due");
            assert!(term.place.elements::<u8>().iter().all(|byte| *byte == 7));
            assert_ne!(term.place.address(), spare.address());
        });
    }
}
