//! How long a packet takes to be acknowledged by a packet back: what a lazy advert's wait is measured in.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
}

/// A longer one says nothing of the wire: the peer had nothing to say.
const SAMPLE_MAX: Duration = Duration::from_millis(2);

impl RoundTrip {
    /// A new one counts an eighth.
    #[inline]
    pub fn sample(&mut self, time: Duration) {
        let time = time.min(SAMPLE_MAX);
        self.smoothed = Some(match self.smoothed {
            None => time,
            Some(smoothed) => (smoothed * 7 + time) / 8,
        });
    }

    /// None before the first is known.
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
