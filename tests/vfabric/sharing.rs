//! A NIC without further endpoints: communicators share one, and each closes only what is its own.

use std::time::Duration;

use crate::link::{Link, POLLS};
use crate::support::calls::{Buffer, Object, warnings};
use crate::support::stage::{Part, play, play_each};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};
use crate::{Fabric, support};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
const PROFILES: [&str; 3] = ["cxi", "efa", "adversary"];
/// An endpoint of the plugin needs two of a NIC: for data and for control.
const EACH: usize = 2;

/// A fabric whose NIC has room for `room` endpoints of the plugin.
fn world(part: &Part, profile: &str, room: usize) -> World {
    let world = World::open(part, profile, [1, 1]);
    world.fabric.configure(&format!("profile={profile} nics=16 endpoints={}", room * EACH));
    world
}

fn open_endpoints(world: World) -> u64 {
    world.fabric.number("open.endpoints")
}

/// The number of the endpoint that a handle belongs to.
fn endpoint(Object(handle): Object) -> usize {
    handle >> 52
}

/// Messages of both, and either one closes first.
#[test]
fn two_communicators_share_the_only_endpoint_and_close_in_either_order() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        for last in [0, 1] {
            let world = world(part, profile, 1);
            let ends = world.nets.map(End::open);
            assert_eq!(endpoint(ends[0].listener), endpoint(ends[1].listener));
            assert_eq!(open_endpoints(world), EACH as u64);
            let there = Link::open(world, ends);
            let back = Link::open(world, [ends[1], ends[0]]);
            for _ in 0..3 {
                there.warm();
                back.warm();
            }
            assert!(there.has(0, 0, 100) && back.has(0, 0, 100), "every byte");
            there.close_comms();
            back.close_comms();
            there.poll();
            ends[1 - last].close();
            let alone = Link::open(world, [ends[last], ends[last]]);
            alone.warm();
            alone.close_comms();
            alone.poll();
            assert_eq!(open_endpoints(world), EACH as u64, "the other one still needs it");
            ends[last].close();
            world.fabric.is_clean();
        }
    });
}

/// Its comms, its listeners, a connect in progress and its memory; those of the other one stay.
#[test]
fn a_finalized_communicator_closes_what_it_has_left_open_and_nothing_else() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        for last in [0, 1] {
            let world = world(part, profile, 1);
            let ends @ [.., stays] = {
                let [first, second] = world.nets.map(End::open);
                if last == 1 { [first, second] } else { [second, first] }
            };
            let leaver = ends[0];
            let own = Link::open(world, [stays, stays]);
            own.warm();
            let regions = world.fabric.number("open.regions");
            let left = Link::open(world, [leaver, leaver]);
            left.warm();
            let (mut handle, _) = stays.net.listen(stays.context, 0).expect("listen");
            let asked = leaver.net.connect(leaver.context, 0, &mut handle).expect("connect");
            assert_eq!(asked, None, "the peer does not accept");
            assert_eq!(world.fabric.number("open.regions"), regions + 2, "a buffer at either end");
            leaver.net.finalize(leaver.context).expect("finalize");
            assert_eq!(world.fabric.number("open.regions"), regions, "they are closed");
            let stale = |comm: Object| leaver.net.register(comm, Buffer::new(4096)).is_err();
            assert!(stale(left.send) && stale(left.receive));
            assert!(leaver.net.accept(leaver.listener).is_err());
            (0..POLLS).for_each(|_| stays.poll());
            own.warm();
            own.close_comms();
            own.poll();
            stays.close();
            world.fabric.is_clean();
        }
    });
}

/// Of two endpoints that serve two communicators and one, the third newcomer gets the latter.
#[test]
fn the_least_loaded_endpoint_is_shared_and_the_log_says_so_once() {
    play(&[provider()], BOUND, |part| {
        let world = world(part, "cxi", 2);
        let net = world.nets[0];
        let [a, b] = world.nets.map(End::open);
        assert!(warnings().is_empty(), "{:?}", warnings());
        let [c, d, e] = [net; 3].map(End::open);
        let number = |end: End| endpoint(end.listener);
        assert_ne!(number(a), number(b));
        assert_eq!([number(c), number(d)], [number(a), number(b)]);
        assert_eq!(number(e), number(a));
        c.close();
        e.close();
        let next = End::open(net);
        assert_eq!(number(next), number(a), "the other one has two");
        let said = warnings();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("vnic0 has no room for another endpoint"), "{said:?}");
        for end in [a, next, d, b] {
            end.close();
        }
        world.fabric.is_clean();
    });
}

/// There is none to share: the error is not changed.
#[test]
fn a_nic_without_room_for_the_first_endpoint_is_an_error() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [1, 1]);
        world.fabric.configure("profile=cxi nics=16 endpoints=1");
        let net = world.nets[0];
        let context = net.init().expect("init");
        let refused = net.listen(context, 0).expect_err("it takes two");
        assert!(refused.said.iter().any(|line| line.contains("cannot use vnic0")), "{refused:?}");
        net.finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}

/// Once there is room again, an endpoint is opened for a newcomer.
#[test]
fn an_endpoint_is_opened_again_when_there_is_room() {
    play(&[provider()], BOUND, |part| {
        let world = world(part, "cxi", 1);
        let [a, b] = world.nets.map(End::open);
        assert_eq!(endpoint(a.listener), endpoint(b.listener));
        a.close();
        b.close();
        assert_eq!(open_endpoints(world), 0);
        let c = End::open(world.nets[0]);
        assert_eq!(open_endpoints(world), EACH as u64);
        c.close();
        world.fabric.is_clean();
    });
}

/// Two ends on one endpoint that was meant for one of them.
#[test]
fn a_connection_between_two_that_share_moves_data_over_several_rails() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [4, 4]);
        world.fabric.configure(&format!("profile=cxi nics=16 endpoints={EACH}"));
        let ends = world.nets.map(End::open);
        assert_eq!(open_endpoints(world), 4 * EACH as u64);
        let comms = connect(&ends[0], &ends[1]);
        world.nets[0].close_send(comms.0).expect("closeSend");
        world.nets[0].close_recv(comms.1).expect("closeRecv");
        let link = Link::open(world, ends);
        link.warm();
        link.close_all();
    });
}

/// Both have memory registered there: the last one must not close the endpoint while the other deregisters.
#[test]
fn two_that_share_an_endpoint_finalize_at_the_same_time() {
    play(&[provider()], BOUND, |part| {
        let world = world(part, "cxi", 1);
        for _ in 0..20 {
            let link = Link::open(world, world.nets.map(End::open));
            assert_eq!(open_endpoints(world), EACH as u64);
            link.warm();
            // The lock is released after each: many, so that the other end's finalize meets one.
            for _ in 0..64 {
                link.net.register(link.send, link.out).expect("regMr");
                link.net.register(link.receive, link.into).expect("regMr");
            }
            link.close_comms();
            close_together(link.ends);
            assert_eq!(open_endpoints(world), 0);
            world.fabric.is_clean();
        }
    });
}

/// Its sender's thread is busy elsewhere, so deregMr has returned an error.
#[test]
fn memory_that_stays_registered_is_left_to_the_communicator_that_registered_it() {
    play(&[provider()], BOUND, |part| {
        // Before the keeper polls for the sender (250 ms).
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "50");
        let world = world(part, "cxi", 2);
        let net = world.nets[0];
        let [sender, other] = world.nets.map(End::open);
        let [beside, owner] = [net; 2].map(End::open);
        assert_eq!(endpoint(owner.listener), endpoint(other.listener));
        let link = Link::open(world, [sender, owner]);
        link.warm();
        link.irecv(0, 4096, 0);
        link.settle();
        let failure =
            net.deregister(link.receive, link.to).expect_err("the sender may write there");
        assert!(failure.said[0].contains("stay registered"), "{failure:?}");
        other.close();
        let free = (0..POLLS).any(|_| {
            sender.poll();
            net.deregister(link.receive, link.to).is_ok()
        });
        assert!(free, "the sender has answered");
        link.close_comms();
        link.poll();
        close_together([sender, beside, owner]);
        // With so short a bound an end may close without another's farewell, and leave its domain open.
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
    });
}

/// Communicators of two threads each, which start at the same time: all on the endpoint of one of them.
#[test]
fn communicators_of_several_threads_share_one_endpoint() {
    for profile in ["cxi", "adversary"] {
        // For the stress program a warning is a failure.
        let settings = [("VFABRIC_ENDPOINTS", "2"), ("IRONRAIL_LOG_LEVEL", "error")];
        let fabric = Fabric::new(profile, &settings);
        let settings: Vec<_> =
            fabric.settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        support::client::stress(4, 1, 24, &settings);
        let report = fabric.report();
        report.is_clean();
        assert!(report.number("counter refused.endpoints") > 0, "{report:#?}");
    }
}
