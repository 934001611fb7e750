//! The parameters of one schedule: sizes, probabilities of faults, which nodes close and which fall silent.

use std::time::Duration;

use proto::bound::{QUARANTINE, last_rail};
use proto::packet::Ring;

use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) nodes: usize,
    pub(crate) ring: Ring,
    pub(crate) inline_max: usize,
    pub(crate) rails: u8,
    pub(crate) data_rails: u8,
    pub(crate) first: u32,
    pub(crate) peer_timeout: Duration,
    pub(crate) self_channel: bool,
    pub(crate) closes: bool,
    pub(crate) stops_calling: bool,
    /// A node that stops polling at some time, its keeper too.
    pub(crate) silent: Option<usize>,
    /// Percentages.
    pub(crate) refuse: u32,
    pub(crate) early: u32,
    pub(crate) late: u32,
    pub(crate) lose: u32,
    /// How often the wire makes no progress.
    pub(crate) slow: u32,
    /// How often a call ends without progress.
    pub(crate) burst: u32,
    /// How many writes and letters may be lost.
    pub(crate) losses: usize,
    pub(crate) parts_lost: usize,
    pub(crate) deaths: usize,
    /// Old inboxes are lent again at once, so that late writes may land in another inbox.
    pub(crate) lends_again: bool,
    /// Data rails between two nodes that die, and whether there is fail-over.
    pub(crate) data_deaths: usize,
    pub(crate) failover: bool,
    pub(crate) forges: bool,
    /// No fault at all: acknowledgements alone must free a full ring.
    pub(crate) calm: bool,
}

impl Setup {
    /// How late a part may be on a channel's only remaining rail.
    pub(crate) fn last_rail_bound(&self) -> Duration {
        last_rail(self.peer_timeout)
    }

    pub(crate) fn quarantine(&self) -> u8 {
        if self.lends_again { 0 } else { QUARANTINE }
    }

    /// A setup in which nothing fails and no node falls silent.
    pub(crate) fn without_faults(random: &mut Random) -> Self {
        loop {
            let setup = Self::new(random);
            if setup.calm {
                return setup;
            }
        }
    }

    pub(crate) fn new(random: &mut Random) -> Self {
        let harsh = random.percent(60);
        let calm = !harsh && random.percent(50);
        let (ring, inline_max) = random.pick(&[(2 << 10, 200), (8 << 10, 512), (64 << 10, 4096)]);
        let nodes = random.pick(&[2, 2, 2, 3]);
        let some =
            |random: &mut Random, most: usize| if harsh { random.below(most) as u32 } else { 0 };
        let mut setup = Self {
            nodes,
            ring: Ring::new(ring).unwrap(),
            inline_max,
            rails: random.pick(&[1, 2, 2, 3]),
            data_rails: random.pick(&[1, 2, 16]),
            first: random.pick(&[1, 1, u32::MAX - 3, u32::MAX - 40, (1 << 31) - 10]),
            peer_timeout: Duration::from_secs(random.pick(&[5, 10])),
            self_channel: random.percent(15),
            closes: random.percent(50),
            stops_calling: !calm && random.percent(50),
            silent: (!calm && random.percent(10)).then(|| random.below(nodes)),
            refuse: some(random, 40),
            early: if calm { 0 } else { random.below(60) as u32 },
            late: some(random, 8),
            lose: some(random, 6),
            slow: random.pick(&[0, 0, 90, 98]),
            burst: random.pick(&[0, 0, 80, 97]),
            losses: if !harsh {
                0
            } else if random.percent(10) {
                14
            } else {
                random.below(4)
            },
            parts_lost: usize::from(harsh && random.percent(10)),
            deaths: if harsh { random.pick(&[0, 0, 0, 1, 1, 3]) } else { 0 },
            lends_again: true,
            data_deaths: if harsh { random.pick(&[0, 0, 1, 1, 2, 4]) } else { 0 },
            failover: random.percent(85),
            forges: harsh && random.percent(50),
            calm,
        };
        // Drawn here and so, because older seeds draw the same.
        setup.lends_again = setup.deaths == 0 || !random.percent(40);
        setup
    }
}
