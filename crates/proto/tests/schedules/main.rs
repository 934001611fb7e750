//! Whole endpoints from a seed: the loop that the plugin runs, over a wire that tears, delays, loses and refuses, with
//! laws on every frame, word and end.
//!
//! `SIM_SEED=n` repeats one schedule, `SIM_SCHEDULES=n` sets how many run, and `SIM_FIRST=n` from which seed on:
//! `SIM_SCHEDULES=1000000 cargo test -p proto --release --test schedules`.

#![expect(clippy::print_stdout, reason = "the faults that fired are the test's report")]
#![expect(clippy::unwrap_used, reason = "a world that cannot be made is a failed test")]
#![expect(clippy::cast_possible_truncation, reason = "the numbers of a world are small")]

mod faults;
#[path = "../simulation/random.rs"]
mod random;
mod setup;
mod talk;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use faults::{ALL, Faults};

/// Broken laws after which a run stops.
const LAWS_SHOWN: usize = 8;
const DEFAULT_SCHEDULES: u64 = 1500;
/// Below this many schedules, a rare fault may well not occur.
const SCHEDULES_WITH_EVERY_FAULT: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a schedule broke, if it did: a law, or itself.
fn run(seed: u64) -> Result<Faults, String> {
    catch_unwind(AssertUnwindSafe(|| world::run(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

#[test]
fn every_frame_arrives_once_in_order_or_both_ends_fail() {
    if let Some(seed) = number("SIM_SEED") {
        println!("seed {seed}: {:?}", run(seed).unwrap());
        return;
    }
    let schedules = number("SIM_SCHEDULES").unwrap_or(DEFAULT_SCHEDULES);
    let first = number("SIM_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    // Of each law that was broken, the first seed that broke it.
    let broken: Mutex<BTreeMap<String, (u64, String)>> = Mutex::default();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
    let faults = thread::scope(|scope| {
        let worker = || {
            let mut faults = Faults::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed - first >= schedules || broken.lock().unwrap().len() > LAWS_SHOWN {
                    return faults;
                }
                match run(seed) {
                    Ok(fired) => faults.add(&fired),
                    Err(law) => {
                        let key = law.lines().next().unwrap_or_default().to_owned();
                        broken.lock().unwrap().entry(key).or_insert((seed, law));
                    }
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
    let broken = broken.into_inner().unwrap();
    for (seed, law) in broken.values() {
        println!("SIM_SEED={seed}: {law}");
    }
    assert!(broken.is_empty(), "{} laws were broken", broken.len());
    for (fault, count) in &faults.0 {
        println!("{count:>12} {fault:?}");
    }
    if schedules >= SCHEDULES_WITH_EVERY_FAULT {
        let missing: Vec<_> = ALL.iter().filter(|fault| !faults.has(**fault)).collect();
        assert!(missing.is_empty(), "never fired: {missing:?}");
    }
}

/// Seeds that broke a law once, and what was wrong.
const MENDED: [(u64, &str); 1] =
    [(14_891, "a keeper polled so rarely that a silent peer's time hardly passed")];

#[test]
fn a_seed_that_broke_a_law_once_breaks_none_any_more() {
    for (seed, what) in MENDED {
        assert_eq!(run(seed).err(), None, "{seed}: {what}");
    }
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| run(seed).unwrap().0);
        assert_eq!(one, other);
    }
}
