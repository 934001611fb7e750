//! Why control rails are lost: the wire knows a reason for each loss that is not a dead rail's.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::ChannelId;
use proto::bound::CONTROL_HANGS;
use proto::channel::{RailNews, WriteId, Written};

use crate::hands::Data;
use crate::wire::Wire;

/// One end of a channel.
type End = (usize, ChannelId);

/// The write of a packet, from the first attempt to post it until its completion is reported.
#[derive(Debug)]
struct Write {
    end: End,
    link: u8,
    id: WriteId,
    since: u64,
    until: Option<u64>,
}

/// Control rails, by the wire's numbers.
#[derive(Debug, Default)]
pub(crate) struct ControlRails {
    writes: Vec<Write>,
    /// Rails that an end has lost, and those that it lost at any time.
    lost: BTreeSet<(usize, u32, u8)>,
    ever_lost: BTreeSet<(usize, u32, u8)>,
    /// Ends that have lost all their rails, where a packet stood on each of them for long enough.
    stood_on_all: BTreeSet<(usize, u32)>,
}

impl ControlRails {
    /// A packet is posted, or refused.
    pub(crate) fn tried(&mut self, end: End, link: u8, id: WriteId, now: u64) {
        if !matches!(id.what, Written::Packet(_)) {
            return;
        }
        // What was reported in earlier polls, or is for an earlier inbox, says nothing about this one.
        self.writes.retain(|write| {
            let passed = write.until.is_some_and(|until| until < now);
            !(passed || write.end == end && write.id.epoch < id.epoch)
        });
        if !self.writes.iter().any(|write| write.end == end && write.id == id) {
            self.writes.push(Write { end, link, id, since: now, until: None });
        }
    }

    /// The completion of a write is reported.
    pub(crate) fn reported(&mut self, end: End, id: WriteId, now: u64) {
        for write in self.writes.iter_mut().filter(|write| write.end == end && write.id == id) {
            write.until = Some(now);
        }
    }

    /// How long a packet has stood on a rail. In the poll that reports its completion it counts as standing: the
    /// letter that found it so may have been read before.
    fn stood(&self, end: End, link: u8, now: u64) -> Duration {
        let here = self.writes.iter().filter(|write| (write.end, write.link) == (end, link));
        let stands = here.filter(|write| write.until.is_none_or(|until| until == now));
        Duration::from_nanos(stands.map(|write| now - write.since).max().unwrap_or(0))
    }

    /// Whether a channel may fail for lack of control rails although none has died: both ends may find different rails
    /// hanging before either hears of it. The last rail of an end is kept for the peer timeout.
    pub(crate) fn stood_on_all(&self, (node, channel): End) -> bool {
        self.stood_on_all.contains(&(node, channel.0))
    }
}

impl<D: Data> Wire<D> {
    pub(crate) fn control_rails(&self, (node, channel): End) -> u8 {
        self.data.control_rails(node, channel).unwrap_or(self.setup.rails)
    }

    /// An end reports rails that it has lost, or that are back.
    pub(crate) fn control_news(&mut self, end: End, news: RailNews) {
        let (far, now) = (D::far(self, end), self.now);
        for rail in 0..self.control_rails(end) {
            let link = self.data.link(end.0, end.1, rail);
            let name = |(node, channel): End| (node, channel.0, link);
            let [lost, returned] = [news.lost, news.returned].map(|set| set.has(rail));
            if lost && !returned {
                let follows = far.is_some_and(|far| self.control.ever_lost.contains(&name(far)));
                let stood = self.control.stood(end, link, now) >= CONTROL_HANGS;
                let reason = self.died || follows || stood;
                self.law(reason, "a control rail was lost although no packet stood on it");
            }
            if lost {
                self.control.ever_lost.insert(name(end));
                self.control.lost.insert(name(end));
            }
            if returned {
                self.control.lost.remove(&name(end));
            }
        }
    }

    /// An end has failed because it has no control rail left.
    pub(crate) fn no_rail(&mut self, end: End) {
        let (far, now) = (D::far(self, end), self.now);
        let links: Vec<u8> =
            (0..self.control_rails(end)).map(|rail| self.data.link(end.0, end.1, rail)).collect();
        let has_lost = |end: End, link: u8| self.control.lost.contains(&(end.0, end.1.0, link));
        let stood = |link: &u8| {
            let last = links.iter().all(|other| other == link || has_lost(end, *other));
            let bound = if last { self.setup.peer_timeout } else { CONTROL_HANGS };
            has_lost(end, *link)
                || far.is_some_and(|far| has_lost(far, *link))
                || self.control.stood(end, *link, now) >= bound
        };
        if links.iter().all(stood) {
            self.control.stood_on_all.insert((end.0, end.1.0));
        }
        let names = links.iter().map(|link| (end.0, end.1.0, *link));
        self.control.ever_lost.extend(names.clone());
        self.control.lost.extend(names);
    }
}
