//! Fences: memory that is advertised, or being sent from, may go only when nothing can touch it any more.
//!
//! ```text
//!  receiver                                        sender
//!  Due ── its own control writes are done ──▶ Withdraw ──▶ begins nothing more
//!  Asked ◀── Withdrawn: the lines that were begun ──────── lets them go on
//!  no line exposed: the last message that was begun has arrived; the memory may go, and bye be said
//! ```
//!
//! A connection whose receives are withdrawn has failed, as every connection whose memory goes under a receive has. Its
//! rails are shared with other connections and must not break, so no region closes while a peer may write to it. A peer
//! that does not answer is waited for within a bound; then deregMr is an error, and the region stays as it is: its handle
//! can be given back later, or the endpoint's close frees it (docs/decisions/0008-memory-a-silent-peer-may-touch.md). One
//! that is known to have ended begins nothing more; what its end left on the way is waited for as long. The
//! caller's lock is given up between turns, so that the endpoint's other connections go on meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::PeerAddress;
use proto::eager::FIRST_EAGER;
use proto::{Begun, CommId, Withdraw, Withdrawn};

use super::lanes::{ControlLane, Lane};
use super::nics::Port;
use super::operation::Purpose;
use super::receiver::Receiver;
use super::region::UserRegion;
use super::sender::repeated;
use super::setup::parts;
use super::{Endpoint, Look, SenderState, enqueue, pulse, receiver};
use crate::comm::peer::Peer;
use crate::error::{Cause, Error, Noun, Result};
use crate::handle::{Handle, HandleKind};
use crate::label::Label;

/// How far a receiver is with taking its receives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fence {
    #[default]
    None,
    /// The sender is to be asked once our own control writes have ended: none may land behind the question.
    Due { until: Instant },
    /// The sender was asked, and will be asked again: a question that the dead were asked may be accepted, the next is not.
    Asked { until: Instant, again: Instant, pause: Duration },
}

/// A registration that NCCL gives back, and that something may still touch. No message can name it any more.
#[derive(Debug)]
pub(super) struct Leaving {
    handle: Handle,
    region: Arc<UserRegion>,
    until: Instant,
    /// Whoever gave it back waits. Else the memory may be gone, whatever they were told: nothing of ours may touch it.
    awaited: bool,
    /// What NCCL was told when that had passed: it stays, and may be given back again.
    failure: Option<Error>,
}

/// A connection that may touch a region.
#[derive(Debug)]
struct Touch<'a> {
    /// The peer's endpoint on our first rail to it, which all connections to it share.
    lane: Lane,
    peer: &'a Peer,
    /// The peer writes to the region, not we from it.
    writes: bool,
}

impl Leaving {
    /// The region, while whoever gave it back waits for what touches it.
    pub(super) fn awaited(&self) -> Option<&UserRegion> {
        self.awaited.then_some(&*self.region)
    }
}

/// Turns in which what has ended is heard of.
const LAST_LOOKS: u32 = 64;

impl Fence {
    /// Whether the sender is waited for no more.
    fn is_over(self, now: Instant) -> bool {
        match self {
            Self::None => false,
            Self::Due { until } | Self::Asked { until, .. } => now >= until,
        }
    }
}

/// How a question fares: libfabric refuses what goes to the dead, connects for ever or is refused by their host, and
/// refuses the living for moments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusal {
    turns: u32,
    refused: u32,
    /// The last message could not be posted at all.
    failed: bool,
}

impl Refusal {
    fn turn(&mut self, refused: bool) {
        self.turns = self.turns.saturating_add(1);
        self.refused = self.refused.saturating_add((refused || self.failed).into());
    }

    fn lasts(self) -> bool {
        self.refused > self.turns / 2
    }
}

impl Endpoint {
    /// Takes a handle back. True: the memory is free. False: ask [`Endpoint::has_left`] until it is. An error: it is not, and
    /// the handle can be given back again.
    pub(crate) fn deregister(&mut self, handle: Handle) -> Result<bool> {
        if let Some(index) = self.leaving_at(handle) {
            return self.deregister_again(index);
        }
        let ours = handle.is(HandleKind::Region) && handle.endpoint() == self.number;
        let taken =
            if ours { self.regions.remove(handle.slot(), handle.generation()) } else { None };
        let region = taken.ok_or(Cause::Stale(Noun::MemoryHandle))?;
        self.tenants.closed(handle);
        // What is in flight may be of another handle of the same registration, which stays.
        if self.cache.is_shared(&region) || !self.still_touches(&region) {
            let last = self.cache.release(region);
            return last.map_or(Ok(true), |region| self.close_region(region));
        }
        // What peers may still touch is not given out again.
        self.cache.forget(&region);
        let until = self.until(&region);
        // What has come for it eagerly finds it there.
        let leaving = Arc::clone(&region);
        self.leaving.push(Leaving { handle, region: leaving, until, awaited: true, failure: None });
        self.withdraw_from(&region, until);
        drop(region);
        self.has_left(handle)
    }

    /// The same for one that could not leave before, or that another thread gives back now.
    #[cold]
    fn deregister_again(&mut self, index: usize) -> Result<bool> {
        let region = Arc::clone(&self.leaving[index].region);
        self.leaving[index].awaited = true;
        if self.leaving[index].failure.is_some() && self.still_touches(&region) {
            self.leaving[index].until = self.until(&region);
        }
        drop(region);
        self.has_left(self.leaving[index].handle)
    }

    /// Nothing touches the region any more.
    fn close_region(&mut self, region: UserRegion) -> Result<bool> {
        let len = region.memory().len();
        let closed = region.deregister(&mut self.nics);
        let device = self.label();
        Ok(closed.map(|()| true).map_err(|fault| Cause::NotClosed { device, len, fault })?)
    }

    /// The same for one that was waited for.
    fn close_leaving(&mut self, index: usize) -> Result<bool> {
        let region = Arc::into_inner(self.leaving.swap_remove(index).region);
        debug_assert!(region.is_some(), "a share of what has left stays behind");
        region.map_or(Ok(true), |region| self.close_region(region))
    }

    fn leaving_at(&self, handle: Handle) -> Option<usize> {
        self.leaving.iter().position(|leaving| leaving.handle == handle)
    }

    /// Whether nothing touches the memory of a handle any more; an error when that is waited for no longer. Makes a turn
    /// of progress.
    pub(crate) fn has_left(&mut self, handle: Handle) -> Result<bool> {
        self.progress();
        for (slot, _) in self.receivers.keys() {
            self.drive_fence(slot);
        }
        let Some(index) = self.leaving_at(handle) else { return Ok(true) };
        let region = Arc::clone(&self.leaving[index].region);
        if !self.touches(&region) {
            drop(region);
            self.patience = self.settings.close_timeout;
            return self.close_leaving(index);
        }
        if Instant::now() < self.leaving[index].until {
            return Ok(false);
        }
        if self.leaving[index].failure.is_none() {
            self.give_up_sending_from(&region);
        }
        let touching = self.touching(&region);
        let gone = touching.iter().all(|touch| touch.writes && self.is_gone(touch.lane));
        let gone = gone && !self.is_read(&region);
        let peers: Vec<Lane> = touching.iter().map(|touch| touch.lane).collect();
        self.waited_in_vain(&peers, gone);
        if gone {
            drop(region);
            return self.close_leaving(index);
        }
        Err(self.stays(index, &region))
    }

    /// Until when to wait for those who may touch the region: no time for who has let one wait pass already.
    fn until(&mut self, region: &Arc<UserRegion>) -> Instant {
        let peers: Vec<Lane> = self.touching(region).iter().map(|touch| touch.lane).collect();
        let silent = peers.into_iter().any(|peer| self.is_silent(peer));
        if silent { Instant::now() } else { self.one_wait() }
    }

    /// The end of a wait that begins now. Waits in vain share one patience, which an answer restores.
    fn one_wait(&self) -> Instant {
        Instant::now() + self.patience.max(LEAST_WAIT)
    }

    /// Whether some peer was waited for in vain lately.
    pub(super) fn is_impatient(&self) -> bool {
        self.patience.is_zero() || self.patience < self.settings.close_timeout
    }

    /// [`Endpoint::touches`], after what has ended already was heard of: of a receive that ended early, NCCL knows that its
    /// bytes are there before we do, and gives the memory back.
    fn still_touches(&mut self, region: &Arc<UserRegion>) -> bool {
        for _ in 0..LAST_LOOKS {
            if !self.touches(region) {
                return false;
            }
            self.progress();
            let Self { receivers, working, .. } = self;
            let mut copies = Vec::new();
            for (slot, _, receiver) in receivers.iter_mut() {
                receiver.read_fins(Look::Memory);
                if receiver.has_copies(Look::Memory) {
                    copies.push(slot);
                }
                enqueue(receiver, working, slot);
            }
            copies.into_iter().for_each(|slot| self.take_copies_to(slot, Some(region)));
        }
        self.touches(region)
    }

    /// Whether a post of ours touches the region, or a peer may write to it.
    fn touches(&self, region: &UserRegion) -> bool {
        let feeds = |state: &SenderState| match state {
            SenderState::Connected(sender) => sender.feeds_from(region),
            SenderState::Asking { .. } => false,
        };
        self.is_read(region)
            || self.senders.iter().any(|state| feeds(state))
            || self.receivers.iter().any(|receiver| receiver.exposes(region))
    }

    /// Whether an operation of ours touches the region: it may not close before that has ended, whatever has posted it.
    fn is_read(&self, region: &UserRegion) -> bool {
        region.is_used(&self.nics) || self.flushes.iter().any(|flush| flush.reads_from(region))
    }

    /// By which connections that is.
    fn touching(&self, region: &UserRegion) -> Vec<Touch<'_>> {
        let tokens =
            region.rails().zip(&self.nics).flat_map(|(region, port)| port.nic.tokens_on(region));
        let mut posted: Vec<u16> =
            tokens.filter_map(|token| Purpose::of(token)?.sender_of_data()).collect();
        posted.sort_unstable();
        let mut found = Vec::new();
        for (slot, _, state) in self.senders.slots() {
            if let SenderState::Connected(sender) = &**state
                && (sender.feeds_from(region) || posted.binary_search(&slot).is_ok())
            {
                let lane = sender.lanes().first();
                found.extend(lane.map(|lane| Touch {
                    lane: *lane,
                    peer: &sender.peer,
                    writes: false,
                }));
            }
        }
        let exposing = self.receivers.iter().filter(|receiver| receiver.exposes(region));
        found.extend(exposing.filter_map(|receiver| {
            let lane = *receiver.lanes().first()?;
            Some(Touch { lane, peer: &receiver.peer, writes: true })
        }));
        found
    }

    /// A message to a peer was not delivered: it is gone, as far as this end can see.
    #[cold]
    pub(super) fn undelivered(&mut self, nic: usize, peer: PeerAddress) {
        let is_its = |control: ControlLane| control.nic == nic && control.peer == peer;
        for (_, _, state) in self.senders.iter_mut() {
            if let SenderState::Connected(sender) = &mut **state
                && is_its(sender.control())
            {
                sender.is_broken = true;
            }
        }
        for (_, _, receiver) in self.receivers.iter_mut() {
            receiver.is_broken |= is_its(receiver.control());
        }
    }

    /// A message to a peer was taken by our provider, or could not be posted at all: nobody is there, perhaps.
    #[cold]
    pub(super) fn posted_to(&mut self, nic: usize, peer: PeerAddress, taken: bool) {
        for (_, _, receiver) in self.receivers.iter_mut() {
            let control = receiver.control();
            if control.nic == nic && control.peer == peer {
                receiver.refusal.failed = !taken;
            }
        }
    }

    /// Whether a peer that does not answer has ended, as far as that can be known: an operation to it has failed, or the
    /// question could not even be posted.
    fn is_gone(&self, peer: Lane) -> bool {
        let is_its = |lanes: &[Lane]| lanes.first() == Some(&peer);
        let sent_to_nobody = |state: &SenderState| match state {
            SenderState::Connected(sender) if is_its(sender.lanes()) => {
                sender.is_broken || pulse::has_ended(&sender.peer)
            }
            _ => false,
        };
        let asked_nobody = |receiver: &Receiver| {
            is_its(receiver.lanes())
                && (receiver.is_broken
                    || pulse::has_ended(&receiver.peer)
                    || receiver.refusal.lasts() && !pulse::is_shared_memory(&receiver.peer))
        };
        self.unheard.is_of_the_dead(peer)
            || self.senders.iter().any(|state| sent_to_nobody(state))
            || self.receivers.iter().any(|receiver| asked_nobody(receiver))
    }

    /// How far the connections with a peer's endpoint are: whatever it does changes this.
    fn mark(&mut self, peer: Lane) -> u64 {
        let mut mark: u64 = 0;
        let mut add = |number: u32| mark = mark.wrapping_mul(MARK_STEP).wrapping_add(number.into());
        let Self { senders, nics, .. } = self;
        for (slot, _, state) in senders.iter_mut() {
            if let SenderState::Connected(sender) = &mut **state
                && sender.lanes().first() == Some(&peer)
            {
                sender.count_in_flight(nics, slot);
                sender.mark().into_iter().for_each(&mut add);
            }
        }
        for receiver in self.receivers.iter() {
            if receiver.lanes().first() == Some(&peer) {
                add(receiver.done().number());
            }
        }
        mark
    }

    fn is_silent(&mut self, peer: Lane) -> bool {
        let mark = self.mark(peer);
        self.unheard.lasts(peer, mark)
    }

    fn withdraw_from(&mut self, region: &UserRegion, until: Instant) {
        let exposed = |slot: &u16| {
            let receiver = self.receivers.get(*slot, self.receivers.generation(*slot));
            receiver.is_some_and(|receiver| receiver.exposes(region))
        };
        let slots: Vec<u16> =
            self.receivers.keys().into_iter().map(|(slot, _)| slot).filter(exposed).collect();
        for slot in slots {
            self.withdraw(slot, until);
        }
    }

    /// Takes back what the receiver in `slot` has advertised.
    fn withdraw(&mut self, slot: u16, until: Instant) {
        let generation = self.receivers.generation(slot);
        let Self { receivers, nics, slabs, .. } = self;
        if let Some(receiver) = receivers.at_mut(slot) {
            receiver.withdraw(&mut receiver::Means { nics, slabs, slot, generation }, until);
        }
        self.abandon_receives(slot, generation);
        self.drive_fence(slot);
    }

    /// The same when its comm is closed with receives posted.
    pub(super) fn withdraw_closed(&mut self, slot: u16) {
        let peer =
            self.receivers.at_mut(slot).and_then(|receiver| receiver.lanes().first().copied());
        let silent = peer.is_some_and(|peer| self.is_silent(peer));
        self.withdraw(slot, if silent { Instant::now() } else { self.one_wait() });
    }

    /// Whether the sender of a receiver may still write to memory of ours, and is waited for.
    pub(super) fn awaits_fence(&self, slot: u16) -> bool {
        let generation = self.receivers.generation(slot);
        let receiver = self.receivers.get(slot, generation);
        receiver.is_some_and(|receiver| {
            receiver.exposes_any() && !receiver.fence.is_over(Instant::now())
        })
    }

    /// Asks the sender when it is time, and takes what has come by fins.
    pub(super) fn drive_fence(&mut self, slot: u16) {
        let Some(receiver) = self.receivers.at_mut(slot) else { return };
        if receiver.fence != Fence::None && receiver.copies() {
            self.take_copies(slot);
        }
        let Some(receiver) = self.receivers.at_mut(slot) else { return };
        match receiver.fence {
            Fence::None => {}
            Fence::Due { until } if receiver.is_drained() => {
                let again = Instant::now() + FIRST_PAUSE;
                receiver.fence = Fence::Asked { until, again, pause: FIRST_PAUSE };
                self.ask_to_withdraw(slot);
            }
            Fence::Due { .. } => receiver.read_every_fin(),
            Fence::Asked { until, again, pause } => {
                receiver.read_every_fin();
                let refused =
                    self.notices.waits_for(receiver.control().nic, receiver.control().peer);
                receiver
                    .refusal
                    .turn(refused && self.nics[receiver.control().nic].has_room_for_messages());
                let now = Instant::now();
                if again <= now && now < until && receiver.exposes_any() {
                    let pause = 2 * pause;
                    receiver.fence = Fence::Asked { until, again: now + pause, pause };
                    let ControlLane { nic, peer, .. } = receiver.control();
                    if !self.notices.waits_for(nic, peer) {
                        self.ask_to_withdraw(slot);
                    }
                }
            }
        }
    }

    fn ask_to_withdraw(&mut self, slot: u16) {
        let Some(receiver) = self.receivers.at_mut(slot) else { return };
        let lane = receiver.control();
        let (connection, nonce, done) = (receiver.connection, receiver.nonce(), receiver.done());
        let (Some(comm), Ok(reply_to)) = (CommId::new(slot), self.front_door_name()) else {
            return;
        };
        self.say_withdraw(lane, &Withdraw { connection, comm, nonce, done, reply_to });
    }

    fn say_withdraw(&mut self, lane: ControlLane, withdraw: &Withdraw) {
        match withdraw.encode() {
            Ok(bytes) => self.say(lane, bytes),
            Err(error) => log::debug!("a withdrawal was not made: {error}"),
        }
        self.send_notices();
    }

    /// A receiver takes its receives back: nothing more is begun, and it is told what was.
    pub(super) fn heard_withdraw(&mut self, withdraw: &Withdraw) {
        let Withdraw { connection, comm, nonce, done, reply_to } = *withdraw;
        let (slot, generation) = parts(connection.0);
        let Self { senders, nics, .. } = self;
        match senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Connected(sender)) if sender.nonce() == nonce => {
                sender.withdrawn(done);
                // The answer depends on it.
                sender.count_in_flight(nics, slot);
                self.unheard.end_of(sender.lanes());
                let (begun, lane) = (sender.begun(), sender.control());
                let eager_end = sender.eager_end();
                let withdrawn = Withdrawn { connection, comm, nonce, begun, eager_end };
                if let Ok(bytes) = withdrawn.encode() {
                    self.say(lane, bytes);
                }
                return;
            }
            // It was accepted, and gone before its reply was read.
            Some(SenderState::Asking { asking, .. }) => asking.left(nonce, false),
            // Given up before the reply came.
            _ => self.counters.late_messages += 1,
        }
        let begun = Begun::NOTHING;
        let withdrawn = Withdrawn { connection, comm, nonce, begun, eager_end: FIRST_EAGER };
        if let Ok(bytes) = withdrawn.encode() {
            self.answer(&reply_to, bytes);
        }
    }

    /// A sender begins nothing more.
    pub(super) fn heard_withdrawn(&mut self, withdrawn: &Withdrawn) {
        let slot = withdrawn.comm.get();
        match self.receivers.at_mut(slot) {
            Some(receiver) if receiver.nonce() == withdrawn.nonce => {
                self.unheard.end_of(receiver.lanes());
                receiver.fenced(withdrawn.begun);
                receiver.eager_ends(withdrawn.eager_end);
                self.try_release_receiver(slot);
            }
            _ => self.counters.late_messages += 1,
        }
    }

    /// The region stays registered: a peer may write to it whenever it is polled again, and would break rails that
    /// other connections share. What was to be sent from it, and is not posted yet, never will be.
    #[cold]
    fn stays(&mut self, index: usize, region: &Arc<UserRegion>) -> Error {
        let touching = self.touching(region);
        let mut names: Vec<String> = touching.iter().map(|touch| touch.peer.to_string()).collect();
        names.sort();
        names.dedup();
        let (peers, memory, device) =
            (Label::of(&names.join(" and ")), region.memory(), self.label());
        let (address, len) = (memory.address(), memory.len());
        let Leaving { failure, awaited, .. } = &mut self.leaving[index];
        *awaited = false;
        let cause = Cause::StaysRegistered { device, peers, address, len };
        repeated(failure.get_or_insert(cause.into()))
    }

    /// These peers had their time. Gone: all of them have ended.
    fn waited_in_vain(&mut self, peers: &[Lane], gone: bool) {
        if !peers.iter().any(|peer| self.is_silent(*peer)) {
            self.patience /= PATIENCE_SHRINKS;
        }
        for peer in peers {
            let mark = self.mark(*peer);
            self.unheard.begin(*peer, mark, gone);
        }
    }

    /// What was to be sent from there and is not posted yet fails its connection. That is our doing: it tells nothing of the peer.
    fn give_up_sending_from(&mut self, region: &UserRegion) {
        let mut unposted = Vec::new();
        for (region, Port { nic, .. }) in region.rails().zip(&mut self.nics) {
            let ended = nic.give_up_region(region).into_iter();
            unposted.extend(ended.filter_map(|token| Purpose::of(token)?.sender_of_data()));
        }
        for (slot, _, state) in self.senders.iter_mut() {
            let SenderState::Connected(sender) = &mut **state else { continue };
            let parts = unposted.iter().filter(|of| **of == slot).count();
            if parts > 0 || sender.feeds_from(region) {
                sender.never_posted(u32::try_from(parts).unwrap_or(u32::MAX));
                sender.fail(Cause::SendDeregistered.sending(sender.peer.label()));
            }
        }
        self.counters.unsent_parts += unposted.len() as u64;
        unposted.dedup();
        unposted.into_iter().for_each(|slot| self.give_up_parts_of(slot));
    }
}

/// How long a peer is given to answer once one has not.
const LEAST_WAIT: Duration = Duration::from_millis(10);
/// After which the question is asked again; then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How much less time the next peer is given after one that let its wait pass: many of them cost little more than the first.
const PATIENCE_SHRINKS: u32 = 6;
/// Odd, so that what is added first is not lost.
const MARK_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
