//! The smoothed round trip of a channel, from a packet's post to its acknowledgement by a packet: lazy adverts wait a
//! multiple of it.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
}

/// Longer samples measure how long the peer had no packet to send, not the network.
const SAMPLE_MAX: Duration = Duration::from_millis(2);

impl RoundTrip {
    /// Adds a sample with a weight of an eighth, and returns the smoothed time.
    #[inline]
    pub fn sample(&mut self, time: Duration) -> Duration {
        let time = time.min(SAMPLE_MAX);
        let smoothed = match self.smoothed {
            None => time,
            Some(smoothed) => (smoothed * 7 + time) / 8,
        };
        *self.smoothed.insert(smoothed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_smoothed_and_bounded() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.sample(Duration::from_micros(10)), Duration::from_micros(10));
        assert_eq!(trip.sample(Duration::from_micros(90)), Duration::from_micros(20));
        for _ in 0..100 {
            trip.sample(Duration::from_secs(10));
        }
        let smoothed = trip.sample(Duration::from_secs(10));
        assert!(smoothed <= SAMPLE_MAX && smoothed > SAMPLE_MAX * 9 / 10, "{smoothed:?}");
    }
}
