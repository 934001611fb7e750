//! Inputs that the fuzzer found to reach new code (scripts/fuzz), and short random mutations of them: none may panic or
//! break a bound.

#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/src/pack.rs"]
mod pack;
#[path = "../../../fuzz/src/targets.rs"]
#[expect(clippy::cast_possible_truncation, reason = "limits are small numbers")]
mod targets;

use std::path::Path;

use mutate::{LONGEST, Random, mutate};
use targets::TARGETS;

/// Inputs made from each seed.
const WALKS: usize = 40;

#[test]
fn no_bytes_from_a_peer_do_harm() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (name, target) in TARGETS {
        let mut random = Random(1);
        let found = pack::read(&seeds.join(format!("{name}.pack"))).expect("the file is whole");
        assert!(!found.is_empty(), "{name} has no seeds");
        let mut last = Vec::new();
        for seed in found {
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

#[test]
fn inputs_are_read_as_they_were_packed() {
    let inputs = [vec![7; 300], Vec::new(), vec![1, 2], vec![1, 2]];
    let packed = pack::pack(&inputs);
    assert_eq!(pack::unpack(&packed), Some(vec![Vec::new(), vec![1, 2], vec![7; 300]]));
    let cuts = (1..packed.len()).filter(|cut| pack::unpack(&packed[..*cut]).is_some());
    // A file may end after the first, and after the second.
    assert_eq!(cuts.collect::<Vec<_>>(), [4, 10]);
}
