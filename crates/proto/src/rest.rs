//! Back-off: the pause before a lost rail is tried again.

use std::time::Duration;

use super::bound::{RAIL_FLAP, RAIL_FLAPS, RAIL_REST, RAIL_REST_MAX, RAIL_ROUNDS};
use super::ids::Moment;

/// The failures of one rail of a channel that lengthen its pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    /// Trials that have failed since the loss.
    failed: u32,
    /// How often the rail was lost again soon after its return.
    flaps: u32,
    returned_at: Option<Moment>,
}

impl Rest {
    pub(crate) fn pause(&self) -> Duration {
        let failed = self.failed.saturating_sub(RAIL_ROUNDS);
        let flaps = self.flaps.saturating_sub(RAIL_FLAPS);
        RAIL_REST.saturating_mul(1 << failed.max(flaps).min(16)).min(RAIL_REST_MAX)
    }

    pub(crate) fn lost(&mut self, now: Moment) {
        let soon = self.returned_at.is_some_and(|at| now.since(at) < RAIL_FLAP);
        self.flaps = if soon { self.flaps.saturating_add(1) } else { 0 };
        self.failed = 0;
    }

    /// The rail works, and is closed for another channel. Failures of that channel's link do not lengthen this channel's pauses.
    pub(crate) fn left(&mut self) {
        self.failed = 0;
    }

    pub(crate) fn failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// Whether a trial has failed since the loss.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed > 0
    }

    pub(crate) fn returned(&mut self, now: Moment) {
        self.returned_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_rail_rests_longer_the_more_often_it_fails_or_flaps() {
        let mut rest = Rest::default();
        let mut pauses = Vec::new();
        for loss in 0..16 {
            rest.lost(at(loss * 2000));
            pauses.push(rest.pause().as_millis());
            rest.returned(at(loss * 2000 + 1000));
        }
        assert_eq!(pauses[..7], [300, 300, 300, 300, 600, 1200, 2400]);
        assert_eq!(pauses[15], 60_000);
        rest.lost(at(15 * 2000 + 1000 + 60_000));
        assert_eq!(
            rest.pause().as_millis(),
            300,
            "flaps are forgotten after a minute without a loss"
        );
        for trial in 0..60 {
            assert!(trial > 40 || rest.pause() == RAIL_REST);
            assert!(trial < 50 || rest.pause() == RAIL_REST_MAX);
            rest.failed();
        }
    }

    #[test]
    fn failures_from_before_a_rail_was_closed_for_another_channel_do_not_count() {
        let mut rest = Rest::default();
        rest.lost(at(0));
        (0..60).for_each(|_| rest.failed());
        assert!(rest.has_failed() && rest.pause() == RAIL_REST_MAX);
        rest.left();
        assert!(!rest.has_failed() && rest.pause() == RAIL_REST);
    }
}
