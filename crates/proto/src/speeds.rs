//! Measured speeds of a channel's data rails, relative to each other: from the parts that completed while more were in
//! flight, or, where completions prove no arrival, from what the peer has received (`arrivals`).
//!
//! An idle rail shows nothing about its speed, so only time counts in which the rail had parts in flight. A rail that
//! gets too little to be measured is gradually assumed to be as fast as the others, until it gets parts and is
//! measured.

mod arrivals;

use std::time::Duration;

use super::counts::Counts;
use super::ids::Moment;
use super::split::Loads;
use arrivals::Arrivals;

/// The speeds of all rails. Empty if there is only one rail.
#[derive(Debug)]
pub struct Speeds {
    /// Measured by completions; empty if they are measured by arrivals.
    rails: Box<[Measure]>,
    arrivals: Option<Arrivals>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    /// Bytes per millisecond, smoothed; 0 if unknown.
    speed: u64,
    /// The start of the sample: the completion of a part after which more were in flight.
    since: Option<Moment>,
    /// Bytes completed since.
    bytes: u64,
    /// It was measured since the last check.
    fresh: bool,
}

impl Speeds {
    /// Of rails whose completions tell when parts have arrived.
    pub fn by_completions(rails: u8) -> Self {
        let count = if rails > 1 { usize::from(rails) } else { 0 };
        Self { rails: vec![Measure::default(); count].into(), arrivals: None }
    }

    /// Of rails whose completions do not, and whose parts the peer counts.
    pub fn by_arrivals(rails: u8) -> Self {
        let arrivals = (rails > 1).then(|| Arrivals::new(rails.into()));
        Self { rails: Box::default(), arrivals }
    }

    /// Whether the peer is to be queried now, for [`answered`](Self::answered). `posted`: the parts posted so far.
    #[inline]
    pub fn query_due(&mut self, posted: &Counts, now: Moment) -> bool {
        match &mut self.arrivals {
            Some(arrivals) => arrivals.query_due(posted, now),
            None => false,
        }
    }

    /// The peer's answer: the parts that have arrived there.
    pub fn answered(&mut self, seen: &Counts, loads: &mut Loads) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.answered(seen, loads);
        }
    }

    /// A part has completed; `loads` does not count it any more.
    #[inline]
    pub fn ended(&mut self, rail: u8, len: u64, loads: &mut Loads, now: Moment) {
        if !self.rails.is_empty() {
            self.measure(rail, len, loads, now);
        }
    }

    fn measure(&mut self, rail: u8, len: u64, loads: &mut Loads, now: Moment) {
        let more = loads.queued(rail) > 0;
        let Some(measure) = self.rails.get_mut(usize::from(rail)) else { return };
        let Some(since) = measure.since else {
            measure.since = more.then_some(now);
            return;
        };
        measure.bytes += len;
        let taken = now.since(since);
        if taken >= SPEED_SAMPLE {
            measure.sample(taken);
            measure.since = Some(now);
            self.compare(loads);
        }
        if !more {
            let measure = &mut self.rails[usize::from(rail)];
            (measure.since, measure.bytes) = (None, 0);
        }
    }

    /// Periodic check: raises the assumed speed of rails that were not measured since the last check.
    pub fn check(&mut self, loads: &mut Loads) {
        if self.rails.is_empty() {
            return;
        }
        let most = self.most();
        for measure in &mut self.rails {
            if !measure.fresh && measure.speed > 0 {
                measure.speed += (most - measure.speed).div_ceil(4);
            }
            measure.fresh = false;
        }
        self.compare(loads);
    }

    /// The rail has a new libfabric endpoint: its speed is unknown again.
    pub fn forget(&mut self, rail: u8, loads: &mut Loads) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.forget(rail, loads);
        }
        if let Some(measure) = self.rails.get_mut(usize::from(rail)) {
            *measure = Measure::default();
            self.compare(loads);
        }
    }

    fn most(&self) -> u64 {
        self.rails.iter().map(|measure| measure.speed).max().unwrap_or(0)
    }

    /// Marks rails in `loads` that are much slower than the fastest one. Small differences are noise.
    fn compare(&self, loads: &mut Loads) {
        let most = self.most().max(1);
        for (rail, measure) in (0..).zip(&self.rails) {
            loads.set_speed(rail, relative(measure.speed, most));
        }
    }
}

/// A rail's speed relative to the fastest one, as [`Loads`] has it. One that is unknown, or a little slower, is taken for as
/// fast.
fn relative(speed: u64, most: u64) -> u8 {
    let share = speed * u64::from(Loads::FULL_SPEED) / most;
    let equal = speed == 0 || share * 4 >= u64::from(Loads::FULL_SPEED) * 3;
    if equal { Loads::FULL_SPEED } else { crate::bits::low8(share).max(1) }
}

impl Measure {
    fn sample(&mut self, taken: Duration) {
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX).max(1);
        let speed = (self.bytes.saturating_mul(1000) / micros).max(1);
        let (old, fresh) = (self.speed, true);
        // A large change is followed quickly; small variations are smoothed.
        let changed = speed > 2 * old || 2 * speed < old;
        let smoothed = if changed { u64::midpoint(old, speed) } else { (7 * old + speed) / 8 };
        let speed = if old == 0 { speed } else { smoothed.max(1) };
        *self = Self { speed, since: self.since, bytes: 0, fresh };
    }
}

/// The shortest sample.
const SPEED_SAMPLE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Rails in virtual time, by microseconds.
    trait Carry {
        fn now(&self) -> u64;
        fn loads(&self) -> Loads;
        fn post(&mut self, message: usize, parts: &[(u8, u64)]);
        /// Carries one part, and returns its message.
        fn step(&mut self) -> usize;

        /// Sends `messages` messages of `bytes` bytes, `window` at a time. Returns bytes per microsecond.
        fn run(&mut self, messages: usize, bytes: u64, window: usize) -> f64 {
            let mut left = vec![0; messages];
            let (mut first, mut next, from) = (0, 0, self.now());
            while first < messages {
                while next < messages && next < first + window {
                    let loads = self.loads();
                    let parts = crate::send::share_out(loads.rails().into(), bytes, loads);
                    left[next] = parts.len();
                    self.post(next, &parts);
                    next += 1;
                }
                left[self.step()] -= 1;
                while first < next && left[first] == 0 {
                    first += 1;
                }
            }
            (messages as u64 * bytes) as f64 / (self.now() - from) as f64
        }
    }

    /// Rails that carry one part after the other, each with its own speed in bytes per microsecond.
    struct Network {
        speeds: Speeds,
        loads: Loads,
        now: u64,
        rails: Vec<Line>,
    }

    struct Line {
        speed: u64,
        /// Lengths of the queued parts; the first is in flight since `since`.
        parts: std::collections::VecDeque<(usize, u64)>,
        since: u64,
        carried: u64,
    }

    impl Network {
        fn new(speeds: &[u64]) -> Self {
            let line = |speed: &u64| Line {
                speed: *speed,
                parts: std::collections::VecDeque::new(),
                since: 0,
                carried: 0,
            };
            let count = crate::bits::low8(speeds.len() as u64);
            let rails = speeds.iter().map(line).collect();
            Self {
                speeds: Speeds::by_completions(count),
                loads: Loads::equal(count),
                now: 0,
                rails,
            }
        }
    }

    impl Carry for Network {
        fn now(&self) -> u64 {
            self.now
        }

        fn loads(&self) -> Loads {
            self.loads
        }

        fn post(&mut self, message: usize, parts: &[(u8, u64)]) {
            for (rail, len) in parts {
                self.loads.posted(*rail, *len);
                let line = &mut self.rails[usize::from(*rail)];
                if line.parts.is_empty() {
                    line.since = self.now;
                }
                line.parts.push_back((message, *len));
            }
        }

        /// Completes the next part.
        fn step(&mut self) -> usize {
            let ends = |line: &Line| Some(line.since + line.parts.front()?.1 / line.speed);
            let next =
                (0..self.rails.len()).filter_map(|rail| Some((ends(&self.rails[rail])?, rail)));
            let (now, rail) = next.min().expect("something is under way");
            let checks = now / 100_000 - self.now / 100_000;
            self.now = now;
            let line = &mut self.rails[rail];
            let (message, len) = line.parts.pop_front().unwrap();
            (line.since, line.carried) = (now, line.carried + len);
            let number = crate::bits::low8(rail as u64);
            assert!(self.loads.ended(number, len));
            let moment = Moment::from_nanos(1000 * now);
            self.speeds.ended(number, len, &mut self.loads, moment);
            (0..checks).for_each(|_| self.speeds.check(&mut self.loads));
            message
        }
    }

    /// Rails over sockets: a part completes when it is posted, and arrives when its link has carried it.
    struct Sockets {
        speeds: Speeds,
        loads: Loads,
        now: u64,
        /// Bytes per microsecond of each link, and when it has carried all that was posted.
        links: Vec<(u64, u64)>,
        /// The arrivals to come: moment, rail, message.
        arrivals: std::collections::BTreeSet<(u64, usize, usize, usize)>,
        posted: Counts,
        seen: Counts,
        parts: usize,
        answer_at: Option<u64>,
    }

    impl Sockets {
        fn new(speeds: &[u64]) -> Self {
            let count = crate::bits::low8(speeds.len() as u64);
            Self {
                speeds: Speeds::by_arrivals(count),
                loads: Loads::equal(count),
                now: 0,
                links: speeds.iter().map(|speed| (*speed, 0)).collect(),
                arrivals: std::collections::BTreeSet::new(),
                posted: Counts::default(),
                seen: Counts::default(),
                parts: 0,
                answer_at: None,
            }
        }
    }

    impl Carry for Sockets {
        fn now(&self) -> u64 {
            self.now
        }

        fn loads(&self) -> Loads {
            self.loads
        }

        fn post(&mut self, message: usize, parts: &[(u8, u64)]) {
            for (rail, len) in parts {
                self.loads.posted(*rail, *len);
                assert!(self.loads.ended(*rail, *len));
                self.posted.add(*rail);
                let (speed, idle_at) = &mut self.links[usize::from(*rail)];
                *idle_at = self.now.max(*idle_at) + len / *speed;
                self.parts += 1;
                self.arrivals.insert((*idle_at, usize::from(*rail), self.parts, message));
            }
            self.loads.rotate();
        }

        /// The next arrival, after the queries and answers that come before it.
        fn step(&mut self) -> usize {
            let (at, rail, _, message) = self.arrivals.pop_first().expect("something is under way");
            while self.now < at {
                let now = Moment::from_nanos(1000 * self.now);
                if self.answer_at.is_some_and(|answer_at| answer_at <= self.now) {
                    self.answer_at = None;
                    self.speeds.answered(&self.seen, &mut self.loads);
                }
                if self.speeds.query_due(&self.posted, now) {
                    self.answer_at = Some(self.now + 200);
                }
                self.now = at.min(self.now + 100);
            }
            self.seen.add(crate::bits::low8(rail as u64));
            message
        }
    }

    #[test]
    fn over_sockets_rails_of_which_one_has_a_quarter_of_the_speed_carry_nearly_their_sum() {
        for (bytes, window) in [(4 << 20, 1), (4 << 20, 2), (4 << 20, 8), (8 << 20, 8)] {
            for speed in [40, 400] {
                let mut network = Sockets::new(&[4 * speed, 4 * speed, 4 * speed, speed]);
                network.run(2 * usize::try_from(speed).unwrap(), bytes, window);
                let carried = network.run(4 * usize::try_from(speed).unwrap(), bytes, window);
                let carried = carried / (13 * speed) as f64;
                assert!(carried >= 0.95, "{bytes} bytes, {window} at a time, {speed}: {carried}");
            }
        }
    }

    #[test]
    fn over_sockets_equal_rails_carry_nearly_equal_shares() {
        for window in [1, 8] {
            let mut network = Sockets::new(&[160, 168, 152, 164]);
            let carried = network.run(2000, 4 << 20, window);
            assert!(carried >= 4.0 * 152.0 * 0.97, "{window} at a time: {carried}");
        }
    }

    #[test]
    fn over_sockets_queries_end_when_nothing_arrives() {
        let (mut speeds, mut loads) = (Speeds::by_arrivals(2), Loads::equal(2));
        let mut posted = Counts::default();
        let mut queries = |speeds: &mut Speeds, posted: &Counts, from: u64| {
            let due = |ms: &u64| {
                let due = speeds.query_due(posted, Moment::from_nanos((from + ms) * 1_000_000));
                speeds.answered(&Counts::default(), &mut loads);
                due
            };
            (0..10_000).filter(due).count()
        };
        assert_eq!(queries(&mut speeds, &posted, 0), 0, "nothing was posted");
        posted.add(1);
        let of_one = queries(&mut speeds, &posted, 10_000);
        assert!((40..60).contains(&of_one), "{of_one} queries");
        posted.add(1);
        assert_eq!(queries(&mut speeds, &posted, 20_000), of_one, "another part was posted");
    }

    #[test]
    fn over_sockets_a_rail_that_becomes_slow_is_detected_and_one_that_recovers_too() {
        let mut network = Sockets::new(&[400, 400, 400, 400]);
        network.run(500, 4 << 20, 4);
        assert!(!network.loads.is_uneven());
        network.links[2].0 = 100;
        let from = network.now;
        while !network.loads.is_uneven() && network.now < from + 100_000 {
            network.run(1, 4 << 20, 1);
        }
        assert!(network.loads.is_uneven(), "not within {} us", network.now - from);
        network.run(200, 4 << 20, 4);
        network.links[2].0 = 400;
        let from = network.now;
        while network.loads.is_uneven() && network.now < from + 200_000 {
            network.run(4, 4 << 20, 4);
        }
        assert!(!network.loads.is_uneven(), "not within {} us", network.now - from);
    }

    #[test]
    fn rails_of_which_one_has_a_quarter_of_the_speed_carry_nearly_their_sum() {
        for (window, least) in [(1, 0.80), (2, 0.93), (8, 0.93)] {
            let mut network = Network::new(&[40, 40, 40, 10]);
            network.run(200, 4 << 20, window);
            let carried = network.run(400, 4 << 20, window) / 130.0;
            assert!(carried >= least, "{window} at a time: {carried}");
        }
    }

    #[test]
    fn equal_rails_carry_equal_shares() {
        for window in [1, 8] {
            let mut network = Network::new(&[40, 42, 38, 41]);
            let carried = network.run(400, 4 << 20, window);
            assert!(carried >= 4.0 * 38.0 * 0.97, "{window} at a time: {carried}");
            let carried = network.rails.iter().map(|line| line.carried);
            assert!(carried.clone().min() == carried.max(), "small differences are noise");
        }
    }

    #[test]
    fn a_rail_that_becomes_slow_is_detected_and_one_that_recovers_too() {
        let mut network = Network::new(&[40, 40, 40, 40]);
        network.run(100, 4 << 20, 8);
        assert!(!network.loads.is_uneven());
        network.rails[2].speed = 10;
        let from = network.now;
        while !network.loads.is_uneven() && network.now < from + 300_000 {
            network.run(1, 4 << 20, 1);
        }
        let found = network.now - from;
        assert!(network.loads.is_uneven(), "not within {found} us");
        network.run(100, 4 << 20, 8);
        network.rails[2].speed = 40;
        let from = network.now;
        while network.loads.is_uneven() && network.now < from + 1_000_000 {
            network.run(8, 4 << 20, 8);
        }
        let found = network.now - from;
        assert!(!network.loads.is_uneven(), "not within {found} us");
    }

    /// A rail carries parts of a MiB, one after the other; each takes `each` milliseconds. Returns when the last one
    /// ends.
    fn carry(
        (speeds, loads): (&mut Speeds, &mut Loads),
        rail: u8,
        from: u64,
        (parts, each): (u64, u64),
    ) -> u64 {
        (0..parts).for_each(|_| loads.posted(rail, 1 << 20));
        for part in 1..=parts {
            assert!(loads.ended(rail, 1 << 20));
            let now = Moment::from_nanos((from + part * each) * 1_000_000);
            speeds.ended(rail, 1 << 20, loads, now);
        }
        from + parts * each
    }

    #[test]
    fn a_slow_rail_without_parts_is_gradually_assumed_to_be_faster() {
        let (mut speeds, mut loads) = (Speeds::by_completions(2), Loads::equal(2));
        carry((&mut speeds, &mut loads), 0, 0, (8, 2));
        carry((&mut speeds, &mut loads), 1, 0, (8, 8));
        assert!(loads.is_uneven());
        let checks = (1..10).find(|_| {
            speeds.check(&mut loads);
            !loads.is_uneven()
        });
        assert_eq!(checks, Some(5));
    }

    #[test]
    fn an_idle_rail_is_not_taken_for_slow() {
        let (mut speeds, mut loads) = (Speeds::by_completions(2), Loads::equal(2));
        carry((&mut speeds, &mut loads), 0, 0, (8, 2));
        let mut now = 0;
        for _ in 0..8 {
            now = 100 + carry((&mut speeds, &mut loads), 1, now, (4, 2));
            assert!(!loads.is_uneven());
        }
    }
}
