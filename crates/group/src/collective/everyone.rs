//! Collectives without a root: all_gather, reduce_scatter, all_to_all, barrier.

use super::reducer::Reducer;
use super::rooted::own;
use super::session::{Session, piece, terms_piece};
use crate::error::GroupError;
use crate::loader::Place;

/// Block `r` of every output is rank r's input.
pub(super) fn all_gather(
    session: &mut Session<'_>,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    exchange(session, input, |rank| output.part(rank * input.len(), input.len()))
}

/// Each rank sends its own input to all others, and receives theirs in their places.
pub(super) fn exchange(
    session: &mut Session<'_>,
    input: Place,
    place: impl Fn(usize) -> Place,
) -> Result<(), GroupError> {
    session.with_work(|session, work| {
        for peer in session.others() {
            work.parts.push_back(session.expect(peer, place(peer))?);
        }
        for peer in session.others() {
            session.send(peer, input)?;
        }
        own(place(session.rank()), input);
        while let Some(due) = work.parts.pop_front() {
            session.arrived(due)?;
        }
        session.flush()
    })
}

/// Rank r's output is the reduction of block `r` of all inputs, in the order of ranks.
pub(super) fn reduce_scatter(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (rank, size, len) = (session.rank(), session.size(), output.len());
    let bytes = terms_piece(size);
    let of = |owner: usize, step: usize| piece(input.part(owner * len, len), bytes, step);
    let pieces = len.div_ceil(bytes);
    let stride = len.min(bytes).next_multiple_of(ALIGNMENT);
    // The terms of a step, with a place for this rank's own.
    let scratch = session.scratch((AHEAD + 1) * size * stride)?;
    let slot = |step: usize, peer: usize| {
        scratch.part((step % (AHEAD + 1) * size + peer) * stride, of(rank, step).len())
    };
    session.with_work(|session, work| {
        for step in 0..pieces + AHEAD {
            if step < pieces {
                for peer in session.others() {
                    work.parts.push_back(session.expect(peer, slot(step, peer))?);
                }
                for peer in session.others() {
                    session.send(peer, of(peer, step))?;
                }
            }
            let Some(step) = step.checked_sub(AHEAD) else { continue };
            for due in work.parts.drain(..size - 1) {
                session.arrived(due)?;
            }
            let own = of(rank, step);
            // With more than two terms the first is overwritten: it must not be the user's input.
            let first = rank == 0 && size > 2;
            if first {
                slot(step, 0).copy_from(own);
            }
            let term = |peer: usize| if peer == rank && !first { own } else { slot(step, peer) };
            reducer.fold(piece(output, bytes, step), (0..size).map(term));
        }
        session.flush()
    })
}

/// Sends a range of the input to each rank, and receives a range of the output from each; `None`: nothing. The ranges of two ranks agree.
pub(super) fn all_to_all(
    session: &mut Session<'_>,
    input: impl Fn(usize) -> Place,
    output: impl Fn(usize) -> Place,
) -> Result<(), GroupError> {
    let (rank, size) = (session.rank(), session.size());
    session.with_work(|session, work| {
        // In each step a rank sends to the rank `distance` ahead, and receives from the one `distance` behind.
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            work.parts.push_back(session.expect(from, output(from))?);
        }
        for peer in session.others() {
            session.send(peer, input(peer))?;
        }
        output(rank).copy_from(input(rank));
        while let Some(due) = work.parts.pop_front() {
            session.arrived(due)?;
        }
        session.flush()
    })
}

/// In step k a rank signals the one 2^k ahead, and waits for the one 2^k behind.
pub(super) fn barrier(session: &mut Session<'_>) -> Result<(), GroupError> {
    let (rank, size) = (session.rank(), session.size());
    let mut distance = 1;
    while distance < size {
        session.signal((rank + distance) % size)?;
        session.await_signal((rank + size - distance) % size)?;
        distance *= 2;
    }
    session.flush()
}

const AHEAD: usize = 2;
const ALIGNMENT: usize = 64;
