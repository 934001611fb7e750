//! Collectives with a root: broadcast, reduce, gather, scatter.

use super::reducer::Reducer;
use super::session::{ALIGNMENT, Session, piece};
use crate::error::GroupError;
use crate::loader::Place;
use crate::mesh::{PART, SMALL};

/// Short: by a tree, in which the number of ranks with the data doubles in each step. Long: along a chain, in pieces.
pub(super) fn broadcast(
    session: &mut Session<'_>,
    root: usize,
    data: Place,
) -> Result<(), GroupError> {
    if data.len() <= SMALL {
        return tree(session, root, data);
    }
    let size = session.size();
    let (links, at) = chain(session, root);
    // A rank that passes a piece on first waits for the whole piece.
    let bytes = if size == 2 { data.len() } else { chain_piece(data.len()) };
    let pieces = data.len().div_ceil(bytes);
    session.with_work(|session, work| {
        if let Some(previous) = links.previous {
            for index in 0..pieces {
                work.parts.push_back(session.expect(previous, piece(data, bytes, index))?);
            }
        }
        for index in 0..pieces {
            if let Some(due) = work.parts.pop_front() {
                session.arrived(due)?;
            }
            if at + 1 < size {
                session.send(links.next, piece(data, bytes, index))?;
            }
        }
        session.flush()
    })
}

fn tree(session: &mut Session<'_>, root: usize, data: Place) -> Result<(), GroupError> {
    let (size, own) = (session.size(), (session.rank() + session.size() - root) % session.size());
    // The highest bit of a rank, counted from the root, gives the step in which it receives the data, and the sender.
    let mut distance = 1;
    if own > 0 {
        distance = 1 << own.ilog2();
        session.receive((own - distance + root) % size, data)?;
        distance *= 2;
    }
    while own + distance < size {
        session.send((own + distance + root) % size, data)?;
        distance *= 2;
    }
    session.flush()
}

/// Short: all send to the root, which reduces in the order of ranks. Long: along a chain, in pieces, to which each rank adds its own.
pub(super) fn reduce(
    session: &mut Session<'_>,
    reducer: Reducer,
    root: usize,
    input: Place,
    output: Option<Place>,
) -> Result<(), GroupError> {
    let size = session.size();
    if input.len() > DIRECT {
        return reduce_chain(session, reducer, root, input, output);
    }
    let Some(output) = output else {
        session.send(root, input)?;
        return session.flush();
    };
    let stride = input.len().next_multiple_of(ALIGNMENT);
    let scratch = session.scratch(size * stride)?;
    let slot = |rank: usize| scratch.part(rank * stride, input.len());
    slot(session.rank()).copy_from(input);
    for peer in session.others() {
        session.receive(peer, slot(peer))?;
    }
    reducer.fold(output, slot(0), (0..size).map(slot));
    Ok(())
}

/// The root is the last of the chain.
fn reduce_chain(
    session: &mut Session<'_>,
    reducer: Reducer,
    root: usize,
    input: Place,
    output: Option<Place>,
) -> Result<(), GroupError> {
    let (links, at) = chain(session, (root + 1) % session.size());
    let bytes = chain_piece(input.len());
    let pieces = input.len().div_ceil(bytes);
    let of = |index: usize| piece(input, bytes, index);
    let Some(previous) = links.previous else {
        for index in 0..pieces {
            session.send(links.next, of(index))?;
        }
        return session.flush();
    };
    let stride = input.len().min(bytes).next_multiple_of(ALIGNMENT);
    // Slots for received pieces, and as many for sums that are being sent.
    let scratch = session.scratch(2 * AHEAD * stride)?;
    let slot = |index: usize| scratch.part(index % AHEAD * stride, of(index).len());
    let sum = |index: usize| scratch.part((AHEAD + index % AHEAD) * stride, of(index).len());
    let last = at + 1 == session.size();
    session.with_work(|session, work| {
        for index in 0..AHEAD.min(pieces) {
            work.parts.push_back(session.expect_term(previous, slot(index))?);
        }
        for index in 0..pieces {
            let Some(due) = work.parts.pop_front() else { continue };
            let term = session.term(&due)?;
            let whole = match output {
                Some(output) if last => piece(output, bytes, index),
                _ => {
                    // The sum in this slot has been sent.
                    if work.sends.len() >= AHEAD
                        && let Some(sending) = work.sends.pop_front()
                    {
                        session.sent(sending)?;
                    }
                    sum(index)
                }
            };
            reducer.combine(whole, term.place, of(index));
            session.release(&due)?;
            if last {
                reducer.finish(whole);
            } else {
                work.sends.push_back(session.send(links.next, whole)?);
            }
            let ahead = index + AHEAD;
            if ahead < pieces {
                work.parts.push_back(session.expect_term(previous, slot(ahead))?);
            }
        }
        session.flush()
    })
}

/// Block `r` of the root's output is rank r's input.
pub(super) fn gather(
    session: &mut Session<'_>,
    root: usize,
    input: Place,
    output: Option<Place>,
) -> Result<(), GroupError> {
    let Some(output) = output else {
        session.send(root, input)?;
        return session.flush();
    };
    let block = |rank: usize| output.part(rank * input.len(), input.len());
    session.with_work(|session, work| {
        for peer in session.others() {
            work.parts.push_back(session.expect(peer, block(peer))?);
        }
        session.keep(block(session.rank()), input)?;
        session.all_arrived(&mut work.parts)
    })
}

/// Rank r's output is block `r` of the root's input.
pub(super) fn scatter(
    session: &mut Session<'_>,
    root: usize,
    input: Option<Place>,
    output: Place,
) -> Result<(), GroupError> {
    let Some(input) = input else { return session.receive(root, output) };
    let block = |rank: usize| input.part(rank * output.len(), output.len());
    for peer in session.others() {
        session.send(peer, block(peer))?;
    }
    session.keep(output, block(session.rank()))?;
    session.flush()
}

/// The length of the pieces that go along a chain. Short ones need no announcement, and long ones no copy.
fn chain_piece(len: usize) -> usize {
    if len <= 4 * PART { PART } else { 2 * PART }
}

/// A rank's neighbours in a chain.
struct Links {
    previous: Option<usize>,
    next: usize,
}

/// A rank's neighbours in the chain that begins at `first`, and the number of ranks before it.
fn chain(session: &Session<'_>, first: usize) -> (Links, usize) {
    let (rank, size) = (session.rank(), session.size());
    let at = (rank + size - first) % size;
    let previous = (at > 0).then_some((rank + size - 1) % size);
    (Links { previous, next: (rank + 1) % size }, at)
}

/// The longest input that every rank sends to the root of a reduction.
const DIRECT: usize = 32 << 10;
const AHEAD: usize = 2;
