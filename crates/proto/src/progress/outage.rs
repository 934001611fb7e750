//! Fail-over of data rails: when a rail is lost and another is open, both ends stop posting on the lost one, find out
//! which parts have arrived, and send the others by open rails.
//!
//! ```text
//!  failed, refused, hanging or missing writes, or the peer's DOWN ─▶ no part is posted on it; DOWN (number of posted parts)
//!     the peer's DOWN ─▶ as many have arrived ────────────────────────────────────────┬─▶ fenced: FENCED, and per
//!                     └▶ fewer, and no more come ─▶ other peers leave the rail, too,   │   connection HELD, LISTED
//!                                                   and it is closed ─────────────────┘
//!     the peer's LISTED ─▶ parts that the peer lacks are posted again on other rails
//! ```
//!
//! DOWN and FENCED are for the channel and are handled here. HELD and LISTED are frames of a connection: `receive/lost.rs`
//! sends them, `send/lost.rs` handles them. `regain.rs` brings the rail back.
//!
//! A rail is *fenced* when nothing from the peer can arrive by it any more. The receiver reports what is missing only
//! then, so no line is ever complete while an older write may still reach its memory.

mod regain;

use std::time::Duration;

use super::super::account::Account;
use super::super::bound::{
    POLL_GAP_MAX, RAIL_ANSWER_GAP, RAIL_CHECK, RAIL_CLOSE_MAX, RAIL_CONNECTS, RAIL_DRAIN_MAX,
    RAIL_DRAIN_STILL, RAIL_HANGS, RAIL_REFUSES, RAIL_STILL, RAIL_STUCK, SETTLE_EVERY, last_rail,
};
use super::super::channel::{Cause, Channel};
use super::super::connection::Connection;
use super::super::frame::{Frame, RailNote, RailPosts, RailState};
use super::super::ids::Moment;
use super::super::memory::MemoryId;
use super::super::polled::{Now, PolledTime};
use super::{Peer, Perform, ProgressLoop};
use crate::bits::low8;
use crate::rail_set::RailSet;
pub(super) use regain::Histories;
use regain::Regain;

/// A lost data rail of one channel.
#[derive(Debug)]
pub(super) struct Outage {
    /// The channel's number of the rail.
    rail: u8,
    /// Why it was lost, which is why the channel fails if no rail comes back.
    cause: Cause,
    /// When it was lost. While the channel has no other rail, the time in which the peer is silent is added: it cannot say then that a rail
    /// is back.
    lost_at: PolledTime,
    /// Our RAIL *down* has left.
    down_sent: bool,
    /// The peer's posts on the rail, once its *down* has come.
    expects: Option<RailPosts>,
    /// Nothing can arrive here by the rail any more.
    fenced: bool,
    /// Our RAIL *fenced* has left.
    fence_sent: bool,
    /// The peer has sent *fenced*: nothing can arrive there by the rail any more.
    peer_fenced: bool,
    /// The rail can be fenced only by closing it.
    needs_close: bool,
    /// Our end was closed after the peer's trial had come. The peer may be posting by the rail already, so this return is completed, and
    /// the rail is then lost again.
    closed: bool,
    /// Parts seen, and writes in flight, at the last change of either.
    moved: (u32, u32),
    still_since: PolledTime,
    regain: Regain,
}

/// The state of a data rail of this endpoint, which several channels may use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Local {
    #[default]
    Open,
    /// The channels stop using the rail, and their writes in flight are awaited.
    Draining {
        since: PolledTime,
        /// Since when `moved` has not changed.
        still_since: PolledTime,
        /// A hash of the counts of all channels that use it: another value shows progress.
        moved: u32,
    },
    /// The rail was opened again, and no round has failed with the new libfabric endpoint.
    Reopened,
    /// The rail is closed. Its last completions are taken in the next poll.
    Closing,
    Closed,
}

/// Since when a rail has accepted no write of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusing {
    since: PolledTime,
    /// The last refusal, and how many writes the rail had accepted then.
    last: PolledTime,
    accepted: u32,
}

impl Refusing {
    /// Called at each refusal. Returns how long the rail has refused everything. A refused part is tried again in each
    /// poll; a longer gap means that the part was dropped, and the time starts again.
    fn refused(&mut self, accepted: u32, now: PolledTime) -> Duration {
        let since = match self.accepted == accepted && now.since(self.last) <= REFUSAL_GAP {
            true => self.since,
            false => now,
        };
        *self = Self { since, last: now, accepted };
        now.since(since)
    }
}

/// Detects hanging rails: the time of the last completion on each rail that has writes in flight.
#[derive(Debug)]
pub(super) struct Hanging {
    check_at: PolledTime,
    /// Rails without a completion for too long.
    rails: RailSet,
    /// No write has completed on a rail between two checks. Then QUERY is sent, because only an answer shows that the
    /// peer is not stopped.
    waits: bool,
    /// The peer did not answer at the last check.
    stopped: bool,
    still: Box<[Still]>,
}

/// Since when a rail has no completion.
#[derive(Clone, Copy, Debug, Default)]
struct Still {
    /// How many writes had ended there at the last check that found progress or nothing in flight.
    ended: u32,
    /// The time of that check, or of a later one that found the peer stopped.
    since: PolledTime,
    /// How often the peer has stopped and answered again.
    stops: u32,
}

impl Hanging {
    pub(super) fn new(rails: u8) -> Self {
        let still = vec![Still::default(); rails.into()].into();
        Self {
            check_at: PolledTime::default(),
            rails: RailSet::NONE,
            waits: false,
            stopped: false,
            still,
        }
    }

    /// Whether a rail had no completion between the last two checks.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Checks for rails without a completion for `bound` plus the time that their queued bytes may take. `last` replaces
    /// `bound` if no other rail can take over: none is open, or none of them completes its writes. `stopped`: the peer does
    /// not answer. Such time is not counted, since a stopped process completes nothing. If the peer stops and answers
    /// alternately, as when only its keeper polls, each answer but the first counts as one [`RAIL_CHECK`].
    #[cold]
    fn check(
        &mut self,
        account: &Account,
        stopped: bool,
        now: PolledTime,
        (bound, last): (Duration, Duration),
    ) {
        self.check_at = now.plus(RAIL_CHECK);
        let Account { rails, loads, .. } = account;
        let is_still = |rail: u8, ended: u32| {
            loads.is_open(rail) && rails.flying_on(rail) > 0 && rails.ended_on(rail) == ended
        };
        let still = (0..).zip(&self.still).map(|(rail, still)| is_still(rail, still.ended));
        let still = still.filter(|still| *still).count();
        self.waits = still > 0;
        let others = rails.survives() && still < loads.open_rails() as usize;
        let bound = if others { bound } else { last };
        let answers_again = self.stopped && !stopped;
        self.stopped = stopped;
        for (rail, still) in (0..).zip(&mut self.still) {
            if !is_still(rail, still.ended) {
                *still = Still { ended: rails.ended_on(rail), since: now, stops: 0 };
                continue;
            }
            still.stops += u32::from(answers_again);
            if stopped {
                still.since = now;
                continue;
            }
            let slow = Duration::from_micros(loads.queued(rail) / SLOWEST);
            if now.since(still.since) + RAIL_CHECK * still.stops.saturating_sub(1) >= bound + slow {
                self.rails.insert(rail);
            }
        }
    }
}

impl Outage {
    fn new((rail, cause): (u8, Cause), now: PolledTime, regain: Regain) -> Self {
        Self {
            rail,
            cause,
            lost_at: now,
            down_sent: false,
            expects: None,
            fenced: false,
            fence_sent: false,
            peer_fenced: false,
            needs_close: false,
            closed: false,
            moved: (0, 0),
            still_since: now,
            regain,
        }
    }

    /// Whether a RAIL frame about this rail is pending.
    fn has_frames(&self) -> bool {
        !self.down_sent || self.fenced && !self.fence_sent
    }

    /// Whether closing the rail would still help, with `flying` of our writes in flight on it: parts are missing, or writes do
    /// not complete.
    fn awaits_close(&self, flying: u32) -> bool {
        self.needs_close && !(self.fenced && flying == 0)
    }

    /// Whether both ends have fenced the rail and sent *fenced*.
    fn is_fenced_on_both_ends(&self) -> bool {
        self.fenced && self.peer_fenced && !self.has_frames()
    }
}

impl Peer {
    /// When to check the speeds, hanging rails, and rails whose pause is over.
    pub(super) fn rails_due_at(&self, Now { clock, polled }: Now) -> Moment {
        let check = clock.plus(self.hanging.check_at.since(polled));
        let mut rails = 0..self.account.loads.rails();
        let flies = rails.any(|rail| self.account.rails.flying_on(rail) > 0);
        // If no write is in flight the check may come later: at a different time for each channel, so that one poll does not visit all.
        let later = if flies { 0 } else { self.id.0 % SPREAD };
        let check = check.plus(SETTLE_EVERY * later);
        self.histories.retry_at().map_or(check, |retry| retry.min(check))
    }

    /// Whether data rails need [`ProgressLoop::tend_rails`]. Also runs the periodic checks of speeds and hanging rails.
    #[inline]
    pub(super) fn has_troubled_rails(&mut self, Now { clock, polled }: Now) -> bool {
        // Not while a failed write is unhandled: it counts as ended, so its rail would be taken for one that works. That rail is
        // lost first.
        if polled >= self.hanging.check_at && !self.account.rails.has_failures() {
            let stopped = self.channel.silence(polled) >= RAIL_ANSWER_GAP;
            let last = last_rail(self.channel.peer_timeout());
            // A rail that cannot be closed gets the longer bound: its loss may fail the channel.
            let bound = if self.channel.closes_rails() { last.min(RAIL_HANGS) } else { last };
            self.hanging.check(&self.account, stopped, polled, (bound, last));
            self.account.speeds.check(&mut self.account.loads);
        }
        self.account.rails.has_news() || !self.hanging.rails.is_empty() || self.is_retry_due(clock)
    }

    /// Whether [`ProgressLoop::tend_rails`] has anything to do here. Other channels are not borrowed mutably, so that the next poll
    /// does not visit them.
    fn needs_tending(&self) -> bool {
        self.account.rails.has_news() || !self.hanging.rails.is_empty() || !self.outages.is_empty()
    }

    pub(super) fn has_rail_frames(&self) -> bool {
        self.outages.iter().any(|outage| outage.has_frames() || outage.regain.has_frames())
    }

    /// Whether a RAIL frame about a lost rail is expected from the peer.
    pub(super) fn awaits_fence(&self) -> bool {
        let ended = self.channel.ending().has_peer_said();
        !ended && self.outages.iter().any(|one| one.expects.is_none() || !one.peer_fenced)
    }

    /// Whether writes on a data rail do not complete, possibly because the peer is stopped.
    pub(super) fn awaits_writes(&self) -> bool {
        self.hanging.waits()
    }

    /// Whether all lost rails are fenced: the channel ends only then.
    pub(super) fn is_fenced(&self) -> bool {
        self.outages.iter().all(|outage| outage.fenced)
    }

    /// Whether a lost rail needs polling.
    pub(super) fn has_outage(&self) -> bool {
        let flies = |outage: &Outage| self.account.rails.flying_on(outage.rail) > 0;
        // The peer waits a second for the answer to its OFFER, and the rail may have to be opened first.
        let answers = |outage: &Outage| outage.regain.newer_offer().is_some() && self.tries();
        let lacks = self.account.loads.open_rails() == 0;
        self.channel.is_alive()
            && self.outages.iter().any(|outage| {
                lacks
                    || !outage.is_fenced_on_both_ends()
                    || flies(outage)
                    || outage.regain.is_trying()
                    || answers(outage)
            })
    }

    /// Whether a channel continues although an end has left its last open rail. The two ends may have left different rails at the
    /// same time, each for another channel: then the channel has no rail until the first of them is back. The same holds while
    /// its last rail is closed for another channel.
    fn waits_for_rails(&self, cause: Cause) -> bool {
        let left = matches!(cause, Cause::RailDown { .. } | Cause::RailClosing { .. });
        let may_return = self.tries() || self.channel.is_ending();
        left && may_return && self.account.rails.survives() && !self.outages.is_empty()
    }

    /// Whether the channel waits for a rail, with none open. Then QUERY is sent, because only an answer shows that the peer is not stopped.
    pub(super) fn lacks_rails(&self) -> bool {
        self.account.loads.open_rails() == 0 && !self.outages.is_empty()
    }

    /// A channel that waits so fails when no rail has come back for too long. Time in which the peer does not answer is not counted, since a
    /// stopped process brings no rail back. `before`: the time of the poll before.
    fn check_rails(&mut self, now: PolledTime, before: PolledTime) {
        if self.account.loads.open_rails() > 0 {
            return;
        }
        let bound = last_rail(self.channel.peer_timeout());
        let stopped = self.channel.silence(now) >= RAIL_ANSWER_GAP;
        let Some(last) = self.outages.iter_mut().max_by_key(|outage| outage.lost_at) else {
            return;
        };
        if stopped {
            last.lost_at = last.lost_at.plus(now.since(before));
        } else if now.since(last.lost_at) >= bound {
            self.channel.fail(last.cause);
        }
    }

    /// Stops using a lost rail: no part is posted there any more, and its counts are ignored.
    fn leave_rail(&mut self, outage: Outage) {
        self.account.loads.close(outage.rail);
        self.channel.ignore_counts_of(outage.rail);
        self.outages.push(outage);
        self.stirred = true;
    }

    fn outage(&mut self, rail: u8) -> Option<&mut Outage> {
        self.outages.iter_mut().find(|outage| outage.rail == rail)
    }

    /// Appends pending RAIL and OFFER frames while there is room.
    pub(super) fn say_rails<C: Connection, P: Perform<C>>(
        &mut self,
        perform: &mut P,
        memory: MemoryId,
    ) {
        let Self { id, outages, account, channel, .. } = self;
        for outage in outages {
            let rail = outage.rail;
            outage.regain.say((*id, rail), perform, channel, memory);
            if !outage.down_sent {
                let state = RailState::Down(account.rails.posts_on(rail));
                let frame = Frame::Rail(RailNote { rail, state });
                outage.down_sent = channel.shadow_mut().append(perform.shadow(memory), &frame);
            }
            if outage.down_sent && outage.fenced && !outage.fence_sent {
                let frame = Frame::Rail(RailNote { rail, state: RailState::Fenced });
                outage.fence_sent = channel.shadow_mut().append(perform.shadow(memory), &frame);
            }
        }
    }
}

impl<C: Connection> ProgressLoop<C> {
    /// A data rail of a channel is lost. The channel continues if another one is open, or may soon be, and fails otherwise.
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
        let survives = peer.account.survives(rail) || peer.waits_for_rails(cause);
        if rail >= peer.account.loads.rails() || !survives {
            return peer.channel.fail(cause);
        }
        let regain = match cause {
            Cause::RailClosing { .. } => peer.histories.left(rail, now.clock),
            _ => peer.histories.lost(rail, now.clock),
        };
        peer.leave_rail(Outage::new((rail, cause), now.polled, regain));
        self.troubled = true;
        perform.rail_lost(peer.id, rail, cause);
        self.each_connection(index, now.clock, |connection| connection.rail_left(rail));
    }

    /// For a new channel: our rails that are closed, or being closed, count as lost from the start. If the channel has only one
    /// rail, the rail is not closed if it is still being drained. If it is closed already, the channel fails as soon as that can
    /// be reported to the peer.
    pub(super) fn lose_closed_rails(&mut self, index: usize, now: PolledTime) {
        for rail in 0..self.peers[index].account.loads.rails() {
            let local = self.local_of(index, rail);
            // The peer may write by a rail that is being drained until it receives *down*.
            let fenced = match self.locals.get(local) {
                Some(Local::Closing | Local::Closed) => true,
                Some(Local::Draining { .. }) => false,
                _ => continue,
            };
            let peer = &mut self.peers[index];
            let cause = Cause::RailClosing { rail };
            if peer.account.survives(rail) || fenced && peer.waits_for_rails(cause) {
                let regain = peer.histories.left(rail, Moment::default());
                peer.leave_rail(Outage { fenced, ..Outage::new((rail, cause), now, regain) });
                self.troubled = true;
            } else if fenced {
                peer.channel.fail_once_met(cause);
            }
        }
    }

    /// Handles a RAIL frame for the channel.
    #[cold]
    pub(super) fn rail_note<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        &RailNote { rail, state }: &RailNote,
        now: Now,
    ) {
        if let RailState::Down(_) = state {
            // The peer may have returned the rail, posted there, and lost it again since this side's last poll.
            self.return_if_regained(perform, (index, rail), now);
            self.rail_lost(perform, (index, rail), Cause::RailDown { rail }, now);
        }
        let peer = &mut self.peers[index];
        peer.stirred = true;
        self.troubled = true;
        if !peer.channel.is_alive() {
            return;
        }
        if let RailState::Seen { round } = state {
            peer.heard(rail, round);
            // Return the rail at once: the peer may post from now on, and lose the rail again.
            return self.return_if_regained(perform, (index, rail), now);
        }
        let heard = peer.outage(rail).is_some_and(|outage| match state {
            RailState::Down(posts) => outage.expects.replace(posts).is_none(),
            RailState::Fenced => !std::mem::replace(&mut outage.peer_fenced, true),
            _ => false,
        });
        if !heard {
            return peer.channel.fail(Cause::Connection);
        }
        peer.settle_counts(rail);
    }

    /// If the channel survives it, a rail on which a write has just failed is lost before any frame leaves. If CLOSE left before
    /// *down*, the receiver would free memory in which writes without immediates may still land. If the channel does not survive,
    /// the FIN that reports the failure leaves before the channel fails.
    #[inline]
    pub(super) fn leave_failed_rails<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        now: Now,
    ) {
        if !self.peers[index].account.rails.has_failures() {
            return;
        }
        for rail in self.peers[index].account.rails.failures().iter() {
            if self.peers[index].account.survives(rail) {
                self.rail_lost(perform, (index, rail), Cause::DataFailed { rail }, now);
            }
        }
    }

    /// Advances the state of lost rails. Called while one is not settled.
    #[cold]
    pub(super) fn tend_rails<P: Perform<C>>(&mut self, perform: &mut P, now: Now) {
        for index in 0..self.peers.len() {
            if !self.peers[index].needs_tending() {
                continue;
            }
            let failed = self.peers[index].account.rails.take_failed();
            for rail in failed.iter() {
                self.rail_lost(perform, (index, rail), Cause::DataFailed { rail }, now);
            }
            let hanging = std::mem::take(&mut self.peers[index].hanging.rails);
            for rail in hanging.iter() {
                self.rail_lost(perform, (index, rail), Cause::DataHangs { rail }, now);
            }
            self.tend_refusals(perform, index, now);
        }
        // The last completions of rails that were closed in the previous poll are taken by now.
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
        // By now each channel has handled the closing of the rail, so it may be opened again.
        for index in 0..self.peers.len() {
            if !self.peers[index].needs_tending() {
                continue;
            }
            let mut at = 0;
            while at < self.peers[index].outages.len() {
                let returned = self.tend_return(perform, (index, at), now);
                at += usize::from(!returned);
            }
            self.peers[index].check_rails(now.polled, self.polled.before());
            self.peers[index].find_next_attempt();
            self.report_end(index, now.clock);
        }
        for local in 0..self.locals.len() {
            self.tend_local(perform, local, now);
        }
        let moves = |local: &Local| matches!(local, Local::Draining { .. } | Local::Closing);
        self.troubled = self.peers.iter().any(|peer| {
            peer.has_outage() || peer.channel.is_alive() && peer.account.rails.has_news()
        }) || self.locals.iter().any(moves);
    }

    /// A rail that refuses all posts for too long is lost.
    fn tend_refusals<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let Peer { account, refusing, channel, .. } = &mut self.peers[index];
        let mut refused = account.rails.take_refused().iter();
        let lost = refused.find(|rail| {
            let Some(refusing) = refusing.get_mut(usize::from(*rail)) else { return false };
            // The last rail gets the full peer timeout.
            let accepted = account.rails.accepted_on(*rail);
            let bound = match account.survives(*rail) {
                true if accepted == 0 => RAIL_CONNECTS.min(channel.peer_timeout()),
                true => RAIL_REFUSES,
                false => channel.peer_timeout(),
            };
            let time = refusing.refused(accepted, now.polled);
            account.loads.is_open(*rail) && time >= bound
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
        let closing = matches!(self.locals.get(local), Some(Local::Closing));
        let closed = matches!(self.locals.get(local), Some(Local::Closed));
        let peer = &mut self.peers[index];
        if !peer.channel.is_alive() {
            return;
        }
        let ended = peer.channel.ending().has_peer_said();
        let outage = &mut peer.outages[at];
        let closed = closed || outage.closed && !closing;
        let seen = peer.account.counts.seen.get(outage.rail);
        let flying = peer.account.rails.flying_on(outage.rail);
        // Everything that the peer has posted on the rail has arrived.
        let all = outage.expects.is_some_and(|all| !all.uncounted && all.parts == seen);
        // A peer sends END only after we have confirmed all its parts, except on rails that it has reported as down.
        let none = ended && outage.expects.is_none();
        if !outage.fenced && (closed || all || none) {
            outage.fenced = true;
            return self.fenced(index, at, now.clock);
        }
        if outage.moved != (seen, flying) {
            outage.moved = (seen, flying);
            outage.still_since = now.polled;
        }
        let still = now.polled.since(outage.still_since);
        let lacks = !outage.fenced && outage.expects.is_some() && still >= RAIL_STILL;
        let stuck = flying > 0 && still >= RAIL_STUCK;
        outage.needs_close |= lacks || stuck;
        if outage.awaits_close(flying) {
            self.close_local(perform, (index, at), local, now);
        }
    }

    /// The rail is fenced: the connections report what has arrived.
    fn fenced(&mut self, index: usize, at: usize, now: Moment) {
        let peer = &mut self.peers[index];
        let rail = peer.outages[at].rail;
        peer.settle_counts(rail);
        peer.stirred = true;
        self.each_connection(index, now, |connection| connection.rail_fenced(rail));
    }

    /// A channel needs this rail closed. The other channels stop using it first, and their transfers in flight are
    /// awaited.
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
        let Outage { rail, still_since, .. } = self.peers[index].outages[at];
        let still = now.polled.since(still_since);
        let last = last_rail(self.peers[index].channel.peer_timeout());
        // Each of two channels may need the other's last rail closed.
        let spare = still >= RAIL_CLOSE_MAX.min(last / 2) && perform.can_reopen(low8(local as u64));
        let all_survive = others.iter().all(|(other, rail)| {
            let (peer, cause) = (&self.peers[*other], Cause::RailClosing { rail: *rail });
            peer.account.survives(*rail) || spare && peer.waits_for_rails(cause)
        });
        // The rail stays open while another channel has no other rail. The other's rails may come back, and the parts that are
        // missing here may still arrive.
        if !all_survive {
            if still >= last {
                self.peers[index].channel.fail(Cause::DataLost { rail });
            }
            return;
        }
        let (since, still_since) = (now.polled, now.polled);
        self.locals[local] = Local::Draining { since, still_since, moved: 0 };
        self.stop_trials(local, now.clock);
        for (other, rail) in others {
            self.rail_lost(perform, (other, rail), Cause::RailClosing { rail }, now);
            self.peers[other].channel.query_at_once();
        }
    }

    fn tend_local<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        local: usize,
        Now { polled: now, .. }: Now,
    ) {
        let Local::Draining { since, still_since, moved } = self.locals[local] else { return };
        let users: Vec<(usize, u8)> = self.users_of(local).collect();
        let (mut counts, mut drained) = (0_u32, true);
        let (mut awaited, mut needed) = (false, false);
        for (index, rail) in &users {
            let peer = &mut self.peers[*index];
            let flying = peer.account.rails.flying_on(*rail);
            let (seen, confirmed) =
                (peer.account.counts.seen.get(*rail), peer.channel.confirmed_on(*rail));
            let parts = [seen, confirmed, flying];
            counts =
                parts.iter().fold(counts, |sum, part| sum.wrapping_mul(31).wrapping_add(*part));
            let arrived = confirmed == peer.account.counts.completed.get(*rail);
            let outage = peer.outage(*rail);
            awaited |= outage.as_ref().is_some_and(|outage| outage.awaits_close(flying));
            // A channel that was made meanwhile has no other rail.
            needed |= outage.is_none();
            let asks = outage.is_some_and(|outage| outage.needs_close);
            drained &= asks || flying == 0 && arrived;
        }
        if needed || !awaited {
            self.locals[local] = Local::Open;
            return;
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
            for (index, rail) in users {
                self.peers[index].rail_closed(rail);
            }
        } else if now.since(since) >= RAIL_CLOSE_MAX {
            for (index, rail) in users {
                let peer = &mut self.peers[index];
                let flying = peer.account.rails.flying_on(rail);
                if peer.outage(rail).is_some_and(|outage| {
                    let still = now.since(outage.still_since);
                    outage.awaits_close(flying) && still >= RAIL_CLOSE_MAX
                }) {
                    peer.channel.fail(Cause::DataLost { rail });
                }
            }
        }
    }

    /// The index of a channel's rail among our own rails.
    fn local_of(&self, index: usize, rail: u8) -> usize {
        self.peers[index].channel.local_rail(rail).into()
    }

    /// The living channels that use one of our rails, and their number for it. A channel that fails at its peer's first HELLO
    /// uses none.
    fn users_of(&self, local: usize) -> impl Iterator<Item = (usize, u8)> {
        let uses = |channel: &Channel| channel.is_alive() && !channel.fails_once_met();
        let users = self.peers.iter().enumerate().filter(move |(_, peer)| uses(&peer.channel));
        users.filter_map(move |(index, peer)| {
            let mut rails = 0..peer.account.loads.rails();
            let rail = rails.find(|rail| usize::from(peer.channel.local_rail(*rail)) == local)?;
            Some((index, rail))
        })
    }
}

impl Peer {
    /// Sets our count of seen parts on a fenced rail to the peer's count of posts: missing parts cannot come any more.
    fn settle_counts(&mut self, rail: u8) {
        let Some(outage) = self.outages.iter().find(|outage| outage.rail == rail) else { return };
        if let Some(RailPosts { parts, .. }) = outage.expects.filter(|_| outage.fenced) {
            self.account.counts.seen.set(rail, parts);
        }
    }
}

/// Checks of channels without writes in flight are spread over this many times.
const SPREAD: u32 = 64;
/// Bytes per microsecond. A slower rail may be taken for a hanging one.
const SLOWEST: u64 = 8;
/// Twice the longest gap between two polls that counts.
const REFUSAL_GAP: Duration = POLL_GAP_MAX.saturating_mul(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> PolledTime {
        PolledTime::START.plus(Duration::from_millis(ms))
    }

    fn refused_at(refusing: &mut Refusing, accepted: u32, ms: u64) -> u128 {
        refusing.refused(accepted, at(ms)).as_millis()
    }

    #[test]
    fn a_rail_refuses_from_the_first_refusal_since_it_accepted_a_write() {
        let mut refusing = Refusing::default();
        let times = [(7, 1000), (7, 1050), (7, 1100), (8, 1150), (8, 1200), (8, 1249)];
        let found = times.map(|(accepted, ms)| refused_at(&mut refusing, accepted, ms));
        assert_eq!(found, [0, 50, 100, 0, 50, 99]);
    }

    #[test]
    fn a_part_that_was_refused_and_given_up_does_not_count_when_another_is_refused() {
        let mut refusing = Refusing::default();
        let found = [1000, 1050, 5000, 5050].map(|ms| refused_at(&mut refusing, 7, ms));
        assert_eq!(found, [0, 50, 0, 50]);
    }

    #[test]
    fn a_rail_hangs_when_nothing_ends_there_while_the_peer_runs() {
        let at = |seconds: u64| at(1000 * seconds);
        let bound = (Duration::from_secs(5), Duration::from_secs(5));
        let mut account = Account::new(2);
        account.rails.posted(1, true);
        let mut hanging = Hanging::new(2);
        hanging.check(&account, true, at(60), bound);
        hanging.check(&account, false, at(64), bound);
        assert!(hanging.waits, "only an answer shows that the peer runs");
        assert_eq!(hanging.rails, RailSet::NONE, "while it was stopped nothing could end");
        hanging.check(&account, false, at(65), bound);
        assert_eq!(hanging.rails, RailSet::of(1));
        let mut hanging = Hanging::new(2);
        hanging.check(&account, true, at(60), bound);
        for stops in 1..=51 {
            assert_eq!(
                hanging.rails,
                RailSet::NONE,
                "after {stops} answers of a peer that only its keeper polls"
            );
            hanging.check(&account, true, at(60 + stops), bound);
            hanging.check(&account, false, at(60 + stops), bound);
        }
        assert_eq!(hanging.rails, RailSet::of(1), "50 answers show that the peer runs");
        let mut hanging = Hanging::new(2);
        hanging.check(&account, true, at(60), bound);
        assert!(account.rails.ended(1, true, true));
        account.rails.posted(1, true);
        hanging.check(&account, false, at(64), bound);
        hanging.check(&account, false, at(66), bound);
        assert_eq!(hanging.rails, RailSet::NONE, "a write has ended meanwhile");
        assert!(account.rails.ended(1, true, true));
        hanging.check(&account, false, at(67), bound);
        assert!(!hanging.waits, "nothing is under way");
    }

    #[test]
    fn a_rail_gets_more_time_for_the_bytes_that_are_queued_on_it() {
        let bound = (Duration::from_secs(5), Duration::from_secs(5));
        let mut account = Account::new(2);
        for rail in 0..2 {
            account.rails.posted(rail, true);
        }
        // At 8 MB/s, which is slower than any rail.
        account.loads.posted(1, 16_000_000);
        let mut hanging = Hanging::new(2);
        let lost = [60, 64, 65, 66, 67].map(|seconds| {
            hanging.check(&account, seconds == 60, at(1000 * seconds), bound);
            hanging.rails
        });
        let [none, first] = [RailSet::NONE, RailSet::of(0)];
        assert_eq!(lost, [none, none, first, first, RailSet::new(0b11)]);
    }

    #[test]
    fn rails_get_longer_if_no_other_rail_works_better() {
        let bounds = (Duration::from_millis(500), Duration::from_secs(8));
        for (still, survives, lost) in
            [(0b01, true, 0b01), (0b11, true, 0), (0b10, true, 0b10), (0b10, false, 0)]
                .map(|(still, survives, lost)| (RailSet::new(still), survives, RailSet::new(lost)))
        {
            let mut account = Account::new(2);
            account.rails.set_survives(survives);
            still.iter().for_each(|rail| account.rails.posted(rail, true));
            let mut hanging = Hanging::new(2);
            hanging.check(&account, true, at(0), bounds);
            hanging.check(&account, false, at(499), bounds);
            assert_eq!(hanging.rails, RailSet::NONE);
            hanging.check(&account, false, at(500), bounds);
            assert_eq!(hanging.rails, lost, "{still:?}, survives: {survives}");
            hanging.check(&account, false, at(8000), bounds);
            assert_eq!(hanging.rails, still, "at last all are lost");
        }
    }
}
