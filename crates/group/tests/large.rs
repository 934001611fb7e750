//! Case T-I13, and C-4 for objects: more than 2 GiB in one message. Ignored where the memory for it is not free.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::process::ExitCode;

use harness::{Need, Test};
use ironrail_group::objects::Leaf;
use support::{library, pattern, ranks};

const LEN: usize = (2 << 30) + 3;
const BLOCK: usize = 1 << 16;
/// Two ranks of [`LEN`] bytes each, and as much again for the rest of the machine.
const FREE_GIB: usize = 6;

fn main() -> ExitCode {
    harness::run([
        Test::new(t_i13_messages_and_broadcasts_of_more_than_2_gib_keep_every_byte).needs(memory()),
        Test::new(c4_an_object_with_an_array_of_more_than_2_gib_keeps_every_byte).needs(memory()),
    ])
}

fn memory() -> Need {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    if kib.is_some_and(|kib| kib >= FREE_GIB << 20) {
        return Ok(());
    }
    Err(format!("{FREE_GIB} GiB of free memory"))
}

fn t_i13_messages_and_broadcasts_of_more_than_2_gib_keep_every_byte() {
    ranks(&library(), 2, |group| {
        let pattern = Pattern::new();
        let mut data = group.buffer::<u8>(LEN).unwrap();
        if group.rank() == 0 {
            pattern.fill(&mut data, 3);
            group.send(&data, 1, 1).unwrap();
            data.fill(0);
            group.broadcast(&mut data, 1).unwrap();
            assert!(pattern.is_in(&data, 9));
        } else {
            assert_eq!(group.recv(&mut data, 0, 1).unwrap().count, LEN);
            assert!(pattern.is_in(&data, 3));
            pattern.fill(&mut data, 9);
            group.broadcast(&mut data, 1).unwrap();
        }
    });
}

fn c4_an_object_with_an_array_of_more_than_2_gib_keeps_every_byte() {
    ranks(&library(), 2, |group| {
        let pattern = Pattern::new();
        if group.rank() == 0 {
            let mut data = vec![0; LEN];
            pattern.fill(&mut data, 5);
            group.send_obj(&("large".to_owned(), Leaf::from(data), 7_u64), 1, 0).unwrap();
        } else {
            let (came, _) = group.recv_obj::<(String, Leaf<u8>, u64)>(0, 0).unwrap();
            assert_eq!((came.0.as_str(), came.1.len(), came.2), ("large", LEN, 7));
            assert!(pattern.is_in(&came.1, 5));
        }
        group.barrier().unwrap();
    });
}

/// Blocks of bytes that begin with their number, so that a misplaced one is detected.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        Self(pattern(5, BLOCK))
    }

    fn fill(&self, data: &mut [u8], seed: usize) {
        for (number, block) in data.chunks_mut(BLOCK).enumerate() {
            block.copy_from_slice(&self.0[..block.len()]);
            let mark = (number + seed).to_le_bytes();
            let len = block.len().min(8);
            block[..len].copy_from_slice(&mark[..len]);
        }
    }

    fn is_in(&self, data: &[u8], seed: usize) -> bool {
        data.chunks(BLOCK).enumerate().all(|(number, block)| {
            let (mark, len) = ((number + seed).to_le_bytes(), block.len().min(8));
            block[..len] == mark[..len] && block[len..] == self.0[len..block.len()]
        })
    }
}
