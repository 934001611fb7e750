//! The loop: the channels and connections of one endpoint, driven by calls and progress, over anything that performs.
//!
//! ```text
//!  call ──▶ connection ──▶ touch: does it owe frames, does it wait?      progress:  send what is due
//!                            │                                                      take events
//!                            ▼                                                      read cells and inboxes
//!              owing list of its channel ──compose──▶ packets                       send what that gave rise to
//!                                                                                   cells, letters, ends
//! ```
//!
//! Every call and every event takes one way; what is rare is a call on that way. Nothing here blocks or allocates after the
//! endpoint, its channels and its connections are made.

mod keeper;
mod outage;
mod perform;
mod poll;
mod send;
mod table;

pub use keeper::Keeper;
pub use perform::{ChannelId, Entrance, Event, LentInbox, Outcome, Perform};

use std::collections::VecDeque;
use std::time::Duration;

use super::account::Account;
use super::bound::SETTLE_EVERY;
use super::channel::{Cause, Channel, Parameters, Patience, Told};
use super::connection::Connection;
use super::frame::Refused;
use super::ids::{Moment, Name, Slot};
use outage::{Hanging, Histories, Local, Outage, Refusing};
use table::{Owing, Table};

/// One channel, and what its connections share.
#[derive(Debug)]
struct Peer {
    id: ChannelId,
    channel: Channel,
    account: Account,
    owing: Owing,
    /// Answers to OPENs that have not left.
    refusals: VecDeque<Refused>,
    /// A packet was posted since the last poll: an INLINE waits for the next one.
    posted: bool,
    /// Something has happened to the channel since it was settled, and when it is settled though nothing has.
    stirred: bool,
    settle_at: Moment,
    /// It has ended, and its connections know.
    reported: bool,
    /// Its connections know that the peer has said END.
    end_told: bool,
    /// Data rails that are lost.
    outages: Vec<Outage>,
    histories: Histories,
    refusing: Refusing,
    hanging: Hanging,
}

impl Peer {
    /// Whether nothing is to be sent.
    #[inline]
    fn is_content(&self, now: Moment) -> bool {
        let shadow = self.channel.shadow();
        !shadow.is_open()
            && !shadow.is_backed_up()
            && !self.owing.is_due(now)
            && self.refusals.is_empty()
            && !self.channel.ending().is_wanted()
            && !self.has_rails_to_tell()
    }

    /// Whether what follows for the channel is to be found out in this poll.
    #[inline]
    fn must_settle(&mut self, now: Moment) -> bool {
        let due =
            std::mem::take(&mut self.stirred) || now >= self.settle_at || !self.channel.is_alive();
        if due {
            self.settle_at = now.plus(SETTLE_EVERY);
        }
        due
    }

    /// Whether a connection may still begin. One that comes later would never hear of the end.
    fn takes_more(&self) -> bool {
        let ending = self.channel.ending();
        self.channel.is_alive() && !ending.is_begun() && !ending.has_peer_said()
    }

    /// A peer has at most one OPEN unanswered for each of its slots.
    fn refuse(&mut self, refused: Refused) {
        if self.refusals.len() < Slot::COUNT {
            self.refusals.push_back(refused);
        } else {
            self.channel.fail(Cause::Connection);
        }
    }
}

/// Why an isend got no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError<E> {
    /// No such connection.
    Unknown,
    /// The channel has failed or ended.
    Ended,
    Connection(E),
}

#[derive(Debug)]
pub struct Endpoint<C> {
    peers: Vec<Peer>,
    table: Table<C>,
    patience: Patience,
    keeper: Keeper,
    /// Frames for connections that are gone.
    stale: u64,
    /// Our own data rails, as far as one had to be closed.
    locals: Vec<Local>,
    /// A lost data rail is to be looked after.
    troubled: bool,
}

impl<C: Connection> Endpoint<C> {
    /// Room for so many connections.
    pub fn new(slots: usize) -> Self {
        Self {
            peers: Vec::new(),
            table: Table::new(slots),
            patience: Patience::default(),
            keeper: Keeper::default(),
            stale: 0,
            locals: Vec::new(),
            troubled: false,
        }
    }

    /// A channel to a peer. None if the parameters are impossible.
    pub fn add_channel(&mut self, parameters: Parameters) -> Option<ChannelId> {
        let id = ChannelId(u32::try_from(self.peers.len()).ok()?);
        let channel = Channel::new(parameters, self.patience.now())?;
        let mut account = Account::new(parameters.data_rails);
        account.rails.set_survives(parameters.failover);
        let owing = Owing::default();
        let refusals = VecDeque::new();
        self.peers.push(Peer {
            id,
            channel,
            account,
            owing,
            refusals,
            posted: false,
            stirred: true,
            settle_at: Moment::default(),
            reported: false,
            end_told: false,
            outages: Vec::new(),
            histories: Histories::new(parameters.tries),
            refusing: Refusing::default(),
            hanging: Hanging::new(parameters.data_rails),
        });
        self.lose_closed_rails(id.0 as usize, self.patience.now());
        Some(id)
    }

    /// What the next connection will be called. None: no slot is free.
    pub fn vacant(&self) -> Option<Name> {
        self.table.vacant()
    }

    /// A connection of this channel takes the slot of that name. False if it is taken, or the channel ends or has ended.
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
        self.table.touch(name.slot, &mut peer.owing, &peer.account, now);
        true
    }

    /// The connection is over: no late write and no late frame can be meant for it. Its slot goes to the next generation.
    pub fn disconnect(&mut self, slot: Slot) -> Option<C> {
        let channel = self.table.tenant(slot)?.channel;
        self.table.take(slot, &mut self.peers[channel.0 as usize].owing)
    }

    #[inline]
    pub fn connection(&self, slot: Slot) -> Option<&C> {
        self.table.get(slot)
    }

    /// A connection, for calls after which it owes nothing new and waits for nothing new: `poll` and its like.
    #[inline]
    pub fn connection_mut(&mut self, slot: Slot) -> Option<&mut C> {
        Some(&mut self.table.tenant(slot)?.connection)
    }

    /// Calls a connection, and does what it then wants done outside of its channel.
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
        self.table.touch(slot, &mut peer.owing, &peer.account, now);
        self.act(perform, slot, now);
        Some(answer)
    }

    /// The channel is to end: nothing more begins, and END follows the last frame that its connections owe, once all that they
    /// have written is known to be at the peer. END of the peer's does the same on this side.
    pub fn end(&mut self, channel: ChannelId) {
        if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
            peer.channel.ending_mut().want();
            peer.stirred = true;
        }
    }

    /// Something outside of the channel says that it cannot go on.
    pub fn fail(&mut self, channel: ChannelId, cause: Cause) {
        if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
            peer.channel.fail(cause);
        }
    }

    pub fn channel(&self, id: ChannelId) -> Option<&Channel> {
        self.peers.get(id.0 as usize).map(|peer| &peer.channel)
    }

    /// Asks the peer of a channel how far it is, with a connection if one is meant: see [`Channel::ask_about`].
    pub fn ask_about(&mut self, id: ChannelId, slot: Option<Slot>) {
        let name = slot.and_then(|slot| self.table.get(slot)?.peer());
        if let Some(peer) = self.peers.get_mut(id.0 as usize) {
            peer.channel.ask_about(name);
            peer.stirred = true;
        }
    }

    /// How long nothing was heard of a peer that is waited for, in time in which this endpoint was polled.
    pub fn silence(&self, id: ChannelId) -> Duration {
        let now = self.patience.now();
        self.channel(id).map_or(Duration::ZERO, |channel| channel.silence(now))
    }

    /// What the peer has said last of how far it is, if that is not longer ago, in such time.
    pub fn told(&self, id: ChannelId, ago: Duration) -> Option<Told> {
        let now = self.patience.now();
        let told = *self.channel(id)?.told()?;
        let about = told.about.filter(|(at, _)| now.since(*at) <= ago);
        (now.since(told.at) <= ago).then_some(Told { about, ..told })
    }

    pub fn account(&self, id: ChannelId) -> Option<&Account> {
        self.peers.get(id.0 as usize).map(|peer| &peer.account)
    }

    /// Entries of completion queues that complete receives have given back since this was last asked: for
    /// [`Budget::give_back`](super::budget::Budget::give_back), after each poll.
    pub fn entries_freed(&mut self) -> u32 {
        self.peers.iter_mut().map(|peer| std::mem::take(&mut peer.account.entries_freed)).sum()
    }

    /// Whether something may arrive on a data rail: else those need not be polled each time.
    pub fn awaits_parts(&self) -> bool {
        self.table.awaits_parts()
    }

    /// Frames that were dropped because their connection is gone.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// One poll, by whichever caller: sends first, then polls, then sends what the poll gave rise to.
    pub fn progress<P: Perform<C>>(&mut self, perform: &mut P, now: Moment) {
        let patience = self.patience.poll(now);
        self.keeper.polled(now);
        for peer in 0..self.peers.len() {
            self.send(perform, peer, now);
        }
        for _ in 0..self.table.acting() {
            if let Some(slot) = self.table.next_acting() {
                self.act(perform, slot, now);
            }
        }
        while let Some(event) = perform.next_event() {
            self.happened(perform, event, (now, patience));
        }
        for peer in 0..self.peers.len() {
            self.peers[peer].posted = false;
            // What packets give rise to is found out by the next poll: their messages are to be told first.
            let settles = self.peers[peer].must_settle(now);
            self.read(perform, peer, (now, patience));
            let left = self.send(perform, peer, now);
            if settles {
                self.settle(perform, peer, left, (now, patience));
                self.troubled |= self.peers[peer].has_troubled_rails((now, patience));
            }
        }
        if self.troubled {
            self.tend_rails(perform, (now, patience));
        }
    }

    /// Posts what connections want done outside of the channel, until a post is refused.
    #[inline]
    fn act<P: Perform<C>>(&mut self, perform: &mut P, slot: Slot, now: Moment) {
        let Some(tenant) = self.table.tenant(slot) else { return };
        let peer = &mut self.peers[tenant.channel.0 as usize];
        loop {
            // A failed channel posts nothing on any rail. Its connections name no write once they know.
            if peer.channel.is_failing().is_some() {
                self.table.act_later(slot);
                return;
            }
            let Some(action) = tenant.connection.next_action(&mut peer.account, now) else {
                return;
            };
            let posted = perform.act(slot, &action, &peer.account);
            tenant.connection.acted(&action, posted, &mut peer.account, now);
            if !posted {
                self.table.act_later(slot);
                return;
            }
        }
    }
}
