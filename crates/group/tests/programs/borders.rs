//! Halos, exchanges and objects.

use ironrail_group::check::sample;
use ironrail_group::exchange::Message;
use ironrail_group::halo::{FixedHalo1d, Halo1d};
use ironrail_group::loader::{DataType, Element, Op};
use ironrail_group::with_element;

use super::Step;
use super::support::block_on;

fn data<T: Element>(rank: usize, count: usize, serial: usize) -> Vec<T> {
    (0..count).map(|index| sample(Op::Sum, rank, index, serial)).collect()
}

/// The neighbours of a rank in a row, or a ring.
fn neighbours(rank: usize, size: usize, is_ring: bool) -> (Option<usize>, Option<usize>) {
    if is_ring {
        return (Some((rank + size - 1) % size), Some((rank + 1) % size));
    }
    (rank.checked_sub(1), Some(rank + 1).filter(|next| *next < size))
}

pub(super) fn halo(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size, is_ring) = (group.rank(), group.size(), common.one_in(2));
    let (from_left, from_right) = neighbours(rank, size, is_ring);
    with_element!(common.pick(&DataType::ALL), T => {
        let mut halo = if is_ring { Halo1d::<T>::ring(group) } else { Halo1d::new(group) };
        for round in 0..1 + common.below(6) {
            // What each rank gives to the left and to the right, if anything.
            let mut border = || {
                let count = common.count::<T>(1 << 20);
                (!common.one_in(5)).then_some(count)
            };
            let given: Vec<_> = (0..size).map(|_| (border(), border())).collect();
            let serial = number * 16 + round * 2;
            let leftwards = |rank: usize| given[rank].0.map(|count| data::<T>(rank, count, serial));
            let rightwards =
                |rank: usize| given[rank].1.map(|count| data::<T>(rank, count, serial + 1));
            let (left, right) = (leftwards(rank), rightwards(rank));
            let came = if own.one_in(2) {
                halo.round(left, right)
            } else {
                block_on(halo.begin(left, right).unwrap())
            };
            let (left, right) = came.unwrap();
            assert!(left == from_left.and_then(rightwards), "from the left in round {round}");
            assert!(right == from_right.and_then(leftwards), "from the right in round {round}");
        }
    });
}

pub(super) fn fixed_halo(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size, is_ring) = (group.rank(), group.size(), common.one_in(2));
    let (from_left, from_right) = neighbours(rank, size, is_ring);
    with_element!(common.pick(&DataType::ALL), T => {
        // Between a rank and the next one.
        let counts: Vec<usize> = (0..size).map(|_| common.count::<T>(2 << 20)).collect();
        let (left, right) = (counts[(rank + size - 1) % size], counts[rank]);
        let halo = if is_ring { FixedHalo1d::<T>::ring } else { FixedHalo1d::new };
        let mut halo = halo(group, left, right).unwrap();
        for round in 0..1 + common.below(8) {
            let serial = number * 16 + round * 2;
            let begun = halo.begin(|to_left, to_right| {
                let (left, right) = (to_left.len(), to_right.len());
                to_left.copy_from_slice(&data(rank, left, serial));
                to_right.copy_from_slice(&data(rank, right, serial + 1));
            });
            let begun = begun.unwrap();
            // Its borders are dropped; the round goes on.
            if own.one_in(6) {
                continue;
            }
            let came = if own.one_in(2) { begun.wait() } else { block_on(begun) };
            let (left_border, right_border) = came.unwrap();
            let expected = from_left.map(|from| data(from, left, serial + 1));
            assert!(left_border == expected.as_deref(), "from the left in round {round}");
            let expected = from_right.map(|from| data(from, right, serial));
            assert!(right_border == expected.as_deref(), "from the right in round {round}");
        }
    });
}

pub(super) fn exchange(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size) = (group.rank(), group.size());
    with_element!(common.pick(&DataType::ALL), T => {
        // Lengths of metadata and data of every message, from each rank to each.
        let mut messages = || {
            let (is_one, count) = (!common.one_in(3), common.below(4));
            let lens = (0..count).map(|_| (common.below(200), common.count::<T>(300 << 10)));
            let lens: Vec<_> = lens.collect();
            is_one.then_some(lens)
        };
        let lists: Vec<Vec<_>> =
            (0..size).map(|_| (0..size).map(|_| messages()).collect()).collect();
        let is_one = |from: usize, to: usize| from != to && lists[from][to].is_some();
        let sources: Vec<_> = (0..size).filter(|from| is_one(*from, rank)).collect();
        let mut destinations: Vec<_> = (0..size).filter(|to| is_one(rank, *to)).collect();
        own.shuffle(&mut destinations);
        let made = |from: usize, to: usize, place: usize, (meta, count): (usize, usize)| {
            let serial = number * 256 + to * 8 + place;
            Message { meta: data(from, meta, serial), data: data::<T>(from, count, serial) }
        };
        let all = |from: usize, to: usize| -> Vec<Message<T>> {
            let list = lists[from][to].iter().flatten().enumerate();
            list.map(|(place, lens)| made(from, to, place, *lens)).collect()
        };
        let exchange = group.exchange::<T>(&sources, &destinations).unwrap();
        for to in &destinations {
            let mut later = Vec::new();
            for Message { meta, data } in all(rank, *to) {
                if own.one_in(4) {
                    later.push((exchange.reserve(*to).unwrap(), meta, data));
                } else {
                    exchange.insert(*to, meta, data).unwrap();
                }
            }
            own.shuffle(&mut later);
            for (mut reserved, meta, data) in later {
                reserved.fill(meta, data).unwrap();
            }
        }
        exchange.finish().unwrap();
        if common.one_in(3) {
            group.barrier().unwrap();
        }
        if own.one_in(2) { exchange.wait() } else { block_on(exchange.completion()) }.unwrap();
        for from in sources {
            assert!(exchange.take(from).unwrap() == all(from, rank), "from rank {from}");
        }
    });
}

type Object = (Vec<u64>, Option<String>, Vec<f32>);

pub(super) fn objects(step: Step<'_>) {
    let Step { group, common, own: _, number } = step;
    let (rank, size, root) = (group.rank(), group.size(), common.below(group.size()));
    let counts: Vec<(usize, usize)> =
        (0..size).map(|_| (common.count::<u64>(100 << 10), common.below(20))).collect();
    let of = |rank: usize| -> Object {
        let (long, short) = counts[rank];
        let name = (short % 2 == 0).then(|| format!("rank {rank} at {number}"));
        (data(rank, long, number), name, data(rank, short, number))
    };
    let everyones = || (0..size).map(of).collect::<Vec<_>>();
    match common.below(4) {
        0 => assert!(group.all_gather_obj(&of(rank)).unwrap() == everyones()),
        1 => {
            let came = group.gather_obj(&of(rank), root).unwrap();
            assert!(came == (rank == root).then(everyones));
        }
        2 => {
            let given = (rank == root).then(|| of(root));
            assert!(group.broadcast_obj(given, root).unwrap() == of(root));
        }
        _ => {
            let shift = common.below(size);
            let (to, from) = ((rank + shift) % size, (rank + size - shift) % size);
            let (came, origin): (Object, _) = group.sendrecv_obj(&of(rank), to, from, 7).unwrap();
            assert!(came == of(from));
            assert_eq!(origin.source, from);
        }
    }
}
