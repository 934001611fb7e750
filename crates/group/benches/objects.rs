//! The cost of an object compared with the same bytes sent typed: half a round trip between two ranks of this process, both kinds
//! alternating. IRONRAIL_GROUP_TEST_NET names the plugin; otherwise it is the C plugin of the tests.
#![allow(clippy::unwrap_used, reason = "a bench may stop")]
#![allow(clippy::print_stdout, reason = "a bench prints what it measures")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ironrail_group::group::Group;
use ironrail_group::objects::{Leaf, Schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

fn main() {
    support::ranks(&support::library(), 2, |group| {
        if group.rank() == 0 {
            println!("{:>24} {:>10} {:>10} {:>6}", "median, µs", "typed", "object", "ratio");
        }
        for bytes in [
            4 << 10,
            8 << 10,
            16 << 10,
            32 << 10,
            64 << 10,
            128 << 10,
            256 << 10,
            1 << 20,
            64 << 20,
        ] {
            let leaf = Leaf::from(vec![1.0_f64; bytes / 8]);
            compare(&group, &format!("one leaf of {} KiB", bytes >> 10), &leaf, bytes / 8);
        }
        let tree: Vec<Leaf<f64>> = (0..8).map(|_| vec![1.0; 1024].into()).collect();
        compare(&group, "8 leaves of 8 KiB", &tree, 8 << 10);
        let tree: Vec<Leaf<f64>> = (0..1000).map(|_| vec![1.0].into()).collect();
        compare(&group, "1000 leaves of 8 B", &tree, 1000);
        compare(&group, "1000 encoded numbers", &vec![1.0; 1000], 1000);
        let branch = || Branch {
            first: 1.0,
            pair: (2.0, 3.0),
            twig: Twig { part: [4.0; 3], rest: [5.0; 4] },
        };
        compare(
            &group,
            "a tree of 1000 numbers",
            &Tree { branches: (0..100).map(|_| branch()).collect() },
            1000,
        );
    });
}

/// Structures within each other, of 1000 numbers.
#[derive(Serialize, Deserialize, Schema)]
struct Tree {
    branches: Vec<Branch>,
}

#[derive(Serialize, Deserialize, Schema)]
struct Branch {
    first: f64,
    pair: (f64, f64),
    twig: Twig,
}

#[derive(Serialize, Deserialize, Schema)]
struct Twig {
    part: [f64; 3],
    rest: [f64; 4],
}

fn compare<O: Serialize + DeserializeOwned + Schema>(
    group: &Group,
    name: &str,
    object: &O,
    count: usize,
) {
    // Only rows whose names contain the argument, if there is one.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let rounds = (4_000_000 / (count + 1000)).clamp(9, 1000);
    let other = 1 - group.rank();
    let data = vec![1.0_f64; count];
    // As with an object, the receiver allocates the memory.
    let typed = || group.send(&data, other, 0).unwrap();
    let receive = || drop(group.recv_vec::<f64>(other, 0).unwrap());
    let send = || group.send_obj(object, other, 0).unwrap();
    let take = || drop(group.recv_obj::<O>(other, 0).unwrap());
    let (mut typed_times, mut object_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        typed_times.push(half_a_round_trip(group, &typed, &receive));
        object_times.push(half_a_round_trip(group, &send, &take));
    }
    typed_times.sort_unstable();
    object_times.sort_unstable();
    let (typed_times, object_times) = (typed_times[rounds / 2], object_times[rounds / 2]);
    if group.rank() == 0 {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let ratio = micros(object_times) / micros(typed_times);
        println!(
            "{name:>24} {:>10.1} {:>10.1} {ratio:>6.2}",
            micros(typed_times),
            micros(object_times)
        );
    }
}

fn half_a_round_trip(group: &Group, send: &dyn Fn(), take: &dyn Fn()) -> Duration {
    let begun = Instant::now();
    if group.rank() == 0 {
        send();
        take();
    } else {
        take();
        send();
    }
    begun.elapsed() / 2
}
