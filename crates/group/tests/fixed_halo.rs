//! Halos of fixed lengths: receives posted ahead, borders in the memory that they came into, and what happens when a neighbour goes.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::halo::FixedHalo1d;
use ironrail_group::loader::Op;
use support::{WAIT, block_on, library, ranks, ranks_within};

/// The value that a rank sends to a side in a round, by index.
fn value(rank: usize, to_right: bool, round: usize, place: usize) -> u64 {
    let seed = (rank << 44 | round << 24) as u64 ^ (place as u64).wrapping_mul(31);
    seed << 1 | u64::from(to_right)
}

fn fill(border: &mut [u64], rank: usize, to_right: bool, round: usize) {
    for (place, element) in border.iter_mut().enumerate() {
        *element = value(rank, to_right, round, place);
    }
}

fn is_from(border: &[u64], rank: usize, to_right: bool, round: usize, len: usize) -> bool {
    let right = |(place, element): (usize, &u64)| *element == value(rank, to_right, round, place);
    border.len() == len && border.iter().enumerate().all(right)
}

/// The border between a rank and the next one; it differs by rank.
fn length(rank: usize, size: usize, base: usize) -> usize {
    base + rank % size * 3
}

/// A halo whose right border is as long as the next rank's left one.
fn halo(group: &Group, ring: bool, base: usize) -> FixedHalo1d<u64> {
    let (rank, size) = (group.rank(), group.size());
    let (left, right) = (length(rank + size - 1, size, base), length(rank, size, base));
    if ring {
        FixedHalo1d::ring(group, left, right).unwrap()
    } else {
        FixedHalo1d::new(group, left, right).unwrap()
    }
}

fn round(group: &Group, halo: &mut FixedHalo1d<u64>, round: usize, base: usize) {
    let (rank, size) = (group.rank(), group.size());
    let (left, right) = halo.neighbours();
    let came = halo.round(|to_left, to_right| {
        fill(to_left, rank, false, round);
        fill(to_right, rank, true, round);
    });
    let (from_left, from_right) = came.unwrap();
    assert_eq!((from_left.is_some(), from_right.is_some()), (left.is_some(), right.is_some()));
    if let (Some(left), Some(border)) = (left, from_left) {
        let len = length(rank + size - 1, size, base);
        assert!(is_from(border, left, true, round, len), "rank {rank}, round {round}: left");
    }
    if let (Some(right), Some(border)) = (right, from_right) {
        let len = length(rank, size, base);
        assert!(is_from(border, right, false, round, len), "rank {rank}, round {round}: right");
    }
}

#[test]
fn borders_of_every_length_come_to_rows_and_rings_of_one_to_four_ranks() {
    for size in 1..=4 {
        for base in [0, 1, 500, 9_000, 150_000] {
            ranks(&library(), size, move |group| {
                for ring in [false, true] {
                    let mut halo = halo(&group, ring, base);
                    (0..5).for_each(|number| round(&group, &mut halo, number, base));
                }
            });
        }
    }
}

/// Random delays let each rank be ahead of and behind its neighbours by as much as a halo allows.
#[test]
fn rounds_with_random_delays_among_other_traffic_are_not_mixed_up() {
    ranks(&library(), 4, |group| {
        let (mut row, mut ring) = (halo(&group, false, 700), halo(&group, true, 20_000));
        for number in 0..200 {
            let seed = (group.rank() * 7919 + number).wrapping_mul(2_654_435_761);
            thread::sleep(Duration::from_micros((seed >> 8) as u64 % 700));
            round(&group, &mut row, number, 700);
            round(&group, &mut ring, number, 20_000);
            if number % 16 == 0 {
                let mut sum = vec![1_u64; 30_000];
                group.all_reduce(&mut sum, Op::Sum).unwrap();
                assert!(sum == vec![4; 30_000]);
            }
        }
    });
}

#[test]
fn borders_of_a_round_can_be_read_until_the_next_one_begins() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        let mut halo = FixedHalo1d::<u64>::ring(&group, 100, 100).unwrap();
        for number in 0..20 {
            let own = group.rank();
            let begun = halo.begin(|left, right| {
                fill(left, own, false, number);
                fill(right, own, true, number);
            });
            let (from_left, from_right) = begun.unwrap().wait().unwrap();
            // The neighbour may have sent the next round by now.
            group.barrier().unwrap();
            assert!(is_from(from_left.unwrap(), other, true, number, 100));
            assert!(is_from(from_right.unwrap(), other, false, number, 100));
        }
    });
}

#[test]
fn neighbours_that_mean_other_lengths_or_elements_are_refused_on_all_ranks() {
    ranks(&library(), 3, |group| {
        let rank = group.rank();
        let refused = FixedHalo1d::<u64>::new(&group, 5, if rank == 0 { 6 } else { 5 });
        let why = refused.unwrap_err();
        assert!(matches!(why, GroupError::InvalidArgument(_)), "{why}");
        assert!(why.to_string().contains("rank 0 swaps 6 elements of uint64 with rank 1"), "{why}");
        let why = if rank == 1 {
            FixedHalo1d::<f64>::new(&group, 5, 5).unwrap_err()
        } else {
            FixedHalo1d::<u64>::new(&group, 5, 5).unwrap_err()
        };
        assert!(why.to_string().contains("which swaps 5 of double"), "{why}");
        let most = if rank == 2 { usize::MAX / 2 } else { 5 };
        let why = FixedHalo1d::<u64>::new(&group, 5, most).unwrap_err();
        assert!(matches!(why, GroupError::InvalidArgument(_)), "{why}");
        // At the ends of a row there is no neighbour.
        let ends = FixedHalo1d::<u64>::new(&group, 5 + usize::from(rank == 0), 5);
        round_trip(&mut ends.unwrap());
    });
}

fn round_trip(halo: &mut FixedHalo1d<u64>) {
    let (from_left, from_right) = halo
        .round(|left, right| {
            left.fill(1);
            right.fill(2);
        })
        .unwrap();
    assert!(from_left.is_none_or(|border| border.iter().all(|element| *element == 2)));
    assert!(from_right.is_none_or(|border| border.iter().all(|element| *element == 1)));
}

#[test]
fn borders_sent_before_a_halo_was_dropped_arrive_and_the_next_round_is_cancelled() {
    for len in [10, 200_000] {
        ranks(&library(), 2, move |group| {
            let mut halo = FixedHalo1d::<u64>::new(&group, len, len).unwrap();
            if group.rank() == 0 {
                round_trip(&mut halo);
                // It takes no part in the third round.
                drop(halo.begin(|_, right| right.fill(2)).unwrap());
                drop(halo);
            } else {
                round_trip(&mut halo);
                round_trip(&mut halo);
                let third = halo.round(|_, _| {}).map(drop);
                assert!(matches!(third, Err(GroupError::Cancelled { rank: 0 })), "{third:?}");
                let again = halo.round(|_, _| {}).map(drop);
                assert!(matches!(again, Err(GroupError::Cancelled { rank: 0 })), "{again:?}");
            }
            // The group can still be used, also for halos.
            group.barrier().unwrap();
            round_trip(&mut FixedHalo1d::<u64>::new(&group, len, len).unwrap());
        });
    }
}

#[test]
fn a_halo_that_is_dropped_while_a_neighbour_waits_wakes_it() {
    ranks(&library(), 2, |group| {
        let mut halo = FixedHalo1d::<u64>::ring(&group, 9, 9).unwrap();
        round_trip(&mut halo);
        if group.rank() == 0 {
            group.meet(&[]).unwrap();
            drop(halo);
        } else {
            let round = halo.begin(|_, _| {}).unwrap();
            group.meet(&[]).unwrap();
            let begun = Instant::now();
            let ended = round.wait().map(drop);
            assert!(matches!(ended, Err(GroupError::Cancelled { rank: 0 })), "{ended:?}");
            assert!(begun.elapsed() < WAIT / 4, "before its time was up");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_round_that_is_dropped_goes_on_and_the_next_one_waits_for_it() {
    ranks(&library(), 2, |group| {
        let (own, other) = (group.rank(), 1 - group.rank());
        let mut halo = FixedHalo1d::<u64>::ring(&group, 40_000, 40_000).unwrap();
        for number in 0..30 {
            let write = |left: &mut [u64], right: &mut [u64]| {
                fill(left, own, false, number);
                fill(right, own, true, number);
            };
            let round = halo.begin(write).unwrap();
            if (number + own) % 3 == 0 {
                drop(round);
                continue;
            }
            let (from_left, from_right) = round.wait().unwrap();
            assert!(is_from(from_left.unwrap(), other, true, number, 40_000));
            assert!(is_from(from_right.unwrap(), other, false, number, 40_000));
        }
        group.barrier().unwrap();
    });
}

#[test]
fn rounds_that_are_dropped_one_after_another_send_each_what_was_written_for_it() {
    // More than the system buffers, and slower to check than to send: the other rank would be rounds ahead.
    let len = 400_000;
    ranks(&library(), 2, move |group| {
        let mut halo = FixedHalo1d::<u64>::new(&group, len, len).unwrap();
        for number in 0..12_u64 {
            let write = |left: &mut [u64], right: &mut [u64]| {
                left.fill(number);
                right.fill(number);
            };
            let round = halo.begin(write).unwrap();
            if group.rank() == 0 {
                drop(round);
                continue;
            }
            let (from_left, _) = round.wait().unwrap();
            let right = from_left.unwrap().iter().filter(|element| **element == number).count();
            assert_eq!(right, len, "round {number}");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_silent_neighbour_is_named_and_the_round_can_still_be_had() {
    ranks_within(&library(), 3, Duration::from_secs(3), |group| {
        let mut halo = FixedHalo1d::<u64>::new(&group, 8, 8).unwrap();
        if group.rank() == 2 {
            group.meet(&[]).unwrap();
        } else if group.rank() == 1 {
            match halo.round(|_, _| {}) {
                Err(GroupError::Timeout { peers, .. }) => assert_eq!(peers, [2]),
                other => panic!("{other:?}"),
            }
            group.meet(&[]).unwrap();
        } else {
            round_with(&mut halo, 0);
            group.meet(&[]).unwrap();
        }
        let first = usize::from(group.rank() < 2);
        (first..3).for_each(|number| round_with(&mut halo, number));
    });
}

/// Checks only that it arrives.
fn round_with(halo: &mut FixedHalo1d<u64>, number: usize) {
    halo.round(|left, right| {
        left.fill(number as u64);
        right.fill(number as u64);
    })
    .map(drop)
    .unwrap();
}

#[test]
fn a_failed_group_ends_rounds() {
    ranks(&library(), 2, |group| {
        let mut halo = FixedHalo1d::<u64>::ring(&group, 9, 9).unwrap();
        group.meet(&[]).unwrap();
        if group.rank() == 0 {
            group.abort();
        }
        let ended = loop {
            if let Err(why) = halo.round(|_, _| {}) {
                break why;
            }
        };
        assert!(matches!(ended, GroupError::Aborted { rank: 0 }), "{ended}");
        let again = halo.round(|_, _| {}).map(drop);
        assert!(matches!(again, Err(GroupError::Aborted { rank: 0 })), "{again:?}");
    });
}

#[test]
fn rounds_run_as_futures_with_any_executor() {
    ranks(&library(), 3, |group| {
        let (own, size) = (group.rank(), group.size());
        let (next, previous) = ((own + 1) % size, (own + size - 1) % size);
        let mut halo = FixedHalo1d::<u64>::ring(&group, 500, 500).unwrap();
        for number in 0..50 {
            let write = |left: &mut [u64], right: &mut [u64]| {
                fill(left, own, false, number);
                fill(right, own, true, number);
            };
            let (from_left, from_right) = block_on(halo.begin(write).unwrap()).unwrap();
            assert!(is_from(from_left.unwrap(), previous, true, number, 500));
            assert!(is_from(from_right.unwrap(), next, false, number, 500));
        }
    });
}

#[test]
fn a_future_is_pending_until_the_neighbour_sends_and_names_it_when_time_is_up() {
    ranks_within(&library(), 2, Duration::from_secs(3), |group| {
        let mut halo = FixedHalo1d::<u64>::new(&group, 3, 3).unwrap();
        if group.rank() == 1 {
            group.meet(&[]).unwrap();
            return;
        }
        let mut round = pin!(halo.begin(|_, _| {}).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        assert!(round.as_mut().poll(&mut context).is_pending(), "the neighbour has not sent");
        match block_on(round) {
            Err(GroupError::Timeout { peers, .. }) => assert_eq!(peers, [1]),
            other => panic!("{other:?}"),
        }
        group.meet(&[]).unwrap();
    });
}
