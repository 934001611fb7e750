//! Receives whose completion is optional.

mod pair;

use pair::{Pair, parameters};
use proto::{FlowParameters, Line, ReceivePoll, Window};

fn proving() -> FlowParameters {
    FlowParameters { sends_arrive_when_complete: true, ..parameters() }
}

#[test]
fn a_receive_whose_completion_is_optional_is_reported_once_its_advert_is_out() {
    let mut pair = Pair::new(proving());
    let line = pair.post(&[(8, 0)], false).unwrap();
    assert!(!pair.receiver.poll_early(line), "the sender knows nothing of it");
    pair.advertise();
    assert!(pair.receiver.holds(line));
    assert!(pair.receiver.poll_early(line));
    assert!(!pair.receiver.poll_early(line), "it was reported");
    assert!(!pair.receiver.holds(line));
    assert_eq!(pair.receiver.outstanding(), 0);
    let (_, immediate) = pair.send(0, 8).unwrap();
    pair.receiver.arrived(0, immediate, 8);
    assert_eq!(pair.receiver.poll(line), ReceivePoll::Pending, "it was reported");
    assert_eq!(pair.receiver.done(), line.plus(1));
}

#[test]
fn a_line_that_was_reported_early_stays_in_the_window_until_its_bytes_are_there() {
    let window = Window::new(4, 1, 3).unwrap();
    let mut pair = Pair::new(FlowParameters { window, ..proving() });
    for number in 0..3 {
        let line = pair.post(&[(8, 0)], false).unwrap();
        pair.receiver.hasten();
        pair.advertise();
        assert!(pair.receiver.poll_early(line), "line {number}");
    }
    assert_eq!(pair.post(&[(8, 0)], false), None, "three lines are without their bytes");
    let (_, immediate) = pair.send(0, 8).unwrap();
    pair.receiver.arrived(0, immediate, 8);
    assert_eq!(pair.post(&[(8, 0)], false), Some(Line::new(3)));
}

#[test]
fn a_sender_that_waits_for_done_is_not_left_waiting() {
    let mut pair = Pair::new(parameters());
    let line = pair.post(&[(8, 0)], false).unwrap();
    pair.advertise();
    assert!(!pair.receiver.poll_early(line));
}

#[test]
fn a_group_is_never_reported_early() {
    let mut pair = Pair::new(FlowParameters { window: Window::GROUPED, ..proving() });
    let line = pair.post(&[(8, 0), (8, 1)], false).unwrap();
    pair.advertise();
    assert!(!pair.receiver.poll_early(line));
}
