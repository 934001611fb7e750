//! Groups, and messages that are too long for their receives.

mod pair;

use pair::{Pair, parameters};
use proto::{FlowParameters, Line, ProtocolError, ReceivePoll, SendPoll, Submit, Window};

fn grouped() -> Pair {
    Pair::new(FlowParameters { window: Window::GROUPED, ..parameters() })
}

#[test]
fn a_group_is_invisible_until_all_its_adverts_are_there() {
    for landed in 0_u32..1 << 4 {
        let mut pair = grouped();
        pair.post(&[(8, 1), (8, 2), (8, 3), (8, 4)], false);
        let write = pair.receiver.next_write(&mut pair.staging).unwrap();
        assert_eq!(write.count, 4);
        for place in (0..4).filter(|place| landed & 1 << place != 0) {
            pair.carry(place);
        }
        for tag in 1..=4 {
            let expected = (landed == 0b1111).then(|| Line::new(tag - 1));
            let line = pair.send(tag.cast_signed(), 8).map(|(line, _)| line);
            assert_eq!(line, expected, "landed {landed:b}");
        }
    }
}

#[test]
fn a_tag_chooses_inside_the_first_unfinished_group_only() {
    let mut pair = grouped();
    pair.post(&[(8, 1), (8, 2)], false);
    pair.post(&[(8, 3), (8, 1)], false);
    while pair.advertise().is_some() {}
    assert_eq!(pair.send(3, 8), None, "3 is in the second group");
    assert_eq!(pair.send(1, 8).unwrap().0, Line::new(0));
    assert_eq!(pair.send(1, 8), None, "the first group's 1 is taken");
    assert_eq!(pair.send(9, 8), None, "9 is nowhere");
    assert_eq!(pair.send(2, 8).unwrap().0, Line::new(1));
    assert_eq!(pair.send(1, 8).unwrap().0, Line::new(3));
    assert_eq!(pair.send(3, 8).unwrap().0, Line::new(2));
}

#[test]
fn equal_tags_in_a_group_are_taken_in_order() {
    let mut pair = grouped();
    pair.post(&[(8, 5), (8, 6), (8, 5)], false);
    pair.advertise();
    let lines = [5, 5, 6].map(|tag| pair.send(tag, 8).unwrap().0.number());
    assert_eq!(lines, [0, 2, 1]);
}

#[test]
fn the_tag_of_a_single_receive_counts_only_where_groups_may_come() {
    let mut pair = grouped();
    pair.post(&[(8, 5)], false);
    pair.post(&[(8, -1), (8, 5)], false);
    while pair.advertise().is_some() {}
    assert_eq!(pair.send(-1, 8), None, "the first receive is of another connection");
    assert_eq!(pair.send(5, 8).unwrap().0, Line::new(0));
    assert_eq!(pair.send(-1, 8).unwrap().0, Line::new(1));
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 5)], false);
    pair.advertise();
    assert!(pair.send(-1, 8).is_some());
}

#[test]
fn a_group_is_done_when_all_its_lines_are() {
    let mut pair = grouped();
    let first = pair.post(&[(8, 1), (16, 2), (24, 3)], false).unwrap();
    pair.advertise();
    for (tag, len) in [(3, 20), (1, 8), (2, 0)] {
        assert_eq!(pair.receiver.poll(first), ReceivePoll::Pending);
        let (_, immediate) = pair.send(tag, len).unwrap();
        pair.receiver.arrived(0, immediate, len);
    }
    assert_eq!(pair.receiver.poll(first), ReceivePoll::Done { count: 3 });
    let sizes = [0, 1, 2].map(|index| pair.receiver.size(first.plus(index)));
    assert_eq!(sizes, [8, 0, 20]);
    assert_eq!(pair.receiver.poll(first), ReceivePoll::Pending, "it is said once");
}

#[test]
fn done_reaches_into_a_group_only_as_far_as_it_is_taken() {
    let mut pair = grouped();
    pair.post(&[(8, 1), (8, 2), (8, 3)], false);
    pair.advertise();
    let (third, immediate) = pair.send(3, 8).unwrap();
    pair.sender.written(third);
    pair.receiver.arrived(0, immediate, 8);
    assert_eq!(pair.sender.submitted(), Line::new(0));
    assert!(!pair.receiver.owes_done(), "the first is not complete");
    let (_, immediate) = pair.send(1, 8).unwrap();
    pair.receiver.arrived(0, immediate, 8);
    assert_eq!(pair.sender.submitted(), Line::new(1));
    assert_eq!(pair.receiver.done(), Line::new(1));
}

#[test]
fn a_message_too_long_fails_on_both_ends_with_both_sizes() {
    let mut pair = grouped();
    let first = pair.post(&[(8, 1), (100, 2)], false).unwrap();
    pair.advertise();
    let cause = ProtocolError::TooLong { line: Line::new(1), sent: 101, posted: 100 };
    assert_eq!(pair.sender.submit(&pair.mailbox, 2, 101).unwrap_err(), cause);
    assert_eq!(pair.sender.submit(&pair.mailbox, 1, 8).unwrap_err(), cause, "it sticks");
    let fin = pair.sender.failed_fin().unwrap();
    assert_eq!(pair.sender.failed_fin(), Some(fin), "a refused post is asked for again");
    pair.sender.failed_fin_posted();
    assert_eq!(pair.sender.failed_fin(), None);
    // The line before it never comes.
    pair.write_fin(fin.place, &fin.words);
    assert_eq!(pair.receiver.read_fins(&pair.fins), 0);
    assert_eq!(pair.receiver.poll(first), ReceivePoll::Failed(cause));
    assert!(cause.to_string().contains("101") && cause.to_string().contains("100"));
}

#[test]
fn messages_complete_before_a_failure_are_still_reported() {
    let mut pair = Pair::new(parameters());
    let first = pair.exchange();
    pair.post(&[(8, 0)], false);
    pair.advertise();
    assert!(pair.sender.submit(&pair.mailbox, 0, 9).is_err());
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(first), SendPoll::Done { len: 8 });
}

#[test]
fn a_message_too_long_is_cut_where_that_was_agreed() {
    let mut pair = Pair::new(parameters());
    let first = pair.post(&[(100, 0)], true).unwrap();
    pair.advertise();
    let Ok(Submit::Accepted(message)) = pair.sender.submit(&pair.mailbox, 0, 5000) else {
        panic!("the advert is there");
    };
    assert_eq!((message.len, message.whole), (100, true));
    let part = proto::Part { index: 0, rail: 0, offset: 0, len: 100, last: true };
    let immediate = message.immediate(&part);
    pair.receiver.arrived(0, immediate, 100);
    assert_eq!(pair.receiver.poll(first), ReceivePoll::Done { count: 1 });
    assert_eq!(pair.receiver.size(first), 100);
}

#[test]
fn a_wrong_number_of_receives_or_keys_is_an_error_and_takes_no_line() {
    let mut pair = Pair::new(parameters());
    let receive = |keys| proto::Receive { address: 0, len: 8, tag: 0, keys };
    for keys in [&[][..], &[1], &[1, 2, 3]] {
        let posted = pair.receiver.post(&mut pair.staging, &[receive(keys)], false);
        assert!(matches!(posted, Err(ProtocolError::Misuse(_))));
    }
    assert!(pair.receiver.post(&mut pair.staging, &[], false).is_err());
    let nine = [receive(&[1, 2]); 9];
    assert!(pair.receiver.post(&mut pair.staging, &nine, false).is_err());
    assert_eq!(pair.receiver.outstanding(), 0);
    assert_eq!(pair.post(&[(8, 0)], false), Some(Line::FIRST));
}
