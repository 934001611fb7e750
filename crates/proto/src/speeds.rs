//! Measured speeds of a channel's data rails, relative to each other: by completion, from the parts that completed while
//! more were in flight; or, if a completion does not show arrival, by arrival, from the peer's reports of when parts arrived.
//!
//! An idle rail shows nothing about its speed, so only time counts in which the rail had parts in flight. By arrival a rail
//! becomes slow only if messages wait for it: a rail that is idle for much of the time is fast enough. A rail that gets too
//! few parts to be measured is gradually assumed to be as fast as the others, until it gets parts and is measured.

use std::time::Duration;

use super::delivery_rates::{Delivered, DeliveryRates, Run};
use super::frame::Arrived;
use super::ids::Moment;
use super::split::Loads;
use crate::limits::MAX_DATA_RAILS;

/// The speeds of all rails. Empty if there is only one rail.
#[derive(Debug)]
pub struct Speeds {
    rails: Box<[Measure]>,
    /// For measuring by arrival, if completions do not show it.
    delivery: Option<Box<DeliveryRates>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    /// Bytes per millisecond, smoothed; 0 if unknown.
    speed: u64,
    /// The start of the sample. By completion: when a part completed after which more were in flight.
    since: Option<Moment>,
    /// By arrival: the time of the sample's runs.
    busy: Duration,
    /// By arrival: the number of last samples in a row in which the rail was awaited and slower than others.
    low: u8,
    slow: bool,
    /// The bytes of the sample.
    bytes: u64,
    /// The rail was measured since the last check.
    fresh: bool,
}

impl Speeds {
    pub fn new(rails: u8) -> Self {
        let count = if rails > 1 { usize::from(rails) } else { 0 };
        Self { rails: vec![Measure::default(); count].into(), delivery: None }
    }

    /// From now on speeds are measured by when parts arrive.
    pub fn measure_by_arrival(&mut self) {
        if !self.rails.is_empty() {
            let rails = crate::bits::low8(self.rails.len() as u64);
            self.delivery = Some(Box::new(DeliveryRates::new(rails)));
        }
    }

    /// Part `number` of a rail was posted.
    #[inline]
    pub fn posted(&mut self, rail: u8, number: u32, len: u64, now: Moment) {
        if let Some(delivery) = &mut self.delivery {
            delivery.posted(rail, number, len, now);
        }
    }

    /// The peer has reported when parts arrived.
    pub fn reported(&mut self, arrived: &Arrived, loads: &mut Loads, now: Moment) {
        // Rails without a report have delivered bytes too.
        self.drain(loads, now);
        let usual = self.usual(loads);
        let Self { rails, delivery: Some(delivery) } = self else { return };
        delivery.reported(arrived, now, |Delivered { rail, at, behind, run }| {
            let measure = &mut rails[usize::from(rail)];
            if let Some(sample) = run.and_then(|run| measure.ran(run, at)) {
                let low = sample.awaited && is_slower(sample.speed, usual);
                measure.low = if low { measure.low.saturating_add(1) } else { 0 };
            }
            loads.set_behind(rail, behind.saturating_sub(measure.carries_in(now.since(at))));
        });
        loads.drained_at(now);
        self.compare(loads);
    }

    /// Called before a message is distributed: bytes that have probably arrived since the last call are removed from the load.
    #[inline]
    pub fn drain(&self, loads: &mut Loads, now: Moment) {
        if self.delivery.is_some() && loads.is_uneven() {
            let passed = loads.drained_at(now);
            for (rail, measure) in (0..).zip(&self.rails) {
                let behind = loads.behind(rail).saturating_sub(measure.carries_in(passed));
                loads.set_behind(rail, behind);
            }
        }
    }

    /// A part has completed; `loads` does not count it any more.
    #[inline]
    pub fn ended(&mut self, rail: u8, len: u64, loads: &mut Loads, now: Moment) {
        if !self.rails.is_empty() && self.delivery.is_none() {
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
        let usual = self.usual(loads);
        for measure in &mut self.rails {
            if !measure.fresh && measure.speed > 0 {
                measure.speed += usual.saturating_sub(measure.speed).div_ceil(4);
            }
            measure.fresh = false;
        }
        self.compare(loads);
    }

    /// The rail has a new libfabric endpoint: its speed is unknown again.
    pub fn forget(&mut self, rail: u8, loads: &mut Loads) {
        if let Some(measure) = self.rails.get_mut(usize::from(rail)) {
            *measure = Measure::default();
            if let Some(delivery) = &mut self.delivery {
                delivery.forget(rail);
            }
            loads.set_behind(rail, 0);
            self.compare(loads);
        }
    }

    /// The speed that the open rails are compared with. By completion that of the fastest rail. By arrival a rail may be the fastest by
    /// chance, so that of the median rail, or the faster one of two medians.
    fn usual(&self, loads: &Loads) -> u64 {
        let mut speeds = [0; MAX_DATA_RAILS];
        let open = (0..).zip(&self.rails).filter(|(rail, _)| loads.is_open(*rail));
        let known = open.map(|(_, measure)| measure.speed).filter(|speed| *speed > 0);
        let count = known.zip(&mut speeds).map(|(speed, place)| *place = speed).count();
        speeds[..count].sort_unstable();
        let index = if self.delivery.is_some() { count / 2 } else { count.saturating_sub(1) };
        speeds[..count].get(index).copied().unwrap_or(0)
    }

    /// Marks rails in `loads` that are much slower than the usual one. Small differences are noise.
    fn compare(&mut self, loads: &mut Loads) {
        let usual = self.usual(loads);
        let certain = |measure: &Measure| self.delivery.is_none() || measure.low >= LOW_SAMPLES;
        for (rail, measure) in (0..).zip(&mut self.rails) {
            let slow = is_slower(measure.speed, usual);
            measure.slow = slow && (measure.slow || certain(measure));
            let share = measure.speed.saturating_mul(Loads::FULL_SPEED.into()) / usual.max(1);
            let share = crate::bits::low8(share).max(1);
            loads.set_speed(rail, if measure.slow { share } else { Loads::FULL_SPEED });
        }
    }
}

/// Whether a known speed is much less than the usual one.
fn is_slower(speed: u64, usual: u64) -> bool {
    speed > 0 && speed.saturating_mul(4) < usual.saturating_mul(3)
}

/// A sample by arrival.
struct Sample {
    speed: u64,
    /// The rail was busy for most of the sample, so that messages probably waited for it.
    awaited: bool,
}

impl Measure {
    /// By arrival: a run has ended at `at`. Returns the sample, if the run ends one.
    fn ran(&mut self, run: Run, at: Moment) -> Option<Sample> {
        let since = *self.since.get_or_insert_with(|| at.before(run.taken));
        self.bytes = self.bytes.saturating_add(run.bytes);
        self.busy += run.taken;
        if self.busy < BUSY_SAMPLE {
            return None;
        }
        let awaited = 4 * self.busy >= 3 * at.since(since);
        let speed = self.sample(self.busy);
        self.since = Some(at);
        Some(Sample { speed, awaited })
    }

    /// Ends a sample. Returns its speed.
    fn sample(&mut self, taken: Duration) -> u64 {
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX).max(1);
        let speed = (self.bytes.saturating_mul(1000) / micros).max(1);
        let old = self.speed;
        // A large change is followed quickly; small variations are smoothed.
        let changed = speed > 2 * old || 2 * speed < old;
        let smoothed = if changed { u64::midpoint(old, speed) } else { (7 * old + speed) / 8 };
        self.speed = if old == 0 { speed } else { smoothed.max(1) };
        (self.bytes, self.busy, self.fresh) = (0, Duration::ZERO, true);
        speed
    }

    /// The bytes that the rail carries in this time; unlimited if its speed is unknown.
    fn carries_in(&self, time: Duration) -> u64 {
        if self.speed == 0 {
            return u64::MAX;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanos.saturating_mul(self.speed) / 1_000_000
    }
}

/// The shortest sample.
const SPEED_SAMPLE: Duration = Duration::from_millis(1);
/// The shortest sample by arrival, in busy time: a run is less exact than a completion.
const BUSY_SAMPLE: Duration = Duration::from_millis(20);
/// This many samples by arrival in a row make a rail slow.
const LOW_SAMPLES: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival_times::ArrivalTimes;

    /// Rails that carry one part after the other, each with its own speed in bytes per microsecond.
    struct Network {
        speeds: Speeds,
        loads: Loads,
        now: u64,
        rails: Vec<Line>,
        /// Over sockets: writes complete at once, and the peer reports when parts have arrived.
        peer: Option<ArrivalTimes>,
    }

    struct Line {
        speed: u64,
        /// Lengths of the queued parts; the first is in flight since `since`.
        parts: std::collections::VecDeque<(usize, u64)>,
        since: u64,
        carried: u64,
        posted: u32,
        arrived: u32,
    }

    /// How far the peer's clock is ahead of ours, and how long a report takes, in microseconds.
    const AHEAD: u64 = 7_000_000_000;
    const DELAY: u64 = 60;

    impl Network {
        fn new(speeds: &[u64]) -> Self {
            let line = |speed: &u64| Line {
                speed: *speed,
                parts: std::collections::VecDeque::new(),
                since: 0,
                carried: 0,
                posted: 0,
                arrived: 0,
            };
            let count = crate::bits::low8(speeds.len() as u64);
            let rails = speeds.iter().map(line).collect();
            let (speeds, loads) = (Speeds::new(count), Loads::equal(count));
            Self { speeds, loads, now: 0, rails, peer: None }
        }

        fn of_sockets(speeds: &[u64]) -> Self {
            let mut network = Self::new(speeds);
            network.speeds.measure_by_arrival();
            network.loads.measure_by_arrival();
            network.peer = Some(ArrivalTimes::new(network.loads.rails()));
            network
        }

        fn moment(&self) -> Moment {
            Moment::from_nanos(1000 * self.now)
        }

        fn post(&mut self, message: usize, parts: &[(u8, u64)]) {
            let now = self.moment();
            for (rail, len) in parts {
                self.loads.posted(*rail, *len);
                let line = &mut self.rails[usize::from(*rail)];
                if line.parts.is_empty() {
                    line.since = self.now;
                }
                line.parts.push_back((message, *len));
                line.posted += 1;
                self.speeds.posted(*rail, line.posted, *len, now);
                if self.peer.is_some() {
                    assert!(self.loads.ended(*rail, *len));
                    self.speeds.ended(*rail, *len, &mut self.loads, now);
                }
            }
        }

        /// Carries the next part to its end. Returns its message.
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
            line.arrived += 1;
            let number = crate::bits::low8(rail as u64);
            let moment = Moment::from_nanos(1000 * now);
            match &mut self.peer {
                None => {
                    assert!(self.loads.ended(number, len));
                    self.speeds.ended(number, len, &mut self.loads, moment);
                }
                Some(times) => {
                    let theirs = Moment::from_nanos(1000 * (now + AHEAD));
                    times.arrived(number, line.arrived, theirs);
                }
            }
            (0..checks).for_each(|_| self.speeds.check(&mut self.loads));
            message
        }

        /// The peer has all of a message, and sends DONE. The packet takes the report, if one is due.
        fn done(&mut self) {
            let theirs = Moment::from_nanos(1000 * (self.now + AHEAD));
            let report = self.peer.as_mut().and_then(|peer| peer.report(theirs));
            if let Some(report) = report {
                let read = Moment::from_nanos(1000 * (self.now + DELAY));
                self.speeds.reported(&report, &mut self.loads, read);
            }
        }

        /// Sends `messages` messages of `bytes` bytes, `window` at a time. Returns bytes per microsecond.
        fn run(&mut self, messages: usize, bytes: u64, window: usize) -> f64 {
            let mut left = vec![0; messages];
            let (mut first, mut next, from) = (0, 0, self.now);
            while first < messages {
                while next < messages && next < first + window {
                    let now = self.moment();
                    self.speeds.drain(&mut self.loads, now);
                    let parts = crate::send::share_out(self.rails.len(), bytes, self.loads);
                    left[next] = parts.len();
                    self.post(next, &parts);
                    next += 1;
                }
                let message = self.step();
                left[message] -= 1;
                if left[message] == 0 {
                    self.done();
                }
                while first < next && left[first] == 0 {
                    first += 1;
                }
            }
            (messages as u64 * bytes) as f64 / (self.now - from) as f64
        }
    }

    #[test]
    fn over_sockets_a_slow_rail_takes_its_share_as_well() {
        for (bytes, window, least) in [
            (1 << 20, 1, 0.55),
            (1 << 20, 8, 0.93),
            (4 << 20, 1, 0.80),
            (4 << 20, 2, 0.93),
            (4 << 20, 8, 0.93),
            (8 << 20, 1, 0.80),
            (64 << 10, 64, 0.93),
        ] {
            let mut network = Network::of_sockets(&[40, 40, 40, 10]);
            network.run(200, bytes, window);
            let carried = network.run(400, bytes, window) / 130.0;
            assert!(carried >= least, "{bytes} bytes, {window} at a time: {carried}");
        }
    }

    #[test]
    fn over_sockets_a_rail_that_is_idle_most_of_the_time_is_not_slow() {
        let mut network = Network::of_sockets(&[40, 10]);
        for _ in 0..100 {
            network.run(1, 1 << 20, 1);
            network.now += 300_000;
        }
        assert!(!network.loads.is_uneven());
        network.run(20, 1 << 20, 1);
        assert!(network.loads.is_uneven(), "the rail is not slow even when messages wait for it");
    }

    #[test]
    fn over_sockets_a_slow_rail_is_found_among_fast_ones_too() {
        let mut network = Network::of_sockets(&[1000, 1000, 1000, 250]);
        network.run(5000, 512 << 10, 32);
        let carried = network.run(20_000, 512 << 10, 32) / 3250.0;
        assert!(carried >= 0.93, "{carried}");
    }

    #[test]
    fn over_sockets_bytes_that_have_probably_arrived_since_the_last_report_are_no_load() {
        let mut network = Network::of_sockets(&[40, 10]);
        network.run(200, 1 << 20, 1);
        assert!(network.loads.is_uneven());
        let Network { speeds, loads, now, .. } = &mut network;
        loads.set_behind(0, 0);
        loads.posted(0, 1 << 20);
        speeds.drain(loads, Moment::from_nanos(1000 * *now));
        assert_eq!(loads.behind(0), 1 << 20);
        speeds.drain(loads, Moment::from_nanos(1000 * (*now + 10_000)));
        let left = (1 << 20) - loads.behind(0);
        assert!((300_000..=400_000).contains(&left), "{left} bytes in 10 ms at 40 a microsecond");
    }

    #[test]
    fn over_sockets_a_slow_rail_is_found_behind_hundreds_of_parts() {
        let mut network = Network::of_sockets(&[40, 40, 40, 10]);
        network.run(400, 4 << 20, 100);
        let carried = network.run(800, 4 << 20, 100) / 130.0;
        assert!(carried >= 0.93, "{carried}");
    }

    #[test]
    fn over_sockets_one_bad_sample_does_not_make_a_rail_slow() {
        let mut network = Network::of_sockets(&[40, 40, 40, 40]);
        network.run(100, 4 << 20, 8);
        network.rails[2].speed = 2;
        network.run(1, 512 << 10, 1);
        network.rails[2].speed = 40;
        for _ in 0..100 {
            network.run(1, 4 << 20, 8);
            assert!(!network.loads.is_uneven());
        }
    }

    #[test]
    fn over_sockets_the_load_of_a_rail_without_a_report_shrinks_too() {
        let mut network = Network::of_sockets(&[40, 10]);
        network.run(200, 1 << 20, 1);
        let Network { speeds, loads, now, .. } = &mut network;
        let at = |micros: u64| Moment::from_nanos(1000 * (*now + micros));
        speeds.drain(loads, at(0));
        loads.set_behind(1, 1 << 20);
        let mut peer = ArrivalTimes::new(2);
        for report in 1..=10 {
            peer.arrived(0, u32::MAX, at(AHEAD + 5000 * report));
            let arrived = peer.report(at(AHEAD + 5000 * report)).unwrap();
            speeds.reported(&arrived, loads, at(DELAY + 5000 * report));
        }
        let left = (1 << 20) - loads.behind(1);
        assert!(
            (400_000..=800_000).contains(&left),
            "{left} bytes in 50 ms at 10 or more a microsecond"
        );
    }

    #[test]
    fn a_rail_much_faster_than_most_carries_more() {
        let mut network = Network::new(&[200, 100, 100]);
        network.run(200, 4 << 20, 8);
        let carried = network.run(400, 4 << 20, 8) / 400.0;
        assert!(carried >= 0.93, "{carried}");
    }

    #[test]
    fn a_lost_rail_is_no_measure_of_the_others() {
        let mut network = Network::new(&[40, 10, 10, 10]);
        network.run(200, 4 << 20, 8);
        let Network { speeds, loads, .. } = &mut network;
        loads.close(0);
        speeds.check(loads);
        assert!(!loads.is_uneven(), "compared with a rail that carries nothing");
    }

    fn check_equal_shares(rails: impl Fn(&[u64]) -> Network) {
        for window in [1, 8] {
            let mut network = rails(&[40, 42, 38, 41]);
            let carried = network.run(400, 4 << 20, window);
            assert!(carried >= 4.0 * 38.0 * 0.97, "{window} at a time: {carried}");
            let carried = network.rails.iter().map(|line| line.carried);
            assert!(carried.clone().min() == carried.max(), "small differences are noise");
        }
    }

    #[test]
    fn equal_rails_carry_equal_shares() {
        check_equal_shares(Network::new);
    }

    #[test]
    fn over_sockets_equal_rails_carry_equal_shares() {
        check_equal_shares(Network::of_sockets);
    }

    fn check_detection_and_recovery(mut network: Network) {
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

    #[test]
    fn a_rail_that_becomes_slow_is_detected_and_one_that_recovers_too() {
        check_detection_and_recovery(Network::new(&[40, 40, 40, 40]));
    }

    #[test]
    fn over_sockets_a_rail_that_becomes_slow_is_detected_and_one_that_recovers_too() {
        check_detection_and_recovery(Network::of_sockets(&[40, 40, 40, 40]));
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
    fn a_rail_with_a_new_endpoint_is_not_slow_until_it_is_measured_again() {
        let (mut speeds, mut loads) = (Speeds::new(2), Loads::equal(2));
        carry((&mut speeds, &mut loads), 0, 0, (8, 2));
        let now = carry((&mut speeds, &mut loads), 1, 0, (8, 8));
        assert!(loads.is_uneven());
        speeds.forget(1, &mut loads);
        assert!(!loads.is_uneven());
        carry((&mut speeds, &mut loads), 1, now, (8, 8));
        assert!(loads.is_uneven());
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

    #[test]
    fn a_large_change_of_speed_is_followed_quickly_and_a_small_one_smoothed() {
        let found = [499, 500, 1000, 2000, 2001].map(|speed| {
            let mut measure = Measure { speed: 1000, bytes: speed, ..Measure::default() };
            assert_eq!(measure.sample(Duration::from_millis(1)), speed);
            assert_eq!(measure.bytes, 0, "the next sample begins");
            measure.speed
        });
        assert_eq!(found, [749, 937, 1000, 1125, 1500]);
    }

    #[test]
    fn a_sample_by_arrival_is_made_of_runs_of_twenty_milliseconds_together() {
        let mut measure = Measure::default();
        let run = Run { bytes: 1000, taken: Duration::from_millis(1) };
        for sample in 0..3 {
            for part in 1..=20 {
                let at = Moment::from_nanos(1_000_000 * (20 * sample + part));
                let found = measure.ran(run, at).map(|sample| (sample.speed, sample.awaited));
                assert_eq!(found, (part == 20).then_some((1000, true)), "run {part}");
            }
        }
    }

    #[test]
    fn a_rail_that_was_never_measured_is_not_slow_and_no_measure_of_the_others() {
        let (mut speeds, mut loads) = (Speeds::new(2), Loads::equal(2));
        carry((&mut speeds, &mut loads), 0, 0, (8, 2));
        (0..3).for_each(|_| speeds.check(&mut loads));
        assert!(!loads.is_uneven());
        // Of four rails over sockets two get no parts.
        let (mut speeds, mut loads) = (Speeds::new(4), Loads::equal(4));
        speeds.measure_by_arrival();
        loads.measure_by_arrival();
        for (measure, speed) in speeds.rails.iter_mut().zip([4000, 1000]) {
            (measure.speed, measure.low) = (speed, LOW_SAMPLES);
        }
        speeds.compare(&mut loads);
        assert_eq!([0, 1, 2, 3].map(|rail| loads.percent(rail)), [100, 25, 100, 100]);
    }
}
