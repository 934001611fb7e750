//! Whole connections from a seed: two flows, a network that reorders, tears, repeats and refuses, and an oracle.
//!
//! `SIM_SEED=n` replays one schedule, `SIM_SCHEDULES=n` sets how many run, and `SIM_FIRST=n` from which seed on:
//! `SIM_SCHEDULES=1000000 cargo test -p proto --release --test simulation`.

#![expect(clippy::print_stdout, reason = "the faults that fired are the test's report")]
#![expect(clippy::unwrap_used, reason = "a world that cannot be made is a failed test")]
#![expect(clippy::cast_possible_truncation, reason = "the numbers of a world are small")]

#[path = "simulation/faults.rs"]
mod faults;
#[path = "simulation/memory.rs"]
mod memory;
#[path = "simulation/network.rs"]
mod network;
#[path = "simulation/oracle.rs"]
mod oracle;
#[path = "simulation/random.rs"]
mod random;
#[path = "simulation/receiver.rs"]
mod receiver;
#[path = "simulation/script.rs"]
mod script;
#[path = "simulation/sender.rs"]
mod sender;
#[path = "simulation/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use faults::{Fault, Faults};

const DEFAULT_SCHEDULES: u64 = 5000;
/// Below this many schedules, a rare fault may well not occur.
const SCHEDULES_WITH_EVERY_FAULT: u64 = 2000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_message_arrives_once_in_order_or_fails_on_both_ends() {
    if let Some(seed) = number("SIM_SEED") {
        println!("seed {seed}: {}", world::run(seed));
        return;
    }
    let schedules = number("SIM_SCHEDULES").unwrap_or(DEFAULT_SCHEDULES);
    let first = number("SIM_FIRST").unwrap_or(0);
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
    let faults = thread::scope(|scope| {
        let worker = || {
            let mut faults = Faults::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed - first >= schedules || failed.load(Ordering::Relaxed) != u64::MAX {
                    return faults;
                }
                match catch_unwind(AssertUnwindSafe(|| world::run(seed))) {
                    Ok(fired) => faults.add(&fired),
                    Err(_) => drop(failed.fetch_min(seed, Ordering::Relaxed)),
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut faults = Faults::default();
        for worker in workers {
            faults.add(&worker.join().unwrap());
        }
        faults
    });
    let failed = failed.into_inner();
    assert_eq!(failed, u64::MAX, "failed; replay it with SIM_SEED={failed}");
    println!("{schedules} schedules from seed {first} on: {faults}");
    if schedules >= SCHEDULES_WITH_EVERY_FAULT {
        for fault in Fault::ALL {
            assert!(faults.count(fault) > 0, "{fault:?} was never injected");
        }
    }
}
