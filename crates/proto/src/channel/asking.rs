//! Questions for how far the other end is, beside what QUERY asks anyway: put and answered only where something waits for long.

use std::time::Duration;

use super::super::counts::PeerCounts;
use super::super::ids::{Moment, Name};
use super::super::letter::{About, Status};

/// What the peer said when it was asked.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub at: Moment,
    /// How long its caller had not polled.
    pub idle: Duration,
    /// How far the connection is that was asked about last, and when that was said.
    pub about: Option<(Moment, About)>,
    pub counts: PeerCounts,
}

/// What is asked of the peer, and what it is to be told.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// A question that has not left: about a connection, if one is named.
    wanted: Option<Option<Name>>,
    told: Option<Told>,
    /// The answer that is owed.
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

    /// It has left. What is lost is asked again by whoever wants to know.
    pub(super) fn asked(&mut self) {
        self.wanted = None;
    }

    /// An answer is owed. A question that names no connection, behind one that does, takes nothing from the answer to that: a keeper
    /// reads many at a time.
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
        // An answer to an earlier question that named nothing says less than the one before.
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
