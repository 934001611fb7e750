//! Queries about the progress of the other end, for stall reports: sent and answered only when a wait is long.

use std::time::Duration;

use super::super::counts::PeerCounts;
use super::super::ids::{Moment, Name};
use super::super::letter::{About, Status};

/// The peer's last STATUS, as stall reports use it.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub at: Moment,
    /// How long NCCL had not polled at the peer.
    pub idle: Duration,
    /// Progress of the connection of the last query, and when the peer reported it.
    pub about: Option<(Moment, About)>,
    pub counts: PeerCounts,
}

/// The query to send, the last answer, and the answer to give.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// A query that has not left; it may name a connection.
    wanted: Option<Option<Name>>,
    told: Option<Told>,
    /// The answer that has not left.
    owed: Option<About>,
    idle: Duration,
}

impl Asking {
    pub(super) fn want(&mut self, name: Option<Name>) {
        self.wanted = Some(name);
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.wanted.is_some()
    }

    pub(super) fn about(&self) -> Option<Name> {
        self.wanted.flatten()
    }

    /// The query has left. If it is lost, the caller that needs the answer repeats it.
    pub(super) fn asked(&mut self) {
        self.wanted = None;
    }

    /// An answer is due. A query that names no connection does not replace the answer to an earlier one that does: a
    /// keeper may read several at once.
    pub(super) fn owe(&mut self, about: Option<About>, idle: Duration) {
        (self.owed, self.idle) = (about.or(self.owed), idle);
    }

    pub(super) fn answer_owed(&self) -> Option<About> {
        self.owed
    }

    pub(super) fn idle_ms(&self) -> u32 {
        u32::try_from(self.idle.as_millis()).unwrap_or(u32::MAX)
    }

    pub(super) fn answered(&mut self) {
        self.owed = None;
    }

    pub(super) fn heard(&mut self, status: &Status, now: Moment) {
        let idle = Duration::from_millis(status.idle_ms.into());
        // An answer without a connection does not replace an earlier one with a connection.
        let about = status.about.map(|about| (now, about));
        let about = about.or_else(|| self.told.and_then(|told| told.about));
        self.told = Some(Told { at: now, idle, about, counts: status.counts });
    }

    pub(super) fn told(&self) -> Option<&Told> {
        self.told.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall::Sight;

    #[test]
    fn a_question_about_a_connection_is_answered_though_others_follow_it() {
        let mut asking = Asking::default();
        let name = Name::default();
        let about = About { name, sight: Sight::default() };
        asking.owe(Some(about), Duration::ZERO);
        asking.owe(None, Duration::from_millis(7));
        assert_eq!(asking.answer_owed().map(|about| about.name), Some(name));
        assert_eq!(asking.idle_ms(), 7);
        asking.answered();
        asking.owe(None, Duration::ZERO);
        assert!(asking.answer_owed().is_none(), "it is answered once");
    }
}
