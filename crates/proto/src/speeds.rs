//! Measured speeds of a channel's data rails, relative to each other: from the parts that completed while more were in
//! flight.
//!
//! An idle rail shows nothing about its speed, so only time counts in which the rail had parts in flight. A rail that
//! gets too little to be measured is gradually assumed to be as fast as the others, until it gets parts and is
//! measured.

use std::time::Duration;

use super::ids::Moment;
use super::split::Loads;

/// The speeds of all rails. Empty if there is only one rail.
#[derive(Debug)]
pub struct Speeds {
    rails: Box<[Measure]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    /// Bytes per millisecond, smoothed; 0 if unknown.
    speed: u64,
    /// The start of the sample: the completion of a part after which more were in flight; and bytes completed since.
    since: Option<Moment>,
    bytes: u64,
    /// It was measured since the last check.
    fresh: bool,
}

impl Speeds {
    pub fn new(rails: u8) -> Self {
        let count = if rails > 1 { usize::from(rails) } else { 0 };
        Self { rails: vec![Measure::default(); count].into() }
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
            let share = measure.speed * u64::from(Loads::FULL_SPEED) / most;
            let equal = measure.speed == 0 || share * 4 >= u64::from(Loads::FULL_SPEED) * 3;
            let share = if equal { Loads::FULL_SPEED } else { crate::bits::low8(share).max(1) };
            loads.set_speed(rail, share);
        }
    }
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
            Self { speeds: Speeds::new(count), loads: Loads::equal(count), now: 0, rails }
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

        /// Completes the next part. Returns its message.
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

        /// Sends `messages` messages of `bytes` bytes, `window` at a time. Returns bytes per microsecond.
        fn run(&mut self, messages: usize, bytes: u64, window: usize) -> f64 {
            let mut left = vec![0; messages];
            let (mut first, mut next, from) = (0, 0, self.now);
            while first < messages {
                while next < messages && next < first + window {
                    let parts = crate::send::share_out(self.rails.len(), bytes, self.loads);
                    left[next] = parts.len();
                    self.post(next, &parts);
                    next += 1;
                }
                left[self.step()] -= 1;
                while first < next && left[first] == 0 {
                    first += 1;
                }
            }
            (messages as u64 * bytes) as f64 / (self.now - from) as f64
        }
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
        let (mut speeds, mut loads) = (Speeds::new(2), Loads::equal(2));
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
        let (mut speeds, mut loads) = (Speeds::new(2), Loads::equal(2));
        carry((&mut speeds, &mut loads), 0, 0, (8, 2));
        let mut now = 0;
        for _ in 0..8 {
            now = 100 + carry((&mut speeds, &mut loads), 1, now, (4, 2));
            assert!(!loads.is_uneven());
        }
    }
}
