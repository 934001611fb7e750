//! Letters: composes HELLO, QUERY, STATUS and TRIAL, and handles those of the peer.
//!
//! `now` is the time by the clock of [`PolledClock`](crate::polled::PolledClock), except for control rails that are lost: their
//! pauses and trials go by the caller's clock.

use std::time::Duration;

use super::super::bound::{
    CONTROL_HANGS, QUERY_AFTER, RAIL_ANSWER_GAP, RAIL_QUERY, RAIL_SILENT, REFUSED_FOR_GOOD,
    last_rail,
};
use super::super::counts::{Counts, PeerCounts};
use super::super::ids::{Epoch, Moment, Name};
use super::super::letter::{About, Body, Hello, Letter, Query, Status, Trial};
use super::control_rails::RailNews;
use super::epoch::NeedsInbox;
use super::{Cause, Channel, DueLetter, PeerReport, Sent, State};
use crate::bits::low8;
use crate::limits::MAX_DATA_RAILS;
use crate::polled::{Now, PolledTime};
use crate::rail_set::RailSet;

/// A letter that is due, and its rail.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub rail: u8,
    pub letter: Letter,
    what: DueLetter,
}

/// Which of our parts the peer has confirmed, by its STATUS.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    seen: Counts,
    /// Our counts in the last QUERY.
    queried: Counts,
    /// Lost rails: confirmation on these is not awaited.
    ignored: RailSet,
    /// For each rail on which the peer's count is below ours: since when the peer's count has not changed.
    stalled: [Option<PolledTime>; MAX_DATA_RAILS],
    answered_at: PolledTime,
    /// The last answer came more than [`RAIL_ANSWER_GAP`] after the one before it.
    late: bool,
    /// The last answer was the first such one after answers without a gap.
    resumes: bool,
}

impl Confirmed {
    pub(super) fn ignore(&mut self, rail: u8) {
        self.ignored.insert(rail);
    }

    /// Compares the counts of a rail again, from `parts` on.
    pub(super) fn resume(&mut self, rail: u8, parts: u32) {
        self.ignored.remove(rail);
        self.seen.set(rail, parts);
        self.queried.set(rail, parts);
    }

    pub(super) fn seen_on(&self, rail: u8) -> u32 {
        self.seen.get(rail)
    }

    /// Whether the peer has confirmed all that was written.
    pub(super) fn settles(&self, counts: &PeerCounts) -> bool {
        self.missing(&counts.completed).is_none()
    }

    /// A rail on which the peer has seen fewer parts than were written. (It may also have seen more: an arrival may be seen before its
    /// write completes here.)
    fn missing(&self, written: &Counts) -> Option<u8> {
        if *written == self.seen {
            return None;
        }
        (0..low8(MAX_DATA_RAILS as u64)).find(|rail| self.lacks(*rail, written))
    }

    fn lacks(&self, rail: u8, written: &Counts) -> bool {
        let behind = written.get(rail).wrapping_sub(self.seen.get(rail)).cast_signed();
        !self.ignored.has(rail) && behind > 0
    }

    /// Handles the counts of a STATUS. Returns a rail whose parts are lost: its count has been behind for `bound`. That time
    /// starts again after a gap between answers, because the peer may have been stopped: it then answers every QUERY that
    /// came meanwhile, perhaps before it polls its data rails again. A peer whose answers all come after gaps is idle and
    /// not stopped, so only the first gap counts.
    fn answered(&mut self, seen: &Counts, now: PolledTime, bound: Duration) -> Option<u8> {
        let (before, asked) = (std::mem::replace(&mut self.seen, *seen), self.queried);
        let answered_at = std::mem::replace(&mut self.answered_at, now);
        let late = now.since(answered_at) > RAIL_ANSWER_GAP;
        self.resumes = !std::mem::replace(&mut self.late, late) && late;
        let mut lost = None;
        for rail in 0..low8(MAX_DATA_RAILS as u64) {
            let lacks = self.lacks(rail, &asked);
            let stalled = &mut self.stalled[usize::from(rail)];
            *stalled = match *stalled {
                _ if !lacks => None,
                Some(since) if before.get(rail) == seen.get(rail) && !self.resumes => Some(since),
                _ => Some(now),
            };
            if stalled.is_some_and(|since| now.since(since) >= bound) {
                lost = lost.or(Some(rail));
            }
        }
        lost
    }
}

impl Channel {
    /// Whether the peer has confirmed all that was written; if not, a QUERY is sent at once.
    pub fn confirms(&mut self, counts: &PeerCounts) -> bool {
        let settles = self.confirmed.settles(counts);
        if !settles && self.ending.may_query() {
            self.recovery.query_now();
        }
        settles
    }

    /// The letter that is due. `waits`: a connection waits for an action of the peer. Also detects the peer's timeout.
    pub fn next_letter(
        &mut self,
        counts: &PeerCounts,
        waits: bool,
        now: PolledTime,
    ) -> Option<Due> {
        if self.state != State::Alive {
            return None;
        }
        let (waits, unconfirmed) = self.waits(counts, waits);
        self.recovery.awaits_acknowledgement(self.shadow.unacknowledged() > 0, now);
        if waits {
            self.recovery.waits();
            let silent = self.is_silent(now);
            if silent || self.is_refused(now) {
                self.fail(if silent { Cause::Silent } else { Cause::Refused });
                return None;
            }
        } else {
            self.recovery.content(now);
        }
        let inbox = self.inbox.as_ref()?;
        let lease = *inbox.lease();
        let target = self.shadow.target().copied();
        let what = self.recovery.due(target.is_some(), (waits, unconfirmed), now)?;
        let epoch = target.map_or(Epoch(0), |target| target.epoch);
        let counts = *counts;
        let queried_by = match what {
            DueLetter::Status { rail, .. } if self.rails.lives(rail) => Some(rail),
            _ => None,
        };
        let rail = match queried_by {
            Some(rail) => rail,
            None => self.letter_rail(what)?,
        };
        let body = match what {
            DueLetter::Hello => Body::Hello(Hello {
                lease,
                key: self.parameters.key,
                consumed: inbox.consumed(),
                echo: epoch,
                requests_echo: !self.recovery.is_echoed(),
            }),
            DueLetter::Query => Body::Query(Query {
                epoch,
                completed: self.shadow.completed(),
                lost: self.recovery.takes_for_lost(),
                rail,
                counts,
                about: self.inquiry.about(),
            }),
            DueLetter::Status { asked, .. } => Body::Status(Status {
                epoch: lease.epoch,
                consumed: inbox.consumed(),
                asked,
                counts,
                waits,
                failed: false,
                idle_ms: self.inquiry.idle_ms(),
                about: self.inquiry.pending_answer(),
            }),
        };
        let letter = Letter { key: self.peer_key, rails: self.rails.numbers(), body };
        Some(Due { rail, letter, what })
    }

    /// A poll settles the channel. `before`: the time of the previous poll.
    #[inline]
    pub fn rested(&mut self, before: PolledTime) {
        self.recovery.rested(before);
    }

    /// When the channel's timers, letters and end have to be checked if nothing happens before; a time in the past means as soon as
    /// possible. `waits` as in [`next_letter`](Self::next_letter). None: no timer runs.
    pub fn due_at(&self, counts: &PeerCounts, waits: bool, now: Now) -> Option<Moment> {
        let Now { clock: now, polled } = now;
        let (waits, unconfirmed) = self.waits(counts, waits);
        let soon = self.is_ending()
            || self.needs_inbox != NeedsInbox::No
            || self.recovery.has_pending()
            // A wait that has begun or ended since the channel was last settled starts the timers.
            || waits != self.recovery.is_waiting();
        if soon {
            return Some(now);
        }
        let query = waits.then(|| {
            let silent = self.recovery.silent_at(self.parameters.peer_timeout);
            let query = self.recovery.query_at(unconfirmed).min(silent);
            // The clock of timeouts is never faster than the caller's.
            now.plus(query.since(polled))
        });
        let timers = [query, self.acknowledgement.due_at(), self.rails.due_at()];
        timers.into_iter().flatten().min()
    }

    /// Whether this side waits for the peer; and whether it waits for the confirmation of parts. `connection`: a connection waits.
    fn waits(&self, counts: &PeerCounts, connection: bool) -> (bool, bool) {
        let unconfirmed = !self.confirmed.settles(counts);
        // The peer has to lend an inbox on another rail.
        let elsewhere = self.shadow.target().is_some_and(|target| self.is_lost(target.rail));
        let waits = connection
            || unconfirmed
            || self.shadow.unacknowledged() > 0
            || elsewhere
            || !self.recovery.is_echoed()
            || self.ending.is_begun()
            || self.inquiry.is_due();
        (waits, unconfirmed)
    }

    /// Whether the peer has timed out. Set-up has timeouts of its own, and after the peer's END silence is no error.
    fn is_silent(&self, now: PolledTime) -> bool {
        self.shadow.target().is_some()
            && !self.ending.has_peer_said()
            && self.recovery.silence(now) >= self.parameters.peer_timeout
    }

    /// Whether all control rails have refused letters to the peer for too long.
    fn is_refused(&self, now: PolledTime) -> bool {
        self.shadow.target().is_some()
            && !self.ending.has_peer_said()
            && self.recovery.refused_for(now) >= REFUSED_FOR_GOOD.min(self.parameters.peer_timeout)
    }

    /// The provider refused the letter (-FI_EAGAIN).
    pub fn letter_refused(&mut self, due: &Due, now: PolledTime) {
        self.recovery.refused(due.rail, now);
    }

    /// The letter was posted.
    pub fn letter_posted(&mut self, due: &Due, now: PolledTime) {
        self.recovery.accepted();
        self.letter_dropped(due, now);
    }

    /// The letter was dropped on this side. It is repeated like a letter that was lost on the way, and says nothing about the provider.
    pub fn letter_dropped(&mut self, due: &Due, now: PolledTime) {
        self.recovery.said(due.what, due.rail, now);
        match due.what {
            DueLetter::Status { .. } => {
                self.acknowledgement.acknowledged();
                self.inquiry.answer_left();
            }
            DueLetter::Query => {
                self.inquiry.query_left();
                if let Body::Query(query) = &due.letter.body {
                    self.confirmed.queried = query.counts.completed;
                }
            }
            // HELLO also acknowledges what was consumed. If that includes the peer's END, the peer sends no QUERY for it any more.
            DueLetter::Hello if self.ending.has_peer_said() => self.acknowledgement.acknowledged(),
            DueLetter::Hello => {}
        }
    }

    /// The STATUS with which a channel that has failed or is over answers a QUERY or a HELLO. None before the peer's
    /// first HELLO, which has the key. There may be no inbox yet.
    pub fn last_letter(&self, counts: &PeerCounts) -> Option<(u8, Letter)> {
        if self.peer_key == 0 {
            return None;
        }
        let consumed = self.consumed_last();
        let body = Body::Status(Status {
            epoch: self.inbox.as_ref().map_or(Epoch(0), |inbox| inbox.lease().epoch),
            consumed,
            asked: consumed,
            counts: *counts,
            waits: false,
            // If this side ended because the peer was unreachable, the peer never gets our END.
            failed: self.state != State::Over || !self.is_settled(),
            idle_ms: 0,
            about: None,
        });
        // If no rail lives, use that of the inbox: it may work again.
        let rail = self.living_rail().unwrap_or_else(|| self.inbox_rail());
        Some((rail, Letter { key: self.peer_key, rails: self.rails.numbers(), body }))
    }

    /// Queries the peer's progress, of one connection if `name` is its name at the peer.
    pub fn query_progress(&mut self, name: Option<Name>) {
        self.inquiry.request(name);
        self.recovery.query_now();
    }

    /// Sends the next QUERY soon: a rail whose writes do not complete is lost only if the peer answers, since writes to a stopped peer do
    /// not complete either.
    pub(crate) fn query_soon(&mut self) {
        self.recovery.query_within(RAIL_QUERY);
    }

    /// The peer's last STATUS, and when it came, by the clock of [`PolledClock`](crate::polled::PolledClock).
    pub fn peer_report(&self) -> Option<&PeerReport> {
        self.inquiry.report()
    }

    /// Retransmitted packets. The count wraps.
    pub fn resent(&self) -> u32 {
        self.recovery.resent()
    }

    /// How long the peer has been silent while this side waited for it.
    pub fn silence(&self, now: PolledTime) -> Duration {
        self.recovery.silence(now)
    }

    /// Whether a letter is from this channel's peer: it has the key, or it is the first HELLO and has a proof.
    pub fn believes(&self, letter: &Letter, proven: bool) -> bool {
        letter.key == self.parameters.key
            || (letter.key == 0 && proven && matches!(letter.body, Body::Hello(_)))
    }

    /// Handles what every letter carries: a sign of life, and the numbers of control rails.
    pub fn letter_arrived(&mut self, letter: &Letter, Now { clock: now, polled }: Now) {
        self.recovery.heard(polled);
        let changed = self.rails.heard(letter.rails, now);
        for rail in changed.iter() {
            self.without_rail(rail);
        }
    }

    /// The next TRIAL of a lost control rail, or the answer to a TRIAL. Each is returned once.
    #[inline]
    pub fn next_trial(&mut self, now: Moment) -> Option<(u8, Letter)> {
        if self.rails.is_whole()
            || self.is_ending()
            || self.state != State::Alive
            || self.shadow.target().is_none()
        {
            return None;
        }
        let (rail, trial) = self.rails.next_trial(now)?;
        let body = Body::Trial(trial);
        Some((rail, Letter { key: self.peer_key, rails: self.rails.numbers(), body }))
    }

    /// A TRIAL, or the answer to one, has arrived.
    pub fn tried(&mut self, trial: &Trial, now: Moment) {
        self.rails.tried(trial, now);
    }

    /// Control rails that were lost or came back, to be logged: each once.
    #[inline]
    pub fn rail_news(&mut self) -> Option<RailNews> {
        if self.rails.is_whole() {
            return None;
        }
        Some(self.rails.take_news()).filter(|news| *news != RailNews::default())
    }

    /// Handles a HELLO whose inbox was adopted, or is in use already.
    pub fn hello_arrived(&mut self, hello: &Hello) {
        self.peer_key = hello.key;
        if let Some(cause) = self.fails_once_met.take() {
            self.fail(cause);
        }
        if self.inbox.as_ref().is_some_and(|inbox| inbox.lease().epoch == hello.echo) {
            self.recovery.echoed();
        }
        if hello.requests_echo {
            self.recovery.echo_due();
        }
    }

    /// Handles a QUERY, after the inbox was drained. `about`: progress of the connection that it names; `idle`: how
    /// long NCCL has not polled on this side.
    pub fn query_arrived(&mut self, query: &Query, about: Option<About>, idle: Duration) {
        self.inquiry.answer_later(about, idle);
        let Some(inbox) = &self.inbox else { return };
        let behind = query.completed.is_after(self.consumed_last());
        if query.epoch < inbox.lease().epoch {
            self.recovery.say_hello_again();
        } else if query.lost && behind {
            self.needs_inbox.lost(query.completed);
        }
        self.recovery.status_due(query.completed, query.rail);
    }

    /// Handles a STATUS. Returns a data rail whose parts do not arrive. `survives`: another data rail is left, so the
    /// shorter timeout applies.
    pub fn status_arrived(
        &mut self,
        status: &Status,
        survives: bool,
        now: PolledTime,
        left: impl FnMut(Sent),
    ) -> Option<u8> {
        if status.failed {
            // After the peer's END nothing more comes from it, so its failure is none of ours.
            match self.ending.has_peer_said() {
                true => self.ending.lose_peer(),
                false => self.fail(Cause::Peer),
            }
            return None;
        }
        let seen = &status.counts.seen;
        let last = last_rail(self.parameters.peer_timeout);
        let bound = if survives { last.min(RAIL_SILENT) } else { last };
        let lost = self.confirmed.answered(seen, now, bound);
        // Valid for any epoch: packet numbers continue across inboxes.
        self.acknowledged(status.consumed, now, left);
        self.recovery.answered();
        self.inquiry.answer_arrived(status, now);
        let current = self.shadow.target().is_some_and(|target| target.epoch == status.epoch);
        let unconsumed = status.asked.is_after(status.consumed);
        if current && unconsumed && status.consumed == self.shadow.acknowledged() {
            if self.recovery.left_unconsumed() {
                // The next QUERY says `lost`, and the peer lends a new inbox.
                self.recovery.query_now();
            } else if !self.recovery.takes_for_lost() {
                self.recovery.query_within(QUERY_AFTER);
            }
        }
        self.find_hanging(now);
        lost
    }
}

impl Channel {
    /// If the peer answers letters but the write of a packet does not complete, its rail is lost. The only living rail
    /// gets the full peer timeout.
    fn find_hanging(&mut self, now: PolledTime) {
        let hanging = self.shadow.writing();
        let hangs = self.recovery.hangs(hanging, self.confirmed.resumes, now);
        let Some(target) = self.shadow.target().filter(|_| hanging.is_some()) else { return };
        let rail = target.rail;
        let bound = match self.is_only_living_rail(rail) {
            true => self.parameters.peer_timeout,
            false => CONTROL_HANGS,
        };
        if hangs >= bound && !self.is_lost(rail) {
            self.rail_lost(rail);
        } else {
            self.recovery.query_within(RAIL_QUERY);
        }
    }
}
