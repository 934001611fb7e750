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
//! that does not answer is waited for within a bound; then the region stays registered until the endpoint closes. The
//! caller's lock is given up between turns, so that the endpoint's other connections go on meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::{Begun, CommId, Withdraw, Withdrawn};

use super::lanes::ControlLane;
use super::setup::parts;
use super::{Endpoint, Look, SenderState, enqueue, receiver};
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::rail::UserRegion;

/// How far a receiver is with taking its receives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fence {
    #[default]
    None,
    /// The sender is to be asked once our own control writes have ended: none may land behind the question.
    Due { until: Instant },
    /// The sender was asked.
    Asked { until: Instant },
}

/// A registration that NCCL has given back, and that something may still touch.
#[derive(Debug)]
pub(super) struct Leaving {
    handle: Handle,
    region: Arc<UserRegion>,
    until: Instant,
}

impl Leaving {
    pub(super) fn into_region(self) -> Arc<UserRegion> {
        self.region
    }
}

/// Turns in which what has ended is heard of.
const LAST_LOOKS: u32 = 64;

impl Fence {
    /// Whether the sender is waited for no more.
    fn is_over(self, now: Instant) -> bool {
        match self {
            Self::None => false,
            Self::Due { until } | Self::Asked { until } => now >= until,
        }
    }
}

impl Endpoint {
    /// Takes a handle back. True: the memory is free. False: ask [`Endpoint::has_left`] until it is.
    pub(crate) fn deregister(&mut self, handle: Handle) -> Result<bool> {
        let ours = handle.is(HandleKind::Region) && handle.endpoint() == self.number;
        let taken =
            if ours { self.regions.remove(handle.slot(), handle.generation()) } else { None };
        let region = taken.ok_or_else(|| Error::stale("memory handle"))?;
        // What is in flight may be of another handle of the same registration, which stays.
        if self.cache.is_shared(&region) || !self.still_touches(&region) {
            self.cache.release(region);
            return Ok(true);
        }
        let until = self.until();
        self.withdraw_from(&region, until);
        self.leaving.push(Leaving { handle, region, until });
        Ok(self.has_left(handle))
    }

    /// Whether nothing touches the memory of a handle any more, or it is not waited for any longer. Makes a turn of
    /// progress.
    pub(crate) fn has_left(&mut self, handle: Handle) -> bool {
        self.progress();
        for (slot, _) in self.receivers.keys() {
            self.drive_fence(slot);
        }
        let Some(index) = self.leaving.iter().position(|leaving| leaving.handle == handle) else {
            return true;
        };
        let Leaving { region, until, .. } = &self.leaving[index];
        let (region, late) = (Arc::clone(region), Instant::now() >= *until);
        let touched = self.touches(&region);
        if touched && !late {
            return false;
        }
        drop(self.leaving.swap_remove(index));
        if touched {
            self.keep(region);
        } else {
            self.patience = self.settings.close_timeout;
            self.cache.release(region);
        }
        true
    }

    /// Until when to wait for peers. All waits share one patience, which an answer restores.
    fn until(&self) -> Instant {
        Instant::now() + self.patience.max(LEAST_WAIT)
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
            for (slot, _, receiver) in receivers.iter_mut() {
                receiver.read_fins(Look::Memory);
                enqueue(receiver, working, slot);
            }
        }
        self.touches(region)
    }

    /// Whether a post of ours reads the region, or a peer may write to it.
    fn touches(&self, region: &Arc<UserRegion>) -> bool {
        let feeds = |state: &SenderState| matches!(state, SenderState::Connected(sender) if sender.feeds_from(region));
        self.nics.iter().any(|nic| nic.operations.uses(region))
            || self.senders.iter().any(|state| feeds(state))
            || self.receivers.iter().any(|receiver| receiver.exposes(region))
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
        self.withdraw(slot, self.until());
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
        match receiver.fence {
            Fence::None => {}
            Fence::Due { until } if receiver.is_drained() => {
                receiver.fence = Fence::Asked { until };
                let lane = receiver.control();
                let (connection, nonce, done) =
                    (receiver.connection, receiver.nonce(), receiver.done());
                let (Some(comm), Ok(reply_to)) = (CommId::new(slot), self.front_door_name()) else {
                    return;
                };
                self.say_withdraw(lane, &Withdraw { connection, comm, nonce, done, reply_to });
            }
            Fence::Due { .. } | Fence::Asked { .. } => receiver.read_every_fin(),
        }
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
        match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Connected(sender)) if sender.nonce() == nonce => {
                sender.withdrawn(done);
                let (begun, lane) = (sender.begun(), sender.control());
                let withdrawn = Withdrawn { connection, comm, nonce, begun };
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
        let withdrawn = Withdrawn { connection, comm, nonce, begun: Begun::NOTHING };
        if let Ok(bytes) = withdrawn.encode() {
            self.answer(&reply_to, bytes);
        }
    }

    /// A sender begins nothing more.
    pub(super) fn heard_withdrawn(&mut self, withdrawn: &Withdrawn) {
        let slot = withdrawn.comm.get();
        match self.receivers.at_mut(slot) {
            Some(receiver) if receiver.nonce() == withdrawn.nonce => {
                receiver.fenced(withdrawn.begun);
                self.try_release_receiver(slot);
            }
            _ => self.counters.late_messages += 1,
        }
    }

    /// The region stays registered: a peer may write to it whenever it is polled again, and would break rails that
    /// other connections share. What was to be sent from it, and is not posted yet, never will be.
    #[cold]
    fn keep(&mut self, region: Arc<UserRegion>) {
        self.patience = Duration::ZERO;
        log::warn!(
            "device {}: a buffer is deregistered while a peer that does not answer may still use it; it stays registered \
             until the communicator ends",
            self.label()
        );
        for nic in 0..self.nics.len() {
            let rail = &mut self.nics[nic];
            for write in rail.data.give_up(&rail.operations, &region) {
                self.part_given_up(nic, &write, gone());
            }
        }
        for (_, _, state) in self.senders.iter_mut() {
            if let SenderState::Connected(sender) = &mut **state
                && sender.feeds_from(&region)
            {
                sender.fail(gone());
            }
        }
        self.cache.forget(&region);
        self.kept.push(region);
    }
}

fn gone() -> Error {
    Error::new(Kind::Remote, "the buffer of a message was deregistered before it was sent")
}

/// How long a peer is given to answer once one has not.
const LEAST_WAIT: Duration = Duration::from_millis(10);
