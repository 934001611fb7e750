//! When the keeper must poll an endpoint because NCCL does not.

use std::time::Duration;

use super::super::bound::{
    KEEPER_IDLE, KEEPER_IDLE_MAX, KEEPER_LENT, KEEPER_PENDING, KEEPER_WAITS,
};
use super::super::connection::Connection;
use super::super::ids::Moment;
use super::{Perform, ProgressLoop};

#[derive(Debug)]
pub struct Keeper {
    polled: Moment,
    /// The last poll by the caller (NCCL), not by the keeper.
    called: Moment,
    /// The current poll is the keeper's.
    is_keeping: bool,
    /// Poll interval of an idle endpoint.
    idle: Duration,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            polled: Moment::default(),
            called: Moment::default(),
            is_keeping: false,
            idle: KEEPER_IDLE,
        }
    }
}

impl Keeper {
    pub(super) fn called(&self) -> Moment {
        self.called
    }

    /// The time of the last poll, by the caller or by the keeper.
    #[inline]
    pub(super) fn last_poll(&self) -> Moment {
        self.polled
    }

    #[inline]
    pub(super) fn polled(&mut self, now: Moment) {
        self.polled = now;
        if !self.is_keeping {
            self.called = now;
        }
    }
}

impl<C: Connection> ProgressLoop<C> {
    /// Whether something is unsent, unacknowledged or unanswered, so that the keeper must poll soon.
    pub fn has_pending(&self) -> bool {
        self.table.acting() > 0 || self.peers.left_over().any(|left_over| left_over.pending)
    }

    /// Whether a connection of a living channel waits for its peer: for the answer to a WITHDRAW, for instance.
    fn waits(&self) -> bool {
        self.peers.iter().any(|peer| peer.channel.is_alive() && peer.pending.waiting > 0)
    }

    /// Whether a peer has lent memory for messages that the caller has not submitted. A peer that aborts withdraws the memory,
    /// and waits for each rank's answer in turn.
    fn is_lent(&self) -> bool {
        self.table.connections().any(C::is_lent)
    }

    /// How long the keeper need not poll, whatever is pending, because the caller has just polled. None: see
    /// [`keeper_due`](Self::keeper_due), which looks at all channels.
    pub fn keeper_rests(&self, now: Moment) -> Option<Duration> {
        let until = self.keeper.called.plus(KEEPER_PENDING);
        (now < until).then(|| until.since(now))
    }

    /// When the keeper must poll unless something else polls before. None if no channel is left. One that has ended or failed still answers
    /// its peer.
    pub fn keeper_due(&self) -> Option<Moment> {
        if self.peers.iter().all(|peer| peer.forgotten) {
            return None;
        }
        let wait = if self.has_pending() {
            KEEPER_PENDING
        } else if self.waits() {
            KEEPER_WAITS
        } else if self.is_lent() {
            KEEPER_LENT
        } else {
            self.keeper.idle
        };
        Some(self.keeper.polled.plus(wait))
    }

    /// Polls for the keeper, if a poll is due; returns whether it did. Polls that find nothing lengthen the interval.
    pub fn keep<P: Perform<C>>(&mut self, perform: &mut P, now: Moment) -> bool {
        if self.keeper_rests(now).is_some() || self.keeper_due().is_none_or(|due| now < due) {
            return false;
        }
        let before = self.news();
        self.set_keeping(true);
        self.progress(perform, now);
        self.set_keeping(false);
        let found = self.news() != before;
        let longer = (self.keeper.idle * 2).min(KEEPER_IDLE_MAX);
        self.keeper.idle = if found { KEEPER_IDLE } else { longer };
        true
    }

    /// When the caller (NCCL) last polled the endpoint.
    pub fn called(&self) -> Moment {
        self.keeper.called
    }

    /// Sets whether the following polls are the keeper's or the caller's.
    pub fn set_keeping(&mut self, is_keeping: bool) {
        self.keeper.is_keeping = is_keeping;
    }

    /// A number that changes whenever a packet is consumed or acknowledged.
    fn news(&self) -> u64 {
        self.peers.iter().fold(0, |sum, peer| {
            let consumed = peer.channel.inbox().map_or(0, |inbox| inbox.consumed().get());
            let acknowledged = peer.channel.shadow().acknowledged().get();
            sum + u64::from(consumed) + u64::from(acknowledged)
        })
    }
}
