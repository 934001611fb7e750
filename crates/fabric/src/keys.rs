//! The keys that we request in one domain, where the provider does not choose them (no FI_MR_PROV_KEY): unique while in use.

use std::collections::VecDeque;

/// Allocates small numbers, since cxi has its fastest table for the smallest keys.
#[derive(Debug)]
pub(crate) struct Keys {
    next: u64,
    max: u64,
    freed: VecDeque<u64>,
}

impl Keys {
    /// Keys of `bytes` bytes each.
    pub(crate) fn new(bytes: usize) -> Self {
        let max = match u32::try_from(bytes * 8) {
            Ok(bits) if bits < u64::BITS => (1 << bits) - 1,
            // The largest number is FI_KEY_NOTAVAIL.
            _ => u64::MAX - 1,
        };
        Self { next: 0, max, freed: VecDeque::new() }
    }

    /// A key that no open region has; None when all are in use.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let fresh = (self.next <= self.max).then_some(self.next);
        if self.freed.len() > REUSE_DELAY || fresh.is_none() {
            return self.freed.pop_front();
        }
        self.next += 1;
        fresh
    }

    /// Frees a key, after its region has closed.
    pub(crate) fn release(&mut self, key: u64) {
        self.freed.push_back(key);
    }
}

/// A freed key is not reused until this many others were freed, so that a peer's late write with it finds no region.
const REUSE_DELAY: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_use_are_unique_and_small() {
        let mut keys = Keys::new(8);
        let mut used = Vec::new();
        for round in 0..1000 {
            let key = keys.take().unwrap();
            assert!(!used.contains(&key));
            used.push(key);
            if round % 3 != 0 {
                keys.release(used.remove(0));
            }
        }
        let most_in_use = used.len() as u64;
        assert!(used.iter().all(|key| *key <= most_in_use + REUSE_DELAY as u64 + 1));
    }

    #[test]
    fn a_freed_key_is_not_reused_at_once() {
        let mut keys = Keys::new(8);
        let key = keys.take().unwrap();
        keys.release(key);
        for _ in 0..REUSE_DELAY {
            let other = keys.take().unwrap();
            assert_ne!(other, key);
            keys.release(other);
        }
    }

    #[test]
    fn when_all_keys_are_in_use_none_is_returned_and_a_freed_one_is_reused_at_once() {
        let mut keys = Keys::new(1);
        let all: Vec<u64> = std::iter::from_fn(|| keys.take()).collect();
        assert_eq!(all.len(), 256);
        keys.release(7);
        assert_eq!(keys.take(), Some(7));
        assert_eq!(keys.take(), None);
    }
}
