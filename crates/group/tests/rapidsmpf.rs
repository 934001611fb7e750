//! What RapidsMPF's sparse exchange and its halo exchange do, and what their reviewers requested: cases T-R1 to T-R14
//! and promises of docs/group.md.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::error::GroupError;
use ironrail_group::exchange::{Exchange, META_BYTES_MAX, Message};
use ironrail_group::group::Group;
use ironrail_group::halo::Halo1d;
use support::{WAIT, block_on, library, ranks, ranks_within};

/// All other ranks.
fn others(group: &Group) -> Vec<usize> {
    (0..group.size()).filter(|rank| *rank != group.rank()).collect()
}

fn next_and_previous(group: &Group) -> (usize, usize) {
    let (rank, size) = (group.rank(), group.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

fn own(group: &Group) -> u64 {
    number(group.rank())
}

fn number(value: usize) -> u64 {
    value as u64
}

/// A byte for each place of each message.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i.wrapping_mul(31) ^ (i >> 8) ^ seed) % 251).unwrap()).collect()
}

#[test]
fn t_r1_two_ranks_swap_their_borders_and_the_ends_have_no_neighbour() {
    for len in [1 << 10, 1 << 17] {
        ranks(&library(), 2, move |group| {
            let rank = group.rank();
            let mut halo = Halo1d::new(&group);
            let (left, right) = (pattern(2 * rank, len), pattern(2 * rank + 1, len));
            let (from_left, from_right) = halo.round(Some(left), Some(right)).unwrap();
            let expected = if rank == 0 {
                (None, Some(pattern(2, len)))
            } else {
                (Some(pattern(1, len)), None)
            };
            assert!((from_left, from_right) == expected);
        });
    }
}

#[test]
fn t_r2_ranks_within_the_row_get_both_borders_and_nothing_where_nothing_was_sent() {
    ranks(&library(), 4, |group| {
        let rank = own(&group);
        let mut halo = Halo1d::new(&group);
        let (from_left, from_right) = halo.round(Some(vec![rank]), Some(vec![rank + 10])).unwrap();
        assert_eq!(from_left, (rank > 0).then(|| vec![rank + 9]));
        assert_eq!(from_right, (rank < 3).then(|| vec![rank + 1]));
        // Nothing to the left of rank 2, and an empty message, which still is one, to the right of rank 1.
        let left = (rank != 2).then(|| vec![rank; 50_000]);
        let right = Some(if rank == 1 { vec![] } else { vec![rank] });
        let (from_left, from_right) = halo.round(left, right).unwrap();
        let expected = [None, Some(vec![0]), Some(vec![]), Some(vec![2])];
        assert_eq!(from_left, expected[group.rank()]);
        let right = (rank == 0 || rank == 2).then(|| vec![rank + 1; 50_000]);
        assert!(from_right == right);
    });
}

#[test]
fn t_r3_rounds_carry_a_border_further() {
    ranks(&library(), 5, |group| {
        let (rank, size) = (own(&group), group.size() as u64);
        let mut halo = Halo1d::new(&group);
        let mut known = BTreeSet::from([rank]);
        let (mut left, mut right) = (vec![rank], vec![rank]);
        for _ in 0..3 {
            let (from_left, from_right) =
                halo.round(Some(left.clone()), Some(right.clone())).unwrap();
            // What comes from the left is sent on to the right.
            (right, left) = (from_left.unwrap_or_default(), from_right.unwrap_or_default());
            known.extend(left.iter().chain(&right));
        }
        let expected: BTreeSet<_> = (rank.saturating_sub(3)..=(rank + 3).min(size - 1)).collect();
        assert_eq!(known, expected);
    });
}

#[test]
fn t_r4_a_rank_that_is_alone_sends_nothing() {
    ranks(&library(), 1, |group| {
        let mut halo = Halo1d::new(&group);
        assert_eq!(halo.round(Some(vec![1_u8]), Some(vec![2])).unwrap(), (None, None));
        assert_eq!(halo.neighbours(), (None, None));
        // In a ring it is its own neighbour.
        let mut ring = Halo1d::ring(&group);
        assert_eq!(
            ring.round(Some(vec![1_u8]), Some(vec![2])).unwrap(),
            (Some(vec![2]), Some(vec![1]))
        );
    });
}

#[test]
fn r5_borders_of_a_ring_of_two_are_not_mixed_up() {
    ranks(&library(), 2, |group| {
        let rank = own(&group);
        let mut halo = Halo1d::ring(&group);
        for round in 0..20 {
            let (left, right) = (vec![2 * rank + round; 20_000], vec![2 * rank + 1 + round]);
            let (from_left, from_right) = halo.round(Some(left), Some(right)).unwrap();
            let other = 1 - rank;
            assert!(from_left == Some(vec![2 * other + 1 + round]));
            assert!(from_right == Some(vec![2 * other + round; 20_000]));
        }
    });
}

#[test]
fn t_r5_messages_of_a_ring_come_in_order_and_the_callback_runs_once() {
    ranks(&library(), 3, |group| {
        let rank = u32::try_from(group.rank()).unwrap();
        let (next, previous) = next_and_previous(&group);
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let exchange =
            group.exchange::<u32>(&[previous], &[next]).unwrap().on_complete(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            });
        for number in 0..3_u32 {
            let meta = (rank * 10 + number).to_le_bytes().to_vec();
            exchange.insert(next, meta, vec![rank * 100 + number]).unwrap();
        }
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        exchange.wait().unwrap();
        let came = exchange.take(previous).unwrap();
        let source = u32::try_from(previous).unwrap();
        assert_eq!(came.len(), 3);
        for (number, message) in (0..3).zip(came) {
            assert_eq!(message.meta, (source * 10 + number).to_le_bytes());
            assert_eq!(message.data, [source * 100 + number]);
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn t_r6_an_exchange_of_no_messages_completes_empty() {
    ranks(&library(), 3, |group| {
        let all = others(&group);
        let exchange = group.exchange::<u8>(&all, &all).unwrap();
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        assert!(all.iter().all(|rank| exchange.take(*rank).unwrap().is_empty()));
    });
}

#[test]
fn t_r7_ranks_may_send_to_others_than_those_that_send_to_them() {
    ranks(&library(), 4, |group| {
        let to: [&[usize]; 4] = [&[1, 2], &[2], &[0], &[]];
        let rank = group.rank();
        let sources: Vec<_> = (0..4).filter(|source| to[*source].contains(&rank)).collect();
        let exchange = group.exchange(&sources, to[rank]).unwrap();
        for destination in to[rank] {
            exchange.insert(*destination, vec![], vec![number(rank * 100 + destination)]).unwrap();
        }
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        for source in sources {
            assert_eq!(exchange.take(source).unwrap()[0].data, [number(source * 100 + rank)]);
        }
    });
}

#[test]
fn t_r8_threads_insert_at_once_and_every_message_is_there() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange(&[other], &[other]).unwrap();
        thread::scope(|scope| {
            for thread in 0..4_usize {
                let exchange = &exchange;
                scope.spawn(move || {
                    for index in 0..16 {
                        let value = thread * 16 + index;
                        exchange
                            .insert(other, vec![7], vec![number(value); 1 + value * 300])
                            .unwrap();
                    }
                });
            }
        });
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        let came = exchange.take(other).unwrap();
        let values: BTreeSet<_> = came
            .iter()
            .inspect(|message| {
                let value = message.data[0];
                let len = 1 + usize::try_from(value).unwrap() * 300;
                assert!(message.data == vec![value; len] && message.meta == [7]);
            })
            .map(|message| message.data[0])
            .collect();
        assert_eq!((came.len(), values), (64, (0..64).collect()));
    });
}

#[test]
fn t_r9_order_is_kept_though_the_first_payload_is_ready_last() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange(&[other], &[other]).unwrap();
        let mut first = exchange.reserve(other).unwrap();
        exchange.insert(other, vec![2], pattern(2, 100)).unwrap();
        exchange.insert(other, vec![], pattern(3, 200_000)).unwrap();
        exchange.finish().unwrap();
        // The later ones have arrived before the first one was sent.
        while exchange.bytes().1 < 200_101 {
            assert!(!exchange.test().unwrap());
            thread::yield_now();
        }
        group.meet(&[]).unwrap();
        first.fill(vec![1], pattern(1, 60_000)).unwrap();
        exchange.wait().unwrap();
        let came = exchange.take(other).unwrap();
        let lens: Vec<_> = came.iter().map(|message| message.data.len()).collect();
        assert_eq!(lens, [60_000, 100, 200_000]);
        assert!(
            came.iter()
                .zip(1..)
                .all(|(message, seed)| { message.data == pattern(seed, message.data.len()) })
        );
    });
}

#[test]
fn a_place_is_kept_though_its_first_metadata_is_too_long() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange(&[other], &[other]).unwrap();
        let mut place = exchange.reserve(other).unwrap();
        exchange.finish().unwrap();
        let refused = place.fill(vec![0; META_BYTES_MAX + 1], pattern(1, 10));
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        place.fill(vec![7], pattern(1, 10)).unwrap();
        let again = place.fill(vec![], pattern(1, 10));
        assert!(matches!(again, Err(GroupError::Usage(_))), "{again:?}");
        drop(place);
        exchange.wait().unwrap();
        let came = exchange.take(other).unwrap();
        assert_eq!(came, [Message { meta: vec![7], data: pattern(1, 10) }]);
    });
}

#[test]
fn an_exchange_with_a_place_that_was_dropped_ends_on_both_ranks() {
    ranks(&library(), 2, |group| {
        let (own, other) = (group.rank(), 1 - group.rank());
        let exchange = group.exchange::<u64>(&[other], &[other]).unwrap();
        if own == 0 {
            drop(exchange.reserve(other).unwrap());
        }
        exchange.finish().unwrap();
        let begun = Instant::now();
        let ended = exchange.wait();
        assert!(begun.elapsed() < WAIT / 4, "before its time was up");
        match ended {
            Err(GroupError::Usage(_)) if own == 0 => {}
            Err(GroupError::Cancelled { rank: 0 }) if own == 1 => {}
            other => panic!("{other:?}"),
        }
        drop(exchange);
        group.barrier().unwrap();
    });
}

#[test]
fn t_r10_exchanges_follow_each_other_and_two_at_once_are_not_mixed_up() {
    ranks(&library(), 3, |group| {
        let (next, previous) = next_and_previous(&group);
        let make = || group.exchange::<u64>(&[previous], &[next]).unwrap();
        let one = |exchange: &Exchange<u64>, value: usize| {
            exchange.insert(next, vec![], vec![number(value); 10_000 * (value % 3)]).unwrap();
        };
        let check = |exchange: &Exchange<u64>, values: &[usize]| {
            exchange.wait().unwrap();
            let came = exchange.take(previous).unwrap();
            assert_eq!(came.len(), values.len());
            for (message, value) in came.iter().zip(values) {
                assert!(message.data == vec![number(*value); 10_000 * (value % 3)]);
            }
        };
        for index in 0..2 {
            let exchange = make();
            one(&exchange, index + 1);
            exchange.finish().unwrap();
            check(&exchange, &[index + 1]);
        }
        let (first, second) = (make(), make());
        for value in [1, 2, 4, 5] {
            one(&second, value + 10);
            one(&first, value);
        }
        first.finish().unwrap();
        second.finish().unwrap();
        check(&second, &[11, 12, 14, 15]);
        check(&first, &[1, 2, 4, 5]);
    });
}

#[test]
fn t_r11_a_rank_that_takes_no_part_is_done_at_once() {
    ranks(&library(), 3, |group| {
        let exchange = match group.rank() {
            0 => group.exchange(&[], &[1]).unwrap(),
            1 => group.exchange(&[0], &[]).unwrap(),
            _ => {
                let none = group.exchange::<u8>(&[], &[]).unwrap();
                assert!(none.test().unwrap(), "it need not even finish");
                return;
            }
        };
        if group.rank() == 0 {
            exchange.insert(1, vec![], vec![3_u8]).unwrap();
        }
        exchange.finish().unwrap();
        exchange.wait().unwrap();
    });
}

#[test]
fn t_r12_every_misuse_has_its_error() {
    ranks(&library(), 3, |group| {
        let rank = group.rank();
        let (next, previous) = next_and_previous(&group);
        for wrong in [3, rank] {
            let refused = group.exchange::<u8>(&[wrong], &[]);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "range");
        }
        let refused = group.exchange::<u8>(&[], &[next, next]);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "unique");
        // Each of those used a number on every rank.
        let exchange = group.exchange::<u8>(&[previous], &[next]).unwrap();
        let refused = exchange.insert(previous, vec![], vec![]);
        assert!(matches!(refused, Err(GroupError::Usage(_))), "no destination");
        let refused = exchange.insert(next, vec![0; 1 << 16], vec![]);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "metadata");
        let refused = exchange.take(previous);
        assert!(matches!(refused, Err(GroupError::Usage(_))), "not complete");
        group.meet(&[]).unwrap();
        // No rank has finished: a timeout that names the silent ranks, and nothing is lost.
        match exchange.wait_timeout(Duration::from_millis(50)) {
            Err(GroupError::Timeout { peers, .. }) => assert_eq!(peers, [previous]),
            other => panic!("{other:?}"),
        }
        group.meet(&[]).unwrap();
        exchange.finish().unwrap();
        let refused = exchange.insert(next, vec![], vec![]);
        assert!(matches!(refused, Err(GroupError::Usage(_))), "after the end");
        assert!(matches!(exchange.finish(), Err(GroupError::Usage(_))), "finished twice");
        exchange.wait().unwrap();
        assert!(matches!(exchange.take(next), Err(GroupError::Usage(_))), "no source");
    });
}

#[test]
fn t_r13_bytes_are_counted() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange::<u32>(&[other], &[other]).unwrap();
        for number in 0..3 {
            exchange.insert(other, vec![], vec![number]).unwrap();
        }
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        assert_eq!(exchange.bytes(), (12, 12));
    });
}

/// With IRONRAIL_HALO_ROUNDS=10000 the full test, which takes some minutes.
#[test]
fn t_r14_rounds_of_random_lengths_and_delays_are_not_mixed_up() {
    let rounds = std::env::var("IRONRAIL_HALO_ROUNDS");
    let rounds: u64 = rounds.map_or(300, |rounds| rounds.parse().unwrap());
    ranks(&library(), 4, move |group| {
        let (rank, size) = (group.rank() as u64, group.size() as u64);
        let mut halo = Halo1d::new(&group);
        // The border of each rank in each round, which every rank can compute.
        let border = |rank: u64, round: u64, to_right: bool| {
            let seed = mix(rank << 40 | round << 1 | u64::from(to_right));
            let most = [64, 5_000, 40_000, 1 << 20][(seed >> 60) as usize % 4];
            let len = usize::try_from(seed % (most / 8 + 1)).unwrap();
            (seed >> 32 & 15 != 0).then(|| (0..len as u64).map(|i| seed ^ i).collect::<Vec<_>>())
        };
        for round in 0..rounds {
            thread::sleep(Duration::from_micros(mix(rank << 50 ^ round) % 2_000));
            let own = (border(rank, round, false), border(rank, round, true));
            let (left, right) = halo.round(own.0, own.1).unwrap();
            let from_left = (rank > 0).then(|| border(rank - 1, round, true)).flatten();
            let from_right = (rank + 1 < size).then(|| border(rank + 1, round, false)).flatten();
            assert!(left == from_left && right == from_right, "rank {rank}, round {round}");
        }
    });
}

/// A pseudo-random number.
fn mix(seed: u64) -> u64 {
    let seed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ seed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ seed >> 31
}

#[test]
fn r4_a_future_is_pending_until_the_peer_sends_and_is_woken_then() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange(&[other], &[other]).unwrap();
        if group.rank() == 0 {
            let mut future = pin!(exchange.completion());
            let mut context = Context::from_waker(Waker::noop());
            exchange.finish().unwrap();
            assert!(future.as_mut().poll(&mut context).is_pending(), "no rank has sent");
            group.meet(&[]).unwrap();
            block_on(future).unwrap();
            assert!(exchange.take(1).unwrap()[0].data == pattern(5, 300_000));
        } else {
            group.meet(&[]).unwrap();
            exchange.insert(0, vec![], pattern(5, 300_000)).unwrap();
            exchange.finish().unwrap();
            block_on(exchange.completion()).unwrap();
        }
    });
}

#[test]
fn r2_rounds_run_as_futures_with_any_executor() {
    ranks(&library(), 3, |group| {
        let rank = own(&group);
        let mut halo = Halo1d::ring(&group);
        let (next, previous) = next_and_previous(&group);
        let (next, previous) = (number(next), number(previous));
        for round in 0..50 {
            let borders = (Some(vec![rank, round]), Some(vec![rank, round + 1000]));
            let came = block_on(halo.begin(borders.0, borders.1).unwrap()).unwrap();
            assert_eq!(came, (Some(vec![previous, round + 1000]), Some(vec![next, round])));
        }
    });
}

#[test]
fn r11_a_future_names_the_silent_rank_when_time_is_up() {
    // Rank 2 must also connect and send within it.
    let limit = Duration::from_secs(3);
    ranks_within(&library(), 3, limit, |group| {
        // Rank 1 does not know that rank 0 waits for it: each makes its own calls.
        if group.rank() == 0 {
            let exchange = group.exchange::<u8>(&[1, 2], &[]).unwrap();
            exchange.finish().unwrap();
            match block_on(exchange.completion()) {
                Err(GroupError::Timeout { peers, .. }) => assert_eq!(peers, [1]),
                other => panic!("{other:?}"),
            }
            group.meet(&[]).unwrap();
        } else {
            let to: &[usize] = if group.rank() == 2 { &[0] } else { &[] };
            let exchange = group.exchange::<u8>(&[], to).unwrap();
            exchange.finish().unwrap();
            exchange.wait().unwrap();
            group.meet(&[]).unwrap();
        }
    });
}

#[test]
fn r1_no_lock_is_held_where_a_caller_waits_or_a_callback_runs() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let (in_callback, runs) = (group.clone(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&runs);
        let exchange = group.exchange(&[other], &[other]).unwrap().on_complete(move || {
            // It takes the group's lock.
            in_callback.registrations();
            counter.fetch_add(1, Ordering::Relaxed);
        });
        thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.wait().unwrap());
            // Until the wait sleeps.
            thread::sleep(Duration::from_millis(20));
            exchange.insert(other, vec![], pattern(3, 100)).unwrap();
            exchange.finish().unwrap();
            waiting.join().unwrap();
        });
        assert!(exchange.take(other).unwrap()[0].data == pattern(3, 100));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn r12_an_exchange_that_is_dropped_is_cancelled_and_the_group_goes_on() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let exchange = group.exchange(&[other], &[other]).unwrap();
        exchange.insert(other, vec![1], pattern(1, 3_000_000)).unwrap();
        if group.rank() == 0 {
            drop(exchange);
        } else {
            exchange.finish().unwrap();
            let ended = exchange.wait();
            assert!(matches!(ended, Err(GroupError::Cancelled { rank: 0 })), "{ended:?}");
            assert!(matches!(exchange.wait(), Err(GroupError::Usage(_))), "it stays failed");
        }
        // A cancelled round does not affect later ones.
        let mut halo = Halo1d::new(&group);
        if group.rank() == 0 {
            drop(halo.begin(None, Some(vec![1_u8; 100_000])).unwrap());
        } else {
            // Rank 0 had sent everything before it cancelled, so only its receives are dropped.
            let came = halo.round(Some(vec![2; 100_000]), None);
            assert!(came.is_ok_and(|(left, _)| left == Some(vec![1; 100_000])));
        }
        let round = halo.round(Some(vec![3; 50_000]), Some(vec![4; 70_000])).unwrap();
        assert!(round.0.or(round.1).unwrap().len() > 40_000);
        let mut all = [group.rank()].map(|rank| rank as u64);
        group.all_reduce(&mut all, ironrail_group::loader::Op::Sum).unwrap();
        assert_eq!(all, [1]);
    });
}

#[test]
fn elements_of_another_type_are_an_error_that_names_both() {
    ranks(&library(), 2, |group| {
        let ended = if group.rank() == 0 {
            let exchange = group.exchange(&[], &[1]).unwrap();
            exchange.insert(1, vec![], vec![1.0_f64; 8]).unwrap();
            exchange.finish().unwrap();
            exchange.wait()
        } else {
            let exchange = group.exchange::<u64>(&[0], &[]).unwrap();
            exchange.finish().unwrap();
            exchange.wait()
        };
        match ended {
            Ok(()) => assert_eq!(group.rank(), 0),
            Err(GroupError::OtherType { source: 0, sent: "double", wanted: "uint64", .. }) => {}
            Err(other) => panic!("{other}"),
        }
        group.barrier().unwrap();
    });
}

/// The type is checked before the length, which may be no multiple of this rank's elements.
#[test]
fn elements_of_another_type_are_named_whatever_their_bytes() {
    ranks(&library(), 2, |group| {
        for len in [1, 3, 8, 100_001] {
            if group.rank() == 0 {
                let exchange = group.exchange(&[], &[1]).unwrap();
                exchange.insert(1, b"of bytes".to_vec(), vec![1_u8; len]).unwrap();
                exchange.finish().unwrap();
                // A long message that is not received does not end; dropped, the exchange lets go of it.
                if len < 1000 {
                    exchange.wait().unwrap();
                }
                group.barrier().unwrap();
            } else {
                let exchange = group.exchange::<u64>(&[0], &[]).unwrap();
                exchange.finish().unwrap();
                let ended = exchange.wait();
                let wrong = matches!(
                    ended,
                    Err(GroupError::OtherType { source: 0, sent: "uint8", wanted: "uint64", .. })
                );
                assert!(wrong, "{len} bytes: {ended:?}");
                group.barrier().unwrap();
            }
        }
    });
}

#[test]
fn a_message_longer_than_the_limit_is_refused_before_memory_is_made_for_it() {
    ranks(&library(), 2, |group| {
        if group.rank() == 0 {
            let exchange = group.exchange(&[], &[1]).unwrap();
            exchange.insert(1, vec![], vec![1_u8; 100_000]).unwrap();
            exchange.finish().unwrap();
            exchange.wait().unwrap();
        } else {
            let exchange = group.exchange::<u8>(&[0], &[]).unwrap().message_bytes_max(99_999);
            exchange.finish().unwrap();
            assert!(matches!(exchange.wait(), Err(GroupError::Mismatch { rank: 0, .. })));
        }
        group.barrier().unwrap();
    });
}
