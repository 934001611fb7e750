//! Striping: how a message is cut into parts, and which rail carries each. Pure functions of lengths, rails and loads.
//!
//! All parts but the last have one length, the step. They start on multiples of [`PART_ALIGN`], and none is longer than
//! the largest write. A message of one part takes the rails round robin if all are about equally fast. Otherwise it
//! takes the rail that is expected to finish it first, as each part of a longer message does.

use std::time::Duration;

use super::ids::Moment;
use crate::limits::{MAX_DATA_RAILS, MAX_PARTS, PART_ALIGN};
use crate::rail_set::RailSet;

/// Parts of one message on one rail, unless the largest write requires more.
pub const PARTS_PER_RAIL: usize = 4;
const _: () = assert!(
    MAX_DATA_RAILS * PARTS_PER_RAIL <= MAX_PARTS as usize,
    "more parts only if the largest write requires them"
);
/// A rail's share of a message is cut further only into parts of at least this many bytes.
pub const PART_BYTES_MIN: u64 = 256 << 10;

/// The longest part, so that a step fits 32 bits in units of the alignment.
const LONGEST: u64 = (u32::MAX as u64) * PART_ALIGN;

/// The parameters of cutting; the same for all messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutting {
    /// Data rails in use.
    pub rails: u8,
    /// Messages of at least this many bytes are striped over the rails.
    pub shared_from: u64,
    /// The longest part: the provider's largest write, rounded down to the alignment.
    pub longest: u64,
}

/// The parts of one message: part `i` begins at `i * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub step: u64,
    pub parts: u64,
}

impl Cutting {
    /// None unless there are 1 to 16 rails and a write holds an aligned part.
    pub const fn new(rails: usize, shared_from: u64, largest_write: u64) -> Option<Self> {
        if rails == 0 || rails > MAX_DATA_RAILS || largest_write < PART_ALIGN {
            return None;
        }
        let longest = largest_write & !(PART_ALIGN - 1);
        let longest = if longest < LONGEST { longest } else { LONGEST };
        Some(Self { rails: crate::bits::low8(rails as u64), shared_from, longest })
    }

    /// The longest message that fits [`MAX_PARTS`] parts; a longer one cannot be sent with immediates.
    pub const fn immediates_end(&self) -> u64 {
        self.longest.saturating_mul(MAX_PARTS as u64)
    }

    /// Cuts a message. Even an empty one has a part, whose immediate reports its arrival.
    #[inline]
    pub fn split(&self, len: u64) -> Split {
        if len <= self.longest && (self.rails == 1 || len < self.shared_from) {
            return Split { step: self.longest, parts: 1 };
        }
        self.split_long(len)
    }

    fn split_long(&self, len: u64) -> Split {
        let rails = if len < self.shared_from { 1 } else { u64::from(self.rails) };
        let shares = match rails {
            1 => 1,
            _ => rails * (len / (rails * PART_BYTES_MIN)).clamp(1, PARTS_PER_RAIL as u64),
        };
        let step = aligned_up(len.div_ceil(shares)).min(self.longest);
        Split { step, parts: len.div_ceil(step).max(1) }
    }
}

impl Split {
    /// Offset and length of part `index`.
    #[inline]
    pub const fn part(&self, index: u64, len: u64) -> (u64, u64) {
        let start = self.step.saturating_mul(index);
        let rest = len.saturating_sub(start);
        (start, if rest < self.step { rest } else { self.step })
    }
}

/// The next multiple of the alignment; the largest multiple if that would overflow.
const fn aligned_up(bytes: u64) -> u64 {
    let bytes = if bytes == 0 { 1 } else { bytes };
    match bytes.checked_next_multiple_of(PART_ALIGN) {
        Some(aligned) => aligned,
        None => !(PART_ALIGN - 1),
    }
}

/// The load and relative speed of each data rail of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loads {
    rails: u8,
    /// The next rail in the round robin of messages of one part.
    next: u8,
    /// Rails that may get parts.
    open: RailSet,
    queued: [u64; MAX_DATA_RAILS],
    /// If completions do not show when parts arrive: the bytes on each rail that have probably not arrived, as of
    /// `drained`.
    behind: [u64; MAX_DATA_RAILS],
    drained: Moment,
    by_arrival: bool,
    /// Relative to [`FULL_SPEED`](Self::FULL_SPEED); never 0.
    speeds: [u8; MAX_DATA_RAILS],
    /// One rail is slower than the others.
    uneven: bool,
}

impl Loads {
    /// Rails of equal speed. `rails` is clamped to 1 to 16.
    pub const fn equal(rails: u8) -> Self {
        let rails = match rails {
            0 => 1,
            rails if rails as usize > MAX_DATA_RAILS => 16,
            rails => rails,
        };
        let open = RailSet::new(u16::MAX >> (16 - rails as u32));
        let speeds = [Self::FULL_SPEED; MAX_DATA_RAILS];
        Self {
            rails,
            next: 0,
            open,
            queued: [0; MAX_DATA_RAILS],
            behind: [0; MAX_DATA_RAILS],
            drained: Moment::from_nanos(0),
            by_arrival: false,
            speeds,
            uneven: false,
        }
    }

    /// From now on a rail's load is the bytes that have probably not arrived, instead of those that have not completed.
    pub fn measure_by_arrival(&mut self) {
        self.by_arrival = true;
    }

    /// The bytes on a rail that have probably not arrived.
    pub fn behind(&self, rail: u8) -> u64 {
        self.behind[usize::from(rail) % MAX_DATA_RAILS]
    }

    pub fn set_behind(&mut self, rail: u8, bytes: u64) {
        self.behind[usize::from(rail) % MAX_DATA_RAILS] = bytes;
    }

    /// Sets the time for which [`behind`](Self::behind) is valid. Returns the time since the last call.
    pub fn drained_at(&mut self, now: Moment) -> Duration {
        now.since(std::mem::replace(&mut self.drained, now))
    }

    /// The speed of the fastest rail.
    pub const FULL_SPEED: u8 = 128;

    /// A rail is lost: it gets no more parts.
    pub fn close(&mut self, rail: u8) {
        self.open.remove(rail);
    }

    /// A lost rail is back. Its speed is measured again.
    pub fn open(&mut self, rail: u8) {
        if rail < self.rails {
            self.open.insert(rail);
        }
    }

    /// Whether a rail may get parts.
    #[inline]
    pub const fn is_open(&self, rail: u8) -> bool {
        self.open.has(rail)
    }

    /// How many rails may get parts.
    pub const fn open_rails(&self) -> u32 {
        self.open.len()
    }

    /// Sets a rail's relative speed; 0 counts as 1.
    pub fn set_speed(&mut self, rail: u8, speed: u8) {
        if let Some(kept) = self.speeds.get_mut(usize::from(rail)) {
            *kept = speed.max(1);
            self.uneven = self.speeds != [Self::FULL_SPEED; MAX_DATA_RAILS];
        }
    }

    /// A rail's relative speed in percent: 100, unless it is much slower than the others.
    pub fn percent(&self, rail: u8) -> u8 {
        let speed = self.speeds.get(usize::from(rail)).copied().unwrap_or(Self::FULL_SPEED);
        crate::bits::low8(u64::from(speed) * 100 / u64::from(Self::FULL_SPEED))
    }

    /// Whether a rail is much slower than another one.
    pub const fn is_uneven(&self) -> bool {
        self.uneven
    }

    pub const fn rails(&self) -> u8 {
        self.rails
    }

    /// The rail of a message of one part, of `len` bytes.
    #[inline]
    pub fn of_one_part(&mut self, len: u64) -> u8 {
        if self.uneven { self.soonest(len, |_| true) } else { self.in_cycle() }
    }

    #[inline]
    fn in_cycle(&mut self) -> u8 {
        let rail = self.next;
        self.next = if rail + 1 < self.rails { rail + 1 } else { 0 };
        if self.is_open(rail) { rail } else { self.next_open() }
    }

    #[cold]
    fn next_open(&mut self) -> u8 {
        for _ in 0..self.rails {
            let rail = self.next;
            self.next = if rail + 1 < self.rails { rail + 1 } else { 0 };
            if self.is_open(rail) {
                return rail;
            }
        }
        0
    }

    /// The open rail, among those that `may` take a part, that is expected to finish a part of `len` bytes first. The
    /// lowest of equal rails; rail 0 if none may take a part.
    pub fn soonest(&self, len: u64, may: impl Fn(usize) -> bool) -> u8 {
        let open = |rail: &usize| self.open.has(crate::bits::low8(*rail as u64));
        let mut rails = (0..usize::from(self.rails)).filter(|rail| open(rail) && may(*rail));
        let first = rails.next().unwrap_or(0);
        let best =
            rails.fold(
                first,
                |best, rail| {
                    if self.finishes_before(rail, best, len) { rail } else { best }
                },
            );
        crate::bits::low8(best as u64)
    }

    /// Compares (load + len) / speed of two rails, without a division.
    fn finishes_before(&self, rail: usize, other: usize, len: u64) -> bool {
        let behind = |rail: usize| if self.uneven { self.behind[rail] } else { 0 };
        let load = |rail: usize| self.queued[rail].max(behind(rail));
        let work = |rail: usize| u128::from(load(rail)) + u128::from(len);
        work(rail) * u128::from(self.speeds[other]) < work(other) * u128::from(self.speeds[rail])
    }

    /// A part was assigned to a rail.
    #[inline]
    pub fn posted(&mut self, rail: u8, len: u64) {
        let rail = usize::from(rail) % MAX_DATA_RAILS;
        self.queued[rail] = self.queued[rail].saturating_add(len);
        if self.by_arrival && self.uneven {
            self.behind[rail] = self.behind[rail].saturating_add(len);
        }
    }

    /// A part has completed or failed. False if the rail carries fewer bytes than that, which is a bug of the caller.
    #[inline]
    #[must_use]
    pub fn ended(&mut self, rail: u8, len: u64) -> bool {
        let queued = &mut self.queued[usize::from(rail) % MAX_DATA_RAILS];
        match queued.checked_sub(len) {
            Some(rest) => *queued = rest,
            None => return false,
        }
        true
    }

    /// The bytes queued on a rail.
    pub fn queued(&self, rail: u8) -> u64 {
        self.queued[usize::from(rail) % MAX_DATA_RAILS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn covers(split: Split, len: u64, longest: u64) {
        let mut covered = 0;
        for index in 0..split.parts {
            let (start, bytes) = split.part(index, len);
            assert_eq!(start, covered);
            assert_eq!(start % PART_ALIGN, 0);
            assert!(bytes <= longest && (bytes > 0 || len == 0));
            covered += bytes;
        }
        assert_eq!(covered, len);
        assert!(split.parts >= 1);
    }

    #[test]
    fn parts_cover_a_message_once_within_every_bound() {
        let near = [127, 128, 129, 4095, 4096, 4097, 8192, 262_143, 262_144, 262_145, 7_777_777];
        for len in (0..2000).step_by(37).chain(near) {
            for rails in 1..=MAX_DATA_RAILS {
                for largest in [128, 255, 256, 4096, 1 << 30] {
                    for shared_from in [0, 1, 512, 64 * KIB, u64::MAX] {
                        let cutting = Cutting::new(rails, shared_from, largest).unwrap();
                        let split = cutting.split(len);
                        if split.parts > 70_000 {
                            continue;
                        }
                        covers(split, len, cutting.longest);
                        if len <= cutting.immediates_end() {
                            assert!(split.parts <= u64::from(MAX_PARTS), "{len} {cutting:?}");
                        }
                        let bound = ((rails * PARTS_PER_RAIL) as u64).max(len.div_ceil(128));
                        assert!(split.parts <= bound.max(1));
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_lengths_and_all_numbers_of_rails_have_bounds() {
        assert_eq!([0, 128, 129].map(aligned_up), [128, 128, 256]);
        assert_eq!(aligned_up(u64::MAX), u64::MAX - 127);
        assert_eq!(
            [0, 1, 16, 17, 255].map(|rails| Loads::equal(rails).rails()),
            [1, 1, 16, 16, 16]
        );
    }

    #[test]
    fn a_message_of_one_part_takes_the_only_open_rail_wherever_the_cycle_stands() {
        for rails in 1..=16 {
            for (open, before) in
                (0..rails).flat_map(|open| (0..rails).map(move |before| (open, before)))
            {
                let mut loads = Loads::equal(rails);
                (0..before).for_each(|rail| assert_eq!(loads.of_one_part(1), rail));
                (0..rails).filter(|rail| *rail != open).for_each(|rail| loads.close(rail));
                loads.open(rails);
                assert_eq!((loads.open_rails(), loads.of_one_part(1)), (1, open));
            }
        }
    }

    #[test]
    fn a_message_has_at_most_four_parts_per_rail_where_the_largest_write_allows_it() {
        for rails in 1..=MAX_DATA_RAILS {
            let cutting = Cutting::new(rails, 64 * KIB, 1 << 40).unwrap();
            for len in [0, 1, 64 * KIB, 1 << 20, 1 << 24, 1 << 30, (1 << 34) + 3] {
                let parts = cutting.split(len).parts;
                assert!(parts <= (PARTS_PER_RAIL * rails) as u64);
                if rails > 1 && len >= 64 * KIB {
                    assert!(parts >= rails as u64 - 1, "every rail has work, but for rounding");
                } else {
                    assert_eq!(parts, 1);
                }
            }
        }
    }

    #[test]
    fn parts_of_one_rail_are_not_needlessly_short() {
        let cutting = Cutting::new(4, 64 * KIB, 1 << 30).unwrap();
        assert_eq!(cutting.split(1 << 20), Split { step: 256 * KIB, parts: 4 });
        assert_eq!(cutting.split(2 << 20), Split { step: 256 * KIB, parts: 8 });
        assert_eq!(cutting.split(16 << 20), Split { step: 1 << 20, parts: 16 });
    }

    #[test]
    fn the_longest_message_does_not_overflow() {
        for rails in [1, 2, 16] {
            for largest in [128, u64::MAX] {
                let cutting = Cutting::new(rails, 0, largest).unwrap();
                let split = cutting.split(u64::MAX);
                assert_eq!(split.part(0, u64::MAX).0, 0);
                let (start, bytes) = split.part(split.parts - 1, u64::MAX);
                assert_eq!(start + bytes, u64::MAX);
            }
        }
    }

    #[test]
    fn cutting_needs_a_rail_and_a_write_that_holds_a_part() {
        assert_eq!(Cutting::new(0, 0, 4096), None);
        assert_eq!(Cutting::new(17, 0, 4096), None);
        assert_eq!(Cutting::new(1, 0, 127), None);
        assert_eq!(Cutting::new(1, 0, 4097).unwrap().longest, 4096);
    }

    #[test]
    fn messages_of_one_part_take_every_rail_of_the_cycle() {
        for rails in 1..=16 {
            let mut loads = Loads::equal(rails);
            let taken: Vec<_> = (0..40).map(|_| loads.of_one_part(8)).collect();
            let expected: Vec<_> = (0..40).map(|index| index % rails).collect();
            assert_eq!(taken, expected);
        }
    }

    #[test]
    fn messages_of_one_part_take_the_open_rails_of_the_cycle() {
        let mut loads = Loads::equal(6);
        [0, 2, 3, 5].iter().for_each(|rail| loads.close(*rail));
        let taken: Vec<_> = (0..6).map(|_| loads.of_one_part(8)).collect();
        assert_eq!(taken, [1, 4, 1, 4, 1, 4]);
    }

    #[test]
    fn a_rails_speed_is_shown_in_percent_of_the_full_one() {
        let mut loads = Loads::equal(2);
        for (speed, percent) in [(Loads::FULL_SPEED, 100), (Loads::FULL_SPEED / 4, 25)] {
            loads.set_speed(1, speed);
            assert_eq!(
                (loads.percent(0), loads.percent(1), loads.percent(15)),
                (100, percent, 100)
            );
        }
    }

    #[test]
    fn a_part_takes_the_rail_that_finishes_it_first() {
        let mut loads = Loads::equal(3);
        for expected in [0, 1, 2, 0, 1, 2] {
            let rail = loads.soonest(100, |_| true);
            assert_eq!(rail, expected);
            loads.posted(rail, 100);
        }
        assert!(loads.ended(1, 100));
        assert!(!loads.ended(1, u64::MAX), "more than the rail carries");
        assert_eq!((loads.soonest(8, |_| true), loads.queued(1)), (1, 100));
    }

    #[test]
    fn rails_carry_in_proportion_to_their_speeds() {
        let mut loads = Loads::equal(2);
        loads.set_speed(0, 3);
        loads.set_speed(1, 1);
        loads.set_speed(9, 0);
        for _ in 0..400 {
            let rail = loads.soonest(1000, |_| true);
            loads.posted(rail, 1000);
        }
        assert_eq!((loads.queued(0), loads.queued(1)), (300_000, 100_000));
    }

    #[test]
    fn loads_are_exhaustively_the_least_expected_finish() {
        for (a, b, c) in
            (0..4).flat_map(|a| (0..4).flat_map(move |b| (0..4).map(move |c| (a, b, c))))
        {
            for speeds in 0..27_u8 {
                let speed = [1 + speeds % 3, 1 + speeds / 3 % 3, 1 + speeds / 9];
                let mut loads = Loads::equal(3);
                for (rail, queued) in [(0, a), (1, b), (2, c)] {
                    loads.posted(rail, queued);
                    loads.set_speed(rail, speed[usize::from(rail)]);
                }
                let finish = |rail: u8| {
                    let rail = usize::from(rail);
                    // Common multiple of the speeds: 6.
                    ([a, b, c][rail] + 1) * u64::from(6 / speed[rail])
                };
                let best = loads.soonest(1, |_| true);
                assert!((0..3).all(|rail| finish(best) <= finish(rail)));
            }
        }
    }
}
