//! The progress loop: the channels and connections of one endpoint, driven by calls and polls, over an implementation
//! of [`Perform`].
//!
//! ```text
//!  call ──▶ connection ──▶ touch: pending frames? waits?              progress:  send what is due
//!                            │                                                  take events
//!                            ▼                                                  read cells and inboxes
//!              pending list of its channel ──compose──▶ packets                 send what follows from that
//!                                                                               cells, letters, ends
//! ```
//!
//! Every call and every event takes the same path, from which rare cases call functions. Nothing here blocks, or
//! allocates after the endpoint, its channels and its connections are made.

mod keeper;
mod outage;
mod peer_table;
mod perform;
mod poll;
mod send;
#[cfg(test)]
mod stand_in;
mod table;
#[cfg(test)]
mod tests;

pub use keeper::Keeper;
pub use perform::{Acted, ChannelId, Event, LentInbox, LetterPost, Outcome, Perform, TrialTarget};

use std::collections::VecDeque;
use std::time::Duration;

use super::account::Account;
use super::bound::{FORGET_AGAIN, INBOXES_ALL_AFTER, INBOXES_PER_POLL, SETTLE_EVERY};
use super::channel::{Cause, Channel, Parameters, PeerReport};
use super::connection::Connection;
use super::frame::Refused;
use super::ids::{Moment, Name, Slot};
use super::polled::{Now, PolledClock, PolledTime};
use outage::{Hanging, Histories, Local, Outage, Refusing};
use peer_table::{LeftOver, PeerTable};
use send::send;
use table::{PendingList, Table};

/// One channel, and what its connections share.
#[derive(Debug)]
struct Peer {
    id: ChannelId,
    channel: Channel,
    account: Account,
    pending: PendingList,
    /// REFUSED frames that have not left.
    refusals: VecDeque<Refused>,
    /// A packet was posted since the last poll, so an INLINE waits for the next poll, to share a packet with others.
    posted: bool,
    /// Something has happened to the channel since it was last settled; and the time from which a visit settles it even if
    /// nothing has.
    stirred: bool,
    settle_at: Moment,
    /// When the channel's next timer is due, if nothing has happened to the channel since its last visit.
    rests_until: Moment,
    /// The channel has ended, and this was reported to its connections.
    reported: bool,
    /// When a channel that has ended is forgotten, unless the peer sends letters; and whether it was forgotten.
    forget_at: PolledTime,
    forgotten: bool,
    /// The peer's END was reported to the connections.
    end_reported: bool,
    /// Data rails that are lost.
    outages: Vec<Outage>,
    histories: Histories,
    /// Refusals, by data rail.
    refusing: Box<[Refusing]>,
    hanging: Hanging,
}

impl Peer {
    /// Whether nothing is to be sent.
    #[inline]
    fn is_content(&self, now: Moment) -> bool {
        let shadow = self.channel.shadow();
        !shadow.is_open()
            && !shadow.is_backed_up()
            && !self.pending.is_due(now)
            && self.refusals.is_empty()
            && !self.channel.ending().is_pending()
            && !self.has_rail_frames()
    }

    /// Whether this poll has to check the channel's timers, letters and end.
    #[inline]
    fn must_settle(&mut self, now: Moment) -> bool {
        let due = std::mem::take(&mut self.stirred)
            || now >= self.settle_at
            || self.account.rails.has_news()
            || !self.channel.is_alive();
        if due {
            self.settle_at = now.plus(SETTLE_EVERY);
        }
        due
    }

    /// The channel was settled, and nothing had happened to it since the previous visit: it rests until its next timer is due.
    fn rest_until_due(&mut self, now: Now) {
        let timer = self.channel.due_at(&self.account.counts, self.waits(), now);
        let rails = self.rails_due_at(now);
        self.rests_until = timer.map_or(rails, |timer| timer.min(rails));
    }

    /// Whether a connection or a lost rail waits for the peer.
    fn waits(&self) -> bool {
        self.pending.waiting > 0
            || self.awaits_fence()
            || self.awaits_writes()
            || self.lacks_rails()
    }

    /// When a poll has to visit the channel, unless something arrives before.
    #[inline]
    fn next_visit(&self, Now { clock: now, polled }: Now) -> Moment {
        if self.reported {
            return self.forget_visit(now, polled);
        }
        let soon = self.stirred
            || self.posted
            || self.channel.is_failing().is_some()
            || !self.is_content(now);
        let settle_at = self.settle_at.max(self.rests_until);
        if soon { Moment::default() } else { self.pending.until(settle_at) }
    }

    /// When a poll has to visit a channel that has ended.
    #[cold]
    fn forget_visit(&self, now: Moment, polled: PolledTime) -> Moment {
        match self.forget_at.since(polled) {
            _ if self.forgotten => Moment::from_nanos(u64::MAX),
            Duration::ZERO => now.plus(FORGET_AGAIN),
            left => now.plus(left),
        }
    }

    /// Starts the time until a channel is forgotten: it has ended, or the peer still sends letters about it.
    #[cold]
    fn forget_later(&mut self, polled: PolledTime) {
        self.forget_at = polled.plus(self.channel.peer_timeout());
    }

    /// What has not left. It depends only on the channel's state, not on the time.
    fn left_over(&self) -> LeftOver {
        let shadow = self.channel.shadow();
        let waited = self.pending.is_waited_for() || !self.refusals.is_empty();
        let unsent = shadow.is_open() || shadow.is_backed_up() || self.has_rail_frames();
        let may_write = self.channel.may_write();
        LeftOver {
            awaited: may_write && (waited || unsent),
            pending: self.channel.has_pending(&self.account.counts)
                || may_write && waited
                || self.has_outage(),
        }
    }

    /// Whether a new connection may begin. After the report of the peer's END a new connection would not get that report.
    fn takes_more(&self) -> bool {
        self.channel.is_alive() && !self.channel.is_ending()
    }

    /// Queues a REFUSED. A peer has at most one unanswered OPEN per slot, so more are a violation.
    fn refuse(&mut self, refused: Refused) {
        if self.refusals.len() < Slot::COUNT {
            self.refusals.push_back(refused);
        } else {
            self.channel.fail(Cause::Connection);
        }
    }
}

/// Why an isend failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError<E> {
    /// No such connection.
    Unknown,
    /// The channel has failed or ended.
    Ended,
    Connection(E),
}

#[derive(Debug)]
pub struct ProgressLoop<C> {
    peers: PeerTable,
    table: Table<C>,
    polled: PolledClock,
    keeper: Keeper,
    /// Frames for connections that are gone.
    stale: u64,
    /// Our own data rails that had to be closed.
    locals: Vec<Local>,
    /// A lost data rail needs work in each poll.
    troubled: bool,
}

impl<C: Connection> ProgressLoop<C> {
    /// An endpoint with room for `slots` connections.
    pub fn new(slots: usize) -> Self {
        Self {
            peers: PeerTable::default(),
            table: Table::new(slots),
            polled: PolledClock::default(),
            keeper: Keeper::default(),
            stale: 0,
            locals: Vec::new(),
            troubled: false,
        }
    }

    /// Adds a channel to a peer. None if the parameters are invalid.
    pub fn add_channel(&mut self, parameters: Parameters) -> Option<ChannelId> {
        let id = ChannelId(u32::try_from(self.peers.len()).ok()?);
        let channel = Channel::new(parameters, self.polled.now())?;
        let mut account = Account::new(parameters.data_rails);
        account.rails.set_survives(parameters.failover);
        if parameters.measure_by_arrival {
            account.measure_by_arrival();
        }
        let pending = PendingList::default();
        let refusals = VecDeque::new();
        self.peers.push(Peer {
            id,
            channel,
            account,
            pending,
            refusals,
            posted: false,
            stirred: true,
            settle_at: Moment::default(),
            rests_until: Moment::default(),
            reported: false,
            forget_at: PolledTime::START,
            forgotten: false,
            end_reported: false,
            outages: Vec::new(),
            histories: Histories::new(parameters.tries),
            refusing: vec![Refusing::default(); parameters.data_rails.into()].into(),
            hanging: Hanging::new(parameters.data_rails),
        });
        self.lose_closed_rails(id.0 as usize, self.polled.now());
        Some(id)
    }

    /// The name of the next connection. None if no slot is free.
    pub fn vacant(&self) -> Option<Name> {
        self.table.vacant()
    }

    /// Adds a connection to a channel, in the slot of that name. False if the slot is taken, or the channel ends or has
    /// ended.
    pub fn connect(&mut self, name: Name, channel: ChannelId, connection: C, now: Moment) -> bool {
        let free = self.table.vacant() == Some(name);
        let Some(peer) = self.peers.get_mut(channel.0 as usize).filter(|peer| peer.takes_more())
        else {
            return false;
        };
        if !free {
            return false;
        }
        self.table.put(name.slot, channel, connection);
        self.table.touch(name.slot, &mut peer.pending, &peer.account, now);
        true
    }

    /// Removes a connection that is over: no late write or frame can be meant for it. Its slot gets the next
    /// generation.
    pub fn disconnect(&mut self, slot: Slot) -> Option<C> {
        let channel = self.table.tenant(slot)?.channel;
        self.table.take(slot, &mut self.peers[channel.0 as usize].pending)
    }

    #[inline]
    pub fn connection(&self, slot: Slot) -> Option<&C> {
        self.table.get(slot)
    }

    /// The slots of a channel's connections.
    pub fn slots_of(&self, channel: ChannelId) -> &[Slot] {
        self.table.slots_of(channel)
    }

    /// A connection, for calls such as `poll` that change neither its pending frames nor what it waits for. Other calls go
    /// through [`with`](Self::with).
    #[inline]
    pub fn connection_mut(&mut self, slot: Slot) -> Option<&mut C> {
        Some(&mut self.table.tenant(slot)?.connection)
    }

    /// Calls a connection, then performs the actions that follow.
    #[inline]
    pub fn with<P: Perform<C>, T>(
        &mut self,
        perform: &mut P,
        slot: Slot,
        now: Moment,
        call: impl FnOnce(&mut C, &mut Account) -> T,
    ) -> Option<T> {
        let tenant = self.table.tenant(slot)?;
        let peer = &mut self.peers[tenant.channel.0 as usize];
        let answer = call(&mut tenant.connection, &mut peer.account);
        changed(&mut self.table, peer, perform, slot, now);
        Some(answer)
    }

    /// Begins to end a channel: no connection begins any more, and END follows the last pending frame, once the
    /// peer has confirmed all parts. END from the peer has the same effect.
    pub fn end(&mut self, channel: ChannelId) {
        if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
            peer.channel.ending_mut().begin();
            peer.stirred = true;
        }
    }

    /// Fails a channel for a reason outside of it.
    pub fn fail(&mut self, channel: ChannelId, cause: Cause) {
        if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
            peer.channel.fail(cause);
        }
    }

    pub fn channel(&self, id: ChannelId) -> Option<&Channel> {
        self.peers.get(id.0 as usize).map(|peer| &peer.channel)
    }

    /// Queries the progress of a channel's peer, of one connection if `slot` is given: see [`Channel::query_progress`].
    pub fn query_progress(&mut self, id: ChannelId, slot: Option<Slot>) {
        let name = slot.and_then(|slot| self.table.get(slot)?.peer());
        if let Some(peer) = self.peers.get_mut(id.0 as usize) {
            peer.channel.query_progress(name);
            peer.stirred = true;
        }
    }

    /// The time of the last poll by the [`PolledClock`].
    pub fn polled_time(&self) -> PolledTime {
        self.polled.now()
    }

    /// How long a peer has been silent while this side waited for it, counting only time in which this endpoint was
    /// polled.
    pub fn silence(&self, id: ChannelId) -> Duration {
        let now = self.polled.now();
        self.channel(id).map_or(Duration::ZERO, |channel| channel.silence(now))
    }

    /// Whether an endpoint that closes need not wait for a channel any more: see [`Channel::may_be_left`].
    pub fn may_be_left(&self, id: ChannelId) -> bool {
        self.channel(id).is_none_or(|channel| channel.may_be_left(self.polled.now()))
    }

    /// The peer's last answer about its progress, if it is not older than `ago`. Only time in which this endpoint was polled counts.
    pub fn peer_report(&self, id: ChannelId, ago: Duration) -> Option<PeerReport> {
        let now = self.polled.now();
        let report = *self.channel(id)?.peer_report()?;
        let about = report.about.filter(|(at, _)| now.since(*at) <= ago);
        (now.since(report.at) <= ago).then_some(PeerReport { about, ..report })
    }

    pub fn account(&self, id: ChannelId) -> Option<&Account> {
        self.peers.get(id.0 as usize).map(|peer| &peer.account)
    }

    /// Completion queue entries that complete receives have returned, as of the last poll: for
    /// [`Budget::release`](super::budget::Budget::release).
    #[inline]
    pub fn entries_freed(&mut self) -> u32 {
        self.peers.take_entries_freed()
    }

    /// Whether something may arrive on a data rail. If not, data rails need not be polled each time.
    pub fn awaits_parts(&self) -> bool {
        self.table.awaits_parts()
    }

    /// How many frames were dropped because their connection is gone.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// One poll, by NCCL or the keeper: sends what is due, takes events, reads inboxes, and sends what follows from
    /// that.
    pub fn progress<P: Perform<C>>(&mut self, perform: &mut P, now: Moment) {
        self.poll(perform, None, now);
    }

    /// One poll, for a caller that waits for the connection in `slot`. With many channels, a caller that polls for one connection after
    /// another need not read all inboxes each time: only some others are read, in turn.
    pub fn progress_for<P: Perform<C>>(&mut self, perform: &mut P, slot: Slot, now: Moment) {
        let looks_into_all = self.peers.len() <= INBOXES_PER_POLL
            || now.since(self.keeper.last_poll()) >= INBOXES_ALL_AFTER;
        let awaited = if looks_into_all { None } else { self.table.channel_of(slot) };
        self.poll(perform, awaited, now);
    }

    /// `awaited`: the channel whose inbox is read, beside those of some others in turn. None: all inboxes are read.
    fn poll<P: Perform<C>>(&mut self, perform: &mut P, awaited: Option<ChannelId>, now: Moment) {
        let now = self.polled.poll(now);
        self.keeper.polled(now.clock);
        self.send_due(perform, now.clock);
        for _ in 0..self.table.acting() {
            if let Some(slot) = self.table.next_acting()
                && let Some(tenant) = self.table.tenant(slot)
            {
                let peer = &mut self.peers[tenant.channel.0 as usize];
                act(&mut self.table, peer, perform, slot, now.clock);
            }
        }
        while let Some(event) = perform.next_event() {
            self.happened(perform, event, now);
        }
        let (awaited, turn) = match awaited {
            Some(channel) => (channel.0 as usize, self.peers.take_turn(INBOXES_PER_POLL)),
            None => (usize::MAX, 0..usize::MAX),
        };
        for index in 0..self.peers.len() {
            let looks = || index == awaited || turn.contains(&index);
            if self.peers.is_due(index, now.clock) || looks() && self.peers.has_news(index, perform)
            {
                self.visit(perform, index, now);
            }
        }
        if self.troubled {
            self.tend_rails(perform, now);
        }
    }

    /// Reads a channel's inbox, sends what follows from that, and settles the channel if that is due.
    #[inline]
    fn visit<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let rests = self.peers.is_due_by_time(index, now.clock);
        let peer = &mut self.peers[index];
        (peer.posted, peer.rests_until) = (false, Moment::default());
        // Decided before packets are read: their effects are settled in the next poll, so that their messages are
        // reported first.
        let settles = peer.must_settle(now.clock);
        self.read(perform, index, now);
        if settles {
            self.leave_failed_rails(perform, index, now);
        }
        send(&mut self.table, &mut self.peers[index], perform, now.clock);
        if settles {
            self.settle(perform, index, now);
            self.troubled |= self.peers[index].has_troubled_rails(now);
            if rests {
                self.peers[index].rest_until_due(now);
            }
        }
        self.peers.visited(index, now);
    }
}

/// After a call or an event of a connection: updates its pending frames, and performs the actions that follow.
#[inline]
fn changed<C: Connection, P: Perform<C>>(
    table: &mut Table<C>,
    peer: &mut Peer,
    perform: &mut P,
    slot: Slot,
    now: Moment,
) {
    if table.touch(slot, &mut peer.pending, &peer.account, now) {
        act(table, peer, perform, slot, now);
    }
}

/// Performs the actions of a connection until one is refused, or has no room.
fn act<C: Connection, P: Perform<C>>(
    table: &mut Table<C>,
    peer: &mut Peer,
    perform: &mut P,
    slot: Slot,
    now: Moment,
) {
    let Some(tenant) = table.tenant(slot) else { return };
    loop {
        // A failed channel posts nothing on any rail. Its connections return no more writes once the failure is
        // reported to them.
        if peer.channel.is_failing().is_some() {
            return table.act_later(slot);
        }
        let Some(action) = tenant.connection.next_action(&mut peer.account, now) else { return };
        let acted = perform.act(slot, &action, &peer.account);
        if acted != Acted::NoRoom {
            let posted = acted == Acted::Done;
            tenant.connection.acted(&action, posted, &mut peer.account, now);
        }
        if acted != Acted::Done {
            return table.act_later(slot);
        }
    }
}
