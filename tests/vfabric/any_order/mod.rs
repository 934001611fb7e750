//! NCCL's calls in any order, right ones and wrong ones, from a seed, with and without faults of the fabric.
//!
//! Three communicators of one process have connections with single and grouped messages, of which some receives are optional. Their
//! memory is registered several times and deregistered while it is used; comms, listeners and contexts close at any time; and what is closed
//! is used again. In every run
//!
//! - nothing panics, no rule of the fabric is broken, and no call hangs;
//! - a message that is reported is right, and nothing is written outside of receives, or to memory that was given back;
//! - what is closed is refused.
//!
//! Without faults all messages of connections that were used rightly arrive, and nothing is left open.
//!
//! `ANY_ORDER_SEED=n` repeats one seed, `ANY_ORDER_SEEDS=n` sets how many run, and `ANY_ORDER_FIRST=n` from which one on. A seed gives the same calls
//! again, as far as they do not depend on time.

mod connection;
mod driver;
mod ends;
mod memory;
mod messages;
mod side;

use std::time::Duration;

use driver::{Driver, FAULTS};

use crate::support::random::Random;
use crate::support::say;
use crate::support::stage::{Part, play_each};
use crate::support::virtual_fabric::set;
use crate::world::{World, provider};

#[test]
fn calls_in_any_order_harm_no_connection_that_is_used_rightly() {
    play_each(&seeds(), &[provider()], BOUND, |part, seed| run(part, seed, &[]));
}

#[test]
fn calls_in_any_order_on_rails_with_faults_break_no_rule() {
    let said = play_each(&seeds(), &[provider()], BOUND, |part, seed| run(part, seed, &FAULTS));
    let lines = said.iter().flat_map(|said| said.lines());
    let fired: Vec<_> = lines.filter_map(|line| line.strip_prefix(FIRED)).collect();
    let missing: Vec<_> = FAULTS.iter().filter(|fault| !fired.contains(fault)).collect();
    assert!(missing.is_empty() || said.len() < SEEDS, "never fired: {missing:?}");
}

fn run(part: &Part, seed: &str, faults: &[&'static str]) {
    say(&format!("ANY_ORDER_SEED={seed}"));
    let seed: usize = seed.parse().expect("a number");
    let profile = PROFILES[seed % PROFILES.len()];
    let eagain = EAGAIN[seed % EAGAIN.len()];
    // Without faults no peer lets another one wait, unless the machine is busy.
    set("IRONRAIL_CLOSE_TIMEOUT_MS", if faults.is_empty() { "5000" } else { "50" });
    set("IRONRAIL_STRIPE_MIN", "16K");
    let World { nets, fabric } = World::open(part, profile, [2, 2]);
    // With faults a close may give up at its bound, and a peer that has not heard of it write to a region that is closed.
    let tolerate = if faults.is_empty() { "" } else { " tolerate=closed" };
    fabric.configure(&format!("profile={profile} nics=16 seed={seed} eagain={eagain}{tolerate}"));
    // On cxi, which refuses immediates, only a write's completion shows that it has landed, and a write that vanishes breaks that promise.
    let can_happen = |fault: &&&str| !(profile == "cxi" && **fault == "vanish");
    let faults: Vec<_> = faults.iter().filter(can_happen).copied().collect();
    Driver::new(nets[0], fabric, faults, Random::new(seed as u64)).run();
    for fault in FAULTS {
        if fabric.number(&format!("counter.faults.{fault}")) > 0 {
            say(&format!("{FIRED}{fault}"));
        }
    }
}

fn seeds() -> Vec<String> {
    let number = |name: &str| -> Option<usize> {
        std::env::var(name).ok().map(|text| text.parse().expect("a number"))
    };
    let one = number("ANY_ORDER_SEED");
    let first = one.or_else(|| number("ANY_ORDER_FIRST")).unwrap_or(0);
    let count = one.map_or_else(|| number("ANY_ORDER_SEEDS").unwrap_or(SEEDS), |_| 1);
    (first..first + count).map(|seed| seed.to_string()).collect()
}

const PROFILES: [&str; 5] = ["cxi", "efa", "tcp", "adversary", "messages"];
/// Refused posts per thousand.
const EAGAIN: [u32; 4] = [0, 0, 100, 400];
/// Of each test, unless the environment says otherwise.
const SEEDS: usize = 10;
const BOUND: Duration = Duration::from_secs(120);
/// Before a fault that fired.
const FIRED: &str = "fired: ";
