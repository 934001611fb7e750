//! What ends with a rank that has left, and what does not.

use super::*;
use crate::loader::Net;
use crate::mesh::header::SMALL;
use crate::mesh::registry::Registry;
use crate::support::connected;

static SENT: [u8; SMALL + 1] = [7; SMALL + 1];

fn letter(op: OpId) -> Letter {
    let (kind, space) = (Kind::Short, Space::MESSAGES);
    let header = Header { kind, element: 0, scope: 0, tag: 0, len: 0, space, note: 0 };
    Letter { header, body: Place::empty(), op: Some(op) }
}

/// A peer with a send of long data in flight, of a part of a collective or of a message.
fn that_sends(route: Route, is_part: bool) -> (Peer, Matching, crate::loader::ReceiveComm) {
    let (start, end) = connected(&buffering(), |_| {});
    let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
    let (mut registry, place) = (Registry::default(), Place::reading(&SENT));
    if is_part {
        let sender = &mut peer.part_senders[route as usize];
        sender.open(start, 0);
        sender.push(place);
        assert!(sender.progress(&mut registry).unwrap());
    } else {
        let long = &mut peer.long[route as usize];
        long.open_send(start, 0);
        long.queue(place, matching.begin());
        assert!(long.push_out(&mut registry).unwrap());
    }
    (peer, matching, end)
}

#[test]
fn the_connection_that_has_failed_is_given_up_alone_once_its_rank_is_known_to_have_left() {
    let given_up = |failing| {
        let mut peer = Peer::new(1, 0, 0);
        peer.failing = failing;
        peer.leaves();
        (peer.left(), peer.silent, peer.is_closed)
    };
    let none = [false; Way::ALL.len()];
    for way in Way::ALL {
        let mut silent = none;
        silent[way.index()] = true;
        assert_eq!(given_up(Some(Failing::In(way))), (true, silent, false), "{way:?}");
    }
    assert_eq!(given_up(Some(Failing::Out)), (true, none, true));
    for failing in [Failing::Opening, Failing::Ahead] {
        assert_eq!(given_up(Some(failing)), (true, none, false), "{failing:?}");
    }
    assert_eq!(given_up(None), (false, none, false), "it is not known which one has failed");
}

#[test]
fn a_way_of_parts_is_not_given_up_for_a_receive_that_was_posted_ahead_and_failed_before_the_news() {
    let (start, end) = connected(&keeping(), |_| {});
    let (route, way) = (Route::Staged, Way::Part(Route::Staged));
    let (mut peer, mut registry) = (Peer::new(1, 0, 0), Registry::default());
    let mut sender = Lane::of_parts(route, 0, 1);
    sender.open(start, 0);
    sender.push(Place::reading(&[7_u8]));
    let receiver = &mut peer.part_receivers[route as usize];
    receiver.open(end, 0).unwrap();
    let mut came = [0_u8];
    let number = receiver.expect(Place::writing(&mut came), false);
    let end = Instant::now() + WAIT;
    while !sender.is_idle() {
        assert!(Instant::now() < end, "the part is not sent");
        sender.progress(&mut registry).unwrap();
    }
    drop(sender);
    peer.failing = Some(Failing::In(way));
    while receiver.progress(&mut registry).is_ok() {
        assert!(Instant::now() < end, "the end of the connection is no error");
        // Nothing else is due, so that the receiver is polled no more once the part is in its place.
        assert!(receiver.done() < number, "the slot of the part has a receive");
    }
    assert_eq!((receiver.done(), came), (number, [7]));
    peer.leaves();
    assert!(peer.left() && !peer.silent[way.index()]);
}

/// Its farewell counts the slots that were sent.
#[test]
fn messages_that_wait_for_slots_are_lost_as_this_rank_leaves() {
    let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
    let op = matching.begin();
    peer.sender.push(letter(op));
    peer.drop_queued(&mut matching);
    assert!(peer.has_sent_slots());
    assert!(matches!(matching.ended(op), Some(Err(GroupError::PeerLost { rank: 1, .. }))));
}

#[test]
fn operations_that_have_not_ended_end_with_the_connections_of_their_rank() {
    let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
    let ops = [(); 3].map(|()| matching.begin());
    peer.sender.push(letter(ops[0]));
    peer.is_lost(Way::Small, true);
    assert!(peer.is_closed());
    peer.close_ended(&mut Registry::default(), &mut matching);
    assert!(peer.has_sent_slots(), "its memory may be used again");
    assert!(matches!(matching.ended(ops[0]), Some(Err(GroupError::PeerLost { rank: 1, .. }))));
    peer.sender.push(letter(ops[1]));
    peer.long[Route::Staged as usize].queue(Place::reading(&SENT), ops[2]);
    assert_eq!(peer.into_operations(), ops[1..]);
}

#[test]
fn long_parts_that_are_due_keep_their_connections_and_registrations_when_others_close() {
    let (_start, end) = connected(&buffering(), |_| {});
    let (listener, _) = Net::init(&buffering(), 1).unwrap().listen(0).unwrap();
    let mut peer = Peer::new(1, 0, 0);
    let [direct, staged] = Route::ALL.map(|route| Way::Part(route).index());
    peer.comms = vec![3, 5];
    peer.part_receivers[Route::Direct as usize].open(end, 5).unwrap();
    peer.openings[direct] = Opening::Open;
    peer.openings[staged] = Opening::Requested { listener, connecting: None };
    let last = LastPart { route: Route::Direct, scope: 0, number: 1, note: 2, ordinal: 1 };
    peer.last_part = Some(last);
    let lanes = peer.take_lanes(0);
    assert_eq!((lanes.comms(), peer.comms()), (&[3][..], &[5][..]));
    assert!(peer.is_open(Way::Part(Route::Direct)).1);
    assert!(peer.is_opening && peer.openings[staged].is_requested());
    assert_eq!(peer.silent, Way::ALL.map(|way| !matches!(way, Way::Part(_))));
    assert_eq!(peer.unexpected_part(), Some(last));
}

#[test]
fn a_part_to_a_rank_that_has_left_is_lost_only_if_no_connection_may_complete_it() {
    for route in Route::ALL {
        let (mut peer, way) = (Peer::new(1, 0, 0), Way::Part(route));
        peer.part_senders[route as usize].push(Place::reading(&SENT));
        assert!(!peer.is_lost(way, false), "it may connect");
        assert!(peer.is_lost(way, true));
        // A collective that waits for a short part of the same rank ends, too, unless the short part may come.
        assert!(peer.is_lost(Way::Small, true));
        peer.silent[Way::Small.index()] = false;
        peer.openings[Way::Small.index()] = Opening::Open;
        assert!(!peer.is_lost(Way::Small, true));
        let mut peer = Peer::new(1, 0, 0);
        let (start, _end) = connected(&buffering(), |_| {});
        peer.sender.open(start, 0).unwrap();
        peer.part_senders[route as usize].push(Place::reading(&SENT));
        assert!(peer.is_lost(way, true), "another connection is of no use");
        let (mut peer, ..) = that_sends(route, true);
        assert!(!peer.is_lost(way, true), "the plugin may complete it");
        // The state after an error of a send.
        peer.is_closed = true;
        assert!(peer.is_lost(way, true));
    }
}

#[test]
fn messages_to_a_rank_that_has_left_are_given_up_if_they_have_no_connection_and_none_is_in_flight()
{
    let open = |peer: &mut Peer| {
        let (start, end) = connected(&buffering(), |_| {});
        peer.sender.open(start, 0).unwrap();
        end
    };
    for (route, is_part) in Route::ALL.into_iter().flat_map(|route| [(route, true), (route, false)])
    {
        let (mut peer, mut matching, _end) = that_sends(route, is_part);
        peer.sender.push(letter(matching.begin()));
        peer.is_lost(Way::Small, true);
        peer.close_ended(&mut Registry::default(), &mut matching);
        assert!(!peer.is_closed && !peer.has_sent_slots(), "the memory of a long one is in use");
        // The state after an error of a send.
        peer.is_closed = true;
        peer.close_ended(&mut Registry::default(), &mut matching);
        assert!(peer.has_sent_slots() && !peer.long[route as usize].is_in_flight());
        assert!(!peer.part_senders[route as usize].is_in_flight());
    }
    let (mut peer, mut matching) = (Peer::new(1, 0, 0), Matching::default());
    let _end = open(&mut peer);
    peer.sender.push(letter(matching.begin()));
    peer.is_lost(Way::Small, true);
    assert!(!peer.is_closed && !peer.has_sent_slots(), "it leaves by a connection that is open");
    let (start, _other) = connected(&buffering(), |_| {});
    peer.long[Route::Direct as usize].open_send(start, 0);
    peer.long[Route::Direct as usize].queue(Place::reading(&SENT), matching.begin());
    peer.is_lost(Way::Small, true);
    assert!(!peer.is_closed, "a long one leaves, too");
    peer.long[Route::Staged as usize].queue(Place::reading(&SENT), matching.begin());
    peer.is_lost(Way::Small, true);
    assert!(peer.is_closed, "another long one has none");
    let (mut peer, mut matching, _sent) = that_sends(Route::Direct, false);
    let _end = open(&mut peer);
    peer.long[Route::Staged as usize].queue(Place::reading(&SENT), matching.begin());
    peer.is_lost(Way::Small, true);
    assert!(!peer.is_closed, "another long one is in flight");
}

/// Their callers have the error, and may use the memory again.
#[test]
fn nothing_is_posted_for_a_rank_that_has_left_after_an_error_of_a_send() {
    let turn = Arc::<AtomicUsize>::default();
    ranks(&buffering(), 2, move |group| {
        let other = 1 - group.rank();
        group.sendrecv(&[1_u8; LONG], other, &mut [0; LONG], other, 1).unwrap();
        group.broadcast(&mut vec![0_u8; PART], 0).unwrap();
        group.barrier().unwrap();
        if group.rank() == 1 {
            return await_turn(&turn, 1);
        }
        let send = |peer: &mut Peer, shared: &mut Shared<'_>| {
            let staged = Route::Staged as usize;
            peer.push_out(shared)?;
            peer.is_closed = true;
            let (sent, op) = (peer.sender.sent(), shared.matching.begin());
            peer.sender.push(letter(op));
            peer.long[staged].queue(Place::reading(&SENT), op);
            peer.part_senders[staged].push(Place::reading(&SENT));
            assert!(!peer.push_out(shared)?);
            peer.send_queued(shared)?;
            peer.attend(shared)?;
            assert!(!peer.long[staged].is_in_flight() && !peer.part_senders[staged].is_in_flight());
            assert_eq!(peer.sender.sent(), sent);
            Ok(())
        };
        let mut state = group.shared.lock();
        state.mesh.until(None, |mesh| mesh.peer(1).is_some_and(|peer| peer.has_sent())).unwrap();
        state.mesh.with(1, send).unwrap();
        turn.store(1, Ordering::Release);
    });
}
