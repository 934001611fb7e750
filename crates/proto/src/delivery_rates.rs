//! The rates at which data rails deliver, from the peer's reports of when parts arrived. For providers whose completions
//! only mean that a part was copied into a buffer, such as those over sockets.
//!
//! ```text
//!  post:     a b c          d
//!  arrival:        a  b  c            (report: 3 parts, and when c arrived)
//!            └─── run ───┘
//! ```
//!
//! A run is a sequence of parts that ends with the newest arrival. It begins when its first part was posted, or when the
//! part before it arrived, if that was later. A run's bytes per time are at most the rail's speed, since the rail may have
//! been idle or shared meanwhile. So the fastest run is the best measure.
//!
//! The clocks of the two ends differ. Our clock when a report is read, minus the peer's clock when it was made, is the
//! difference of the clocks plus the time of the report; so the least of these values is the best estimate.

use std::collections::VecDeque;
use std::time::Duration;

use super::frame::{Arrived, Landed};
use super::ids::Moment;
use crate::bits::low32;

/// Entries of parts that were posted and not reported, per rail. While all are in use, further parts join the newest one.
const POSTS_MAX: usize = 128;
/// How long the fastest report is used (at most twice this): clocks drift.
const CLOCK_WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct DeliveryRates {
    rails: Box<[Rail]>,
    clock: ClockDifference,
}

#[derive(Debug)]
struct Rail {
    posts: VecDeque<Post>,
    /// How many parts `posts` has.
    unreported: u32,
    /// The number of the newest part.
    newest: u32,
    /// When the newest reported part arrived.
    arrived_at: Moment,
}

/// One part, or several that were posted one after the other.
#[derive(Clone, Copy, Debug)]
struct Post {
    /// When the first of them was posted.
    at: Moment,
    len: u64,
    parts: u32,
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
    /// When the newest arrived part arrived, by our clock.
    pub at: Moment,
    /// The bytes that were posted after that part.
    pub behind: u64,
    /// The fastest run that ends with that part.
    pub run: Option<Run>,
}

impl DeliveryRates {
    pub fn new(rails: u8) -> Self {
        let rail = || Rail {
            posts: VecDeque::with_capacity(POSTS_MAX),
            unreported: 0,
            newest: 0,
            arrived_at: Moment::default(),
        };
        let rails = std::iter::repeat_with(rail).take(rails.into()).collect();
        Self { rails, clock: ClockDifference::default() }
    }

    /// Part `number` of a rail was posted.
    pub fn posted(&mut self, rail: u8, number: u32, len: u64, now: Moment) {
        let Some(rail) = self.rails.get_mut(usize::from(rail)) else { return };
        let full = rail.posts.len() == POSTS_MAX;
        match rail.posts.back_mut().filter(|_| full) {
            Some(last) => {
                last.len = last.len.saturating_add(len);
                last.parts = last.parts.saturating_add(1);
            }
            None => rail.posts.push_back(Post { at: now, len, parts: 1 }),
        }
        rail.unreported = rail.unreported.saturating_add(1);
        rail.newest = number;
    }

    /// Parts of a rail may be lost: parts posted so far are not measured.
    pub fn forget(&mut self, rail: u8) {
        if let Some(rail) = self.rails.get_mut(usize::from(rail)) {
            rail.posts.clear();
            rail.unreported = 0;
        }
    }

    /// Reads a report. Ignores rails that we do not have, and parts that were not posted or were reported before.
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
                // A longer time is reported as the longest.
                let run = Some(run)
                    .filter(|run| micros_ago < Landed::MICROS_MAX && run.taken > Duration::ZERO);
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
        let mut arrived = self.unreported.checked_sub(left).filter(|arrived| *arrived > 0)?;
        self.unreported = left;
        let before = std::mem::replace(&mut self.arrived_at, at);
        let mut bytes = 0;
        let mut run = |post: &Post| {
            bytes += post.len;
            Run { bytes, taken: at.since(post.at.max(before)) }
        };
        let is_whole = |post: &&Post| {
            let whole = post.parts <= arrived;
            arrived -= if whole { post.parts } else { 0 };
            whole
        };
        let whole = self.posts.iter().take_while(is_whole).count();
        // Only some of the parts in one entry may have arrived.
        let rest = self.posts.get_mut(whole).map(|post| post.take(arrived));
        let rest = rest.filter(|post| post.parts > 0).map(|post| run(&post));
        let runs = self.posts.drain(..whole).rev().map(|post| run(&post));
        rest.into_iter().chain(runs).reduce(Run::faster)
    }
}

impl Post {
    /// Removes the first `parts` parts, with their share of the bytes.
    fn take(&mut self, parts: u32) -> Self {
        let len = self.len.saturating_mul(parts.into()) / u64::from(self.parts);
        self.len -= len;
        self.parts -= parts;
        Self { at: self.at, len, parts }
    }
}

impl Run {
    fn faster(self, other: Self) -> Self {
        let crossed = |one: Self, time: Duration| u128::from(one.bytes) * time.as_nanos();
        if crossed(other, self.taken) > crossed(self, other.taken) { other } else { self }
    }
}

/// Our clock when a report was read, minus the peer's clock when it was made: the least of the last ten to twenty seconds, in wrapping
/// microseconds.
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
            // After a pause, in which the clocks have drifted, no earlier report counts.
            let recent = self.current.take().filter(|_| now < self.ends.plus(CLOCK_WINDOW));
            (self.least, self.ends) = (recent, now.plus(CLOCK_WINDOW));
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

    fn run(bytes: u64, micros: u64) -> Option<Run> {
        Some(Run { bytes, taken: Duration::from_micros(micros) })
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
    fn time_in_which_the_rail_was_idle_is_not_counted() {
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
    fn the_fastest_report_of_the_last_seconds_shows_the_clocks_difference_whichever_came_first() {
        let mut rates = DeliveryRates::new(1);
        (1..=4).for_each(|number| rates.posted(0, number, KIB, at(0)));
        // By number of the part: when it arrived and was reported, and when the report was read.
        let reports = [(1, 1000, 1300), (2, 2000, 2100), (3, 3000, 3200)];
        let known = [1300, 2100, 3100];
        for ((number, clock, now), known) in reports.into_iter().zip(known) {
            let found = read(&mut rates, &report(clock, &[(0, number, clock)]), now);
            assert_eq!(found[0].at, at(known), "part {number}");
        }
        // The difference is 100 us, from the second report, until ten to twenty seconds later.
        let (clock, now) = (30_000_000, 30_000_400);
        let found = read(&mut rates, &report(clock, &[(0, 4, clock)]), now);
        assert_eq!(found[0].at, at(now), "the old reports do not count any more");
    }

    #[test]
    fn parts_posted_before_a_loss_are_not_measured() {
        let mut rates = DeliveryRates::new(2);
        for rail in 0..2 {
            (1..=2).for_each(|number| rates.posted(rail, number, 256 * KIB, at(0)));
        }
        rates.forget(0);
        rates.posted(0, 3, 64 * KIB, at(5000));
        let both = report(8000, &[(0, 3, 8000), (1, 2, 8000)]);
        let found = read(&mut rates, &both, 8000);
        let runs: Vec<_> = found.iter().map(|found| found.run).collect();
        assert_eq!(runs, [run(64 * KIB, 3000), run(512 * KIB, 8000)]);
    }

    #[test]
    fn reports_that_cannot_be_true_are_ignored() {
        let mut rates = DeliveryRates::new(2);
        rates.posted(0, 9, 256 * KIB, at(0));
        for (rail, count) in [(0, 8), (0, 10), (0, u32::MAX), (1, 1), (15, 9)] {
            assert_eq!(read(&mut rates, &report(5000, &[(rail, count, 5000)]), 5000), []);
        }
        assert_eq!(read(&mut rates, &report(5000, &[(0, 9, 5000)]), 5000).len(), 1);
        assert_eq!(read(&mut rates, &report(9000, &[(0, 9, 9000)]), 9000), [], "twice");
    }

    #[test]
    fn parts_beyond_those_that_are_remembered_one_by_one_are_measured_together() {
        let mut rates = DeliveryRates::new(1);
        let posts = 3 * low32(POSTS_MAX as u64);
        (1..=posts).for_each(|number| rates.posted(0, number, KIB, at(0)));
        assert_eq!(rates.rails[0].posts.len(), POSTS_MAX);
        let mut before = (0, 0);
        for (count, when) in [(10, 1000), (300, 30_000), (310, 31_000), (posts, 40_000)] {
            let found = read(&mut rates, &report(when, &[(0, count, when)]), when);
            let bytes = u64::from(count - before.0) * KIB;
            assert_eq!(found[0].run, run(bytes, when - before.1), "up to part {count}");
            assert_eq!(found[0].behind, u64::from(posts - count) * KIB);
            before = (count, when);
        }
    }

    #[test]
    fn after_a_pause_the_clocks_are_compared_anew() {
        let mut rates = DeliveryRates::new(1);
        rates.posted(0, 1, KIB, at(0));
        read(&mut rates, &report(1000, &[(0, 1, 1000)]), 1000);
        // Ten minutes, in which our clock gains 12 ms.
        let (pause, gain) = (600_000_000, 12_000);
        rates.posted(0, 2, 256 * KIB, at(pause + gain));
        let theirs = pause + 6000;
        let found = read(&mut rates, &report(theirs, &[(0, 2, theirs)]), theirs + gain);
        assert_eq!(found[0].run, run(256 * KIB, 6000));
    }

    #[test]
    fn a_part_that_arrived_longer_ago_than_a_report_can_say_shows_no_speed() {
        let mut rates = DeliveryRates::new(1);
        rates.posted(0, 1, 256 * KIB, at(0));
        rates.posted(0, 2, 256 * KIB, at(300_000_000));
        let landed = Landed { rail: 0, count: 1, micros_ago: Landed::MICROS_MAX };
        let late = Arrived::new(at(300_000_000), [landed].into_iter()).unwrap();
        let found = read(&mut rates, &late, 300_000_000);
        assert_eq!((found[0].run, found[0].behind), (None, 256 * KIB));
    }

    #[test]
    fn an_arrival_that_the_clocks_put_before_its_post_shows_no_speed() {
        let mut rates = DeliveryRates::new(1);
        rates.posted(0, 1, 256 * KIB, at(5000));
        let found = read(&mut rates, &report(5000, &[(0, 1, 4000)]), 5000);
        assert_eq!(found[0].run, None);
    }

    /// Otherwise the next run would seem shorter than it was, and the rail faster.
    #[test]
    fn a_report_that_is_repeated_later_does_not_move_the_arrival() {
        let mut rates = DeliveryRates::new(1);
        (1..=2).for_each(|number| rates.posted(0, number, 256 * KIB, at(0)));
        read(&mut rates, &report(1000, &[(0, 1, 1000)]), 1000);
        assert_eq!(read(&mut rates, &report(7000, &[(0, 1, 7000)]), 7000), []);
        let found = read(&mut rates, &report(8000, &[(0, 2, 8000)]), 8000);
        assert_eq!(found[0].run, run(256 * KIB, 7000));
    }

    #[test]
    fn a_part_posted_since_the_newest_arrival_does_not_hide_its_run() {
        let mut rates = DeliveryRates::new(1);
        rates.posted(0, 1, 256 * KIB, at(0));
        rates.posted(0, 2, 256 * KIB, at(5000));
        let found = read(&mut rates, &report(6000, &[(0, 1, 3000)]), 6000);
        assert_eq!((found[0].run, found[0].behind), (run(256 * KIB, 3000), 256 * KIB));
    }

    #[test]
    fn the_fastest_report_counts_for_ten_seconds_more_when_its_window_ends() {
        let mut rates = DeliveryRates::new(1);
        (1..=3).for_each(|number| rates.posted(0, number, KIB, at(0)));
        read(&mut rates, &report(1000, &[(0, 1, 1000)]), 1100);
        for (number, seconds, delay) in [(2, 11, 500), (3, 22, 500)] {
            let clock = seconds * 1_000_000;
            let found = read(&mut rates, &report(clock, &[(0, number, clock)]), clock + delay);
            let known = if seconds < 20 { 100 } else { 500 };
            assert_eq!(found[0].at, at(clock + known), "after {seconds} s");
        }
    }
}
