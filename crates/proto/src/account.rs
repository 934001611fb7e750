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
