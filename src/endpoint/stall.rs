//! Stall reports: checks regularly whether a request has waited for long, queries the peer's progress, and logs which side is late.
//!
//! ```text
//!  NCCL's poll ── a check is due ──▶ the request that waits longest ── ¾ of the bound ─▶ QUERY about its connection
//!                                                                  └─ the bound, and STATUS or silence ─▶ one WARN
//!  the keeper ── requests are open, and NCCL has not polled ─▶ one WARN
//! ```
//!
//! Starting a request records nothing. A check records which requests are open, and later checks see which of those still are. Time counts
//! only while NCCL polls (or, for the keeper's check, while the keeper does), not while the process is stopped. A request that waits for
//! the peer's program does not count as waiting while other messages of the communicator complete: receives may be posted long before they
//! are needed.

use std::time::Duration;

use counters::Counter;
use proto::channel::PeerReport;
use proto::connection::Connection as _;
use proto::limits::MAX_DATA_RAILS;
use proto::stall::{self, ConnectionState, Late, There};
use proto::{ChannelId, Moment, Slot};

use super::Endpoint;
use super::bound::{REPORT_EVERY, SILENT_AFTER, STALL_CHECK_MAX, STALL_CHECK_MIN, STALL_CHECKS};
use super::seldom::Seldom;
use super::side::Side;
use crate::types::stall::{ConnectionSnapshot, RailSnapshot, Snapshot, Stall, Uncalled, Waiting};

/// The schedule of the checks, and their state.
#[derive(Debug)]
pub(super) struct StallWatch {
    /// None: no reports.
    bound: Option<Duration>,
    due: Moment,
    /// The last check, and the time in which NCCL has polled until then.
    checked: Moment,
    polled: Duration,
    /// Completed messages of all connections at the last check, and since when the count has not changed. It wraps.
    completed: u32,
    quiet_since: Duration,
    /// The keeper's last check, and for how long it has seen no call of NCCL's.
    kept: Moment,
    uncalled: Duration,
    /// Whether that was reported.
    uncalled_reported: bool,
}

/// A request or a call that waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    waiting: Waiting,
    /// The slot of its connection. None: a connect to a peer without a channel yet.
    slot: Option<Slot>,
    channel: Option<ChannelId>,
    waited: Duration,
}

impl Waiter {
    /// The slot of the connection for a QUERY to the peer. None for a connect, whose connection the peer does not know yet.
    fn asks_about(&self) -> Option<Slot> {
        self.slot.filter(|_| self.waiting != Waiting::Connecting)
    }
}

impl StallWatch {
    /// A `bound` of zero: no reports.
    pub(super) fn new(bound: Duration) -> Self {
        Self {
            bound: (!bound.is_zero()).then_some(bound),
            due: Moment::default(),
            checked: Moment::default(),
            polled: Duration::ZERO,
            completed: 0,
            quiet_since: Duration::ZERO,
            kept: Moment::default(),
            uncalled: Duration::ZERO,
            uncalled_reported: false,
        }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now >= self.due
    }

    fn every(&self) -> Duration {
        self.bound.map_or(STALL_CHECK_MAX, |bound| {
            (bound / STALL_CHECKS).clamp(STALL_CHECK_MIN, STALL_CHECK_MAX)
        })
    }

    /// Begins a check, and returns the time polled so far. A longer pause between polls counts as two intervals.
    fn begin_check(&mut self, now: Moment) -> Duration {
        let every = self.every();
        self.polled += now.since(self.checked).min(2 * every);
        (self.checked, self.due) = (now, now.plus(every));
        (self.uncalled, self.uncalled_reported) = (Duration::ZERO, false);
        self.polled
    }

    /// For how long no message has been completed.
    fn quiet(&mut self, completed: u32) -> Duration {
        if completed != self.completed {
            (self.completed, self.quiet_since) = (completed, self.polled);
        }
        self.polled.saturating_sub(self.quiet_since)
    }
}

impl Endpoint {
    /// Checks for stalls, in a poll of NCCL's.
    #[cold]
    pub(super) fn check_stalls(&mut self, now: Moment) {
        let polled = self.watch.begin_check(now);
        // For reports, and for dumps, which change nothing.
        self.learn_ranks();
        self.count_resent();
        self.check_speeds(polled);
        let Some(bound) = self.watch.bound else { return };
        let (longest, others) = self.longest(bound, polled, now);
        let Some(waiter) = longest else { return };
        if waiter.waited < bound * 3 / 4 {
            return;
        }
        let fresh = waiter.waited.min(bound / 2).max(STALL_CHECK_MIN);
        let report = waiter.channel.and_then(|channel| self.core.peer_report(channel, fresh));
        let asked = waiter.asks_about();
        let of = |report: &PeerReport| report.about.map(|(_, about)| about.name.slot) == asked;
        let is_reported = report.is_some_and(|report| asked.is_none() || of(&report));
        let silent = waiter.channel.map(|channel| self.core.silence(channel));
        if !is_reported && let Some(channel) = waiter.channel {
            self.core.query_progress(channel, asked);
        }
        let is_silent =
            silent.map_or(waiter.waited >= SILENT_AFTER, |silent| silent >= SILENT_AFTER);
        if waiter.waited >= bound && (is_reported || is_silent) && may_report() {
            let stall = self.stall(&waiter, report.filter(|_| is_reported), is_silent, others);
            log::warn!("{stall}");
        }
    }

    /// The request or call that has waited longest, and how many others have waited past the bound.
    fn longest(
        &mut self,
        bound: Duration,
        polled: Duration,
        now: Moment,
    ) -> (Option<Waiter>, usize) {
        let mut longest: Option<Waiter> = None;
        let mut late = 0;
        let mut offer = |waiter: Waiter| {
            late += usize::from(waiter.waited >= bound);
            if longest.is_none_or(|other| waiter.waited > other.waited) {
                longest = Some(waiter);
            }
        };
        let state = |slot| self.core.connection(slot).map(|flow| flow.connection_state());
        let completed = self.comms.iter().filter_map(|(slot, _)| state(slot));
        let quiet = self.watch.quiet(completed.fold(0, |sum, state| sum.wrapping_add(state.done)));
        for (slot, comm) in self.comms.iter_mut() {
            if comm.is_closing {
                continue;
            }
            let mut waited = comm.waited(polled, bound / 2);
            if waited.is_zero() {
                continue;
            }
            if state(slot).is_some_and(|state| state.waits_for.is_of_program()) {
                waited = waited.min(quiet);
            }
            if waited >= bound && !std::mem::replace(&mut comm.seen.counted, true) {
                comm.tally.one(Counter::Stalls);
            }
            let waiting = match comm.side {
                Side::Send => Waiting::Sending,
                Side::Receive => Waiting::Receiving,
            };
            let channel = Some(comm.channel);
            offer(Waiter { waiting, slot: Some(slot), channel, waited });
        }
        for pending in self.connects.iter() {
            // NCCL has no call to give up a connect: it stops polling it.
            if now.since(pending.called()) >= bound / 2 {
                continue;
            }
            let channel = self.executor.peers.channel(pending.peer());
            let waited = pending.waited(self.core.polled_time());
            let slot = pending.slot();
            offer(Waiter { waiting: Waiting::Connecting, slot, channel, waited });
        }
        (longest, late.saturating_sub(1))
    }

    fn stall(
        &self,
        waiter: &Waiter,
        report: Option<PeerReport>,
        silent: bool,
        others: usize,
    ) -> Stall {
        let Waiter { waiting, slot, channel, waited } = *waiter;
        let flow = slot.and_then(|slot| self.core.connection(slot));
        let met = ConnectionState {
            waits_for: stall::WaitsFor::Accept,
            open: true,
            ..ConnectionState::default()
        };
        let here = flow.map_or(met, |flow| flow.connection_state());
        let about = report.and_then(|report| report.about).map(|(_, about)| about);
        let about = about.filter(|about| Some(about.name.slot) == slot);
        let idle = report.map_or(Duration::ZERO, |report| report.idle);
        let counts = channel.and_then(|channel| self.core.account(channel));
        let counts = counts.map(|account| account.counts);
        let missing = counts.zip(report).and_then(|(ours, report)| {
            let behind = |rail: &u8| {
                let sent = report.counts.completed.get(*rail);
                sent.wrapping_sub(ours.seen.get(*rail)).cast_signed() > 0
            };
            (0_u8..).take(MAX_DATA_RAILS).find(behind)
        });
        let shadow = channel.and_then(|channel| self.core.channel(channel));
        let unconsumed = shadow.map_or(0, |channel| channel.shadow().unacknowledged());
        let there = There {
            silent,
            idle: idle >= waited / 2,
            unconsumed,
            state: about.map(|about| about.state),
            missing,
            slow: slot.and_then(|slot| self.comms.at(slot)).is_some_and(|comm| comm.seen.slow),
        };
        let late = stall::late(&here, &there);
        let peer = channel.and_then(|channel| self.executor.peer(channel));
        let rail = match late {
            Late::Data { rail: Some(rail) } => peer.and_then(|peer| {
                let lane = peer.data.get(usize::from(rail))?;
                Some(self.executor.nics[lane.nic].label.clone())
            }),
            _ => None,
        };
        Stall {
            device: self.label(),
            waiting,
            peer: peer.map(|peer| peer.name.to_string()),
            waited,
            late,
            here,
            there: there.state,
            rail,
            silent: channel.map_or(waited, |channel| self.core.silence(channel)),
            idle,
            unconsumed,
            others,
        }
    }

    /// Checks, in the keeper's poll, whether NCCL has requests open and does not poll.
    #[cold]
    pub(super) fn check_for_calls(&mut self, now: Moment) {
        let Some(bound) = self.watch.bound else { return };
        if self.outstanding == 0 {
            (self.watch.kept, self.watch.uncalled) = (now, Duration::ZERO);
            return;
        }
        // At least two checks are needed: after a process was stopped, NCCL polls before the keeper checks again.
        let gap = now.since(self.watch.kept).min(bound / 2).min(now.since(self.core.called()));
        self.watch.uncalled += gap;
        self.watch.kept = now;
        if self.watch.uncalled >= bound && !self.watch.uncalled_reported && may_report() {
            self.watch.uncalled_reported = true;
            let requests = self.outstanding;
            let waited = now.since(self.core.called());
            let uncalled = Uncalled { device: self.label(), requests, waited };
            log::warn!("{uncalled}");
        }
    }

    /// The state of all connections, for a dump.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let connection = |(slot, comm): (Slot, &super::comms::Comm)| {
            let channel = self.core.channel(comm.channel);
            let flow = self.core.connection(slot);
            ConnectionSnapshot {
                slot: slot.number(),
                waiting: match comm.side {
                    Side::Send => Waiting::Sending,
                    Side::Receive => Waiting::Receiving,
                },
                peer: self
                    .executor
                    .peer(comm.channel)
                    .map_or_else(String::new, |peer| peer.name.to_string()),
                is_closing: comm.is_closing,
                requests: comm.requests(),
                here: flow.map_or_else(ConnectionState::default, |flow| flow.connection_state()),
                waited: comm
                    .seen
                    .since()
                    .map_or(Duration::ZERO, |since| self.watch.polled.saturating_sub(since)),
                silent: self.core.silence(comm.channel),
                unconsumed: channel.map_or(0, |channel| channel.shadow().unacknowledged()),
                failed: channel.is_none_or(|channel| channel.failure().is_some()),
            }
        };
        let rail = |port: &super::nics::Port| {
            let carried = port.nic.traffic();
            RailSnapshot {
                name: port.label.clone(),
                in_flight: port.in_flight(),
                bytes: carried.bytes,
                refused: carried.refused,
            }
        };
        Snapshot {
            number: self.number,
            device: self.label(),
            requests: self.outstanding,
            uncalled: now.since(self.core.called()),
            listeners: self.listeners.keys().len(),
            connects: self.connects.keys().len(),
            failed: self.failure.is_some() || self.broken,
            rails: self.executor.nics.iter().map(rail).collect(),
            connections: self.comms.iter().map(connection).collect(),
        }
    }
}

/// Whether the last report is long enough ago.
fn may_report() -> bool {
    static REPORTED: Seldom = Seldom::new();
    REPORTED.may(REPORT_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn time_without_polls_is_no_wait() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut watch = StallWatch::new(s(8));
        assert!(watch.is_due(at(0)));
        let first = watch.begin_check(at(1000));
        assert!(!watch.is_due(at(1999)) && watch.is_due(at(2000)));
        assert_eq!(watch.begin_check(at(2000)) - first, s(1));
        assert_eq!(watch.begin_check(at(60_000)) - first, s(3), "a pause counts as two intervals");
    }

    #[test]
    fn without_a_bound_checks_find_nothing() {
        assert_eq!(StallWatch::new(Duration::ZERO).bound, None);
    }
}
