//! Errors of completion queues that name no operation.

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
