//! Done: how it rides, when it travels alone, how far it is believed.

mod pair;

use pair::{Pair, parameters};
use proto::limits::LONE_DONE_IDLE_TURNS;
use proto::{FlowParameters, Line, ReceivePoll, SendPoll};

fn land(pair: &mut Pair, words: &[u64]) {
    let place = pair.parameters.window.lone_place();
    for (index, word) in words.iter().enumerate() {
        *pair.mailbox.at(place, index) = *word;
    }
}

#[test]
fn a_send_is_done_when_the_receivers_done_has_passed_it() {
    let mut pair = Pair::new(parameters());
    let line = pair.exchange();
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(line), SendPoll::Pending);
    pair.post(&[(8, 0)], false);
    pair.advertise();
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
    assert_eq!(pair.sender.poll(line), SendPoll::Pending, "it is said once");
}

#[test]
fn done_is_taken_from_the_newest_advert_that_has_landed_whole() {
    let mut pair = Pair::new(parameters());
    let line = pair.exchange();
    for _ in 0..2 {
        pair.post(&[(8, 0)], false);
        assert_eq!(pair.advertise(), Some(1));
    }
    *pair.mailbox.at(2, 5) ^= 1;
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
}

#[test]
fn a_send_whose_completion_is_missing_is_not_done() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0)], false);
    pair.advertise();
    let (line, immediate) = pair.send(0, 8).unwrap();
    pair.receiver.arrived(0, immediate, 8);
    let lone = pair.receiver.lone_done(true).unwrap();
    land(&mut pair, &lone.words);
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(line), SendPoll::Pending);
    pair.sender.written(line);
    assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
}

#[test]
fn where_completions_prove_arrival_nobody_waits_for_done() {
    let sends_arrive_when_complete = true;
    let mut pair = Pair::new(FlowParameters { sends_arrive_when_complete, ..parameters() });
    pair.post(&[(8, 0)], false);
    pair.advertise();
    let (line, immediate) = pair.send(0, 8).unwrap();
    assert_eq!(pair.sender.poll(line), SendPoll::Pending);
    pair.sender.written(line);
    assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
    pair.receiver.arrived(0, immediate, 8);
    assert!(!pair.receiver.owes_done());
    assert_eq!(pair.receiver.lone_done(true), None);
}

#[test]
fn a_done_that_is_owed_travels_alone_after_idle_turns() {
    let mut pair = Pair::new(parameters());
    let line = pair.exchange();
    for _ in 0..LONE_DONE_IDLE_TURNS {
        assert_eq!(pair.receiver.lone_done(false), None);
        pair.receiver.idle_turn();
    }
    let lone = pair.receiver.lone_done(false).unwrap();
    land(&mut pair, &lone.words);
    pair.receiver.lone_done_posted(lone);
    assert!(!pair.receiver.owes_done());
    pair.sender.observe(&pair.mailbox);
    assert_eq!(pair.sender.poll(line), SendPoll::Done { len: 8 });
}

#[test]
fn only_one_lone_done_is_in_flight() {
    let mut pair = Pair::new(parameters());
    pair.exchange();
    let lone = pair.receiver.lone_done(true).unwrap();
    assert_eq!(pair.receiver.lone_done(true), Some(lone), "a refused one is asked for again");
    pair.receiver.lone_done_posted(lone);
    pair.exchange();
    pair.exchange();
    assert!(pair.receiver.owes_done());
    assert_eq!(pair.receiver.lone_done(true), None);
    pair.receiver.lone_done_written();
    assert!(pair.receiver.lone_done(true).is_some());
}

#[test]
fn a_lone_done_is_taken_only_when_it_is_whole() {
    for missing in 0..4 {
        let mut pair = Pair::new(parameters());
        pair.exchange();
        let mut words = pair.receiver.lone_done(true).unwrap().words;
        let word = std::mem::replace(&mut words[missing], 77);
        land(&mut pair, &words);
        pair.sender.observe(&pair.mailbox);
        assert_eq!(pair.sender.peer_done(), Line::FIRST, "word {missing}");
        words[missing] = word;
        land(&mut pair, &words);
        pair.sender.observe(&pair.mailbox);
        assert_eq!(pair.sender.peer_done(), Line::new(1));
    }
}

#[test]
fn done_goes_neither_backwards_nor_past_the_messages_submitted() {
    for start in [0, 65_500, u32::MAX - 40] {
        let first_line = Line::new(start);
        // A peer whose dones are of another account than ours, but whose nonce is right.
        let mut ahead = Pair::new(FlowParameters { first_line, ..parameters() });
        let mut lones = Vec::new();
        for _ in 0..60 {
            let line = ahead.exchange();
            lones.push(ahead.receiver.lone_done(true).unwrap().words);
            ahead.sender.observe(&ahead.mailbox);
            assert_eq!(ahead.receiver.poll(line), ReceivePoll::Done { count: 1 });
        }
        let mut pair = Pair::new(FlowParameters { first_line, ..parameters() });
        for _ in 0..30 {
            pair.exchange();
        }
        let mut expected = pair.sender.peer_done().distance(first_line) as usize;
        for index in [20, 3, 19, 35, 59, 25, 24, 29, 30, 28] {
            land(&mut pair, &lones[index]);
            pair.sender.observe(&pair.mailbox);
            if index < 30 {
                expected = expected.max(index + 1);
            }
            let believed = pair.sender.peer_done().distance(first_line) as usize;
            assert_eq!(believed, expected, "start {start}, done {}", index + 1);
        }
    }
}

#[test]
fn the_common_case_drops_an_old_done_and_leaves_one_that_cannot_be_to_the_general_one() {
    let mut ahead = Pair::new(FlowParameters { rails: 1, ..parameters() });
    for _ in 0..3 {
        let line = ahead.exchange();
        assert_eq!(ahead.receiver.poll(line), ReceivePoll::Done { count: 1 });
    }
    (0..3).for_each(|_| assert!(ahead.post(&[(8, 0)], false).is_some()));
    while ahead.advertise().is_some() {}
    // Whoever begins at line 5 finds an advert for it that says: done up to 3.
    let first_line = Line::new(5);
    let mut pair = Pair::new(FlowParameters { rails: 1, first_line, ..parameters() });
    pair.mailbox = ahead.mailbox;
    let advert = pair.mailbox.words.clone();
    pair.mailbox.words[5 * pair.mailbox.stride + 1] += 3;
    let place = 5 * pair.mailbox.stride;
    proto::wire::seal_line(pair.parameters.nonce, &mut pair.mailbox.words[place..place + 6]);
    assert!(pair.sender.match_plainly::<_, 6>(&pair.mailbox, 0, 8, &0).is_none());
    assert_eq!(pair.sender.counters().stale_dones, 0);
    pair.mailbox.words = advert;
    assert!(pair.sender.match_plainly::<_, 6>(&pair.mailbox, 0, 8, &0).is_some());
    assert_eq!(pair.sender.peer_done(), first_line);
    assert_eq!(pair.sender.counters().stale_dones, 1);
}

#[test]
fn receives_complete_out_of_order_move_done_together() {
    let mut pair = Pair::new(parameters());
    pair.post(&[(8, 0); 5], false);
    pair.advertise();
    let comm = pair.parameters.comm;
    for line in [3, 1, 4, 2] {
        let immediate = proto::Immediate::new(comm, Line::new(line), 0, true, true, 8);
        pair.receiver.arrived(0, immediate, 8);
        assert_eq!(pair.receiver.done(), Line::FIRST);
    }
    let immediate = proto::Immediate::new(comm, Line::FIRST, 0, true, true, 8);
    pair.receiver.arrived(0, immediate, 8);
    assert_eq!(pair.receiver.done(), Line::new(5));
}
