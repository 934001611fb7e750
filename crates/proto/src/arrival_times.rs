//! When the peer's parts arrived, by data rail. Reports of this let the peer measure the speeds of its rails
//! ([`delivery_rates`](super::delivery_rates)).
//!
//! A report is a frame that joins a packet, at most every 5 ms; no packet leaves only for a report.

use std::time::Duration;

use super::frame::{Arrived, Landed};
use super::ids::Moment;
use super::rail_set::RailSet;

/// The shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(5);

/// The newest arrival on each data rail. Empty if the peer needs no reports.
#[derive(Debug, Default)]
pub struct ArrivalTimes {
    rails: Box<[Newest]>,
    /// Rails with an arrival that was not reported.
    news: RailSet,
    /// The earliest time of the next report.
    report_at: Moment,
}

#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    at: Moment,
    /// How many parts have arrived on the rail, wrapping.
    count: u32,
}

impl ArrivalTimes {
    pub fn new(rails: u8) -> Self {
        let rails = vec![Newest::default(); rails.into()].into();
        Self { rails, ..Self::default() }
    }

    /// A part has arrived, as number `count` of its rail.
    #[inline]
    pub fn arrived(&mut self, rail: u8, count: u32, now: Moment) {
        if let Some(newest) = self.rails.get_mut(usize::from(rail)) {
            *newest = Newest { at: now, count };
            self.news.insert(rail);
        }
    }

    /// The report of arrivals since the last one; None if no report is due.
    #[inline]
    pub fn report(&mut self, now: Moment) -> Option<Arrived> {
        if self.news.is_empty() || now < self.report_at {
            return None;
        }
        let news = std::mem::take(&mut self.news);
        self.report_at = now.plus(REPORT_EVERY);
        let landed = |(rail, newest): (u8, &Newest)| {
            news.has(rail).then(|| Landed {
                rail,
                count: newest.count,
                micros_ago: Landed::limited(now.since(newest.at)),
            })
        };
        Arrived::new(now, (0..).zip(&self.rails).filter_map(landed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Moment {
        Moment::from_nanos(1000 * micros)
    }

    #[test]
    fn a_report_has_the_newest_arrival_of_each_rail_and_is_made_once() {
        let mut times = ArrivalTimes::new(3);
        times.arrived(2, 7, at(100));
        times.arrived(0, 1, at(200));
        times.arrived(0, 2, at(300));
        let report = times.report(at(1000)).unwrap();
        let landed = [
            Landed { rail: 0, count: 2, micros_ago: 700 },
            Landed { rail: 2, count: 7, micros_ago: 900 },
        ];
        assert_eq!(report.landed().collect::<Vec<_>>(), landed);
        assert_eq!(report.clock_micros, 1000);
        assert_eq!(times.report(at(1_000_000)), None, "nothing has arrived since");
    }

    #[test]
    fn reports_are_five_milliseconds_apart() {
        let mut times = ArrivalTimes::new(2);
        times.arrived(1, 1, at(0));
        assert!(times.report(at(1)).is_some());
        times.arrived(1, 2, at(2));
        assert_eq!(times.report(at(5000)), None);
        assert!(times.report(at(5001)).is_some());
    }

    #[test]
    fn nothing_is_recorded_where_it_is_not_needed() {
        let mut times = ArrivalTimes::default();
        times.arrived(0, 1, at(0));
        assert_eq!(times.report(at(1_000_000)), None);
    }
}
