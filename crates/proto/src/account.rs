//! State that the connections of one channel share: credit, speeds, counts, parking.

use std::time::Duration;

use super::arrival_times::ArrivalTimes;
use super::counts::PeerCounts;
use super::data_rails::DataRails;
use super::frame::Arrived;
use super::ids::Moment;
use super::parking::Parking;
use super::speeds::Speeds;
use super::split::Loads;

/// The shared state of one channel's connections. It is passed into each call of a connection.
#[derive(Debug)]
pub struct Account {
    /// Credit in use: the cost of inline messages sent without an advert whose receives are not known to be posted.
    pub sent: u32,
    /// Credit to return: the cost of such messages that were received and are complete, and that no DONE has covered
    /// yet.
    pub unreported: u32,
    /// How long an advert that is probably not needed is delayed: four smoothed round trips of the channel, but at least [`LAZY_WAIT_MIN`]
    /// and at most [`LAZY_WAIT_MAX`].
    pub lazy_wait: Duration,
    /// Completion queue entries that complete receives have returned since the last visit of the channel.
    pub entries_freed: u32,
    pub loads: Loads,
    pub speeds: Speeds,
    /// When the peer's parts have arrived, if the peer needs reports of that.
    pub arrival_times: ArrivalTimes,
    pub counts: PeerCounts,
    pub rails: DataRails,
    pub parking: Parking,
}

/// Bounds of `lazy_wait`.
pub const LAZY_WAIT_MIN: Duration = Duration::from_micros(20);
pub const LAZY_WAIT_MAX: Duration = Duration::from_millis(2);

impl Account {
    /// The account of a channel with `rails` data rails.
    pub fn new(rails: u8) -> Self {
        Self {
            sent: 0,
            unreported: 0,
            lazy_wait: LAZY_WAIT_MAX,
            entries_freed: 0,
            loads: Loads::equal(rails),
            speeds: Speeds::new(rails),
            arrival_times: ArrivalTimes::default(),
            counts: PeerCounts::default(),
            rails: DataRails::default(),
            parking: Parking::new(),
        }
    }

    /// From now on the speeds of rails are measured by when parts arrive, not by when their writes complete, in both
    /// directions.
    pub(crate) fn measure_by_arrival(&mut self) {
        let rails = self.loads.rails();
        self.speeds.measure_by_arrival();
        self.loads.measure_by_arrival();
        self.arrival_times = ArrivalTimes::new(rails);
    }

    /// A part with an immediate was posted.
    #[inline]
    pub(crate) fn posted(&mut self, rail: u8, len: u64, now: Moment) {
        self.speeds.posted(rail, self.rails.posted_on(rail), len, now);
    }

    /// Handles ARRIVED: the peer's report of when our parts have arrived.
    #[cold]
    pub(crate) fn arrived(&mut self, arrived: &Arrived, now: Moment) {
        self.speeds.reported(arrived, &mut self.loads, now);
    }

    /// Whether the channel survives the loss of this rail, because parts may go by another rail, or because this rail was lost
    /// before.
    pub(crate) fn survives(&self, rail: u8) -> bool {
        let lost = !self.loads.is_open(rail);
        self.rails.survives() && (lost || self.loads.open_rails() > 1)
    }

    /// Derives `lazy_wait` from the channel's smoothed round trip.
    pub fn set_round_trip(&mut self, smoothed: Duration) {
        self.lazy_wait = (4 * smoothed).clamp(LAZY_WAIT_MIN, LAZY_WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Landed;
    use super::*;

    #[test]
    fn an_advert_that_is_probably_not_needed_waits_four_round_trips_within_bounds() {
        let mut account = Account::new(1);
        let waits = [0, 4, 5, 6, 499, 500, 501, 60_000_000].map(|micros| {
            account.set_round_trip(Duration::from_micros(micros));
            account.lazy_wait.as_micros()
        });
        assert_eq!(waits, [20, 20, 20, 24, 1996, 2000, 2000, 2000]);
    }

    /// Otherwise a slow rail would hold up every message.
    #[test]
    fn a_rail_whose_parts_arrive_late_gets_less_though_its_writes_complete_at_once() {
        let at = |millis: u64| Moment::from_nanos(1_000_000 * millis);
        let mut account = Account::new(2);
        account.measure_by_arrival();
        for round in 1..=5 {
            let start = 100 * u64::from(round);
            for rail in 0..2 {
                account.rails.posted(rail, true);
                account.posted(rail, 4 << 20, at(start));
                assert!(account.rails.ended(rail, true, true));
            }
            // The first sample has no other to be compared with.
            assert_eq!(account.loads.is_uneven(), round > 4, "after {} rounds", round - 1);
            let landed = [(0, 65_000), (1, 5000)];
            let landed = landed.map(|(rail, micros_ago)| Landed { rail, count: round, micros_ago });
            let report = Arrived::new(at(start + 90), landed.into_iter()).unwrap();
            account.arrived(&report, at(start + 90));
        }
    }
}
