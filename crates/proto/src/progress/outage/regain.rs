//! Return of a lost data rail. The ends exchange their current addresses on the rail, and each probes it with a write that
//! belongs to no connection (a trial). The rail is used again when a trial has arrived at both ends.
//!
//! ```text
//!  Resting ── it is time, or the peer's OFFER of a newer round ──▶ Trying
//!     OFFER (round, address) ──▶          ◀── OFFER (round, address)
//!     trial ═══ by the rail ═══▶          ◀══ trial ═══
//!     RAIL seen (round) ───────▶          ◀── RAIL seen (round)
//!  Trying ── both ends have said *seen* ──▶ open
//!         └─ no trial within a second ─▶ Resting; the next round opens another endpoint, if no channel uses this one
//! ```
//!
//! Rounds are numbered. The newer number wins: an end that receives a newer one starts over with it. An end that has sent
//! *seen* starts no new round by itself, since the peer may be posting already. If the peer does not post, it sends an
//! OFFER of a newer round.

use super::{Local, Now, Peer, ProgressLoop};
use crate::account::Account;
use crate::bound::{RAIL_TRIAL, RAIL_TRY_AGAIN};
use crate::channel::{Cause, Channel};
use crate::connection::Connection;
use crate::frame::{Frame, Offer, RailNote, RailState};
use crate::ids::Moment;
use crate::memory::MemoryId;
use crate::polled::PolledTime;
use crate::progress::perform::{ChannelId, Perform, TrialTarget};
use crate::rest::Rest;

/// The progress of a lost rail's return.
#[derive(Debug)]
pub(super) struct Regain {
    stage: Stage,
    round: u8,
    /// The peer's newest OFFER.
    peer: Option<Offer>,
    /// Our trial is in flight.
    flies: bool,
}

#[derive(Debug)]
enum Stage {
    /// A pause until `until`, by the caller's clock.
    Resting {
        until: Moment,
    },
    Trying(Trying),
}

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what both ends have said and done, in any order"
)]
struct Trying {
    /// By the clock of [`PolledClock`](crate::polled::PolledClock).
    since: PolledTime,
    /// Our OFFER has left.
    offered: bool,
    /// We can write to the peer's address.
    reached: bool,
    /// Our trial is posted.
    posted: bool,
    /// A failed trial is not posted again before this time.
    again_at: PolledTime,
    /// The peer's trial has come.
    seen: bool,
    /// Our *seen* has left.
    seen_sent: bool,
    /// The peer has said *seen* for our trial.
    heard: bool,
    /// Our end was closed after the peer's trial had come. The peer may be using the rail: its return is completed, and
    /// the rail is lost again at once.
    closed: bool,
}

/// Rails of one channel that were lost before, for back-off.
#[derive(Debug)]
pub(in crate::progress) struct Histories {
    /// Whether rails can be tried, which needs immediates.
    tries: bool,
    rails: Vec<History>,
    /// When the first pause ends and a rail is tried again, by the caller's clock.
    retry_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct History {
    rail: u8,
    round: u8,
    rest: Rest,
}

impl Histories {
    pub(in crate::progress) fn new(tries: bool) -> Self {
        Self { tries, rails: Vec::new(), retry_at: None }
    }

    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.retry_at
    }

    fn of(&mut self, rail: u8) -> &mut History {
        let at = self.rails.iter().position(|history| history.rail == rail);
        let at = at.unwrap_or_else(|| {
            self.rails.push(History { rail, round: 0, rest: Rest::default() });
            self.rails.len() - 1
        });
        &mut self.rails[at]
    }

    /// Records that a channel leaves a rail because it closes for another channel. The rail is tried as soon as it is open again.
    pub(super) fn left(&mut self, rail: u8, now: Moment) -> Regain {
        let history = self.of(rail);
        history.rest.left();
        Regain::resting(history.round, now)
    }

    /// Records the loss of a rail, and starts its pause.
    pub(super) fn lost(&mut self, rail: u8, now: Moment) -> Regain {
        let history = self.of(rail);
        history.rest.lost(now);
        Regain::resting(history.round, now.plus(history.rest.pause()))
    }
}

impl Regain {
    fn resting(round: u8, until: Moment) -> Self {
        Self { stage: Stage::Resting { until }, round, peer: None, flies: false }
    }

    pub(super) fn is_trying(&self) -> bool {
        matches!(self.stage, Stage::Trying(_))
    }

    /// Whether the peer may have begun to post.
    fn is_committed(&self) -> bool {
        matches!(&self.stage, Stage::Trying(trying) if trying.seen)
    }

    /// Whether our end was closed after the peer's trial had come.
    fn was_closed(&self) -> bool {
        matches!(&self.stage, Stage::Trying(trying) if trying.closed)
    }

    pub(super) fn has_frames(&self) -> bool {
        let said = |trying: &Trying| trying.offered && trying.seen == trying.seen_sent;
        matches!(&self.stage, Stage::Trying(trying) if !said(trying))
    }

    /// The peer's OFFER, if its round is newer than ours.
    pub(super) fn newer_offer(&self) -> Option<Offer> {
        self.peer.filter(|offer| is_newer(offer.round, self.round))
    }

    /// Begins a new round: the peer's round, if the peer has offered a newer one.
    fn begin(&mut self, now: PolledTime) {
        self.peer = self.newer_offer();
        let next = self.round.wrapping_add(1);
        self.round = self.peer.map_or(next, |offer| offer.round);
        self.stage = Stage::Trying(Trying { since: now, ..Trying::default() });
    }

    /// Appends OFFER and RAIL *seen* if they are pending and there is room.
    pub(super) fn say<C: Connection, P: Perform<C>>(
        &mut self,
        (id, rail): (ChannelId, u8),
        perform: &mut P,
        channel: &mut Channel,
        memory: MemoryId,
    ) {
        let Stage::Trying(trying) = &mut self.stage else { return };
        if !trying.offered
            && let Some(trial) = perform.trial_target(channel.local_rail(rail))
        {
            let TrialTarget { address, target, key } = trial;
            let round = self.round;
            let channel_number = crate::bits::low16(id.0.into());
            let frame =
                Frame::Offer(Offer { rail, round, channel: channel_number, target, key, address });
            trying.offered = channel.shadow_mut().append(perform.shadow(memory), &frame);
        }
        if trying.offered && trying.seen && !trying.seen_sent {
            let state = RailState::Seen { round: self.round };
            let frame = Frame::Rail(RailNote { rail, state });
            trying.seen_sent = channel.shadow_mut().append(perform.shadow(memory), &frame);
        }
    }
}

/// Round numbers wrap.
const fn is_newer(round: u8, than: u8) -> bool {
    round.wrapping_sub(than).cast_signed() > 0
}

impl Peer {
    /// Whether the pause of a lost rail is over.
    pub(super) fn is_retry_due(&self, now: Moment) -> bool {
        self.histories.retry_at.is_some_and(|at| now >= at)
    }

    pub(super) fn tries(&self) -> bool {
        let ending = self.channel.ending();
        let ends = ending.is_begun() || ending.has_peer_said();
        self.histories.tries && self.channel.is_alive() && !ends
    }

    /// A round has failed, or cannot begin: starts the next pause.
    fn rest(&mut self, at: usize, now: Moment) {
        let outage = &mut self.outages[at];
        if let Some(offer) = outage.regain.newer_offer() {
            outage.regain.round = offer.round;
        }
        let history = self.histories.of(outage.rail);
        history.rest.failed();
        history.round = outage.regain.round;
        outage.regain.stage = Stage::Resting { until: now.plus(history.rest.pause()) };
    }

    /// Handles RAIL *seen*: our trial of this round has arrived at the peer.
    pub(super) fn heard(&mut self, rail: u8, round: u8) {
        if let Some(outage) = self.outage(rail)
            && outage.regain.round == round
            && let Stage::Trying(trying) = &mut outage.regain.stage
        {
            trying.heard = true;
        }
    }

    /// Our trial of a rail has completed or failed.
    pub(in crate::progress) fn trial_ended(&mut self, rail: u8, well: bool, now: PolledTime) {
        self.stirred = true;
        let Some(outage) = self.outage(rail) else { return };
        outage.regain.flies = false;
        if let Stage::Trying(trying) = &mut outage.regain.stage
            && !well
        {
            // Tried again while the round lasts: the provider may have to connect first.
            (trying.posted, trying.again_at) = (false, now.plus(RAIL_TRY_AGAIN));
        }
    }

    /// Whether both ends have said *seen*.
    pub(super) fn is_regained(&self, at: usize) -> bool {
        let trying = match &self.outages[at].regain.stage {
            Stage::Trying(trying) => trying,
            Stage::Resting { .. } => return false,
        };
        trying.seen_sent && trying.heard
    }

    /// Our end of a rail closes.
    pub(super) fn rail_closed(&mut self, rail: u8) {
        if let Some(outage) = self.outage(rail)
            && let Stage::Trying(trying) = &mut outage.regain.stage
        {
            trying.closed |= trying.seen;
        }
    }

    /// Finds when the next pause ends.
    pub(super) fn find_next_attempt(&mut self) {
        let tries = self.tries();
        let resting = self.outages.iter().filter_map(|outage| match outage.regain.stage {
            Stage::Resting { until } if tries && outage.is_fenced_on_both_ends() => Some(until),
            _ => None,
        });
        self.histories.retry_at = resting.min();
    }
}

impl<C: Connection> ProgressLoop<C> {
    /// Handles OFFER: the peer begins a round for a lost rail.
    #[cold]
    pub(in crate::progress) fn offered(&mut self, index: usize, offer: &Offer, now: Now) {
        let closes = self.closes(self.local_of(index, offer.rail));
        let peer = &mut self.peers[index];
        (peer.stirred, self.troubled) = (true, true);
        if !peer.channel.is_alive() {
            return;
        }
        let Some(outage) = peer.outage(offer.rail) else {
            return peer.channel.fail(Cause::Connection);
        };
        let regain = &mut outage.regain;
        if is_newer(offer.round, regain.round) {
            regain.peer = Some(*offer);
            if closes || regain.was_closed() {
                // The round begins when the rail is open, and its new keys were sent.
                regain.stage = Stage::Resting { until: now.clock };
            } else if regain.is_trying() {
                regain.begin(now.polled);
            }
        } else if offer.round == regain.round && regain.is_trying() && regain.peer.is_none() {
            regain.peer = Some(*offer);
        }
    }

    /// A trial from the peer has arrived.
    #[cold]
    pub(in crate::progress) fn trial_arrived(
        &mut self,
        channel: ChannelId,
        rail: u8,
        round: u8,
        now: Moment,
    ) {
        let index = channel.0 as usize;
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.stirred = true;
        let Some(outage) = peer.outage(rail).filter(|outage| outage.regain.round == round) else {
            return;
        };
        let Stage::Trying(trying) = &mut outage.regain.stage else { return };
        if !std::mem::replace(&mut trying.seen, true) {
            self.troubled = true;
            self.each_connection(index, now, |connection| connection.rail_counts(rail));
        }
    }

    /// Advances the return of a lost rail that both ends have fenced. True if it is open again and its outage is
    /// removed.
    pub(super) fn tend_return<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, at): (usize, usize),
        now: Now,
    ) -> bool {
        let peer = &mut self.peers[index];
        let outage = &peer.outages[at];
        let (id, rail) = (peer.id, outage.rail);
        if !outage.is_fenced_on_both_ends() || peer.account.rails.flying_on(rail) > 0 {
            return false;
        }
        // Also on a channel that is ending: the peer may be posting on the rail already.
        if peer.is_regained(at) {
            self.return_rail(perform, (index, at), now);
            return true;
        }
        if !peer.tries() {
            return false;
        }
        let closes = self.closes(self.local_of(index, rail));
        let peer = &mut self.peers[index];
        let regain = &mut peer.outages[at].regain;
        let closes = closes || regain.was_closed();
        match &mut regain.stage {
            Stage::Resting { until } => {
                if now.clock >= *until || regain.newer_offer().is_some() {
                    self.begin_round(perform, (index, at), now);
                }
            }
            Stage::Trying(trying) => {
                if let Some(offer) = regain.peer.filter(|_| !closes) {
                    trying.reached = trying.reached || perform.reach(id, rail, &offer.address);
                    let ready = trying.reached && !trying.posted && !regain.flies;
                    if ready && now.polled >= trying.again_at {
                        trying.posted = perform.try_rail(id, &offer);
                        regain.flies = trying.posted;
                    }
                }
                if !trying.seen && now.polled.since(trying.since) >= RAIL_TRIAL {
                    peer.rest(at, now.clock);
                    let local = self.local_of(index, rail);
                    if let Some(local @ Local::Reopened) = self.locals.get_mut(local) {
                        *local = Local::Open;
                    }
                }
            }
        }
        false
    }

    /// Begins a round: the pause is over, or the peer has sent an OFFER.
    fn begin_round<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, at): (usize, usize),
        now: Now,
    ) {
        // Pending RAIL frames of connections leave before OFFER. *held* and *listed* name what has arrived when they are made:
        // after the rail's return they would mix parts that were counted before the loss with those posted since.
        if self.any_connection(index, |connection| connection.has_rail_notes()) {
            return;
        }
        let peer = &mut self.peers[index];
        let rail = peer.outages[at].rail;
        let has_failed = peer.histories.of(rail).rest.has_failed();
        let local = self.local_of(index, rail);
        if self.locals.len() <= local {
            self.locals.resize(local + 1, Local::Open);
        }
        match self.locals[local] {
            Local::Draining { .. } | Local::Closing => return,
            Local::Closed => match perform.open_rail(crate::bits::low8(local as u64)) {
                Some(new_keys) => return self.reopened(perform, local, new_keys, now),
                None => return self.peers[index].rest(at, now.clock),
            },
            // A round with this libfabric endpoint has failed.
            Local::Open if has_failed && self.may_renew(local) => {
                let own = crate::bits::low8(local as u64);
                if perform.can_reopen(own) && perform.close_rail(own) {
                    self.locals[local] = Local::Closing;
                    self.stop_trials(local, now.clock);
                    return;
                }
            }
            Local::Open | Local::Reopened => {}
        }
        let target = perform.trial_target(crate::bits::low8(local as u64));
        let peer = &mut self.peers[index];
        if target.is_none() {
            // The rail's close has failed for good.
            return peer.rest(at, now.clock);
        }
        peer.outages[at].regain.begin(now.polled);
        peer.stirred = true;
    }

    /// One of our rails closes: its trials are void, and start over when it is open again. If the peer's trial has come,
    /// only the peer may begin another round.
    pub(super) fn stop_trials(&mut self, local: usize, now: Moment) {
        let users: Vec<(usize, u8)> = self.users_of(local).collect();
        for (index, rail) in users {
            if let Some(outage) = self.peers[index].outage(rail)
                && outage.regain.is_trying()
                && !outage.regain.is_committed()
            {
                outage.regain.stage = Stage::Resting { until: now };
            }
        }
    }

    /// Whether one of our rails is closed, or will be.
    fn closes(&self, local: usize) -> bool {
        let local = self.locals.get(local);
        matches!(local, Some(Local::Draining { .. } | Local::Closing | Local::Closed))
    }

    /// Whether no channel uses one of our rails, so that its libfabric endpoint may be replaced.
    fn may_renew(&self, local: usize) -> bool {
        self.users_of(local).all(|(index, rail)| {
            let peer = &self.peers[index];
            let outage = peer.outages.iter().find(|outage| outage.rail == rail);
            let idle = peer.account.rails.flying_on(rail) == 0;
            outage.is_some_and(|one| one.is_fenced_on_both_ends() && !one.regain.is_committed())
                && idle
        })
    }

    /// One of our rails has a new libfabric endpoint. If memory keys belong to endpoints, peers get the new ones before
    /// the OFFER.
    fn reopened<P: Perform<C>>(&mut self, perform: &mut P, local: usize, new_keys: bool, now: Now) {
        self.locals[local] = Local::Reopened;
        if !new_keys {
            return;
        }
        let users: Vec<(usize, u8)> = self.users_of(local).collect();
        for (index, rail) in users {
            let mut key = |region| perform.key_of(crate::bits::low8(local as u64), region);
            self.each_connection(index, now.clock, |connection| connection.rekey(rail, &mut key));
            self.peers[index].stirred = true;
        }
    }

    /// Returns a lost rail if both ends have said *seen*.
    pub(super) fn return_if_regained<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, rail): (usize, u8),
        now: Now,
    ) {
        let Some(peer) = self.peers.get(index) else { return };
        let at = peer.outages.iter().position(|outage| outage.rail == rail);
        if let Some(at) = at.filter(|at| peer.is_regained(*at)) {
            self.return_rail(perform, (index, at), now);
        }
    }

    /// Trials have arrived at both ends: parts go by the rail again.
    fn return_rail<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        (index, at): (usize, usize),
        now: Now,
    ) {
        let peer = &mut self.peers[index];
        let outage = peer.outages.swap_remove(at);
        let rail = outage.rail;
        let history = peer.histories.of(rail);
        history.round = outage.regain.round;
        history.rest.returned(now.clock);
        let Peer { account, channel, .. } = peer;
        let Account { rails, counts, loads, speeds, .. } = account;
        rails.returned(rail);
        counts.completed.set(rail, rails.posted_on(rail));
        channel.resume_counts_of(rail, rails.posted_on(rail));
        let waited = loads.open_rails() == 0;
        loads.open(rail);
        speeds.forget(rail, loads);
        peer.stirred = true;
        perform.rail_returned(peer.id, rail);
        if waited {
            self.act_again(index);
        }
        let closed = outage.regain.was_closed();
        if closed || self.closes(self.local_of(index, rail)) {
            self.rail_lost(perform, (index, rail), Cause::RailClosing { rail }, now);
            if let Some(again) = self.peers[index].outage(rail) {
                again.closed = closed;
            }
        }
    }

    /// Calls each connection of a channel, and updates its pending frames.
    pub(super) fn each_connection(
        &mut self,
        index: usize,
        now: Moment,
        mut call: impl FnMut(&mut C),
    ) {
        let Self { peers, table, .. } = self;
        let peer = &mut peers[index];
        let mut from = 0;
        while let Some(slot) = table.next_of(peer.id, from) {
            from = slot.index() + 1;
            if let Some(tenant) = table.tenant(slot) {
                call(&mut tenant.connection);
                table.touch(slot, &mut peer.pending, &peer.account, now);
            }
        }
    }

    /// The connections of a channel may have parts that waited for a rail.
    fn act_again(&mut self, index: usize) {
        let Self { peers, table, .. } = self;
        let mut from = 0;
        while let Some(slot) = table.next_of(peers[index].id, from) {
            from = slot.index() + 1;
            table.act_later(slot);
        }
    }

    fn any_connection(&self, index: usize, has: impl FnMut(&C) -> bool) -> bool {
        self.table.connections_of(self.peers[index].id).any(has)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Outage;
    use super::*;
    use crate::bound::{RAIL_CLOSE_MAX, RAIL_DRAIN_MAX, RAIL_DRAIN_STILL, RAIL_REST, last_rail};
    use crate::capabilities::ImmediateWidth;
    use crate::channel::Parameters;
    use crate::codec::Address;
    use crate::connection::{Submit, Which};
    use crate::flow::Flow;
    use crate::frame::{Advert, Close, Frame, Keys, RailNote, RailPosts, RailState};
    use crate::ids::{Name, Slot};
    use crate::letter::{Body, Letter, RailNumbers, Trial};
    use crate::line::Line;
    use crate::message::Source;
    use crate::progress::stand_in::{StandIn, parameters};
    use crate::receive::{Posting, Receive, ReceiveFlow, Target};
    use crate::send::{Outgoing, SendFlow, SendPoll};
    use crate::terms::Terms;

    type Endpoint = ProgressLoop<Flow>;
    /// What is changed on a channel, in words, and the change.
    type Use = (&'static str, fn(&mut Peer));

    fn at(time: Duration) -> Now {
        Now { clock: Moment::default().plus(time), polled: PolledTime::START.plus(time) }
    }

    fn ms(ms: u64) -> Now {
        at(Duration::from_millis(ms))
    }

    /// An endpoint with channels over two data rails. Each of them has lost the first rail, at time 0, and both its ends have
    /// fenced it.
    fn without_first_rail(channels: usize) -> (Endpoint, StandIn) {
        without_first_rail_of(channels, parameters(2).peer_timeout)
    }

    fn without_first_rail_of(channels: usize, peer_timeout: Duration) -> (Endpoint, StandIn) {
        let mut endpoint = Endpoint::new(1);
        for index in 0..channels {
            endpoint.add_channel(Parameters { peer_timeout, ..parameters(2) }).unwrap();
            let peer = &mut endpoint.peers[index];
            let regain = peer.histories.lost(0, ms(0).clock);
            let fenced = Outage {
                down_sent: true,
                expects: Some(RailPosts::default()),
                fenced: true,
                fence_sent: true,
                peer_fenced: true,
                ..Outage::new((0, Cause::DataFailed { rail: 0 }), ms(0).polled, regain)
            };
            peer.leave_rail(fenced);
        }
        (endpoint, StandIn::default())
    }

    /// As [`without_first_rail`], with two channels: the first needs the rail closed, since a part is missing on it; the second still
    /// uses the rail.
    fn with_first_rail_to_close() -> (Endpoint, StandIn) {
        with_first_rail_to_close_of(parameters(2).peer_timeout)
    }

    fn with_first_rail_to_close_of(peer_timeout: Duration) -> (Endpoint, StandIn) {
        let (mut endpoint, hands) = without_first_rail_of(2, peer_timeout);
        let outage = &mut endpoint.peers[0].outages[0];
        (outage.fenced, outage.needs_close) = (false, true);
        outage.expects = Some(RailPosts { parts: 1, uncounted: false });
        let user = &mut endpoint.peers[1];
        user.outages.clear();
        user.account.loads.open(0);
        (endpoint, hands)
    }

    fn failing(endpoint: &Endpoint) -> Vec<Option<Cause>> {
        endpoint.peers.iter().map(|peer| peer.channel.is_failing()).collect()
    }

    fn regain(endpoint: &mut Endpoint, index: usize) -> &mut Regain {
        &mut endpoint.peers[index].outages[0].regain
    }

    /// The state of the first channel's round.
    fn trying(endpoint: &mut Endpoint) -> &mut Trying {
        match &mut regain(endpoint, 0).stage {
            Stage::Trying(trying) => trying,
            Stage::Resting { .. } => panic!("it is resting"),
        }
    }

    fn offer(round: u8) -> Offer {
        let address = Address::new(&[1]).unwrap();
        Offer { rail: 0, round, channel: 0, target: 0, key: 0, address }
    }

    #[test]
    fn the_newer_round_counts_across_the_wrap() {
        assert!(is_newer(1, 0) && is_newer(0, 255) && is_newer(127, 0));
        assert!(!is_newer(0, 0) && !is_newer(0, 1) && !is_newer(255, 0));
    }

    #[test]
    fn an_endpoint_of_a_rail_is_replaced_only_while_no_channel_uses_it() {
        let uses: [Use; 6] = [
            ("it has not lost the rail", |peer| peer.outages.clear()),
            ("parts may arrive here", |peer| peer.outages[0].fenced = false),
            ("parts may arrive there", |peer| peer.outages[0].peer_fenced = false),
            ("the peer does not know of the fence", |peer| peer.outages[0].fence_sent = false),
            ("a write of ours is in flight", |peer| peer.account.rails.posted(0, true)),
            ("the peer may be posting", |peer| {
                let seen = Trying { seen: true, ..Trying::default() };
                peer.outages[0].regain.stage = Stage::Trying(seen);
            }),
        ];
        for (why, use_it) in uses {
            for user in 0..2 {
                let (mut endpoint, _) = without_first_rail(2);
                assert!(endpoint.may_renew(0));
                use_it(&mut endpoint.peers[user]);
                assert!(!endpoint.may_renew(0), "{why}");
                endpoint.peers[user].channel.fail(Cause::NoRail);
                assert!(endpoint.may_renew(0), "a channel that has failed uses nothing");
            }
        }
    }

    #[test]
    fn a_lost_rail_is_tried_after_its_pause_or_when_the_peer_offers_a_newer_round() {
        for offered in [false, true] {
            let (mut endpoint, mut hands) = without_first_rail(1);
            let rest = u64::try_from(RAIL_REST.as_millis()).unwrap();
            assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(rest - 1)));
            assert!(!regain(&mut endpoint, 0).is_trying());
            if offered {
                endpoint.offered(0, &offer(7), ms(rest - 1));
            }
            let now = if offered { rest - 1 } else { rest };
            assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(now)));
            assert!(regain(&mut endpoint, 0).is_trying());
            assert_eq!(regain(&mut endpoint, 0).round, if offered { 7 } else { 1 });
        }
    }

    #[test]
    fn no_rail_is_tried_that_an_end_has_not_fenced_or_while_the_channel_ends() {
        let forbids: [fn(&mut Peer); 5] = [
            |peer| peer.outages[0].fenced = false,
            |peer| peer.outages[0].peer_fenced = false,
            |peer| peer.account.rails.posted(0, true),
            |peer| peer.channel.ending_mut().begin(),
            |peer| peer.histories.tries = false,
        ];
        for forbid in forbids {
            let (mut endpoint, mut hands) = without_first_rail(1);
            forbid(&mut endpoint.peers[0]);
            endpoint.offered(0, &offer(7), ms(1000));
            assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(1000)));
            assert!(!regain(&mut endpoint, 0).is_trying());
        }
    }

    /// The report would mix parts that were counted before the loss with parts that were posted afterwards.
    #[test]
    fn no_round_begins_while_a_receiver_has_to_report_what_came_by_the_lost_rail() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        let name = endpoint.vacant().unwrap();
        let receiver = Flow::Receive(ReceiveFlow::new(Terms::of_two_rails(name)));
        assert!(endpoint.connect(name, ChannelId(0), receiver, ms(0).clock));
        endpoint.with(&mut hands, name.slot, ms(1).clock, |flow, _| {
            flow.rail_left(0);
            flow.rail_fenced(0);
        });
        assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(1000)));
        assert!(!regain(&mut endpoint, 0).is_trying());
        let note = endpoint.with(&mut hands, name.slot, ms(1000).clock, |flow, account| {
            flow.next_frame(Which::Others, 64, account, ms(1000).clock)
        });
        let listed = |note: &Frame| {
            matches!(note, Frame::Rail(RailNote { state: RailState::Listed { .. }, .. }))
        };
        assert!(note.flatten().is_some_and(|note| listed(&note)));
        assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(1001)));
        assert!(regain(&mut endpoint, 0).is_trying());
    }

    /// Adds a receiver to the first channel, with one line advertised. It has said which parts came by the lost rail.
    fn add_receiver(endpoint: &mut Endpoint, hands: &mut StandIn) -> Slot {
        let name = endpoint.vacant().unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(name) };
        let receiver = Flow::Receive(ReceiveFlow::new(terms));
        assert!(endpoint.connect(name, ChannelId(0), receiver, ms(0).clock));
        endpoint.with(hands, name.slot, ms(1).clock, |flow, account| {
            let target = Target { address: 0, region: 7 };
            let receive = Receive { target, len: 9, ..Receive::default() };
            let receiver = flow.receiver_mut().unwrap();
            receiver.post(&[receive], &[1, 2], Posting::default(), account, ms(1).clock).unwrap();
            flow.rail_left(0);
            flow.rail_fenced(0);
        });
        let frames =
            [Which::Adverts, Which::Others].map(|which| said(endpoint, hands, name.slot, which));
        assert!(matches!(frames, [Some(Frame::Advert(_)), Some(Frame::Rail(_))]), "{frames:?}");
        name.slot
    }

    fn said(
        endpoint: &mut Endpoint,
        hands: &mut StandIn,
        slot: Slot,
        which: Which,
    ) -> Option<Frame> {
        let next = |flow: &mut Flow, account: &mut Account| {
            flow.next_frame(which, 64, account, ms(1).clock)
        };
        endpoint.with(hands, slot, ms(1).clock, next).flatten()
    }

    /// The sender may be posting on that rail already.
    #[test]
    fn memory_is_exposed_to_a_rail_by_which_a_trial_has_come() {
        for (round, exposed) in [(0, 0), (1, 1)] {
            let (mut endpoint, mut hands) = without_first_rail(1);
            let slot = add_receiver(&mut endpoint, &mut hands);
            assert!(!endpoint.tend_return(&mut hands, (0, 0), ms(300)));
            endpoint.trial_arrived(ChannelId(0), 0, round, ms(301).clock);
            let parts = Keys::new(&[1, 0]).unwrap();
            let close = Frame::Close(Close { to: Name::default(), lines: Line::FIRST, parts });
            endpoint.with(&mut hands, slot, ms(302).clock, |flow, account| {
                flow.received(&close, account, ms(302).clock).unwrap();
            });
            let receiver = endpoint.connection(slot).unwrap().receiver().unwrap();
            assert_eq!(receiver.exposed(), exposed, "round {round}");
        }
    }

    #[test]
    fn a_rail_that_opens_with_new_keys_is_offered_once_the_keys_were_sent() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        let slot = add_receiver(&mut endpoint, &mut hands);
        (endpoint.locals, hands.new_keys) = (vec![Local::Closed], true);
        for now in [300, 301] {
            endpoint.tend_return(&mut hands, (0, 0), ms(now));
            assert!(!regain(&mut endpoint, 0).is_trying(), "at {now} ms");
        }
        let key = said(&mut endpoint, &mut hands, slot, Which::Others);
        assert!(
            matches!(
                key,
                Some(Frame::Rail(RailNote { rail: 0, state: RailState::Key { key: 107, .. } }))
            ),
            "{key:?}"
        );
        assert_eq!(said(&mut endpoint, &mut hands, slot, Which::Others), None);
        endpoint.tend_return(&mut hands, (0, 0), ms(302));
        assert!(regain(&mut endpoint, 0).is_trying());
    }

    #[test]
    fn a_trial_goes_to_the_address_of_the_peers_offer_once_until_it_has_failed() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        for now in [300, 301] {
            endpoint.tend_return(&mut hands, (0, 0), ms(now));
        }
        assert!(hands.trials.is_empty(), "the peer has offered no address");
        endpoint.offered(0, &offer(1), ms(302));
        for now in [302, 303] {
            endpoint.tend_return(&mut hands, (0, 0), ms(now));
        }
        assert_eq!(hands.trials, [offer(1)]);
        endpoint.peers[0].trial_ended(0, false, ms(304).polled);
        let again = Duration::from_millis(304) + RAIL_TRY_AGAIN;
        for time in [again - Duration::from_nanos(1), again] {
            assert_eq!(hands.trials.len(), 1);
            endpoint.tend_return(&mut hands, (0, 0), at(time));
        }
        assert_eq!(hands.trials.len(), 2);
    }

    /// The completion of a trial does not name its round.
    #[test]
    fn a_trial_is_posted_when_that_of_the_previous_round_has_ended() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        endpoint.tend_return(&mut hands, (0, 0), ms(300));
        endpoint.offered(0, &offer(1), ms(301));
        endpoint.tend_return(&mut hands, (0, 0), ms(301));
        endpoint.offered(0, &offer(2), ms(302));
        for now in [302, 303] {
            endpoint.tend_return(&mut hands, (0, 0), ms(now));
            assert_eq!(hands.trials, [offer(1)]);
        }
        endpoint.peers[0].trial_ended(0, true, ms(304).polled);
        endpoint.tend_return(&mut hands, (0, 0), ms(304));
        assert_eq!(hands.trials, [offer(1), offer(2)]);
    }

    /// The rail will have another address.
    #[test]
    fn a_round_of_one_channel_starts_over_where_the_rail_is_closed_for_another() {
        let (mut endpoint, mut hands) = without_first_rail(2);
        let needs = &mut endpoint.peers[0].outages[0];
        (needs.fenced, needs.needs_close) = (false, true);
        needs.expects = Some(RailPosts { parts: 1, uncounted: false });
        regain(&mut endpoint, 1).stage = Stage::Trying(Trying::default());
        endpoint.tend_rails(&mut hands, ms(1));
        assert!(!regain(&mut endpoint, 1).is_trying());
        endpoint.tend_rails(&mut hands, ms(2));
        assert_eq!(hands.closed, [0]);
        (3..6).for_each(|now| endpoint.tend_rails(&mut hands, ms(now)));
        assert!(regain(&mut endpoint, 1).is_trying());
    }

    #[test]
    fn a_round_without_a_trial_ends_after_a_second_unless_the_peer_may_be_posting() {
        for seen in [false, true] {
            let (mut endpoint, mut hands) = without_first_rail(1);
            endpoint.tend_return(&mut hands, (0, 0), ms(300));
            trying(&mut endpoint).seen = seen;
            let end = Duration::from_millis(300) + RAIL_TRIAL;
            endpoint.tend_return(&mut hands, (0, 0), at(end - Duration::from_nanos(1)));
            assert!(regain(&mut endpoint, 0).is_trying());
            endpoint.tend_return(&mut hands, (0, 0), at(end));
            assert_eq!(regain(&mut endpoint, 0).is_trying(), seen);
            // The next round begins after another pause.
            endpoint.tend_return(&mut hands, (0, 0), at(end + RAIL_REST - Duration::from_nanos(1)));
            assert_eq!(regain(&mut endpoint, 0).is_trying(), seen);
            if !seen {
                // The rail's endpoint is replaced first, since a round has failed with it.
                for _ in 0..2 {
                    endpoint.tend_return(&mut hands, (0, 0), at(end + RAIL_REST));
                    endpoint.locals[0] = Local::Reopened;
                }
                assert_eq!(hands.closed, [0]);
                assert!(regain(&mut endpoint, 0).is_trying());
                assert_eq!(regain(&mut endpoint, 0).round, 2);
            }
        }
    }

    #[test]
    fn a_rail_is_back_once_each_end_has_seen_the_others_trial_even_if_the_channel_ends() {
        for ends in [false, true] {
            for (seen_sent, heard) in [(false, false), (false, true), (true, false), (true, true)] {
                let (mut endpoint, mut hands) = without_first_rail(1);
                endpoint.tend_return(&mut hands, (0, 0), ms(300));
                let round = trying(&mut endpoint);
                (round.seen, round.seen_sent, round.heard) = (true, seen_sent, heard);
                if ends {
                    endpoint.peers[0].channel.ending_mut().begin();
                }
                let back = seen_sent && heard;
                assert_eq!(endpoint.tend_return(&mut hands, (0, 0), ms(301)), back);
                let peer = &endpoint.peers[0];
                assert_eq!(peer.account.loads.is_open(0), back, "parts go by it again");
                assert_eq!(peer.outages.is_empty(), back);
            }
        }
    }

    /// That channel's peer has no other rail in common with us.
    #[test]
    fn a_rail_stays_open_that_is_the_only_one_of_a_channel_also_if_made_while_it_was_drained() {
        let last = last_rail(parameters(1).peer_timeout);
        for (new, rails, closes) in [(true, 1, false), (true, 2, true), (false, 1, false)] {
            let (mut endpoint, mut hands) = with_first_rail_to_close();
            endpoint.peers[1].account.rails.posted(0, true);
            if !new {
                let other = endpoint.add_channel(parameters(rails)).unwrap();
                hands.meet(other);
                endpoint.progress(&mut hands, ms(0).clock);
            }
            endpoint.tend_rails(&mut hands, ms(1));
            if new {
                assert!(matches!(endpoint.locals[0], Local::Draining { .. }));
                endpoint.add_channel(parameters(rails)).unwrap();
            }
            assert!(endpoint.peers[1].account.rails.ended(0, true, true));
            for now in 2..5 {
                endpoint.tend_rails(&mut hands, ms(now));
            }
            endpoint.tend_rails(&mut hands, at(last - Duration::from_nanos(1)));
            assert_eq!(!hands.closed.is_empty(), closes, "with {rails} rails");
            assert_eq!(failing(&endpoint), [None; 3], "with {rails} rails");
            endpoint.tend_rails(&mut hands, at(last));
            let lost = (!closes).then_some(Cause::DataLost { rail: 0 });
            assert_eq!(failing(&endpoint), [lost, None, None], "with {rails} rails");
        }
    }

    #[test]
    fn a_rail_is_closed_though_another_channel_has_no_rail_if_that_has_left_this_one_already() {
        let (mut endpoint, mut hands) = without_first_rail(2);
        let needs = &mut endpoint.peers[0].outages[0];
        (needs.fenced, needs.needs_close) = (false, true);
        needs.expects = Some(RailPosts { parts: 1, uncounted: false });
        endpoint.peers[1].account.loads.close(1);
        for now in 1..4 {
            endpoint.tend_rails(&mut hands, ms(now));
        }
        assert_eq!(hands.closed, [0]);
    }

    #[test]
    fn the_last_rail_of_another_channel_is_closed_late_and_only_if_it_can_be_opened_again() {
        // After a quarter of the peer timeout, before the channel that needs it closed would fail, and two seconds at most.
        for (timeout, after) in [(75, Some(2000)), (6, Some(1500)), (75, None)] {
            let (mut endpoint, mut hands) =
                with_first_rail_to_close_of(Duration::from_secs(timeout));
            hands.reopens_not = after.is_none();
            let other = &mut endpoint.peers[1];
            let regain = other.histories.lost(1, ms(0).clock);
            other.leave_rail(Outage::new((1, Cause::DataFailed { rail: 1 }), ms(0).polled, regain));
            let closes = (0..6000).step_by(10).find(|now| {
                endpoint.tend_rails(&mut hands, ms(*now));
                !matches!(endpoint.locals[..], [Local::Open, ..])
            });
            assert_eq!(closes, after, "{timeout} s");
            assert_eq!(failing(&endpoint), [None; 2], "{timeout} s");
        }
    }

    #[test]
    fn a_message_fails_whose_receiver_has_closed_while_no_rail_was_open() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        let name = endpoint.vacant().unwrap();
        let sender = Flow::Send(SendFlow::new(Terms::of_two_rails(name)));
        assert!(endpoint.connect(name, ChannelId(0), sender, ms(1).clock));
        let down = RailNote { rail: 1, state: RailState::Down(RailPosts::default()) };
        endpoint.rail_note(&mut hands, 0, &down, ms(1));
        let mut message = None;
        endpoint.with(&mut hands, name.slot, ms(1).clock, |flow, account| {
            let advert = Frame::Advert(Advert::of_line(name, Line::FIRST, 64, &[10, 11]));
            flow.received(&advert, account, ms(1).clock).unwrap();
            let outgoing = Outgoing { tag: 0, len: 64, source: Source::default(), host: false };
            let submitted = flow.sender_mut().unwrap().submit(&outgoing, 0, account).unwrap();
            let Submit::Parts { message: id, .. } = submitted else { panic!("{submitted:?}") };
            message = Some(id);
            let close = Close { to: name, lines: Line::FIRST, parts: Keys::new(&[0, 0]).unwrap() };
            flow.received(&Frame::Close(close), account, ms(1).clock).unwrap();
        });
        (1..5).for_each(|now| endpoint.progress(&mut hands, ms(now).clock));
        assert_eq!(hands.writes, []);
        let flow = endpoint.connection_mut(name.slot).unwrap().sender_mut().unwrap();
        let polled = flow.poll(message.unwrap());
        assert!(matches!(polled, SendPoll::Failed(_)), "{polled:?}");
    }

    /// Both ends may have left one of two rails at the same time, each for another channel.
    #[test]
    fn a_channel_whose_last_rail_an_end_leaves_waits_for_one_that_comes_back() {
        let last = last_rail(parameters(2).peer_timeout);
        let [by_peer, by_us] = [Cause::RailDown { rail: 1 }, Cause::RailClosing { rail: 1 }];
        for (cause, returns) in [(by_peer, false), (by_us, false), (by_peer, true)] {
            let (mut endpoint, mut hands) = without_first_rail(1);
            endpoint.rail_lost(&mut hands, (0, 1), cause, ms(1));
            assert_eq!(endpoint.peers[0].account.loads.open_rails(), 0);
            let body = Body::Trial(Trial { rail: 0, number: 0, answers: false });
            let letter = Letter { key: 1, rails: RailNumbers::default(), body };
            endpoint.peers[0].channel.letter_arrived(&letter, at(last));
            endpoint.tend_rails(&mut hands, at(last));
            assert!(endpoint.troubled, "each poll checks the outage");
            assert_eq!(failing(&endpoint), [None]);
            if returns {
                let seen = Trying { seen: true, seen_sent: true, heard: true, ..Trying::default() };
                regain(&mut endpoint, 0).stage = Stage::Trying(seen);
            }
            endpoint.tend_rails(&mut hands, at(last + Duration::from_millis(1)));
            assert_eq!(failing(&endpoint), [(!returns).then_some(cause)], "returns: {returns}");
        }
    }

    #[test]
    fn parts_that_waited_for_a_rail_are_posted_once_one_is_back() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        let down = RailNote { rail: 1, state: RailState::Down(RailPosts::default()) };
        endpoint.rail_note(&mut hands, 0, &down, ms(1));
        let name = endpoint.vacant().unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(name) };
        let sender = Flow::Send(SendFlow::new(terms));
        assert!(endpoint.connect(name, ChannelId(0), sender, ms(1).clock));
        endpoint.with(&mut hands, name.slot, ms(1).clock, |flow, account| {
            let advert = Frame::Advert(Advert::of_line(name, Line::FIRST, 64, &[10, 11]));
            flow.received(&advert, account, ms(1).clock).unwrap();
            let message = Outgoing { tag: 0, len: 64, source: Source::default(), host: false };
            flow.sender_mut().unwrap().submit(&message, 0, account).unwrap();
        });
        (1..5).for_each(|now| endpoint.progress(&mut hands, ms(now).clock));
        assert_eq!(hands.writes, []);
        let seen = Trying { seen: true, seen_sent: true, heard: true, ..Trying::default() };
        regain(&mut endpoint, 0).stage = Stage::Trying(seen);
        (5..8).for_each(|now| endpoint.progress(&mut hands, ms(now).clock));
        assert_eq!(hands.writes.iter().map(|write| write.rail).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_rail_that_comes_back_to_a_channel_without_any_and_closes_is_left_again() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        let down = RailNote { rail: 1, state: RailState::Down(RailPosts::default()) };
        endpoint.rail_note(&mut hands, 0, &down, ms(1));
        let seen = Trying { seen: true, seen_sent: true, heard: true, ..Trying::default() };
        regain(&mut endpoint, 0).stage = Stage::Trying(seen);
        endpoint.locals = vec![Local::Closing];
        endpoint.tend_return(&mut hands, (0, 0), ms(2));
        assert_eq!(failing(&endpoint), [None]);
        assert_eq!(endpoint.peers[0].account.loads.open_rails(), 0);
    }

    #[test]
    fn a_channel_of_two_rails_that_is_made_while_both_are_closed_waits_for_them() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        endpoint.locals = vec![Local::Closed; 2];
        let new = endpoint.add_channel(parameters(2)).unwrap();
        hands.meet(new);
        for now in 1..10 {
            endpoint.progress(&mut hands, ms(now).clock);
        }
        assert_eq!(failing(&endpoint), [None; 2]);
        assert_eq!(endpoint.peers[1].outages.len(), 2);
        assert_eq!(endpoint.peers[1].account.loads.open_rails(), 0);
    }

    /// Its peer may write by the rail until it receives *down*.
    #[test]
    fn a_channel_of_two_rails_that_is_made_while_one_drains_leaves_that_and_reports_it() {
        let (mut endpoint, mut hands) = with_first_rail_to_close();
        endpoint.peers[1].account.rails.posted(0, true);
        endpoint.tend_rails(&mut hands, ms(1));
        endpoint.add_channel(parameters(2)).unwrap();
        let new = &endpoint.peers[2];
        assert!(!new.account.loads.is_open(0) && new.account.loads.is_open(1));
        let [outage] = &new.outages[..] else { panic!("{:?}", new.outages) };
        assert_eq!((outage.rail, outage.fenced, outage.has_frames()), (0, false, true));
        let still = u64::try_from(RAIL_DRAIN_STILL.as_millis()).unwrap();
        (2..=2 + still).for_each(|now| endpoint.tend_rails(&mut hands, ms(now)));
        assert_eq!(hands.closed, [0], "it does not wait for the new channel");
    }

    #[test]
    fn a_channel_waits_for_a_rail_to_be_closed_until_the_others_have_another_one_again() {
        for arrives in [false, true] {
            let (mut endpoint, mut hands) = with_first_rail_to_close();
            // The other channel's second rail is not open now.
            endpoint.peers[1].account.loads.close(1);
            for now in 1..200 {
                endpoint.tend_rails(&mut hands, ms(now));
            }
            assert_eq!((&hands.closed[..], failing(&endpoint)), (&[][..], vec![None; 2]));
            assert!(endpoint.peers[1].account.loads.is_open(0), "it has no other rail");
            if arrives {
                endpoint.peers[0].account.counts.seen.set(0, 1);
            } else {
                endpoint.peers[1].account.loads.open(1);
            }
            for now in (200..20_000).step_by(20) {
                endpoint.tend_rails(&mut hands, ms(now));
            }
            assert_eq!(hands.closed.len(), usize::from(!arrives));
            assert!(endpoint.peers[0].outages[0].fenced);
            assert_eq!(failing(&endpoint), [None; 2], "arrives: {arrives}");
        }
    }

    #[test]
    fn a_rail_is_closed_for_one_channel_once_the_parts_of_another_have_arrived_or_none_comes_any_more()
     {
        let still = u64::try_from(RAIL_DRAIN_STILL.as_millis()).unwrap();
        let most = u64::try_from(RAIL_DRAIN_MAX.as_millis()).unwrap();
        for (in_flight, confirmed, arrive, closes_at) in [
            (false, 3, false, 1),
            (false, 2, false, 1 + still),
            (true, 3, false, 1 + still),
            (true, 3, true, 1 + most),
        ] {
            let (mut endpoint, mut hands) = with_first_rail_to_close();
            let Peer { account, channel, .. } = &mut endpoint.peers[1];
            account.counts.completed.set(0, 3);
            channel.resume_counts_of(0, confirmed);
            if in_flight {
                account.rails.posted(0, true);
            }
            for now in 1..closes_at {
                endpoint.tend_rails(&mut hands, ms(now));
                assert!(hands.closed.is_empty(), "at {now} ms");
                if arrive {
                    endpoint.peers[1].account.counts.seen.add(0);
                }
            }
            endpoint.tend_rails(&mut hands, ms(closes_at));
            assert_eq!(hands.closed, [0], "{in_flight} {confirmed}");
        }
    }

    #[test]
    fn a_channel_fails_that_needs_a_rail_closed_which_cannot_be() {
        let (mut endpoint, mut hands) = with_first_rail_to_close();
        hands.closes_not = true;
        let last = at(Duration::from_millis(1) + RAIL_CLOSE_MAX);
        for now in (1..2000).map(ms) {
            endpoint.tend_rails(&mut hands, now);
        }
        assert_eq!(failing(&endpoint), [None, None]);
        endpoint.tend_rails(&mut hands, last);
        assert_eq!(failing(&endpoint), [Some(Cause::DataLost { rail: 0 }), None]);
        let after = RAIL_CLOSE_MAX + Duration::from_millis(2);
        endpoint.tend_rails(&mut hands, at(after));
        assert!(matches!(endpoint.locals[0], Local::Open), "the other channel may use it again");
    }

    #[test]
    fn no_channel_fails_for_a_rail_that_cannot_be_closed_once_what_was_missing_has_come() {
        let (mut endpoint, mut hands) = with_first_rail_to_close();
        hands.closes_not = true;
        for now in 1..20 {
            endpoint.tend_rails(&mut hands, ms(now));
        }
        assert!(!endpoint.peers[1].account.loads.is_open(0), "it has left the rail");
        endpoint.peers[0].account.counts.seen.set(0, 1);
        let left = &mut endpoint.peers[1].outages[0];
        (left.down_sent, left.fence_sent) = (true, true);
        (left.expects, left.peer_fenced) = (Some(RailPosts::default()), true);
        for now in (20..5000).step_by(10) {
            endpoint.tend_rails(&mut hands, ms(now));
            if now == 30 {
                assert!(regain(&mut endpoint, 1).is_trying(), "it has no pause");
            }
        }
        assert_eq!(failing(&endpoint), [None; 2]);
    }

    /// Each channel has its own bound.
    #[test]
    fn a_channel_that_needs_a_rail_closed_later_than_another_one_fails_later() {
        let (mut endpoint, mut hands) = with_first_rail_to_close();
        hands.closes_not = true;
        endpoint.tend_rails(&mut hands, ms(1));
        let half = RAIL_CLOSE_MAX / 2;
        let needs = &mut endpoint.peers[1].outages[0];
        (needs.needs_close, needs.still_since) = (true, at(half).polled);
        let lost = Some(Cause::DataLost { rail: 0 });
        let last = RAIL_CLOSE_MAX + Duration::from_millis(1);
        for (time, expected) in [(last, [lost, None]), (last + half, [lost, lost])] {
            endpoint.tend_rails(&mut hands, at(time - Duration::from_millis(2)));
            endpoint.tend_rails(&mut hands, at(time));
            assert_eq!(failing(&endpoint), expected, "after {time:?}");
        }
    }

    #[test]
    fn a_rail_that_is_left_for_another_channel_has_no_pause_and_counts_as_no_flap() {
        let mut histories = Histories::new(true);
        let until = |regain: Regain| match regain.stage {
            Stage::Resting { until } => until,
            Stage::Trying(_) => panic!("a round has begun"),
        };
        for loss in 0..15 {
            assert_eq!(until(histories.left(0, ms(2000 * loss).clock)), ms(2000 * loss).clock);
            histories.of(0).rest.returned(ms(2000 * loss + 1000).clock);
        }
        let now = ms(30_000).clock;
        assert_eq!(until(histories.lost(0, now)), now.plus(RAIL_REST));
    }

    /// Otherwise the peer would wait for this end's HELLO until the connect timeout.
    #[test]
    fn a_channel_made_while_its_only_rail_is_closed_sends_hello_then_fails_and_reports_it() {
        for local in [Local::Closing, Local::Closed] {
            for met_at in [1, 5] {
                let (mut endpoint, mut hands) = without_first_rail(1);
                endpoint.locals = vec![local];
                let new = endpoint.add_channel(parameters(1)).unwrap();
                for now in 1..10 {
                    if now == met_at {
                        hands.meet(new);
                    }
                    endpoint.progress(&mut hands, ms(now).clock);
                    let failure = endpoint.channel(new).unwrap().failure();
                    let expected = (now >= met_at).then_some(Cause::RailClosing { rail: 0 });
                    assert_eq!(failure, expected, "{local:?} at {now} ms");
                    assert!(endpoint.may_renew(0), "for the other channel");
                }
                assert!(endpoint.channel(ChannelId(0)).unwrap().is_alive());
                let says = |letter: &&Letter| match letter.body {
                    Body::Status(status) => status.failed,
                    _ => false,
                };
                assert_eq!(hands.letters.iter().filter(says).count(), 1, "{local:?} at {met_at}");
                // If the peer's HELLO is there at the first poll, the failure is reported without a HELLO of ours.
                assert_eq!(hands.greeted.contains(&new), met_at > 1, "{local:?} at {met_at}");
            }
        }
    }

    /// As after many failed rounds. An end that offers a round waits only a second for an answer.
    #[test]
    fn a_round_that_the_peer_offers_begins_before_our_pause_is_over_also_with_another_endpoint() {
        for (local, closed) in [(Local::Closed, 0), (Local::Open, 1)] {
            let (mut endpoint, mut hands) = without_first_rail(1);
            endpoint.locals = vec![local];
            endpoint.peers[0].histories.of(0).rest.failed();
            let until = ms(60_000).clock;
            regain(&mut endpoint, 0).stage = Stage::Resting { until };
            for now in 1..5 {
                endpoint.progress(&mut hands, ms(now).clock);
            }
            endpoint.offered(0, &offer(7), ms(5));
            for now in 5..10 {
                endpoint.progress(&mut hands, ms(now).clock);
            }
            assert!(regain(&mut endpoint, 0).is_trying(), "{local:?}");
            assert_eq!(regain(&mut endpoint, 0).round, 7);
            assert_eq!(hands.closed.len(), closed);
        }
    }

    #[test]
    fn a_rail_that_could_not_be_opened_again_is_tried_with_its_old_endpoint() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        hands.reopens_not = true;
        endpoint.locals = vec![Local::Open];
        endpoint.peers[0].histories.of(0).rest.failed();
        endpoint.offered(0, &offer(7), ms(5));
        for now in 5..10 {
            endpoint.progress(&mut hands, ms(now).clock);
        }
        assert!(hands.closed.is_empty());
        assert!(regain(&mut endpoint, 0).is_trying());
    }

    /// A trial by an address that is not the newest proves nothing.
    #[test]
    fn an_offer_of_an_older_round_and_a_second_one_of_the_same_round_are_ignored() {
        let (mut endpoint, _) = without_first_rail(1);
        let regain_is = |endpoint: &mut Endpoint, stage, round, peer| {
            *regain(endpoint, 0) = Regain { stage, round, peer, flies: false };
        };
        let heard = |endpoint: &mut Endpoint, number| {
            endpoint.offered(0, &offer(number), ms(5));
            regain(endpoint, 0).peer.map(|offer| (offer.round, offer.channel))
        };
        let tries = || Stage::Trying(Trying::default());
        regain_is(&mut endpoint, tries(), 7, None);
        assert_eq!([6, 7].map(|number| heard(&mut endpoint, number)), [None, Some((7, 0))]);
        let first = Offer { channel: 4, ..offer(7) };
        regain_is(&mut endpoint, tries(), 7, Some(first));
        assert_eq!(heard(&mut endpoint, 7), Some((7, 4)));
        regain_is(&mut endpoint, Stage::Resting { until: ms(9).clock }, 7, None);
        assert_eq!([6, 7].map(|number| heard(&mut endpoint, number)), [None; 2], "it has failed");
    }

    #[test]
    fn no_trial_is_posted_and_no_round_begins_on_a_rail_that_closes_or_was_closed_meanwhile() {
        let (since, still_since) = (ms(1).polled, ms(1).polled);
        let draining = Local::Draining { since, still_since, moved: 0 };
        for (local, closed, may) in
            [(Local::Open, false, true), (draining, false, false), (Local::Reopened, true, false)]
        {
            let (mut endpoint, mut hands) = without_first_rail(1);
            endpoint.locals = vec![local];
            let trying = Trying { offered: true, seen: true, closed, ..Trying::default() };
            let (stage, peer) = (Stage::Trying(trying), Some(offer(7)));
            *regain(&mut endpoint, 0) = Regain { stage, round: 7, peer, flies: false };
            endpoint.tend_return(&mut hands, (0, 0), ms(5));
            assert_eq!(hands.trials.len(), usize::from(may), "{local:?}");
            endpoint.offered(0, &offer(8), ms(5));
            assert_eq!(regain(&mut endpoint, 0).is_trying(), may, "{local:?}");
            let round = if may { 8 } else { 7 };
            assert_eq!(regain(&mut endpoint, 0).round, round, "{local:?}");
        }
    }

    #[test]
    fn an_offer_that_an_end_cannot_follow_ends_as_a_round_that_has_failed() {
        let (mut endpoint, mut hands) = without_first_rail(1);
        hands.leaks = true;
        endpoint.offered(0, &offer(7), ms(5));
        endpoint.progress(&mut hands, ms(5).clock);
        assert!(!endpoint.troubled && !regain(&mut endpoint, 0).is_trying());
        hands.leaks = false;
        endpoint.locals = vec![Local::Reopened];
        let rest = u64::try_from(RAIL_REST.as_millis()).unwrap();
        endpoint.progress(&mut hands, ms(5 + rest).clock);
        assert!(regain(&mut endpoint, 0).is_trying());
        assert_eq!(regain(&mut endpoint, 0).round, 8);
    }

    /// The other channel's peer may be using the rail again. Or it may have seen no trial of ours, and then never sends *seen*.
    #[test]
    fn a_rail_that_may_be_in_use_again_is_closed_for_another_channel_and_lost_again_where_it_was() {
        for returns in ["never", "while it drains", "once it is closed", "once it is open again"] {
            let (mut endpoint, mut hands) = without_first_rail(2);
            let outage = &mut endpoint.peers[0].outages[0];
            outage.fenced = false;
            outage.expects = Some(RailPosts { parts: 1, uncounted: false });
            outage.needs_close = true;
            let seen = Trying { offered: true, seen: true, seen_sent: true, ..Trying::default() };
            regain(&mut endpoint, 1).stage = Stage::Trying(seen);
            // The rail drains for as long as a part is in flight on it.
            endpoint.peers[1].account.rails.posted(0, true);
            endpoint.tend_rails(&mut hands, ms(0));
            assert!(matches!(endpoint.locals[0], Local::Draining { .. }));
            let says = |endpoint: &mut Endpoint, hands: &mut StandIn, when, now| {
                if when == returns {
                    let state = RailState::Seen { round: 0 };
                    endpoint.rail_note(hands, 1, &RailNote { rail: 0, state }, ms(now));
                }
            };
            says(&mut endpoint, &mut hands, "while it drains", 1);
            assert!(endpoint.peers[1].account.rails.ended(0, true, true));
            let drained = u64::try_from(RAIL_DRAIN_STILL.as_millis()).unwrap();
            endpoint.tend_rails(&mut hands, ms(1));
            endpoint.tend_rails(&mut hands, ms(1 + drained));
            assert_eq!(hands.closed, [0], "{returns}");
            says(&mut endpoint, &mut hands, "once it is closed", 2000);
            endpoint.tend_rails(&mut hands, ms(2000));
            endpoint.locals[0] = Local::Reopened;
            says(&mut endpoint, &mut hands, "once it is open again", 2001);
            endpoint.tend_rails(&mut hands, ms(2001));
            assert!(endpoint.peers.iter().all(|peer| peer.channel.failure().is_none()));
            let peer = &mut endpoint.peers[1];
            assert!(!peer.account.loads.is_open(0), "{returns}");
            let outage = &peer.outages[0];
            assert!(outage.fenced, "{returns}");
            assert_eq!(outage.regain.is_trying(), returns == "never", "{returns}");
            assert_eq!(outage.down_sent, returns == "never", "{returns}");
        }
    }
}
