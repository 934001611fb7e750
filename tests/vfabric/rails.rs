//! Data rails that are lost: the others carry their traffic. Nothing is lost, doubled or late, at whichever operation it happens.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::{Failure, Object, lines};
use crate::support::stage::{Part, play_each};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, provider};

const PROFILES: [&str; 4] = ["cxi", "efa", "tcp", "adversary"];
const BOUND: Duration = Duration::from_secs(300);
/// How long a message may take while a rail is lost, and what a loaded machine adds.
const WAIT: Duration = Duration::from_secs(30);
/// Lengths of the messages of one run: in several parts, in one, inline, empty.
const LENGTHS: [usize; 6] = [6000, 16, 6001, 0, 5000, 300];
/// More than any packet here has, and less than a part of a long message.
const OF_DATA: usize = 1000;

fn open(world: World) -> Link {
    let link = Link::open(world, world.nets.map(End::open));
    (0..2).for_each(|_| link.warm());
    link.settle();
    link
}

fn world(part: &Part, profile: &str, rails: usize) -> World {
    world_with(part, profile, rails, "")
}

/// With more settings of the fabric.
fn world_with(part: &Part, profile: &str, rails: usize, more: &str) -> World {
    set("IRONRAIL_STRIPE_MIN", "128");
    set("IRONRAIL_INLINE_MAX_SIZE", "64");
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
    let level = std::env::var("IRONRAIL_TEST_LOG_LEVEL").ok();
    let world =
        World::open_and_say(part, profile, [rails, rails], level.as_deref().unwrap_or("error"));
    world.fabric.configure(&format!("profile={profile} nics=16 {more}"));
    world
}

/// Calls both ends until `test` returns a value.
#[track_caller]
fn within<T>(link: &Link, what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        link.ends.iter().for_each(End::poll);
        if let Some(answer) = test() {
            return answer;
        }
        assert!(start.elapsed() < WAIT, "{what}: not within {WAIT:?}");
    }
}

/// One message from one place to another; returns its length, or the first error.
fn message(link: &Link, at: usize, len: usize) -> Result<usize, Failure> {
    let net = link.net;
    let post = |what: &str, call: &dyn Fn() -> Result<Option<Object>, Failure>| {
        within(link, what, || call().transpose())
    };
    let (into, out) = (link.into.address() + at, link.out.address() + at);
    let received = post("irecv", &|| net.irecv(link.receive, into, len, 0, link.to))?;
    let sent = post("isend", &|| net.isend(link.send, out, len, 0, link.from))?;
    within(link, "the send", || net.test(sent).transpose())?;
    within(link, "the receive", || net.test(received).transpose())
}

/// All messages, each checked.
#[track_caller]
fn messages(link: &Link, case: &str) {
    for (at, len) in LENGTHS.into_iter().enumerate() {
        // At another place each time, so that old bytes are not mistaken for new ones.
        let at = 128 * at;
        link.into.write(at, &vec![0xee; len]);
        let size = message(link, at, len).unwrap_or_else(|failure| {
            panic!("{case}: a message of {len} bytes: {failure:?}");
        });
        assert_eq!(size, len, "{case}");
        assert!(link.has(at, at, len), "{case}: a message of {len} bytes is not what was sent");
    }
}

fn close(link: &Link) {
    link.close_comms();
    link.poll();
    close_together(link.ends);
    assert_eq!(link.fabric.violations(), Vec::<String>::new());
}

/// Where faults are injected: at every operation if IRONRAIL_TEST_EVERY_POSITION is set, as `scripts/matrix positions` does; otherwise at
/// some of them.
fn positions(all: u64) -> impl Iterator<Item = u64> {
    let every = std::env::var_os("IRONRAIL_TEST_EVERY_POSITION").is_some();
    (1..=all).step_by(if every { 1 } else { 9 })
}

/// The number of operations of the messages without a fault.
fn operations(world: World) -> u64 {
    let link = open(world);
    let before = link.fabric.number("counter.operations");
    messages(&link, "nothing fails");
    let taken = link.fabric.number("counter.operations") - before;
    close(&link);
    taken
}

#[test]
fn an_operation_that_fails_costs_no_message_whichever_it_is() {
    for (fault, rails) in [("fail", "2"), ("fail", "4"), ("fail_late", "2")] {
        let settings = [provider(), ("TEST_FAULT", fault), ("TEST_RAILS", rails)];
        play_each(&PROFILES, &settings, BOUND, |part, profile| {
            let said = |name: &str| std::env::var(name).expect("the play sets it");
            let (fault, rails) = (said("IRONRAIL_TEST_FAULT"), said("IRONRAIL_TEST_RAILS"));
            let world = world(part, profile, rails.parse().expect("a number"));
            let (mut fired, all) = (0, operations(world));
            for position in positions(all) {
                let link = open(world);
                let before = link.fabric.number(&format!("counter.faults.{fault}"));
                let operation = link.fabric.number("counter.operations") + position;
                link.fabric.fault(&format!("{fault}={operation}"));
                let case = format!("{profile}, {rails} rails, {fault} at {position} of {all}");
                messages(&link, &case);
                // Earlier and later messages are correct, too.
                messages(&link, &case);
                fired += link.fabric.number(&format!("counter.faults.{fault}")) - before;
                close(&link);
            }
            assert_eq!(fired, positions(all).count() as u64, "{profile}, {fault}");
        });
    }
}

/// The provider completes a part, and it never arrives: the ends' counts differ.
#[test]
fn a_part_that_is_lost_in_silence_comes_by_another_rail() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "warn");
        // A protocol by which completions do not prove arrival. Where immediates are refused, a write's own completion says that it was
        // delivered, as each does by cxi's protocol of version 1.
        let (protocol, more) = match profile {
            "cxi" => ("24.0", "immediates=1 protocol=24.0"),
            "efa" => ("20.5", "protocol=20.5"),
            _ => ("", ""),
        };
        if !protocol.is_empty() {
            // The plugin asks for it when it starts.
            set("VFABRIC_PROTOCOL", protocol);
        }
        let world = world_with(part, profile, 2, more);
        let (mut vanished, all) = (0, operations(world));
        for position in positions(all) {
            let link = open(world);
            let before = link.fabric.number("counter.faults.vanish");
            let operation = link.fabric.number("counter.operations") + position;
            link.fabric.fault(&format!("vanish={operation}"));
            let case = format!("{profile}, vanished at {position} of {all}");
            messages(&link, &case);
            // On a busy machine acknowledgements share more packets, so one round may have fewer operations.
            messages(&link, &case);
            vanished += link.fabric.number("counter.faults.vanish") - before;
            close(&link);
        }
        assert_eq!(vanished, positions(all).count() as u64, "{profile}");
        // Those may all have been packets.
        let (link, before) = (open(world), logged("data rail", " is lost"));
        link.fabric.fault_next("vanish", OF_DATA);
        messages(&link, profile);
        assert!(logged("data rail", " is lost") > before, "{profile}: a part is lost unnoticed");
        close(&link);
    });
}

/// A NIC dies under both ends, with its control rail: the others take over.
#[test]
fn a_nic_that_dies_costs_no_message_whenever_it_does() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let world = world(part, profile, 3);
        let all = operations(world);
        let mut killed = 0;
        for position in positions(all) {
            for nic in [0, 2] {
                let link = open(world);
                let post = link.fabric.number("counter.posts") + position;
                let before = link.fabric.number("counter.faults.kill");
                link.fabric.fault(&format!("kill={nic}@{post}"));
                let case = format!("{profile}, NIC {nic} dies at {position} of {all}");
                messages(&link, &case);
                messages(&link, &case);
                killed += link.fabric.number("counter.faults.kill") - before;
                close(&link);
                link.fabric.change(nic, "revive");
            }
        }
        assert_eq!(killed, 2 * positions(all).count() as u64, "{profile}");
    });
}

/// A NIC moves nothing any more, and reports nothing. Its rail is closed, which ends what hangs there, and the others carry that. Where regions
/// are bound to endpoints a rail with operations cannot be closed.
#[test]
fn writes_that_hang_on_a_rail_are_made_again_by_another() {
    play_each(&["efa", "tcp"], &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        let link = open(world(part, profile, 3));
        for (round, nic) in [(1, 1), (2, 2)] {
            link.fabric.change(nic, "stall");
            let case = format!("{profile}, NIC {nic} stands still");
            messages(&link, &case);
            messages(&link, &case);
            link.fabric.change(nic, "resume");
            within(&link, "the rail is back", || {
                (logged("data rail", " is back") >= 2 * round).then_some(())
            });
        }
        assert!(logged("data rail", " is closed, so that nothing late can arrive by it") >= 2);
        assert_eq!(link.fabric.number("counter.faults.stall"), 2);
        close(&link);
    });
}

/// What hangs on a rail may touch memory until its endpoint has closed. If the provider refuses that, nothing of the rail is given up, however
/// often it is tried.
#[test]
fn a_rail_whose_endpoint_does_not_close_is_never_taken_for_closed() {
    play_each(&["efa", "tcp", "cxi"], &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        set("IRONRAIL_PEER_TIMEOUT_MS", "1000");
        let world = world(part, profile, 3);
        let opened = world.fabric.number("opened.endpoints");
        let link = open(world);
        // Of each NIC first the data rail, then the control rail: NIC 1's data rails, of either end.
        for of_end in [0, 6] {
            link.fabric.fault(&format!("stuck={}", opened + of_end + 3));
        }
        link.fabric.change(1, "stall");
        let (net, into, out) = (link.net, link.into.address(), link.out.address());
        // Whether they end, and how, is not the point.
        let _received = net.irecv(link.receive, into, LENGTHS[0], 0, link.to);
        within(&link, "the rail is closed in vain", || {
            let _sent = net.isend(link.send, out, LENGTHS[0], 0, link.from);
            (link.fabric.number("counter.faults.stuck") > 0).then_some(())
        });
        link.poll();
        assert_eq!(link.fabric.violations(), Vec::<String>::new(), "{profile}");
        assert_eq!(logged("vnic1", " is closed, so that nothing late can arrive by it"), 0);
        link.fabric.change(1, "resume");
        close(&link);
    });
}

/// Both ends get an error, within the bound, with the first cause.
#[test]
fn the_loss_of_all_rails_is_an_error_on_both_ends() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_PEER_TIMEOUT_MS", "1000");
        let world = world(part, profile, 2);
        let link = open(world);
        messages(&link, profile);
        (0..2).for_each(|nic| link.fabric.change(nic, "kill"));
        let (net, into, out) = (link.net, link.into.address(), link.out.address());
        let mut ends = [None, None];
        let mut requests = [None, None];
        within(&link, "an error on both ends", || {
            for end in 0..2 {
                if ends[end].is_some() {
                    continue;
                }
                let answer = match (requests[end], end) {
                    (Some(request), _) => net.test(request).map(|done| {
                        assert_eq!(done, None, "{profile}: nothing arrives");
                    }),
                    (None, 0) => net.irecv(link.receive, into, 6000, 0, link.to).map(|request| {
                        requests[end] = request;
                    }),
                    (None, _) => net.isend(link.send, out, 6000, 0, link.from).map(|request| {
                        requests[end] = request;
                    }),
                };
                ends[end] = answer.err();
            }
            ends.iter().all(Option::is_some).then_some(())
        });
        for (failure, word) in ends.iter().zip(["receiving from", "sending to"]) {
            let failure = failure.as_ref().expect("both have failed");
            assert!(failure.said[0].contains(word), "{profile}: {failure:?}");
        }
        link.close_comms();
        link.poll();
        close_together(link.ends);
    });
}

#[test]
fn the_first_failure_is_an_error_where_failover_is_off() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_FAILOVER", "0");
        set("IRONRAIL_PEER_TIMEOUT_MS", "1000");
        let link = open(world(part, profile, 2));
        let net = link.net;
        let (into, out) = (link.into.address(), link.out.address());
        let received = within(&link, "irecv", || {
            net.irecv(link.receive, into, 6000, 0, link.to).expect("irecv")
        });
        link.poll();
        link.fabric.fault_next("fail", 1000);
        // Nothing else is posted before it.
        let sent = net.isend(link.send, out, 6000, 0, link.from).expect("isend");
        let sent = sent.expect("its receive is advertised");
        let failure = within(&link, "an error", || net.test(sent).err());
        assert!(failure.said[0].contains("sending to"), "{profile}: {failure:?}");
        let failure = within(&link, "an error", || net.test(received).err());
        assert!(failure.said[0].contains("receiving from"), "{profile}: {failure:?}");
        close(&link);
    });
}

/// How many log lines contain both.
fn logged(one: &str, other: &str) -> usize {
    let says = |line: &&String| line.contains(one) && line.contains(other);
    lines().iter().filter(says).count()
}

/// A message whose write fails: with 100 bytes the write of its part, with 16 that of its packet.
fn message_whose_write_fails(link: &Link, len: usize, case: &str) {
    let net = link.net;
    let (into, out) = (link.into.address(), link.out.address());
    link.into.write(0, &vec![0xee; len]);
    let received =
        within(link, "irecv", || net.irecv(link.receive, into, len, 0, link.to).expect("irecv"));
    (0..8).for_each(|_| link.poll());
    link.fabric.fault_next("fail", 0);
    let sent = net.isend(link.send, out, len, 0, link.from).expect("isend");
    let sent = sent.unwrap_or_else(|| panic!("{case}: its receive is advertised"));
    within(link, "the send", || net.test(sent).expect("the send"));
    let size = within(link, "the receive", || net.test(received).expect("the receive"));
    assert!(size == len && link.has(0, 0, len), "{case}");
}

/// The two rails fail alternately. Each carries everything while the other one is lost, so that must have come back before.
#[test]
fn a_rail_that_was_lost_comes_back_and_carries_all_when_the_other_one_goes() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        let link = open(world_with(part, profile, 2, "immediates=1"));
        for round in 0.. {
            let case = format!("{profile}, round {round}");
            message_whose_write_fails(&link, 100, &case);
            messages(&link, &case);
            within(&link, "both ends take it back", || {
                (logged("data rail", " is back") >= 2 * (round + 1)).then_some(())
            });
            messages(&link, &case);
            let lost = [0, 1].map(|rail| logged(&format!("data rail {rail} "), " is lost"));
            if lost.iter().all(|count| *count >= 4) {
                break;
            }
            assert!(round < 12, "{profile}: lost {lost:?}");
        }
        let again = logged("data rail", " is open again");
        assert!(again >= 4, "{profile}: what came late was kept out by a close each time: {again}");
        close(&link);
    });
}

/// Where regions are bound to endpoints, a rail that comes back has other keys. A message that was advertised before its loss is written by them.
#[test]
fn a_receive_that_was_advertised_before_its_rail_was_lost_is_written_by_it() {
    play_each(&["cxi", "adversary"], &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        let world = world_with(part, profile, 2, "immediates=1");
        let link = open(world);
        let other = Link::open(world, link.ends);
        other.warm();
        let lost = || logged("data rail", " is lost");
        for at in [0, 1] {
            let before = lost();
            let received = other.irecv(0, 6000, 0);
            link.poll();
            message_whose_write_fails(&link, 100, profile);
            within(&link, "both ends take it back", || {
                (logged("data rail", " is back") >= before + 2).then_some(())
            });
            assert_eq!(lost(), before + 2, "{profile}");
            let sent = within(&other, "isend", || other.isend(at, 6000, 0));
            let test = |request| other.net.test(request).expect("test");
            within(&other, "the send", || test(sent));
            assert_eq!(within(&other, "the receive", || test(received)), 6000);
            assert!(other.has(0, at, 6000), "{profile}");
            assert_eq!(lost(), before + 2, "{profile}: a key was not right any more");
        }
        other.close_comms();
        close(&link);
    });
}

/// More losses than there are control rails: without their return the channel would have failed.
#[test]
fn control_rails_that_were_lost_come_back() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        let link = open(world(part, profile, 2));
        for round in 1..=6 {
            let case = format!("{profile}, round {round}");
            message_whose_write_fails(&link, 16, &case);
            messages(&link, &case);
            within(&link, "both ends take it back", || {
                (logged("control rail", " is back") >= 2 * round).then_some(())
            });
            assert_eq!(logged("control rail", " is lost"), 2 * round, "{case}");
        }
        messages(&link, profile);
        close(&link);
    });
}
