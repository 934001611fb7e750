//! What a rank passes to a collective is its own again when the call returns.

use crate::group::Group;
use crate::loader::Op;
use crate::support::{library, ranks};

/// Numbers of ranks and lengths of blocks. Short: the first part waits for a connection. Long: more pieces than leave in the call that sends
/// them.
const GROUPS: [(usize, usize); 6] = [(2, 9), (3, 9), (4, 9), (5, 9), (2, 200_000), (3, 200_000)];

/// What was passed to a collective, and what has come.
type Done = (Vec<Vec<u64>>, Option<Vec<u64>>);

/// Each rank runs `collective` as the first two calls of its group, with a block of its number plus one, and then of twice that. It writes
/// into everything that it has passed at once. Rank r expects blocks of the numbers `due(r, size)`, and then of twice these.
fn may_write_at_once(collective: fn(&Group, Vec<u64>) -> Done, due: fn(usize, usize) -> Vec<u64>) {
    for (size, len) in GROUPS {
        ranks(&library(), size, move |group| {
            let rank = group.rank();
            let twice = [1, 2].map(|factor| {
                let (mut passed, came) = collective(&group, vec![(rank as u64 + 1) * factor; len]);
                passed.iter_mut().for_each(|passed| passed.fill(99));
                (passed, came, factor)
            });
            // The memory lives until all ranks have what was in it.
            group.meet(&[]).unwrap();
            for (_, came, factor) in twice {
                let numbers = due(rank, size).into_iter();
                let due: Vec<_> = numbers.flat_map(|number| vec![number * factor; len]).collect();
                assert!(came.is_none_or(|came| came == due), "{rank} of {size}, {len} elements");
            }
        });
    }
}

fn all(_: usize, size: usize) -> Vec<u64> {
    (1..=size as u64).collect()
}

fn sum(_: usize, size: usize) -> Vec<u64> {
    vec![(1..=size as u64).sum()]
}

#[test]
fn what_was_broadcast_may_be_written_when_the_call_returns() {
    let broadcast = |group: &Group, mut data: Vec<u64>| {
        group.broadcast(&mut data, 0).unwrap();
        let came = data.clone();
        (vec![data], Some(came))
    };
    may_write_at_once(broadcast, |_, _| vec![1]);
}

#[test]
fn what_was_gathered_may_be_written_when_the_call_returns() {
    let gather = |group: &Group, own: Vec<u64>| {
        let mut came = (group.rank() == 0).then(|| vec![0; group.size() * own.len()]);
        group.gather(&own, came.as_deref_mut(), 0).unwrap();
        (vec![own], came)
    };
    may_write_at_once(gather, all);
}

#[test]
fn what_was_reduced_may_be_written_when_the_call_returns() {
    let reduce = |group: &Group, own: Vec<u64>| {
        let mut came = (group.rank() == 0).then(|| vec![0; own.len()]);
        group.reduce(&own, came.as_deref_mut(), Op::Sum, 0).unwrap();
        (vec![own], came)
    };
    may_write_at_once(reduce, sum);
}

#[test]
fn what_was_scattered_may_be_written_when_the_call_returns() {
    let scatter = |group: &Group, mut own: Vec<u64>| {
        let blocks = (1..=group.size() as u64).flat_map(|number| vec![number * own[0]; own.len()]);
        let blocks: Vec<_> = blocks.filter(|_| group.rank() == 0).collect();
        group.scatter((group.rank() == 0).then_some(&blocks), &mut own, 0).unwrap();
        (vec![blocks], Some(own))
    };
    may_write_at_once(scatter, |rank, _| vec![rank as u64 + 1]);
}

#[test]
fn what_was_exchanged_may_be_written_when_the_call_returns() {
    let all_gather = |group: &Group, own: Vec<u64>| {
        let mut gathered = vec![0; group.size() * own.len()];
        group.all_gather(&own, &mut gathered).unwrap();
        let came = gathered.clone();
        (vec![own, gathered], Some(came))
    };
    may_write_at_once(all_gather, all);
    let all_to_all = |group: &Group, own: Vec<u64>| {
        let sent = own.repeat(group.size());
        let mut came = vec![0; sent.len()];
        group.all_to_all(&sent, &mut came).unwrap();
        (vec![sent], Some(came))
    };
    may_write_at_once(all_to_all, all);
    let reduce_scatter = |group: &Group, own: Vec<u64>| {
        let sent = own.repeat(group.size());
        let mut came = vec![0; own.len()];
        group.reduce_scatter(&sent, &mut came, Op::Sum).unwrap();
        (vec![sent], Some(came))
    };
    may_write_at_once(reduce_scatter, sum);
    let all_reduce = |group: &Group, own: Vec<u64>| {
        let mut reduced = vec![0; own.len()];
        group.all_reduce_into(&own, &mut reduced, Op::Sum).unwrap();
        let came = reduced.clone();
        (vec![own, reduced], Some(came))
    };
    may_write_at_once(all_reduce, sum);
}
