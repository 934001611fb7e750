//! Cuts a message into parts and gives each a rail.
//!
//! A short message is one part, and takes the next rail in turn. A long one is shared out over the rails by weight; a
//! share longer than the largest write is more than one part. Parts are numbered in the order of their offsets, start
//! on [`PART_ALIGN`], and even an empty message is one: it still has to arrive.

use crate::limits::{MAX_DATA_RAILS, MAX_PARTS, PART_ALIGN};

/// A piece of a message on one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub index: u32,
    /// In the order of the paired rails.
    pub rail: u32,
    pub offset: u64,
    pub len: u64,
    pub last: bool,
}

/// The rails in use, what each can carry, and from which length on a message is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailPlan {
    rails: u32,
    stripe_bytes_min: u64,
    /// The sum of the weights of the rails up to and with each.
    weights: [u32; MAX_DATA_RAILS],
}

impl RailPlan {
    /// Rails that carry the same. None unless there are 1 to 16.
    pub fn equal(rails: usize, stripe_bytes_min: u64) -> Option<Self> {
        Self::weighted([1; MAX_DATA_RAILS].get(..rails)?, stripe_bytes_min)
    }

    /// Rails that carry in proportion to their weights, of which one at least is not 0.
    pub fn weighted(weights: &[u16], stripe_bytes_min: u64) -> Option<Self> {
        if weights.is_empty() || weights.len() > MAX_DATA_RAILS || weights.iter().all(|w| *w == 0) {
            return None;
        }
        let mut sums = [0; MAX_DATA_RAILS];
        let mut sum = 0;
        for (total, weight) in sums.iter_mut().zip(weights) {
            sum += u32::from(*weight);
            *total = sum;
        }
        Some(Self { rails: crate::bits::count32(weights.len()), stripe_bytes_min, weights: sums })
    }

    pub fn rails(&self) -> usize {
        self.rails as usize
    }

    /// From this length on, messages are shared out between rails.
    pub fn shared_from(&self) -> u64 {
        if self.rails == 1 { u64::MAX } else { self.stripe_bytes_min }
    }

    #[inline]
    fn in_turn(&self, turn: &mut u32) -> u32 {
        let rail = if *turn < self.rails { *turn } else { 0 };
        *turn = rail + 1;
        rail
    }

    #[inline]
    fn after(&self, rail: u32) -> u32 {
        if rail + 1 < self.rails { rail + 1 } else { 0 }
    }

    /// Where the share of `rail` ends.
    fn share_end(&self, rail: u32, len: u64) -> u64 {
        if rail + 1 >= self.rails {
            return len;
        }
        let total = u128::from(self.weights[self.rails as usize - 1]);
        let exact = u128::from(len) * u128::from(self.weights[rail as usize]) / total;
        let exact = u64::try_from(exact).unwrap_or(len);
        exact.checked_next_multiple_of(PART_ALIGN).map_or(len, |end| end.min(len))
    }
}

/// Cuts for immediates: at most [`MAX_PARTS`] parts. `len` is at most that many times the largest write, as it is for
/// every message that [`SendFlow::submit`](crate::SendFlow::submit) puts on that path.
#[inline]
pub fn cut<'a>(len: u64, plan: &'a RailPlan, largest_write: u64, turn: &mut u32) -> Cut<'a> {
    let longest = aligned(largest_write);
    if len < plan.stripe_bytes_min && len <= longest {
        return Cut::dealt(plan, len, longest, plan.in_turn(turn));
    }
    let shares = len.div_ceil(longest).saturating_add(u64::from(plan.rails) - 1);
    if shares > u64::from(MAX_PARTS) {
        let even = len.div_ceil(u64::from(MAX_PARTS)).next_multiple_of(PART_ALIGN);
        assert!(even <= longest, "a message that 64 parts cannot hold takes the fin path");
        return Cut::dealt(plan, len, even, plan.in_turn(turn));
    }
    Cut::shared(plan, len, longest)
}

/// The one part of a message that is not cut: short, or with no other rail to share with. `None`: [`cut`] it.
#[inline(always)]
pub fn uncut(len: u64, plan: &RailPlan, largest_write: u64, turn: &mut u32) -> Option<Part> {
    if len > aligned(largest_write) {
        return None;
    }
    let rail = match len < plan.stripe_bytes_min {
        true => plan.in_turn(turn),
        false if plan.rails == 1 => 0,
        false => return None,
    };
    Some(Part { index: 0, rail, offset: 0, len, last: true })
}

/// Cuts for the fin path: as many parts as it takes.
pub fn cut_unbounded<'a>(
    len: u64,
    plan: &'a RailPlan,
    largest_write: u64,
    turn: &mut u32,
) -> Cut<'a> {
    let longest = aligned(largest_write);
    if len < plan.stripe_bytes_min {
        Cut::dealt(plan, len, longest, plan.in_turn(turn))
    } else {
        Cut::shared(plan, len, longest)
    }
}

/// The longest part: parts start on a boundary, whatever the provider's largest write.
#[inline]
pub fn aligned(largest_write: u64) -> u64 {
    (largest_write & !(PART_ALIGN - 1)).max(PART_ALIGN)
}

/// The parts of one message, in order.
#[derive(Clone, Debug)]
pub struct Cut<'a> {
    plan: &'a RailPlan,
    len: u64,
    longest: u64,
    offset: u64,
    /// Where the share of the present rail ends.
    end: u64,
    index: u32,
    rail: u32,
    shared: bool,
    finished: bool,
}

impl<'a> Cut<'a> {
    /// Parts of one length, dealt to the rails in turn.
    #[inline]
    fn dealt(plan: &'a RailPlan, len: u64, longest: u64, rail: u32) -> Self {
        let end = len.min(longest);
        let (offset, index, shared, finished) = (0, 0, false, false);
        Self { plan, len, longest, offset, end, index, rail, shared, finished }
    }

    fn shared(plan: &'a RailPlan, len: u64, longest: u64) -> Self {
        let end = plan.share_end(0, len);
        let (offset, index, rail, finished) = (0, 0, 0, false);
        let mut cut = Self { plan, len, longest, offset, end, index, rail, shared: true, finished };
        cut.skip_empty_shares();
        cut
    }

    fn next_share(&mut self) {
        if self.shared {
            self.skip_empty_shares();
        } else {
            self.rail = self.plan.after(self.rail);
            self.end = self.len.min(self.offset.saturating_add(self.longest));
        }
    }

    fn skip_empty_shares(&mut self) {
        while self.end == self.offset && self.rail + 1 < self.plan.rails {
            self.rail += 1;
            self.end = self.plan.share_end(self.rail, self.len);
        }
    }
}

impl Cut<'_> {
    /// The same parts, without a borrow of the plan: for a message whose parts are posted over several calls.
    pub fn detached(self) -> DetachedCut {
        let Cut { plan, len, longest, offset, end, index, rail, shared, finished } = self;
        DetachedCut { plan: *plan, len, longest, offset, end, index, rail, shared, finished }
    }
}

/// A [`Cut`] that owns its plan.
#[derive(Clone, Debug)]
pub struct DetachedCut {
    plan: RailPlan,
    len: u64,
    longest: u64,
    offset: u64,
    end: u64,
    index: u32,
    rail: u32,
    shared: bool,
    finished: bool,
}

impl DetachedCut {
    /// The part that [`Iterator::next`] would give.
    pub fn peek(&self) -> Option<Part> {
        self.attached().next()
    }

    fn attached(&self) -> Cut<'_> {
        let Self { plan, len, longest, offset, end, index, rail, shared, finished } = self;
        Cut {
            plan,
            len: *len,
            longest: *longest,
            offset: *offset,
            end: *end,
            index: *index,
            rail: *rail,
            shared: *shared,
            finished: *finished,
        }
    }
}

impl Iterator for DetachedCut {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let mut cut = self.attached();
        let part = cut.next();
        let Cut { offset, end, index, rail, finished, .. } = cut;
        (self.offset, self.end, self.index, self.rail, self.finished) =
            (offset, end, index, rail, finished);
        part
    }
}

impl Iterator for Cut<'_> {
    type Item = Part;

    #[inline]
    fn next(&mut self) -> Option<Part> {
        if self.finished {
            return None;
        }
        let end = self.end.min(self.offset.saturating_add(self.longest));
        let last = end == self.len;
        let (index, rail, offset) = (self.index, self.rail, self.offset);
        self.finished = last;
        if !last {
            self.index += 1;
            self.offset = end;
            if end == self.end {
                self.next_share();
            }
        }
        Some(Part { index, rail, offset, len: end - offset, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn check(cut: Cut<'_>, len: u64, longest: u64, rails: usize) -> Vec<Part> {
        let parts: Vec<_> = cut.take(5000).collect();
        let mut covered = 0;
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(part.index as usize, index);
            assert_eq!(part.offset, covered);
            assert_eq!(part.offset % PART_ALIGN, 0);
            assert!(part.len <= longest);
            assert!(part.len > 0 || len == 0);
            assert!((part.rail as usize) < rails);
            assert_eq!(part.last, index + 1 == parts.len());
            covered += part.len;
        }
        assert_eq!(covered, len);
        parts
    }

    #[test]
    fn parts_cover_the_message_once_within_every_bound() {
        let lens = (0..700).step_by(7).chain([1023, 1024, 1025, 8191, 8192, 16000, 7_777_777]);
        for len in lens {
            for rails in 1..=MAX_DATA_RAILS {
                for longest in [128, 255, 256, 4096, 1 << 30] {
                    for stripe in [0, 1, 512, 64 * KIB, u64::MAX] {
                        let plan = RailPlan::equal(rails, stripe).unwrap();
                        for mut turn in [0, 1, 15, 16] {
                            let fin = cut_unbounded(len, &plan, longest, &mut turn).take(64_000);
                            let sum: u64 = fin.map(|part| part.len).sum();
                            assert_eq!(sum, len);
                            if len <= (longest & !127) * u64::from(MAX_PARTS) {
                                let parts =
                                    check(cut(len, &plan, longest, &mut turn), len, longest, rails);
                                assert!(parts.len() <= MAX_PARTS as usize);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_message_that_is_not_cut_has_the_part_that_cutting_would_give() {
        for rails in 1..=4 {
            let plan = RailPlan::equal(rails, 1024).unwrap();
            for len in [0, 1, 1023, 1024, 4096, 4097, 100_000] {
                for start in 0..5 {
                    let (mut turn, mut other) = (start, start);
                    let parts: Vec<_> = cut(len, &plan, 4096, &mut turn).collect();
                    match uncut(len, &plan, 4096, &mut other) {
                        Some(part) => assert_eq!((parts, turn), (vec![part], other)),
                        None => assert!(len > 4096 || rails > 1 && len >= 1024),
                    }
                }
            }
        }
    }

    #[test]
    fn a_detached_cut_gives_the_same_parts() {
        let plan = RailPlan::equal(3, 1024).unwrap();
        for len in [0, 1, 1000, 5000, 100_000] {
            let (mut turn, mut other) = (1, 1);
            let parts: Vec<_> = cut_unbounded(len, &plan, 4096, &mut turn).collect();
            let mut detached = cut_unbounded(len, &plan, 4096, &mut other).detached();
            for part in parts {
                assert_eq!(detached.peek(), Some(part));
                assert_eq!(detached.next(), Some(part));
            }
            assert_eq!(detached.next(), None);
        }
    }

    #[test]
    fn short_messages_take_the_rails_in_turn() {
        let plan = RailPlan::equal(3, 64 * KIB).unwrap();
        let mut turn = 0;
        let rails: Vec<_> =
            (0..6).flat_map(|_| cut(8, &plan, 1 << 30, &mut turn)).map(|part| part.rail).collect();
        assert_eq!(rails, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn long_messages_are_shared_out_by_weight() {
        let plan = RailPlan::weighted(&[1, 0, 3, 4], 64 * KIB).unwrap();
        let parts = check(cut(1 << 20, &plan, 1 << 30, &mut 0), 1 << 20, 1 << 30, 4);
        let shares: Vec<_> = parts.iter().map(|part| (part.rail, part.len >> 10)).collect();
        assert_eq!(shares, [(0, 128), (2, 384), (3, 512)]);
    }

    #[test]
    fn a_rail_of_no_weight_carries_no_share() {
        for weights in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 0, 0]] {
            let plan = RailPlan::weighted(&weights, 0).unwrap();
            for len in [0, 1, 128, 129, 10_000] {
                for part in check(cut(len, &plan, 256, &mut 0).clone(), len, 256, 3) {
                    assert!(len == 0 || weights[part.rail as usize] > 0, "{weights:?} {len}");
                }
            }
        }
    }

    #[test]
    fn the_longest_message_does_not_overflow() {
        let plan = RailPlan::equal(16, 0).unwrap();
        let first = cut_unbounded(u64::MAX, &plan, u64::MAX, &mut 0).next().unwrap();
        assert_eq!((first.offset, first.last), (0, false));
    }

    #[test]
    fn a_plan_needs_a_rail_that_carries() {
        assert_eq!(RailPlan::equal(0, 0), None);
        assert_eq!(RailPlan::equal(17, 0), None);
        assert_eq!(RailPlan::weighted(&[0, 0], 0), None);
    }
}
