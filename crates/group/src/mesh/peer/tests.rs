//! A rank that leaves, and what it has sent before: messages, parts and letters that come or are lost.

mod endings;
mod farewells;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::group::Group;
use crate::halo::FixedHalo1d;
use crate::loader::DataType;
use crate::mesh::failure::Failure;
use crate::mesh::lane::PART;
use crate::mesh::{CallKind, Counts, Mesh, Name, Reached, Space, What};
use crate::messages::{Any, From};
use crate::support::{WAIT, buffering, keeping, library, ranks, ranks_within};

const TIMEOUT: Duration = Duration::from_secs(4);
const LONG: usize = 100_000;

fn lost<T: std::fmt::Debug>(ended: Result<T, GroupError>) {
    assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
}

fn await_turn(turn: &AtomicUsize, number: usize) {
    let end = Instant::now() + WAIT;
    while turn.load(Ordering::Acquire) != number {
        assert!(Instant::now() < end, "turn {number} never comes");
        std::thread::yield_now();
    }
}

/// Rank 1, in its turn, does `last` and leaves.
fn leave_in_turn(turn: &AtomicUsize, group: Group, last: impl FnOnce(&Group)) {
    await_turn(turn, 1);
    last(&group);
    drop(group);
    turn.store(2, Ordering::Release);
}

/// Waits until rank 1 has gone, without a poll.
fn let_rank_1_go(turn: &AtomicUsize) {
    turn.store(1, Ordering::Release);
    await_turn(turn, 2);
}

/// Begins turn 1, in which rank 1 leaves. Returns when the rendezvous has said so; no peer is polled meanwhile.
fn let_rank_1_leave(turn: &AtomicUsize, mesh: &mut Mesh) {
    let_rank_1_go(turn);
    read_farewell(mesh);
}

/// Waits until the rendezvous has said that rank 1 leaves; no peer is polled meanwhile.
fn read_farewell(mesh: &mut Mesh) {
    let end = Instant::now() + WAIT;
    while !mesh.left[1] {
        assert!(Instant::now() < end, "the rendezvous does not say that rank 1 has left");
        mesh.read_mail().unwrap();
        std::thread::yield_now();
    }
}

/// Opens the ways of long messages in both directions.
fn connect_long(group: &Group) {
    let other = 1 - group.rank();
    group.sendrecv(&[1_u8; LONG], other, &mut [0; LONG], other, 1).unwrap();
}

fn connect_parts(group: &Group) {
    group.broadcast(&mut vec![0_u8; PART], 0).unwrap();
}

/// Both ranks do `first`. Then rank 1 does `last` in turn 1, and leaves, while rank 0 does `meanwhile`. Over a plugin that fails earlier
/// receives with a later one.
fn rank_1_leaves<T: 'static>(
    first: fn(&Group) -> T,
    last: fn(&Group, T),
    meanwhile: impl Fn(&Group, &AtomicUsize, T) + Clone + Send + 'static,
) {
    let turn = Arc::<AtomicUsize>::default();
    ranks(&buffering(), 2, move |group| {
        let made = first(&group);
        // Rank 1 needs no progress of rank 0 any more.
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, |group| last(group, made));
        }
        meanwhile(&group, &turn, made);
    });
}

/// Two ranks with a connection of small messages. Rank 1 does `last`, and leaves. Rank 0 polls nothing until it has gone, then does `first`
/// under the lock, and `then` without it.
fn after_rank_1_has_gone(last: fn(&Group), first: fn(&mut Mesh), then: fn(&Group)) {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&library(), 2, TIMEOUT, move |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, last);
        }
        let mut state = group.shared.lock();
        let_rank_1_leave(&turn, &mut state.mesh);
        first(&mut state.mesh);
        drop(state);
        then(&group);
    });
}

#[test]
fn a_long_message_that_is_not_received_does_not_hide_the_end_of_its_rank_from_other_calls() {
    ranks_within(&library(), 2, TIMEOUT, |group| {
        if group.rank() == 1 {
            return group.send(&[7_u8; LONG], 0, 5).unwrap();
        }
        lost(group.recv(&mut [0_u8], 1, 9));
        lost(group.recv_obj::<u8>(1, 9));
        lost(group.send(&[1_u8; LONG], 1, 9));
        assert_eq!(group.recv_vec::<u8>(1, 5).unwrap().0, [7; LONG]);
        lost(group.recv(&mut [0_u8], 1, 5));
    });
}

/// Its connections would be closed on the other side, too.
#[test]
fn parts_of_a_rank_that_leaves_come_though_a_call_has_found_that_it_has_left_before_they_have() {
    const PARTS: usize = 3;
    let last = |group: &Group, ()| {
        (0..PARTS).for_each(|_| group.gather(&vec![7_u8; PART], None, 0).unwrap());
    };
    rank_1_leaves(connect_parts, last, |group, turn, ()| {
        let mut state = group.shared.lock();
        let mesh = &mut state.mesh;
        let is_ready = |mesh: &mut Mesh| {
            mesh.peer(1).is_some_and(|peer| !peer.is_connecting() && peer.has_sent())
        };
        mesh.until(None, is_ready).unwrap();
        turn.store(1, Ordering::Release);
        read_farewell(mesh);
        lost(mesh.reach(1));
        // Were it closed now, rank 1 would go.
        let stalled = Instant::now();
        while turn.load(Ordering::Acquire) != 2 && stalled.elapsed() < STALL {
            std::thread::yield_now();
        }
        drop(state);
        for _ in 0..PARTS {
            let mut all = vec![0; 2 * PART];
            group.gather(&vec![7_u8; PART], Some(&mut all), 0).unwrap();
            assert!(all.iter().all(|byte| *byte == 7));
        }
    });
}

/// Its caller may use the memory again, though the rank's message keeps the connections.
#[test]
fn nothing_is_posted_after_the_error_of_a_send_to_a_rank_of_which_a_message_is_not_received() {
    // More than sockets buffer.
    const LONGER: usize = 32 << 20;
    let last = |group: &Group, ()| group.send(&[7_u8; LONG], 0, 9).unwrap();
    rank_1_leaves(connect_long, last, |group, turn, ()| {
        let direct = group.isend(group.buffer::<u8>(LONGER).unwrap(), 1, 1).unwrap();
        let staged = group.isend(vec![1_u8; LONGER], 1, 1).unwrap();
        let is_sending = |mesh: &mut Mesh| {
            mesh.peer(1).is_some_and(|peer| peer.long.iter().all(Long::is_in_flight))
        };
        group.shared.lock().mesh.until(None, is_sending).unwrap();
        turn.store(1, Ordering::Release);
        lost(direct.wait().map(drop));
        lost(staged.wait().map(drop));
        let mut state = group.shared.lock();
        assert_eq!(state.mesh.registry.regions(), 0);
        let peer = state.mesh.peer(1).expect("its message is not received");
        assert!(!peer.long.iter().any(Long::is_in_flight));
        drop(state);
        assert_eq!(group.recv_vec::<u8>(1, 9).unwrap().0, [7; LONG]);
    });
}

#[test]
fn no_memory_is_registered_after_the_error_of_a_receive_whose_sender_has_given_up() {
    // More than sockets buffer.
    const LONGER: usize = 32 << 20;
    let last = |group: &Group, ()| {
        group.send(&[7_u8; LONG], 0, 9).unwrap();
        drop(group.isend(group.buffer::<u8>(LONGER).unwrap(), 0, 1).unwrap());
        group.shared.lock().mesh.timeout = Duration::from_millis(400);
    };
    rank_1_leaves(connect_long, last, |group, turn, ()| {
        let_rank_1_go(turn);
        let received = group.irecv(group.buffer::<u8>(LONGER).unwrap(), 1, 1).unwrap();
        lost(received.wait().map(drop));
        assert_eq!(group.shared.lock().mesh.registry.regions(), 0);
        assert_eq!(group.recv_vec::<u8>(1, 9).unwrap().0, [7; LONG]);
    });
}

#[test]
fn a_short_part_of_a_rank_that_left_is_lost_though_a_long_one_to_it_never_leaves() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&library(), 2, TIMEOUT, move |group| {
        let call = Call { scope: 0, number: 1, what: What::new(CallKind::AllReduce) };
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_without_a_handle(&turn, &group);
        }
        await_turn(&turn, 1);
        let (long, mut short) = ([7_u8; LONG], [0_u8; 8]);
        let mut state = group.shared.lock();
        state.mesh.send_part(1, call, Place::reading(&long)).unwrap();
        turn.store(2, Ordering::Release);
        let ended = state.mesh.take_part(1, call, Place::writing(&mut short));
        // As the collective does it, before the memory is its caller's again.
        lost(ended.map_err(|error| state.mesh.collective_failed(error)));
    });
}

#[test]
fn a_last_part_is_read_as_it_was_written() {
    let (route, number) = (Route::Staged, u32::MAX - 1);
    let part = LastPart { route, scope: 1, number, note: 3 << 40 | 7, ordinal: 1 << 33 };
    assert_eq!(LastPart::decode(route, &part.encode()), part);
}

#[test]
fn parts_that_are_not_read_do_not_hide_the_end_of_their_rank_from_messages() {
    // With one part receives are posted, with as many as slots none is.
    for parts in [1, SLOTS as u64] {
        ranks_within(&library(), 2, TIMEOUT, move |group| {
            let call = Call { scope: 0, number: 0, what: What::new(CallKind::Gather) };
            group.barrier().unwrap();
            if group.rank() == 1 {
                let mut state = group.shared.lock();
                for part in 0..parts {
                    state.mesh.send_part(0, call, Place::reading(&[part])).unwrap();
                }
                return state.mesh.flush(0).unwrap();
            }
            lost(group.recv(&mut [0_u8], 1, 9));
            let mut state = group.shared.lock();
            for part in 0..parts {
                let mut came = [u64::MAX];
                state.mesh.take_part(1, call, Place::writing(&mut came)).unwrap();
                assert_eq!(came, [part]);
            }
        });
    }
}

#[test]
fn a_connection_with_the_awaited_peer_is_opened_by_polls_of_that_peer_alone() {
    ranks(&library(), 2, |group| {
        if group.rank() == 1 {
            return assert_eq!(group.recv_vec::<u8>(0, 1).unwrap().0, [7]);
        }
        // The group's own thread cannot poll meanwhile.
        let mut state = group.shared.lock();
        state.mesh.with(1, |peer, shared| peer.open(Way::Small, shared)).unwrap();
        let end = Instant::now() + WAIT;
        while state.mesh.peer(1).unwrap().is_connecting() {
            assert!(Instant::now() < end, "the connection is never open");
            state.mesh.hear().unwrap();
            state.mesh.with(1, |peer, shared| peer.attend(shared).map(drop)).unwrap();
            std::thread::yield_now();
        }
        drop(state);
        group.send(&[7_u8], 1, 1).unwrap();
    });
}

/// Sends the farewell and closes all connections, without a poll.
/// Rank 1 leaves after turn 1, in which it does not send its handle.
fn leave_without_a_handle(turn: &AtomicUsize, group: &Group) {
    let mut state = group.shared.lock();
    turn.store(1, Ordering::Release);
    await_turn(turn, 2);
    leave(&mut state.mesh);
}

fn leave(mesh: &mut Mesh) {
    mesh.farewell();
    mesh.fail(Failure::Other("this rank has left".to_owned()));
}

#[test]
fn a_long_message_to_a_rank_that_has_left_is_lost_though_its_connection_is_never_open() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&library(), 2, TIMEOUT, move |group| {
        group.barrier().unwrap();
        let data = [0_u8; LONG];
        if group.rank() == 1 {
            return leave_without_a_handle(&turn, &group);
        }
        await_turn(&turn, 1);
        let mut state = group.shared.lock();
        let name = Name { scope: 0, tag: 1, space: Space::MESSAGES, note: 0 };
        let op = state.mesh.send(1, name, DataType::U8, Place::reading(&data)).unwrap();
        turn.store(2, Ordering::Release);
        lost(state.mesh.until(Some((1, Way::Small)), |mesh| mesh.ended(op).is_some()));
        state.mesh.abandon(op);
        drop(state);
        lost(group.recv(&mut [0_u8], 1, 1));
    });
}

/// One message for each receive that is posted ahead; the barrier has used one. If more receives were posted than messages come, the
/// test plugin would fail all receives of the connection when it ends.
const MESSAGES: u64 = SLOTS as u64 - 1;

fn send_all(group: &Group) {
    for number in 0..MESSAGES {
        group.send(&[number], 0, 1).unwrap();
    }
}

fn receive_all(group: &Group) {
    for number in 0..MESSAGES {
        assert_eq!(group.recv_vec::<u64>(1, 1).unwrap().0, [number]);
    }
    lost(group.recv(&mut [0_u8], 1, 1));
}

#[test]
fn all_messages_that_are_here_are_received_though_no_more_receives_can_be_posted() {
    after_rank_1_has_gone(send_all, |_| {}, receive_all);
}

#[test]
fn messages_that_are_here_are_received_though_their_connections_end_is_seen_before_the_news() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&keeping(), 2, TIMEOUT, move |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, send_all);
        }
        let mut state = group.shared.lock();
        let_rank_1_go(&turn);
        state.mesh.with(1, |peer, shared| peer.progress(shared).map(drop)).unwrap();
        assert!(state.mesh.left[1], "no error has made it read the news");
        drop(state);
        receive_all(&group);
    });
}

/// The last piece of a long message comes with the end of its connection, and the post after the piece fails. Rank 1 does `last` before
/// it leaves.
fn the_last_piece_comes_with_the_end(last: fn(&Group), is_known_to_leave: bool) {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&keeping(), 2, TIMEOUT, move |group| {
        if group.rank() == 1 {
            // This opens the connection.
            group.send(&[1_u8; LONG], 0, 1).unwrap();
            return leave_in_turn(&turn, group, |group| {
                group.send(&[7_u8; LONG], 0, 2).unwrap();
                last(group);
            });
        }
        group.recv(&mut [0_u8; LONG], 1, 1).unwrap();
        let receiving = group.irecv(vec![0_u8; LONG], 1, 2).unwrap();
        let mut state = group.shared.lock();
        let mesh = &mut state.mesh;
        let header = |mesh: &mut Mesh| {
            let take_in = |peer: &mut Peer, shared: &mut Shared<'_>| {
                peer.bring_by(Way::Small, |peer| peer.take_in(1, shared))
            };
            assert!(mesh.with(1, take_in).unwrap(), "the last piece has come");
        };
        if is_known_to_leave {
            let_rank_1_leave(&turn, mesh);
            header(mesh);
        } else {
            let_rank_1_go(&turn);
        }
        header(mesh);
        // As if the end came after the poll of small messages.
        let small = Way::Small.index();
        mesh.peer(1).unwrap().silent[small] = true;
        mesh.with(1, |peer, shared| peer.progress(shared).map(drop)).unwrap();
        assert!(mesh.left[1], "no error has made it read the news");
        mesh.peer(1).unwrap().silent[small] = false;
        drop(state);
        assert_eq!(receiving.wait().unwrap().0, [7; LONG]);
    });
}

#[test]
fn a_long_message_is_received_though_the_post_after_its_last_piece_fails() {
    the_last_piece_comes_with_the_end(|_| {}, false);
}

#[test]
fn a_long_message_is_received_though_a_later_one_was_announced_and_never_comes() {
    let announce = |group: &Group| {
        let kind = Kind::Long(Route::Staged);
        // A message of more pieces than receives are posted for.
        let len = 1 << 30;
        let header =
            Header { kind, element: 0, scope: 0, tag: 3, len, space: Space::MESSAGES, note: 0 };
        let letter = Letter { header, body: Place::empty(), op: None };
        let mut state = group.shared.lock();
        state.mesh.with(0, |peer, shared| peer.send(letter, shared)).unwrap();
    };
    the_last_piece_comes_with_the_end(announce, true);
}

#[test]
fn a_rank_that_leaves_keeps_its_connections_with_a_peer_until_that_of_small_messages_ends() {
    let turn = Arc::<AtomicUsize>::default();
    ranks(&library(), 2, move |group| {
        group.barrier().unwrap();
        // Rank 0 awaits nothing more.
        group.meet(&[]).unwrap();
        if group.rank() == 0 {
            await_turn(&turn, 1);
        } else {
            let mut state = group.shared.lock();
            let mesh = &mut state.mesh;
            mesh.has_left = true;
            let mut fails = |way| {
                let fails = |peer: &mut Peer, _: &mut Shared<'_>| -> Result<(), GroupError> {
                    peer.failing = Some(Failing::In(way));
                    Err(crate::mesh::leaving::lost(0))
                };
                mesh.with(0, fails).unwrap();
                mesh.peer(0).map(|peer| (peer.silent[way.index()], peer.silent[Way::Small.index()]))
            };
            let long = Way::Long(Route::Staged);
            assert_eq!(fails(long), Some((true, false)), "rank 0 may not have received all");
            assert_eq!(fails(Way::Small), None, "it has, or has died");
            turn.store(1, Ordering::Release);
        }
    });
}

#[test]
fn a_connect_to_a_rank_that_has_left_fails_without_the_messages_that_are_here() {
    let send = |group: &Group| {
        send_all(group);
        let mut state = group.shared.lock();
        let (listener, handle) = state.mesh.net.listen(0).unwrap();
        drop(listener);
        let way = Way::Long(Route::Staged).number();
        state.mesh.place().mail(0, &[&[way][..], &handle.0].concat()).unwrap();
    };
    let connect = |mesh: &mut Mesh| {
        mesh.hear().unwrap();
        let end = Instant::now() + WAIT;
        while mesh.connector.step() {
            assert!(Instant::now() < end, "the connect neither succeeds nor fails");
            std::thread::yield_now();
        }
        mesh.poll(None).unwrap();
    };
    after_rank_1_has_gone(send, connect, receive_all);
}

#[test]
fn a_pair_with_a_rank_that_left_before_it_connected_is_closed() {
    const NAME: PairName = PairName { scope: 0, number: 7 };
    const DUE: Counts = Counts { sent: 0, received: 1 };
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&buffering(), 2, TIMEOUT, move |group| {
        let buffer = Buffer::new(8).unwrap();
        if group.rank() == 1 {
            let mut state = group.shared.lock();
            state.mesh.open_pair(0, NAME, &buffer).unwrap();
            turn.store(1, Ordering::Release);
            // The other end has connected, and this rank reads no letter.
            await_turn(&turn, 2);
            return leave(&mut state.mesh);
        }
        await_turn(&turn, 1);
        let end = Instant::now() + WAIT;
        let until = |reached: fn(&mut Mesh) -> bool| {
            loop {
                let mut state = group.shared.lock();
                state.mesh.poll_pairs(NAME, [1].into_iter()).unwrap();
                if reached(&mut state.mesh) {
                    return;
                }
                drop(state);
                assert!(Instant::now() < end, "the pair neither opens nor closes");
                std::thread::yield_now();
            }
        };
        group.shared.lock().mesh.open_pair(1, NAME, &buffer).unwrap();
        until(|mesh| mesh.pair_progress(1, NAME) > 0);
        turn.store(2, Ordering::Release);
        until(|mesh| mesh.reached(1, NAME, DUE).unwrap() == Reached::Closed);
    });
}

#[test]
fn a_long_message_of_a_rank_that_left_before_it_connected_is_lost() {
    receive_of_a_rank_that_left_before_it_connected(1.into(), |_| {});
}

#[test]
fn a_long_message_of_a_rank_that_left_before_it_connected_is_lost_for_a_receive_from_any_rank() {
    receive_of_a_rank_that_left_before_it_connected(Any.into(), |_| {});
}

#[test]
fn the_same_is_lost_though_a_part_of_its_rank_is_not_read() {
    let send_part = |mesh: &mut Mesh| {
        let call = Call { scope: 0, number: 1, what: What::new(CallKind::Gather) };
        mesh.send_part(0, call, Place::reading(&[7_u8])).unwrap();
        mesh.flush(0).unwrap();
    };
    receive_of_a_rank_that_left_before_it_connected(Any.into(), send_part);
}

/// Longer than a dropped connect goes on.
const LONG_AGO: Duration = Duration::from_millis(600);

/// The length of a part of a gather that travels by a route.
fn part_of(route: Route) -> usize {
    match route {
        Route::Direct => PART + 1,
        Route::Staged => PART,
    }
}

#[test]
fn a_long_part_comes_though_its_rank_left_long_before_it_was_accepted() {
    for route in Route::ALL {
        let (turn, len) = (Arc::<AtomicUsize>::default(), part_of(route));
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            group.barrier().unwrap();
            let part = vec![7_u8; len];
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, |group| group.gather(&part, None, 0).unwrap());
            }
            let mut state = group.shared.lock();
            // Rank 1 gets the handle, and this rank polls nothing until rank 1 has gone.
            state.mesh.with(1, |peer, shared| peer.open(Way::Part(route), shared)).unwrap();
            let_rank_1_leave(&turn, &mut state.mesh);
            std::thread::sleep(LONG_AGO);
            drop(state);
            let mut all = vec![0; 2 * len];
            group.gather(&part, Some(&mut all), 0).unwrap();
            assert_eq!(all, vec![7; 2 * len]);
            lost(group.gather(&part, Some(&mut all), 0));
        });
    }
}

#[test]
fn a_long_part_comes_though_its_rank_and_its_other_connections_have_gone() {
    for route in Route::ALL {
        let (turn, len) = (Arc::<AtomicUsize>::default(), part_of(route));
        ranks_within(&buffering(), 2, TIMEOUT, move |group| {
            let mut part = vec![7_u8; len];
            // Both connections are open.
            group.broadcast(&mut part, 0).unwrap();
            group.barrier().unwrap();
            if group.rank() == 1 {
                return leave_in_turn(&turn, group, |group| group.gather(&part, None, 0).unwrap());
            }
            let mut state = group.shared.lock();
            match route {
                Route::Direct => let_rank_1_leave(&turn, &mut state.mesh),
                // The test plugin fails all receives of a connection that ends while one is posted ahead.
                Route::Staged => turn.store(1, Ordering::Release),
            }
            let end = Instant::now() + WAIT;
            let has_lanes = |mesh: &mut Mesh| mesh.peer(1).is_some_and(|peer| peer.has_lanes());
            while has_lanes(&mut state.mesh) {
                assert!(Instant::now() < end, "the end of the other connection is not seen");
                state.mesh.poll(None).unwrap();
            }
            drop(state);
            lost(group.recv(&mut [0_u8], 1, 9));
            let mut all = vec![0; 2 * len];
            group.gather(&part, Some(&mut all), 0).unwrap();
            assert_eq!(all, vec![7; 2 * len]);
            let mut state = group.shared.lock();
            state.mesh.poll(None).unwrap();
            assert!(state.mesh.peers[1].is_none(), "no long part is due");
            drop(state);
            lost(group.gather(&part, Some(&mut all), 0));
        });
    }
}

/// Its receiver did not answer the farewell in time, and a receive that it posts ahead fails before it has read the news.
#[test]
fn all_parts_that_are_here_are_received_though_a_collective_posts_a_receive_that_fails() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&keeping(), 2, TIMEOUT, move |group| {
        connect_parts(&group);
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, |group| {
                (0..2).for_each(|_| group.gather(&vec![7_u8; PART], None, 0).unwrap());
            });
        }
        let mut state = group.shared.lock();
        let mesh = &mut state.mesh;
        let is_connected = |mesh: &mut Mesh| mesh.peer(1).is_some_and(|peer| !peer.is_connecting());
        mesh.until(None, is_connected).unwrap();
        let_rank_1_go(&turn);
        assert!(!mesh.left[1], "the news is read");
        let call = Call { scope: 0, number: 0, what: What::new(CallKind::Gather) };
        for _ in 0..2 {
            let mut came = vec![0_u8; PART];
            let place = Place::writing(&mut came);
            let part = mesh.expect_part(1, call, place, false).unwrap();
            mesh.await_part(1, call, part, place).unwrap();
            assert!(came.iter().all(|byte| *byte == 7));
        }
    });
}

#[test]
fn long_parts_of_a_rank_that_has_left_are_lost_where_their_connection_cannot_be_accepted() {
    for route in Route::ALL {
        let (mut peer, way) = (Peer::new(1, 0, 0), Way::Part(route));
        peer.part_receivers[route as usize].sent(1);
        assert!(!peer.is_lost(way, false));
        // The state after an error of accept.
        assert!(peer.openings[way.index()].is_closed());
        assert!(peer.is_lost(way, true));
    }
}

/// A rank that only sends does not wait for the collectives of the others.
#[test]
fn staged_parts_come_in_order_though_their_rank_is_many_collectives_ahead() {
    let turn = Arc::<AtomicUsize>::default();
    ranks(&library(), 2, move |group| {
        const AHEAD: usize = 8;
        let len = part_of(Route::Staged);
        // The connection is open.
        group.broadcast(&mut vec![0_u8; len], 1).unwrap();
        group.barrier().unwrap();
        let part = |number: usize| vec![u8::try_from(number).unwrap(); len - number];
        if group.rank() == 1 {
            (0..AHEAD).for_each(|number| group.gather(&part(number), None, 0).unwrap());
            turn.store(1, Ordering::Release);
            return (AHEAD..3 * AHEAD).for_each(|number| {
                group.gather(&part(number), None, 0).unwrap();
            });
        }
        await_turn(&turn, 1);
        for number in 0..3 * AHEAD {
            let mut all = vec![0; 2 * (len - number)];
            group.gather(&part(number), Some(&mut all), 0).unwrap();
            assert!(all == [part(number), part(number)].concat(), "part {number}");
        }
    });
}

#[test]
fn messages_come_though_their_rank_left_long_before_it_was_accepted() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&buffering(), 2, TIMEOUT, move |group| {
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, |group| group.send(&[7_u8], 0, 1).unwrap());
        }
        let mut state = group.shared.lock();
        state.mesh.with(1, |peer, shared| peer.open(Way::Small, shared)).unwrap();
        let_rank_1_leave(&turn, &mut state.mesh);
        std::thread::sleep(LONG_AGO);
        drop(state);
        lost(group.send(&[1_u8], 1, 1));
        assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [7]);
        lost(group.recv(&mut [0_u8], 1, 1));
    });
}

/// Rank 1 does `first`, and then its header is sent.
fn receive_of_a_rank_that_left_before_it_connected(from: From, first: fn(&mut Mesh)) {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&library(), 2, TIMEOUT, move |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            let mut state = group.shared.lock();
            let name = Name { scope: 0, tag: 1, space: Space::MESSAGES, note: 0 };
            let data = [0_u8; LONG];
            first(&mut state.mesh);
            state.mesh.send(0, name, DataType::U8, Place::reading(&data)).unwrap();
            turn.store(1, Ordering::Release);
            // The header of the message has come.
            await_turn(&turn, 2);
            return leave(&mut state.mesh);
        }
        await_turn(&turn, 1);
        assert_eq!(group.probe(1, 1).unwrap().bytes, LONG);
        turn.store(2, Ordering::Release);
        lost(group.recv(&mut [0_u8; LONG], from, 1));
        lost(group.recv(&mut [0_u8], 1, 2));
    });
}

/// Much longer than a rank takes to answer that polls.
const STALL: Duration = Duration::from_millis(700);

/// As [`rank_1_leaves`], while rank 0 polls nothing, as if it were stopped. In the end rank 0 does `then`.
fn while_rank_0_is_stalled<T: 'static>(
    first: fn(&Group) -> T,
    last: fn(&Group, T),
    then: fn(&Group, T),
) {
    rank_1_leaves(first, last, move |group, turn, made| {
        let mut state = group.shared.lock();
        turn.store(1, Ordering::Release);
        let end = Instant::now() + WAIT;
        while !state.mesh.place().has_mail() {
            assert!(Instant::now() < end, "rank 1 does not say that it leaves");
            std::thread::yield_now();
        }
        let stalled = Instant::now();
        while turn.load(Ordering::Acquire) == 1 && stalled.elapsed() < STALL {
            std::thread::yield_now();
        }
        drop(state);
        then(group, made);
    });
}

#[test]
fn a_message_of_a_rank_that_leaves_comes_though_its_receiver_is_stalled_meanwhile() {
    let send = |group: &Group, ()| group.send(&[7_u8], 0, 1).unwrap();
    while_rank_0_is_stalled(
        |_| {},
        send,
        |group, ()| {
            assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [7]);
            lost(group.recv(&mut [0_u8], 1, 1));
        },
    );
}

#[test]
fn a_short_part_of_a_rank_that_leaves_comes_though_its_receiver_is_stalled_meanwhile() {
    while_rank_0_is_stalled(
        |_| {},
        |group, ()| group.gather(&[7_u8], None, 0).unwrap(),
        |group, ()| {
            let mut all = [0; 2];
            group.gather(&[1_u8], Some(&mut all), 0).unwrap();
            assert_eq!(all, [1, 7]);
        },
    );
}

#[test]
fn a_staged_part_of_a_rank_that_leaves_comes_though_its_receiver_is_stalled_meanwhile() {
    while_rank_0_is_stalled(
        |group| group.broadcast(&mut vec![0_u8; PART], 0).unwrap(),
        |group, ()| group.gather(&vec![7_u8; PART], None, 0).unwrap(),
        |group, ()| {
            let mut all = vec![0; 2 * PART];
            group.gather(&vec![7_u8; PART], Some(&mut all), 0).unwrap();
            assert!(all.iter().all(|byte| *byte == 7));
        },
    );
}

#[test]
fn a_long_message_of_a_rank_that_leaves_comes_though_its_receiver_is_stalled_meanwhile() {
    while_rank_0_is_stalled(
        |group| {
            let other = 1 - group.rank();
            group.sendrecv(&[1_u8; LONG], other, &mut [0; LONG], other, 1).unwrap();
        },
        |group, ()| group.send(&[7_u8; LONG], 0, 1).unwrap(),
        |group, ()| assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [7; LONG]),
    );
}

#[test]
fn a_border_of_a_rank_that_leaves_comes_though_its_neighbour_is_stalled_meanwhile() {
    while_rank_0_is_stalled(
        |group| {
            let mut halo = FixedHalo1d::<u8>::new(group, 8, 8).unwrap();
            halo.round(|_, _| {}).map(drop).unwrap();
            halo
        },
        |_, mut halo| drop(halo.begin(|left, _| left.fill(7)).unwrap()),
        |_, mut halo| {
            let (_, right) = halo.round(|_, _| {}).unwrap();
            assert_eq!(right.unwrap(), [7; 8]);
        },
    );
}

#[test]
fn a_rank_that_is_stopped_holds_one_that_leaves_for_a_bounded_time() {
    let turn = Arc::<AtomicUsize>::default();
    ranks_within(&library(), 2, TIMEOUT, move |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, |_| {});
        }
        let _state = group.shared.lock();
        let_rank_1_go(&turn);
    });
}

/// Rank 1 does `last`, and sends its farewell, which rank 0 answers without a call. Then rank 0 does `then`.
fn rank_0_answers(last: fn(&Group), then: fn(&Group)) {
    let turn = Arc::<AtomicUsize>::default();
    ranks(&library(), 2, move |group| {
        group.barrier().unwrap();
        if group.rank() == 0 {
            await_turn(&turn, 1);
            return then(&group);
        }
        last(&group);
        let mut state = group.shared.lock();
        state.mesh.until(None, |mesh| mesh.peer(0).is_some_and(|peer| peer.has_sent())).unwrap();
        assert!(state.mesh.farewell());
        let end = Instant::now() + WAIT;
        while state.mesh.peers[0].is_some() {
            assert!(Instant::now() < end, "the farewell is not answered");
            state.mesh.poll(None).unwrap();
            std::thread::yield_now();
        }
        turn.store(1, Ordering::Release);
    });
}

#[test]
fn a_rank_that_computes_answers_a_farewell() {
    rank_0_answers(|_| {}, |group| lost(group.recv(&mut [0_u8], 1, 1)));
}

#[test]
fn messages_that_are_not_received_do_not_delay_the_answer_to_a_farewell() {
    rank_0_answers(
        |group| {
            send_all(group);
            group.send(&[7_u8; LONG], 0, 2).unwrap();
        },
        |group| {
            receive_all(group);
            assert_eq!(group.recv_vec::<u8>(1, 2).unwrap().0, [7; LONG]);
        },
    );
}

#[test]
fn a_farewell_is_answered_though_parts_fill_all_slots_and_more_are_on_their_way() {
    const PARTS: usize = SLOTS + 4;
    let turn = Arc::<AtomicUsize>::default();
    ranks(&buffering(), 2, move |group| {
        // Receives for long messages are posted ahead.
        let other = 1 - group.rank();
        group.sendrecv(&[1_u8; LONG], other, &mut [0; LONG], other, 1).unwrap();
        group.barrier().unwrap();
        if group.rank() == 1 {
            return leave_in_turn(&turn, group, |group| {
                (0..PARTS).for_each(|_| group.gather(&[7_u8], None, 0).unwrap());
                group.send(&[8_u8; LONG], 0, 1).unwrap();
            });
        }
        turn.store(1, Ordering::Release);
        let end = Instant::now() + WAIT;
        let is_answered = |mesh: &mut Mesh| mesh.left[1] && mesh.unanswered.is_empty();
        while !is_answered(&mut group.shared.lock().mesh) {
            assert!(Instant::now() < end, "the farewell is not answered");
            std::thread::yield_now();
        }
        for _ in 0..PARTS {
            let mut all = [0; 2];
            group.gather(&[1_u8], Some(&mut all), 0).unwrap();
            assert_eq!(all, [1, 7]);
        }
        assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [8; LONG]);
        lost(group.recv(&mut [0_u8], 1, 1));
    });
}

#[test]
fn a_connection_is_needed_until_it_is_accepted_unless_nothing_comes_by_it() {
    ranks(&library(), 2, |group| {
        if group.rank() == 1 {
            return;
        }
        let open = |peer: &mut Peer, shared: &mut Shared<'_>| {
            let data = Way::Part(Route::Staged).index();
            let (listener, handle) = shared.net.listen(0)?;
            let connecting = Some(shared.connector.begin(shared.net, 0, Box::new(handle)));
            peer.openings[data] = Opening::Requested { listener, connecting };
            assert!(peer.needs_connections());
            peer.part_receivers[Route::Staged as usize].sent(0);
            assert!(!peer.needs_connections());
            peer.openings[data] = Opening::Closed;
            Ok(())
        };
        group.shared.lock().mesh.with(1, open).unwrap();
    });
}

#[test]
fn a_connection_is_needed_until_a_send_that_the_peer_has_received_completes() {
    let mut peer = Peer::new(1, 0, 0);
    assert!(!peer.needs_connections());
    peer.farewell = Farewell { parts: [0, 1], ..Farewell::default() };
    assert!(peer.needs_connections());
    peer.farewell = Farewell { long: [0, 1], ..Farewell::default() };
    assert!(peer.needs_connections());
    // The state after an error of a send.
    peer.is_closed = true;
    assert!(!peer.needs_connections());
}
