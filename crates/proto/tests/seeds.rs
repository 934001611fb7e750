//! What the fuzzer has found that reaches new code (scripts/fuzz), and short walks from there: none of it does harm.

#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/src/targets.rs"]
#[expect(clippy::cast_possible_truncation, reason = "limits are small numbers")]
mod targets;

use std::fs;
use std::path::Path;

use mutate::{LONGEST, Random, mutate};
use targets::TARGETS;

/// Inputs made from each seed.
const WALKS: usize = 40;

#[test]
fn no_bytes_of_a_peer_do_harm() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (name, target) in TARGETS {
        let mut random = Random(1);
        let entries = fs::read_dir(seeds.join(name)).expect("every target has seeds");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("it is listed").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has no seeds");
        let mut last = Vec::new();
        for file in files {
            let seed = fs::read(&file).expect("a seed is a file");
            assert!(seed.len() <= LONGEST);
            target(&seed);
            for _ in 0..WALKS {
                let mut input = seed.clone();
                mutate(&mut random, &mut input, &last);
                target(&input);
            }
            last = seed;
        }
    }
}
