//! Queries about the progress of the other end, for stall reports, and the answers. When a wait is long, they make a QUERY due even if
//! nothing is lost.

use std::time::Duration;

use super::super::counts::PeerCounts;
use super::super::ids::Name;
use super::super::letter::{About, Status};
use super::super::polled::PolledTime;

/// The peer's last STATUS, as stall reports use it.
#[derive(Clone, Copy, Debug)]
pub struct PeerReport {
    pub at: PolledTime,
    /// How long NCCL had not polled at the peer.
    pub idle: Duration,
    /// Progress of the connection of the last query, and when the peer reported it.
    pub about: Option<(PolledTime, About)>,
    pub counts: PeerCounts,
}

/// The query to send, the last answer, and the answer to give.
#[derive(Debug, Default)]
pub(super) struct Inquiry {
    /// The query that has not left yet, and the connection that it names, if any.
    query: Option<Option<Name>>,
    report: Option<PeerReport>,
    /// The answer that has not left.
    answer: Option<About>,
    idle: Duration,
}

impl Inquiry {
    pub(super) fn request(&mut self, name: Option<Name>) {
        self.query = Some(name);
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.query.is_some()
    }

    pub(super) fn about(&self) -> Option<Name> {
        self.query.flatten()
    }

    /// The query has left. If it is lost, the caller that needs the answer repeats it.
    pub(super) fn query_left(&mut self) {
        self.query = None;
    }

    /// An answer is due. The answer to a query that names no connection does not replace that to an earlier one that does: a
    /// keeper may read several queries at once.
    pub(super) fn answer_later(&mut self, about: Option<About>, idle: Duration) {
        (self.answer, self.idle) = (about.or(self.answer), idle);
    }

    pub(super) fn pending_answer(&self) -> Option<About> {
        self.answer
    }

    pub(super) fn idle_ms(&self) -> u32 {
        u32::try_from(self.idle.as_millis()).unwrap_or(u32::MAX)
    }

    pub(super) fn answer_left(&mut self) {
        self.answer = None;
    }

    pub(super) fn answer_arrived(&mut self, status: &Status, now: PolledTime) {
        let idle = Duration::from_millis(status.idle_ms.into());
        // An answer without a connection does not replace an earlier one with a connection.
        let about = status.about.map(|about| (now, about));
        let about = about.or_else(|| self.report.and_then(|report| report.about));
        self.report = Some(PeerReport { at: now, idle, about, counts: status.counts });
    }

    pub(super) fn report(&self) -> Option<&PeerReport> {
        self.report.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall::ConnectionState;

    #[test]
    fn a_question_about_a_connection_is_answered_though_others_follow_it() {
        let mut inquiry = Inquiry::default();
        let name = Name::default();
        let about = About { name, state: ConnectionState::default() };
        inquiry.answer_later(Some(about), Duration::ZERO);
        inquiry.answer_later(None, Duration::from_millis(7));
        assert_eq!(inquiry.pending_answer().map(|about| about.name), Some(name));
        assert_eq!(inquiry.idle_ms(), 7);
        inquiry.answer_left();
        inquiry.answer_later(None, Duration::ZERO);
        assert!(inquiry.pending_answer().is_none(), "it leaves once");
    }
}
