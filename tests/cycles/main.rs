//! Connections that are opened, brought into a random state, and aborted as NCCL does, repeatedly: no cycle takes long, and nothing of any
//! cycle is left.
//!
//! The state comes from a seed, which each cycle prints with what it did: listeners without a peer, connections partly made, complete, or
//! busy with messages, groups and flushes, several at once. Then both ends abort at once, each in its own thread, or one does while its
//! peer is idle. CYCLES_COUNT and CYCLES_FIRST set the number of cycles and the first seed.

#[path = "../support/mod.rs"]
mod support;
#[path = "../../crates/vfabric/tests/support/provider.rs"]
mod vfabric;
#[path = "../vfabric/world.rs"]
mod world;

mod crossing;
mod cycle;
mod deaths;

use std::path::Path;
use std::time::Duration;

use cycle::Ends;
use proc_status::Status;
use support::calls::Net;
use support::gpu::{Gpus, driver};
use support::link::descriptors;
use support::say;
use support::stage::{Part, play};
use support::virtual_fabric::set;
use world::{World, provider};

/// The time limit of a play, with as many cycles as a script may request.
const BOUND: Duration = Duration::from_secs(3600);
/// The bound of a cycle.
const LONGEST: Duration = Duration::from_secs(2);
/// How often a cycle that took longer is repeated.
const AGAIN: u32 = 4;
/// Rounds in which two ends connect to each other.
const CROSSINGS: usize = 100;
/// The cycles of each kind in `scripts/test`.
const COUNT: u64 = 30;
/// The same where the growth of memory is measured, over the profile whose cycles are the shortest: enough for a leak of 8 KiB in each.
const MEASURED: u64 = 300;
/// The same where each cycle starts a process.
const DEATHS: u64 = 10;
/// Cycles after which every cache has its final size.
const WARM: u64 = 100;
/// Pages by which a process may grow after that, whatever the number of cycles: less than a leak of 4 KiB in ten cycles.
const GROWTH: u64 = 400;
/// net of 1.17 leaks copies of `fi_info` and addresses with each endpoint, 4 KiB in four cycles according to LeakSanitizer.
const NET_LEAKS_EVERY: u64 = 2;

#[test]
fn aborted_connections_leave_nothing_over_cxi() {
    let said = play(&[provider()], BOUND, |part| virtually(part, "cxi", COUNT));
    report(&said);
}

#[test]
fn aborted_connections_leave_nothing_over_efa() {
    let said = play(&[provider()], BOUND, |part| virtually(part, "efa", MEASURED));
    report(&said);
}

#[test]
fn aborted_connections_leave_nothing_over_tcp() {
    let said = play(&[provider()], BOUND, |part| virtually(part, "tcp", COUNT));
    report(&said);
}

#[test]
fn aborted_connections_leave_nothing_over_the_adversary() {
    let said = play(&[provider()], BOUND, |part| virtually(part, "adversary", COUNT));
    report(&said);
}

/// Over the virtual fabric, with a stand-in for CUDA's driver: a flush reads memory that is deregistered, and the CPU must not.
#[test]
fn aborted_connections_leave_nothing_over_gpus() {
    let said = play(&[provider(), driver()], BOUND, |part| {
        set("VFABRIC_HMEM", "1");
        let gpus = Gpus::load(Path::new(driver().1), "");
        let memory = [0, 1].map(|device| gpus.allocate(device, cycle::BUFFER));
        let addresses = memory.each_ref().map(|memory| memory.address());
        aborted(part, "cxi", ("cxi with GPUs", COUNT), |nets| Ends::of_gpus(nets, addresses));
    });
    report(&said);
}

#[test]
fn aborted_connections_leave_nothing_over_net() {
    let settings = [("PROVIDER", "net"), ("RAILS", "127.0.0.1,127.0.0.2")];
    let said = play(&settings, BOUND, |part| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", PATIENCE);
        let net = Net::open(&part.plugin());
        net.finalize(net.init().expect("init")).expect("finalize");
        let before = descriptors();
        run(
            Ends::that_meet([net, net]),
            "net",
            COUNT,
            |_| Vec::new(),
            |_| {
                assert!(descriptors() <= before, "descriptors are left open");
            },
        );
    });
    report(&said);
}

#[test]
fn processes_that_die_leave_nothing_over_net() {
    let patience = std::env::var("CYCLES_PATIENCE_MS").unwrap_or_else(|_| PATIENCE.to_owned());
    let settings = [
        ("PROVIDER", "net"),
        ("RAILS", "127.0.0.1,127.0.0.2"),
        ("CLOSE_TIMEOUT_MS", patience.as_str()),
    ];
    let said = play(&settings, BOUND, |part| {
        let net = Net::open(&part.plugin());
        if part.name == "mortal" {
            return deaths::mortal(part, net);
        }
        run(
            deaths::Survivor::new(part, net),
            "net with deaths",
            DEATHS,
            |_| Vec::new(),
            deaths::Survivor::is_clean,
        );
    });
    report(&said);
}

/// net of libfabric 1.17 loses some messages there: requests are sent again.
#[test]
fn ends_that_ask_each_other_are_connected_over_net() {
    let settings = [("PROVIDER", "net"), ("RAILS", "127.0.0.1,127.0.0.2")];
    play(&settings, BOUND, |part| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", PATIENCE);
        crossing::cross(Net::open(&part.plugin()), CROSSINGS);
    });
}

/// Prints the result of a play, apart from its log.
fn report(said: &str) {
    said.lines().filter(|line| line.starts_with(REPORT)).for_each(say);
}

/// The start of that line.
const REPORT: &str = "cycles: ";
/// The plugin's timeout for idle peers: one end after the other may use it in one cycle.
const PATIENCE: &str = "700";

fn virtually(part: &Part, profile: &str, count: u64) {
    aborted(part, profile, (profile, count), Ends::new);
}

fn aborted(
    part: &Part,
    profile: &str,
    (name, count): (&str, u64),
    make: impl Fn([Net; 2]) -> Ends,
) {
    set("IRONRAIL_CLOSE_TIMEOUT_MS", PATIENCE);
    let World { nets, fabric } = World::open(part, profile, [2, 2]);
    let broken = |ends: &Ends| {
        // One for each rail.
        let (domains, most) = (fabric.number("open.domains"), 2 * ends.open());
        let left = (domains > most).then(|| {
            format!(
                "{domains} domains are open, not {most} (unless its line tells of a long pause)"
            )
        });
        fabric.violations().into_iter().chain(left).collect()
    };
    run(make(nets), name, count, broken, |_| fabric.is_clean());
}

/// Cycles that are repeated.
trait Cycles {
    /// Runs one cycle; returns what it did, and how long it took.
    fn cycle(&mut self, seed: u64) -> (String, Duration);

    /// Whether no context is open.
    fn are_closed(&self) -> bool;

    /// Closes the contexts that are open.
    fn finalize(&mut self);
}

/// `usual`: the number of cycles by default. `broken` returns what is wrong after each; `closed` checks what is open after everything was
/// finalized.
fn run<C: Cycles>(
    mut cycles: C,
    name: &str,
    usual: u64,
    broken: impl Fn(&C) -> Vec<String>,
    closed: impl Fn(&C),
) {
    let (first, count) =
        (number("CYCLES_FIRST").unwrap_or(1), number("CYCLES_COUNT").unwrap_or(usual));
    let (mut longest, mut warm, mut twice) = ((Duration::ZERO, first), None, 0);
    for seed in first..first + count {
        let mut took = timed(&mut cycles, seed);
        for _ in 0..AGAIN {
            if took <= LONGEST {
                break;
            }
            // Other processes may have used the CPU: what is slow by itself is slow again.
            took = timed(&mut cycles, seed);
            twice += 1;
        }
        assert!(took <= LONGEST, "seed {seed} of {name} took {took:?}");
        longest = longest.max((took, seed));
        assert_eq!(broken(&cycles), Vec::<String>::new(), "after seed {seed} of {name}");
        if cycles.are_closed() {
            closed(&cycles);
        }
        if seed - first == WARM {
            warm = Some(pages());
        }
    }
    cycles.finalize();
    closed(&cycles);
    let grown = warm.map(|warm| pages().saturating_sub(warm));
    let memory = grown
        .map_or_else(|| "memory not measured".to_owned(), |grown| format!("{grown} pages more"));
    let most = GROWTH + if name.starts_with("net") { count / NET_LEAKS_EVERY } else { 0 };
    let (took, seed) = longest;
    say(&format!(
        "{REPORT}{count} of {name}, {twice} again, the longest {} ms (seed {seed}), {memory}, nothing open",
        took.as_millis()
    ));
    assert!(grown.is_none_or(|grown| grown <= most), "{memory} after {count} cycles of {name}");
}

fn timed(cycles: &mut impl Cycles, seed: u64) -> Duration {
    let (state, took) = cycles.cycle(seed);
    say(&format!("seed {seed}: {state}: {took:?}"));
    took
}

/// Resident pages of this process that no file backs: the kernel takes pages of programs and libraries away, and brings them back.
fn pages() -> u64 {
    let status = Status::of_this_process().expect("proc is mounted");
    status.kib("RssAnon").expect("status has a number") / 4
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}
