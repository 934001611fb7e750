//! The progress loop against a stand-in for its environment.

use super::stand_in::{StandIn, parameters};
use super::*;
use crate::connection::Submit;
use crate::counts::PeerCounts;
use crate::flow::{self, Flow};
use crate::frame::{Advert, Frame, Keys, Lines, RailNote, RailState, Refusal};
use crate::ids::{Epoch, Generation, PacketNumber};
use crate::letter::{Body, Letter, Query, RailNumbers, Status};
use crate::line::Line;
use crate::message::Source;
use crate::send::{Outgoing, SendFlow};
use crate::terms::Terms;

fn ms(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// A sender over two rails, all of whose messages take the FIN path in one part.
fn sender(own: Name) -> Flow {
    Flow::Send(SendFlow::new(Terms::of_two_rails(own)))
}

/// An endpoint with one channel over two data rails, and a sender on it in the only slot.
fn endpoint_with_sender() -> (ProgressLoop<Flow>, StandIn, ChannelId, Name) {
    let (mut endpoint, hands) = (ProgressLoop::new(1), StandIn::default());
    let channel = endpoint.add_channel(parameters(2)).unwrap();
    let name = endpoint.vacant().unwrap();
    assert!(endpoint.connect(name, channel, sender(name), ms(0)));
    (endpoint, hands, channel, name)
}

fn hears(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, slot: Slot, frame: &Frame) {
    let heard = endpoint
        .with(hands, slot, ms(1), |flow, account| flow.received(frame, account, ms(1)).is_ok());
    assert_eq!(heard, Some(true));
}

/// A connection's peer has a receive for the message that is returned.
fn advertised(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, to: Name) -> Outgoing {
    let advert = Advert {
        to,
        line: Line::FIRST,
        tag: 0,
        address: 0,
        len: 1000,
        cut: false,
        host: false,
        ends_group: true,
        keys: Keys::new(&[0, 0]).unwrap(),
    };
    hears(endpoint, hands, to.slot, &Frame::Advert(advert));
    Outgoing { tag: 0, len: 1000, source: Source::default(), host: false }
}

/// A write without an immediate is in no count, and may land though it has failed. So a receiver that read CLOSE first would
/// free its memory.
#[test]
fn close_leaves_behind_the_down_of_a_rail_whose_write_has_just_failed() {
    let (mut endpoint, mut hands, channel, Name { slot, generation }) = endpoint_with_sender();
    hands.meet(channel);
    endpoint.progress(&mut hands, ms(0));
    let message = advertised(&mut endpoint, &mut hands, Name { slot, generation });
    let submitted = endpoint.submit(&mut hands, slot, &message, ms(1));
    assert!(matches!(submitted, Ok(Submit::Parts { .. })));
    let write = hands.writes[0];
    endpoint.with(&mut hands, slot, ms(1), Flow::close);
    let event = flow::Event::WriteFailed { message: write.message, part: write.part, code: 5 };
    hands.events.push_back(Event::Connection { slot, generation, event });
    for now in 2..4 {
        endpoint.progress(&mut hands, ms(now));
    }
    assert!(
        matches!(
            hands.frames[..],
            [Frame::Rail(RailNote { state: RailState::Down(_), .. }), Frame::Close(_)]
        ),
        "{:?}",
        hands.frames
    );
}

/// Only the first says something about its rail.
#[test]
fn a_rail_is_lost_that_refuses_every_part_for_long_and_none_is_where_parts_have_no_room() {
    for (not, is_lost) in [(Acted::Refused, true), (Acted::NoRoom, false)] {
        let (mut endpoint, mut hands, channel, Name { slot, generation }) = endpoint_with_sender();
        hands.meet(channel);
        endpoint.progress(&mut hands, ms(0));
        let message = advertised(&mut endpoint, &mut hands, Name { slot, generation });
        hands.acts_not = Some(not);
        let submitted = endpoint.submit(&mut hands, slot, &message, ms(1));
        assert!(matches!(submitted, Ok(Submit::Parts { .. })));
        (2..1000).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let down = |frame: &Frame| {
            matches!(frame, Frame::Rail(RailNote { state: RailState::Down(_), .. }))
        };
        assert_eq!(hands.frames.iter().any(down), is_lost, "{not:?}");
        assert!(hands.writes.is_empty());
        hands.acts_not = None;
        endpoint.progress(&mut hands, ms(1000));
        assert_eq!(hands.writes.len(), 1, "{not:?}");
    }
}

#[test]
fn the_slot_of_a_connection_is_free_though_its_channel_failed_before_its_frames_left() {
    let (mut endpoint, mut hands, channel, name) = endpoint_with_sender();
    let lines = Lines { to: name, first: Line::FIRST, set: 1 };
    hears(&mut endpoint, &mut hands, name.slot, &Frame::Withdraw(lines));
    endpoint.progress(&mut hands, ms(2));
    assert!(hands.frames.is_empty(), "the peer has lent no inbox");
    endpoint.fail(channel, Cause::NoRail);
    endpoint.progress(&mut hands, ms(3));
    assert!(endpoint.connection(name.slot).is_some_and(Flow::is_over));
    assert!(endpoint.disconnect(name.slot).is_some());
    let next = Name { generation: Generation::new(1), ..name };
    assert_eq!(endpoint.vacant(), Some(next));
}

/// The peer answers all the while.
#[test]
fn a_channel_without_memory_for_a_new_inbox_or_shadow_fails_after_the_peer_timeout() {
    const STEP: u64 = 10;
    let timeout = u64::try_from(parameters(2).peer_timeout.as_millis()).unwrap();
    let query = Query {
        epoch: Epoch(1),
        completed: PacketNumber::new(1),
        lost: true,
        rail: 0,
        counts: PeerCounts::default(),
        about: None,
    };
    for (of_inbox, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut endpoint, mut hands, channel, _) = endpoint_with_sender();
        hands.meet(channel);
        (0..2).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        (hands.starves, hands.asked) = (true, 0);
        let mut alive = 0;
        for step in 0..timeout / STEP + 10 {
            // There is some for a moment, and a later loss finds none.
            let half = timeout / STEP / 2;
            hands.starves = !ends || step != half;
            let epoch = Epoch(1 + u32::from(step > half && ends));
            if of_inbox {
                let body = Body::Query(Query { epoch, ..query });
                let rails = RailNumbers::default();
                let letter = Letter { key: 1, rails, body };
                hands.events.push_back(Event::Letter { channel, letter, proven: false });
            } else {
                hands.lends(channel, Epoch(1 + epoch.0));
            }
            endpoint.progress(&mut hands, ms(2 + STEP * step));
            let channel = endpoint.channel(channel).unwrap();
            if let Some(cause) = channel.failure().or_else(|| channel.is_failing()) {
                assert_eq!(cause, Cause::NoMemory);
                break;
            }
            alive = STEP * step;
        }
        assert!(ends || (timeout - STEP..=timeout + STEP).contains(&alive), "{alive} ms");
        assert!(!ends || alive > timeout, "there was memory again: {alive} ms");
        let asked = u64::from(hands.asked);
        assert!(!of_inbox || ends || asked <= timeout / 50 + 1, "{asked} times");
    }
}

/// A peer has one unanswered OPEN in a slot at most.
#[test]
fn a_channel_fails_whose_peer_makes_more_refusals_due_than_it_has_slots() {
    let (mut endpoint, _, channel, to) = endpoint_with_sender();
    let refused = Refused { to, why: Refusal::Busy, detail: 0 };
    for _ in 0..Slot::COUNT {
        endpoint.refuse(channel, refused);
    }
    assert!(endpoint.channel(channel).is_some_and(Channel::is_alive));
    endpoint.refuse(channel, refused);
    let failing = endpoint.channel(channel).and_then(Channel::is_failing);
    assert_eq!(failing, Some(Cause::Connection));
    assert_eq!(endpoint.peers[0].refusals.len(), Slot::COUNT);
}

/// For stall reports: how long the peer was silent, and what it has last said, in time in which this endpoint was polled.
#[test]
fn a_loop_asks_for_a_peers_progress_in_its_next_poll_and_keeps_the_answer_for_a_while() {
    let (mut endpoint, mut hands, channel, Name { slot, .. }) = endpoint_with_sender();
    hands.meet(channel);
    endpoint.progress(&mut hands, ms(0));
    assert!(hands.letters.pop().is_some_and(|letter| matches!(letter.body, Body::Hello(_))));
    endpoint.progress(&mut hands, ms(1));
    assert_eq!(hands.letters.len(), 0);
    endpoint.query_progress(channel, Some(slot));
    endpoint.progress(&mut hands, ms(2));
    let letters: Vec<_> = hands.letters.drain(..).map(|letter| letter.body).collect();
    assert!(
        matches!(letters[..], [Body::Query(Query { about: Some(_), .. })]),
        "the peer's name of the connection: {letters:?}"
    );
    let status = Status {
        epoch: Epoch(1),
        consumed: PacketNumber::new(0),
        asked: PacketNumber::new(0),
        counts: PeerCounts::default(),
        waits: false,
        failed: false,
        idle_ms: 30,
        about: None,
    };
    let letter = Letter { key: 1, rails: RailNumbers::default(), body: Body::Status(status) };
    hands.events.push_back(Event::Letter { channel, letter, proven: false });
    endpoint.progress(&mut hands, ms(5));
    let heard_at = endpoint.polled_time();
    for now in [6, 7] {
        endpoint.progress(&mut hands, ms(now));
    }
    assert_eq!(endpoint.polled_time().since(heard_at), Duration::from_millis(2));
    let report = |ago| endpoint.peer_report(channel, Duration::from_millis(ago));
    assert_eq!(report(2).map(|report| report.idle), Some(Duration::from_millis(30)));
    assert!(report(1).is_none(), "it is older");
}
