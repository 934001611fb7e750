//! Peers that receive nothing and refuse nothing, like hosts that hang: what is sent to them stays in flight.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::{Buffer, Net};
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::set;
use crate::world::{End, World, connect, provider};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_millis(2000);
/// More than the buffers for letters that a rail has at first, less those that any peer may take several of.
const HUNG: usize = 24;

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
