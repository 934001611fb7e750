//! Measures what it costs to register 64 MiB: the first time, and again while the registration is held, which is what NCCL
//! does once per connection; and to deregister a buffer on an endpoint with many connections.
//!
//! `cargo bench --bench registration [-- WORDS]`: `--check` fails above the bound; a path names another plugin to measure.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use support::net::{self, Comm, Memory, Net};
use support::traffic;

const BYTES: usize = 64 << 20;
/// Buffers that are held at the same time, and how long each is.
const OTHERS: [usize; 3] = [0, 100, 10_000];
const OTHER_BYTES: usize = 4096;
const RUNS: usize = 101;
/// Registrations of the held buffer that are timed as one.
const BATCH: usize = 1000;
/// Connections of the endpoint to itself while a buffer is deregistered: each has both of its ends there.
const CONNECTIONS: [usize; 2] = [1, 1000];
/// Again, while it is held.
const BOUND: Duration = Duration::from_micros(1);
const SECONDS_MOST: u32 = 120;

/// Says that the settings are in the environment.
const INSIDE: &str = "--inside";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.iter().any(|word| word == INSIDE) {
        net::give_up_after(SECONDS_MOST);
        let other = words.iter().find(|word| !word.starts_with("--")).map(PathBuf::from);
        return measure(words.iter().any(|word| word == "--check"), other);
    }
    // A process of its own has the settings from its start.
    let mut inside = Command::new(std::env::current_exe().expect("this bench has a name"));
    inside.arg(INSIDE).args(&words);
    for (name, value) in [("IRONRAIL_PROVIDER", "net"), ("IRONRAIL_RAILS", "127.0.0.1")] {
        if std::env::var_os(name).is_none() {
            inside.env(name, value);
        }
    }
    let status = inside.status().expect("this bench starts again");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(check: bool, other: Option<PathBuf>) -> ExitCode {
    let plugin = other.unwrap_or_else(support::optimised_plugin);
    let net = Net::open(&plugin);
    let memory = Memory::new(BYTES + OTHER_BYTES * 2 * OTHERS[OTHERS.len() - 1]);
    let [send, receive] = traffic::to_itself(&net, &memory.part(0, 64), &memory.part(64, 64));
    println!("64 MiB, median of {RUNS}; again: while it is held");
    println!(
        "{:>12} | {:>10} | {:>10} {:>10} | {:>8}",
        "other buffers", "first (us)", "again (us)", "bound", "ratio"
    );
    let mut kept = true;
    for others in OTHERS {
        // With gaps between, so that none covers another.
        let other = |index: usize| memory.part(BYTES + 2 * index * OTHER_BYTES, OTHER_BYTES);
        let held: Vec<_> =
            (0..others).map(|index| net.register(&send.comm, &other(index))).collect();
        let buffer = memory.part(128, BYTES - 128);
        let first = median(|| first(&net, &send.comm, &buffer));
        let again = median(|| again(&net, &send.comm, &buffer));
        held.into_iter().for_each(|region| net.deregister(&send.comm, region));
        kept &= again < BOUND;
        println!(
            "{others:>13} | {:>10.2} | {:>10.3} {:>10.3} | {:>8.1}",
            microseconds(first),
            microseconds(again),
            microseconds(BOUND),
            first.as_secs_f64() / again.as_secs_f64()
        );
    }
    println!("deregMr of {OTHER_BYTES} bytes that nothing touches, median of {RUNS}");
    println!("{:>12} | {:>10}", "connections", "took (us)");
    let mut more = Vec::new();
    for connections in CONNECTIONS {
        while more.len() + 1 < connections {
            more.push(traffic::to_itself(&net, &memory.part(0, 64), &memory.part(64, 64)));
        }
        let took = median(|| deregister(&net, &send.comm, &memory.part(BYTES, OTHER_BYTES)));
        println!("{connections:>13} | {:>10.2}", microseconds(took));
    }
    for [send, receive] in more {
        net.close_send(send.comm);
        net.close_receive(receive.comm);
    }
    net.close_send(send.comm);
    net.close_receive(receive.comm);
    net.finalize();
    if check && !kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn first(net: &Net, comm: &Comm, buffer: &Memory) -> Duration {
    let start = Instant::now();
    let region = net.register(comm, buffer);
    let took = start.elapsed();
    net.deregister(comm, region);
    took
}

fn deregister(net: &Net, comm: &Comm, buffer: &Memory) -> Duration {
    let region = net.register(comm, buffer);
    let start = Instant::now();
    net.deregister(comm, region);
    start.elapsed()
}

/// One of a batch: a clock takes too long to be read around each.
fn again(net: &Net, comm: &Comm, buffer: &Memory) -> Duration {
    let held = net.register(comm, buffer);
    let mut regions = Vec::with_capacity(BATCH);
    let start = Instant::now();
    for _ in 0..BATCH {
        regions.push(net.register(comm, buffer));
    }
    let took = start.elapsed();
    regions.into_iter().for_each(|region| net.deregister(comm, region));
    net.deregister(comm, held);
    took.div_f64(BATCH as f64)
}

fn median(mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS).map(|_| run()).collect();
    times.sort();
    times[RUNS / 2]
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
