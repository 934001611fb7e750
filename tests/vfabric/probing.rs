//! The probe of a device: it continues in later calls of any communicator, and its posts keep their contexts and their memory until they
//! complete. A NIC that fails meanwhile is a lost rail, not a provider that can do less.

use std::time::{Duration, Instant};

use crate::link::{Link, POLLS};
use crate::support::calls::{Failure, explain, lines};
use crate::support::stage::{Part, play, play_each};
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const PROFILES: [&str; 4] = ["cxi", "efa", "tcp", "adversary"];
/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// Far more than the probe's own bound of two seconds.
const WAIT: Duration = Duration::from_secs(60);
/// What the probe posts, in order: the counter of what is accepted, and its value then.
const ATTEMPTS: [(&str, u64); 4] = [("write", 1), ("writedata", 1), ("read", 1), ("write", 2)];

fn posts(world: World, kind: &str) -> u64 {
    world.fabric.number(&format!("counter.posts.{kind}"))
}

fn accepted(world: World, kind: &str) -> u64 {
    world.fabric.number(&format!("counter.accepted.{kind}"))
}

#[track_caller]
fn within(bound: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < bound, "it takes longer than {bound:?}");
    }
}

/// Neither an operation of the probe nor a poll is waited for.
#[test]
fn listen_waits_for_nothing_that_the_probe_posts() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let end = End::open_unsettled(world.nets[0]);
        assert_eq!(world.fabric.number("counter.completions"), 0);
        assert_eq!((posts(world, "read"), posts(world, "writedata")), (0, 0));
        end.close();
        world.fabric.is_clean();
    });
}

/// Two communicators, and a third one that comes when the probe is complete.
#[test]
fn a_device_is_probed_once_however_many_communicators_there_are() {
    play_each(&["efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let ends = world.nets.map(End::open_unsettled);
        let link = Link::open(world, ends);
        assert_eq!(posts(world, "read"), 1);
        let late = End::open_unsettled(world.nets[0]);
        (0..POLLS).for_each(|_| late.poll());
        assert_eq!(posts(world, "read"), 1);
        late.close();
        link.warm();
        link.close_all();
    });
}

/// The one that probes has called listen, and nothing since.
#[test]
fn a_probe_goes_on_in_the_calls_of_another_communicator() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let [idle, busy] = world.nets.map(End::open_unsettled);
        let link = Link::open(world, [busy, busy]);
        link.warm();
        link.close_comms();
        link.poll();
        idle.close();
        busy.close();
        world.fabric.is_clean();
    });
}

#[test]
fn an_endpoint_that_closes_leaves_its_probe_to_the_next() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let [first, second] = world.nets.map(End::open_unsettled);
        first.close();
        let link = Link::open(world, [second, second]);
        link.warm();
        link.close_comms();
        link.poll();
        second.close();
        world.fabric.is_clean();
    });
}

/// An endpoint with this many rails, and what happens to its first NIC as soon as the probe has posted this much.
fn met_at(
    part: &Part,
    profile: &str,
    rails: usize,
    (kind, count): (&str, u64),
    action: &str,
) -> (World, End) {
    let world = World::open(part, profile, [rails, rails]);
    if profile == "cxi" {
        world.fabric.configure("profile=cxi immediates=1");
    }
    let end = End::open_unsettled(world.nets[0]);
    within(WAIT, || {
        let is_there = accepted(world, kind) == count;
        if !is_there {
            end.poll();
        }
        is_there
    });
    assert!(world.fabric.number("open.operations") > 0, "{profile}: what was posted has ended");
    world.fabric.change(0, action);
    assert_eq!(world.fabric.number(&format!("counter.faults.{action}")), 1);
    (world, end)
}

/// The words of a case: a profile, the number of an attempt, and what happens to the NIC meanwhile.
fn words(case: &str) -> (&str, (&'static str, u64), &str) {
    let words: Vec<_> = case.split(' ').collect();
    let [profile, index, action] = words[..] else { panic!("{case} is not three words") };
    (profile, ATTEMPTS[index.parse::<usize>().expect("a number")], action)
}

/// The NIC of every profile is killed at each attempt, and is stalled in these cases.
fn failures(stalled: &[&str]) -> Vec<String> {
    let of = |profile| (0..ATTEMPTS.len()).map(move |at| format!("{profile} {at} kill"));
    let killed = PROFILES.into_iter().flat_map(of);
    killed.chain(stalled.iter().map(|case| (*case).to_owned())).collect()
}

/// The result of the device's probe, once there is one.
fn probed(part: &Part) -> Option<serde_json::Value> {
    let text = explain(&part.plugin());
    let said: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    Some(said["devices"][0]["probed"].clone()).filter(|probed| !probed.is_null())
}

/// What was found: bytes of an immediate, whether a rail reads its own memory, and whether it completes on delivery.
#[track_caller]
fn found(part: &Part) -> (u64, bool, bool) {
    let probed = probed(part).expect("the probe is over");
    let flag = |name: &str| probed[name].as_bool().expect("a flag");
    let bytes = probed["immediate_bytes"].as_u64().expect("a number");
    (bytes, flag("self_read"), flag("delivery_complete"))
}

/// All that this profile can do.
fn everything(profile: &str) -> (u64, bool, bool) {
    let bytes = if ["cxi", "tcp"].contains(&profile) { 8 } else { 4 };
    (bytes, true, true)
}

/// It says that a write may have any length, and cuts those of more than 1 GiB, each piece with the immediate.
#[test]
fn no_part_is_longer_than_what_efa_writes_with_one_immediate() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        let end = End::open(world.nets[0]);
        let largest = probed(part).expect("the probe is over")["largest_write"].clone();
        assert_eq!(largest, (1_u64 << 30).to_string());
        end.close();
        world.fabric.is_clean();
    });
}

/// More than any inline message.
const LONG: usize = 6000;

#[track_caller]
fn moves_a_long_message(link: &Link, at: usize) {
    let received = link.irecv(0, LONG, 0);
    let sent = link.isend_at_last(at, LONG, 0);
    link.finish(sent);
    assert_eq!(link.finish(received), LONG);
    assert!(link.has(0, at, LONG));
}

/// Whatever it has shown until then, and whether its operations fail or hang.
#[test]
fn a_nic_that_fails_while_it_is_probed_is_a_lost_rail_and_the_next_one_is_probed() {
    let stalled = ["cxi 0 stall", "efa 1 stall", "tcp 1 stall", "tcp 3 stall", "adversary 2 stall"];
    play_each(&failures(&stalled), &[provider()], BOUND, |part, case| {
        let (profile, attempt, action) = words(case);
        let (world, end) = met_at(part, profile, 2, attempt, action);
        within(WAIT, || {
            end.poll();
            probed(part).is_some()
        });
        assert_eq!(found(part), everything(profile), "{case}");
        let says =
            |line: &String| line.contains("vnic0") && line.contains("the next rail is probed");
        assert_eq!(lines().iter().filter(|line| says(line)).count(), 1, "{case}: {:?}", lines());
        let again = if action == "stall" { "resume" } else { "revive" };
        // Where regions are bound to endpoints, a rail on which writes hang cannot be closed. Over tcp letters are lost in silence, which takes
        // seconds to find.
        let works_again = action == "stall" || profile == "tcp";
        if works_again {
            world.fabric.change(0, again);
        }
        let other = End::open_unsettled(world.nets[1]);
        let link = Link::open(world, [end, other]);
        link.warm();
        moves_a_long_message(&link, 1);
        if !works_again {
            world.fabric.change(0, again);
        }
        moves_a_long_message(&link, 2);
        link.close_comms();
        link.close_ends();
        assert_eq!(world.fabric.violations(), Vec::<String>::new(), "{case}");
    });
}

/// The error of accept, whose endpoint has no rail left.
#[track_caller]
fn error_of_accept(end: &End) -> Failure {
    let mut refused = None;
    within(WAIT, || {
        refused = end.net.accept(end.listener).err();
        refused.is_some()
    });
    refused.expect("just seen")
}

/// The next communicator probes for itself. After three seconds, for example: the operation completes long after the probe has ended.
#[test]
fn a_probe_whose_only_nic_fails_is_an_error_that_names_it_and_breaks_no_rule() {
    let stalled = ["cxi 0 stall", "efa 0 stall", "tcp 0 stall", "adversary 0 stall", "efa 1 stall"];
    play_each(&failures(&stalled), &[provider()], BOUND, |part, case| {
        let (profile, attempt, action) = words(case);
        let (world, end) = met_at(part, profile, 1, attempt, action);
        let refused = error_of_accept(&end);
        // A write over tcp completes before it leaves, so that its loss is silent.
        let fails = action == "kill" && profile != "tcp";
        let cause = if fails { "Network is down" } else { "Connection timed out" };
        for words in ["vnic0", "fi_write to itself", cause] {
            assert!(refused.said.iter().any(|line| line.contains(words)), "{case}: {refused:?}");
        }
        assert_eq!(probed(part), None, "{case}: it is taken for a provider that can do less");
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
        world.fabric.change(0, if action == "kill" { "revive" } else { "resume" });
        let next = End::open_unsettled(end.net);
        let link = Link::open(world, [next, next]);
        link.warm();
        assert_eq!(found(part), everything(profile), "{case}");
        link.close_comms();
        link.poll();
        end.close();
        next.close();
        world.fabric.is_clean();
    });
}

/// The posts complete when the NIC moves again, and show what they are for.
#[test]
fn an_attempt_that_ends_past_the_bound_is_seen_if_its_nic_works_again() {
    let cases = ["cxi 1 stall", "adversary 1 stall", "efa 2 stall", "adversary 3 stall"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, attempt, action) = words(case);
        let (world, end) = met_at(part, profile, 1, attempt, action);
        let before = accepted(world, "write");
        // Past the bound it writes once more, to see whether the NIC works.
        within(WAIT, || {
            end.poll();
            accepted(world, "write") > before
        });
        world.fabric.change(0, "resume");
        let link = Link::open(world, [end, end]);
        link.warm();
        assert_eq!(found(part), everything(profile), "{case}");
        link.close_comms();
        link.poll();
        end.close();
        world.fabric.is_clean();
    });
}

/// Operations are numbered as the probe posts them: after one that has failed another write shows that the NIC works.
#[test]
fn an_attempt_that_fails_or_is_silent_on_a_nic_that_works_counts_as_absent() {
    let cases = ["cxi fail=2", "efa fail=3", "tcp fail=4", "adversary fail=2", "efa vanish=2"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, fault) = case.split_once(' ').expect("two words");
        let world = World::open(part, profile, [1, 1]);
        if profile == "cxi" {
            world.fabric.configure("profile=cxi immediates=1");
        }
        world.fabric.fault(fault);
        let end = End::open_unsettled(world.nets[0]);
        within(WAIT, || {
            end.poll();
            probed(part).is_some()
        });
        let (kind, number) = fault.split_once('=').expect("a fault and a number");
        assert_eq!(world.fabric.number(&format!("counter.faults.{kind}")), 1);
        let (bytes, reads, completes) = everything(profile);
        let expected = match number {
            "2" => (0, reads, completes),
            "3" => (bytes, false, completes),
            _ => (bytes, reads, false),
        };
        assert_eq!(found(part), expected, "{case}");
        let link = Link::open(world, [end, end]);
        link.warm();
        moves_a_long_message(&link, 1);
        link.close_comms();
        link.poll();
        end.close();
        world.fabric.is_clean();
    });
}

/// Without immediates, and without the last attempt, no protocol is left where completions prove nothing.
#[test]
fn a_provider_that_can_signal_no_end_is_refused() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "adversary", [1, 1]);
        world.fabric.fault("fail=2 fail=5");
        let end = End::open_unsettled(world.nets[0]);
        within(WAIT, || {
            end.poll();
            probed(part).is_some()
        });
        assert_eq!(world.fabric.number("counter.faults.fail"), 2);
        assert_eq!(found(part), (0, true, false));
        is_refused(&end);
        end.close();
        world.fabric.is_clean();
    });
}

/// The endpoint cannot connect to itself.
fn is_refused(end: &End) {
    let (mut handle, listener) = end.net.listen(end.context, 0).expect("listen");
    let mut refused = None;
    within(WAIT, || {
        refused = end.net.connect(end.context, 0, &mut handle).err();
        // The other end gets an error too.
        let _accepted = end.net.accept(listener);
        refused.is_some()
    });
    let refused = refused.expect("just seen");
    let says = |line: &String| line.contains("neither immediates nor delivery completion");
    assert!(refused.said.iter().any(says), "{refused:?}");
    end.net.close_listen(listener).expect("closeListen");
}

/// The provider may never complete what it has accepted: then finalize waits no longer than for anything else.
#[test]
fn a_probe_that_never_ends_leaks_where_regions_are_bound_and_nothing_elsewhere() {
    play_each(&["efa", "adversary"], &[provider()], BOUND, |part, profile| {
        let (world, end) = met_at(part, profile, 1, ATTEMPTS[0], "stall");
        end.close();
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
        let leaks = lines().iter().any(|line| line.contains("leaks"));
        assert_eq!(leaks, profile == "adversary");
        if !leaks {
            world.fabric.is_closed();
        }
    });
}

/// A communicator that had to wait connects to one that had not.
#[test]
fn communicators_of_one_process_connect_while_one_probes() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "adversary", [2, 2]);
        let ends = world.nets.map(End::open_unsettled);
        let comms = connect(&ends[1], &ends[0]);
        world.nets[0].close_send(comms.0).expect("closeSend");
        world.nets[0].close_recv(comms.1).expect("closeRecv");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        world.fabric.is_clean();
    });
}
