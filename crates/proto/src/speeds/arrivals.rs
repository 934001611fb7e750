//! The speeds of data rails by what has arrived at the peer, for providers whose completions prove no arrival: over
//! sockets a write completes when the kernel has buffered it, megabytes before the link has carried it.
//!
//! While parts are sent, this side queries the peer periodically. Each answer shows how many parts have arrived by a
//! rail since the last one, and whether it is *busy*: parts that were posted before the query have not arrived. The
//! speed is the rate of arrival divided by the fraction of answers in which the rail was busy (the utilisation law):
//! a rail that carries as much as others in a quarter of the time is four times as fast.

use std::time::Duration;

use super::Loads;
use crate::counts::Counts;
use crate::ids::Moment;

#[derive(Debug)]
pub(super) struct Arrivals {
    rails: Box<[Rail]>,
    query_at: Moment,
    /// Parts that were posted before the last query.
    posted: Counts,
    /// That query has no answer yet.
    queried: bool,
    /// Parts that had arrived by the last answer.
    seen: Counts,
    /// Answers to queries so far.
    answers: u32,
    /// Queries since a part was last posted or arrived.
    in_vain: u32,
}

/// Averages of the last answers, about [`AVERAGED`] of them.
#[derive(Clone, Copy, Debug, Default)]
struct Rail {
    /// Parts that arrived between two answers, in units of 1 / [`UNIT`].
    rate: u64,
    /// The fraction of answers in which it was busy, in the same units.
    busy: u64,
    /// The parts that would arrive if it were always busy. 0: unknown.
    speed: u64,
}

impl Rail {
    fn answered(&mut self, arrived: u32, busy: bool) {
        let towards = |average: u64, now: u64| average - average / AVERAGED + now / AVERAGED;
        self.rate = towards(self.rate, u64::from(arrived).min(PARTS_MAX) * UNIT);
        self.busy = towards(self.busy, if busy { UNIT } else { 0 });
        // Divided by a small fraction the rate is noise: such a rail is not measured.
        if self.busy >= UNIT / AVERAGED {
            self.speed = (self.rate * UNIT / self.busy).max(1);
        }
    }
}

impl Arrivals {
    pub(super) fn new(rails: usize) -> Self {
        Self {
            rails: vec![Rail::default(); rails].into(),
            query_at: Moment::default(),
            posted: Counts::default(),
            queried: false,
            seen: Counts::default(),
            answers: 0,
            in_vain: 0,
        }
    }

    /// Whether the peer is to be queried now: at most every [`QUERY_EVERY`], and only if not all parts are known to have
    /// arrived. Those of a lost rail never do, so the queries end when nothing moves.
    #[inline]
    pub(super) fn query_due(&mut self, posted: &Counts, now: Moment) -> bool {
        if now < self.query_at {
            return false;
        }
        self.query_at = now.plus(QUERY_EVERY);
        if *posted == self.seen || (*posted == self.posted && self.in_vain >= IN_VAIN_MAX) {
            return false;
        }
        self.in_vain = if *posted == self.posted { self.in_vain + 1 } else { 0 };
        (self.posted, self.queried) = (*posted, true);
        true
    }

    /// The peer's answer: the parts that have arrived. Only the first one after a query counts. Others, which are for stall
    /// reports or lost packets, say nothing about how busy rails are.
    pub(super) fn answered(&mut self, seen: &Counts, loads: &mut Loads) {
        if !std::mem::take(&mut self.queried) {
            return;
        }
        let before = std::mem::replace(&mut self.seen, *seen);
        if before != *seen {
            self.in_vain = 0;
        }
        for (number, rail) in (0..).zip(&mut self.rails) {
            let arrived = seen.get(number).wrapping_sub(before.get(number));
            let outstanding = self.posted.get(number).wrapping_sub(seen.get(number));
            rail.answered(arrived, outstanding.cast_signed() > 0);
        }
        self.answers = self.answers.saturating_add(1);
        if self.answers >= ANSWERS_FIRST {
            self.set_speeds(loads);
        }
    }

    /// The rail has a new libfabric endpoint: its speed is unknown again.
    pub(super) fn forget(&mut self, rail: u8, loads: &mut Loads) {
        if let Some(kept) = self.rails.get_mut(usize::from(rail)) {
            *kept = Rail::default();
            loads.set_speed(rail, Loads::FULL_SPEED);
        }
    }

    /// Sets the speeds in `loads`, relative to the fastest rail. A rail that is not measured is gradually assumed to be
    /// as fast as the others, until it gets parts and is measured. Small differences are noise.
    fn set_speeds(&mut self, loads: &mut Loads) {
        let most = self.rails.iter().map(|rail| rail.speed).max().unwrap_or(0).max(1);
        for (number, rail) in (0..).zip(&mut self.rails) {
            if rail.busy < UNIT / AVERAGED && rail.speed > 0 {
                rail.speed += (most - rail.speed).div_ceil(AVERAGED);
            }
            loads.set_speed(number, super::relative(rail.speed, most));
        }
    }
}

/// How often the peer is queried while parts are sent.
const QUERY_EVERY: Duration = Duration::from_millis(5);
/// After so many queries without news, 250 ms, no more are sent. The slowest link carries a part in that time.
const IN_VAIN_MAX: u32 = 50;
/// The weight of a new answer in an average is 1 / `AVERAGED`.
const AVERAGED: u64 = 16;
/// After so many answers speeds are used.
const ANSWERS_FIRST: u32 = 8;
const UNIT: u64 = 1 << 16;
/// More parts than arrive between two answers; a count that jumps is cut to it.
const PARTS_MAX: u64 = 1 << 20;
