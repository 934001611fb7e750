//! Frames and immediates that no correct peer sends: each is refused or dropped, and does no harm.

use proto::connection::{ChannelEnd, Which};
use proto::frame::{Advert, Close, Fin, FinStatus, Inline, Keys, Lines};
use proto::ids::Moment;
use proto::receive::{Arrival, Dropped, Place};
use proto::send::Outgoing;
use proto::{
    Account, Breach, Fault, Frame, Immediate, InlineLimits, Posting, Receive, ReceiveFlow,
    ReceivePoll, SendFlow, SendPoll, Source, Submit, Target, Terms, Urgency, Violation,
};
use proto::{Line, RailSet};

use crate::program::{name, terms};

const NOW: Moment = Moment::from_nanos(1);

fn grouped() -> Terms {
    Terms { grouped: true, ..terms() }
}

fn account() -> Account {
    Account::new(1)
}

fn advert(line: u32) -> Advert {
    Advert {
        to: name(9, 2),
        line: Line::new(line),
        tag: 0,
        address: 4096,
        len: 1 << 20,
        cut: false,
        host: true,
        ends_group: true,
        keys: Keys::new(&[7]).unwrap(),
    }
}

fn keys(count: usize) -> Keys {
    Keys::new(&vec![0; count]).unwrap()
}

fn message(len: u64) -> Outgoing {
    Outgoing { tag: 0, len, source: Source::default(), host: true }
}

fn hears(flow: &mut SendFlow, frame: Frame) -> Result<(), Violation> {
    flow.received(&frame, &mut account()).map_err(|Breach(violation)| violation)
}

fn lines(first: u32, set: u64) -> Lines {
    Lines { to: name(9, 2), first: Line::new(first), set }
}

fn close(parts: usize) -> Frame {
    Frame::Close(Close { to: name(9, 2), lines: Line::FIRST, parts: keys(parts) })
}

#[test]
fn a_sender_refuses_adverts_that_no_receiver_sends() {
    for terms in [terms(), grouped()] {
        for line in [64, 100, u32::MAX / 2, u32::MAX - 100] {
            let mut flow = SendFlow::new(terms);
            let heard = hears(&mut flow, Frame::Advert(advert(line)));
            assert_eq!(heard, Err(Violation::AdvertLine), "{line}");
            assert_eq!(flow.fault(), Some(Fault::Violation(Violation::AdvertLine)));
        }
        let mut flow = SendFlow::new(terms);
        assert_eq!(hears(&mut flow, Frame::Advert(advert(63))), Ok(()));
        assert_eq!(hears(&mut flow, Frame::Advert(advert(63))), Err(Violation::AdvertLine));
        for count in [2, 16] {
            let wrong = Advert { keys: keys(count), ..advert(0) };
            let heard = hears(&mut SendFlow::new(terms), Frame::Advert(wrong));
            assert_eq!(heard, Err(Violation::Keys));
        }
    }
    let half = Advert { ends_group: false, ..advert(0) };
    let heard = hears(&mut SendFlow::new(terms()), Frame::Advert(half));
    assert_eq!(heard, Err(Violation::AdvertLine), "there are no groups");
}

#[test]
fn a_sender_refuses_a_group_of_more_than_eight() {
    let mut flow = SendFlow::new(grouped());
    for line in 0..8 {
        let heard = hears(&mut flow, Frame::Advert(Advert { ends_group: false, ..advert(line) }));
        assert_eq!(heard, if line < 7 { Ok(()) } else { Err(Violation::Group) });
    }
}

#[test]
fn a_sender_refuses_a_done_beyond_what_it_has_sent() {
    for terms in [terms(), grouped()] {
        for sent in 0..4_u32 {
            for done in 0..8_u32 {
                let mut flow = SendFlow::new(terms);
                let mut account = account();
                for _ in 0..sent {
                    let submitted = flow.submit(&message(8), 600, &mut account);
                    assert!(matches!(submitted, Ok(Submit::Inline { .. })));
                }
                let frame = Frame::Done { to: name(9, 2), lines: Line::new(done) };
                let heard = flow.received(&frame, &mut account);
                assert_eq!(heard.is_ok(), done <= sent, "{done} of {sent}");
                if done <= sent {
                    assert_eq!(account.sent, (sent - done) * 72);
                    let back =
                        Frame::Done { to: name(9, 2), lines: Line::new(done.wrapping_sub(1)) };
                    assert_eq!(hears(&mut flow, back), Err(Violation::Done));
                }
            }
        }
    }
}

#[test]
fn done_does_not_pass_an_advertised_line_that_no_message_has() {
    let mut flow = SendFlow::new(grouped());
    let mut account = account();
    assert!(flow.submit(&Outgoing { tag: 5, ..message(8) }, 600, &mut account).is_ok());
    let half = Advert { ends_group: false, ..advert(0) };
    assert!(flow.received(&Frame::Advert(half), &mut account).is_ok());
    let frame = Frame::Done { to: name(9, 2), lines: Line::new(1) };
    assert_eq!(flow.received(&frame, &mut account), Err(Breach(Violation::Done)));
}

#[test]
fn done_does_not_pass_a_group_that_is_open() {
    for taken in 0..2 {
        for done in 0..4 {
            let mut flow = SendFlow::new(grouped());
            let mut account = account();
            for line in 0..2 {
                let advert = Advert { ends_group: line == 1, ..advert(line) };
                flow.received(&Frame::Advert(advert), &mut account).unwrap();
            }
            for _ in 0..taken {
                assert!(flow.submit(&message(8), 600, &mut account).is_ok());
            }
            let frame = Frame::Done { to: name(9, 2), lines: Line::new(done) };
            assert_eq!(flow.received(&frame, &mut account).is_ok(), done <= taken);
        }
    }
}

#[test]
fn an_advert_cannot_move_a_message_that_is_being_written() {
    let inline = InlineLimits { unadvertised: 0, host: 0 };
    let mut flow = SendFlow::new(Terms { inline, ..terms() });
    let mut account = account();
    hears(&mut flow, Frame::Advert(advert(0))).unwrap();
    assert!(matches!(
        flow.submit(&message(9000), 600, &mut account),
        Ok(Submit::Parts { long: false, .. })
    ));
    let before = flow.next_part(&account);
    assert_eq!(hears(&mut flow, Frame::Advert(advert(64))), Err(Violation::AdvertLine));
    assert_eq!(flow.next_part(&account), before);
}

/// A message that went inline is not written, whether its advert came before it, after it or never.
#[test]
fn a_sender_answers_a_withdrawal_with_the_lines_that_it_writes_to_and_no_other() {
    for terms in [terms(), grouped()] {
        let (mut flow, mut account) = (SendFlow::new(terms), account());
        for line in 0..3 {
            assert!(matches!(
                flow.submit(&message(8), 600, &mut account),
                Ok(Submit::Inline { .. })
            ));
            if terms.grouped && line < 2 {
                flow.received(&Frame::Advert(advert(line)), &mut account).unwrap();
            }
        }
        if terms.grouped {
            flow.received(&Frame::Advert(advert(2)), &mut account).unwrap();
        }
        for line in [3, 4] {
            flow.received(&Frame::Advert(advert(line)), &mut account).unwrap();
        }
        let submitted = flow.submit(&message(1 << 20), 600, &mut account);
        assert!(matches!(submitted, Ok(Submit::Parts { .. })), "{submitted:?}");
        let asked = Frame::Withdraw(lines(0, 0x1F));
        flow.received(&asked, &mut account).unwrap();
        let answer = flow.next_frame(Which::Others, 100);
        let expected = Lines { to: name(3, 5), ..lines(0, 1 << 3) };
        assert_eq!(answer, Some(Frame::Withdrawn(expected)));
    }
}

#[test]
fn a_sender_refuses_ends_that_come_twice_and_frames_of_the_other_direction() {
    let mut flow = SendFlow::new(terms());
    assert_eq!(hears(&mut flow, Frame::Withdraw(lines(0, 1))), Ok(()));
    assert_eq!(hears(&mut flow, Frame::Withdraw(lines(0, 1))), Err(Violation::Ending));
    let mut flow = SendFlow::new(terms());
    assert_eq!(hears(&mut flow, close(1)), Ok(()));
    assert_eq!(hears(&mut flow, close(1)), Err(Violation::Ending));
    for frame in [
        Frame::Withdrawn(lines(0, 1)),
        Frame::Fin(fin(0, 0, FinStatus::Delivered)),
        Frame::Inline(inline(0, 0, true)),
        Frame::End,
    ] {
        assert_eq!(hears(&mut SendFlow::new(terms()), frame), Err(Violation::Direction));
        let mut receiver = ReceiveFlow::new(terms());
        if matches!(frame, Frame::End) {
            let heard = receiver.received(&frame, &mut account(), NOW);
            assert_eq!(heard, Err(Breach(Violation::Direction)));
        }
    }
    let heard = ReceiveFlow::new(terms()).received(&Frame::Advert(advert(0)), &mut account(), NOW);
    assert_eq!(heard, Err(Breach(Violation::Direction)));
}

#[test]
fn completions_of_parts_that_were_not_posted_or_ended_already_change_nothing() {
    let inline = InlineLimits { unadvertised: 0, host: 0 };
    let mut flow = SendFlow::new(Terms { inline, ..terms() });
    let mut account = account();
    hears(&mut flow, Frame::Advert(advert(0))).unwrap();
    let Ok(Submit::Parts { message, long: true }) = flow.submit(&message(1 << 20), 0, &mut account)
    else {
        panic!("it takes parts");
    };
    let write = flow.next_part(&account).unwrap();
    flow.written(message, write.part, &mut account, Moment::default());
    assert_eq!(flow.poll(message), SendPoll::Pending, "it was not posted");
    flow.posted(&write, &mut account);
    flow.written(message, 1, &mut account, Moment::default());
    flow.written(message, 70, &mut account, Moment::default());
    assert_eq!((flow.poll(message), flow.in_flight()), (SendPoll::Pending, 1));
    flow.written(message, write.part, &mut account, Moment::default());
    flow.written(message, write.part, &mut account, Moment::default());
    assert_eq!(flow.in_flight(), 0);
    assert_eq!(flow.poll(message), SendPoll::Done { len: 1 << 20 });
    assert_eq!(flow.poll(message), SendPoll::Pending, "done is returned once");
}

fn fin(line: u32, len: u64, status: FinStatus) -> Fin {
    Fin { to: name(3, 5), line: Line::new(line), len, rails: RailSet::of(0), status }
}

fn inline(line: u32, len: u16, advertised: bool) -> Inline {
    let line = Line::new(line);
    Inline { to: name(3, 5), line, advertised, tag: 0, base: line, len }
}

/// A receiver with `posted` receives of 1000 bytes, of which the first `advertised` were advertised.
fn receiver(terms: Terms, posted: u32, advertised: u32) -> (ReceiveFlow, Account) {
    let (mut flow, mut account) = (ReceiveFlow::new(terms), account());
    for _ in 0..posted {
        let target = Target { address: 0, region: 0 };
        let receive = Receive { target, address: 0, len: 1000, tag: 0, host: true };
        flow.post(&[receive], &[7], Posting::default(), &account, NOW).unwrap().unwrap();
    }
    for _ in 0..advertised {
        assert!(flow.next_frame(Which::Adverts, 5, &mut account, NOW).is_some());
    }
    (flow, account)
}

fn part(line: u32, part: u32, last: bool, length: u32) -> Immediate {
    Immediate::new(name(3, 5).in_immediate(), Line::new(line), part, last, false, length)
}

#[test]
fn duplicate_and_invalid_parts_are_dropped_and_counted() {
    let (mut flow, mut account) = receiver(terms(), 3, 2);
    let mut arrives =
        |flow: &mut ReceiveFlow, immediate| flow.arrived(0, immediate, 100, &mut account, NOW);
    assert_eq!(arrives(&mut flow, part(2, 0, true, 5)), Arrival::Late, "not advertised");
    assert_eq!(arrives(&mut flow, part(255, 0, true, 5)), Arrival::Late, "before the first");
    assert_eq!(arrives(&mut flow, part(0, 1, false, 5)), Arrival::Progress);
    assert_eq!(arrives(&mut flow, part(0, 1, false, 5)), Arrival::Duplicate);
    assert_eq!(arrives(&mut flow, part(0, 0, true, 5)), Arrival::Violation, "last before another");
    assert_eq!(arrives(&mut flow, part(0, 1, true, 5)), Arrival::Duplicate);
    assert_eq!(arrives(&mut flow, part(0, 2, true, 300)), Arrival::Progress);
    assert_eq!(arrives(&mut flow, part(0, 3, true, 300)), Arrival::Violation, "a second last");
    assert_eq!(arrives(&mut flow, part(0, 3, false, 300)), Arrival::Violation, "after the last");
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Pending);
    assert_eq!(arrives(&mut flow, part(0, 0, false, 300)), Arrival::Complete(Line::new(0)));
    assert_eq!(arrives(&mut flow, part(0, 0, false, 300)), Arrival::Late);
    assert_eq!(arrives(&mut flow, part(1, 0, true, 1000)), Arrival::Complete(Line::new(1)));
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Done { count: 1 });
    assert_eq!((flow.size(Line::new(0)), flow.carried(Line::new(0))), (300, RailSet::of(0)));
    assert_eq!(flow.dropped(), Dropped { late: 3, duplicates: 2, violations: 3 });
    assert_eq!(flow.fault(), None);
    assert_eq!(account.counts.seen.get(0), 12, "dropped ones are counted too");
}

#[test]
fn a_part_of_a_complete_line_between_open_ones_is_a_duplicate() {
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    let second = part(1, 0, true, 7);
    assert_eq!(flow.arrived(0, second, 0, &mut account, NOW), Arrival::Complete(Line::new(1)));
    assert_eq!(flow.arrived(0, second, 0, &mut account, NOW), Arrival::Duplicate);
    assert_eq!(flow.poll(Line::new(1)), ReceivePoll::Done { count: 1 });
    assert_eq!(flow.arrived(0, second, 0, &mut account, NOW), Arrival::Duplicate);
    assert_eq!(flow.size(Line::new(1)), 7);
}

#[test]
fn more_bytes_than_a_receive_has_room_for_fail_the_connection() {
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    let arrival = flow.arrived(0, part(0, 0, true, 1001), 0, &mut account, NOW);
    assert_eq!(arrival, Arrival::Violation);
    let size = Violation::Size { said: 1001, posted: 1000 };
    assert_eq!(flow.fault(), Some(Fault::Violation(size)));
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    let frame = Frame::Fin(fin(0, 1001, FinStatus::Delivered));
    assert_eq!(flow.received(&frame, &mut account, NOW), Err(Breach(size)));
}

#[test]
fn fins_for_lines_that_are_not_open_are_refused() {
    for (line, posted, advertised) in
        [(0, 0, 0), (0, 1, 0), (1, 2, 1), (u32::MAX, 1, 1), (64, 1, 1)]
    {
        let (mut flow, mut account) = receiver(terms(), posted, advertised);
        for status in [FinStatus::Delivered, FinStatus::Failed, FinStatus::TooLong] {
            let heard = flow.received(&Frame::Fin(fin(line, 5, status)), &mut account, NOW);
            // A message may have arrived although its sender gave it up.
            let refused = status != FinStatus::Failed || line != u32::MAX;
            assert_eq!(heard.is_err(), refused, "{line} {posted} {advertised}");
        }
    }
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    flow.arrived(0, part(0, 0, false, 5), 0, &mut account, NOW);
    let heard = flow.received(&Frame::Fin(fin(0, 5, FinStatus::Delivered)), &mut account, NOW);
    assert_eq!(heard, Err(Breach(Violation::Fin)), "parts have come");
}

#[test]
fn a_message_that_its_sender_gave_up_fails_the_receiver() {
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    flow.received(&Frame::Fin(fin(0, 5, FinStatus::Failed)), &mut account, NOW).unwrap();
    let fault = Fault::PeerFailed { line: Line::new(0) };
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Failed(fault));
    // Parts of it have arrived.
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    flow.arrived(0, part(0, 0, false, 5), 0, &mut account, NOW);
    flow.received(&Frame::Fin(fin(0, 5, FinStatus::Failed)), &mut account, NOW).unwrap();
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Failed(fault));
    // All of it has arrived; and lines that cannot have been begun, or were completed long ago.
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    flow.arrived(0, part(0, 0, true, 5), 0, &mut account, NOW);
    flow.received(&Frame::Fin(fin(0, 5, FinStatus::Failed)), &mut account, NOW).unwrap();
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Done { count: 1 });
    for (line, refused) in [(1, true), (64, true), (u32::MAX - 63, true), (u32::MAX - 62, false)] {
        let heard = flow.received(&Frame::Fin(fin(line, 5, FinStatus::Failed)), &mut account, NOW);
        assert_eq!(heard.is_err(), refused, "{line}");
    }
}

#[test]
fn inline_messages_for_lines_that_are_not_open_are_refused() {
    for (line, len, posted, advertised) in [
        (0, 8, 0, 0),
        (0, 8, 1, 0),
        (1, 8, 2, 1),
        (0, 1001, 1, 1),
        (0, 600, 1, 1),
        (u32::MAX, 8, 1, 1),
    ] {
        let (mut flow, mut account) = receiver(terms(), posted, advertised);
        let heard = flow.received(&Frame::Inline(inline(line, len, true)), &mut account, NOW);
        assert_eq!(heard, Err(Breach(Violation::Inline)), "{line} {len} {posted} {advertised}");
    }
    for line in [u32::MAX, 64 + 1, 1 << 31] {
        let (mut flow, mut account) = receiver(terms(), 1, 1);
        let heard = flow.received(&Frame::Inline(inline(line, 8, false)), &mut account, NOW);
        assert_eq!(heard, Err(Breach(Violation::Inline)), "{line}");
    }
    let (mut flow, mut account) = receiver(grouped(), 1, 1);
    let heard = flow.received(&Frame::Inline(inline(2, 8, false)), &mut account, NOW);
    assert_eq!(heard, Err(Breach(Violation::Inline)), "its base is before it");
}

#[test]
fn inline_messages_beyond_the_credit_are_refused() {
    let (mut flow, mut account) = receiver(terms(), 0, 0);
    for line in 0..64 {
        let place = flow.received(&Frame::Inline(inline(line, 8, false)), &mut account, NOW);
        assert!(matches!(place, Ok(Some(Place::Parked(_)))));
    }
    let (mut flow, mut account) = receiver(grouped(), 0, 0);
    for line in 0..65 {
        let message = Inline { base: Line::FIRST, ..inline(line, 8, false) };
        let heard = flow.received(&Frame::Inline(message), &mut account, NOW);
        assert_eq!(heard.is_ok(), line < 64);
    }
    let (mut flow, mut account) = receiver(terms(), 1, 1);
    let heard = flow.received(&Frame::Inline(inline(0, 513, false)), &mut account, NOW);
    assert_eq!(heard, Err(Breach(Violation::Credit)), "longer than the terms allow");
}

#[test]
fn a_receiver_refuses_unexpected_ends() {
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    let answer = Frame::Withdrawn(lines(0, 1));
    assert_eq!(flow.received(&answer, &mut account, NOW), Err(Breach(Violation::Ending)));
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    flow.withdraw();
    assert_eq!(flow.urgency(&account, NOW), Urgency::Waited);
    assert_eq!(flow.received(&answer, &mut account, NOW), Err(Breach(Violation::Ending)));
    let asked = flow.next_frame(Which::Others, 3, &mut account, NOW);
    assert_eq!(asked, Some(Frame::Withdraw(Lines { to: name(3, 5), ..lines(0, 3) })));
    assert_eq!(flow.exposed(), 2);
    let other = Frame::Withdrawn(lines(1, 1));
    assert_eq!(flow.received(&other, &mut account, NOW), Err(Breach(Violation::Ending)));
    flow.received(&Frame::Withdrawn(lines(0, 2)), &mut account, NOW).unwrap();
    assert_eq!(flow.exposed(), 1);
    assert_eq!(flow.received(&answer, &mut account, NOW), Err(Breach(Violation::Ending)));
    flow.arrived(0, part(1, 0, true, 5), 0, &mut account, NOW);
    assert_eq!(flow.exposed(), 0);
    assert!(flow.received(&close(1), &mut account, NOW).is_ok());
    assert_eq!(flow.received(&close(1), &mut account, NOW), Err(Breach(Violation::Ending)));
    let late = Frame::Inline(inline(0, 8, true));
    assert_eq!(flow.received(&late, &mut account, NOW), Err(Breach(Violation::Ending)));
    let (mut flow, mut account) = receiver(terms(), 0, 0);
    assert_eq!(flow.received(&close(2), &mut account, NOW), Err(Breach(Violation::Ending)));
}

#[test]
fn a_closed_sender_with_parts_in_flight_keeps_the_slot_in_quarantine() {
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    let parts = Keys::new(&[1]).unwrap();
    let closes = Frame::Close(Close { to: name(9, 2), lines: Line::new(1), parts });
    flow.received(&closes, &mut account, NOW).unwrap();
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Pending, "its part is in flight");
    flow.close(&mut account);
    while flow.next_frame(Which::Others, 9, &mut account, NOW).is_some() {}
    assert!(flow.has_closed() && !flow.is_over());
    assert_eq!(flow.exposed(), 2);
    flow.arrived(0, part(0, 0, true, 5), 0, &mut account, NOW);
    assert!(flow.is_over());
    assert_eq!(flow.exposed(), 0);
    assert_eq!(flow.poll(Line::new(0)), ReceivePoll::Done { count: 1 });
}

/// A write without an immediate has failed there, and may land all the same: no count shows it.
#[test]
fn a_closed_sender_with_a_lost_rail_keeps_the_memory_in_quarantine_until_the_rail_is_fenced() {
    let (mut flow, mut account) = receiver(terms(), 2, 2);
    flow.rail_left(0);
    let parts = Keys::new(&[0]).unwrap();
    let closes = Frame::Close(Close { to: name(9, 2), lines: Line::new(1), parts });
    flow.received(&closes, &mut account, NOW).unwrap();
    flow.close(&mut account);
    while flow.next_frame(Which::Others, 9, &mut account, NOW).is_some() {}
    assert!(!flow.is_over());
    assert_eq!(flow.exposed(), 2);
    flow.rail_fenced(0);
    assert!(flow.is_over());
    assert_eq!(flow.exposed(), 0);
}

#[test]
fn parked_messages_outlive_the_close_of_their_sender() {
    for terms in [terms(), grouped()] {
        let (mut flow, mut account) = receiver(terms, 0, 0);
        let place = flow.received(&Frame::Inline(inline(0, 8, false)), &mut account, NOW).unwrap();
        let Some(Place::Parked(parked)) = place else { panic!("it waits") };
        account.parking.fill(parked, |_| 42);
        flow.received(&close(1), &mut account, NOW).unwrap();
        // Also the end of the channel.
        flow.ended(ChannelEnd::ByPeer);
        let receive =
            Receive { target: Target::default(), address: 0, len: 64, tag: 0, host: true };
        let line = flow.post(&[receive], &[7], Posting::default(), &account, NOW).unwrap().unwrap();
        assert_eq!(flow.poll(line), ReceivePoll::Pending);
        let copy = flow.next_copy(&account.parking).unwrap();
        flow.unparked(copy, &mut account, NOW);
        assert_eq!(flow.poll(line), ReceivePoll::Done { count: 1 });
        assert_eq!(
            flow.post(&[receive], &[7], Posting::default(), &account, NOW),
            Err(Fault::Closed)
        );
    }
}

#[test]
fn calls_that_are_not_allowed_are_errors() {
    let (mut flow, account) = receiver(terms(), 0, 0);
    let one = Receive { target: Target::default(), address: 0, len: 8, tag: 0, host: true };
    let wrong: [(&[Receive], &[u64]); 3] = [(&[], &[]), (&[one, one], &[7, 8]), (&[one], &[7, 8])];
    for (receives, keys) in wrong {
        let posted = flow.post(receives, keys, Posting::default(), &account, NOW);
        assert!(matches!(posted, Err(Fault::Misuse(_))), "{posted:?}");
    }
    let (mut flow, account) = receiver(grouped(), 0, 0);
    assert!(matches!(
        flow.post(&[one; 9], &[7; 9], Posting::default(), &account, NOW),
        Err(Fault::Misuse(_))
    ));
    assert_eq!(
        flow.post(&[one; 8], &[7; 8], Posting::default(), &account, NOW),
        Ok(Some(Line::FIRST))
    );
}
