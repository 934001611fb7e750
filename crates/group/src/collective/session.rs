//! One collective on one rank: sends parts, receives parts.

use std::collections::VecDeque;

use super::reducer::Reducer;
use crate::error::GroupError;
use crate::loader::Place;
use crate::mesh::{Call, Mesh, Part, Term};

/// The lists of collectives, kept between calls so that they allocate nothing.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(super) parts: VecDeque<Due>,
    pub(super) terms: Vec<(Due, Term)>,
    pub(super) results: VecDeque<Due>,
    pub(super) sends: VecDeque<Sending>,
}

impl Work {
    /// The lists emptied, with their capacity.
    fn emptied(mut self) -> Self {
        self.parts.clear();
        self.terms.clear();
        self.results.clear();
        self.sends.clear();
        self
    }
}

/// One collective. Ranks here are those of the group, not of the mesh.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    mesh: &'a mut Mesh,
    work: &'a mut Work,
    members: &'a [usize],
    rank: usize,
    call: Call,
}

/// A part to be received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    from: usize,
    place: Place,
    /// None: it is empty, and nothing comes.
    part: Option<Part>,
}

/// A part whose memory may still be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    to: usize,
    /// None: it is empty.
    part: Option<Part>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        mesh: &'a mut Mesh,
        work: &'a mut Work,
        members: &'a [usize],
        rank: usize,
        call: Call,
    ) -> Self {
        Self { mesh, work, members, rank, call }
    }

    /// Runs an algorithm with empty lists that have capacity.
    pub(super) fn with_work<T>(
        &mut self,
        run: impl FnOnce(&mut Self, &mut Work) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let mut work = std::mem::take(self.work).emptied();
        let ended = run(self, &mut work);
        *self.work = work;
        ended
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// All other ranks; each rank begins with the one after it, so that they do not all send to the same rank.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.members.len());
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// Sends a part. Its memory is free after [`Session::sent`] or [`Session::flush`]. An empty part sends nothing.
    pub(super) fn send(&mut self, to: usize, place: Place) -> Result<Sending, GroupError> {
        let send = || self.mesh.send_part(self.members[to], self.call, place);
        let part = (!place.is_empty()).then(send).transpose()?;
        Ok(Sending { to, part })
    }

    /// Sends a message without bytes.
    pub(super) fn signal(&mut self, to: usize) -> Result<(), GroupError> {
        self.mesh.send_part(self.members[to], self.call, Place::empty()).map(drop)
    }

    /// Waits for a message without bytes.
    pub(super) fn await_signal(&mut self, from: usize) -> Result<(), GroupError> {
        let from = self.members[from];
        let part = self.mesh.expect_part(from, self.call, Place::empty(), false)?;
        self.mesh.await_part(from, self.call, part, Place::empty())
    }

    /// Announces where the next part of a rank goes.
    pub(super) fn expect(&mut self, from: usize, place: Place) -> Result<Due, GroupError> {
        self.expect_by(from, place, false)
    }

    /// Announces a part that is only read, and waited for by [`Session::term`]. It may stay in memory of this rank's own; `spare` is where
    /// it goes otherwise.
    pub(super) fn expect_term(&mut self, from: usize, spare: Place) -> Result<Due, GroupError> {
        self.expect_by(from, spare, true)
    }

    fn expect_by(&mut self, from: usize, place: Place, may_stay: bool) -> Result<Due, GroupError> {
        let expect = || self.mesh.expect_part(self.members[from], self.call, place, may_stay);
        let part = (!place.is_empty()).then(expect).transpose()?;
        Ok(Due { from, place, part })
    }

    /// Waits for a part from [`Session::expect_term`], as [`Session::arrived`] does. It is there until [`Session::release`].
    pub(super) fn term(&mut self, due: &Due) -> Result<Term, GroupError> {
        let Due { from, place, part } = *due;
        let Some(part) = part else { return Ok(Term::at(place)) };
        self.mesh.await_term(self.members[from], self.call, part, place)
    }

    /// The oldest part of a rank from [`Session::term`] is needed no more.
    pub(super) fn release(&mut self, due: &Due) -> Result<(), GroupError> {
        let Some(part) = due.part else { return Ok(()) };
        self.mesh.release_term(self.members[due.from], part)
    }

    /// Waits for a part. The parts of one rank must be waited for in the order in which they were expected.
    pub(super) fn arrived(&mut self, due: Due) -> Result<(), GroupError> {
        let Due { from, place, part } = due;
        let Some(part) = part else { return Ok(()) };
        self.mesh.await_part(self.members[from], self.call, part, place)
    }

    /// Waits for these parts, and empties the list.
    pub(super) fn all_arrived(&mut self, dues: &mut VecDeque<Due>) -> Result<(), GroupError> {
        while let Some(due) = dues.pop_front() {
            self.arrived(due)?;
        }
        Ok(())
    }

    /// Waits for a term from each other rank, from [`Session::expect_term`] in the order of [`Session::others`], reduces them and this
    /// rank's own in the order of ranks, and releases them.
    pub(super) fn fold_terms(
        &mut self,
        reducer: Reducer,
        work: &mut Work,
        own: Place,
        into: Place,
    ) -> Result<(), GroupError> {
        let (rank, size) = (self.rank, self.members.len());
        for due in work.parts.drain(..size - 1) {
            work.terms.push((due, self.term(&due)?));
        }
        let term = |peer: usize| match (peer + size - rank) % size {
            0 => own,
            distance => work.terms[distance - 1].1.place,
        };
        // The first term of other ranks is in memory of the group, rank 0's is its caller's.
        let between = if rank == 0 { into } else { term(0) };
        reducer.fold(into, between, (0..size).map(term));
        work.terms.drain(..).try_for_each(|(due, _)| self.release(&due))
    }

    /// Expects a part and waits for it.
    pub(super) fn receive(&mut self, from: usize, place: Place) -> Result<(), GroupError> {
        let due = self.expect(from, place)?;
        self.arrived(due)
    }

    /// Copies a rank's own block, unless it is in its place already. A long block is copied in pieces, between which parts of other ranks
    /// make progress.
    pub(super) fn keep(&mut self, to: Place, from: Place) -> Result<(), GroupError> {
        if to.address() == from.address() {
            return Ok(());
        }
        copy_with_pauses(to, from, || self.mesh.poll(None).map(drop))
    }

    /// Waits until the memory of a part is free.
    pub(super) fn sent(&mut self, Sending { to, part }: Sending) -> Result<(), GroupError> {
        part.map_or(Ok(()), |part| self.mesh.await_sent(self.members[to], part))
    }

    /// Waits until the memory of all parts is free.
    pub(super) fn flush(&mut self) -> Result<(), GroupError> {
        for member in self.members {
            self.mesh.flush(*member)?;
        }
        Ok(())
    }

    /// Memory for this collective only.
    pub(super) fn scratch(&mut self, bytes: usize) -> Result<Place, GroupError> {
        self.mesh.scratch(bytes)
    }
}

/// Terms of a reduction begin on cache lines.
pub(super) const ALIGNMENT: usize = 64;

/// The range in bytes of share `index`, when `count` elements are divided into `shares`: the first shares have one more.
pub(super) fn share(
    count: usize,
    width: usize,
    shares: usize,
    index: usize,
) -> std::ops::Range<usize> {
    let (each, more) = (count / shares, count % shares);
    let at = |index: usize| (index * each + index.min(more)) * width;
    at(index)..at(index + 1)
}

/// The length of the pieces in which a rank receives the terms of its share, one from each other rank at a time. As long as possible, since
/// each piece waits for an announcement; but all of them together stay in the L2 cache from their arrival until they are added.
pub(super) fn terms_piece(ranks: usize) -> usize {
    ((512 << 10) / (ranks - 1).max(1)).next_multiple_of(4 << 10).max(128 << 10)
}

/// The length of the pieces of a rank's own block.
const OWN_PIECE: usize = 256 << 10;

/// Copies in pieces, with a pause after each but the last.
fn copy_with_pauses(
    to: Place,
    from: Place,
    mut pause: impl FnMut() -> Result<(), GroupError>,
) -> Result<(), GroupError> {
    for index in 0..to.len().div_ceil(OWN_PIECE) {
        if index > 0 {
            pause()?;
        }
        piece(to, OWN_PIECE, index).copy_from(piece(from, OWN_PIECE, index));
    }
    Ok(())
}

/// Piece `index` of a place that is cut into pieces of `piece` bytes.
pub(super) fn piece(place: Place, piece: usize, index: usize) -> Place {
    place.part(index.saturating_mul(piece), piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_and_in_order() {
        for (count, shares) in [(0, 3), (1, 3), (7, 3), (10_000_001, 3), (6, 3)] {
            let mut end = 0;
            for index in 0..shares {
                let range = share(count, 4, shares, index);
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(end, count * 4);
        }
    }

    #[test]
    fn a_long_block_is_copied_with_pauses() {
        for (len, pauses) in
            [(0, 0), (1, 0), (OWN_PIECE, 0), (OWN_PIECE + 1, 1), (4 * OWN_PIECE, 3)]
        {
            let (from, mut to) = (vec![7_u8; len], vec![0_u8; len]);
            let place = Place::writing(&mut to);
            let mut paused = 0;
            let copied = copy_with_pauses(place, Place::reading(&from), || {
                paused += 1;
                let so_far = place.elements::<u8>().iter().filter(|byte| **byte == 7).count();
                assert_eq!(so_far, paused * OWN_PIECE, "{len} bytes");
                Ok(())
            });
            copied.unwrap();
            assert_eq!(paused, pauses, "{len} bytes");
            assert_eq!(to, from);
        }
    }
}
