//! Collectives without a root: all_gather, reduce_scatter, all_to_all, barrier.

use super::reducer::Reducer;
use super::session::{ALIGNMENT, Session, piece, terms_piece};
use crate::error::GroupError;
use crate::loader::Place;

/// Block `r` of every output is rank r's input.
pub(super) fn all_gather(
    session: &mut Session<'_>,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (size, len) = (session.size(), input.len());
    if has_short_way(size) && len <= DOUBLED {
        return doubling(session, input, output);
    }
    if size > 4 && len <= ROTATED {
        return rotated(session, input, output);
    }
    exchange(session, input, |rank| output.part(rank * len, len))
}

/// Whether `size` ranks can exchange in log2 n steps of pairs, with fewer messages than with every other rank.
fn has_short_way(size: usize) -> bool {
    size > 2 && size.is_power_of_two()
}

/// In step k two ranks whose numbers differ by 2^k exchange the 2^k blocks that each of them has, which are adjacent. A rank sends one
/// message per step, not one to each other rank.
fn doubling(session: &mut Session<'_>, input: Place, output: Place) -> Result<(), GroupError> {
    let (rank, size, len) = (session.rank(), session.size(), input.len());
    let blocks = |first: usize, count: usize| output.part(first * len, count * len);
    session.keep(blocks(rank, 1), input)?;
    let mut count = 1;
    while count < size {
        let peer = rank ^ count;
        let due = session.expect(peer, blocks(peer & !(count - 1), count))?;
        session.send(peer, blocks(rank & !(count - 1), count))?;
        session.arrived(due)?;
        count *= 2;
    }
    session.flush()
}

/// For any number of ranks. A rank collects blocks in rotated order: block `j` is that of the rank `j` after it. In step k a rank sends its
/// first 2^k blocks to the rank 2^k before it, and receives as many from the rank 2^k after it; in the last step only the missing ones. So
/// a rank is connected to as few others as by [`barrier`].
fn rotated(session: &mut Session<'_>, input: Place, output: Place) -> Result<(), GroupError> {
    let (rank, size, len) = (session.rank(), session.size(), input.len());
    let scratch = session.scratch(size * len)?;
    let hand = |first: usize, count: usize| scratch.part(first * len, count * len);
    hand(0, 1).copy_from(input);
    let mut distance = 1;
    while distance < size {
        let count = distance.min(size - distance);
        let due = session.expect((rank + distance) % size, hand(distance, count))?;
        session.send((rank + size - distance) % size, hand(0, count))?;
        session.arrived(due)?;
        distance *= 2;
    }
    for block in 0..size {
        output.part((rank + block) % size * len, len).copy_from(hand(block, 1));
    }
    session.flush()
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
        session.keep(place(session.rank()), input)?;
        session.all_arrived(&mut work.parts)?;
        session.flush()
    })
}

/// Rank r's output is the reduction of block `r` of all inputs, in the order of ranks. Short blocks between 2^n ranks travel together, in n
/// steps.
pub(super) fn reduce_scatter(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (rank, size, len) = (session.rank(), session.size(), output.len());
    if has_short_way(size) && len <= TERMS_CARRIED {
        let all = (size * len).next_multiple_of(ALIGNMENT);
        let scratch = session.scratch(3 * all)?;
        let terms = scratch.part(0, size * len);
        carried(session, input, terms, scratch.part(all, 2 * all))?;
        let term = |rank: usize| terms.part(rank * len, len);
        reducer.fold(output, term(0), (0..size).map(term));
        return Ok(());
    }
    let bytes = terms_piece(size);
    let of = |owner: usize, step: usize| piece(input.part(owner * len, len), bytes, step);
    let pieces = len.div_ceil(bytes);
    let stride = len.min(bytes).next_multiple_of(ALIGNMENT);
    let scratch = session.scratch((AHEAD + 1) * size * stride)?;
    let slot = |step: usize, peer: usize| {
        scratch.part((step % (AHEAD + 1) * size + peer) * stride, of(rank, step).len())
    };
    session.with_work(|session, work| {
        for step in 0..pieces + AHEAD {
            if step < pieces {
                for peer in session.others() {
                    work.parts.push_back(session.expect_term(peer, slot(step, peer))?);
                }
                for peer in session.others() {
                    session.send(peer, of(peer, step))?;
                }
            }
            let Some(step) = step.checked_sub(AHEAD) else { continue };
            session.fold_terms(reducer, work, of(rank, step), piece(output, bytes, step))?;
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
        session.keep(output(rank), input(rank))?;
        session.all_arrived(&mut work.parts)?;
        session.flush()
    })
}

/// [`all_to_all`] with blocks of equal length. Short ones between 2^n ranks travel together, in n steps.
pub(super) fn all_to_all_even(
    session: &mut Session<'_>,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let size = session.size();
    let len = input.len() / size;
    if has_short_way(size) && len <= CARRIED {
        let scratch = session.scratch(2 * input.len())?;
        return carried(session, input, output, scratch);
    }
    let of = |whole: Place| move |rank: usize| whole.part(rank * len, len);
    all_to_all(session, of(input), of(output))
}

/// At first block `j` is for the rank whose number differs from this rank's in the bits of `j`. In step k two ranks whose numbers differ in
/// bit k exchange the blocks whose `j` has that bit. At last block `j` is the one from that rank. The scratch memory is twice as long as
/// the input.
fn carried(
    session: &mut Session<'_>,
    input: Place,
    output: Place,
    scratch: Place,
) -> Result<(), GroupError> {
    let (rank, size) = (session.rank(), session.size());
    let len = input.len() / size;
    let (all, half) = (size * len, size / 2 * len);
    let hand = |block: usize| scratch.part(block * len, len);
    let (leaving, coming) = (scratch.part(all, half), scratch.part(all + half, half));
    for block in 0..size {
        hand(block).copy_from(input.part((rank ^ block) * len, len));
    }
    let mut bit = 1;
    while bit < size {
        let exchanged = || (0..size).filter(|block| block & bit != 0).enumerate();
        for (at, block) in exchanged() {
            leaving.part(at * len, len).copy_from(hand(block));
        }
        let due = session.expect(rank ^ bit, coming)?;
        let sending = session.send(rank ^ bit, leaving)?;
        session.arrived(due)?;
        session.sent(sending)?;
        for (at, block) in exchanged() {
            hand(block).copy_from(coming.part(at * len, len));
        }
        bit *= 2;
    }
    for block in 0..size {
        output.part((rank ^ block) * len, len).copy_from(hand(block));
    }
    session.flush()
}

/// In step k a rank signals the rank 2^k ahead, and waits for the rank 2^k behind. Among 2^n ranks those whose numbers differ by 2^k signal
/// each other, so that no rank waits for one that waits for a third.
pub(super) fn barrier(session: &mut Session<'_>) -> Result<(), GroupError> {
    let (rank, size) = (session.rank(), session.size());
    let mut distance = 1;
    while distance < size {
        let (ahead, behind) = match size.is_power_of_two() {
            true => (rank ^ distance, rank ^ distance),
            false => ((rank + distance) % size, (rank + size - distance) % size),
        };
        session.signal(ahead)?;
        session.await_signal(behind)?;
        distance *= 2;
    }
    session.flush()
}

/// The longest block of an all_gather in steps.
const DOUBLED: usize = 1 << 20;
/// The longest block of an all_gather in steps if the number of ranks is not a power of two: then all blocks are copied.
const ROTATED: usize = 8 << 10;
/// The longest block of an all_to_all that other ranks carry.
const CARRIED: usize = 8 << 10;
/// The longest block of a reduce_scatter that other ranks carry.
const TERMS_CARRIED: usize = 4 << 10;
const AHEAD: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::{CallKind, SMALL, What};
    use crate::support::{library, ranks};

    #[test]
    fn short_blocks_of_any_number_of_ranks_are_gathered_in_their_order() {
        for size in [5, 6, 7, 12] {
            ranks(&library(), size, move |group| {
                for len in [1, ROTATED / 8, ROTATED / 8 + 1] {
                    let of = |rank: usize| vec![rank as u64; len];
                    let mut all = vec![0; size * len];
                    group.all_gather(&of(group.rank()), &mut all).unwrap();
                    assert!(all == (0..size).flat_map(of).collect::<Vec<_>>(), "{size}, {len}");
                    all[..group.rank() * len].fill(0);
                    all[(group.rank() + 1) * len..].fill(0);
                    group.all_gather_in_place(&mut all).unwrap();
                    assert!(all == (0..size).flat_map(of).collect::<Vec<_>>(), "{size}, {len}");
                }
            });
        }
    }

    #[test]
    fn blocks_that_are_only_together_too_long_for_a_slot_are_gathered_in_their_order() {
        // As in the last step of 8 KiB among 25 ranks.
        const LEN: usize = SMALL / 16 + 1;
        for size in [5, 6, 7] {
            ranks(&library(), size, move |group| {
                let of = |rank: usize| vec![rank as u64 + 1; LEN];
                let (own, mut all) = (of(group.rank()), vec![0; size * LEN]);
                let (input, output) = (Place::reading(&own), Place::writing(&mut all));
                let what = What::new(CallKind::AllGather);
                group.collective(what, |session| rotated(session, input, output)).unwrap();
                assert!(all == (0..size).flat_map(of).collect::<Vec<_>>(), "{size}");
            });
        }
    }

    #[test]
    fn a_split_of_many_ranks_connects_a_rank_to_few_others() {
        ranks(&library(), 12, |group| {
            group.split(Some(0), 0).unwrap();
            let known = group.shared.lock().mesh.known();
            assert!(known <= 2 * 4, "{known}");
        });
    }
}
