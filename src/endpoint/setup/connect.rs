//! Connect: exchanges HELLOs with the peer, sends OPEN to its listener, and makes the send comm when OPENED arrives.

use std::time::Duration;

use proto::frame::Refusal;
use proto::polled::PolledTime;
use proto::setup::{Answer, Handle, PeerId};
use proto::{Moment, Slot};

use super::super::Endpoint;
use super::super::authentication::{job_secret, random_nonce};
use super::super::bound::UNREACHABLE_AFTER;
use super::super::comms::Comm;
use super::super::side::Side;
use super::{ALL_OPEN, no_common_rail, waiting_level};
use crate::error::{Cause, Error, Noun, Result, SetupError, Table};
use crate::label::Label;
use crate::object_id::{ObjectId, ObjectKind};
use crate::types::HANDLE_BYTES;

/// A connect that has not finished.
#[derive(Debug)]
pub(in crate::endpoint) struct PendingConnect {
    peer: PeerId,
    target: Handle,
    /// By [`proto::ProgressLoop::polled_time`], as the other times of waits here: time in which the process was stopped does not count.
    began: PolledTime,
    /// When NCCL called it last.
    called: Moment,
    warned: bool,
    /// Since when every HELLO to the peer was rejected, and the first error.
    rejected: Option<(PolledTime, Error)>,
    /// The connection's slot, once there is a channel to the peer.
    slot: Option<Slot>,
}

impl PendingConnect {
    pub(in crate::endpoint) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(in crate::endpoint) fn slot(&self) -> Option<Slot> {
        self.slot
    }

    pub(in crate::endpoint) fn called(&self) -> Moment {
        self.called
    }

    pub(in crate::endpoint) fn waited(&self, now: PolledTime) -> Duration {
        now.since(self.began)
    }
}

impl Endpoint {
    /// Begins a connection, or continues the one that the handle's scratch area names. `None`: not yet, and one poll was made.
    pub(crate) fn connect(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<ObjectId>, SetupError> {
        self.check_alive()?;
        let scratch = Handle::scratch(handle);
        if !self.is_probed {
            self.progress();
            if !self.ensure_capabilities()? {
                return Ok(None);
            }
        }
        let now = self.now();
        let at = if scratch == [0; 16] {
            let begun = self.begin_connect(handle, now)?;
            self.ownership.add(self.connect_id(begun));
            Handle::set_scratch(handle, self.scratch(begun));
            begun
        } else {
            self.resumed(scratch).ok_or(Cause::UsedHandle)?
        };
        if let Some(pending) = self.connects.get_mut(at.0, at.1) {
            pending.called = now;
        }
        self.progress_at(now, None);
        let answer = self.step_connect(at, now);
        if !matches!(answer, Ok(None)) {
            Handle::set_scratch(handle, [0; 16]);
            self.ownership.remove(self.connect_id(at));
        }
        if answer.is_err() {
            self.abandon_connect(at);
        }
        answer.map_err(SetupError::from)
    }

    fn begin_connect(
        &mut self,
        handle: &[u8; HANDLE_BYTES],
        now: Moment,
    ) -> Result<(u16, u16), SetupError> {
        let mut target = Handle::decode(handle).map_err(SetupError::Handle)?;
        target.secret = job_secret(target.secret, &self.settings.job);
        let peer = self.executor.peers.meet(&target, &mut random_nonce);
        let (warned, rejected, slot) = (false, None, None);
        let began = self.core.polled_time();
        let pending = PendingConnect { peer, target, began, called: now, warned, rejected, slot };
        let mut generation = 0;
        let slot = self.connects.insert_with(|_, current| {
            generation = current;
            pending
        });
        let full = Cause::Full { table: Table::Connects, count: u16::MAX.into() };
        Ok((slot.ok_or(full)?, generation))
    }

    fn step_connect(&mut self, at: (u16, u16), now: Moment) -> Result<Option<ObjectId>> {
        let pending = self.connects.get(at.0, at.1).ok_or(Cause::Stale(Noun::Connection))?;
        match pending.slot {
            None => self.take_slot(at, now)?,
            Some(slot) => {
                if let Some(id) = self.answered(at, slot)? {
                    return Ok(Some(id));
                }
            }
        }
        self.watch_connect(at)?;
        Ok(None)
    }

    /// Once there is a channel to the peer, takes a slot for the connection and sends OPEN.
    fn take_slot(&mut self, at: (u16, u16), now: Moment) -> Result<()> {
        let Some(pending) = self.connects.get(at.0, at.1) else { return Ok(()) };
        let (peer, target) = (pending.peer, pending.target);
        let Some(channel) = self.executor.peers.channel(peer) else {
            return match self.executor.peers.apart(peer) {
                Some(apart) => Err(no_common_rail(apart).negotiating()),
                None => {
                    self.send_first_hello(peer, now);
                    Ok(())
                }
            };
        };
        if self.executor.peer(channel).is_some_and(|peer| peer.failure.is_some()) {
            return Err(self.channel_failure(channel));
        }
        // While no slot is free, connect waits: a connection that closes frees a slot.
        let Some(name) = self.core.vacant() else { return Ok(()) };
        // A sender supports groups; whether there are any is the receiver's choice.
        let flow = self.executor.peers.connecting(peer, name, &target, self.features(true));
        let flow = flow.ok_or(Cause::NoCommonRail)?;
        self.executor.connect(name.slot, channel, name.generation);
        if !self.core.connect(name, channel, flow, now) {
            return Err(self.channel_failure(channel));
        }
        if let Some(pending) = self.connects.get_mut(at.0, at.1) {
            pending.slot = Some(name.slot);
        }
        self.core.send_urgent(&mut self.executor, name.slot, now);
        Ok(())
    }

    /// The send comm, once the listener has answered.
    fn answered(&mut self, at: (u16, u16), slot: Slot) -> Result<Option<ObjectId>> {
        let flow = self.core.connection(slot).ok_or(Cause::Stale(Noun::Connection))?;
        let channel = self.executor.channel_of(slot);
        match flow.answer() {
            Answer::Pending => return Ok(None),
            Answer::Refused(Refusal::Feature) => return Err(Cause::CannotSignalEnd.negotiating()),
            Answer::Refused(why) => return Err(Cause::Refused(why).into()),
            Answer::Failed(_) => return Err(self.channel_failure(channel)),
            Answer::Opened => {}
        }
        self.connects.remove(at.0, at.1);
        let tally = self.tally(channel, Side::Send);
        let generation = self.comms.put(slot, Comm::new(Side::Send, channel, tally));
        let comm = ObjectId::new(ObjectKind::Sender, self.number, generation, slot.number(), 0);
        self.ownership.add(comm);
        Ok(Some(comm))
    }

    /// NCCL has given up on a connect: the connection is closed.
    pub(in crate::endpoint) fn abandon_connect(&mut self, at: (u16, u16)) {
        let Some(pending) = self.connects.remove(at.0, at.1) else { return };
        if let Some(slot) = pending.slot {
            self.discard(slot, Side::Send);
        }
    }

    /// The provider has accepted a HELLO to a peer, or rejected it. A link that is down may be up again soon, so connect fails only if
    /// HELLOs are rejected for [`UNREACHABLE_AFTER`].
    pub(super) fn hello_posted(&mut self, peer: PeerId, error: Option<Error>) {
        let now = self.core.polled_time();
        for pending in self.connects.iter_mut().filter(|pending| pending.peer == peer) {
            match (error, pending.rejected) {
                (None, _) => pending.rejected = None,
                (Some(_), Some(_)) => {}
                (Some(error), None) => {
                    log::info!("connect: {error}; trying again for {UNREACHABLE_AFTER:?}");
                    pending.rejected = Some((now, error));
                }
            }
        }
    }

    /// Logs once that connect is waiting, and returns an error past the bound.
    fn watch_connect(&mut self, at: (u16, u16)) -> Result<()> {
        let now = self.core.polled_time();
        let (warn, bound, device) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let Some(pending) = self.connects.get_mut(at.0, at.1) else { return Ok(()) };
        if let Some((since, error)) = pending.rejected
            && now.since(since) >= UNREACHABLE_AFTER
        {
            return Err(error);
        }
        let is_met = self.executor.peers.channel(pending.peer).is_some();
        let lacks_slot = is_met && pending.slot.is_none();
        let is_full = || lacks_slot && self.core.vacant().is_none();
        let waited = pending.waited(now);
        let (peer, target) = (pending.peer, pending.target);
        if waited > bound {
            let (peer, seconds) = (Label::of(&self.name_of(peer, &target)), waited.as_secs());
            let silent = Cause::ConnectTimeout { device, peer, seconds };
            return Err(if is_full() { ALL_OPEN } else { silent }.into());
        }
        if waited > warn && !pending.warned {
            pending.warned = true;
            let peer = self.name_of(peer, &target);
            let (level, seconds) = (waiting_level(), waited.as_secs());
            if is_full() {
                log::log!(
                    level,
                    "connect on device {device} to {peer} has waited {seconds} s: {ALL_OPEN}"
                );
            } else {
                log::log!(
                    level,
                    "connect on device {device} has waited {seconds} s for an answer of {peer}"
                );
            }
        }
        Ok(())
    }

    /// A peer's name, or its address until its HELLO has arrived.
    fn name_of(&self, peer: PeerId, target: &Handle) -> String {
        let channel = self.executor.peers.channel(peer);
        match channel.and_then(|channel| self.executor.peer(channel)) {
            Some(peer) => peer.name.to_string(),
            None => {
                let address = target.control.at(0);
                let shown = fabric::shown_address(target.address_format, address.as_bytes());
                format!("the process at {shown}")
            }
        }
    }

    /// The handle's scratch area: the id of the pending connect, and our endpoint's.
    fn scratch(&self, at: (u16, u16)) -> [u8; 16] {
        let mut scratch = [0; 16];
        scratch[..8].copy_from_slice(&self.connect_id(at).bits().to_le_bytes());
        scratch[8..].copy_from_slice(&self.executor.peers.us().id.0[..8]);
        scratch
    }

    fn resumed(&self, scratch: [u8; 16]) -> Option<(u16, u16)> {
        let (bits, id) = scratch.split_first_chunk::<8>()?;
        let connect = ObjectId::from_bits(u64::from_le_bytes(*bits))?;
        let at = (connect.slot(), connect.generation());
        let ours = id == &self.executor.peers.us().id.0[..8] && connect == self.connect_id(at);
        (ours && self.connects.get(at.0, at.1).is_some()).then_some(at)
    }

    fn connect_id(&self, (slot, generation): (u16, u16)) -> ObjectId {
        ObjectId::new(ObjectKind::Connect, self.number, generation, slot, 0)
    }
}
