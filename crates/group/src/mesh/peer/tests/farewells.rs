//! When a rank answers a farewell: not before its connections with the rank that leaves have brought all that comes, and have completed what
//! that rank has received.

use super::*;
use crate::mesh::header::SMALL;

/// As [`rank_1_leaves`]: rank 0 does `meanwhile` under the lock, and polls nothing while rank 1 does `last` and leaves. Rank 0 reads the
/// farewell, and answers it once it has polled.
fn the_answer_awaits_a_poll<T: 'static>(
    first: fn(&Group) -> T,
    meanwhile: fn(&mut Mesh),
    last: fn(&Group, T),
) {
    rank_1_leaves(first, last, move |group, turn, made| {
        let mut state = group.shared.lock();
        let mesh = &mut state.mesh;
        mesh.until(None, |mesh| mesh.peer(1).is_some_and(|peer| peer.has_sent())).unwrap();
        meanwhile(mesh);
        turn.store(1, Ordering::Release);
        read_farewell(mesh);
        mesh.hear().unwrap();
        assert_eq!(mesh.unanswered, [1], "it is answered too early");
        let end = Instant::now() + WAIT;
        while !mesh.unanswered.is_empty() {
            assert!(Instant::now() < end, "it is never answered");
            mesh.poll(None).unwrap();
        }
        drop(state);
        drop(made);
    });
}

fn gather() -> Call {
    Call { scope: 0, number: 0, what: What::new(CallKind::Gather) }
}

#[test]
fn a_farewell_is_answered_once_its_messages_in_slots_have_come() {
    the_answer_awaits_a_poll(|_| {}, |_| {}, |group, ()| group.send(&[7_u8], 0, 1).unwrap());
}

#[test]
fn a_farewell_is_answered_once_its_staged_messages_have_come() {
    the_answer_awaits_a_poll(
        connect_long,
        |_| {},
        |group, ()| group.send(&[7_u8; LONG], 0, 1).unwrap(),
    );
}

#[test]
fn a_farewell_is_answered_once_its_staged_parts_have_come() {
    the_answer_awaits_a_poll(
        connect_parts,
        |_| {},
        |group, ()| group.gather(&vec![7_u8; PART], None, 0).unwrap(),
    );
}

#[test]
fn a_farewell_is_answered_once_its_borders_have_come() {
    the_answer_awaits_a_poll(
        |group| {
            let mut halo = FixedHalo1d::<u8>::new(group, 8, 8).unwrap();
            halo.round(|_, _| {}).map(drop).unwrap();
            halo
        },
        |_| {},
        |_, mut halo| drop(halo.begin(|left, _| left.fill(7)).unwrap()),
    );
}

static SENT: [u8; SMALL + 1] = [7; SMALL + 1];

#[test]
fn a_farewell_is_answered_once_the_sends_of_messages_that_its_rank_has_received_are_complete() {
    the_answer_awaits_a_poll(
        connect_long,
        |mesh| {
            let name = Name { scope: 0, tag: 1, space: Space::MESSAGES, note: 0 };
            let op = mesh.send(1, name, DataType::U8, Place::reading(&SENT)).unwrap();
            mesh.abandon(op);
        },
        |group, ()| assert!(group.recv_vec::<u8>(0, 1).unwrap().0 == SENT),
    );
}

#[test]
fn a_farewell_is_answered_once_the_sends_of_parts_that_its_rank_has_received_are_complete() {
    the_answer_awaits_a_poll(
        connect_parts,
        |mesh| {
            mesh.send_part(1, gather(), Place::reading(&SENT)).unwrap();
        },
        |group, ()| {
            let mut came = vec![0; SENT.len()];
            let place = Place::writing(&mut came);
            let mut state = group.shared.lock();
            let part = state.mesh.expect_part(0, gather(), place, false).unwrap();
            state.mesh.await_part(0, gather(), part, place).unwrap();
            assert!(came == SENT);
        },
    );
}

#[test]
fn a_connection_by_which_nothing_more_comes_is_not_needed() {
    ranks(&buffering(), 2, |group| {
        connect_long(&group);
        connect_parts(&group);
        let is_connected = |mesh: &mut Mesh| {
            let ranks = 0..2;
            ranks.into_iter().all(|rank| !mesh.peer(rank).is_some_and(|peer| peer.is_connecting()))
        };
        group.shared.lock().mesh.until(None, is_connected).unwrap();
        group.meet(&[]).unwrap();
        if group.rank() == 1 {
            return drop(group.meet(&[]).unwrap());
        }
        let needs = |peer: &mut Peer, shared: &mut Shared<'_>| {
            let staged = Route::Staged as usize;
            assert!(peer.needs_connections(), "it is not known how many parts it has sent");
            peer.part_receivers[staged].sent(peer.part_receivers[staged].done());
            assert!(!peer.needs_connections());
            // Something never comes, and it is not known by which way: a slot, a staged part, and then a staged message.
            let misses_slot = |slots| {
                peer.farewell.slots = slots;
                peer.needs_connections()
            };
            assert!((1..100).any(misses_slot));
            peer.silent[Way::Small.index()] = true;
            assert!(!peer.needs_connections());
            peer.part_receivers[staged].sent(peer.part_receivers[staged].done() + 1);
            assert!(peer.needs_connections());
            peer.silent[Way::Part(Route::Staged).index()] = true;
            assert!(!peer.needs_connections());
            let (kind, len, space) = (Kind::Long(Route::Staged), 1, Space::MESSAGES);
            let header = Header { kind, element: 0, scope: 0, tag: 9, len, space, note: 0 };
            peer.announced(Route::Staged, header, shared.matching)?;
            assert!(peer.needs_connections());
            peer.silent[Way::Long(Route::Staged).index()] = true;
            assert!(!peer.needs_connections());
            peer.openings[Way::Part(Route::Direct).index()] = {
                let (listener, handle) = shared.net.listen(0)?;
                let connecting = Some(shared.connector.begin(shared.net, 0, Box::new(handle)));
                Opening::Requested { listener, connecting }
            };
            assert!(peer.needs_connections(), "it may be accepted");
            peer.silent[Way::Part(Route::Direct).index()] = true;
            assert!(!peer.needs_connections());
            peer.openings[Way::Part(Route::Direct).index()] = Opening::Closed;
            Ok(())
        };
        group.shared.lock().mesh.with(1, needs).unwrap();
        group.meet(&[]).unwrap();
    });
}

#[test]
fn a_long_message_comes_though_its_rank_goes_before_its_header_is_taken() {
    let last = |group: &Group, ()| {
        let mut state = group.shared.lock();
        let name = |tag| Name { scope: 0, tag, space: Space::MESSAGES, note: 0 };
        for (tag, bytes) in [(1, &SENT[..1]), (2, &SENT[..])] {
            let place = Place::reading(bytes);
            let op = state.mesh.send_with_next(0, name(tag), DataType::U8, place).unwrap();
            state.mesh.abandon(op);
        }
    };
    rank_1_leaves(connect_long, last, |group, turn, ()| {
        let mut state = group.shared.lock();
        let mesh = &mut state.mesh;
        turn.store(1, Ordering::Release);
        read_farewell(mesh);
        let end = Instant::now() + WAIT;
        while !mesh.peer(1).is_some_and(|peer| peer.receiver.has_rest()) {
            assert!(Instant::now() < end, "no slot with two messages comes");
            // A rank that waits for a peer takes one message a poll.
            mesh.poll(Some(1)).unwrap();
        }
        while turn.load(Ordering::Acquire) != 2 {
            assert!(Instant::now() < end, "rank 1 does not go");
            let bring_in = |peer: &mut Peer, shared: &mut Shared<'_>| {
                peer.long[Route::Staged as usize].bring_in(shared.registry)
            };
            mesh.with(1, bring_in).unwrap();
            mesh.hear().unwrap();
            std::thread::yield_now();
        }
        assert!(mesh.peer(1).is_some_and(|peer| peer.receiver.has_rest()), "the header is taken");
        drop(state);
        assert_eq!(group.recv_vec::<u8>(1, 1).unwrap().0, [7]);
        assert!(group.recv_vec::<u8>(1, 2).unwrap().0 == SENT);
    });
}
