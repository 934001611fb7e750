//! The smoothed round trip of a channel, from a packet's post to its acknowledgement by a packet: lazy adverts wait a
//! multiple of it.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
}

/// Longer samples do not measure the wire: the peer had no packet to send.
const SAMPLE_MAX: Duration = Duration::from_millis(2);

impl RoundTrip {
    /// Adds a sample with a weight of an eighth.
    #[inline]
    pub fn sample(&mut self, time: Duration) {
        let time = time.min(SAMPLE_MAX);
        self.smoothed = Some(match self.smoothed {
            None => time,
            Some(smoothed) => (smoothed * 7 + time) / 8,
        });
    }

    /// None before the first sample.
    #[inline]
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_smoothed_and_bounded() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.smoothed(), None);
        trip.sample(Duration::from_micros(10));
        assert_eq!(trip.smoothed(), Some(Duration::from_micros(10)));
        trip.sample(Duration::from_micros(90));
        assert_eq!(trip.smoothed(), Some(Duration::from_micros(20)));
        for _ in 0..100 {
            trip.sample(Duration::from_secs(10));
        }
        assert!(trip.smoothed().is_some_and(|smoothed| smoothed <= SAMPLE_MAX));
        assert!(trip.smoothed().is_some_and(|smoothed| smoothed > SAMPLE_MAX * 9 / 10));
    }
}
