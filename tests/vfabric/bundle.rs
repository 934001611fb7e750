//! Short messages of a burst: how many posts they cost, and that nothing of them is lost, early or late, whatever is refused,
//! torn, closed or taken back meanwhile.

use std::time::Duration;

use crate::link::{Link, TURNS};
use crate::support::calls::{self, Object};
use crate::support::link::wait;
use crate::support::stage::{Part, play, play_each};
use crate::support::virtual_fabric::set;
use crate::world::{End, provider};

/// Where done is waited for.
const BUNDLING: [&str; 2] = ["tcp", "adversary"];
const BURST: usize = 20;
/// Bytes between two messages in a buffer.
const STRIDE: usize = 64;
const BOUND: Duration = Duration::from_secs(60);

fn open(part: &Part, profile: &str, rails: usize, more: &str) -> Link {
    let link = Link::between_ends(part, profile, rails, more);
    // On every rail.
    (0..rails).for_each(|_| link.warm());
    link.turn();
    link
}

impl Link {
    /// Receives for a burst, all advertised.
    fn receives(&self) -> Vec<Object> {
        let received = (0..BURST).map(|index| self.irecv(index * STRIDE, 16, 0)).collect();
        self.turn();
        received
    }

    /// A burst between two turns of progress, message `index` from `index + round`, and what it has cost after the next turn.
    fn burst(&self, round: usize, len: impl Fn(usize) -> usize) -> (Vec<Object>, u64) {
        let before = self.fabric.number("counter.posts");
        let send = |index| self.isend(index + round, len(index), 0).expect("it is advertised");
        let sent = (0..BURST).map(send).collect();
        self.ends[0].turn();
        (sent, self.fabric.number("counter.posts") - before)
    }

    /// Four receives of 16 bytes, by tags from 0 on.
    fn group(&self, group: usize) -> Object {
        let at = |index: usize| self.into.address() + (group * 4 + index) * STRIDE;
        let receives: Vec<_> = (0..4).map(|index| (at(index), 16, tag_of(index))).collect();
        let posted = self.net.irecv_each(self.receive, &receives, self.to);
        posted.expect("irecv").expect("the window has room")
    }

    /// A message whose post may be refused.
    fn isend_at_last(&self, at: usize, len: usize) -> Object {
        (0..TURNS).find_map(|_| self.isend(at, len, 0)).expect("not for ever")
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

    /// Bursts of messages as long as their receives, or shorter: the most posts that one took.
    fn bursts(&self, posted: Option<usize>, len: impl Fn(usize) -> usize) -> u64 {
        let mut most = 0;
        for round in 0..5 {
            let receive =
                |index: usize| self.irecv(index * STRIDE, posted.unwrap_or_else(|| len(index)), 0);
            let received: Vec<Object> = (0..BURST).map(receive).collect();
            self.turn();
            let (sent, posts) = self.burst(round, &len);
            self.arrive(received, round, &len);
            self.end(sent);
            most = most.max(posts);
        }
        most
    }
}

/// The first by itself; the others in a write, or two where the ring ends.
fn fewer_posts_than_messages(part: &Part, profile: &str, rails: usize) {
    let link = open(part, profile, rails, "");
    for posted in [None, Some(64)] {
        for len in [1, 8, 15, 16] {
            let most = link.bursts(posted, |_| len);
            assert!(most <= 3, "{most} posts for {BURST} messages of {len} bytes");
        }
        let most = link.bursts(posted, |index| index * 5 % 17);
        assert!(most <= 3, "{most} posts for messages of several lengths");
        let most = link.bursts(posted, |_| 17);
        assert!(most >= BURST as u64, "{most} posts for messages that are too long");
        let most = link.bursts(posted, |index| 8 + 9 * (index % 2));
        assert!(most >= BURST as u64, "a message that is too long lies between any two: {most}");
    }
    link.close_all();
}

#[test]
fn a_burst_takes_fewer_posts_than_it_has_messages_over_tcp() {
    play(&[provider()], BOUND, |part| fewer_posts_than_messages(part, "tcp", 1));
}

#[test]
fn a_burst_takes_fewer_posts_than_it_has_messages_over_the_adversary() {
    play(&[provider()], BOUND, |part| fewer_posts_than_messages(part, "adversary", 2));
}

/// As over rxm, and on eight rails nothing is plain.
#[test]
fn a_burst_takes_fewer_posts_than_it_has_messages_where_nothing_is_injected() {
    play_each(&["1", "2", "8"], &[provider()], BOUND, |part, rails| {
        set("VFABRIC_INJECT", "0");
        fewer_posts_than_messages(part, "tcp", rails.parse().expect("a number"));
    });
}

/// Adverts have room for four keys.
#[test]
fn bundles_go_over_four_rails() {
    play(&[provider()], BOUND, |part| fewer_posts_than_messages(part, "adversary", 4));
}

/// Adverts are longer than a cache line, and nothing is plain.
#[test]
fn bundles_go_over_eight_rails() {
    play(&[provider()], BOUND, |part| fewer_posts_than_messages(part, "tcp", 8));
}

/// Whether it fills its receive or not, is injected or not, and is itself too long for a bundle or not. What is alone in its turn
/// gains nothing by waiting.
#[test]
fn the_first_message_of_a_turn_goes_at_once_and_a_short_one_behind_it_waits() {
    let cases = ["tcp 1", "tcp 4", "tcp 8", "adversary 2"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, rails) = case.split_once(' ').expect("two words");
        let link = open(part, profile, rails.parse().expect("a number"), "");
        let posts = || link.fabric.number("counter.posts");
        for (len, more) in
            [0, 8, 16, 17, 40, 300, 2000].into_iter().flat_map(|len| [(len, 0), (len, 1)])
        {
            let received = [link.irecv(0, len + more, 0), link.irecv(2048, 8, 0)];
            link.turn();
            let before = posts();
            let first = link.isend(0, len, 0).expect("it is advertised");
            let at_once = posts();
            assert!(at_once > before, "{case}: {len} bytes for {} wait", len + more);
            let second = link.isend(1, 8, 0).expect("it is advertised");
            assert_eq!(posts(), at_once, "{case}: nothing waits behind {len} bytes");
            assert_eq!(received.map(|request| link.finish(request)), [len, 8]);
            assert!(link.has(0, 0, len) && link.has(2048, 1, 8), "{case}: {len} bytes");
            link.end(vec![first, second]);
        }
        link.close_all();
    });
}

#[test]
fn no_bundle_goes_where_completions_prove_arrival() {
    play_each(&["cxi", "efa"], &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "immediates=1");
        for posted in [None, Some(64)] {
            let most = link.bursts(posted, |_| 8);
            assert!(most >= BURST as u64, "{profile}: {most} posts");
        }
        link.close_all();
    });
}

#[test]
fn the_setting_bounds_what_travels_in_bundles() {
    for setting in ["0", "8", "1K"] {
        play(&[provider(), ("BUNDLE_MAX_SIZE", setting)], BOUND, |part| {
            let setting = std::env::var("IRONRAIL_BUNDLE_MAX_SIZE").expect("the play sets it");
            let longest = setting.parse().unwrap_or(16);
            let link = open(part, "tcp", 1, "");
            for len in [0, 1, 8, 9, 16, 17] {
                let most = link.bursts(None, |_| len);
                let bundled = longest > 0 && len <= longest;
                assert_eq!(most <= 3, bundled, "{most} posts of {len} bytes, {setting}");
            }
            link.close_all();
        });
    }
}

#[test]
fn groups_travel_in_bundles() {
    play_each(&BUNDLING, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "");
        for round in 0..10 {
            let groups: Vec<Object> = (0..4).map(|group| link.group(group)).collect();
            link.turn();
            // In the order of the lines, and in another.
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
            link.ends[0].turn();
            let posts = link.fabric.number("counter.posts") - before;
            assert!(round % 2 == 1 || posts <= 3, "{posts} posts");
            for (group, request) in groups.into_iter().enumerate() {
                let mut tests = 0..TURNS;
                let sizes = tests.find_map(|_| {
                    link.ends.iter().for_each(End::turn);
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

/// Every post is refused for as long as it takes.
#[test]
fn a_refused_bundle_is_not_lost() {
    play_each(&BUNDLING, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "");
        for round in 0..10 {
            let received = link.receives();
            let send = |index| link.isend(index + round, index % 17, 0).expect("advertised");
            let mut sent = vec![send(0)];
            let posts = link.fabric.number("counter.posts");
            link.fabric.fault(&format!("refuse={}-{}", posts + 1, posts + 40));
            sent.extend((1..BURST).map(send));
            assert_eq!(link.fabric.number("counter.posts"), posts, "all of them are held");
            (0..3).for_each(|_| link.ends[0].turn());
            assert!(link.fabric.number("counter.posts") > posts, "the bundle was tried");
            link.arrive(received, round, |index| index % 17);
            link.end(sent);
        }
        link.close_all();
    });
}

#[test]
fn refused_posts_lose_nothing_of_a_burst() {
    play_each(&BUNDLING, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 2, "eagain=500");
        for round in 0..50 {
            let received = link.receives();
            let send = |index| link.isend_at_last(index + round, index % 17);
            let sent = (0..BURST).map(send).collect();
            link.arrive(received, round, |index| index % 17);
            link.end(sent);
        }
        link.close_all();
    });
}

#[test]
fn a_bundle_that_is_late_is_not_taken_early() {
    play_each(&BUNDLING, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile, 1, "");
        let received = link.receives();
        let send = |index: usize| link.isend(index, 16, 0).expect("it is advertised");
        let mut sent = vec![send(0)];
        let operations = link.fabric.number("counter.operations");
        link.fabric.delay_next(1000);
        sent.extend((1..BURST).map(send));
        link.ends[0].turn();
        assert_eq!(link.fabric.number("counter.operations"), operations + 1, "it is written");
        for _ in 0..50 {
            link.ends.iter().for_each(End::turn);
            assert_eq!(link.net.test(received[1]), Ok(None));
        }
        link.arrive(received, 0, |_| 16);
        link.end(sent);
        assert_eq!(link.fabric.number("counter.faults.delay"), 1);
        link.close_all();
    });
}

/// Bytes show by and by, cache line by cache line, and bundles overtake each other.
#[test]
fn a_bundle_that_is_torn_is_not_taken_early() {
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

/// What is held goes before the farewell, whatever becomes of the memory that it was sent from.
#[test]
fn a_sender_that_closes_after_a_burst_has_sent_it() {
    let cases = ["tcp", "tcp eagain=500", "adversary", "adversary eagain=500"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, more) = case.split_once(' ').unwrap_or((case, ""));
        let link = open(part, profile, 1, more);
        let received = link.receives();
        (0..BURST).for_each(|index| {
            link.isend_at_last(index, 16);
        });
        link.net.deregister(link.send, link.from).expect("deregMr");
        link.out.write(0, &[0xff; 2048]);
        link.net.close_send(link.send).expect("closeSend");
        link.arrive(received, 0, |_| 16);
        // A farewell that has overtaken the burst is looked at again now and then.
        wait("the word that nothing more comes", || {
            link.ends.iter().for_each(End::turn);
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

/// Finalize with everything open, as an abort does it: the sender's end first, and the receiver's.
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
        (0..TURNS).for_each(|_| other.turn());
        other.close();
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
        // Elsewhere regions are bound, and stay under a farewell that nobody takes.
        if profile == "tcp" {
            link.fabric.is_closed();
        }
    });
}

/// The copy goes to no memory that was given back, and nobody is told of a message that was not copied: whether the burst was
/// written, or is still held. A buffer that was not given back in time takes no copies: its owner may have unmapped it.
#[test]
fn memory_stays_until_the_bundles_on_their_way_to_it_have_come() {
    let cases = ["tcp held", "tcp written", "adversary held", "adversary written"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let (profile, state) = case.split_once(' ').expect("two words");
        let link = open(part, profile, 1, "");
        let received = link.receives();
        let send = |index| link.isend(index, 16, 0).expect("it is advertised");
        let sent: Vec<Object> = (0..BURST).map(send).collect();
        if state == "written" {
            link.ends[0].turn();
        }
        let Link { net, receive, to, .. } = link;
        // The sender's thread does something else.
        let stays = net.deregister(receive, to);
        if let Err(failure) = &stays {
            assert!(failure.said[0].contains("stay registered"), "{failure:?}");
            let free = (0..TURNS).any(|_| {
                link.ends[0].turn();
                net.deregister(receive, to).is_ok()
            });
            assert!(free, "what was begun has come");
        }
        let is_there: Vec<bool> =
            (0..BURST).map(|index| link.has(index * STRIDE, index, 16)).collect();
        // There a NIC brings what was written.
        let come = case == "adversary written" && is_there.iter().all(|there| *there);
        assert!(stays.is_err() || come, "messages are on their way");
        link.into.write(0, &[9; 2048]);
        link.turn();
        for index in 0..BURST {
            for request in [sent[index], received[index]] {
                let told = matches!(net.test(request), Ok(Some(_)));
                assert!(!told || is_there[index], "message {index} was told of");
            }
        }
        assert_eq!(link.into.read(0, 2048), [9; 2048]);
        link.close_all();
    });
}

/// A write that cannot be posted, and one that fails later: both ends are told, and both close.
#[test]
fn a_bundle_that_fails_fails_both_ends() {
    let cases = ["tcp reject", "tcp fail", "adversary reject", "adversary fail"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let (profile, fault) = case.split_once(' ').expect("two words");
        let link = open(part, profile, 1, "");
        let received = link.receives();
        let send = |index| link.isend(index, 16, 0).expect("it is advertised");
        let sent: Vec<Object> = (0..BURST).map(send).collect();
        link.fabric.fault_next(fault);
        let failed = (0..TURNS).find_map(|_| {
            link.ends[1].turn();
            link.net.test(sent[BURST - 1]).err()
        });
        let failed = failed.expect("it was not written");
        assert!(failed.said[0].contains("sending to"), "{failed:?}");
        assert_eq!(link.fabric.number(&format!("counter.faults.{fault}")), 1);
        // What follows is not held for ever.
        link.net.close_send(link.send).expect("closeSend");
        link.turn();
        let failed = (0..TURNS).find_map(|_| {
            link.ends[0].turn();
            link.net.test(received[BURST - 1]).err()
        });
        // Of a write that was posted, nobody knows whether it will come.
        assert!(failed.is_some() || fault == "fail", "{case}");
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close_ends();
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
        // What may still come keeps regions that are bound.
        if fault == "reject" {
            link.fabric.is_closed();
        }
    });
}

fn tag_of(index: usize) -> i32 {
    i32::try_from(index).expect("small")
}
