//! Laps, bytes and moments of one trial, and what follows from them. Pure: times are microseconds of the
//! monotonic clock ([`crate::lap::now_micros`]).

use std::ops::Range;

use crate::pages::Sums;

/// All that was seen of a job.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) samples: Vec<Sample>,
    /// When rank 0's all-reduces ended.
    pub(crate) laps: Vec<u64>,
    /// How many groups were made, one after another.
    pub(crate) groups: usize,
    /// Elements that were wrong, on both ranks.
    pub(crate) wrong: usize,
    /// The lines that ranks wrote, each with its time and rank.
    pub(crate) log: Vec<(u64, usize, String)>,
}

/// What rank 0's rails had carried at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at_micros: u64,
    pub(crate) sums: Sums,
}

impl Record {
    /// What a rail sent in that time, in MB/s.
    pub(crate) fn rate(&self, rail: usize, time: &Range<u64>) -> f64 {
        let (from, to) = (self.bytes_at(rail, time.start), self.bytes_at(rail, time.end));
        (to - from) / (time.end.saturating_sub(time.start)).max(1) as f64
    }

    /// The longest time in that range in which no all-reduce ended, in milliseconds, less the usual time of one.
    pub(crate) fn longest_pause_ms(&self, time: &Range<u64>) -> f64 {
        let inside = self.laps.iter().copied().filter(|at| time.contains(at));
        let moments: Vec<u64> =
            std::iter::once(time.start).chain(inside).chain([time.end]).collect();
        let longest = moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        (longest as f64 / 1e3 - self.usual_lap_ms()).max(0.0)
    }

    /// The median time between ends of all-reduces, in milliseconds.
    pub(crate) fn usual_lap_ms(&self) -> f64 {
        let mut laps: Vec<u64> = self.laps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        laps.sort_unstable();
        laps.get(laps.len() / 2).map_or(0.0, |&micros| micros as f64 / 1e3)
    }

    /// When a rail carried at least that many MB/s over 100 ms again, at or after `from`.
    pub(crate) fn back_at(&self, rail: usize, from: u64, rate: f64) -> Option<u64> {
        let window = |at: u64| at..at + 100_000;
        let last = self.samples.last()?.at_micros;
        let later = self.samples.iter().map(|sample| sample.at_micros).filter(|&at| at >= from);
        let whole = later.take_while(|&at| at + 100_000 <= last);
        whole.into_iter().find(|&at| self.rate(rail, &window(at)) >= rate)
    }

    /// The sums at the end, which began with the job's processes.
    pub(crate) fn last(&self) -> Sums {
        self.samples.last().map(|sample| sample.sums.clone()).unwrap_or_default()
    }

    /// The bytes at a time, with linear interpolation between two samples.
    fn bytes_at(&self, rail: usize, at: u64) -> f64 {
        let of = |sample: &Sample| sample.sums.sent.get(rail).copied().unwrap_or_default() as f64;
        let after = self.samples.partition_point(|sample| sample.at_micros <= at);
        match (after.checked_sub(1).map(|before| &self.samples[before]), self.samples.get(after)) {
            (Some(before), Some(after)) => {
                let part =
                    (at - before.at_micros) as f64 / (after.at_micros - before.at_micros) as f64;
                of(before) + (of(after) - of(before)) * part
            }
            (Some(only), None) | (None, Some(only)) => of(only),
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let sample = |at_micros, bytes| Sample {
            at_micros,
            sums: Sums { sent: vec![bytes], ..Sums::default() },
        };
        Record {
            samples: vec![
                sample(0, 0),
                sample(100_000, 10_000_000),
                sample(200_000, 10_000_000),
                sample(300_000, 10_000_000),
                sample(400_000, 20_000_000),
                sample(500_000, 30_000_000),
            ],
            laps: vec![10_000, 20_000, 30_000, 330_000, 340_000],
            ..Record::default()
        }
    }

    #[test]
    fn a_rate_is_bytes_by_time_also_between_samples() {
        let record = record();
        assert!((record.rate(0, &(0..100_000)) - 100.0).abs() < 1e-9);
        assert!((record.rate(0, &(50_000..150_000)) - 50.0).abs() < 1e-9);
        assert!(record.rate(0, &(110_000..290_000)).abs() < 1e-9);
    }

    #[test]
    fn a_pause_is_what_lies_between_ends_less_a_usual_lap() {
        let record = record();
        assert!((record.usual_lap_ms() - 10.0).abs() < 1e-9);
        assert!((record.longest_pause_ms(&(0..340_001)) - 290.0).abs() < 1e-9);
        // Nothing ends behind the last: that is a pause, too.
        assert!((record.longest_pause_ms(&(335_000..840_000)) - 490.0).abs() < 1e-9);
    }

    #[test]
    fn a_rail_is_back_when_it_carries_again() {
        assert_eq!(record().back_at(0, 100_000, 50.0), Some(300_000));
        assert_eq!(record().back_at(0, 100_000, 500.0), None);
    }
}
