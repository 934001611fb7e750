//! Reports data rails that stay much slower than the others: a link that has come up at a lower speed, a cable with errors.
//!
//! The speed of a rail is measured per peer, and decides how much of each message the rail gets (`proto::speeds`). Each check counts, per
//! peer, the time in which a rail was slow. A NIC that stays slow, to any peer, is logged once, and once more when it is no longer slow.

use std::time::Duration;

use counters::Counter;
use proto::ChannelId;

use super::Endpoint;
use super::bound::{REPORT_EVERY, SLOW_AFTER};
use super::seldom::Seldom;

static REPORTED: Seldom = Seldom::new();

/// What the checks have seen so far, by NIC.
#[derive(Debug, Default)]
pub(super) struct SlowRails {
    nics: Vec<Watched>,
    /// The last check, in time polled.
    checked: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// Since when the NIC is slow, in time polled.
    since: Option<Duration>,
    /// Whether that was logged.
    reported: bool,
}

/// A change to be logged of a NIC, with the time for which it has been slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Slow(Duration),
    Even(Duration),
}

impl Watched {
    /// Whether the NIC is `slow` to any peer, at a check after NCCL has polled for `polled` in all. Returns what is to be logged.
    fn check(
        &mut self,
        slow: bool,
        polled: Duration,
        may_report: impl FnOnce() -> bool,
    ) -> Option<News> {
        if !slow {
            let Self { since, reported } = std::mem::take(self);
            let after = polled.saturating_sub(since?);
            return reported.then_some(News::Even(after));
        }
        let slow_for = polled.saturating_sub(*self.since.get_or_insert(polled));
        if self.reported || slow_for < SLOW_AFTER || !may_report() {
            return None;
        }
        self.reported = true;
        Some(News::Slow(slow_for))
    }
}

/// A NIC's slowest rail.
#[derive(Clone, Copy, Debug)]
struct Slowest {
    percent: u8,
    rail: u8,
    channel: ChannelId,
    /// To how many peers the NIC is slow.
    peers: usize,
}

impl Endpoint {
    /// Checks the speeds of all rails, in a check for stalls.
    #[cold]
    pub(super) fn check_speeds(&mut self, polled: Duration) {
        let passed = polled.saturating_sub(self.slow_rails.checked);
        self.slow_rails.checked = polled;
        self.slow_rails.nics.resize(self.executor.nics.len(), Watched::default());
        for nic in 0..self.executor.nics.len() {
            let slowest = self.slowest(nic, passed);
            let news = self.slow_rails.nics[nic]
                .check(slowest.is_some(), polled, || REPORTED.may(REPORT_EVERY));
            let name = &self.executor.nics[nic].label;
            match (news, slowest) {
                (Some(News::Slow(time)), Some(Slowest { percent, rail, channel, peers })) => {
                    let (peer, seconds) = (self.executor.label(channel), time.as_secs());
                    log::warn!(
                        "data rail {rail} ({name}) to {peer} has had about {percent} % of the speed of other rails for {seconds} s, \
                         and gets as much less of the messages; it is slow to {peers} peer(s)"
                    );
                }
                (Some(News::Even(time)), _) => {
                    let seconds = time.as_secs();
                    log::warn!("{name} is as fast as other rails again, after {seconds} s");
                }
                _ => {}
            }
        }
    }

    /// The slowest rail of this NIC, if it is much slower than other rails to the same peer. Adds `passed` to the slow time of slow rails.
    fn slowest(&self, nic: usize, passed: Duration) -> Option<Slowest> {
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let mut slowest: Option<Slowest> = None;
        for peer in self.executor.channel_ends() {
            let channel = peer.channel;
            let (Some(account), Some(rail)) = (self.core.account(channel), peer.data_rail(nic))
            else {
                continue;
            };
            let percent = account.loads.percent(rail);
            if percent == 100 || peer.failure.is_some() {
                continue;
            }
            peer.sends.add_on_rail(rail, Counter::SlowMillis, millis);
            let before = slowest.unwrap_or(Slowest { percent, rail, channel, peers: 0 });
            let peers = before.peers + 1;
            slowest = Some(if before.percent <= percent {
                Slowest { peers, ..before }
            } else {
                Slowest { percent, rail, channel, peers }
            });
        }
        slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rail_that_stays_slow_is_reported_once_and_once_more_when_it_is_not() {
        let mut rail = Watched::default();
        assert_eq!(rail.check(false, s(1), || true), None);
        assert_eq!(rail.check(true, s(2), || true), None);
        assert_eq!(rail.check(true, s(6), || true), None);
        assert_eq!(rail.check(true, s(7), || true), Some(News::Slow(s(5))));
        assert_eq!(rail.check(true, s(30), || true), None);
        assert_eq!(rail.check(false, s(40), || true), Some(News::Even(s(38))));
        assert_eq!(rail.check(false, s(41), || true), None);
    }

    #[test]
    fn a_rail_that_was_slow_for_a_moment_is_not_reported() {
        let mut rail = Watched::default();
        for second in 0..20 {
            assert_eq!(rail.check(second % 5 != 4, s(second), || true), None);
        }
    }

    #[test]
    fn a_report_that_comes_too_soon_after_another_waits() {
        let mut rail = Watched::default();
        rail.check(true, s(0), || true);
        assert_eq!(rail.check(true, s(10), || false), None);
        assert_eq!(rail.check(true, s(20), || true), Some(News::Slow(s(20))));
        let mut other = Watched::default();
        other.check(true, s(0), || true);
        assert_eq!(other.check(true, s(10), || false), None);
        assert_eq!(other.check(false, s(20), || false), None, "its slowness was not logged");
    }
}
