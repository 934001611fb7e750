//! all_reduce by four algorithms. In each, either one rank computes an element's result and the others copy it, or all compute it by the
//! same operations in the same order. So a result has the same bits on every rank.

use super::everyone::exchange;
use super::reducer::Reducer;
use super::session::{ALIGNMENT, Session, piece, share, terms_piece};
use crate::error::GroupError;
use crate::loader::Place;

/// Every rank sends its whole input to all others, and reduces all inputs in the order of ranks. One step.
pub(super) fn one_phase(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (size, len) = (session.size(), input.len());
    let stride = len.next_multiple_of(ALIGNMENT);
    let scratch = session.scratch(size * stride)?;
    let slot = |rank: usize| scratch.part(rank * stride, len);
    exchange(session, input, slot)?;
    reducer.fold(output, slot(0), (0..size).map(slot));
    Ok(())
}

/// In step k each rank exchanges its partial result with the rank whose number differs in bit k. For powers of two.
pub(super) fn doubling(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (rank, len) = (session.rank(), input.len());
    let stride = len.next_multiple_of(ALIGNMENT);
    let scratch = session.scratch(3 * stride)?;
    let slot = |index: usize| scratch.part(index % 3 * stride, len);
    let (mut own, mut at) = (input, 0);
    let mut distance = 1;
    while distance < session.size() {
        let peer = rank ^ distance;
        session.send(peer, own)?;
        let due = session.expect_term(peer, slot(at))?;
        let term = session.term(&due)?;
        session.flush()?;
        let theirs = term.place;
        let (low, high) = if rank < peer { (own, theirs) } else { (theirs, own) };
        distance *= 2;
        let whole = if distance >= session.size() { output } else { slot(at + 1) };
        if whole.address() == high.address() {
            combine_over_low(reducer, whole, low, high);
        } else {
            reducer.combine(whole, low, high);
        }
        session.release(&due)?;
        // This rank's result must stay until the next step's send has completed; the third slot is free by then.
        (own, at) = (whole, at + 2);
    }
    reducer.finish(output);
    Ok(())
}

/// Reduces into `low`, as the lower rank does in place, then copies the result: which of two NaNs becomes the result depends on where it is
/// written. In pieces that stay in the L1 cache.
fn combine_over_low(reducer: Reducer, whole: Place, low: Place, high: Place) {
    for index in 0..whole.len().div_ceil(COPIED_PIECE) {
        let [whole, low, high] = [whole, low, high].map(|part| piece(part, COPIED_PIECE, index));
        reducer.combine(low, low, high);
        whole.copy_from(low);
    }
}

/// Every rank owns a share: it receives that share of all inputs, reduces it in the order of ranks, and sends the result to all. In pieces,
/// so that results are sent while other parts arrive.
///
/// In each step a rank sends to another rank its part of the other's share, and the result of its own share from [`AHEAD`] steps before.
pub(super) fn mesh(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (rank, size, width) = (session.rank(), session.size(), reducer.width());
    let longest = share(input.len() / width, width, size, 0).len();
    let bytes = terms_piece(size);
    let of = |whole: Place, owner: usize, step: usize| {
        let range = share(whole.len() / width, width, size, owner);
        piece(whole.part(range.start, range.len()), bytes, step)
    };
    let pieces = longest.div_ceil(bytes);
    let stride = longest.min(bytes).next_multiple_of(ALIGNMENT);
    let scratch = session.scratch((AHEAD + 1) * size * stride)?;
    let slot = |step: usize, peer: usize| {
        let len = of(input, rank, step).len();
        scratch.part((step % (AHEAD + 1) * size + peer) * stride, len)
    };
    session.with_work(|session, work| {
        for step in 0..pieces + AHEAD {
            if step < pieces {
                for peer in session.others() {
                    work.parts.push_back(session.expect_term(peer, slot(step, peer))?);
                }
                for peer in session.others() {
                    work.sends.push_back(session.send(peer, of(input, peer, step))?);
                }
            }
            let Some(step) = step.checked_sub(AHEAD) else { continue };
            // Posted before this rank computes its own result, so that results of others need not wait.
            for peer in session.others() {
                // In place, a result lands where the part was sent from.
                let sending = work.sends.pop_front();
                if input.address() == output.address()
                    && let Some(sending) = sending
                {
                    session.sent(sending)?;
                }
                work.results.push_back(session.expect(peer, of(output, peer, step))?);
            }
            let (own, whole) = (of(input, rank, step), of(output, rank, step));
            session.fold_terms(reducer, work, own, whole)?;
            for peer in session.others() {
                session.send(peer, whole)?;
            }
        }
        session.all_arrived(&mut work.results)?;
        session.flush()
    })
}

/// Shares go round the ring: each rank adds its own input to the received share and sends it on, until the sum is complete; then the sums
/// go round. Every rank has only two neighbours.
pub(super) fn ring(
    session: &mut Session<'_>,
    reducer: Reducer,
    input: Place,
    output: Place,
) -> Result<(), GroupError> {
    let (rank, size, width) = (session.rank(), session.size(), reducer.width());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let longest = share(input.len() / width, width, size, 0).len();
    let pieces = longest.div_ceil(RING_PIECE);
    let of = |whole: Place, round: usize, index: usize| {
        let owner = (2 * size + rank - round % size) % size;
        let range = share(whole.len() / width, width, size, owner);
        piece(whole.part(range.start, range.len()), RING_PIECE, index)
    };
    let stride = longest.min(RING_PIECE).next_multiple_of(ALIGNMENT);
    let scratch = session.scratch(RING_AHEAD * stride)?;
    let rounds = (size - 1) * pieces;
    session.with_work(|session, work| {
        let mut expected = 0;
        for index in 0..pieces {
            work.sends.push_back(session.send(next, of(input, 0, index))?);
        }
        for step in 0..rounds {
            while expected < rounds.min(step + RING_AHEAD) {
                let len = of(input, expected / pieces + 1, expected % pieces).len();
                let slot = scratch.part(expected % RING_AHEAD * stride, len);
                work.parts.push_back(session.expect(previous, slot)?);
                expected += 1;
            }
            let (round, index) = (step / pieces, step % pieces);
            let Some(due) = work.parts.pop_front() else { continue };
            session.arrived(due)?;
            let (own, sum) = (of(input, round + 1, index), of(output, round + 1, index));
            reducer.combine(sum, scratch.part(step % RING_AHEAD * stride, own.len()), own);
            if round + 2 == size {
                reducer.finish(sum);
            }
            work.sends.push_back(session.send(next, sum)?);
        }
        for step in 0..rounds {
            let (round, index) = (step / pieces, step % pieces);
            // The send from here in the first round has completed before the result lands.
            if let Some(sending) = work.sends.pop_front() {
                session.sent(sending)?;
            }
            work.results.push_back(session.expect(previous, of(output, round + size, index))?);
            // Later results are expected first; after the last step none is.
            let keep = if step + 1 == rounds { 0 } else { RING_AHEAD };
            while work.results.len() > keep {
                let at = step + 1 - work.results.len();
                let Some(due) = work.results.pop_front() else { break };
                session.arrived(due)?;
                if at / pieces + 2 < size {
                    session.send(next, of(output, at / pieces + size, at % pieces))?;
                }
            }
        }
        session.flush()
    })
}

/// The number of steps between a part and its result.
const AHEAD: usize = 1;
const COPIED_PIECE: usize = 8 << 10;
const RING_PIECE: usize = 512 << 10;
const RING_AHEAD: usize = 2;

#[cfg(test)]
mod tests {
    use crate::group::Group;
    use crate::loader::{Complex64, Element, Op, bf16, f16};
    use crate::support::{library, ranks};
    use crate::tuning::Algorithm;

    const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg];

    /// The results of these operations on NaNs that have different bits on each rank.
    fn of_nans<T: Element>(group: &Group, in_place: bool, own: T, ops: &[Op]) -> Vec<T> {
        let reduced = |op: &Op| {
            let (input, mut output) = (vec![own; 300], vec![own; 300]);
            if in_place {
                group.all_reduce(&mut output, *op).unwrap();
            } else {
                group.all_reduce_into(&input, &mut output, *op).unwrap();
            }
            output
        };
        ops.iter().flat_map(reduced).collect()
    }

    #[test]
    fn a_nan_has_the_same_bits_on_all_ranks() {
        // One bit per rank: whether it reduces in place.
        for mask in 0..4 {
            let all = ranks(&library(), 2, move |group| {
                let in_place = mask >> group.rank() & 1 == 1;
                let own = u16::try_from(group.rank()).unwrap() + 1;
                let halves = of_nans(&group, in_place, f16::from_bits(0x7E00 | own), &ALL);
                let others = of_nans(&group, in_place, bf16::from_bits(0x7FC0 | own), &ALL);
                let floats =
                    of_nans(&group, in_place, f32::from_bits(0x7FC0_0000 | u32::from(own)), &ALL);
                let doubles =
                    of_nans(&group, in_place, f64::from_bits(0x7FF8 << 48 | u64::from(own)), &ALL);
                let (re, im) = (0x7FC0_0000 | u32::from(own), 0x7FC1_0000 | u32::from(own));
                let both = Complex64 { re: f32::from_bits(re), im: f32::from_bits(im) };
                // Complex numbers have no minimum and maximum.
                let some = [Op::Sum, Op::Prod, Op::Avg];
                let pairs = of_nans(&group, in_place, both, &some).into_iter();
                (
                    pairs.map(|pair| (pair.re.to_bits(), pair.im.to_bits())).collect::<Vec<_>>(),
                    group.tuning().choose(2, 600),
                    halves.into_iter().map(f16::to_bits).collect::<Vec<_>>(),
                    others.into_iter().map(bf16::to_bits).collect::<Vec<_>>(),
                    floats.into_iter().map(f32::to_bits).collect::<Vec<_>>(),
                    doubles.into_iter().map(f64::to_bits).collect::<Vec<_>>(),
                )
            });
            assert_eq!(all[0].1, Algorithm::Doubling);
            assert!(all[0] == all[1], "{mask:b}");
        }
    }
}
