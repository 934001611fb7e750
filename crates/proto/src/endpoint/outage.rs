//! Data rails that are lost while others live: both ends stop posting there, find out what has arrived, and go on elsewhere.
//!
//! ```text
//!  an error, a loss, the peer's DOWN ─▶ no part is posted on it; DOWN (so many were posted)
//!     the peer's DOWN ─▶ as many have arrived ────────────────────────────────────────┬─▶ fenced: HELD, LISTED per connection,
//!                     └▶ fewer, and no more come ─▶ other peers leave the rail, too,   │         FENCED
//!                                                   and it is closed ─────────────────┘
//!     the peer's LISTED ─▶ what it lacks is posted again on other rails
//! ```
//!
//! A rail is *fenced* when nothing of the peer's can land by it any more. Only then the receiver says what it lacks: so no line is
//! ever complete while an older write may still reach its memory.

mod regain;

use std::time::Duration;

use super::super::account::Account;
use super::super::bound::{
    RAIL_CLOSE_MAX, RAIL_DRAIN_MAX, RAIL_DRAIN_STILL, RAIL_HANGS, RAIL_HEARD, RAIL_LAST, RAIL_LOOK,
    RAIL_REFUSES, RAIL_STILL, RAIL_STUCK,
};
use super::super::channel::Cause;
use super::super::connection::Connection;
use super::super::frame::{Frame, RailNote, RailState};
use super::super::ids::{Moment, Name};
use super::super::line::Line;
use super::super::memory::MemoryId;
use super::poll::Now;
use super::{Endpoint, Peer, Perform};
use crate::bits::{low8, low32};
pub(super) use regain::Histories;
use regain::Regain;

/// A lost data rail of one channel.
#[derive(Debug)]
pub(super) struct Outage {
    /// As the channel counts them.
    rail: u8,
    /// Our DOWN has left.
    told: bool,
    /// What the peer has posted there, once its DOWN has come; `plain`: no count says whether all of it arrives.
    expects: Option<Expected>,
    /// Nothing lands here by it any more; and the peer knows.
    fenced: bool,
    fence_told: bool,
    /// Nothing lands at the peer by it any more.
    peer_fenced: bool,
    /// It can only be fenced by closing it.
    wants_close: bool,
    /// Parts that were seen, and writes under way, when that changed last.
    moved: (u32, u32),
    still_since: Moment,
    regain: Regain,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    posted: u32,
    plain: bool,
}

/// What becomes of a data rail of this endpoint, whatever channels use it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Local {
    #[default]
    Open,
    /// Its channels leave it, until nothing of theirs moves there.
    Draining {
        since: Moment,
        still_since: Moment,
        moved: u32,
    },
    /// It was opened again, at this moment of the caller's clock.
    Reopened {
        since: Moment,
    },
    /// It is closed. What has happened on it before is taken with the next poll.
    Closing,
    Closed,
    /// It could not be closed.
    Stuck,
}

/// A rail that takes nothing for a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusing {
    rail: Option<u8>,
    since: Moment,
}

/// When the last write has ended on each rail that has some under way.
#[derive(Debug)]
pub(super) struct Hanging {
    look_at: Moment,
    /// A bit per rail on which nothing has ended for too long.
    rails: u16,
    /// Nothing has ended on a rail from one look to the next: the peer is asked, else nothing tells whether it is stopped.
    waits: bool,
    ended: Box<[(u32, Moment)]>,
}

impl Hanging {
    pub(super) fn new(rails: u8) -> Self {
        let ended = vec![(0, Moment::default()); rails.into()].into();
        Self { look_at: Moment::default(), rails: 0, waits: false, ended }
    }

    /// Whether nothing has ended on a rail lately.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Looks at the rails: whether nothing ends on one of them for so long, and as long as its writes may take; for `last` where
    /// no other rail is any better. The time in which the peer does not answer does not count: it may be stopped.
    #[cold]
    fn look(
        &mut self,
        account: &Account,
        stopped: bool,
        now: Moment,
        (bound, last): (Duration, Duration),
    ) {
        self.look_at = now.plus(RAIL_LOOK);
        let Account { rails, loads, .. } = account;
        let is_still = |rail: u8, ended: u32| {
            loads.is_open(rail) && rails.flying_on(rail) > 0 && rails.ended_on(rail) == ended
        };
        let still = (0..).zip(&self.ended).map(|(rail, (ended, _))| is_still(rail, *ended));
        let still = still.filter(|still| *still).count();
        self.waits = still > 0;
        let others = rails.survives() && still < loads.open_rails() as usize;
        let bound = if others { bound } else { last };
        for (rail, (ended, since)) in (0..).zip(&mut self.ended) {
            if stopped || !is_still(rail, *ended) {
                (*ended, *since) = (rails.ended_on(rail), now);
                continue;
            }
            let slow = Duration::from_micros(loads.queued(rail) / SLOWEST);
            if now.since(*since) >= bound + slow {
                self.rails |= 1 << rail;
            }
        }
    }
}

impl Outage {
    fn new(rail: u8, now: Moment, regain: Regain) -> Self {
        Self {
            rail,
            told: false,
            expects: None,
            fenced: false,
            fence_told: false,
            peer_fenced: false,
            wants_close: false,
            moved: (0, 0),
            still_since: now,
            regain,
        }
    }

    /// Whether a frame about it has not left.
    fn is_to_be_told(&self) -> bool {
        !self.told || self.fenced && !self.fence_told
    }

    /// Whether both ends know all of each other.
    fn is_settled(&self) -> bool {
        self.fenced && self.peer_fenced && !self.is_to_be_told()
    }
}

impl Peer {
    /// Whether the loop has to look after data rails.
    #[inline]
    pub(super) fn has_troubled_rails(&mut self, (real, now): Now) -> bool {
        if now >= self.hanging.look_at {
            let stopped = self.channel.silence(now) >= RAIL_HEARD;
            let last = (self.channel.peer_timeout() / 2).min(RAIL_LAST);
            let bound = if self.channel.closes_rails() { last.min(RAIL_HANGS) } else { last };
            self.hanging.look(&self.account, stopped, now, (bound, last));
            self.account.speeds.look(&mut self.account.loads);
        }
        self.account.rails.has_news() || self.hanging.rails != 0 || self.has_rested(real)
    }

    pub(super) fn has_rails_to_tell(&self) -> bool {
        self.outages.iter().any(|outage| outage.is_to_be_told() || outage.regain.is_to_be_told())
    }

    /// Whether the peer is to say something of a lost rail.
    pub(super) fn awaits_fence(&self) -> bool {
        let ended = self.channel.ending().has_peer_said();
        !ended && self.outages.iter().any(|one| one.expects.is_none() || !one.peer_fenced)
    }

    /// Whether writes on a data rail wait for a peer that may be stopped.
    pub(super) fn awaits_writes(&self) -> bool {
        self.hanging.waits()
    }

    /// Whether nothing of the peer's lands here by a lost rail any more: only then the channel is over.
    pub(super) fn is_fenced(&self) -> bool {
        self.outages.iter().all(|outage| outage.fenced)
    }

    /// Whether a lost rail is to be looked after.
    pub(super) fn has_outage(&self) -> bool {
        let flies = |outage: &Outage| self.account.rails.flying_on(outage.rail) > 0;
        self.channel.is_alive()
            && self
                .outages
                .iter()
                .any(|outage| !outage.is_settled() || flies(outage) || outage.regain.is_trying())
    }

    /// No part is posted on a lost rail any more, and its counts say nothing.
    fn leave_rail(&mut self, outage: Outage) {
        self.account.loads.close(outage.rail);
        self.channel.ignore_counts_of(outage.rail);
        self.outages.push(outage);
        self.stirred = true;
    }

    fn outage(&mut self, rail: u8) -> Option<&mut Outage> {
        self.outages.iter_mut().find(|outage| outage.rail == rail)
    }

    /// The frames about lost rails that have not left, as far as there is room.
    pub(super) fn say_rails<C: Connection, P: Perform<C>>(
        &mut self,
        perform: &mut P,
        memory: MemoryId,
    ) {
        let Self { id, outages, account, channel, .. } = self;
        for outage in outages {
            let rail = outage.rail;
            outage.regain.say((*id, rail), perform, channel, memory);
            if !outage.told {
                let plain = if account.rails.lacks_plain(rail) { RailNote::PLAIN_LOST } else { 0 };
                let parts = u64::from(account.rails.posted_on(rail)) | plain;
                let frame = note(rail, RailState::Down, parts);
                outage.told = channel.shadow_mut().append(perform.shadow(memory), &frame);
            }
            if outage.told && outage.fenced && !outage.fence_told {
                let frame = note(rail, RailState::Fenced, 0);
                outage.fence_told = channel.shadow_mut().append(perform.shadow(memory), &frame);
            }
        }
    }
}

fn note(rail: u8, state: RailState, parts: u64) -> Frame {
    Frame::Rail(RailNote { to: Name::default(), line: Line::FIRST, rail, state, parts })
}

impl<C: Connection> Endpoint<C> {
    /// A data rail of a channel is lost. The channel goes on if another one is open.
    #[cold]
    pub(super) fn rail_lost<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, rail): (usize, u8),
        cause: Cause,
        now: Now,
    ) {
        let peer = &mut self.peers[index];
        if !peer.channel.is_alive() || peer.outage(rail).is_some() {
            return;
        }
        if rail >= peer.account.loads.rails() || !peer.account.survives(rail) {
            return peer.channel.fail(cause);
        }
        let regain = peer.histories.lost(rail, now.0);
        peer.leave_rail(Outage::new(rail, now.1, regain));
        self.troubled = true;
        perform.rail_lost(peer.id, rail, cause);
        self.each_connection(index, now.0, |connection| connection.rail_left(rail));
    }

    /// A channel is new: rails of ours that are closed are lost from the start.
    pub(super) fn lose_closed_rails(&mut self, index: usize, now: Moment) {
        for rail in 0..self.peers[index].account.loads.rails() {
            let local = self.local_of(index, rail);
            let closed = matches!(self.locals.get(local), Some(Local::Closing | Local::Closed));
            let peer = &mut self.peers[index];
            if closed && peer.account.survives(rail) {
                let regain = peer.histories.lost(rail, Moment::default());
                peer.leave_rail(Outage { fenced: true, ..Outage::new(rail, now, regain) });
                self.troubled = true;
            }
        }
    }

    /// RAIL, of the channel.
    #[cold]
    pub(super) fn rail_note<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        note: &RailNote,
        now: Now,
    ) {
        if note.state == RailState::Down {
            self.rail_lost(perform, (index, note.rail), Cause::RailDown { rail: note.rail }, now);
        }
        let peer = &mut self.peers[index];
        peer.stirred = true;
        self.troubled = true;
        if !peer.channel.is_alive() {
            return;
        }
        if note.state == RailState::Seen {
            peer.heard(note.rail, note.parts);
            let at = peer.outages.iter().position(|outage| outage.rail == note.rail);
            // The peer may be posting from now on, and lose the rail again.
            if let Some(at) = at.filter(|at| peer.is_regained(*at)) {
                self.return_rail(perform, (index, at), now);
            }
            return;
        }
        let heard = peer.outage(note.rail).is_some_and(|outage| match note.state {
            RailState::Down if outage.expects.is_none() => {
                let plain = note.parts & RailNote::PLAIN_LOST != 0;
                outage.expects = Some(Expected { posted: low32(note.parts), plain });
                true
            }
            RailState::Fenced => !std::mem::replace(&mut outage.peer_fenced, true),
            _ => false,
        });
        if !heard {
            return peer.channel.fail(Cause::Connection);
        }
        peer.settle_counts(note.rail);
    }

    /// What follows for lost rails. Called while there is one that is not settled.
    #[cold]
    pub(super) fn tend_rails<P: Perform<C>>(&mut self, perform: &mut P, now: Now) {
        for index in 0..self.peers.len() {
            let failed = self.peers[index].account.rails.take_failed();
            for rail in rails_of(failed) {
                self.rail_lost(perform, (index, rail), Cause::DataFailed { rail }, now);
            }
            let hanging = std::mem::take(&mut self.peers[index].hanging.rails);
            for rail in rails_of(hanging) {
                self.rail_lost(perform, (index, rail), Cause::DataHangs { rail }, now);
            }
            self.tend_refusals(perform, index, now);
        }
        // What had happened before they closed was taken in this poll.
        for local in &mut self.locals {
            if matches!(local, Local::Closing) {
                *local = Local::Closed;
            }
        }
        for index in 0..self.peers.len() {
            for at in 0..self.peers[index].outages.len() {
                self.tend_outage(perform, (index, at), now);
            }
        }
        // Each channel has seen by now that a rail is closed: one may open it again.
        for index in 0..self.peers.len() {
            let mut at = 0;
            while at < self.peers[index].outages.len() {
                let returned = self.tend_return(perform, (index, at), now);
                at += usize::from(!returned);
            }
            self.peers[index].count_rests();
            self.tell_of_end(index, now.0);
        }
        for local in 0..self.locals.len() {
            self.tend_local(perform, local, now);
        }
        let moves = |local: &Local| matches!(local, Local::Draining { .. } | Local::Closing);
        self.troubled = self.peers.iter().any(|peer| {
            peer.has_outage() || peer.channel.is_alive() && peer.account.rails.has_news()
        }) || self.locals.iter().any(moves);
    }

    /// A rail that takes nothing for a while is lost.
    fn tend_refusals<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let peer = &mut self.peers[index];
        let account = &peer.account;
        let refuses = |rail: &u8| account.loads.is_open(*rail);
        let rail = rails_of(account.rails.refuses()).find(refuses);
        if rail.is_none() || rail != peer.refusing.rail {
            peer.refusing = Refusing { rail, since: now.1 };
            return;
        }
        let refused = now.1.since(peer.refusing.since);
        // Where no other rail is left, the provider gets as long as the peer would.
        let lost = rail.filter(|rail| match peer.account.survives(*rail) {
            true => refused >= RAIL_REFUSES,
            false => refused >= peer.channel.peer_timeout(),
        });
        if let Some(rail) = lost {
            self.rail_lost(perform, (index, rail), Cause::DataRefused { rail }, now);
        }
    }

    fn tend_outage<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, at): (usize, usize),
        now: Now,
    ) {
        let local = self.local_of(index, self.peers[index].outages[at].rail);
        let closed = matches!(self.locals.get(local), Some(Local::Closed));
        let peer = &mut self.peers[index];
        if !peer.channel.is_alive() {
            return;
        }
        let ended = peer.channel.ending().has_peer_said();
        let outage = &mut peer.outages[at];
        let seen = peer.account.counts.seen.get(outage.rail);
        let flying = peer.account.rails.flying_on(outage.rail);
        let all = outage.expects.is_some_and(|all| !all.plain && all.posted == seen);
        // Before END all that a peer has written was seen here, but for rails that it has told us of.
        let none = ended && outage.expects.is_none();
        if !outage.fenced && (closed || all || none) {
            outage.fenced = true;
            return self.fenced(index, at, now.0);
        }
        if outage.moved != (seen, flying) {
            outage.moved = (seen, flying);
            outage.still_since = now.1;
        }
        let still = now.1.since(outage.still_since);
        let lacks = !outage.fenced && outage.expects.is_some() && still >= RAIL_STILL;
        let stuck = flying > 0 && still >= RAIL_STUCK;
        outage.wants_close |= lacks || stuck;
        if outage.wants_close && !(outage.fenced && flying == 0) {
            self.close_local(perform, (index, at), local, now);
        }
    }

    /// Nothing lands by this rail any more: the connections say what has.
    fn fenced(&mut self, index: usize, at: usize, now: Moment) {
        let peer = &mut self.peers[index];
        let rail = peer.outages[at].rail;
        peer.settle_counts(rail);
        peer.stirred = true;
        self.each_connection(index, now, |connection| connection.rail_fenced(rail));
    }

    /// A rail of ours has to be closed for one channel. The others leave it first: what is under way there is to arrive.
    fn close_local<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, at): (usize, usize),
        local: usize,
        now: Now,
    ) {
        if self.locals.len() <= local {
            self.locals.resize(local + 1, Local::Open);
        }
        if matches!(self.locals[local], Local::Draining { .. } | Local::Closing | Local::Closed) {
            return;
        }
        let others: Vec<(usize, u8)> =
            self.users_of(local).filter(|(other, _)| *other != index).collect();
        // One that is on its way back, and whose peer may be posting already, is back first.
        if others.iter().any(|(other, rail)| self.peers[*other].is_committed(*rail)) {
            return;
        }
        let all_survive =
            others.iter().all(|(other, rail)| self.peers[*other].account.survives(*rail));
        // Where it is the only rail of another channel, that one goes on.
        if matches!(self.locals[local], Local::Stuck) || !all_survive {
            let rail = self.peers[index].outages[at].rail;
            self.locals[local] = Local::Stuck;
            return self.peers[index].channel.fail(Cause::DataLost { rail });
        }
        let (since, still_since) = (now.1, now.1);
        self.locals[local] = Local::Draining { since, still_since, moved: 0 };
        self.stop_trials(local, now.0);
        for (other, rail) in others {
            self.rail_lost(perform, (other, rail), Cause::RailClosing { rail }, now);
            self.peers[other].channel.ask();
        }
    }

    fn tend_local<P: Perform<C>>(&mut self, perform: &mut P, local: usize, (_, now): Now) {
        let Local::Draining { since, still_since, moved } = self.locals[local] else { return };
        let users: Vec<(usize, u8)> = self.users_of(local).collect();
        let (mut counts, mut drained) = (0_u32, true);
        for (index, rail) in &users {
            let peer = &mut self.peers[*index];
            let flying = peer.account.rails.flying_on(*rail);
            let (seen, confirmed) =
                (peer.account.counts.seen.get(*rail), peer.channel.confirmed_on(*rail));
            let parts = [seen, confirmed, flying];
            counts =
                parts.iter().fold(counts, |sum, part| sum.wrapping_mul(31).wrapping_add(*part));
            let arrived = confirmed == peer.account.counts.completed.get(*rail);
            let asks = peer.outage(*rail).is_some_and(|outage| outage.wants_close);
            drained &= asks || flying == 0 && arrived;
        }
        let still_since = if counts == moved { still_since } else { now };
        self.locals[local] = Local::Draining { since, still_since, moved: counts };
        let over = drained
            || now.since(still_since) >= RAIL_DRAIN_STILL
            || now.since(since) >= RAIL_DRAIN_MAX;
        if !over {
            return;
        }
        if perform.close_rail(low8(local as u64)) {
            self.locals[local] = Local::Closing;
        } else if now.since(since) >= RAIL_CLOSE_MAX {
            self.locals[local] = Local::Stuck;
            for (index, rail) in users {
                let peer = &mut self.peers[index];
                if peer.outage(rail).is_some_and(|outage| outage.wants_close) {
                    peer.channel.fail(Cause::DataLost { rail });
                }
            }
        }
    }

    /// Our own number of a rail of a channel.
    fn local_of(&self, index: usize, rail: u8) -> usize {
        self.peers[index].channel.local_rail(rail).into()
    }

    /// The living channels that have a rail of ours, and what they call it.
    fn users_of(&self, local: usize) -> impl Iterator<Item = (usize, u8)> {
        let alive = self.peers.iter().enumerate().filter(|(_, peer)| peer.channel.is_alive());
        alive.filter_map(move |(index, peer)| {
            let mut rails = 0..peer.account.loads.rails();
            let rail = rails.find(|rail| usize::from(peer.channel.local_rail(*rail)) == local)?;
            Some((index, rail))
        })
    }
}

impl Peer {
    /// What the peer has posted by a fenced rail has come, or never will.
    fn settle_counts(&mut self, rail: u8) {
        let Some(outage) = self.outages.iter().find(|outage| outage.rail == rail) else { return };
        if let Some(Expected { posted, .. }) = outage.expects.filter(|_| outage.fenced) {
            self.account.counts.seen.set(rail, posted);
        }
    }
}

/// Bytes per microsecond: a rail that is slower may be taken for one that hangs.
const SLOWEST: u64 = 8;

fn rails_of(set: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |rail| set >> rail & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_hangs_when_nothing_ends_there_while_the_peer_runs() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let bound = (Duration::from_secs(5), Duration::from_secs(5));
        let mut account = Account::new(2);
        account.rails.posted(1, true);
        let mut hanging = Hanging::new(2);
        hanging.look(&account, true, at(60), bound);
        hanging.look(&account, false, at(64), bound);
        assert!(hanging.waits, "only an answer tells that the peer runs");
        assert_eq!(hanging.rails, 0, "while it was stopped nothing could end");
        hanging.look(&account, false, at(65), bound);
        assert_eq!(hanging.rails, 0b10);
        let mut hanging = Hanging::new(2);
        hanging.look(&account, true, at(60), bound);
        assert!(account.rails.ended(1, true, true));
        account.rails.posted(1, true);
        hanging.look(&account, false, at(64), bound);
        hanging.look(&account, false, at(66), bound);
        assert_eq!(hanging.rails, 0, "one has ended meanwhile");
        assert!(account.rails.ended(1, true, true));
        hanging.look(&account, false, at(67), bound);
        assert!(!hanging.waits, "nothing is under way");
    }

    #[test]
    fn rails_get_longer_where_no_other_is_any_better() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let bounds = (Duration::from_millis(500), Duration::from_secs(8));
        for (still, survives, lost) in
            [(0b01, true, 0b01), (0b11, true, 0), (0b10, true, 0b10), (0b10, false, 0)]
        {
            let mut account = Account::new(2);
            account.rails.set_survives(survives);
            rails_of(still).for_each(|rail| account.rails.posted(rail, true));
            let mut hanging = Hanging::new(2);
            hanging.look(&account, true, at(0), bounds);
            hanging.look(&account, false, at(499), bounds);
            assert_eq!(hanging.rails, 0);
            hanging.look(&account, false, at(500), bounds);
            assert_eq!(hanging.rails, lost, "{still:b}, survives: {survives}");
            hanging.look(&account, false, at(8000), bounds);
            assert_eq!(hanging.rails, still, "in the end all are");
        }
    }
}
