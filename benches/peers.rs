//! Measures what a poll costs by the number of peers: an endpoint reads an inbox of each.
//!
//! One process. A hub accepts one connection from each of N endpoints of other communicators, so it has N channels. Three figures, in
//! processor time of the hub's calls:
//!
//! - `waiting`: one `test` of a receive whose message does not come;
//! - `each`: one message of 8 bytes on every connection, all receives posted before the first is sent; per message;
//! - `last`: the `test` that reports the last open request of all, whose message has come.
//!
//! `cargo bench --bench peers [-- NUMBERS]`: numbers of peers to try.
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use support::net::{self, Comm, Memory, Net, Request};
use support::traffic;

const BYTES: usize = 8;
/// Tests of one sample, and samples: their median counts.
const TESTS: u32 = 2_000;
const SAMPLES: usize = 21;
const ROUNDS: usize = 200;
const SECONDS_MOST: u32 = 300;

/// The first word of the process that is measured.
const DRIVE: &str = "--drive";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, file, peers] = words.as_slice()
        && word == DRIVE
    {
        net::give_up_after(SECONDS_MOST);
        drive(Path::new(file), peers.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let mut numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if numbers.is_empty() {
        numbers = vec![1, 2, 8, 32, 128];
    }
    let plugin = support::optimised_plugin();
    println!("{:>6} | {:>12} | {:>10} | {:>10}", "peers", "waiting (ns)", "each (ns)", "last (ns)");
    for number in numbers {
        let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
        command.arg(DRIVE).arg(&plugin).arg(number.to_string());
        for (name, value) in [("IRONRAIL_RAILS", "127.0.0.1"), ("IRONRAIL_PROVIDER", "net")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        print!("{}", support::output_of(&mut command));
    }
    ExitCode::SUCCESS
}

fn drive(file: &Path, peers: usize) {
    let hub = Net::open(file);
    let others: Vec<Net> = (0..peers).map(|_| Net::open(file)).collect();
    let [out, into] = [Memory::new(4096), Memory::new(4096)];
    let (sends, receives): (Vec<Comm>, Vec<Comm>) =
        others.iter().map(|other| traffic::connection(other, &hub, &out, &into)).unzip();

    let mut each = Vec::new();
    for _ in 0..ROUNDS {
        each.push(round(&hub, &others, &sends, &receives) / u32::try_from(peers).expect("few"));
    }
    let last = (0..ROUNDS).map(|_| last(&hub, &others[0], &sends[0], &receives[0])).collect();
    let first = receive(&hub, &receives[0]);
    let mut waiting = Vec::new();
    for _ in 0..SAMPLES {
        let start = net::processor_time();
        for _ in 0..TESTS {
            assert_eq!(hub.test(first), None, "nothing was sent");
        }
        waiting.push((net::processor_time() - start) / TESTS);
    }
    let [waiting, each, last] = [waiting, each, last].map(|samples| median(samples).as_nanos());
    println!("{peers:>6} | {waiting:>12} | {each:>10} | {last:>10}");
    // The receive is still open: the process ends with it.
    std::process::exit(0);
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

fn receive(hub: &Net, comm: &Comm) -> Request {
    loop {
        if let Some(request) = hub.irecv(comm, BYTES, 0) {
            return request;
        }
    }
}

fn send(from: &Net, comm: &Comm) -> Request {
    loop {
        if let Some(request) = from.isend(comm, BYTES, 0) {
            return request;
        }
    }
}

/// Two messages on one connection. Returns what the report of the first took after that of the second, which came with it or later.
fn last(hub: &Net, other: &Net, out: &Comm, into: &Comm) -> Duration {
    let [first, second] = [receive(hub, into), receive(hub, into)];
    let mut sent = vec![send(other, out), send(other, out)];
    while !sent.is_empty() {
        sent.retain(|request| other.test(*request).is_none());
    }
    while hub.test(second).is_none() {}
    let start = net::processor_time();
    assert!(hub.test(first).is_some(), "messages of a connection come in order");
    net::processor_time() - start
}

/// A message on each connection. Returns what the hub's calls took from the last send on.
fn round(hub: &Net, others: &[Net], sends: &[Comm], receives: &[Comm]) -> Duration {
    let mut open: Vec<Request> = receives.iter().map(|comm| receive(hub, comm)).collect();
    let mut sent: Vec<(&Net, Request)> =
        others.iter().zip(sends).map(|(other, comm)| (other, send(other, comm))).collect();
    let start = net::processor_time();
    while !open.is_empty() {
        open.retain(|request| hub.test(*request).is_none());
    }
    let took = net::processor_time() - start;
    while !sent.is_empty() {
        sent.retain(|(other, request)| other.test(*request).is_none());
    }
    took
}
