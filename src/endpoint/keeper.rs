//! What the keeper thread does on an endpoint: see `plugin::keeper`.

use std::time::Duration;

use proto::Moment;

use super::Endpoint;
use super::bound::{ABANDONED_AFTER, VISIT_MAX};

/// How long NCCL has made no call.
#[derive(Debug)]
pub(super) struct Idle {
    /// The last call, and the keeper's last visit.
    called: Moment,
    visited: Moment,
    time: Duration,
}

impl Idle {
    pub(super) fn new(now: Moment) -> Self {
        Self { called: now, visited: now, time: Duration::ZERO }
    }

    /// The keeper visits the endpoint. Time in which the process was stopped does not count.
    fn visit(&mut self, called: Moment, now: Moment) {
        let more = now.since(self.visited).min(VISIT_MAX);
        let before = if self.called == called { self.time } else { Duration::ZERO };
        *self = Self { called, visited: now, time: (before + more).min(now.since(called)) };
    }
}

impl Endpoint {
    /// Whether the last open request, or an accepted connection, was reported with frames pending, since this was last asked.
    #[inline]
    pub(crate) fn needs_keeper(&mut self) -> bool {
        std::mem::take(&mut self.needs_keeper)
    }

    /// Polls in NCCL's place, if a poll is due. Returns the time until the next one; None: no channel is left.
    pub(crate) fn keep(&mut self) -> Option<Duration> {
        if self.broken {
            return None;
        }
        let now = self.now();
        self.idle.visit(self.core.called(), now);
        if let Some(rest) = self.core.keeper_rests(now) {
            self.check_for_calls(now);
            return Some(rest);
        }
        let mut due = self.core.keeper_due()?;
        if due <= now {
            self.executor.begin(now, true);
            self.core.keep(&mut self.executor, now);
            if self.executor.has_deferred() || !self.closing.is_empty() {
                self.handle_deferred();
            }
            // `handle_deferred` queues received letters as events; a second poll answers them, since the next may be a second away.
            if self.executor.has_queued() {
                self.core.set_keeping(true);
                self.poll_at(now, None);
                self.core.set_keeping(false);
            }
            due = self.core.keeper_due()?;
        }
        self.check_for_calls(now);
        Some(due.since(now))
    }

    /// Whether NCCL has abandoned this endpoint after an abort. Up to v10 NCCL has no call for that: it stops calling, and the threads that
    /// own the endpoint end.
    ///
    /// While those threads run, an endpoint is abandoned if only connects are open, and NCCL has made no call for as long as a connect may
    /// take. Once the threads have ended, listeners may be open too: other threads have had that time to close them. If a deregMr has failed,
    /// comms may be open as well, since NCCL's transport then closes nothing more of the communicator. Otherwise open comms keep the
    /// endpoint: they may be those of NCCL's bootstrap (NCCL_OOB_NET_ENABLE), which other threads than their maker use.
    pub(crate) fn is_abandoned(&self, owners_have_ended: bool) -> bool {
        let uncalled = match self.idle.called == self.core.called() {
            true => self.idle.time,
            false => Duration::ZERO,
        };
        if !owners_have_ended {
            return self.has_only_connects() && uncalled >= self.settings.connect_timeout;
        }
        let bound = if self.has_failed_to_deregister() {
            ABANDONED_AFTER
        } else if self.has_no_comms() {
            self.settings.connect_timeout
        } else {
            return false;
        };
        !self.is_waited_on() && uncalled >= bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn time_without_calls_counts_as_long_as_the_keeper_runs() {
        let mut idle = Idle::new(at(0));
        (1..=5).for_each(|now| idle.visit(at(1), at(now)));
        assert_eq!(idle.time, Duration::from_secs(4), "since the call");
        idle.visit(at(1), at(1000));
        assert_eq!(idle.time, Duration::from_secs(4) + VISIT_MAX, "the process was stopped");
        idle.visit(at(1001), at(1001));
        assert_eq!(idle.time, Duration::ZERO, "NCCL has called");
    }
}
