//! Peers that receive nothing and refuse nothing, like hosts that hang: what is sent to them stays in flight.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::link::{Link, POLLS};
use crate::support::calls::{Buffer, Net};
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::set;
use crate::world::{End, World, connect, provider};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_millis(2000);
/// More than the buffers for letters that a rail has at first, less those that any peer may take several of.
const HUNG: usize = 24;
/// A part's bytes at most, and parts of a message to a hung peer: together such messages are more writes than a NIC has room for.
const PART: usize = 1024;
const PARTS: usize = 64;
/// More operations in flight than the plugin has.
const DEPTH: usize = 1 << 16;

/// The plugin a second time, on a NIC of its own.
fn on_another_nic(part: &Part) -> Net {
    let copy = format!("another.{}.so", std::process::id());
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(copy);
    fs::copy(part.plugin(), &copy).expect("the target folder takes a file");
    set("IRONRAIL_RAILS", "vnic1");
    let net = Net::open(&copy);
    fs::remove_file(&copy).expect("ours");
    net
}

/// Its answers need buffers, too.
#[test]
fn a_rank_that_queries_hung_peers_still_answers_others() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_PEER_TIMEOUT_MS", &TIMEOUT.as_millis().to_string());
        let world = World::open(part, "efa", [1, 1]);
        let [asking, living] = world.nets.map(End::open);
        let net = world.nets[0];
        let another = on_another_nic(part);
        let hung: Vec<End> = (0..HUNG).map(|_| End::open(another)).collect();
        let link = Link::open(world, [asking, living]);
        link.warm();
        for end in &hung {
            let (_, receive) = connect(end, &asking);
            let into = Buffer::new(64);
            let region = net.register(receive, into).expect("regMr");
            let posted = net.irecv(receive, into.address(), into.len, 0, region);
            posted.expect("irecv").expect("the window is empty");
        }
        let awaited = link.irecv(0, 100, 0);
        link.settle();
        world.fabric.change(1, "stall");
        assert_eq!(world.fabric.number("counter.faults.stall"), 1);
        let start = Instant::now();
        while start.elapsed() < 2 * TIMEOUT {
            asking.poll();
            assert_eq!(net.test(awaited), Ok(None), "its sender is alive and idle");
        }
        let sent = link.isend(0, 100, 0).expect("its receive is advertised");
        assert_eq!(link.finish(awaited), 100);
        link.finish(sent);
    });
}

/// Nor is a rail to one of these taken for one that refuses everything.
#[test]
fn writes_that_hung_peers_hold_leave_room_for_those_to_others() {
    play(&[provider()], BOUND, |part| {
        for (name, value) in [
            ("IRONRAIL_LARGEST_WRITE", PART.to_string()),
            ("IRONRAIL_INLINE_MAX_SIZE", "512".to_owned()),
            ("IRONRAIL_PEER_TIMEOUT_MS", TIMEOUT.as_millis().to_string()),
            ("VFABRIC_DEPTH", DEPTH.to_string()),
        ] {
            set(name, &value);
        }
        let world = World::open(part, "efa", [1, 1]);
        world.fabric.configure(&format!("profile=efa nics=16 depth={DEPTH}"));
        let [sending, living] = world.nets.map(End::open);
        let net = world.nets[0];
        let another = on_another_nic(part);
        let hung: Vec<End> = (0..HUNG).map(|_| End::open(another)).collect();
        let link = Link::open(world, [sending, living]);
        link.warm();
        let bytes = Buffer::new(PART * PARTS);
        let open = |end: &End| {
            let (send, receive) = connect(&sending, end);
            let into = another.register(receive, bytes).expect("regMr");
            let posted = another.irecv(receive, bytes.address(), bytes.len, 0, into);
            posted.expect("irecv").expect("the window is empty");
            (send, net.register(send, bytes).expect("regMr"))
        };
        let held: Vec<_> = hung.iter().map(open).collect();
        (0..POLLS).for_each(|_| hung.iter().chain([&sending]).for_each(End::poll));
        world.fabric.change(1, "stall");
        for (send, from) in &held {
            let sent = net.isend(*send, bytes.address(), bytes.len, 0, *from).expect("isend");
            sent.expect("its receive is advertised");
        }
        let start = Instant::now();
        while start.elapsed() < 2 * TIMEOUT {
            let received = link.irecv(0, 2 * PART, 0);
            let sent = link.isend_at_last(0, 2 * PART, 0);
            assert_eq!(link.finish(received), 2 * PART);
            link.finish(sent);
        }
        let held = world.fabric.number("open.operations");
        assert!(held > 256, "{held} operations are in flight");
    });
}
