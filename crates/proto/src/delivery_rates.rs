//! The rates at which data rails deliver, from the peer's reports of when parts arrived: for providers whose completions
//! say only that the parts were taken, as over sockets.
//!
//! ```text
//!  post:     a b c          d
//!  arrival:        a  b  c            (report: 3 parts, and when c arrived)
//!            └─── run ───┘
//! ```
//!
//! A run is the parts from one of them up to the newest that has arrived. It begins when its first part was posted, or
//! when the last part before it arrived, if that was later. Its bytes, by its time, are at most the rail's speed, whatever
//! the rail did meanwhile, so the fastest run is the best measure.
//!
//! Clocks differ. A report takes some time, so our clock when it is read, less the peer's when it was made, is more than
//! their difference, by the least in the fastest report.

use std::collections::VecDeque;
use std::time::Duration;

use super::frame::{Arrived, Landed};
use super::ids::Moment;
use crate::bits::{count32, low32};

/// Parts that were posted and not reported, remembered per rail. Older ones are not measured.
const POSTS_MAX: usize = 128;
/// How long the fastest report counts: clocks drift.
const CLOCK_WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct DeliveryRates {
    rails: Box<[Rail]>,
    clock: ClockDifference,
}

#[derive(Debug)]
struct Rail {
    posts: VecDeque<Post>,
    /// The number of the newest part.
    newest: u32,
    /// When the newest reported part arrived.
    arrived_at: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Post {
    at: Moment,
    len: u64,
}

/// A run that shows a rail's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub bytes: u64,
    pub taken: Duration,
}

/// What a report says about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub rail: u8,
    /// When the newest part that has arrived did, by our clock.
    pub at: Moment,
    /// The bytes that had been posted after it.
    pub behind: u64,
    pub run: Run,
}

impl DeliveryRates {
    pub fn new(rails: u8) -> Self {
        let rail = || Rail {
            posts: VecDeque::with_capacity(POSTS_MAX),
            newest: 0,
            arrived_at: Moment::default(),
        };
        let rails = std::iter::repeat_with(rail).take(rails.into()).collect();
        Self { rails, clock: ClockDifference::default() }
    }

    /// Part `number` of a rail was posted.
    pub fn posted(&mut self, rail: u8, number: u32, len: u64, now: Moment) {
        let Some(rail) = self.rails.get_mut(usize::from(rail)) else { return };
        if rail.posts.len() == POSTS_MAX {
            rail.posts.pop_front();
        }
        rail.posts.push_back(Post { at: now, len });
        rail.newest = number;
    }

    /// Parts of a rail may be lost: those before this moment are not measured.
    pub fn forget(&mut self, rail: u8) {
        if let Some(rail) = self.rails.get_mut(usize::from(rail)) {
            rail.posts.clear();
        }
    }

    /// Reads a report. Rails that we do not have, and parts that we do not remember, are passed over.
    pub fn reported(
        &mut self,
        arrived: &Arrived,
        now: Moment,
        mut delivered: impl FnMut(Delivered),
    ) {
        self.clock.heard(arrived.clock_micros, now);
        let ago = self.clock.since(arrived.clock_micros, now);
        for Landed { rail: number, count, micros_ago } in arrived.landed() {
            let Some(rail) = self.rails.get_mut(usize::from(number)) else { continue };
            let at = now.before(ago + Duration::from_micros(micros_ago.into()));
            if let Some(run) = rail.reported(count, at) {
                let behind = rail.posts.iter().map(|post| post.len).sum();
                delivered(Delivered { rail: number, at, behind, run });
            }
        }
    }
}

impl Rail {
    /// Parts up to number `count` have arrived, the last one at `at`. Returns their fastest run; None if none of them is
    /// remembered.
    fn reported(&mut self, count: u32, at: Moment) -> Option<Run> {
        let left = self.newest.wrapping_sub(count);
        let arrived = count32(self.posts.len()).checked_sub(left).filter(|arrived| *arrived > 0)?;
        let mut bytes = 0;
        let runs = self.posts.drain(..arrived as usize).rev().map(|post| {
            bytes += post.len;
            Run { bytes, taken: at.since(post.at.max(self.arrived_at)) }
        });
        let fastest = runs.reduce(Run::faster);
        self.arrived_at = at;
        fastest
    }
}

impl Run {
    fn faster(self, other: Self) -> Self {
        let crossed = |one: Self, time: Duration| u128::from(one.bytes) * time.as_nanos();
        if crossed(other, self.taken) > crossed(self, other.taken) { other } else { self }
    }
}

/// What our clock showed when a report was read, less what the peer's showed when it was made: the least of the last ten
/// to twenty seconds, in wrapping microseconds.
#[derive(Debug, Default)]
struct ClockDifference {
    least: Option<u32>,
    /// The least of the current window, and when that ends.
    current: Option<u32>,
    ends: Moment,
}

impl ClockDifference {
    fn heard(&mut self, theirs: u32, now: Moment) {
        let found = micros(now).wrapping_sub(theirs);
        if now >= self.ends {
            self.least = self.current.take();
            self.ends = now.plus(CLOCK_WINDOW);
        }
        for least in [&mut self.least, &mut self.current] {
            let less = least.is_none_or(|least| found.wrapping_sub(least).cast_signed() < 0);
            if less {
                *least = Some(found);
            }
        }
    }

    /// How long ago the peer's clock showed this time.
    fn since(&self, theirs: u32, now: Moment) -> Duration {
        let found = micros(now).wrapping_sub(theirs);
        let delay = self.least.map_or(0, |least| found.wrapping_sub(least));
        Duration::from_micros(delay.into())
    }
}

fn micros(moment: Moment) -> u32 {
    low32(moment.nanos() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn at(micros: u64) -> Moment {
        Moment::from_nanos(1000 * micros)
    }

    /// A report that the peer, whose clock is `ahead` microseconds ahead of ours, made when its clock showed `clock`.
    fn report(clock: u64, landed: &[(u8, u32, u64)]) -> Arrived {
        let landed = landed.iter().map(|(rail, count, when)| Landed {
            rail: *rail,
            count: *count,
            micros_ago: low32(clock - when),
        });
        Arrived::new(at(clock), landed).unwrap()
    }

    fn read(rates: &mut DeliveryRates, arrived: &Arrived, now: u64) -> Vec<Delivered> {
        let mut all = Vec::new();
        rates.reported(arrived, at(now), |delivered| all.push(delivered));
        all
    }

    fn run(bytes: u64, micros: u64) -> Run {
        Run { bytes, taken: Duration::from_micros(micros) }
    }

    #[test]
    fn parts_that_were_posted_together_show_the_rails_speed() {
        let mut rates = DeliveryRates::new(2);
        (1..=3).for_each(|number| rates.posted(1, number, 256 * KIB, at(100)));
        let found = read(&mut rates, &report(8000, &[(1, 3, 7600)]), 8000);
        assert_eq!(
            found,
            [Delivered { rail: 1, at: at(7600), behind: 0, run: run(768 * KIB, 7500) }]
        );
    }

    #[test]
    fn time_in_which_the_rail_had_nothing_to_do_is_not_counted() {
        let mut rates = DeliveryRates::new(1);
        rates.posted(0, 1, 64 * KIB, at(0));
        rates.posted(0, 2, 256 * KIB, at(50_000));
        let found = read(&mut rates, &report(56_000, &[(0, 2, 56_000)]), 56_000);
        assert_eq!(found[0].run, run(256 * KIB, 6000));
    }

    #[test]
    fn a_part_that_waited_for_others_begins_when_the_last_of_them_has_arrived() {
        let mut rates = DeliveryRates::new(1);
        (1..=4).for_each(|number| rates.posted(0, number, 256 * KIB, at(0)));
        let first = read(&mut rates, &report(12_000, &[(0, 2, 12_000)]), 12_000);
        assert_eq!((first[0].run, first[0].behind), (run(512 * KIB, 12_000), 512 * KIB));
        let second = read(&mut rates, &report(20_000, &[(0, 4, 18_000)]), 20_000);
        assert_eq!((second[0].run, second[0].behind), (run(512 * KIB, 6000), 0));
    }

    #[test]
    fn the_peers_clock_may_show_any_time_and_wrap() {
        let wrap = u64::from(u32::MAX);
        for ahead in [0, 5, 1 << 40, wrap - 3000, wrap - 6500] {
            let mut rates = DeliveryRates::new(1);
            rates.posted(0, 1, KIB, at(1000));
            // The fastest report takes 20 us.
            read(&mut rates, &report(ahead + 2000, &[(0, 1, ahead + 1500)]), 2020);
            rates.posted(0, 2, 256 * KIB, at(3000));
            let report = report(ahead + 8000, &[(0, 2, ahead + 7000)]);
            // This one takes 5 ms, which does not count.
            let found = read(&mut rates, &report, 13_000);
            assert_eq!(found[0].run, run(256 * KIB, 4020), "{ahead}");
        }
    }

    #[test]
    fn reports_that_cannot_be_true_are_passed_over() {
        let mut rates = DeliveryRates::new(2);
        rates.posted(0, 9, 256 * KIB, at(0));
        for (rail, count) in [(0, 8), (0, 10), (0, u32::MAX), (1, 1), (15, 9)] {
            assert_eq!(read(&mut rates, &report(5000, &[(rail, count, 5000)]), 5000), []);
        }
        assert_eq!(read(&mut rates, &report(5000, &[(0, 9, 5000)]), 5000).len(), 1);
        assert_eq!(read(&mut rates, &report(9000, &[(0, 9, 9000)]), 9000), [], "twice");
    }

    #[test]
    fn a_rail_remembers_a_bounded_number_of_parts() {
        let mut rates = DeliveryRates::new(1);
        let posts = count32(POSTS_MAX) + 10;
        (1..=posts).for_each(|number| rates.posted(0, number, KIB, at(0)));
        assert_eq!(read(&mut rates, &report(5000, &[(0, 10, 5000)]), 5000), []);
        let found = read(&mut rates, &report(9000, &[(0, posts, 9000)]), 9000);
        assert_eq!(found[0].run, run(KIB * POSTS_MAX as u64, 9000));
    }
}
