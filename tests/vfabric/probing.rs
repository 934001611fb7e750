//! The probe of a device: it continues in later calls of any communicator, and its posts keep their contexts and their memory until they
//! complete.

use std::time::{Duration, Instant};

use crate::link::{Link, POLLS};
use crate::support::calls::lines;
use crate::support::stage::{Part, play, play_each};
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// Far more than the probe's own bound of two seconds.
const WAIT: Duration = Duration::from_secs(60);
/// The probe's posts, in order: the counter, and its value then.
const ATTEMPTS: [(&str, u64); 4] = [("write", 1), ("writedata", 1), ("read", 1), ("write", 2)];

fn posts(world: World, kind: &str) -> u64 {
    world.fabric.number(&format!("counter.posts.{kind}"))
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
    play_each(&["cxi", "efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
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
    play_each(&["cxi", "efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
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
    play_each(&["cxi", "efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
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

/// An endpoint whose NIC stalls as soon as the probe has posted this much.
fn stalled_at(part: &Part, profile: &str, (kind, count): (&str, u64)) -> (World, End) {
    let world = World::open(part, profile, [1, 1]);
    if profile == "cxi" {
        world.fabric.configure("profile=cxi immediates=1");
    }
    let end = End::open_unsettled(world.nets[0]);
    within(WAIT, || {
        let is_there = posts(world, kind) == count;
        if !is_there {
            end.poll();
        }
        is_there
    });
    world.fabric.change(0, "stall");
    assert!(world.fabric.number("open.operations") > 0, "{profile}: what was posted has ended");
    (world, end)
}

/// After three seconds, for example: the operation completes long after the probe has ended.
#[test]
fn a_first_write_that_ends_past_the_bound_is_an_error_and_breaks_no_rule() {
    play_each(&["cxi", "efa", "adversary"], &[provider()], BOUND, |part, profile| {
        let (world, end) = stalled_at(part, profile, ATTEMPTS[0]);
        let mut refused = None;
        within(WAIT, || {
            refused = end.net.accept(end.listener).err();
            refused.is_some()
        });
        let refused = refused.expect("just seen");
        assert!(refused.said.iter().any(|line| line.contains("fi_write to itself")), "{refused:?}");
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
        world.fabric.change(0, "resume");
        // The next communicator probes for itself.
        let next = End::open_unsettled(end.net);
        let link = Link::open(world, [next, next]);
        link.warm();
        link.close_comms();
        link.poll();
        end.close();
        next.close();
        world.fabric.is_clean();
    });
}

/// A capability that was not seen counts as absent, and the posts complete while a connection is in use. Without immediates, and without
/// the last attempt, no protocol is left where completions prove nothing. Whether efa's do depends on libfabric.
#[test]
fn an_attempt_that_ends_past_the_bound_counts_as_absent_and_breaks_no_rule() {
    let cases =
        ["cxi 1", "adversary 1", "cxi 2", "efa 2", "adversary 2", "cxi 3", "efa 3", "adversary 3"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, index) = case.split_once(' ').expect("two words");
        let attempt = ATTEMPTS[index.parse::<usize>().expect("a number")];
        let (world, end) = stalled_at(part, profile, attempt);
        let posted = world.fabric.number("counter.posts");
        let start = Instant::now();
        // The probe's bound counts only the time in which something polls.
        within(WAIT, || {
            end.poll();
            start.elapsed() > PAST_THE_BOUND
        });
        assert_eq!(world.fabric.number("counter.posts"), posted, "nothing is posted meanwhile");
        world.fabric.change(0, "resume");
        if (profile, attempt.0) == ("adversary", "writedata") {
            is_refused(&end);
        } else {
            let link = Link::open(world, [end, end]);
            link.warm();
            link.close_comms();
            link.poll();
        }
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
        let (world, end) = stalled_at(part, profile, ATTEMPTS[0]);
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

/// The probe's own bound, and a margin.
const PAST_THE_BOUND: Duration = Duration::from_millis(2500);
