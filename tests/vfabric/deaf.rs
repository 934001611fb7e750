//! Control rails on which no receive can be posted: for a while, which has no effect, or for good, which is an error.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::Failure;
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, provider};

const BOUND: Duration = Duration::from_secs(60);
/// The bound of the error, and what a loaded machine adds.
const WAIT: Duration = Duration::from_secs(20);
/// More than the receives for packets that a rail has posted.
const ROUNDS: usize = 100;
/// It travels in a packet.
const SHORT: usize = 16;

/// A connection by SENDRECV, and the number of the receiver's control endpoint.
fn open(part: &Part) -> (Link, u64) {
    let world = World::open(part, "messages", [1, 1]);
    let sender = End::open(world.nets[0]);
    // An endpoint for data, then one for control.
    let control = world.fabric.number("opened.endpoints") + 2;
    let link = Link::open(world, [sender, End::open(world.nets[1])]);
    link.warm();
    link.settle();
    (link, control)
}

/// A message from end to end, or the receiver's error.
#[track_caller]
fn exchange(link: &Link, at: usize) -> Result<(), Failure> {
    let start = Instant::now();
    let (mut received, mut sent) = (None, None);
    loop {
        link.ends.iter().for_each(End::poll);
        if received.is_none() {
            let into = link.into.address();
            received = link.net.irecv(link.receive, into, SHORT, 0, link.to)?;
        }
        // It fails after the receiver, or with it.
        if sent.is_none() {
            let from = link.out.address() + at;
            sent = link.net.isend(link.send, from, SHORT, 0, link.from).unwrap_or(None);
        }
        if let Some(request) = received
            && link.net.test(request)?.is_some()
        {
            assert!(link.has(0, at, SHORT), "message {at}");
            link.finish(sent.expect("it has arrived"));
            return Ok(());
        }
        assert!(start.elapsed() < WAIT, "message {at} neither arrives nor fails");
    }
}

#[test]
fn receives_that_are_rejected_for_a_while_are_posted_later() {
    play(&[provider()], BOUND, |part| {
        let (link, control) = open(part);
        for round in 0..ROUNDS {
            link.fabric.fault(&format!("deaf={control}"));
            exchange(&link, round).expect("some are still posted");
            link.fabric.fault(&format!("hears={control}"));
            exchange(&link, round).expect("others are posted again");
        }
        assert!(link.fabric.number("counter.faults.deaf") > 32);
        link.close_all();
    });
}

#[test]
fn a_rail_that_takes_no_receives_any_more_is_an_error_on_both_ends() {
    play(&[provider()], BOUND, |part| {
        // What is sent to the deaf end stays in flight.
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let (link, control) = open(part);
        link.fabric.fault(&format!("deaf={control}"));
        let failure = (0..ROUNDS).find_map(|round| exchange(&link, round).err());
        let failure = failure.expect("no packet can be received any more");
        // A receive for packets, or for letters.
        let says = |call| {
            let words = "no receive can be posted on vfabric vnic0";
            failure.said[0].contains(&format!("{words}: {call}: Input/output error (-5)"))
        };
        assert!(says("fi_trecv") || says("fi_recv"), "{failure:?}");
        let start = Instant::now();
        while link.net.isend(link.send, link.out.address(), SHORT, 0, link.from).is_ok() {
            link.ends.iter().for_each(End::poll);
            assert!(start.elapsed() < WAIT, "the sender goes on");
        }
        link.close_comms();
        link.poll();
        close_together(link.ends);
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
    });
}
