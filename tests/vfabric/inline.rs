//! Messages that travel in packets: how many posts a burst of them costs, that they need no receive within the credit, and that none of
//! them is lost, early or late, whatever is refused, torn or closed meanwhile.

use std::time::Duration;

use crate::link::{Link, POLLS};
use crate::support::calls::{self, Object};
use crate::support::link::wait;
use crate::support::stage::{Part, play, play_each};
use crate::support::virtual_fabric::set;
use crate::world::{End, provider};

const PROFILES: [&str; 4] = ["cxi", "efa", "tcp", "adversary"];
const BURST: usize = 20;
/// The most posts of a burst in packets: two for the first message, which is sent alone, and for the others, and more at the end of the
/// ring.
const FEW: u64 = 5;
/// Bytes between two messages in a buffer.
const STRIDE: usize = 64;
const BOUND: Duration = Duration::from_secs(60);

fn open(part: &Part, profile: &str, rails: usize, more: &str) -> Link {
    let link = Link::between_ends(part, profile, rails, more);
    // On every rail.
    (0..rails).for_each(|_| link.warm());
    link.poll();
    link
}

impl Link {
    /// Receives for a burst, all advertised.
    fn receives(&self) -> Vec<Object> {
        let received = (0..BURST).map(|index| self.irecv(index * STRIDE, 16, 0)).collect();
        self.poll();
        received
    }

    /// A burst between two polls, message `index` from `index + round`, and its posts after the next poll.
    fn burst(&self, round: usize, len: impl Fn(usize) -> usize) -> (Vec<Object>, u64) {
        let before = self.fabric.number("counter.posts");
        let send = |index| self.isend_at_last(index + round, len(index), 0);
        let sent = (0..BURST).map(send).collect();
        self.ends[0].poll();
        (sent, self.fabric.number("counter.posts") - before)
    }

    /// Four receives of 16 bytes, with tags from 0.
    fn group(&self, group: usize) -> Object {
        let at = |index: usize| self.into.address() + (group * 4 + index) * STRIDE;
        let receives: Vec<_> = (0..4).map(|index| (at(index), 16, tag_of(index))).collect();
        let posted = self.net.irecv_each(self.receive, &receives, self.to);
        posted.expect("irecv").expect("the window has room")
    }

    fn arrive(&self, received: Vec<Object>, round: usize, len: impl Fn(usize) -> usize) {
        for (index, request) in received.into_iter().enumerate() {
            assert_eq!(self.finish(request), len(index), "message {index}");
            assert!(self.has(index * STRIDE, index + round, len(index)), "message {index}");
        }
    }

    fn end(&self, sent: Vec<Object>) {
        sent.into_iter().for_each(|request| {
            self.finish(request);
        });
    }

    /// Bursts of messages as long as their receives, or shorter: returns the most posts of one.
    fn bursts(&self, posted: Option<usize>, len: impl Fn(usize) -> usize) -> u64 {
        let mut most = 0;
        for round in 0..5 {
            let receive =
                |index: usize| self.irecv(index * STRIDE, posted.unwrap_or_else(|| len(index)), 0);
            let received: Vec<Object> = (0..BURST).map(receive).collect();
            self.poll();
            let (sent, posts) = self.burst(round, &len);
            self.arrive(received, round, &len);
            self.end(sent);
            most = most.max(posts);
        }
        most
    }
}

/// The first by itself, the others in a packet, and one more at the end of the ring.
#[test]
fn a_burst_takes_fewer_posts_than_it_has_messages() {
    let cases = ["cxi 1", "efa 1", "tcp 1", "adversary 2", "adversary 4", "tcp 8"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, rails) = case.split_once(' ').expect("two words");
        let link = open(part, profile, rails.parse().expect("a number"), "");
        for posted in [None, Some(64)] {
            for len in [1, 8, 15, 17] {
                let most = link.bursts(posted, |_| len);
                assert!(most <= FEW, "{case}: {most} posts for {BURST} messages of {len} bytes");
            }
            let most = link.bursts(posted, |index| index * 5 % 17);
            assert!(most <= FEW, "{case}: {most} posts for messages of several lengths");
        }
        link.close_all();
    });
}

/// Longer messages are sent by writes of their own.
#[test]
fn the_setting_bounds_what_travels_in_packets() {
    for setting in ["0", "8", "1K"] {
        play(&[provider(), ("INLINE_MAX_SIZE", setting)], BOUND, |part| {
            let setting = std::env::var("IRONRAIL_INLINE_MAX_SIZE").expect("the play sets it");
            let longest = setting.parse().unwrap_or(1024);
            let link = open(part, "tcp", 1, "");
            for len in [1, 8, 9, 64] {
                let most = link.bursts(None, |_| len);
                let packed = len <= longest;
                assert_eq!(most <= FEW, packed, "{most} posts of {len} bytes, {setting}");
            }
            link.close_all();
        });
    }
}

#[test]
fn groups_travel_in_packets() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "");
        for round in 0..10 {
            let groups: Vec<Object> = (0..4).map(|group| link.group(group)).collect();
            link.poll();
            // In the order of the lines, and in another order.
            let order = if round % 2 == 0 { [0, 1, 2, 3] } else { [2, 3, 0, 1] };
            let before = link.fabric.number("counter.posts");
            let mut sent = Vec::new();
            for group in 0..4 {
                for tag in order {
                    let message = group * 4 + tag;
                    let request = link.isend(message + round, message, tag_of(tag));
                    sent.push(request.expect("it is advertised"));
                }
            }
            link.ends[0].poll();
            let posts = link.fabric.number("counter.posts") - before;
            assert!(round % 2 == 1 || posts <= FEW, "{posts} posts");
            for (group, request) in groups.into_iter().enumerate() {
                let mut tests = 0..POLLS;
                let sizes = tests.find_map(|_| {
                    link.ends.iter().for_each(End::poll);
                    link.net.test_each(request, 4).expect("test")
                });
                let messages = group * 4..group * 4 + 4;
                let expected: Vec<usize> = messages.clone().collect();
                assert_eq!(sizes, Some(expected));
                for message in messages {
                    assert!(link.has(message * STRIDE, message + round, message));
                }
            }
            link.end(sent);
        }
        link.close_all();
    });
}

/// Every post is refused for a long time.
#[test]
fn a_refused_packet_is_not_lost() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let (link, mut held) = (open(part, profile, 2, ""), 0);
        for round in 0..10 {
            let received = link.receives();
            let send = |index| link.isend(index + round, index % 17, 0).expect("advertised");
            let mut sent = vec![send(0)];
            let posts = link.fabric.number("counter.posts");
            link.fabric.fault(&format!("refuse={}-{}", posts + 1, posts + 40));
            sent.extend((1..BURST).map(send));
            // Where this thread is preempted, the keeper sends them.
            held += u32::from(link.fabric.number("counter.posts") == posts);
            (0..3).for_each(|_| link.ends[0].poll());
            assert!(link.fabric.number("counter.posts") > posts, "the packet was tried");
            link.arrive(received, round, |index| index % 17);
            link.end(sent);
        }
        assert!(held > 0, "{profile}: no burst is held until a poll");
        link.close_all();
    });
}

#[test]
fn refused_posts_lose_nothing_of_a_burst() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "eagain=500");
        for round in 0..50 {
            let received = link.receives();
            let send = |index| link.isend_at_last(index + round, index % 17, 0);
            let sent = (0..BURST).map(send).collect();
            link.arrive(received, round, |index| index % 17);
            link.end(sent);
        }
        link.close_all();
    });
}

#[test]
fn a_late_packet_is_not_read_early() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 1, "");
        let received = link.receives();
        link.settle();
        let send = |index: usize| link.isend(index, 16, 0).expect("it is advertised");
        let mut sent = vec![send(0)];
        let operations = link.fabric.number("counter.operations");
        link.fabric.delay_next(1000);
        sent.extend((1..BURST).map(send));
        link.ends[0].poll();
        assert_eq!(link.fabric.number("counter.operations"), operations + 1, "it is written");
        for _ in 0..50 {
            link.ends.iter().for_each(End::poll);
            assert_eq!(link.net.test(received[1]), Ok(None));
        }
        link.arrive(received, 0, |_| 16);
        link.end(sent);
        assert_eq!(link.fabric.number("counter.faults.delay"), 1);
        link.close_all();
    });
}

/// Bytes become visible cache line by cache line, and packets overtake each other.
#[test]
fn a_torn_packet_is_not_read_early() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, "adversary", 2, "reorder=200 seed=7");
        for round in 0..200 {
            let received = link.receives();
            link.into.write(0, &[0; BURST * STRIDE]);
            let (sent, _) = link.burst(round, |index| (index * 11 + round) % 17);
            link.arrive(received, round, |index| (index * 11 + round) % 17);
            link.end(sent);
        }
        assert!(link.fabric.number("counter.held") > 0, "nothing was seen torn");
        link.close_all();
    });
}

/// What is held is sent before the farewell, even if its buffer is freed.
#[test]
fn a_sender_that_closes_after_a_burst_has_sent_it() {
    let cases = ["tcp", "tcp eagain=500", "adversary", "adversary eagain=500"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, more) = case.split_once(' ').unwrap_or((case, ""));
        let link = open(part, profile, 1, more);
        let received = link.receives();
        (0..BURST).for_each(|index| {
            link.isend_at_last(index, 16, 0);
        });
        link.net.deregister(link.send, link.from).expect("deregMr");
        link.out.write(0, &[0xff; 2048]);
        link.net.close_send(link.send).expect("closeSend");
        link.arrive(received, 0, |_| 16);
        // A farewell that has overtaken the burst is checked again from time to time.
        wait("the word that nothing more comes", || {
            link.ends.iter().for_each(End::poll);
            match link.net.irecv(link.receive, link.into.address(), 16, 0, link.to) {
                Ok(Some(more)) => link.net.test(more).is_err(),
                other => other.is_err(),
            }
        });
        assert!(calls::warnings().iter().any(|said| said.contains("has closed")));
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close();
    });
}

/// Finalize with everything open, as in an abort: first the sender's end, then the receiver's.
#[test]
fn an_abort_after_a_burst_breaks_no_rule() {
    let cases = ["tcp 0", "tcp 1", "adversary 0", "adversary 1"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let (profile, first) = case.split_once(' ').expect("two words");
        let link = open(part, profile, 2, "");
        link.receives();
        (0..BURST).for_each(|index| {
            link.isend(index, 16, 0).expect("it is advertised");
        });
        let first: usize = first.parse().expect("a number");
        let [one, other] = [link.ends[first], link.ends[1 - first]];
        one.close();
        (0..POLLS).for_each(|_| other.poll());
        other.close();
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
        // Elsewhere regions are bound, and stay open while a farewell is not received.
        if profile == "tcp" {
            link.fabric.is_closed();
        }
    });
}

/// More than the credit of a connection waits for receives; the rest is sent when they are posted.
#[test]
fn messages_without_receives_arrive_when_these_are_posted() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 2, "eagain=200");
        for round in 0..5 {
            let mut sent: Vec<Object> = Vec::new();
            let tag = |index: usize| i32::from(index % 2 == 1);
            for index in 0..CREDIT {
                // The receiver reads what has arrived, and has posted no receive.
                sent.push(link.isend_at_last(index + round, index % 17, tag(index)));
            }
            assert_eq!(link.isend(round, 16, 0), None, "{profile}: the credit is used up");
            // In another order than they were sent.
            let order = (1..CREDIT).step_by(2).chain((0..CREDIT).step_by(2));
            for index in order {
                let received = link.irecv(index * STRIDE, 16, tag(index));
                assert_eq!(link.finish(received), index % 17, "{profile}, {index}");
                assert!(link.has(index * STRIDE, index + round, index % 17), "{index}");
            }
            link.end(sent);
            let received = link.irecv(0, 16, 0);
            let last = link.isend_at_last(round, 16, 0);
            assert_eq!(link.finish(received), 16, "{profile}");
            link.end(vec![last]);
        }
        link.close_all();
    });
}

/// CLOSE may arrive first; the message is there for a receive that is posted after both.
#[test]
fn a_message_is_there_though_its_sender_has_closed() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        link.isend(64, BYTES, 3).expect("it may travel before its receive");
        link.net.close_send(link.send).expect("closeSend");
        link.poll();
        let received = link.irecv(0, BYTES, 3);
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert!(link.has(0, 64, BYTES), "{profile}");
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close();
    });
}

/// It was copied: the caller may reuse the buffer.
#[test]
fn a_message_is_sent_once_it_is_in_its_packet() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        link.poll();
        let expected = link.out.read(64, BYTES);
        let sent = link.isend(64, BYTES, 3).expect("it may travel before its receive");
        let completed = (0..POLLS).find_map(|_| link.net.test(sent).expect("test"));
        assert_eq!(completed, Some(BYTES), "{profile}: there is no receive");
        link.out.write(64, &[0xff; BYTES]);
        let received = link.irecv(0, BYTES, 3);
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert!(link.into.read(0, BYTES) == expected, "{profile}");
        link.close_all();
    });
}

/// Otherwise it would complete before a message in flight is copied to it.
#[test]
fn a_receive_completes_early_only_where_no_message_travels_before_it() {
    for setting in ["0", "40"] {
        play(&[provider(), ("INLINE_MAX_SIZE", setting)], BOUND, |part| {
            let early = std::env::var("IRONRAIL_INLINE_MAX_SIZE").as_deref() == Ok("0");
            let link = Link::between_ends(part, "cxi", 1, "");
            let (net, address) = (link.net, link.into.address());
            let posted = net.irecv_optional(link.receive, address, BYTES, 3, link.to);
            let posted = posted.expect("irecv").expect("the window has room");
            let completed = (0..POLLS).find_map(|_| {
                link.ends.iter().for_each(End::poll);
                net.test(posted).expect("test")
            });
            assert_eq!(completed, early.then_some(0));
            let sent = link.isend_at_last(64, BYTES, 3);
            if !early {
                assert_eq!(link.finish(posted), BYTES);
            }
            link.finish(sent);
            link.poll();
            assert!(link.has(0, 64, BYTES));
            link.close_all();
        });
    }
}

/// The sender sends no answer: it has not begun the message of this receive.
#[test]
fn a_receive_that_is_deregistered_gets_what_has_come_before() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        let sent = link.isend(64, BYTES, 3).expect("it may travel before its receive");
        link.poll();
        let received = link.irecv(0, BYTES, 3);
        link.net.deregister(link.receive, link.to).expect("nothing touches it any more");
        assert!(link.has(0, 64, BYTES), "{profile}");
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert_eq!(link.finish(sent), BYTES, "{profile}");
        link.close_all();
    });
}

/// Messages that may travel without a receive.
const CREDIT: usize = 64;
const BYTES: usize = 40;

fn tag_of(index: usize) -> i32 {
    i32::try_from(index).expect("small")
}
