//! The simulator: whole endpoints, with the progress loop that the plugin runs, over a wire that tears, delays, loses
//! and refuses by a seed; laws check every frame, word and end.
//!
//! `SIM_SEED=n` repeats one schedule, `SIM_SCHEDULES=n` sets how many run, and `SIM_FIRST=n` from which seed on:
//! `SIM_SCHEDULES=1000000 cargo test -p proto --release --test schedules`.

#![expect(clippy::print_stdout, reason = "the faults that fired are the test's report")]
#![expect(clippy::unwrap_used, reason = "a world that cannot be made is a failed test")]
#![expect(clippy::cast_possible_truncation, reason = "the numbers of a world are small")]

mod calls;
mod control;
mod conversation;
mod data;
mod faults;
mod hands;
mod job;
mod laws;
mod prompt;
mod random;
mod ranks;
mod setup;
mod tagged;
mod talk;
mod talks;
mod trials;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use faults::{
    FLOWS, Fault, Faults, MESSAGES, NOT_IN_PARTIAL, PARTIAL, RARE_IN_UNLIKE, TALKS, UNLIKE,
};

/// How many broken laws stop a run.
const LAWS_SHOWN: usize = 8;
const DEFAULT_TALKS: u64 = 1500;
const DEFAULT_FLOWS: u64 = 2000;
const DEFAULT_MESSAGES: u64 = 1000;
/// With fewer schedules than this, a rare fault may not occur.
const SCHEDULES_WITH_EVERY_FAULT: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One schedule, by its seed.
type Schedule = fn(u64) -> Result<Faults, String>;

/// Runs one schedule. An error if it breaks a law or panics.
fn run(schedule: Schedule, seed: u64) -> Result<Faults, String> {
    catch_unwind(AssertUnwindSafe(|| schedule(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Runs as many schedules as the environment says, and checks that each of these faults fires.
fn run_all(schedule: Schedule, default: u64, faults: &[Fault]) {
    if let Some(seed) = number("SIM_SEED") {
        println!("seed {seed}: {:?}", run(schedule, seed).unwrap());
        return;
    }
    let schedules = number("SIM_SCHEDULES").unwrap_or(default);
    let first = number("SIM_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    // For each broken law, the first seed that broke it.
    let broken: Mutex<BTreeMap<String, (u64, String)>> = Mutex::default();
    let threads = number("SIM_THREADS").and_then(|threads| usize::try_from(threads).ok());
    let most = thread::available_parallelism().map_or(1, usize::from).min(4);
    let threads = threads.unwrap_or(most).max(1);
    let fired = thread::scope(|scope| {
        let worker = || {
            let mut fired = Faults::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed - first >= schedules || broken.lock().unwrap().len() > LAWS_SHOWN {
                    return fired;
                }
                match run(schedule, seed) {
                    Ok(more) => fired.add(&more),
                    Err(law) => {
                        let key = law.lines().next().unwrap_or_default().to_owned();
                        broken.lock().unwrap().entry(key).or_insert((seed, law));
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut fired = Faults::default();
        for worker in workers {
            fired.add(&worker.join().unwrap());
        }
        fired
    });
    let broken = broken.into_inner().unwrap();
    for (seed, law) in broken.values() {
        println!("SIM_SEED={seed}: {law}");
    }
    assert!(broken.is_empty(), "{} laws were broken", broken.len());
    for (fault, count) in &fired.0 {
        println!("{count:>12} {fault:?}");
    }
    if schedules >= SCHEDULES_WITH_EVERY_FAULT {
        let missing: Vec<_> = faults.iter().filter(|fault| !fired.has(**fault)).collect();
        assert!(missing.is_empty(), "never fired: {missing:?}");
    }
}

/// The faults of real flows but these, and more.
fn flows_and(more: &[Fault], without: &[Fault]) -> Vec<Fault> {
    let common = FLOWS.into_iter().filter(|fault| !without.contains(fault));
    common.chain(more.iter().copied()).collect()
}

#[test]
fn every_frame_arrives_once_in_order_or_both_ends_fail() {
    run_all(world::run, DEFAULT_TALKS, &TALKS);
}

#[test]
fn every_message_of_real_flows_arrives_once_or_both_ends_fail() {
    run_all(ranks::run, DEFAULT_FLOWS, &FLOWS);
}

#[test]
fn every_message_between_unlike_endpoints_arrives_once_or_both_ends_fail() {
    run_all(ranks::run_unlike, DEFAULT_FLOWS, &flows_and(&UNLIKE, &RARE_IN_UNLIKE));
}

#[test]
fn every_message_over_links_that_fail_in_one_direction_arrives_once_or_both_ends_fail() {
    run_all(ranks::run_partial, DEFAULT_FLOWS, &flows_and(&PARTIAL, &NOT_IN_PARTIAL));
}

#[test]
fn every_message_without_one_sided_writes_arrives_once_or_both_ends_fail() {
    run_all(ranks::run_by_messages, DEFAULT_MESSAGES, &MESSAGES);
}

#[test]
fn a_peer_that_is_idle_for_a_thousand_minutes_is_not_taken_for_dead() {
    for seed in 0..3 {
        let polls = world::World::idle(seed, 1000).unwrap();
        assert_eq!(polls, 1_200_000);
    }
}

/// Seeds that once broke a law, and the bug.
const MENDED: [(Schedule, u64, &str); 50] = [
    (world::run, 14_891, "a keeper polled so rarely that a silent peer hardly timed out"),
    (world::run, 130, "HELLO was not answered by a channel that had failed"),
    (ranks::run, 17, "END overtook parts that were under way"),
    (ranks::run, 112, "a failed write was not reported to the receiver"),
    (ranks::run, 143, "a connection was put on a channel that was ending"),
    (ranks::run, 168, "lines that CLOSE reported as complete were ignored"),
    (ranks::run, 263, "END was not answered"),
    (ranks::run, 1_356, "a refused isend waited for an advert from a silent peer"),
    (ranks::run, 17_293, "a rail was opened again before each channel had seen that it was closed"),
    (ranks::run, 45_891, "a part that was to be posted again kept its message waiting past END"),
    (ranks::run, 128_536, "a write failed while its sender closed"),
    (ranks::run, 7_005_719, "END waited for what a receiver lacks that had closed"),
    (
        ranks::run,
        70_016_393,
        "a rail whose write had just failed passed for better than a hanging one",
    ),
    (ranks::run, 80_148_542, "one of several answers after a gap took parts for lost"),
    (ranks::run, 80_015_301, "a packet hung as long as an acknowledged one before it"),
    (ranks::run, 80_147_178, "a packet hung as long on its second control rail as on the first"),
    (ranks::run, 80_060_327, "receives waited for entries that a closed sender's receives held"),
    (ranks::run, 80_265_617, "each end found another control rail hanging"),
    (ranks::run, 80_642_640, "a part was posted again behind END"),
    (ranks::run, 80_483_348, "each new endpoint of a rail was closed before its trial"),
    (ranks::run, 80_593_525, "the silence of a peer that was stopped counted against its parts"),
    (ranks::run, 80_593_341, "END left between a failed write and the failure of its channel"),
    (ranks::run, 81_078_171, "a new channel used a rail that was drained, and then closed"),
    (ranks::run, 90_049_241, "a HELLO named listeners that its peer had forgotten"),
    (
        ranks::run,
        90_063_405,
        "CLOSE freed memory that a failed write without an immediate could still reach",
    ),
    (ranks::run, 90_067_144, "a write hung for ever while only its keeper polled the peer"),
    (
        world::run,
        130_034_991,
        "a HELLO acknowledged the peer's END, which its sender did not count",
    ),
    (ranks::run, 130_010_708, "a part that was refused and given up lost its rail later"),
    (
        ranks::run,
        200_496_463,
        "receives whose adverts explain a failure did not count as exposed before these left",
    ),
    (ranks::run, 100_271_831, "an end waited for the END of one that had lost all control rails"),
    (ranks::run, 100_051_629, "an end that was closing did not return a rail, and lost it again"),
    (
        ranks::run,
        600_103_843,
        "letters under way for the peer timeout did not explain a silent peer",
    ),
    (
        ranks::run_by_messages,
        299,
        "receives whose adverts explain a failure, to be posted at the provider, did not count as exposed",
    ),
    (ranks::run_unlike, 1_132, "memory of a message that had landed passed for unused"),
    (ranks::run_unlike, 800_005_707, "so did that of one whose write had failed unnoticed"),
    (
        ranks::run_unlike,
        800_000_004,
        "parts that a lost rail owed kept memory that was given up in use",
    ),
    (ranks::run_unlike, 811_304_777, "a new channel used its only rail, which was closed"),
    (
        ranks::run_partial,
        1_225,
        "HELLO reached its peer, whose echoes went by a rail that was mute",
    ),
    (ranks::run_partial, 1_078, "a keeper repeated a HELLO for ever for the same reason"),
    (
        ranks::run_unlike,
        900_023_652,
        "a channel failed before it had an inbox, and never reported that to its peer, which waited to connect",
    ),
    (
        ranks::run_by_messages,
        900_039_319,
        "receives of a connection that had closed were not tested behind the end of its channel",
    ),
    (
        ranks::run_by_messages,
        950_010_586,
        "a STATUS later than the peer timeout was no reason to take parts for lost",
    ),
    (
        ranks::run_by_messages,
        950_118_285,
        "a receive was posted at the provider when its advert left after the sender's CLOSE",
    ),
    (ranks::run_partial, 980_010_180, "a round began with an endpoint that was closed"),
    (ranks::run_partial, 981_023_472, "a trial was posted on a rail that was closed"),
    (
        ranks::run_unlike,
        970_139_005,
        "an end that was over did not report the control rail that its last packet had stood on",
    ),
    (
        ranks::run_partial,
        982_014_407,
        "an end lost its last data rail after its END, and its peer ended well",
    ),
    (
        ranks::run_partial,
        5_028_435,
        "each poll of an idle peer found as many QUERYs by each rail, and it answered by the one that was mute",
    ),
    (
        ranks::run_unlike,
        11_000_177,
        "rails that were lost without a fault, and not yet back, did not explain that a channel failed with its last one",
    ),
    (
        ranks::run_partial,
        11_028_850,
        "a write on the last rail failed its connection though the peer had left the rail, and the channel went on",
    ),
];

#[test]
fn no_seed_that_once_broke_a_law_breaks_one_now() {
    for (schedule, seed, what) in MENDED {
        assert_eq!(run(schedule, seed).err(), None, "{seed}: {what}");
    }
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for schedule in
        [world::run, ranks::run, ranks::run_unlike, ranks::run_partial, ranks::run_by_messages]
    {
        for seed in 0..20 {
            let [one, other] = [(); 2].map(|()| run(schedule, seed).unwrap().0);
            assert_eq!(one, other);
        }
    }
}
