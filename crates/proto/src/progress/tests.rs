//! The progress loop against a stand-in for its environment.

use super::stand_in::{StandIn, parameters};
use super::*;
use crate::bound::{
    INBOXES_PER_POLL, KEEPER_IDLE, KEEPER_IDLE_MAX, KEEPER_LENT, KEEPER_PENDING, KEEPER_WAITS,
    RAIL_ANSWER_GAP, RAIL_CHECK, RAIL_CONNECTS, RAIL_HANGS, RAIL_LAST, RAIL_REST, RAIL_SILENT,
};
use crate::capabilities::ImmediateWidth;
use crate::channel::{RailNews, WriteId, Written};
use crate::connection::Submit;
use crate::counts::PeerCounts;
use crate::fault::Fault;
use crate::flow::{self, Flow};
use crate::frame::{
    Advert, Fin, FinStatus, Frame, Inline, Lines, Offer, Opened, RailNote, RailPosts, RailState,
    Refusal,
};
use crate::ids::{Epoch, Generation, PacketNumber};
use crate::immediate::Immediate;
use crate::letter::{About, Body, Letter, Query, RailNumbers, Status, Trial};
use crate::line::Line;
use crate::message::{MessageId, Source};
use crate::rail_set::RailSet;
use crate::receive::{Posting, Receive, ReceiveFlow, ReceivePoll, Tagged};
use crate::send::{Outgoing, PartWrite, SendFlow, SendPoll};
use crate::stall::ConnectionState;
use crate::terms::{InlineLimits, Terms};

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

/// The same at 5 ms, when both ends know each other's inboxes and nothing is pending.
fn settled_with(parameters: Parameters) -> (ProgressLoop<Flow>, StandIn, ChannelId, Name) {
    let (mut endpoint, mut hands) = (ProgressLoop::new(2), StandIn::default());
    let channel = endpoint.add_channel(parameters).unwrap();
    let name = endpoint.vacant().unwrap();
    assert!(endpoint.connect(name, channel, sender(name), ms(0)));
    endpoint.progress(&mut hands, ms(0));
    hands.knows(channel);
    (1..=5).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    hands.letters.clear();
    (endpoint, hands, channel, name)
}

fn settled() -> (ProgressLoop<Flow>, StandIn, ChannelId, Name) {
    settled_with(parameters(2))
}

/// Adds a receiver to the same channel.
fn add_receiver(endpoint: &mut ProgressLoop<Flow>, channel: ChannelId) -> Name {
    let name = endpoint.vacant().unwrap();
    let receiver = Flow::Receive(ReceiveFlow::new(Terms::of_two_rails(name)));
    assert!(endpoint.connect(name, channel, receiver, ms(5)));
    name
}

/// Adds another sender to the same channel.
fn add_sender(endpoint: &mut ProgressLoop<Flow>, channel: ChannelId) -> Name {
    let name = endpoint.vacant().unwrap();
    assert!(endpoint.connect(name, channel, sender(name), ms(5)));
    name
}

fn at(ms: u64) -> Now {
    let time = Duration::from_millis(ms);
    Now { clock: Moment::default().plus(time), polled: PolledTime::START.plus(time) }
}

fn withdraw(to: Name) -> Frame {
    Frame::Withdraw(Lines { to, first: Line::FIRST, set: 1 })
}

fn is_down(frame: &Frame) -> bool {
    matches!(frame, Frame::Rail(RailNote { state: RailState::Down(_), .. }))
}

fn hears(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, slot: Slot, frame: &Frame) {
    let heard = endpoint
        .with(hands, slot, ms(1), |flow, account| flow.received(frame, account, ms(1)).is_ok());
    assert_eq!(heard, Some(true));
}

/// A connection's peer has a receive for the message that is returned.
fn advertised(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, to: Name) -> Outgoing {
    advertise(endpoint, hands, to, 1000);
    Outgoing { tag: 0, len: 1000, source: Source::default(), host: false }
}

fn advertise(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, to: Name, len: u64) {
    let advert = Advert::of_line(to, Line::FIRST, len, &[0, 0]);
    hears(endpoint, hands, to.slot, &Frame::Advert(advert));
}

/// A write without an immediate is in no count, and may land although it has failed. A receiver that read CLOSE first would
/// free the memory too early.
#[test]
fn close_leaves_after_the_down_of_a_rail_whose_write_has_just_failed() {
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

/// A rail that has accepted parts and now refuses them is lost sooner than one that has accepted none, which may be connecting.
#[test]
fn a_rail_that_refuses_every_part_for_long_is_lost_and_none_is_lost_for_lack_of_room() {
    let connects = u64::try_from(RAIL_CONNECTS.as_millis()).unwrap();
    for (not, has_accepted, until, is_lost) in [
        (Acted::Refused, true, 1000, true),
        (Acted::Refused, false, connects, false),
        (Acted::Refused, false, connects + 500, true),
        (Acted::NoRoom, true, connects + 500, false),
    ] {
        let (mut endpoint, mut hands, channel, Name { slot, generation }) = endpoint_with_sender();
        hands.meet(channel);
        endpoint.progress(&mut hands, ms(0));
        let message = advertised(&mut endpoint, &mut hands, Name { slot, generation });
        for rail in (0..2).filter(|_| has_accepted) {
            let rails = &mut endpoint.peers[0].account.rails;
            rails.posted(rail, true);
            assert!(rails.ended(rail, true, true));
        }
        hands.acts_not = Some(not);
        let submitted = endpoint.submit(&mut hands, slot, &message, ms(1));
        assert!(matches!(submitted, Ok(Submit::Parts { .. })));
        (2..until).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let case = format!("{not:?} after {until} ms, has accepted: {has_accepted}");
        assert_eq!(hands.frames.iter().any(is_down), is_lost, "{case}");
        assert!(hands.writes.is_empty());
        hands.acts_not = None;
        endpoint.progress(&mut hands, ms(until));
        assert_eq!(hands.writes.len(), 1, "{case}");
    }
}

#[test]
fn the_slot_of_a_connection_is_free_though_its_channel_failed_before_its_frames_left() {
    let (mut endpoint, mut hands, channel, name) = endpoint_with_sender();
    hears(&mut endpoint, &mut hands, name.slot, &withdraw(name));
    endpoint.progress(&mut hands, ms(2));
    assert!(hands.frames.is_empty(), "the peer has lent no inbox");
    endpoint.fail(channel, Cause::NoRail);
    endpoint.progress(&mut hands, ms(3));
    assert!(endpoint.connection(name.slot).is_some_and(Flow::is_over));
    assert!(endpoint.disconnect(name.slot).is_some());
    let next = Name { generation: Generation::new(1), ..name };
    assert_eq!(endpoint.vacant(), Some(next));
}

/// The peer keeps answering.
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
            // There is memory for a moment, and none at a later loss.
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

/// It would not learn of the end.
#[test]
fn no_connection_begins_on_a_channel_that_ends_or_has_failed() {
    let ends: [fn(&mut ProgressLoop<Flow>, ChannelId); 2] = [
        |endpoint, channel| endpoint.end(channel),
        |endpoint, channel| endpoint.fail(channel, Cause::NoRail),
    ];
    for ends in ends {
        let (mut endpoint, _, channel, first) = settled();
        ends(&mut endpoint, channel);
        let name = endpoint.vacant().unwrap();
        for channel in [channel, ChannelId(1), ChannelId(9)] {
            assert!(!endpoint.connect(name, channel, sender(name), ms(6)), "{channel:?}");
        }
        assert_eq!(
            (endpoint.slots_of(channel), endpoint.vacant()),
            (&[first.slot][..], Some(name))
        );
        assert!(endpoint.slots_of(ChannelId(9)).is_empty());
    }
}

/// A peer has at most one unanswered OPEN in a slot.
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

/// For stall reports: how long the peer was silent, and its last answer. Only time in which this endpoint was polled counts.
#[test]
fn a_loop_queries_a_peers_progress_in_its_next_poll_and_keeps_the_answer_for_a_while() {
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
    hands.answers(channel, |status| status.idle_ms = 30);
    endpoint.progress(&mut hands, ms(5));
    let heard_at = endpoint.polled_time();
    for now in [6, 7] {
        endpoint.progress(&mut hands, ms(now));
    }
    assert_eq!(endpoint.polled_time().since(heard_at), Duration::from_millis(2));
    let report = |ago| endpoint.peer_report(channel, Duration::from_millis(ago));
    assert_eq!(report(2).map(|report| report.idle), Some(Duration::from_millis(30)));
    assert!(report(1).is_none(), "the answer is older");
    // Other queries name no connection.
    let about = |name| About { name, state: ConnectionState::default() };
    let named = endpoint.table.name(slot);
    hands.answers(channel, |status| status.about = Some(about(named)));
    endpoint.progress(&mut hands, ms(8));
    hands.answers(channel, |_| {});
    endpoint.progress(&mut hands, ms(10));
    let report = |ago| endpoint.peer_report(channel, Duration::from_millis(ago)).unwrap();
    assert_eq!(report(2).about.map(|(_, about)| about), Some(about(named)));
    assert_eq!(report(1).about, None, "what it said of the connection is older");
}

/// An endpoint may have a thousand channels. `troubled`: another one of them has a lost rail that needs each poll.
#[test]
fn a_poll_reads_the_inbox_of_a_channel_that_has_nothing_to_do_once() {
    let (mut endpoint, mut hands, _, _) = settled();
    endpoint.add_channel(parameters(1)).unwrap();
    endpoint.progress(&mut hands, ms(6));
    endpoint.peers[1].channel.fail(Cause::NoRail);
    (7..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    for troubled in [false, true] {
        endpoint.progress(&mut hands, ms(9));
        hands.looks = 0;
        for micros in [20, 40, 60, 80, 100] {
            endpoint.troubled = troubled;
            endpoint.progress(&mut hands, Moment::from_nanos(9_000_000 + 1000 * micros));
        }
        assert_eq!(hands.looks, 5, "troubled: {troubled}");
    }
}

#[test]
fn a_packet_that_has_landed_is_read_by_the_next_poll() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let micros = |micros: u64| Moment::from_nanos(6_000_000 + 1000 * micros);
    let of =
        |endpoint: &ProgressLoop<Flow>| endpoint.channel(channel).unwrap().shadow().acknowledged();
    endpoint.progress(&mut hands, micros(0));
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(name)]);
    endpoint.progress(&mut hands, micros(20));
    assert!(matches!(hands.frames[..], [Frame::Withdrawn(_)]), "{:?}", hands.frames);
    endpoint.progress(&mut hands, micros(40));
    hands.acknowledges(endpoint.channel(channel).unwrap(), PacketNumber::new(1));
    endpoint.progress(&mut hands, micros(60));
    assert_eq!(of(&endpoint), PacketNumber::new(1));
}

#[test]
fn a_packet_that_was_refused_is_posted_by_the_next_poll() {
    let (mut endpoint, mut hands, _, name) = settled();
    let micros = |micros: u64| Moment::from_nanos(6_000_000 + 1000 * micros);
    hears(&mut endpoint, &mut hands, name.slot, &withdraw(name));
    hands.posts_not = true;
    [0, 20].into_iter().for_each(|now| endpoint.progress(&mut hands, micros(now)));
    assert_eq!(hands.frames, []);
    hands.posts_not = false;
    endpoint.progress(&mut hands, micros(40));
    assert!(matches!(hands.frames[..], [Frame::Withdrawn(_)]), "{:?}", hands.frames);
}

#[test]
fn an_inbox_is_lent_by_another_rail_in_the_poll_in_which_packets_have_failed() {
    let (mut endpoint, mut hands, channel, name) =
        settled_with(Parameters { rails: 2, ..parameters(2) });
    let micros = |micros: u64| Moment::from_nanos(6_000_000 + 1000 * micros);
    for now in [0, 20] {
        hears(&mut endpoint, &mut hands, name.slot, &withdraw(name));
        endpoint.progress(&mut hands, micros(now));
    }
    assert_eq!((hands.frames.len(), hands.letters.len()), (2, 0));
    for number in [1, 2] {
        let what = Written::Packet(PacketNumber::new(number));
        let write = WriteId { epoch: Epoch(1), what };
        hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: false });
    }
    endpoint.progress(&mut hands, micros(40));
    let lends = |letter: &Letter| matches!(letter.body, Body::Hello(_));
    assert!(hands.letters.iter().any(lends), "{:?}", hands.letters);
}

#[test]
fn a_channel_that_fails_in_a_poll_is_ended_by_the_next_one() {
    for of_connection in [false, true] {
        let (mut endpoint, mut hands, channel, to) = settled();
        let micros = |micros: u64| Moment::from_nanos(6_000_000 + 1000 * micros);
        endpoint.peers[0].stirred = true;
        endpoint.progress(&mut hands, micros(0));
        let invalid = if of_connection {
            Frame::Done { to, lines: Line::FIRST.plus(1) }
        } else {
            Frame::Rail(RailNote { rail: 0, state: RailState::Fenced })
        };
        hands.says(endpoint.channel(channel).unwrap(), &[invalid]);
        endpoint.progress(&mut hands, micros(20));
        let its = endpoint.channel(channel).unwrap();
        assert_eq!((its.is_failing(), its.failure()), (Some(Cause::Connection), None));
        endpoint.progress(&mut hands, micros(40));
        assert_eq!(endpoint.channel(channel).unwrap().failure(), Some(Cause::Connection));
    }
}

/// Its last packets may not have arrived. The write of a part that completes later says nothing, since the peer may have gone.
#[test]
fn what_has_begun_fails_with_a_channel_whose_peer_falls_silent_after_its_end() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let message = advertised(&mut endpoint, &mut hands, name);
    let submitted = endpoint.submit(&mut hands, name.slot, &message, ms(6));
    let Ok(Submit::Parts { message, .. }) = submitted else { panic!("{submitted:?}") };
    let poll = |endpoint: &mut ProgressLoop<Flow>| match endpoint.connection_mut(name.slot) {
        Some(Flow::Send(flow)) => flow.poll(message),
        other => panic!("{other:?}"),
    };
    hands.says(endpoint.channel(channel).unwrap(), &[Frame::End]);
    let quiet = rest(&mut endpoint, &mut hands, 6, 74);
    assert_eq!(poll(&mut endpoint), SendPoll::Pending, "it may still complete");
    rest(&mut endpoint, &mut hands, quiet, 2);
    let its = endpoint.channel(channel).unwrap();
    assert!(its.is_over() && !its.is_settled(), "{its:?}");
    assert_eq!(poll(&mut endpoint), SendPoll::Failed(Fault::Ended));
}

#[test]
fn each_connection_that_a_packet_has_frames_for_answers() {
    let (mut endpoint, mut hands, channel, first) = settled();
    let second = add_sender(&mut endpoint, channel);
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(first), withdraw(second)]);
    (6..8).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert!(
        matches!(hands.frames[..], [Frame::Withdrawn(_), Frame::Withdrawn(_)]),
        "{:?}",
        hands.frames
    );
}

#[test]
fn refusals_leave_in_the_next_poll_and_all_of_them_before_end() {
    for ends in [false, true] {
        let (mut endpoint, mut hands, channel, to) = settled();
        let refused = Refused { to, why: Refusal::Busy, detail: 0 };
        (0..200).for_each(|_| endpoint.refuse(channel, refused));
        if ends {
            endpoint.end(channel);
        }
        endpoint.progress(&mut hands, ms(6));
        let (refusals, rest) = hands.frames.split_at(200);
        assert!(refusals.iter().all(|frame| *frame == Frame::Refused(refused)));
        assert_eq!(*rest, [Frame::End][..usize::from(ends)]);
    }
}

/// Of these frames a packet has room for 252 words, and for END behind them.
#[test]
fn frames_for_which_one_packet_is_too_short_leave_at_once_in_several_all_before_end() {
    let closes = |frame: &Frame| matches!(frame, Frame::Close(_));
    for (refusals, senders, lost) in [(200, 0, false), (0, 200, false), (126, 0, true)] {
        for ends in [false, true] {
            let (mut endpoint, mut hands, channels) = with_channels(1, 200);
            let (channel, slots) = (channels[0], endpoint.slots_of(channels[0]).to_vec());
            let refused = Refused { to: Name::default(), why: Refusal::Busy, detail: 0 };
            (0..refusals).for_each(|_| endpoint.refuse(channel, refused));
            for slot in &slots[..senders] {
                endpoint.with(&mut hands, *slot, ms(6), Flow::close);
            }
            if lost {
                endpoint.rail_lost(&mut hands, (0, 0), Cause::DataFailed { rail: 0 }, at(6));
            }
            if ends {
                endpoint.end(channel);
            }
            endpoint.send_urgent(&mut hands, slots[0], ms(6));
            let count = |is: fn(&Frame) -> bool| hands.frames.iter().filter(|one| is(one)).count();
            let left = [count(|one| matches!(one, Frame::Refused(_))), count(closes)];
            assert_eq!(left, [refusals, senders]);
            assert_eq!(hands.frames.iter().any(is_down), lost);
            let last = hands.frames.iter().position(|frame| *frame == Frame::End);
            assert_eq!(last, ends.then(|| hands.frames.len() - 1), "{:?}", hands.frames);
        }
    }
}

#[test]
fn a_refusal_leaves_at_once_although_the_frame_that_was_due_is_gone_with_its_connection() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let other = add_sender(&mut endpoint, channel);
    hears(&mut endpoint, &mut hands, other.slot, &withdraw(other));
    assert!(endpoint.disconnect(other.slot).is_some());
    let refused = Refused { to: other, why: Refusal::Busy, detail: 0 };
    endpoint.refuse(channel, refused);
    endpoint.send_urgent(&mut hands, name.slot, ms(6));
    assert_eq!(hands.frames, [Frame::Refused(refused)]);
}

/// NCCL may leave a communicator alone for hours, and the peer's process may be stopped meanwhile.
#[test]
fn a_channel_that_waits_for_nothing_sends_no_query_and_outlives_a_silent_peer() {
    let (mut endpoint, mut hands, channel, _) = settled();
    (5..200_000).step_by(50).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert!(hands.letters.is_empty(), "{:?}", hands.letters);
    assert!(endpoint.channel(channel).is_some_and(Channel::is_alive));
}

/// A connection waits for CLOSE, or a lost rail for the peer's frames about it.
#[test]
fn a_channel_that_waits_fails_if_its_peer_does_not_answer() {
    let note = |state| Frame::Rail(RailNote { rail: 0, state });
    let (down, fenced) = (note(RailState::Down(RailPosts::default())), note(RailState::Fenced));
    for (says, waits) in
        [(None, true), (Some(&[][..]), true), (Some(&[down]), true), (Some(&[down, fenced]), false)]
    {
        let (mut endpoint, mut hands, channel, name) =
            settled_with(Parameters { tries: false, ..parameters(2) });
        match says {
            None => endpoint.with(&mut hands, name.slot, ms(6), Flow::close).unwrap(),
            Some([]) => {
                let cause = Cause::DataFailed { rail: 0 };
                endpoint.rail_lost(&mut hands, (0, 0), cause, at(6));
            }
            Some(frames) => hands.says(endpoint.channel(channel).unwrap(), frames),
        }
        (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(hands.frames.iter().any(is_down), says.is_some(), "{:?}", hands.frames);
        let its = endpoint.channel(channel).unwrap();
        hands.acknowledges(its, its.shadow().next().plus(u32::MAX));
        (9..5009).step_by(50).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let silent = if waits { 4 } else { 0 };
        assert_eq!(endpoint.silence(channel).as_secs(), silent, "and some milliseconds");
        assert!(!endpoint.may_be_left(channel), "it may still answer");
        (5009..80_000).step_by(50).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let asks = |letter: &Letter| matches!(letter.body, Body::Query(_));
        assert_eq!(hands.letters.iter().any(asks), waits, "{says:?}");
        let failure = endpoint.channel(channel).unwrap().failure();
        assert_eq!(failure, waits.then_some(Cause::Silent), "{says:?}");
        assert_eq!(endpoint.may_be_left(channel), waits);
    }
}

/// The writes of these parts have completed. The only rail gets more time, since its loss fails the channel.
#[test]
fn a_rail_by_which_parts_do_not_arrive_is_lost_if_the_peer_answers() {
    for (data_rails, failover, expected) in
        [(2, true, RAIL_SILENT), (2, false, RAIL_LAST), (1, true, RAIL_LAST)]
    {
        let (mut endpoint, mut hands, channel, _) =
            settled_with(Parameters { failover, ..parameters(data_rails) });
        endpoint.peers[0].account.counts.completed.set(0, 1);
        let lost = (10..20_000).step_by(10).find(|now| {
            endpoint.progress(&mut hands, ms(*now));
            let asked = hands.letters.drain(..).any(|one| matches!(one.body, Body::Query(_)));
            if asked {
                hands.answers(channel, |_| {});
            }
            hands.frames.iter().any(is_down) || !endpoint.channel(channel).unwrap().is_alive()
        });
        let late = Duration::from_millis(lost.unwrap()).checked_sub(expected);
        assert!(late.is_some_and(|late| late < Duration::from_millis(200)), "{lost:?}");
        assert_eq!(endpoint.channel(channel).unwrap().is_alive(), expected == RAIL_SILENT);
    }
}

#[test]
fn a_peer_can_lose_only_rails_that_exist_and_fences_each_once() {
    let note = |rail, state| Frame::Rail(RailNote { rail, state });
    let down = |rail| note(rail, RailState::Down(RailPosts::default()));
    let fenced = note(0, RailState::Fenced);
    for (says, fails) in [
        (&[down(0), fenced][..], None),
        (&[down(0), fenced, fenced][..], Some(Cause::Connection)),
        (&[down(0), down(0)][..], Some(Cause::Connection)),
        (&[fenced][..], Some(Cause::Connection)),
        (&[down(2)][..], Some(Cause::RailDown { rail: 2 })),
        // The peer may have left both rails for other channels, and waits.
        (&[down(0), down(1)][..], None),
    ] {
        let (mut endpoint, mut hands, channel, _) = settled();
        hands.says(endpoint.channel(channel).unwrap(), says);
        (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(endpoint.channel(channel).unwrap().failure(), fails, "{says:?}");
    }
}

#[test]
fn a_lost_rail_is_back_once_each_end_has_offered_it_and_seen_the_others_trial() {
    returns(false);
}

/// A stopped peer brings no rail back.
#[test]
fn a_channel_without_rails_fails_when_none_has_come_back_for_too_long_while_the_peer_ran() {
    let note = |rail, state| Frame::Rail(RailNote { rail, state });
    let lost = |rail| {
        [RailState::Down(RailPosts::default()), RailState::Fenced].map(|state| note(rail, state))
    };
    for stopped in [0..0, 2000..32_000] {
        let (mut endpoint, mut hands, channel, _) = settled();
        hands.says(endpoint.channel(channel).unwrap(), &[lost(0), lost(1)].concat());
        let failed = (10..60_000).step_by(10).find(|now| {
            endpoint.progress(&mut hands, ms(*now));
            let asked = hands.letters.drain(..).any(|one| matches!(one.body, Body::Query(_)));
            if asked && !stopped.contains(now) {
                let last = endpoint.channel(channel).unwrap().shadow().next().plus(u32::MAX);
                hands.answers(channel, |status| status.consumed = last);
            }
            !endpoint.channel(channel).unwrap().is_alive()
        });
        endpoint.progress(&mut hands, ms(60_000));
        let failure = endpoint.channel(channel).unwrap().failure();
        assert_eq!(failure, Some(Cause::RailDown { rail: 1 }), "{stopped:?}");
        let ran = failed.unwrap() - stopped.count() as u64;
        let late = Duration::from_millis(ran).checked_sub(RAIL_LAST);
        assert!(late.is_none_or(|late| late < RAIL_ANSWER_GAP), "{ran} ms");
        assert!(Duration::from_millis(ran) + 2 * RAIL_ANSWER_GAP > RAIL_LAST, "{ran} ms");
    }
}

/// One packet of the peer says that it has seen our trial, and that it has lost the rail again.
#[test]
fn a_rail_may_be_back_and_lost_again_at_the_peer_between_two_polls() {
    returns(true);
}

/// The first rail is lost and comes back. `lost_again`: the peer has lost it again by then.
fn returns(lost_again: bool) {
    let (mut endpoint, mut hands, channel, _) = settled();
    let note = |state| Frame::Rail(RailNote { rail: 0, state });
    let mut now = 6;
    let mut hears = |endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, frames: &[Frame]| {
        if !frames.is_empty() {
            hands.says(endpoint.channel(channel).unwrap(), frames);
        }
        (now..now + 3).for_each(|now| endpoint.progress(hands, ms(now)));
        now += 3;
        std::mem::take(&mut hands.frames)
    };
    let fenced = note(RailState::Fenced);
    let down = note(RailState::Down(RailPosts::default()));
    assert_eq!(hears(&mut endpoint, &mut hands, &[down, fenced]), [down, fenced]);
    let rest = u64::try_from(RAIL_REST.as_millis()).unwrap();
    let mut said = Vec::new();
    (0..rest / 3 + 3).for_each(|_| said.extend(hears(&mut endpoint, &mut hands, &[])));
    let [Frame::Offer(ours)] = said[..] else { panic!("{said:?}") };
    assert_eq!((ours.rail, ours.round, ours.channel), (0, 1, 0));
    let theirs = Offer { channel: 4, target: 5, ..ours };
    assert_eq!(hears(&mut endpoint, &mut hands, &[Frame::Offer(theirs)]), []);
    assert_eq!(hands.trials, [theirs]);
    let seen = note(RailState::Seen { round: 1 });
    for (event, says) in [
        (Event::TrialEnded { channel, rail: 0, well: true }, &[][..]),
        (Event::TrialArrived { channel, rail: 0, round: 0 }, &[]),
        (Event::TrialArrived { channel, rail: 0, round: 1 }, &[seen]),
    ] {
        hands.events.push_back(event);
        assert_eq!(hears(&mut endpoint, &mut hands, &[]), says, "{event:?}");
    }
    let is_back = |endpoint: &ProgressLoop<Flow>| endpoint.peers[0].account.loads.is_open(0);
    let earlier = note(RailState::Seen { round: 0 });
    assert_eq!(hears(&mut endpoint, &mut hands, &[earlier]), []);
    assert!(!is_back(&endpoint));
    if lost_again {
        assert_eq!(hears(&mut endpoint, &mut hands, &[seen, down]), [down, fenced]);
    } else {
        assert_eq!(hears(&mut endpoint, &mut hands, &[seen]), []);
    }
    assert_eq!(is_back(&endpoint), !lost_again);
    assert!(endpoint.channel(channel).is_some_and(Channel::is_alive));
    assert_eq!(hands.trials.len(), 1);
}

/// A rail whose writes fail does not come back by itself.
#[test]
fn a_channel_that_has_lost_its_last_rail_waits_only_if_that_rail_works_and_may_return() {
    let (down, closing) = (Cause::RailDown { rail: 1 }, Cause::RailClosing { rail: 1 });
    for (tries, cause, waits) in [
        (true, down, true),
        (true, closing, true),
        (true, Cause::DataFailed { rail: 1 }, false),
        (true, Cause::DataHangs { rail: 1 }, false),
        (false, down, false),
        (false, closing, false),
    ] {
        let (mut endpoint, mut hands, channel, _) =
            settled_with(Parameters { tries, ..parameters(2) });
        endpoint.rail_lost(&mut hands, (0, 0), Cause::DataFailed { rail: 0 }, at(6));
        assert_eq!(endpoint.channel(channel).unwrap().is_failing(), None);
        endpoint.rail_lost(&mut hands, (0, 1), cause, at(6));
        let failing = endpoint.channel(channel).unwrap().is_failing();
        assert_eq!(failing, (!waits).then_some(cause), "tries: {tries}");
    }
}

/// The peer closes its end of the rail for another channel, by which our write there fails.
#[test]
fn a_write_fails_no_connection_if_the_peer_has_left_its_rail_which_is_the_last_one() {
    for leaves in [true, false] {
        let parameters = Parameters { tries: true, ..parameters(2) };
        let (mut endpoint, mut hands, channel, name) = settled_with(parameters);
        endpoint.rail_lost(&mut hands, (0, 0), Cause::DataFailed { rail: 0 }, at(6));
        let message = advertised(&mut endpoint, &mut hands, name);
        endpoint.submit(&mut hands, name.slot, &message, ms(6)).unwrap();
        let PartWrite { message, part, rail, .. } = hands.writes[0];
        assert_eq!(rail, 1);
        if leaves {
            let state = RailState::Down(RailPosts::default());
            let down = Frame::Rail(RailNote { rail, state });
            hands.says(endpoint.channel(channel).unwrap(), &[down]);
        }
        let Name { slot, generation } = name;
        let event = flow::Event::WriteFailed { message, part, code: 5 };
        hands.events.push_back(Event::Connection { slot, generation, event });
        (7..10).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let failed = endpoint.connection(slot).and_then(Flow::fault).is_some();
        let alive = endpoint.channel(channel).unwrap().is_alive();
        assert_eq!((failed, alive), (!leaves, leaves));
    }
}

/// The other channels of an endpoint have to leave a rail that is closed.
#[test]
fn a_lost_rail_is_closed_only_if_writes_do_not_end_or_parts_are_missing() {
    for (in_flight, missing, closes) in
        [(false, false, false), (true, false, true), (false, true, true)]
    {
        let (mut endpoint, mut hands, channel, _) = settled();
        if in_flight {
            endpoint.peers[0].account.rails.posted(0, true);
        }
        endpoint.rail_lost(&mut hands, (0, 0), Cause::DataFailed { rail: 0 }, at(6));
        (6..1000).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(!hands.closed.is_empty(), in_flight, "the peer has not sent what it posted");
        let parts = u32::from(missing);
        let state = RailState::Down(RailPosts { parts, uncounted: false });
        let down = Frame::Rail(RailNote { rail: 0, state });
        hands.says(endpoint.channel(channel).unwrap(), &[down]);
        (1000..1200).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(!hands.closed.is_empty(), closes, "{in_flight} {missing}");
    }
}

/// A message may wait for that write.
#[test]
fn a_rail_that_both_ends_have_fenced_is_closed_if_a_write_of_ours_does_not_end() {
    // The endpoint has other rails, too, which this channel does not use.
    let locals = std::array::from_fn(|at| 5 + crate::bits::low8(at as u64));
    let (mut endpoint, mut hands, channel, _) =
        settled_with(Parameters { locals, ..parameters(2) });
    endpoint.peers[0].account.rails.posted(0, true);
    let states = [RailState::Down(RailPosts::default()), RailState::Fenced];
    let says = states.map(|state| Frame::Rail(RailNote { rail: 0, state }));
    hands.says(endpoint.channel(channel).unwrap(), &says);
    (6..200).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert!(hands.closed.is_empty(), "the write may end");
    (200..220).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(hands.closed, [5]);
}

/// A rail that cannot be closed stays open while its writes may still land, so its loss may fail the channel.
#[test]
fn a_rail_whose_writes_do_not_complete_is_lost_if_the_peer_answers_and_late_if_it_cannot_be_closed()
{
    // The longer time is half of the peer timeout, and eight seconds at most.
    for (closes, timeout, answers, expected) in [
        (true, 75, true, Some(RAIL_HANGS)),
        (false, 75, true, Some(Duration::from_secs(8))),
        (false, 10, true, Some(Duration::from_secs(5))),
        (true, 75, false, None),
    ] {
        let peer_timeout = Duration::from_secs(timeout);
        let (mut endpoint, mut hands, channel, _) =
            settled_with(Parameters { closes, peer_timeout, ..parameters(2) });
        endpoint.peers[0].account.rails.posted(0, true);
        let mut lost = None;
        for now in (10..20_000).step_by(10) {
            endpoint.progress(&mut hands, ms(now));
            let asked = hands.letters.drain(..).any(|one| matches!(one.body, Body::Query(_)));
            if asked && answers {
                hands.answers(channel, |_| {});
            }
            if hands.frames.iter().any(is_down) {
                lost = Some(Duration::from_millis(now));
                break;
            }
        }
        let late = lost.zip(expected).map(|(lost, expected)| lost.saturating_sub(expected));
        assert_eq!(lost.is_some(), expected.is_some(), "{closes} {answers}");
        assert!(lost >= expected && late <= Some(3 * RAIL_CHECK), "{lost:?}, closes: {closes}");
    }
}

#[test]
fn end_leaves_once_no_write_is_in_flight_and_the_peer_has_confirmed_every_part() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let Name { slot, generation } = name;
    let message = advertised(&mut endpoint, &mut hands, name);
    endpoint.submit(&mut hands, slot, &message, ms(6)).unwrap();
    let write = hands.writes[0];
    endpoint.end(channel);
    let left = |endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, now| {
        (now..now + 3).for_each(|now| endpoint.progress(hands, ms(now)));
        std::mem::take(&mut hands.frames)
    };
    assert_eq!(left(&mut endpoint, &mut hands, 7), [], "a write is in flight");
    endpoint.peers[0].account.counts.completed.set(1, 2);
    let event = flow::Event::Written { message: write.message, part: write.part };
    hands.events.push_back(Event::Connection { slot, generation, event });
    let frames = left(&mut endpoint, &mut hands, 10);
    assert!(matches!(frames[..], [Frame::Fin(_)]), "two parts are not confirmed: {frames:?}");
    hands.answers(channel, |status| status.counts.seen.set(1, 1));
    assert_eq!(left(&mut endpoint, &mut hands, 13), [], "one part is not");
    hands.answers(channel, |status| status.counts.seen.set(1, 2));
    assert_eq!(left(&mut endpoint, &mut hands, 16), [Frame::End]);
}

/// The peer may have freed the memory by then.
#[test]
fn a_part_that_was_lost_with_a_rail_is_not_posted_again_once_end_was_sent() {
    for ends in [false, true] {
        let (mut endpoint, mut hands, channel, _) = settled();
        let name = endpoint.vacant().unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, delivery: false, ..Terms::of_two_rails(name) };
        assert!(endpoint.connect(name, channel, Flow::Send(SendFlow::new(terms)), ms(5)));
        let message = advertised(&mut endpoint, &mut hands, name);
        endpoint.submit(&mut hands, name.slot, &message, ms(6)).unwrap();
        let PartWrite { message, part, rail, .. } = hands.writes[0];
        let event = flow::Event::Written { message, part };
        let Name { slot, generation } = name;
        hands.events.push_back(Event::Connection { slot, generation, event });
        endpoint.progress(&mut hands, ms(6));
        endpoint.rail_lost(&mut hands, (0, rail), Cause::DataFailed { rail }, at(7));
        if ends {
            endpoint.end(channel);
        }
        (7..10).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(hands.frames.contains(&Frame::End), ends, "{:?}", hands.frames);
        let state = RailState::Listed { to: name, lines: Line::FIRST, seen: 0 };
        let listed = Frame::Rail(RailNote { rail, state });
        hands.says(endpoint.channel(channel).unwrap(), &[listed]);
        (10..13).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(hands.writes.len(), if ends { 1 } else { 2 });
    }
}

/// The receiver settles them when the rail is fenced.
#[test]
fn a_close_does_not_count_the_parts_that_were_posted_on_a_lost_rail() {
    for is_lost in [false, true] {
        let (mut endpoint, mut hands, channel, _) = settled();
        let name = endpoint.vacant().unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(name) };
        assert!(endpoint.connect(name, channel, Flow::Send(SendFlow::new(terms)), ms(5)));
        let message = advertised(&mut endpoint, &mut hands, name);
        endpoint.submit(&mut hands, name.slot, &message, ms(6)).unwrap();
        let PartWrite { message, part, rail, .. } = hands.writes[0];
        let (Name { slot, generation }, event) = (name, flow::Event::Written { message, part });
        hands.events.push_back(Event::Connection { slot, generation, event });
        endpoint.progress(&mut hands, ms(6));
        if is_lost {
            endpoint.rail_lost(&mut hands, (0, rail), Cause::DataFailed { rail }, at(7));
        }
        endpoint.with(&mut hands, name.slot, ms(7), Flow::close);
        (7..10).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let Some(Frame::Close(close)) = hands.frames.last() else { panic!("{:?}", hands.frames) };
        assert_eq!(close.parts.as_slice()[usize::from(rail)], u64::from(!is_lost));
    }
}

/// Parts on the lost rail may still land in memory that a connection would free.
#[test]
fn the_peers_end_is_reported_to_connections_once_nothing_can_arrive_by_a_lost_rail() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let name = add_receiver(&mut endpoint, channel);
    let state = RailState::Down(RailPosts { parts: 1, uncounted: false });
    let down = Frame::Rail(RailNote { rail: 0, state });
    hands.says(endpoint.channel(channel).unwrap(), &[down, Frame::End]);
    (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    let fault = |endpoint: &ProgressLoop<Flow>| endpoint.connection(name.slot).unwrap().fault();
    assert!(endpoint.channel(channel).unwrap().ending().has_peer_said());
    assert_eq!(fault(&endpoint), None);
    let immediate = Immediate::new(name.in_immediate(), Line::FIRST, 0, true, true, 0);
    let event = flow::Event::Arrived { rail: 0, immediate, len: 1 };
    hands.events.push_back(Event::Arrived { connection: name.in_immediate(), event });
    (9..12).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(fault(&endpoint), Some(Fault::Ended));
}

/// Otherwise the peer would wait for ever for the confirmation of parts that were lost with the rail.
#[test]
fn letters_confirm_all_parts_of_a_fenced_rail() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let state = RailState::Down(RailPosts { parts: 3, uncounted: false });
    hands.says(endpoint.channel(channel).unwrap(), &[Frame::Rail(RailNote { rail: 0, state })]);
    // The rail is closed, since the parts do not arrive.
    (6..300).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(hands.closed, [0]);
    let says_fenced =
        |frame: &Frame| matches!(frame, Frame::Rail(RailNote { state: RailState::Fenced, .. }));
    assert!(hands.frames.iter().any(says_fenced), "{:?}", hands.frames);
    let counts = |letter: &Letter| match letter.body {
        Body::Status(Status { counts, .. }) | Body::Query(Query { counts, .. }) => {
            Some(counts.seen.get(0))
        }
        _ => None,
    };
    let confirmed: Vec<_> = hands.letters.iter().filter_map(counts).collect();
    assert_eq!(confirmed.last(), Some(&3), "{confirmed:?}");
    assert_eq!(endpoint.account(channel).map(|account| account.counts.seen.get(0)), Some(3));
}

#[test]
fn a_packet_reports_when_parts_have_arrived_if_speeds_are_measured_by_that() {
    for measure_by_arrival in [false, true] {
        let (mut endpoint, mut hands, channel, sender) =
            settled_with(Parameters { measure_by_arrival, ..parameters(2) });
        let name = add_receiver(&mut endpoint, channel);
        let immediate = Immediate::new(name.in_immediate(), Line::FIRST, 0, true, true, 0);
        let event = flow::Event::Arrived { rail: 1, immediate, len: 1 };
        hands.events.push_back(Event::Arrived { connection: name.in_immediate(), event });
        (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!(hands.frames, [], "no packet leaves only for the report");
        hears(&mut endpoint, &mut hands, sender.slot, &withdraw(sender));
        (9..12).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        let says = |frame: &Frame| matches!(frame, Frame::Arrived(_));
        assert_eq!(hands.frames.iter().any(says), measure_by_arrival, "{:?}", hands.frames);
    }
}

#[test]
fn a_report_of_arrivals_waits_for_a_packet_that_has_room_for_it() {
    let (mut endpoint, mut hands, channel, sender) =
        settled_with(Parameters { measure_by_arrival: true, ..parameters(2) });
    let name = add_receiver(&mut endpoint, channel);
    let immediate = Immediate::new(name.in_immediate(), Line::FIRST, 0, true, true, 0);
    let event = flow::Event::Arrived { rail: 1, immediate, len: 1 };
    hands.events.push_back(Event::Arrived { connection: name.in_immediate(), event });
    endpoint.progress(&mut hands, ms(6));
    // One word less than a packet has room for.
    let refused = Refused { to: name, why: Refusal::Busy, detail: 0 };
    (0..126).for_each(|_| endpoint.refuse(channel, refused));
    endpoint.send_urgent(&mut hands, name.slot, ms(7));
    assert_eq!(hands.frames, [Frame::Refused(refused); 126]);
    hears(&mut endpoint, &mut hands, sender.slot, &withdraw(sender));
    endpoint.send_urgent(&mut hands, name.slot, ms(8));
    let left = &hands.frames[126..];
    assert!(matches!(left, [Frame::Withdrawn(_), Frame::Arrived(_)]), "{left:?}");
}

/// NCCL may stop polling once its last request is done.
#[test]
fn a_frame_that_the_peer_waits_for_has_left_when_its_write_has_completed() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let name = endpoint.vacant().unwrap();
    let opened =
        Opened { to: name, from: name, features: 0, inline_bytes_max: 0, window: 64, group_max: 1 };
    assert!(!endpoint.must_send_first() && !endpoint.has_left(name.slot, ms(5)));
    let receiver = ReceiveFlow::accepted(Terms::of_two_rails(name), opened);
    assert!(endpoint.connect(name, channel, Flow::Receive(receiver), ms(5)));
    hands.posts_not = true;
    for _ in 0..2 {
        assert!(endpoint.must_send_first() && !endpoint.has_left(name.slot, ms(5)));
        endpoint.send_urgent(&mut hands, name.slot, ms(5));
    }
    hands.posts_not = false;
    endpoint.send_urgent(&mut hands, name.slot, ms(5));
    assert!(matches!(hands.frames[..], [Frame::Opened(_)]), "{:?}", hands.frames);
    assert!(!endpoint.must_send_first());
    assert!(!endpoint.has_left(name.slot, ms(5)), "the packet may be lost");
    let write = WriteId { epoch: Epoch(1), what: Written::Packet(PacketNumber::new(1)) };
    hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: true });
    endpoint.progress(&mut hands, ms(6));
    assert!(endpoint.has_left(name.slot, ms(6)));
}

#[test]
fn refusals_open_packets_and_rail_frames_are_awaited_and_pending_until_they_have_left() {
    type Begins = fn(&mut ProgressLoop<Flow>, &mut StandIn, ChannelId);
    let begins: [Begins; 3] = [
        |endpoint, _, channel| {
            let (to, why) = (Name::default(), Refusal::Busy);
            endpoint.refuse(channel, Refused { to, why, detail: 0 });
        },
        |endpoint, hands, channel| {
            let Name { slot, .. } = add_inline_sender(endpoint, channel);
            endpoint.peers[0].posted = true;
            submit_inline(endpoint, hands, slot);
        },
        |endpoint, hands, _| {
            endpoint.rail_lost(hands, (0, 0), Cause::DataFailed { rail: 0 }, at(6));
        },
    ];
    for (begins, fails) in begins.into_iter().flat_map(|begins| [(begins, false), (begins, true)]) {
        let (mut endpoint, mut hands, channel, name) = settled();
        let stands =
            |endpoint: &ProgressLoop<Flow>| (endpoint.must_send_first(), endpoint.has_pending());
        assert_eq!(stands(&endpoint), (false, false));
        begins(&mut endpoint, &mut hands, channel);
        assert_eq!(stands(&endpoint), (true, true));
        if fails {
            endpoint.fail(channel, Cause::NoRail);
        } else {
            endpoint.send_urgent(&mut hands, name.slot, ms(6));
            assert_eq!(hands.frames.len(), 1);
        }
        assert!(!endpoint.must_send_first(), "fails: {fails}");
    }
}

/// Over sockets a long write is copied while it is posted.
#[test]
fn frames_that_a_peer_waits_for_leave_before_the_parts_of_a_long_message() {
    for (len, first) in [(1000, false), (1 << 20, true)] {
        let (mut endpoint, mut hands, channel, name) = settled();
        let other = endpoint.vacant().unwrap();
        assert!(endpoint.connect(other, channel, sender(other), ms(5)));
        hears(&mut endpoint, &mut hands, other.slot, &withdraw(other));
        advertise(&mut endpoint, &mut hands, name, len);
        let message = Outgoing { tag: 0, len, source: Source::default(), host: false };
        endpoint.submit(&mut hands, name.slot, &message, ms(6)).unwrap();
        assert_eq!(hands.frames_before.first(), Some(&usize::from(first)), "{len} bytes");
    }
}

#[test]
fn a_lost_control_rail_is_reported_once_tried_after_its_pause_and_back_when_that_is_answered() {
    let (mut endpoint, mut hands, channel, _) =
        settled_with(Parameters { rails: 2, ..parameters(2) });
    hands.events.push_back(Event::LetterFailed {
        channel,
        rail: 1,
        numbers: RailNumbers::default(),
    });
    (6..10).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    let lost = RailNews { lost: RailSet::of(1), returned: RailSet::NONE };
    assert_eq!(hands.control_news, [lost]);
    let trials = |hands: &StandIn| {
        hands.letters.iter().filter(|letter| matches!(letter.body, Body::Trial(_))).count()
    };
    let rest = u64::try_from(RAIL_REST.as_millis()).unwrap();
    (10..6 + rest).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(trials(&hands), 0);
    (6 + rest..10 + rest).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(trials(&hands), 1);
    let body = Body::Trial(Trial { rail: 1, number: 1, answers: true });
    let letter = Letter { key: 1, rails: RailNumbers::default(), body };
    hands.events.push_back(Event::Letter { channel, letter, proven: false });
    (10 + rest..13 + rest).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    let back = RailNews { lost: RailSet::NONE, returned: RailSet::of(1) };
    assert_eq!(hands.control_news, [lost, back]);
}

/// How long after a poll the keeper polls.
fn keeper_waits(endpoint: &ProgressLoop<Flow>, polled: Moment) -> Duration {
    endpoint.keeper_due().unwrap().since(polled)
}

#[test]
fn a_keeper_polls_soon_if_something_is_pending_or_waited_for_and_otherwise_less_and_less_often() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let mut now = ms(5);
    for wait in [KEEPER_IDLE, 2 * KEEPER_IDLE, KEEPER_IDLE_MAX, KEEPER_IDLE_MAX] {
        assert_eq!(keeper_waits(&endpoint, now), wait);
        assert!(!endpoint.keep(&mut hands, now.plus(wait - Duration::from_nanos(1))));
        now = now.plus(wait);
        assert!(endpoint.keep(&mut hands, now));
        assert_eq!(endpoint.called(), ms(5), "the keeper's polls are not NCCL's");
    }
    let message = advertised(&mut endpoint, &mut hands, name);
    hands.acts_not = Some(Acted::Refused);
    endpoint.submit(&mut hands, name.slot, &message, now).unwrap();
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_PENDING, "a part was refused");
    endpoint.with(&mut hands, name.slot, now, Flow::close);
    now = now.plus(KEEPER_PENDING);
    assert!(endpoint.keep(&mut hands, now));
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_PENDING, "the packet is not acknowledged");
    hands.acknowledges(endpoint.channel(channel).unwrap(), PacketNumber::new(1));
    now = now.plus(KEEPER_PENDING);
    assert!(endpoint.keep(&mut hands, now));
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_WAITS, "for the receiver's CLOSE");
    endpoint.disconnect(name.slot);
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_IDLE, "the last poll found news");
    endpoint.progress(&mut hands, now);
    assert_eq!(endpoint.called(), now);
    endpoint.fail(channel, Cause::NoRail);
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_PENDING, "a letter has to report the failure");
    endpoint.progress(&mut hands, now);
    assert!(keeper_waits(&endpoint, now) >= KEEPER_IDLE, "it still answers its peer");
}

#[test]
fn a_keeper_polls_soon_again_after_a_poll_that_found_a_packet() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let mut now = ms(5).plus(KEEPER_IDLE);
    assert!(endpoint.keep(&mut hands, now));
    // A frame for a connection that is gone gets no answer.
    let gone = Name { generation: name.generation.next(), ..name };
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(gone)]);
    now = now.plus(2 * KEEPER_IDLE);
    assert!(endpoint.keep(&mut hands, now));
    assert_eq!(endpoint.stale(), 1);
    now = now.plus(KEEPER_PENDING);
    endpoint.progress(&mut hands, now);
    assert_eq!(hands.cells, 1, "the packet is acknowledged");
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_IDLE);
}

/// The peer may withdraw the memory, and wait for the answer.
#[test]
fn a_keeper_polls_soon_while_a_peer_lends_memory_that_no_message_was_submitted_for() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let polled = ms(5);
    assert_eq!(keeper_waits(&endpoint, polled), KEEPER_IDLE);
    advertise(&mut endpoint, &mut hands, name, 1000);
    assert_eq!(keeper_waits(&endpoint, polled), KEEPER_LENT);
    let mut now = polled;
    for _ in 0..3 {
        now = now.plus(KEEPER_LENT);
        assert!(endpoint.keep(&mut hands, now));
        assert_eq!(keeper_waits(&endpoint, now), KEEPER_LENT, "no matter how long");
    }
    hears(&mut endpoint, &mut hands, name.slot, &withdraw(name));
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_PENDING, "the answer is pending");
    now = now.plus(KEEPER_PENDING);
    assert!(endpoint.keep(&mut hands, now));
    hands.acknowledges(endpoint.channel(channel).unwrap(), PacketNumber::new(1));
    now = now.plus(KEEPER_PENDING);
    assert!(endpoint.keep(&mut hands, now));
    assert_eq!(keeper_waits(&endpoint, now), KEEPER_IDLE, "the memory was withdrawn");
}

/// Posts a receive of nine bytes.
fn post(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, slot: Slot) {
    endpoint.with(hands, slot, ms(5), |flow, account| {
        let receive = Receive { len: 9, host: true, ..Receive::default() };
        let receiver = flow.receiver_mut().unwrap();
        receiver.post(&[receive], &[1, 2], Posting::default(), account, ms(5)).unwrap();
    });
}

fn receiver(endpoint: &mut ProgressLoop<Flow>, slot: Slot) -> &mut ReceiveFlow {
    endpoint.connection_mut(slot).and_then(Flow::receiver_mut).unwrap()
}

#[test]
fn an_inline_message_fills_its_receive_whichever_of_the_two_comes_first() {
    for receive_is_first in [false, true] {
        let (mut endpoint, mut hands, channel, _) = settled();
        let name = endpoint.vacant().unwrap();
        let inline = InlineLimits { unadvertised: 64, host: 64 };
        let terms = Terms { inline, ..Terms::of_two_rails(name) };
        assert!(endpoint.connect(name, channel, Flow::Receive(ReceiveFlow::new(terms)), ms(5)));
        for posts in [receive_is_first, !receive_is_first] {
            if posts {
                post(&mut endpoint, &mut hands, name.slot);
            } else {
                let (to, line, base) = (name, Line::FIRST, Line::FIRST);
                let inline = Inline { to, line, advertised: false, tag: 0, base, len: 0 };
                hands.says(endpoint.channel(channel).unwrap(), &[Frame::Inline(inline)]);
                endpoint.progress(&mut hands, ms(6));
            }
        }
        let done = receiver(&mut endpoint, name.slot).poll(Line::FIRST);
        assert_eq!(done, ReceivePoll::Done { count: 1 }, "{receive_is_first}");
    }
}

/// SENDRECV.
#[test]
fn a_receive_that_the_provider_refuses_is_posted_later_and_done_once_its_message_has_come() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let name = endpoint.vacant().unwrap();
    let immediates = ImmediateWidth::Eight;
    let terms =
        Terms { messages: true, immediates, true_lengths: true, ..Terms::of_two_rails(name) };
    assert!(endpoint.connect(name, channel, Flow::Receive(ReceiveFlow::new(terms)), ms(5)));
    let Name { slot, generation } = name;
    (0..2).for_each(|_| post(&mut endpoint, &mut hands, slot));
    hands.acts_not = Some(Acted::Refused);
    (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(hands.frames.len(), 2, "adverts");
    hands.acts_not = None;
    (9..12).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    let second = Line::FIRST.plus(1);
    assert!(
        matches!(hands.tagged[..], [Tagged::Post { line: Line::FIRST, .. }, Tagged::Post { line, .. }] if line == second),
        "{:?}",
        hands.tagged
    );
    let received = flow::Event::Received { line: Line::FIRST, len: 9 };
    for event in [received, flow::Event::ReceiveEnded { line: second }] {
        hands.events.push_back(Event::Connection { slot, generation, event });
    }
    endpoint.progress(&mut hands, ms(12));
    let receiver = receiver(&mut endpoint, slot);
    assert_eq!(receiver.tagged_count(), 0);
    let polled = [Line::FIRST, second].map(|line| receiver.poll(line));
    assert_eq!(polled, [ReceivePoll::Done { count: 1 }, ReceivePoll::Pending]);
}

#[test]
fn parts_are_awaited_from_the_time_an_advert_leaves_until_they_have_arrived() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let name = add_receiver(&mut endpoint, channel);
    post(&mut endpoint, &mut hands, name.slot);
    assert!(!endpoint.awaits_parts());
    endpoint.progress(&mut hands, ms(6));
    assert!(matches!(hands.frames[..], [Frame::Advert(_)]), "{:?}", hands.frames);
    assert!(endpoint.awaits_parts());
    let to = name;
    let (rails, status) = (RailSet::of(0), FinStatus::Delivered);
    let fin = Frame::Fin(Fin { to, line: Line::FIRST, len: 9, rails, status });
    hands.says(endpoint.channel(channel).unwrap(), &[fin]);
    endpoint.progress(&mut hands, ms(7));
    assert!(!endpoint.awaits_parts());
    post(&mut endpoint, &mut hands, name.slot);
    endpoint.progress(&mut hands, ms(8));
    assert!(endpoint.awaits_parts());
    endpoint.disconnect(name.slot);
    assert!(!endpoint.awaits_parts());
}

/// The budget belongs to all of them.
#[test]
fn a_poll_collects_the_entries_that_receives_of_every_channel_have_freed() {
    let (mut endpoint, mut hands) = (ProgressLoop::new(2), StandIn::default());
    let receivers = [(); 2].map(|()| {
        let channel = endpoint.add_channel(parameters(2)).unwrap();
        let name = endpoint.vacant().unwrap();
        let receiver = Flow::Receive(ReceiveFlow::new(Terms::of_two_rails(name)));
        assert!(endpoint.connect(name, channel, receiver, ms(0)));
        endpoint.progress(&mut hands, ms(0));
        hands.knows(channel);
        (channel, name)
    });
    (1..=5).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    for (_, name) in receivers {
        endpoint.with(&mut hands, name.slot, ms(5), |flow, account| {
            let receive = Receive { len: 9, ..Receive::default() };
            let receiver = flow.receiver_mut().unwrap();
            receiver.post(&[receive], &[1, 2], Posting::default(), account, ms(5)).unwrap();
        });
    }
    endpoint.progress(&mut hands, ms(6));
    assert_eq!(endpoint.entries_freed(), 0);
    for (channel, to) in receivers {
        let (rails, status) = (RailSet::of(0), FinStatus::Delivered);
        let fin = Frame::Fin(Fin { to, line: Line::FIRST, len: 9, rails, status });
        hands.says_first(endpoint.channel(channel).unwrap(), &[fin]);
    }
    endpoint.progress(&mut hands, ms(7));
    assert_eq!([endpoint.entries_freed(), endpoint.entries_freed()], [2, 0]);
}

#[test]
fn an_acknowledgement_goes_into_the_cell_unless_a_packet_takes_it() {
    for leaves in [false, true] {
        let (mut endpoint, mut hands, channel, name) = settled();
        hands.says(
            endpoint.channel(channel).unwrap(),
            &[withdraw(Name { slot: name.slot, generation: Generation::new(9) })],
        );
        endpoint.progress(&mut hands, ms(6));
        assert_eq!(hands.cells, 0, "not yet");
        if leaves {
            hears(&mut endpoint, &mut hands, name.slot, &withdraw(name));
        }
        (7..20).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert_eq!((hands.cells, hands.frames.len()), if leaves { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn the_cell_is_written_in_the_poll_after_one_that_has_consumed_half_of_the_ring() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let micros = |micros: u64| Moment::from_nanos(6_000_000 + 1000 * micros);
    endpoint.peers[0].stirred = true;
    endpoint.progress(&mut hands, micros(0));
    // A quarter of the ring.
    let packet = [withdraw(Name { slot: name.slot, generation: Generation::new(9) }); 126];
    (0..3).for_each(|_| hands.says(endpoint.channel(channel).unwrap(), &packet));
    let cells = [20, 40].map(|now| {
        endpoint.progress(&mut hands, micros(now));
        hands.cells
    });
    assert_eq!(cells, [0, 1]);
}

#[test]
fn an_old_cell_is_written_although_a_packet_takes_the_acknowledgement() {
    let (mut endpoint, mut hands, channel, name) = settled();
    endpoint.peers[0].channel.age_cell();
    for round in 1..3 {
        hands.says(endpoint.channel(channel).unwrap(), &[withdraw(name)]);
        endpoint.progress(&mut hands, ms(5 + round));
        assert_eq!((hands.cells, hands.frames.len() as u64), (1, round));
        let write = WriteId { epoch: Epoch(1), what: Written::Cell };
        hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: true });
    }
}

#[test]
fn a_query_about_a_connection_is_answered_with_its_state_and_for_how_long_nccl_has_not_polled() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let message = advertised(&mut endpoint, &mut hands, name);
    endpoint.submit(&mut hands, name.slot, &message, ms(6)).unwrap();
    let query = Query {
        epoch: Epoch(1),
        completed: PacketNumber::new(0),
        lost: false,
        rail: 0,
        counts: PeerCounts::default(),
        about: Some(name),
    };
    let letter = Letter { key: 1, rails: RailNumbers::default(), body: Body::Query(query) };
    hands.events.push_back(Event::Letter { channel, letter, proven: false });
    assert!(endpoint.keep(&mut hands, ms(1005)), "NCCL has last polled at 5 ms");
    let Some(Letter { body: Body::Status(status), .. }) = hands.letters.pop() else { panic!() };
    assert_eq!(status.idle_ms, 1000);
    let state = status.about.map(|about| about.state);
    assert!(state.is_some_and(|state| state.open && state.begun == 1), "{state:?}");
}

#[test]
fn a_connection_that_its_caller_has_failed_keeps_the_reason() {
    let (mut endpoint, mut hands, channel, sender) = settled();
    let receiver = add_receiver(&mut endpoint, channel);
    for Name { slot, .. } in [sender, receiver] {
        for what in ["a bug", "another one"] {
            endpoint.with(&mut hands, slot, ms(6), |flow, _| flow.fail(what));
            let fault = endpoint.connection(slot).unwrap().fault();
            assert_eq!(fault, Some(Fault::Misuse("a bug")));
        }
    }
}

#[test]
fn events_for_a_connection_that_is_gone_or_from_a_stranger_are_counted_and_have_no_effect() {
    let (mut endpoint, mut hands, channel, name) = settled();
    endpoint.disconnect(name.slot);
    let next = endpoint.vacant().unwrap();
    assert!(next.slot == name.slot && endpoint.connect(next, channel, sender(next), ms(5)));
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(name)]);
    (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!((endpoint.stale(), hands.frames.len()), (1, 0));
    let Name { slot, generation } = name;
    let event = flow::Event::Written { message: MessageId::new(0), part: 0 };
    let trial = Body::Trial(Trial { rail: 0, number: 0, answers: false });
    let letter = Letter { key: 7, rails: RailNumbers::default(), body: trial };
    hands.events.extend([
        Event::Connection { slot, generation, event },
        Event::Arrived { connection: name.in_immediate(), event },
        Event::Letter { channel, letter, proven: false },
    ]);
    endpoint.progress(&mut hands, ms(9));
    assert_eq!(endpoint.stale(), 4);
    assert_eq!(endpoint.connection(next.slot).unwrap().fault(), None);
}

/// Adds a sender of short messages to the same channel.
fn add_inline_sender(endpoint: &mut ProgressLoop<Flow>, channel: ChannelId) -> Name {
    let name = endpoint.vacant().unwrap();
    let inline = InlineLimits { unadvertised: 64, host: 64 };
    let terms = Terms { inline, ..Terms::of_two_rails(name) };
    assert!(endpoint.connect(name, channel, Flow::Send(SendFlow::new(terms)), ms(5)));
    name
}

const INLINE: Outgoing =
    Outgoing { tag: 0, len: 0, source: Source { address: 0, region: 0 }, host: true };

fn submit_inline(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, slot: Slot) -> MessageId {
    match endpoint.submit(hands, slot, &INLINE, ms(6)) {
        Ok(Submit::Inline { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_inline_message_is_done_once_the_write_of_its_packet_has_completed() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let Name { slot, .. } = add_inline_sender(&mut endpoint, channel);
    let message = submit_inline(&mut endpoint, &mut hands, slot);
    let poll = |endpoint: &mut ProgressLoop<Flow>| {
        endpoint.connection_mut(slot).and_then(Flow::sender_mut).unwrap().poll(message)
    };
    assert_eq!(poll(&mut endpoint), SendPoll::Pending);
    let write = WriteId { epoch: Epoch(1), what: Written::Packet(PacketNumber::new(1)) };
    hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: true });
    endpoint.progress(&mut hands, ms(6));
    assert_eq!(poll(&mut endpoint), SendPoll::Done { len: 0 });
}

#[test]
fn an_inline_message_leaves_at_once_if_nothing_has_left_since_the_last_poll() {
    let (mut endpoint, mut hands, channel, _) = settled();
    let name = add_inline_sender(&mut endpoint, channel);
    let steps = ["submit", "submit", "send", "submit", "poll", "submit"];
    for (step, left) in steps.into_iter().zip([1, 1, 2, 2, 3, 4]) {
        match step {
            "submit" => _ = submit_inline(&mut endpoint, &mut hands, name.slot),
            "send" => endpoint.send_urgent(&mut hands, name.slot, ms(6)),
            _ => (6..8).for_each(|now| endpoint.progress(&mut hands, ms(now))),
        }
        assert_eq!(hands.frames.len(), left, "{step}");
    }
    endpoint.end(channel);
    let submitted = endpoint.submit(&mut hands, name.slot, &INLINE, ms(8));
    assert!(matches!(submitted, Err(SubmitError::Ended)), "{submitted:?}");
}

/// An endpoint with `channels` channels and `each` senders on each, at 5 ms, when nothing is pending.
fn with_channels(channels: usize, each: usize) -> (ProgressLoop<Flow>, StandIn, Vec<ChannelId>) {
    let (mut endpoint, mut hands) = (ProgressLoop::new(channels * each), StandIn::default());
    let channels: Vec<ChannelId> =
        (0..channels).map(|_| endpoint.add_channel(parameters(2)).unwrap()).collect();
    for channel in std::iter::repeat_n(&channels, each).flatten() {
        let name = endpoint.vacant().unwrap();
        assert!(endpoint.connect(name, *channel, sender(name), ms(0)));
    }
    endpoint.progress(&mut hands, ms(0));
    channels.iter().for_each(|channel| hands.knows(*channel));
    (1..=5).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    hands.letters.clear();
    (endpoint, hands, channels)
}

#[test]
fn the_ends_of_many_channels_visit_each_connection_a_few_times() {
    const CHANNELS: usize = 64;
    const EACH: usize = 4;
    type Ends = fn(&mut ProgressLoop<Flow>, &mut StandIn, ChannelId);
    type Says = fn(&Frame) -> bool;
    let ends: [(&str, Ends, Says); 3] = [
        ("END", |endpoint, _, channel| endpoint.end(channel), |frame| *frame == Frame::End),
        (
            "the peer's END",
            |endpoint, hands, channel| {
                hands.says_first(endpoint.channel(channel).unwrap(), &[Frame::End]);
            },
            |frame| *frame == Frame::End,
        ),
        (
            "a lost rail",
            |endpoint, hands, channel| {
                let cause = Cause::DataFailed { rail: 0 };
                endpoint.rail_lost(hands, (channel.0 as usize, 0), cause, at(6));
            },
            is_down,
        ),
    ];
    for (what, ends, says) in ends {
        let (mut endpoint, mut hands, channels) = with_channels(CHANNELS, EACH);
        endpoint.table.take_looks();
        for channel in channels {
            ends(&mut endpoint, &mut hands, channel);
        }
        endpoint.progress(&mut hands, ms(6));
        endpoint.progress(&mut hands, ms(7));
        let said = hands.frames.iter().filter(|frame| says(frame)).count();
        assert_eq!(said, CHANNELS, "{what}");
        let looks = endpoint.table.take_looks();
        assert!(looks <= 8 * CHANNELS * EACH, "{what}: {looks} looks at entries");
    }
}

#[test]
fn the_last_report_of_a_burst_checks_only_the_channel_of_the_burst() {
    let (mut endpoint, mut hands, channels) = with_channels(1000, 1);
    let last = |endpoint: &ProgressLoop<Flow>| {
        let found = (endpoint.must_send_first(), endpoint.has_pending());
        (found, endpoint.peers.take_asked())
    };
    assert_eq!(last(&endpoint), ((false, false), 1000), "no channel was checked before");
    assert_eq!(last(&endpoint), ((false, false), 0));
    let slot = endpoint.table.slots_of(channels[7])[0];
    let to = endpoint.table.name(slot);
    let message = advertised(&mut endpoint, &mut hands, to);
    let soon = |micros| ms(5).plus(Duration::from_micros(micros));
    let submitted = endpoint.submit(&mut hands, slot, &message, soon(50));
    assert!(matches!(submitted, Ok(Submit::Parts { .. })));
    let write = hands.writes[0];
    let event = flow::Event::Written { message: write.message, part: write.part };
    let Name { slot, generation } = to;
    hands.events.push_back(Event::Connection { slot, generation, event });
    endpoint.progress(&mut hands, soon(100));
    assert_eq!(last(&endpoint), ((false, true), 1), "its FIN is not acknowledged");
}

#[test]
fn the_keeper_checks_no_channel_of_an_endpoint_that_was_just_polled() {
    let (mut endpoint, mut hands, channels) = with_channels(100, 1);
    let slot = endpoint.table.slots_of(channels[7])[0];
    hands.acts_not = Some(Acted::Refused);
    let name = endpoint.table.name(slot);
    let message = advertised(&mut endpoint, &mut hands, name);
    endpoint.submit(&mut hands, slot, &message, ms(6)).unwrap();
    endpoint.progress(&mut hands, ms(6));
    endpoint.peers.take_asked();
    let last = ms(6).plus(KEEPER_PENDING - Duration::from_nanos(1));
    assert!(!endpoint.keep(&mut hands, last));
    assert_eq!(endpoint.keeper_rests(last), Some(Duration::from_nanos(1)));
    assert_eq!(endpoint.peers.take_asked(), 0);
    assert!(endpoint.keep(&mut hands, ms(6).plus(KEEPER_PENDING)), "a part was refused");
    let kept = ms(6).plus(KEEPER_PENDING);
    assert_eq!(endpoint.keeper_rests(kept), None, "the keeper's own polls do not delay the next");
}

/// Polls every 50 µs. Returns the times, in µs, at which the channel was visited, not only its inbox checked.
fn visits(
    endpoint: &mut ProgressLoop<Flow>,
    hands: &mut StandIn,
    times: std::ops::Range<u64>,
) -> Vec<u64> {
    let visited = |micros: &u64| {
        hands.looks = 0;
        endpoint.progress(hands, Moment::from_nanos(1000 * micros));
        hands.looks > 1
    };
    times.step_by(50).filter(visited).collect()
}

#[test]
fn a_content_channel_is_visited_when_its_next_timer_is_due() {
    let (mut endpoint, mut hands, channel, name) = settled();
    let idle = visits(&mut endpoint, &mut hands, 5_050..300_100);
    assert_eq!(idle, [100_000, 200_000, 300_000], "for the check of its rails");
    // A frame for a connection that is gone gets no answer.
    let gone = Name { generation: name.generation.next(), ..name };
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(gone)]);
    let acknowledges = visits(&mut endpoint, &mut hands, 300_100..310_000);
    assert_eq!((acknowledges, hands.cells), (vec![300_100, 300_250, 304_100], 1));
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(name)]);
    let answers = visits(&mut endpoint, &mut hands, 310_000..349_950);
    assert_eq!(answers, [310_000, 310_050, 310_250], "its answer is not acknowledged");
    assert!(hands.letters.is_empty(), "the peer was not waited for before: {:?}", hands.letters);
    assert_eq!(visits(&mut endpoint, &mut hands, 349_950..350_050), [350_000]);
    assert!(matches!(hands.letters[..], [Letter { body: Body::Query(_), .. }]));
}

/// As [`visits`], but returns the times at which QUERY left.
fn queries(
    endpoint: &mut ProgressLoop<Flow>,
    hands: &mut StandIn,
    times: std::ops::Range<u64>,
) -> Vec<u64> {
    let queried = |micros: &u64| {
        hands.letters.clear();
        endpoint.progress(hands, Moment::from_nanos(1000 * micros));
        hands.letters.iter().any(|letter| matches!(letter.body, Body::Query(_)))
    };
    times.step_by(50).filter(queried).collect()
}

#[test]
fn a_query_follows_a_wait_and_a_packet_as_soon_after_a_long_rest_as_after_none() {
    let (mut endpoint, mut hands, _, name) = settled();
    assert_eq!(queries(&mut endpoint, &mut hands, 5_050..190_000), [], "nothing is waited for");
    // Without an advert no packet leaves.
    let message = Outgoing { tag: 0, len: 1000, source: Source::default(), host: false };
    assert!(endpoint.submit(&mut hands, name.slot, &message, ms(190)).is_ok());
    let waits = queries(&mut endpoint, &mut hands, 190_000..1_000_000);
    assert_eq!(
        waits,
        [229_950, 309_950, 469_950, 789_950],
        "counted from the poll before the submit"
    );
    assert!(hands.frames.is_empty());
    advertise(&mut endpoint, &mut hands, name, 1000);
    assert!(endpoint.submit(&mut hands, name.slot, &message, ms(1000)).is_ok());
    let write = hands.writes[0];
    let event = flow::Event::Written { message: write.message, part: write.part };
    let Name { slot, generation } = name;
    hands.events.push_back(Event::Connection { slot, generation, event });
    let packet = queries(&mut endpoint, &mut hands, 1_000_000..1_100_000);
    assert_eq!((packet, hands.frames.len()), (vec![1_040_000], 1), "its FIN may be lost");
}

#[test]
fn a_wait_for_writes_that_do_not_complete_begins_with_the_check_that_finds_them() {
    let (mut endpoint, mut hands, _, name) = settled();
    let message = advertised(&mut endpoint, &mut hands, name);
    endpoint.submit(&mut hands, name.slot, &message, ms(5)).unwrap();
    let waits = queries(&mut endpoint, &mut hands, 5_050..170_000);
    assert_eq!(waits, [140_200], "the check was at 100 ms");
}

#[test]
fn a_channel_that_has_ended_is_not_visited_again() {
    let (mut endpoint, mut hands, channel, _) = settled();
    endpoint.fail(channel, Cause::NoRail);
    (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert!(endpoint.channel(channel).unwrap().failure().is_some());
    hands.looks = 0;
    (9..2000).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert_eq!(hands.looks, 0);
}

/// Polls every 50 ms, the longest time between two polls that counts in full, until this long after `start`.
fn rest(endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, start: u64, seconds: u64) -> u64 {
    let end = start + 1000 * seconds;
    (start..=end).step_by(50).for_each(|now| endpoint.progress(hands, ms(now)));
    end
}

/// A channel without connections ends at this time: both ends send END, or the channel fails.
fn ends(
    endpoint: &mut ProgressLoop<Flow>,
    hands: &mut StandIn,
    start: u64,
    fails: bool,
) -> ChannelId {
    let channel = endpoint.add_channel(parameters(2)).unwrap();
    endpoint.progress(hands, ms(start));
    hands.knows(channel);
    (1..=5).for_each(|more| endpoint.progress(hands, ms(start + more)));
    if fails {
        endpoint.fail(channel, Cause::NoRail);
    } else {
        endpoint.end(channel);
        hands.says_first(endpoint.channel(channel).unwrap(), &[Frame::End]);
        (6..=7).for_each(|more| endpoint.progress(hands, ms(start + more)));
        let said = endpoint.channel(channel).unwrap().shadow().next().plus(u32::MAX);
        for what in [Written::Packet(said), Written::Cell] {
            let write = WriteId { epoch: Epoch(1), what };
            hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: true });
        }
        hands.acknowledges(endpoint.channel(channel).unwrap(), said);
    }
    (8..=10).for_each(|more| endpoint.progress(hands, ms(start + more)));
    let ended = endpoint.channel(channel).unwrap();
    assert!(ended.failure().is_some() == fails && ended.is_over() != fails, "{fails}: {ended:?}");
    channel
}

/// As when processes of a job end and others replace them.
#[test]
fn an_endpoint_that_fifty_peers_have_left_has_as_much_memory_lent_as_after_five() {
    for fails in [true, false] {
        let (mut endpoint, mut hands) = (ProgressLoop::new(1), StandIn::default());
        let (mut now, mut in_use) = (0, Vec::new());
        for _ in 0..50 {
            ends(&mut endpoint, &mut hands, now, fails);
            in_use.push(hands.in_use());
            now = rest(&mut endpoint, &mut hands, now + 11, 77);
        }
        assert_eq!((in_use[4], in_use[49], hands.in_use()), (2, 2, 0), "fails: {fails}");
        assert_eq!(hands.forgotten.len(), 50);
    }
}

#[test]
fn a_channel_that_has_ended_is_kept_while_its_peer_sends_queries_or_a_connection_or_a_write_is_left()
 {
    let (mut endpoint, mut hands) = (ProgressLoop::new(1), StandIn::default());
    let asked = ends(&mut endpoint, &mut hands, 0, true);
    let mut now = 11;
    for _ in 0..3 {
        now = rest(&mut endpoint, &mut hands, now, 73);
        hands.letters.clear();
        hands.answers(asked, |_| {});
        hands.knows(asked);
        now = rest(&mut endpoint, &mut hands, now, 1);
        let letters = &hands.letters;
        assert!(matches!(letters[..], [Letter { body: Body::Status(_), .. }]), "{letters:?}");
    }
    rest(&mut endpoint, &mut hands, now, 77);
    assert_eq!(hands.forgotten, [asked]);
    hands.letters.clear();
    hands.knows(asked);
    let stale = endpoint.stale();
    endpoint.progress(&mut hands, ms(now + 78_000));
    assert_eq!((endpoint.stale(), hands.letters.len()), (stale + 1, 0), "nothing can answer");

    let (mut endpoint, mut hands, channel, name, wrote) = failed_while_it_writes();
    let now = rest(&mut endpoint, &mut hands, 7, 80);
    hands.events.push_back(wrote);
    let now = rest(&mut endpoint, &mut hands, now, 2);
    assert_eq!(hands.forgotten, [], "NCCL has not closed it");
    endpoint.disconnect(name.slot);
    rest(&mut endpoint, &mut hands, now, 2);
    assert_eq!((hands.in_use(), hands.forgotten), (0, vec![channel]));
}

/// A channel that has failed while its answer was on its way, with its connection, and the completion of that write.
fn failed_while_it_writes() -> (ProgressLoop<Flow>, StandIn, ChannelId, Name, Event<flow::Event>) {
    let (mut endpoint, mut hands, channel, name) = settled();
    hands.says(endpoint.channel(channel).unwrap(), &[withdraw(name)]);
    endpoint.progress(&mut hands, ms(6));
    let number = endpoint.channel(channel).unwrap().shadow().next().plus(u32::MAX);
    assert_eq!(hands.frames.len(), 1, "its answer, whose write does not complete");
    endpoint.fail(channel, Cause::NoRail);
    let write = WriteId { epoch: Epoch(1), what: Written::Packet(number) };
    (endpoint, hands, channel, name, Event::Wrote { channel, write, rail: 0, well: true })
}

#[test]
fn a_channel_that_has_failed_is_kept_while_a_write_may_read_its_memory() {
    let (mut endpoint, mut hands, channel, name, wrote) = failed_while_it_writes();
    (7..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
    assert!(endpoint.disconnect(name.slot).is_some());
    let now = rest(&mut endpoint, &mut hands, 9, 100);
    assert_eq!(hands.forgotten, []);
    assert!(endpoint.keeper_due().is_some(), "the peer may still ask");
    hands.events.push_back(wrote);
    rest(&mut endpoint, &mut hands, now, 2);
    assert_eq!((hands.in_use(), hands.forgotten), (0, vec![channel]));
    assert_eq!(endpoint.keeper_due(), None);
}

/// Of its peer a write may still come: the connection keeps its slot, and the memory of the receive counts as exposed.
#[test]
fn a_channel_that_has_failed_with_a_receive_lent_is_forgotten_once_that_is_closed() {
    for messages in [false, true] {
        let (mut endpoint, mut hands, channel, first) = settled();
        endpoint.disconnect(first.slot);
        let name = endpoint.vacant().unwrap();
        let terms = Terms { messages, ..Terms::of_two_rails(name) };
        assert!(endpoint.connect(name, channel, Flow::Receive(ReceiveFlow::new(terms)), ms(5)));
        post(&mut endpoint, &mut hands, name.slot);
        (6..9).for_each(|now| endpoint.progress(&mut hands, ms(now)));
        assert!(matches!(hands.frames[..], [Frame::Advert(_)]), "{:?}", hands.frames);
        assert_eq!(hands.tagged.len(), usize::from(messages));
        let number = endpoint.channel(channel).unwrap().shadow().next().plus(u32::MAX);
        let write = WriteId { epoch: Epoch(1), what: Written::Packet(number) };
        hands.events.push_back(Event::Wrote { channel, write, rail: 0, well: true });
        endpoint.fail(channel, Cause::NoRail);
        let now = rest(&mut endpoint, &mut hands, 9, 80);
        assert_eq!(hands.forgotten, [], "it is not closed");
        endpoint.with(&mut hands, name.slot, ms(now), |flow, account| flow.close(account));
        let now = rest(&mut endpoint, &mut hands, now, 2);
        if messages {
            assert_eq!(hands.forgotten, [], "the provider has not returned it");
            let (Name { slot, generation }, line) = (name, Line::FIRST);
            let event = flow::Event::ReceiveEnded { line };
            hands.events.push_back(Event::Connection { slot, generation, event });
            rest(&mut endpoint, &mut hands, now, 2);
        }
        assert_eq!((hands.in_use(), &hands.forgotten[..]), (0, &[channel][..]));
        assert_eq!(receiver(&mut endpoint, name.slot).exposed(), u32::from(!messages));
    }
}

/// NCCL tests the requests of many channels one by one, and waits for each.
#[test]
fn a_poll_for_one_of_many_channels_reads_its_inbox_and_all_others_in_turn() {
    let (mut endpoint, mut hands, channels) = with_channels(1000, 1);
    let awaited = endpoint.table.slots_of(channels[500])[0];
    let mut now = ms(5);
    let mut polls = |endpoint: &mut ProgressLoop<Flow>, hands: &mut StandIn, micros: u64| {
        now = now.plus(Duration::from_micros(micros));
        hands.looks = 0;
        endpoint.progress_for(hands, awaited, now);
        hands.looks as usize
    };
    polls(&mut endpoint, &mut hands, 300);
    polls(&mut endpoint, &mut hands, 300);
    let a_few = INBOXES_PER_POLL..=INBOXES_PER_POLL + 1;
    assert!(a_few.contains(&polls(&mut endpoint, &mut hands, 10)));
    for channel in [0, 500, 999].map(|at| channels[at]) {
        let slot = endpoint.table.slots_of(channel)[0];
        let asks = withdraw(endpoint.table.name(slot));
        hands.says_first(endpoint.channel(channel).unwrap(), &[asks]);
        hands.frames.clear();
        let most = if slot == awaited { 1 } else { 1000_usize.div_ceil(INBOXES_PER_POLL) };
        let answered = (0..most).any(|_| {
            polls(&mut endpoint, &mut hands, 10);
            !hands.frames.is_empty()
        });
        assert!(answered, "{channel:?}");
    }
    polls(&mut endpoint, &mut hands, 300);
    polls(&mut endpoint, &mut hands, 300);
    let rare = polls(&mut endpoint, &mut hands, 100);
    assert!(rare >= 1000, "after a while all inboxes are read: {rare}");
}
