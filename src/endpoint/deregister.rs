//! deregMr: closes a registration once no operation, ours or a peer's, can touch its memory.
//!
//! ```text
//!  withdraw its receives, give up its unposted sends ─▶ nothing touches it ─▶ closed
//!                                                    └─▶ past the bound: an error, and it stays registered
//! ```
//!
//! A connection whose posted receives are withdrawn has failed. The rails are shared with other connections and must keep working, so no
//! region closes while a peer may write to it. The peer is waited for within a bound; past it deregMr returns an error, and NCCL can
//! deregister the same id again later, or the endpoint's close frees it (docs/decisions/0008-memory-a-silent-peer-may-touch.md). A peer
//! whose operations fail has ended: it begins no more writes.

use std::sync::Arc;
use std::time::Instant;

use proto::polled::PolledTime;
use proto::{Flow, ReceiveFlow, Slot};

use super::Endpoint;
use super::bound::DEREGISTER_POLLS;
use super::comms::Comm;
use super::executor::name_of;
use super::peers::Peer;
use super::region::UserRegion;
use super::side::Side;
use crate::error::{Cause, Error, Noun, Result};
use crate::label::Label;
use crate::object_id::{ObjectId, ObjectKind};

/// A registration under deregMr that an operation may still touch. NCCL can no longer name it in messages.
#[derive(Debug)]
pub(super) struct Deregistering {
    id: ObjectId,
    /// By [`proto::ProgressLoop::polled_time`]: time in which the process was stopped does not count.
    until: PolledTime,
    /// The error that was returned when `until` had passed. NCCL may deregister the region again.
    failure: Option<Error>,
}

/// Which of a region's messages are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Give {
    /// Receives are withdrawn: the sender begins no more writes into them.
    Receives,
    /// Parts that are not posted yet never will be.
    Sends,
}

impl Endpoint {
    /// Deregisters an id. True: the memory is free. False: repeat [`Endpoint::poll_deregister`]. An error: the memory is still registered,
    /// and NCCL may deregister the id again.
    pub(crate) fn deregister(&mut self, id: ObjectId) -> Result<bool> {
        if let Some(at) = self.deregistering.iter().position(|one| one.id == id) {
            self.progress();
            self.deregistering[at].until = self.end_of_wait();
            return self.poll_deregister(id);
        }
        let ours = id.is(ObjectKind::Region) && id.endpoint() == self.number;
        if !ours || self.executor.regions.of(id.raw()).is_none() {
            return Err(Cause::Stale(Noun::MemoryHandle).into());
        }
        self.executor.regions.hide(id.slot());
        if !self.is_posted(id) && self.naming(id).is_empty() {
            return self.close_region(id);
        }
        // No poll if no peer knows of the memory yet: a poll would send the advert that lends it.
        for _ in 0..DEREGISTER_POLLS {
            if !self.is_touched(id) {
                break;
            }
            self.progress();
        }
        self.give_up_region(id, Give::Receives);
        let until = self.end_of_wait();
        self.deregistering.push(Deregistering { id, until, failure: None });
        self.poll_deregister(id)
    }

    /// A call of deregMr begins to wait. The endpoint is not closed before [`Endpoint::end_wait`]: its close may leave the region open,
    /// which the waiting call could not find out.
    pub(crate) fn begin_wait(&mut self) {
        self.deregister_calls += 1;
    }

    /// The wait has ended, with or without success.
    pub(crate) fn end_wait(&mut self) {
        self.deregister_calls -= 1;
        if !self.is_waited_on() {
            self.unclosed.clear();
        }
    }

    /// Whether a call of deregMr waits.
    pub(crate) fn is_waited_on(&self) -> bool {
        self.deregister_calls > 0
    }

    /// Whether a call of deregMr has failed, and none has succeeded for its region since.
    pub(super) fn has_failed_to_deregister(&self) -> bool {
        self.deregistering.iter().any(|one| one.failure.is_some())
    }

    /// The end of a wait for peers that begins now. The endpoint was just polled, so no earlier time is counted.
    fn end_of_wait(&mut self) -> PolledTime {
        self.core.polled_time().plus(self.patience.wait(Instant::now()))
    }

    /// Polls a deregistration. Closes the region and returns true once nothing can touch its memory.
    pub(crate) fn poll_deregister(&mut self, id: ObjectId) -> Result<bool> {
        let at = self.deregistering.iter().position(|deregistering| deregistering.id == id);
        let Some(at) = at else {
            // Another call has closed the region meanwhile, or libfabric refused to close it.
            let failure = self.unclosed.iter_mut().find(|(unclosed, _)| *unclosed == id);
            return failure.map_or(Ok(true), |(_, error)| Err(super::failures::repeated(error)));
        };
        self.progress();
        if !self.is_touched(id) {
            self.deregistering.swap_remove(at);
            return self.close_region(id);
        }
        if self.core.polled_time() < self.deregistering[at].until {
            return Ok(false);
        }
        // Sends are given up only now: the peer's receive waits for them.
        self.give_up_region(id, Give::Sends);
        self.patience.timed_out(Instant::now());
        self.cancel_receives_of_ended_peers(id);
        if !self.is_touched(id) || self.only_ended_peers_touch(id) {
            self.deregistering.swap_remove(at);
            return self.close_region(id);
        }
        Err(self.stays(at))
    }

    /// The region of an id, also while it is being deregistered.
    fn region_of(&self, id: ObjectId) -> Option<&Arc<UserRegion>> {
        self.executor.regions.get(id.slot(), id.generation())
    }

    /// Whether an operation of ours or of a peer may touch the memory.
    fn is_touched(&self, id: ObjectId) -> bool {
        self.is_posted(id) || !self.touching(id).is_empty()
    }

    /// Whether an operation of ours that was posted may touch the memory.
    fn is_posted(&self, id: ObjectId) -> bool {
        let Some(region) = self.region_of(id) else { return false };
        // Another handle keeps the same registration open.
        let shared = self.cache.is_shared(region);
        !shared && region.is_used(&self.executor.nics) || self.reads_from(region)
    }

    /// The connections whose messages touch this id's memory.
    fn touching(&self, id: ObjectId) -> Vec<Slot> {
        self.connections(id, ReceiveFlow::exposes)
    }

    /// The connections that have messages in this id's memory, also receives that were not advertised yet.
    fn naming(&self, id: ObjectId) -> Vec<Slot> {
        self.connections(id, ReceiveFlow::fills)
    }

    /// The connections that send from this id's memory, and those whose `receives` are in it.
    fn connections(&self, id: ObjectId, receives: fn(&ReceiveFlow, u32) -> bool) -> Vec<Slot> {
        let name = name_of(id.slot(), id.generation());
        let has = |flow: &Flow| match flow {
            Flow::Send(flow) => flow.feeds_from(name),
            Flow::Receive(flow) => receives(flow, name),
            Flow::Connecting(_) => false,
        };
        let all = self.comms.iter().map(|(slot, _)| slot);
        all.filter(|slot| self.core.connection(*slot).is_some_and(has)).collect()
    }

    /// Cancels the tagged receives that are posted for peers that have ended. Receives for other peers stay posted: a message that found no
    /// receive would block all messages behind it.
    fn cancel_receives_of_ended_peers(&mut self, id: ObjectId) {
        if !self.executor.sends_messages() {
            return;
        }
        let now = self.now();
        for slot in self.touching(id) {
            let channel = self.executor.channel_of(slot);
            if self.executor.peer(channel).is_some_and(|peer| !peer.is_gone()) {
                continue;
            }
            self.core.with(&mut self.executor, slot, now, |flow, _| {
                if let Some(flow) = flow.receiver_mut() {
                    flow.cancel_all();
                }
            });
        }
        for _ in 0..DEREGISTER_POLLS {
            if !self.is_touched(id) {
                return;
            }
            self.progress();
        }
    }

    /// Whether only connections to peers that have ended, as far as this side can see, may touch the memory, and no operation of ours.
    fn only_ended_peers_touch(&self, id: ObjectId) -> bool {
        let is_dead = |slot: &Slot| {
            let channel = self.executor.channel_of(*slot);
            self.executor.peer(channel).is_none_or(Peer::is_gone)
        };
        !self.is_posted(id) && self.touching(id).iter().all(is_dead)
    }

    /// Withdraws the receives into this memory, or gives up the sends from it that are not posted yet.
    fn give_up_region(&mut self, id: ObjectId, what: Give) {
        let name = name_of(id.slot(), id.generation());
        let now = self.now();
        for slot in self.naming(id) {
            self.core.with(&mut self.executor, slot, now, |flow, _| match (what, flow) {
                (Give::Receives, Flow::Receive(flow)) => flow.withdraw(),
                (Give::Sends, Flow::Send(flow)) => flow.give_up_region(name),
                _ => {}
            });
            let is_its =
                |comm: &&mut Comm| (comm.side == Side::Receive) == (what == Give::Receives);
            if let Some(comm) = self.comms.at_mut(slot).filter(is_its) {
                let peer = self.executor.label(comm.channel);
                let cause = match comm.side {
                    Side::Send => Cause::SendDeregistered.sending(peer),
                    Side::Receive => Cause::ReceiveDeregistered.receiving(peer),
                };
                comm.failure.get_or_insert(cause);
            }
        }
    }

    fn close_region(&mut self, id: ObjectId) -> Result<bool> {
        // Only now: a region that stays registered keeps its owner.
        self.ownership.remove(id);
        let taken = self.executor.regions.remove(id.slot(), id.generation());
        let Some(region) = taken else { return Ok(true) };
        let Some(region) = self.cache.release(region) else { return Ok(true) };
        let len = region.memory().len();
        let device = self.label();
        let closed = region.deregister(&mut self.executor.nics);
        closed.map(|()| true).map_err(|fault| {
            let mut error: Error = Cause::NotClosed { device, len, fault }.into();
            let repeated = super::failures::repeated(&mut error);
            if self.is_waited_on() {
                self.unclosed.push((id, error));
            }
            repeated
        })
    }

    /// The region stays registered. A peer that is polled again may write to it, and a closed region would then break rails that other
    /// connections share.
    #[cold]
    fn stays(&mut self, at: usize) -> Error {
        let id = self.deregistering[at].id;
        let names = self.touching(id).into_iter().map(|slot| {
            let channel = self.executor.channel_of(slot);
            self.executor.label(channel).text().to_owned()
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        if names.is_empty() {
            names.push("a peer that a write of this process has not reached".to_owned());
        }
        let peers = Label::of(&names.join(" and "));
        let (address, len) = match self.region_of(id) {
            Some(region) => (region.memory().address(), region.memory().len()),
            None => (0, 0),
        };
        let cause = Cause::StaysRegistered { device: self.label(), peers, address, len };
        let failure = self.deregistering[at].failure.get_or_insert_with(|| cause.into());
        super::failures::repeated(failure)
    }
}
