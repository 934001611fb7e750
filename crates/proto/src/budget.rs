//! Completion queue credit: the most arrivals that the receives of one endpoint may cause.
//!
//! A part that arrives takes an entry of its rail's queue, and a queue that overruns loses completions for good. So
//! each receive is charged with the most entries of one queue that it can take, and beyond the budget `irecv` answers
//! "not yet". Connections that were refused are served round robin, in the order of their slots. Entries that are
//! returned are kept for the next connection in that order until it gets as many as it requested.

use super::ids::Slot;
use super::split::Cutting;
use crate::bits::{count32, low16};
use crate::limits::{MAX_GROUP, MAX_PARTS};

/// A waiting connection that has not retried during this many refusals of others loses its place. An endpoint has at most
/// 16,384 connections, so a connection that is still called has retried by then.
const PATIENCE: u32 = 4 * count32(Slot::COUNT);
const WORDS: usize = Slot::COUNT / 64;

/// The completion queue entries of one endpoint.
#[derive(Debug)]
pub struct Budget {
    capacity: u32,
    used: u32,
    /// A bit per connection that was refused and has not been served since.
    waiting: Box<[u64; WORDS]>,
    waiters: u32,
    /// The slot where the search for the next waiting connection begins.
    next: u16,
    refusals: u32,
}

/// More entries were returned than were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverTaken;

/// The most entries of one queue that a receive of `len` bytes can take: all parts that one rail may carry.
#[inline]
pub fn entries(cutting: &Cutting, len: u64) -> u32 {
    let longest = len.min(cutting.immediates_end());
    if longest <= cutting.longest && (cutting.rails == 1 || longest < cutting.shared_from) {
        return 1;
    }
    // A shorter message may have more parts, one per rail, since the length of a part is rounded up.
    let shares = if longest < cutting.shared_from { 1 } else { u64::from(cutting.rails) };
    let parts = cutting.split(longest).parts.max(shares);
    u32::try_from(parts).unwrap_or(u32::MAX).min(MAX_PARTS)
}

/// The smallest budget: one group of the longest receives.
pub const CAPACITY_MIN: u32 = count32(MAX_GROUP) * MAX_PARTS;

impl Budget {
    /// A budget of `capacity` entries, or of [`CAPACITY_MIN`] if that is more, so that one group of a connection always
    /// fits.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity.max(CAPACITY_MIN),
            used: 0,
            waiting: Box::new([0; WORDS]),
            waiters: 0,
            next: 0,
            refusals: 0,
        }
    }

    pub const fn used(&self) -> u32 {
        self.used
    }

    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Takes `cost` entries if a connection may post the receives that need them. False: the caller tries again later.
    #[inline]
    pub fn take(&mut self, slot: Slot, cost: u32) -> bool {
        if self.waiters == 0 && self.has(cost) {
            self.used += cost;
            return true;
        }
        self.take_in_order(slot, cost)
    }

    #[inline]
    const fn has(&self, cost: u32) -> bool {
        cost <= self.capacity - self.used
    }

    #[cold]
    fn take_in_order(&mut self, slot: Slot, cost: u32) -> bool {
        let first = self.first_waiter().unwrap_or(slot);
        if first == slot {
            self.refusals = 0;
            if self.has(cost) {
                self.serve(slot);
                self.used += cost;
                return true;
            }
        } else {
            self.refusals += 1;
            if self.refusals > PATIENCE {
                self.refusals = 0;
                self.serve(first);
            }
        }
        let (word, bit) = bit_of(slot);
        if self.waiting[word] & bit == 0 {
            self.waiting[word] |= bit;
            self.waiters += 1;
        }
        false
    }

    /// The waiting connection that is next in the cycle of slots.
    fn first_waiter(&self) -> Option<Slot> {
        if self.waiters == 0 {
            return None;
        }
        let start = usize::from(self.next);
        let above = self.waiting[start / 64] & (u64::MAX << (start % 64));
        if above != 0 {
            return Slot::new(start / 64 * 64 + above.trailing_zeros() as usize);
        }
        let words = (1..=WORDS).map(|ahead| (start / 64 + ahead) % WORDS);
        let word = words.into_iter().find(|word| self.waiting[*word] != 0)?;
        Slot::new(word * 64 + self.waiting[word].trailing_zeros() as usize)
    }

    /// The connection waits no longer. The next search begins at the slot behind it.
    fn serve(&mut self, slot: Slot) {
        self.leave(slot);
        self.next = low16((slot.index() as u64 + 1) % Slot::COUNT as u64);
    }

    fn leave(&mut self, slot: Slot) {
        let (word, bit) = bit_of(slot);
        if self.waiting[word] & bit != 0 {
            self.waiting[word] &= !bit;
            self.waiters -= 1;
        }
    }

    /// Returns the entries of receives that are complete, or that no part can reach any more. An error is a bug: the
    /// budget no longer protects the queues.
    #[inline]
    pub fn release(&mut self, cost: u32) -> Result<(), NeverTaken> {
        self.used = self.used.checked_sub(cost).ok_or(NeverTaken)?;
        Ok(())
    }

    /// The connection is closed: it waits no longer.
    pub fn forget(&mut self, slot: Slot) {
        self.leave(slot);
    }
}

const fn bit_of(slot: Slot) -> (usize, u64) {
    (slot.index() / 64, 1 << (slot.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: usize) -> Slot {
        Slot::new(index).unwrap()
    }

    #[test]
    fn no_more_entries_are_taken_than_the_capacity() {
        for capacity in [512, 513, 600] {
            let mut budget = Budget::new(capacity);
            let mut taken = 0;
            for requested in (0..4000_u32).map(|index| 1 + index % 9) {
                if budget.take(slot(requested as usize), requested) {
                    taken += requested;
                }
                assert_eq!(budget.used(), taken);
                assert!(taken <= capacity);
            }
            assert!(taken > capacity - 9);
        }
    }

    #[test]
    fn a_group_of_the_longest_receives_always_fits_an_empty_budget() {
        let mut budget = Budget::new(0);
        assert_eq!(budget.capacity(), CAPACITY_MIN);
        assert!(budget.take(slot(0), CAPACITY_MIN));
    }

    #[test]
    fn entries_that_were_never_taken_are_not_returned() {
        let mut budget = Budget::new(512);
        assert!(budget.take(slot(0), 5));
        assert_eq!(budget.release(6), Err(NeverTaken));
        assert_eq!((budget.release(5), budget.used()), (Ok(()), 0));
    }

    #[test]
    fn a_group_is_not_overtaken_for_ever_by_single_receives() {
        let mut budget = Budget::new(512);
        while budget.take(slot(0), 1) {}
        assert!(!budget.take(slot(9), 8));
        // Single receives complete and are posted again at once; the group tries every third time.
        let mut served = None;
        for round in 0..100 {
            budget.release(1).unwrap();
            for other in [0, 1] {
                budget.take(slot(other), 1);
            }
            if budget.take(slot(9), 8) {
                served = Some(round);
                break;
            }
        }
        assert!(served.is_some_and(|round| round < 20), "{served:?}");
    }

    #[test]
    fn every_waiting_connection_is_served_in_its_place_in_the_cycle() {
        for count in [2, 3, 64, 65, 130] {
            for first in [0, 60, Slot::COUNT - count] {
                let mut budget = Budget::new(512);
                assert!(budget.take(slot(5000), 512));
                let mut served = vec![0; count];
                // All try in the same order, so that the first could always be served.
                let mut ask = |budget: &mut Budget| {
                    for (index, served) in served.iter_mut().enumerate() {
                        *served += i32::from(budget.take(slot(first + index), 1));
                    }
                };
                ask(&mut budget);
                for _ in 0..2 * count {
                    budget.release(1).unwrap();
                    ask(&mut budget);
                    assert_eq!(budget.used(), 512, "an entry stays free");
                }
                // One round may end in the middle of the cycle.
                assert!(served.iter().all(|served| (1..=3).contains(served)), "{served:?}");
                assert_eq!(served.iter().sum::<i32>(), 2 * i32::try_from(count).unwrap());
            }
        }
    }

    #[test]
    fn the_next_in_the_cycle_is_the_first_waiter_behind_the_one_served_last() {
        let all = [0, 1, 5, 63, 64, 127, 128, 1000, Slot::COUNT - 65, Slot::COUNT - 1];
        for served in all.into_iter().chain([2, 62, 65, 4000, 4031, Slot::COUNT - 2]) {
            let mut budget = Budget::new(512);
            assert!(budget.take(slot(0), 512));
            for index in all {
                assert!(!budget.take(slot(index), 1));
            }
            budget.serve(slot(served));
            let mut expected = all.to_vec();
            expected.retain(|index| *index != served);
            expected.sort_by_key(|index| (*index + Slot::COUNT - served) % Slot::COUNT);
            for index in expected {
                assert_eq!(budget.first_waiter(), Some(slot(index)), "behind {served}");
                budget.serve(slot(index));
            }
            assert_eq!((budget.first_waiter(), budget.waiters), (None, 0));
        }
    }

    #[test]
    fn a_connection_that_no_longer_tries_does_not_block_the_others() {
        let mut budget = Budget::new(512);
        assert!(budget.take(slot(0), 512));
        assert!(!budget.take(slot(7), 8));
        budget.release(4).unwrap();
        let requested = (0..2 * PATIENCE).take_while(|_| !budget.take(slot(9), 1)).count();
        assert_eq!(requested, PATIENCE as usize + 1);
        assert!(budget.take(slot(4), 1));
    }

    #[test]
    fn a_closed_connection_does_not_wait() {
        let mut budget = Budget::new(512);
        assert!(budget.take(slot(0), 511));
        assert!(!budget.take(slot(7), 8));
        assert!(!budget.take(slot(9), 1));
        budget.forget(slot(7));
        assert!(budget.take(slot(9), 1));
    }

    #[test]
    fn no_message_has_more_parts_than_its_receive_is_charged_with() {
        for rails in [1, 2, 3, 4, 15, 16] {
            for (shared_from, longest) in [(128, 1 << 30), (5000, 1 << 30), (20_000, 4096)] {
                let cutting = Cutting::new(rails, shared_from, longest).unwrap();
                let mut most = 0;
                for len in 0..40_000 {
                    most = most.max(cutting.split(len).parts);
                    let charged = u64::from(entries(&cutting, len));
                    assert!(charged >= most, "{rails} rails, {len} bytes: {charged}, not {most}");
                }
            }
        }
    }

    #[test]
    fn a_receive_is_charged_with_all_parts_that_one_rail_may_carry() {
        let one = Cutting::new(1, 64 << 10, 1 << 20).unwrap();
        let charged =
            [0, 1, 1 << 20, (1 << 20) + 1, 64 << 20, 1 << 40].map(|len| entries(&one, len));
        assert_eq!(charged, [1, 1, 1, 2, 64, 64]);
        let four = Cutting::new(4, 64 << 10, 1 << 40).unwrap();
        let charged = [0, 65_535, 65_536, 1 << 30].map(|len| entries(&four, len));
        assert_eq!(charged, [1, 1, 4, 16]);
    }
}
