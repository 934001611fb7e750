//! What fails a group, and what does not: waits that last nearly as long as the timeout, or without end.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::{Hub, Remote};
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, Group};
use ironrail_group::loader::Op;
use ironrail_group::objects::ObjectBatch;
use support::{WAIT, library, ranks_within};

/// A wait reports to the rendezvous after 1.5 s, which decides 0.5 s later.
const TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn bytes_that_begin_to_move_just_before_the_timeout_arrive() {
    // Between calls a rank sends three pieces every 2 ms, so the message takes more than 0.34 s.
    const BYTES: usize = 256 << 20;
    let sent = ranks_within(&library(), 2, TIMEOUT, |group| {
        let mut data = vec![u8::try_from(group.rank()).unwrap() + 1; BYTES];
        group.barrier()?;
        if group.rank() == 1 {
            thread::sleep(Duration::from_millis(1700));
            let sending = group.isend(data, 0, 1)?;
            thread::sleep(Duration::from_millis(500));
            return sending.wait().map(drop);
        }
        group.recv(&mut data, 1, 1)?;
        assert_eq!(data[BYTES - 1], 2);
        Ok(())
    });
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
}

#[test]
fn a_wait_that_ends_in_an_error_fails_no_rank_that_computes() {
    ranks_within(&library(), 3, TIMEOUT, |group| {
        group.barrier().unwrap();
        match group.rank() {
            // It computes for longer than any wait lasts.
            0 => {
                thread::sleep(Duration::from_millis(2600));
                group.send(&[7_u8], 2, 1).unwrap();
            }
            // Its connections end 0.5 s later.
            1 => thread::sleep(Duration::from_millis(1200)),
            _ => {
                let ended = group.recv(&mut [0_u8], 1, 1);
                assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
                assert_eq!(group.recv_vec::<u8>(0, 1).unwrap().0, [7]);
            }
        }
    });
}

#[test]
fn the_longest_durations_are_waits_without_end() {
    let hub = Hub::start(SocketAddr::from(([127, 0, 0, 1], 0)), 2, Duration::MAX).unwrap();
    let (ends, has_ended) = mpsc::channel();
    let rank = |meeting| {
        let ends = ends.clone();
        move || {
            let place = Remote::join(meeting, Duration::MAX).unwrap();
            let builder = Builder::new(&library()).timeout(Duration::MAX);
            let group = builder.join(place).unwrap();
            group.meet(&[]).unwrap();
            if group.rank() == 0 {
                // Until the other rank's wait sleeps.
                thread::sleep(Duration::from_millis(20));
                let mut sending = group.isend(vec![7_u8; 100_000], 1, 1).unwrap();
                assert!(sending.wait_timeout(Duration::MAX).unwrap());
                let mut sending = group.isend_obj(&7_u8, 1, 1).unwrap();
                assert!(sending.wait_timeout(Duration::MAX).unwrap());
            } else {
                let mut receiving = group.irecv(vec![0_u8; 100_000], 0, 1).unwrap();
                assert!(receiving.wait_timeout(Duration::MAX).unwrap());
                let mut receiving = group.irecv_obj::<u8>(0, 1).unwrap();
                assert!(receiving.wait_timeout(Duration::MAX).unwrap());
            }
            group.barrier().unwrap();
            ends.send(()).unwrap();
        }
    };
    for own in 0..2 {
        thread::spawn(rank(hub.meeting(own)));
    }
    for _ in 0..2 {
        has_ended.recv_timeout(WAIT).unwrap();
    }
    assert!(hub.wait_for_all_to_leave(Duration::MAX));
}

#[test]
fn a_collective_that_a_rank_has_left_is_the_same_error_on_all_ranks_from_then_on() {
    ranks_within(&library(), 4, WAIT, |group| {
        group.barrier().unwrap();
        let rank = group.rank();
        let three = group.split((rank < 3).then_some(0), 0).unwrap();
        let two = group.split((rank < 2).then_some(0), 0).unwrap();
        let lost = |ended: Result<(), GroupError>| {
            assert!(
                matches!(ended, Err(GroupError::PeerLost { rank: 2, .. })),
                "{rank}: {ended:?}"
            );
        };
        match (two, three) {
            (Some(two), Some(three)) => {
                lost(three.barrier());
                lost(two.barrier());
                lost(group.send(&[1_u8], 3, 1));
            }
            // It leaves.
            (None, Some(_)) => {}
            _ => lost(group.recv(&mut [0_u8], 0, 1).map(drop)),
        }
    });
}

#[test]
fn what_a_rank_sent_before_it_left_still_arrives_and_collectives_without_it_go_on() {
    ranks_within(&library(), 3, WAIT, |group| {
        group.barrier().unwrap();
        let rank = group.rank();
        let two = group.split((rank < 2).then_some(0), 0).unwrap();
        let Some(two) = two else {
            group.send(&[7_u8], 0, 1).unwrap();
            return;
        };
        if rank == 0 {
            assert_eq!(group.recv_vec::<u8>(2, 1).unwrap().0, [7]);
        }
        let ended = group.recv(&mut [0_u8], 2, 2);
        assert!(matches!(ended, Err(GroupError::PeerLost { rank: 2, .. })), "{ended:?}");
        two.barrier().unwrap();
    });
}

/// Four ranks of which rank 1 leaves, which the others have noticed.
fn without_rank_1(work: fn(Group)) {
    ranks_within(&library(), 4, TIMEOUT, move |group| {
        group.barrier().unwrap();
        if group.rank() != 1 {
            lost(group.recv(&mut [0_u8], 1, 1));
            work(group);
        }
    });
}

fn lost<T: std::fmt::Debug>(ended: Result<T, GroupError>) {
    assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
}

#[test]
fn an_object_is_broadcast_to_all_ranks_but_one_that_has_left() {
    without_rank_1(|group| {
        if group.rank() == 0 {
            lost(group.broadcast_obj(Some(7_u8), 0));
            // The error comes when all have been served, however it is driven.
            let mut begun = group.ibroadcast_obj(Some(vec![8_u8; 100_000]), 0).unwrap();
            lost(begun.wait_timeout(WAIT));
        } else {
            assert_eq!(group.broadcast_obj::<u8>(None, 0).unwrap(), 7);
            assert_eq!(group.broadcast_obj::<Vec<u8>>(None, 0).unwrap(), vec![8; 100_000]);
        }
    });
}

#[test]
fn collectives_of_objects_end_on_all_ranks_though_one_has_left() {
    without_rank_1(|group| {
        let rank = group.rank();
        lost(group.all_gather_obj(&rank.to_le_bytes()));
        let reduced = group.iall_reduce_obj(&1_u64, Op::Sum).unwrap().wait();
        if rank == 0 {
            lost(reduced);
        } else {
            assert!(matches!(reduced, Err(GroupError::Mismatch { rank: 0, .. })), "{reduced:?}");
        }
        // Nothing of them is left behind.
        let root = if rank == 0 { Some(9_u8) } else { None };
        let ended = group.broadcast_obj(root, 0);
        if rank == 0 { lost(ended) } else { assert_eq!(ended.unwrap(), 9) }
    });
}

#[test]
fn a_batch_sends_what_it_can_though_a_rank_has_left() {
    without_rank_1(|group| {
        if group.rank() == 0 {
            let mut batch = ObjectBatch::new();
            for to in [1, 2, 3] {
                batch.send(&7_u8, to, 5);
            }
            lost(batch.execute(&group));
        } else {
            assert_eq!(group.recv_obj::<u8>(0, 5).unwrap().0, 7);
        }
    });
}
