//! Looks for bytes from a peer that do harm, guided by the code that they reach.
//!
//!     fuzz TARGET SECONDS [SEED]     from fuzz/seeds/TARGET.pack, which inputs that reach new code are added to
//!     fuzz TARGET tidy               removes seeds whose edges shorter seeds reach, too
//!     fuzz TARGET add FILE…          adds these inputs to the seeds
//!     fuzz TARGET FILE…              those inputs, once each
//!
//! An input that panics is written to fuzz/found/, and the program ends with its message. scripts/fuzz builds it with the
//! compiler's edge counters; without those it knows of no new code, and its inputs are random.

mod coverage;
mod mutate;
mod pack;
mod targets;

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coverage::Seen;
use mutate::{Random, mutate};
use targets::{TARGETS, Target};

/// Inputs between two looks at the clock.
const BATCH: usize = 256;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    let known = words.first().and_then(|word| TARGETS.iter().find(|(name, _)| name == word));
    let (Some((name, target)), [_, what, rest @ ..]) = (known, words.as_slice()) else {
        eprintln!("fuzz TARGET SECONDS [SEED], fuzz TARGET FILE…; targets: {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    let well = match what.parse() {
        Ok(seconds) => {
            let seed = rest.first().and_then(|word| word.parse().ok()).unwrap_or(1);
            search(name, *target, Duration::from_secs(seconds), seed)
        }
        Err(_) if what == "tidy" => tidy(name, *target),
        Err(_) if what == "add" => {
            let seeds = [seeds(name), rest.iter().map(read).collect()].concat();
            keep(name, &seeds);
            true
        }
        Err(_) => words[1..].iter().all(|file| survives(name, *target, &read(file))),
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(file: impl AsRef<Path>) -> Vec<u8> {
    fs::read(file.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", file.as_ref().display()))
}

fn seeds_file(name: &str) -> PathBuf {
    folder("seeds").join(format!("{name}.pack"))
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let file = seeds_file(name);
    pack::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn keep(name: &str, seeds: &[Vec<u8>]) {
    let file = seeds_file(name);
    fs::write(&file, pack::pack(seeds)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kind)
}

/// True if nothing was found.
fn search(name: &str, target: Target, bound: Duration, seed: u64) -> bool {
    let mut seeds = seeds(name);
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    let mut seen = Seen::default();
    for input in seeds.clone() {
        if !survives(name, target, &input) {
            return false;
        }
        if seen.add() {
            corpus.push(input);
        }
    }
    if corpus.is_empty() {
        corpus.push(vec![1; 64]);
    }
    let (mut random, mut runs) = (Random(seed), 0_u64);
    let start = Instant::now();
    while start.elapsed() < bound {
        for _ in 0..BATCH {
            let mut input = corpus[random.below(corpus.len())].clone();
            let other = random.below(corpus.len());
            mutate(&mut random, &mut input, &corpus[other]);
            if !survives(name, target, &input) {
                return false;
            }
            runs += 1;
            if seen.add() {
                seeds.push(input.clone());
                keep(name, &seeds);
                corpus.push(input);
            }
        }
    }
    let (reached, all) = seen.edges();
    println!("{name}: {runs} inputs, {} that differ, {reached} of {all} edges", corpus.len());
    true
}

/// True if no seed does harm.
fn tidy(name: &str, target: Target) -> bool {
    let (mut seen, mut kept) = (Seen::default(), Vec::new());
    // Shortest first, as they lie in the file.
    for input in seeds(name) {
        let reached = seen.edges().0;
        if !survives(name, target, &input) {
            return false;
        }
        seen.add();
        if seen.edges().0 > reached {
            kept.push(input);
        }
    }
    keep(name, &kept);
    println!("{name}: {} seeds reach {} edges", kept.len(), seen.edges().0);
    true
}

fn survives(name: &str, target: Target, input: &[u8]) -> bool {
    let ended = panic::catch_unwind(|| target(input));
    if ended.is_err() {
        let found = folder("found");
        fs::create_dir_all(&found).expect("the folder can be made");
        let file = found.join(format!("{name}-{:016x}", hash(input)));
        fs::write(&file, input).expect("the folder can be written to");
        eprintln!("{name}: the input is in {}", file.display());
    }
    ended.is_ok()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
