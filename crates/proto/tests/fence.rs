//! Receives that are withdrawn: what was begun is waited for, what was not is free.

mod pair;

use pair::{Pair, parameters};
use proto::{Begun, FlowParameters, Line, Path, ProtocolError};

fn exposed(pair: &Pair) -> Vec<Line> {
    pair.receiver.exposed().collect()
}

#[test]
fn what_is_advertised_is_exposed_until_the_sender_says_what_it_has_begun() {
    let mut pair = Pair::new(parameters());
    let lines: Vec<Line> = (0..4).map(|_| pair.post(&[(8, 0)], false).unwrap()).collect();
    assert_eq!(exposed(&pair), [], "nothing is advertised yet");
    while pair.advertise().is_some() {}
    let (_, first) = pair.send(0, 8).unwrap();
    let (_, second) = pair.send(0, 8).unwrap();
    pair.receiver.withdraw();
    assert_eq!(exposed(&pair), lines);
    pair.receiver.arrived(0, first, 8);
    assert_eq!(exposed(&pair), lines[1..]);
    pair.sender.fail(ProtocolError::Withdrawn);
    pair.receiver.fenced(pair.sender.begun());
    assert_eq!(exposed(&pair), lines[1..2], "the second was begun");
    pair.receiver.arrived(0, second, 8);
    assert_eq!(exposed(&pair), []);
}

#[test]
fn a_sender_that_never_opened_the_connection_has_begun_nothing() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0)], false).unwrap();
    while pair.advertise().is_some() {}
    pair.receiver.withdraw();
    assert_eq!(exposed(&pair).len(), 1);
    pair.receiver.fenced(Begun::NOTHING);
    assert_eq!(exposed(&pair), []);
}

#[test]
fn a_message_that_was_refused_was_not_begun() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0)], false).unwrap();
    while pair.advertise().is_some() {}
    assert!(pair.send(0, 9).is_none(), "it is too long");
    pair.receiver.withdraw();
    pair.receiver.fenced(pair.sender.begun());
    assert_eq!(exposed(&pair), []);
}

#[test]
fn a_fin_is_read_though_the_lines_before_it_never_come() {
    let mut pair = Pair::new(FlowParameters { path: Path::Fin, ..parameters() });
    let first = pair.post(&[(8, 1), (8, 2)], false).unwrap();
    while pair.advertise().is_some() {}
    let (line, _) = pair.send(2, 8).unwrap();
    pair.sender.written(line);
    let words = pair.sender.fin_words(line);
    pair.receiver.withdraw();
    pair.sender.fail(ProtocolError::Withdrawn);
    pair.receiver.fenced(pair.sender.begun());
    assert_eq!(exposed(&pair), [first.plus(1)]);
    let place = parameters().window.place(line);
    pair.write_fin(place, &words);
    assert_eq!(pair.receiver.read_fins(&pair.fins), 0);
    assert_eq!(pair.receiver.read_every_fin(&pair.fins), 1);
    assert_eq!(exposed(&pair), []);
}
