//! Errors that name no operation: of completion queues, and of endpoints.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::lines;
use crate::support::stage::play;
use crate::world::{End, World, provider};

const BOUND: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);

#[test]
fn errors_that_name_no_operation_are_one_warning_for_each_endpoint_and_fail_nothing() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let link = Link::open(world, ends);
        link.warm();
        let queues = world.fabric.number("opened.queues");
        for round in 1..=3 {
            (1..=queues).for_each(|queue| world.fabric.fault(&format!("nameless={queue}")));
            let start = Instant::now();
            while world.fabric.number("counter.faults.nameless") < queues * round {
                link.ends.iter().for_each(End::poll);
                assert!(start.elapsed() < WAIT, "each queue is read");
            }
            link.warm();
        }
        let said = lines();
        let said = said.iter().filter(|line| line.contains("names no operation"));
        let words = " rail vfabric vnic0 names no operation: Input/output error (5)";
        assert!(said.clone().all(|line| line.contains(words)), "{:?}", lines());
        assert_eq!(said.count(), 2, "{:?}", lines());
        link.close_all();
    });
}

/// As efa's: without an event queue it would abort the process.
#[test]
fn errors_of_endpoints_go_to_event_queues_that_are_read_and_fail_nothing() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let link = Link::open(world, ends);
        link.warm();
        let (last, open) = ("opened.endpoints", "open.endpoints");
        let (last, open) = (world.fabric.number(last), world.fabric.number(open));
        assert_eq!((open, world.fabric.number("open.event_queues")), (4, 2), "one for a NIC's two");
        (last - open + 1..=last).for_each(|each| world.fabric.fault(&format!("unwell={each}")));
        let start = Instant::now();
        let is_said = |line: &String| {
            line.contains(
                "an error of the endpoints on vfabric vnic0 names no operation: No route to host",
            )
        };
        while world.fabric.number("counter.faults.unwell") < open
            || world.fabric.number("open.event_errors") > 0
        {
            link.ends.iter().for_each(End::poll);
            assert!(start.elapsed() < WAIT, "the event queues are read");
        }
        link.warm();
        assert_eq!(lines().iter().filter(|line| is_said(line)).count(), 2, "{:?}", lines());
        link.close_all();
    });
}
