//! The clock of an endpoint: how long it has been polled, which is not how long the world has turned.
//!
//! Nobody's idleness may look like a death: time in which nobody polled us is not counted, since then it may have been we
//! who were silent. The system's clock is read once in many turns.

use std::time::{Duration, Instant};

/// Counts turns of progress, and now and then the time they took.
#[derive(Debug, Default)]
pub(super) struct Watch {
    turns: u32,
    /// The turn of the last look at the clock.
    looked: u32,
    read: Option<Instant>,
    unswept: Duration,
}

impl Watch {
    /// A turn of progress.
    #[inline(always)]
    pub(super) fn turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
    }

    /// The number of the turn.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        self.turns
    }

    /// Whether it is one of every `count` turns.
    #[inline(always)]
    pub(super) fn is_each(&self, count: u32) -> bool {
        self.turns.is_multiple_of(count)
    }

    /// A full turn has been made: whether to look at the clock, by [`Watch::tick`].
    #[inline(always)]
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.turns.wrapping_sub(self.looked) >= TURNS;
        if due {
            self.looked = self.turns;
        }
        due
    }

    /// It is `now`. The time polled since the last sweep, when it is time for the next: every `interval`.
    pub(super) fn tick(&mut self, now: Instant, interval: Duration) -> Option<Duration> {
        let last = self.read.replace(now);
        self.unswept += last.map_or(Duration::ZERO, |last| now.duration_since(last).min(TICK_MAX));
        (self.unswept >= interval).then(|| std::mem::take(&mut self.unswept))
    }
}

/// Turns between two looks at the clock.
const TURNS: u32 = 256;
/// More than so many turns take while somebody polls.
const TICK_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3);

    #[test]
    fn the_clock_is_looked_at_once_in_many_turns() {
        let mut watch = Watch::default();
        let due = (0..10 * TURNS).filter(|_| {
            watch.turn();
            watch.is_due()
        });
        assert_eq!(due.count(), 10);
    }

    #[test]
    fn time_in_which_nobody_polled_does_not_count() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        assert_eq!(watch.tick(now, INTERVAL), None);
        for _ in 0..2 {
            now += Duration::from_secs(3600);
            assert_eq!(watch.tick(now, INTERVAL), None);
        }
        now += Duration::from_secs(3600);
        assert_eq!(watch.tick(now, INTERVAL), Some(INTERVAL));
        assert_eq!(watch.tick(now, INTERVAL), None);
    }
}
