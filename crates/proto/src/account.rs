//! What the connections of one channel share.

use std::time::Duration;

use super::counts::PeerCounts;
use super::data_rails::DataRails;
use super::parking::Parking;
use super::speeds::Speeds;
use super::split::Loads;

/// One per channel, handed to each connection while it is called.
#[derive(Debug)]
pub struct Account {
    /// The cost of the inline messages sent without an advert whose receives are not known to be posted.
    pub sent: u32,
    /// The cost of such messages that were received and are complete, and that no DONE has covered yet.
    pub unreported: u32,
    /// How long a lazy advert waits: four smoothed round trips of the channel, within bounds.
    pub lazy_wait: Duration,
    /// Entries of completion queues that complete receives have given back since the endpoint last took them.
    pub entries_freed: u32,
    pub loads: Loads,
    pub speeds: Speeds,
    pub counts: PeerCounts,
    pub rails: DataRails,
    pub parking: Parking,
}

/// Bounds of a lazy advert's wait.
pub const LAZY_WAIT_MIN: Duration = Duration::from_micros(20);
pub const LAZY_WAIT_MAX: Duration = Duration::from_millis(2);

impl Account {
    /// The account of a channel whose data rails are so many.
    pub fn new(rails: u8) -> Self {
        Self {
            sent: 0,
            unreported: 0,
            lazy_wait: LAZY_WAIT_MAX,
            entries_freed: 0,
            loads: Loads::equal(rails),
            speeds: Speeds::new(rails),
            counts: PeerCounts::default(),
            rails: DataRails::default(),
            parking: Parking::new(),
        }
    }

    /// Whether the loss of this rail is survived: parts may go by another one.
    pub(crate) fn survives(&self, rail: u8) -> bool {
        let others = self.loads.open_rails() - u32::from(self.loads.is_open(rail));
        self.rails.survives() && others > 0
    }

    /// Sets the wait of lazy adverts from the channel's smoothed round trip.
    pub fn set_round_trip(&mut self, smoothed: Duration) {
        self.lazy_wait = (4 * smoothed).clamp(LAZY_WAIT_MIN, LAZY_WAIT_MAX);
    }
}
