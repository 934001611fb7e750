//! Messages that travel before their receives are posted.

use std::time::Duration;

use crate::link::{Link, TURNS};
use crate::support::calls::Object;
use crate::support::stage::play_each;
use crate::support::virtual_fabric::set;
use crate::world::{End, provider};

const PROFILES: [&str; 4] = ["tcp", "cxi", "efa", "adversary"];
const BYTES: usize = 40;
const EAGER: (&str, &str) = ("EAGER_MAX_SIZE", "40");

#[test]
fn messages_without_receives_arrive_when_these_are_posted() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 2, "eagain=200");
        // Where completions prove arrival, only an advert tells which places are free again.
        let rounds = if ["cxi", "efa"].contains(&profile) { 1 } else { 20 };
        for round in 0..rounds {
            // More than may travel so, of two tags; the last waits for its receive.
            let messages: Vec<(usize, usize, i32)> = (0..9)
                .map(|index| (round + index * BYTES, index * 5, i32::from(index % 2 == 1)))
                .collect();
            let mut sent: Vec<Object> = Vec::new();
            for (at, len, tag) in &messages[..8] {
                let mut tries = 0..TURNS;
                let request = tries.find_map(|_| link.isend(*at, *len, *tag));
                sent.push(request.expect("it may travel before its receive"));
            }
            assert_eq!(link.isend(messages[8].0, 40, 0), None, "the ring is full");
            // In another order than they were sent.
            let order: Vec<usize> = (1..9).step_by(2).chain((0..9).step_by(2)).collect();
            let order = &order[..];
            let mut received: Vec<(usize, Object)> = order[..8]
                .iter()
                .map(|index| (*index, link.irecv(*index * 64, BYTES, messages[*index].2)))
                .collect();
            // Their receives are known; whether they were taken from their places is not.
            let tries = if round == 0 { TURNS } else { 10 };
            let waits = (0..tries).all(|_| link.isend(messages[8].0, 40, 0).is_none());
            assert!(waits, "{profile}: no place is known to be free");
            received.push((8, link.irecv(8 * 64, BYTES, 0)));
            let mut last = None;
            for (index, request) in received {
                if index == 8 {
                    let mut tries = 0..TURNS;
                    last = tries.find_map(|_| link.isend(messages[8].0, 40, 0));
                }
                assert_eq!(link.finish(request), messages[index].1, "{profile}, {index}");
                assert!(link.has(index * 64, messages[index].0, messages[index].1), "{index}");
            }
            for request in sent.into_iter().chain(last) {
                link.finish(request);
            }
        }
        link.close_all();
    });
}

/// The bye may come first; the message is there for a receive that is posted after both.
#[test]
fn a_message_is_there_though_its_sender_has_closed() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        link.isend(64, BYTES, 3).expect("it may travel before its receive");
        link.net.close_send(link.send).expect("closeSend");
        link.turn();
        let received = link.irecv(0, BYTES, 3);
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert!(link.has(0, 64, BYTES), "{profile}");
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close();
    });
}

/// Where completions do not prove arrival, a message is done once its receiver has taken it; where they do, once it has
/// completed, and no sooner than it has a receive: before, nobody knows whether it is too long for that.
#[test]
fn a_message_is_not_done_before_it_has_arrived_for_a_receive() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        link.turn();
        let proves = ["cxi", "efa"].contains(&profile);
        if proves {
            link.fabric.delay_next(DELAY);
        }
        let sent = link.isend(64, BYTES, 3).expect("it may travel before its receive");
        let waits = || (0..TURNS).all(|_| link.net.test(sent).expect("test").is_none());
        assert!(proves || waits(), "{profile}: nobody has posted a receive");
        let received = link.irecv(0, BYTES, 3);
        link.ends[1].turn();
        if proves {
            // Its receiver does nothing any more.
            let tests = (0..DELAY * 10).position(|_| link.net.test(sent) == Ok(Some(BYTES)));
            let tests = tests.expect("it completes");
            assert!(tests > TURNS as usize / 2, "{profile}: done after {tests} tests");
            assert_eq!(link.fabric.number("counter.faults.delay"), 1, "{profile}");
        } else {
            assert!(waits(), "{profile}: the receiver has not taken it");
        }
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert!(link.has(0, 64, BYTES), "{profile}");
        if !proves {
            assert_eq!(link.finish(sent), BYTES, "{profile}");
        }
        link.close_all();
    });
}

/// A receive that is told early would be told before an eager message is copied to it.
#[test]
fn receives_are_told_early_once_no_message_travels_before_them() {
    play_each(&["cxi", "efa"], &[provider(), EAGER], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        let (net, receive) = (link.net, link.receive);
        let optional = |at: usize| {
            let address = link.into.address() + at;
            let received = net.irecv_optional(receive, address, BYTES, 3, link.to);
            received.expect("irecv").expect("the window has room")
        };
        let early = link.isend(64, BYTES, 3).expect("it may travel before its receive");
        let [first, second] = [0, 64].map(optional);
        // The first gets what travels already; the second waits for the sender's word, which is not asked.
        let told = (0..TURNS).find_map(|_| net.test(first).expect("test"));
        assert_eq!(told, Some(BYTES), "{profile}");
        assert!(link.has(0, 64, BYTES), "{profile}");
        for _ in 0..TURNS {
            assert_eq!(net.test(second), Ok(None), "{profile}: a message might be on its way");
        }
        link.turn();
        assert_eq!(link.finish(second), 0, "{profile}: it is told before its message is sent");
        let sent = [link.isend(128, BYTES, 3), link.isend(192, BYTES, 3)];
        assert_eq!(sent[1], None, "{profile}: it has no receive");
        assert_eq!(link.finish(sent[0].expect("it has one")), BYTES, "{profile}");
        assert_eq!(link.finish(early), BYTES, "{profile}");
        link.turn();
        assert!(link.has(64, 128, BYTES), "{profile}");
        link.close_all();
    });
}

/// The sender has nothing to say to that: it has not begun what the message is for.
#[test]
fn a_receive_that_is_deregistered_gets_what_has_come_before() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        let sent = link.isend(64, BYTES, 3).expect("it may travel before its receive");
        link.turn();
        let received = link.irecv(0, BYTES, 3);
        link.net.deregister(link.receive, link.to).expect("nothing touches it any more");
        assert!(link.has(0, 64, BYTES), "{profile}");
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert_eq!(link.finish(sent), BYTES, "{profile}");
        link.close_all();
    });
}

/// It is under way when its receive is taken back: the sender has begun that line, as it finds out when it is asked.
#[test]
fn memory_stays_until_a_message_that_was_sent_before_has_come() {
    play_each(&["cxi", "efa"], &[provider(), EAGER], BOUND, |part, profile| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "10");
        let link = Link::between_ends(part, profile, 1, "");
        link.turn();
        let before = link.fabric.number("open.operations");
        link.fabric.delay_next(LONG_DELAY);
        link.isend(64, BYTES, 3).expect("it may travel before its receive");
        let received = link.irecv(0, BYTES, 3);
        let stays = link.net.deregister(link.receive, link.to).expect_err("nobody answers");
        assert!(stays.said[0].contains("stay registered"), "{stays:?}");
        let under_way = || link.fabric.number("open.operations") > before;
        let free = (0..LONG_DELAY).find_map(|_| {
            link.ends.iter().for_each(End::turn);
            let free = link.net.deregister(link.receive, link.to).is_ok();
            free.then(|| !under_way())
        });
        assert_eq!(free, Some(true), "{profile}: it has come first");
        assert!(link.has(0, 64, BYTES), "{profile}");
        link.into.write(0, &[9; BYTES]);
        link.turn();
        assert!(link.net.isend(link.send, link.out.address(), 8, 3, link.from).is_err());
        assert_eq!(link.into.read(0, BYTES), [9; BYTES], "{profile}");
        drop(link.net.test(received));
        link.close_all();
    });
}

const BOUND: Duration = Duration::from_secs(60);
/// Turns that a message is under way: more than are waited for anything else.
const DELAY: u32 = 2000;
/// More than a call makes that waits.
const LONG_DELAY: u32 = 200_000;
