//! Letters out and in: what this end says of itself, and what the other end's word does to it.

use std::time::Duration;

use super::super::bound::{
    CONTROL_HANGS, QUERY_AFTER, RAIL_ASK, RAIL_LAST, RAIL_SILENT, REFUSED_FOR_GOOD,
};
use super::super::counts::{Counts, PeerCounts};
use super::super::ids::{Epoch, Moment, Name, PacketNumber};
use super::super::letter::{About, Body, Hello, Letter, Query, Status, Trial};
use super::control_rails::RailNews;
use super::{Cause, Channel, DueLetter, Sent, State, Told};
use crate::bits::low8;
use crate::limits::MAX_DATA_RAILS;

/// A letter that is due, its rail, and what it settles.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub rail: u8,
    pub letter: Letter,
    what: DueLetter,
}

/// How far the peer is known to have seen our parts.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    seen: Counts,
    /// Our counts when the last QUERY was written.
    asked: Counts,
    /// A bit per rail that is lost: it is not waited for.
    ignored: u16,
    /// For each rail: since when its count stands still below what was asked, and the answers that said so.
    stalled: [Option<(Moment, u32)>; MAX_DATA_RAILS],
}

impl Confirmed {
    pub(super) fn ignore(&mut self, rail: u8) {
        self.ignored |= 1 << (rail % 16);
    }

    /// The peer has seen so many parts by a rail, and they count again.
    pub(super) fn heed(&mut self, rail: u8, parts: u32) {
        self.ignored &= !(1 << (rail % 16));
        self.seen.set(rail, parts);
        self.asked.set(rail, parts);
    }

    pub(super) fn seen_on(&self, rail: u8) -> u32 {
        self.seen.get(rail)
    }

    /// Whether all that we wrote is known to be there.
    pub(super) fn settles(&self, counts: &PeerCounts) -> bool {
        self.missing(&counts.completed).is_none()
    }

    /// A rail on which fewer parts were seen than written. An arrival may be seen before its write completes.
    fn missing(&self, written: &Counts) -> Option<u8> {
        if *written == self.seen {
            return None;
        }
        (0..low8(MAX_DATA_RAILS as u64)).find(|rail| self.lacks(*rail, written))
    }

    fn lacks(&self, rail: u8, written: &Counts) -> bool {
        let behind = written.get(rail).wrapping_sub(self.seen.get(rail)).cast_signed();
        self.ignored >> rail & 1 == 0 && behind > 0
    }

    /// An answer. The rail whose parts are lost: two answers at least leave it behind, for this long.
    fn answered(&mut self, seen: &Counts, now: Moment, bound: Duration) -> Option<u8> {
        let (before, asked) = (std::mem::replace(&mut self.seen, *seen), self.asked);
        let mut lost = None;
        for rail in 0..low8(MAX_DATA_RAILS as u64) {
            let lacks = self.lacks(rail, &asked);
            let stalled = &mut self.stalled[usize::from(rail)];
            *stalled = match *stalled {
                _ if !lacks => None,
                Some((since, answers)) if before.get(rail) == seen.get(rail) => {
                    Some((since, answers + 1))
                }
                _ => Some((now, 1)),
            };
            let is_lost =
                stalled.is_some_and(|(since, answers)| answers >= 2 && now.since(since) >= bound);
            if is_lost {
                lost = lost.or(Some(rail));
            }
        }
        lost
    }

    fn is_stalled(&self) -> bool {
        self.stalled.iter().any(Option::is_some)
    }
}

impl Channel {
    /// Whether the peer is known to have seen all that was written; else it is asked at once.
    pub fn confirms(&mut self, counts: &PeerCounts) -> bool {
        let settles = self.confirmed.settles(counts);
        if !settles && self.ending.may_ask() {
            self.recovery.ask_now();
        }
        settles
    }

    /// The letter that is due. `waits`: a connection waits for something that the peer is to do.
    pub fn next_letter(&mut self, counts: &PeerCounts, waits: bool, now: Moment) -> Option<Due> {
        if self.state != State::Alive {
            return None;
        }
        let waits = waits || self.waits(counts) || self.asking.is_due();
        if !waits {
            self.recovery.content(now);
        } else if self.is_silent(now) {
            self.fail(Cause::Silent);
            return None;
        } else if self.is_refused(now) {
            self.fail(Cause::Refused);
            return None;
        }
        let inbox = self.inbox.as_ref()?;
        let lease = *inbox.lease();
        let target = self.shadow.target().copied();
        let what = self.recovery.due(target.is_some(), waits, now)?;
        let epoch = target.map_or(Epoch(0), |target| target.epoch);
        let counts = *counts;
        let asked_by = match what {
            DueLetter::Status { rail, .. } if self.rails.lives(rail) => Some(rail),
            _ => None,
        };
        let rail = match asked_by {
            Some(rail) => rail,
            None => self.living_rail_past(self.recovery.rails_passed())?,
        };
        let body = match what {
            DueLetter::Hello => Body::Hello(Hello {
                lease,
                key: self.parameters.key,
                consumed: inbox.consumed(),
                echo: epoch,
                wants_echo: !self.recovery.is_echoed(),
            }),
            DueLetter::Query => Body::Query(Query {
                epoch,
                completed: self.shadow.completed(),
                lost: self.recovery.takes_for_lost(),
                rail,
                counts,
                about: self.asking.about(),
            }),
            DueLetter::Status { asked, .. } => Body::Status(Status {
                epoch: lease.epoch,
                consumed: inbox.consumed(),
                asked,
                counts,
                waits,
                failed: false,
                idle_ms: self.asking.idle_ms(),
                about: self.asking.answer_owed(),
            }),
        };
        let letter = Letter { key: self.peer_key, rails: self.rails.numbers(), body };
        Some(Due { rail, letter, what })
    }

    /// Whether the channel itself waits for the peer.
    fn waits(&self, counts: &PeerCounts) -> bool {
        let elsewhere = self.shadow.target().is_some_and(|target| self.is_lost(target.rail));
        self.shadow.unacknowledged() > 0
            || elsewhere
            || !self.recovery.is_echoed()
            || self.ending.is_begun()
            || !self.confirmed.settles(counts)
    }

    /// Whether a peer that is known was silent for too long. Set-up has bounds of its own, and past END silence is its end.
    fn is_silent(&self, now: Moment) -> bool {
        self.shadow.target().is_some()
            && !self.ending.has_peer_said()
            && self.recovery.silence(now) >= self.parameters.peer_timeout
    }

    /// Whether no control rail takes anything for a peer that is known, for too long.
    fn is_refused(&self, now: Moment) -> bool {
        self.shadow.target().is_some()
            && !self.ending.has_peer_said()
            && self.recovery.refused_for(now) >= REFUSED_FOR_GOOD.min(self.parameters.peer_timeout)
    }

    /// Its rail takes none for the moment.
    pub fn letter_refused(&mut self, now: Moment) {
        self.recovery.refused(now);
    }

    /// It was posted.
    pub fn letter_posted(&mut self, due: &Due, now: Moment) {
        self.recovery.said(due.what, now);
        match due.what {
            DueLetter::Status { .. } => {
                self.acknowledgement.told();
                self.asking.answered();
            }
            DueLetter::Query => {
                self.asking.asked();
                if let Body::Query(query) = &due.letter.body {
                    self.confirmed.asked = query.counts.completed;
                }
            }
            DueLetter::Hello => {}
        }
    }

    /// The last word of a channel that has failed or is over: it answers a QUERY or a HELLO. None as long as the peer has said none.
    pub fn last_letter(&self, counts: &PeerCounts) -> Option<(u8, Letter)> {
        let inbox = self.inbox.as_ref().filter(|_| self.peer_key != 0)?;
        let body = Body::Status(Status {
            epoch: inbox.lease().epoch,
            consumed: inbox.consumed(),
            asked: inbox.consumed(),
            counts: *counts,
            waits: false,
            failed: self.state != State::Over,
            idle_ms: 0,
            about: None,
        });
        // One that was lost may work again.
        let rail = self.living_rail().or_else(|| self.rails.open(inbox.lease().rail))?;
        Some((rail, Letter { key: self.peer_key, rails: self.rails.numbers(), body }))
    }

    /// Asks the peer how far it is, with this connection if one is named by what the peer calls it.
    pub fn ask_about(&mut self, name: Option<Name>) {
        self.asking.want(name);
        self.recovery.ask_now();
    }

    /// The peer is asked again soon: whether it runs decides about a rail.
    pub(crate) fn ask_soon(&mut self) {
        self.recovery.ask_within(RAIL_ASK);
    }

    /// What the peer said last when it was asked, and when, by the clock of polls.
    pub fn told(&self) -> Option<&Told> {
        self.asking.told()
    }

    /// Packets that had to go out again. It wraps.
    pub fn resent(&self) -> u32 {
        self.recovery.resent()
    }

    /// How long nothing was heard of the peer while something was waited for.
    pub fn silence(&self, now: Moment) -> Duration {
        self.recovery.silence(now)
    }

    /// Whether a letter is of this channel's peer. A proof stands in for the key in the first HELLO.
    pub fn believes(&self, letter: &Letter, proven: bool) -> bool {
        letter.key == self.parameters.key
            || (letter.key == 0 && proven && matches!(letter.body, Body::Hello(_)))
    }

    /// What every letter says, whatever else.
    pub fn letter_arrived(&mut self, letter: &Letter, (now, patience): (Moment, Moment)) {
        self.recovery.heard(patience);
        let changed = self.rails.heard(letter.rails, now);
        for rail in (0..self.parameters.rails).filter(|rail| changed >> rail & 1 != 0) {
            self.without_rail(rail);
        }
    }

    /// A letter about one control rail alone: a trial of a lost one, or the answer to one. It is due once.
    #[inline]
    pub fn next_trial(&mut self, now: Moment) -> Option<(u8, Letter)> {
        let ends = self.ending.is_begun() || self.ending.has_peer_said();
        if self.rails.is_whole()
            || ends
            || self.state != State::Alive
            || self.shadow.target().is_none()
        {
            return None;
        }
        let (rail, trial) = self.rails.next_trial(now)?;
        let body = Body::Trial(trial);
        Some((rail, Letter { key: self.peer_key, rails: self.rails.numbers(), body }))
    }

    /// A letter about one control rail has come.
    pub fn tried(&mut self, trial: &Trial, now: Moment) {
        self.rails.tried(trial, now);
    }

    /// Control rails that were lost or came back, for the log: each once.
    #[inline]
    pub fn rail_news(&mut self) -> Option<RailNews> {
        if self.rails.is_whole() {
            return None;
        }
        Some(self.rails.take_news()).filter(|news| *news != RailNews::default())
    }

    /// A HELLO whose inbox was adopted, or is known.
    pub fn greeted(&mut self, hello: &Hello) {
        self.peer_key = hello.key;
        if self.inbox.as_ref().is_some_and(|inbox| inbox.lease().epoch == hello.echo) {
            self.recovery.echoed();
        }
        if hello.wants_echo {
            self.recovery.owe_echo();
        }
    }

    /// A QUERY, after what is in the inbox was consumed. `about`: how far the connection is that it names; `idle`: how long the
    /// caller of this side has not polled.
    pub fn asked(&mut self, query: &Query, about: Option<About>, idle: Duration) {
        self.asking.owe(about, idle);
        let Some(inbox) = &self.inbox else { return };
        let behind = query.completed.distance(self.consumed_last()).cast_signed() > 0;
        if query.epoch < inbox.lease().epoch {
            self.recovery.say_hello_again();
        } else if query.lost && behind {
            self.wants_inbox = true;
            self.wants_another_rail = true;
        }
        self.recovery.owe_status(query.completed, query.rail);
    }

    /// A STATUS. Answers a data rail whose parts do not arrive; `survives`: another one is left.
    pub fn answered(
        &mut self,
        status: &Status,
        survives: bool,
        now: Moment,
        left: impl FnMut(Sent),
    ) -> Option<u8> {
        if status.failed {
            self.fail(Cause::Peer);
            return None;
        }
        let seen = &status.counts.seen;
        let last = (self.parameters.peer_timeout / 2).min(RAIL_LAST);
        let bound = if survives { last.min(RAIL_SILENT) } else { last };
        let lost = self.confirmed.answered(seen, now, bound);
        self.recovery.answered();
        if self.confirmed.is_stalled() {
            // Else the answer that tells comes up to a second after the bound.
            self.recovery.ask_within(RAIL_ASK);
        }
        self.asking.heard(status, now);
        // Whichever inbox it came from: what was consumed stays so.
        self.acknowledged(status.consumed, now, left);
        let current = self.shadow.target().is_some_and(|target| target.epoch == status.epoch);
        let unconsumed = is_after(status.asked, status.consumed);
        if current && unconsumed && status.consumed == self.shadow.acknowledged() {
            self.recovery.left_unconsumed();
            if self.recovery.takes_for_lost() {
                // The next question says so, and the peer lends a new inbox.
                self.recovery.ask_now();
            } else {
                self.recovery.ask_within(QUERY_AFTER);
            }
        }
        self.find_hanging(now);
        lost
    }
}

impl Channel {
    /// The peer answers by letters, and a packet's write does not end: its rail is lost. The only one gets as long as a silent peer.
    fn find_hanging(&mut self, now: Moment) {
        let hanging = self.shadow.is_writing().then(|| self.shadow.acknowledged());
        let hangs = self.recovery.hangs(hanging, now);
        let Some(target) = self.shadow.target().filter(|_| hanging.is_some()) else { return };
        let rail = target.rail;
        let bound = match self.living_rail_past(1) == Some(rail) {
            true => self.parameters.peer_timeout,
            false => CONTROL_HANGS,
        };
        if hangs >= bound && !self.is_lost(rail) {
            self.rail_lost(rail);
        } else {
            self.recovery.ask_within(RAIL_ASK);
        }
    }
}

fn is_after(one: PacketNumber, other: PacketNumber) -> bool {
    one.distance(other).cast_signed() > 0
}
