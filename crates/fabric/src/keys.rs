//! The keys that we ask for in one domain, where the provider does not choose: unique while in use.

use std::collections::VecDeque;

/// Gives out small numbers, since cxi serves the smallest keys from its fastest table.
#[derive(Debug)]
pub(crate) struct Keys {
    next: u64,
    max: u64,
    resting: VecDeque<u64>,
}

impl Keys {
    /// Keys of `bytes` bytes each.
    pub(crate) fn new(bytes: usize) -> Self {
        let max = match u32::try_from(bytes * 8) {
            Ok(bits) if bits < u64::BITS => (1 << bits) - 1,
            // The largest of all stands for "no key" (FI_KEY_NOTAVAIL).
            _ => u64::MAX - 1,
        };
        Self { next: 0, max, resting: VecDeque::new() }
    }

    /// A key that no open region has; none when all are taken.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let fresh = (self.next <= self.max).then_some(self.next);
        if self.resting.len() > REST || fresh.is_none() {
            return self.resting.pop_front();
        }
        self.next += 1;
        fresh
    }

    /// Gives a key back, after its region has closed.
    pub(crate) fn give_back(&mut self, key: u64) {
        self.resting.push_back(key);
    }
}

/// A key rests until this many others have been given back, so that a peer's late write with it meets no region.
const REST: usize = 16;

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
                keys.give_back(used.remove(0));
            }
        }
        let most_in_use = used.len() as u64;
        assert!(used.iter().all(|key| *key <= most_in_use + REST as u64 + 1));
    }

    #[test]
    fn a_key_given_back_rests_before_it_is_used_again() {
        let mut keys = Keys::new(8);
        let key = keys.take().unwrap();
        keys.give_back(key);
        for _ in 0..REST {
            let other = keys.take().unwrap();
            assert_ne!(other, key);
            keys.give_back(other);
        }
    }

    #[test]
    fn when_all_keys_are_taken_there_is_none_and_one_given_back_does_not_rest() {
        let mut keys = Keys::new(1);
        let all: Vec<u64> = std::iter::from_fn(|| keys.take()).collect();
        assert_eq!(all.len(), 256);
        keys.give_back(7);
        assert_eq!(keys.take(), Some(7));
        assert_eq!(keys.take(), None);
    }
}
