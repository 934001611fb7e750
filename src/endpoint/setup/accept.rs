//! Listen and accept. OPENs with a proof of the listener's secret are queued; accept answers one with OPENED.

use proto::frame::Refusal;
use proto::polled::PolledTime;
use proto::setup::{ControlAddresses, QueuedOpen, Secret, refuse};
use proto::{ChannelId, ListenerId, Moment, Name, Slot};

use super::super::Endpoint;
use super::super::authentication::{job_secret, random_bytes};
use super::super::bound::ACCEPT_ABANDONED_AFTER;
use super::super::comms::Comm;
use super::super::ownership::Communicator;
use super::super::side::Side;
use super::{ALL_OPEN, waiting_level};
use crate::error::{Cause, Noun, Result, Table};
use crate::object_id::{ObjectId, ObjectKind};
use crate::types::HANDLE_BYTES;

/// A listener.
#[derive(Debug)]
pub(in crate::endpoint) struct Listening {
    listener: ListenerId,
    owner: Communicator,
    /// The caller's version of NCCL's table has grouped receives.
    groups: bool,
    /// When accept was last called.
    asked: Moment,
    /// A call about it has panicked.
    pub(in crate::endpoint) broken: bool,
    /// Since when accept has found no peer, or no free slot for one, by [`proto::ProgressLoop::polled_time`], and whether
    /// that was logged.
    waiting_since: Option<PolledTime>,
    warned: bool,
}

/// A connection that accept has begun: its OPENED has not left yet.
#[derive(Debug)]
pub(in crate::endpoint) struct Accepting {
    /// The slot and generation of its listener. A listener has one such connection at a time.
    listener: (u16, u16),
    slot: Slot,
}

impl Endpoint {
    /// Opens a listener, and writes the handle that peers connect with. `max_group`: the largest group of receives in the caller's version
    /// of NCCL's table.
    pub(crate) fn listen(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
        max_group: usize,
    ) -> Result<ObjectId> {
        self.check_alive()?;
        let table = Table::Listeners { device: self.label() };
        let full = Cause::Full { table, count: u16::MAX.into() };
        if self.listeners.upcoming().is_none() {
            return Err(full.into());
        }
        let control = self.control_addresses().ok_or(Cause::AddressNotInHandle)?;
        let shown = random_bytes().map(Secret).map_err(|_| Cause::NoRandom)?;
        let secret = job_secret(shown, &self.settings.job);
        let made = self.executor.peers.listen(secret, control, self.device.address_format);
        let mut wire = made.ok_or(full)?;
        wire.secret = shown;
        let listening = Listening {
            listener: wire.listener,
            owner: self.ownership.calling(),
            groups: max_group > 1,
            asked: self.now(),
            broken: false,
            waiting_since: None,
            warned: false,
        };
        let mut generation = 0;
        let slot = self.listeners.insert_with(|_, current| {
            generation = current;
            listening
        });
        *handle = wire.encode();
        let listener =
            ObjectId::new(ObjectKind::Listener, self.number, generation, slot.ok_or(full)?, 0);
        self.ownership.add(listener);
        Ok(listener)
    }

    /// Where peers can reach this endpoint: first by control rails that are not lost to any peer.
    fn control_addresses(&self) -> Option<ControlAddresses> {
        let nics = self.executor.nics.iter().enumerate();
        let mut ports: Vec<_> = nics.filter(|(_, port)| port.nic.has_control()).collect();
        ports.sort_by_cached_key(|(nic, _)| self.has_lost_control(*nic));
        ControlAddresses::new(ports.iter().map(|(_, port)| port.nic.control_name()))
    }

    /// Whether the control rail of a NIC is lost to a peer; either end's NIC may be the cause. A channel that has ended or failed says nothing:
    /// its peer may be gone.
    fn has_lost_control(&self, nic: usize) -> bool {
        let mut channels = (0..).map(ChannelId).zip(self.executor.channel_ends());
        channels.any(|(id, peer)| {
            let channel = self.core.channel(id).filter(|channel| channel.is_alive());
            let mut rails = (0..).zip(&peer.control);
            channel.is_some_and(|channel| {
                rails.any(|(rail, lane)| lane.nic == nic && channel.is_lost(rail))
            })
        })
    }

    /// `None`: no peer has connected, no slot is free for it, or OPENED has not left; one poll was made.
    pub(crate) fn accept(&mut self, id: ObjectId) -> Result<Option<ObjectId>> {
        self.check_alive()?;
        let now = self.now();
        self.progress_at(now, None);
        let probed = self.is_probed || self.ensure_capabilities()?;
        let at = (id.slot(), id.generation());
        let ours = id.is(ObjectKind::Listener);
        let listening = self.listeners.get_mut(at.0, at.1).filter(|_| ours);
        let listening = listening.ok_or(Cause::Stale(Noun::ListenComm))?;
        if listening.broken {
            return Err(super::super::broken::PANICKED);
        }
        listening.asked = now;
        if !probed {
            return Ok(None);
        }
        let (listener, owner, groups) = (listening.listener, listening.owner, listening.groups);
        if self.accepting(at).is_none() {
            let channel = self.executor.peers.waiting(listener);
            let is_free = |channel: ChannelId| !groups || !self.is_accepting(owner, channel, now);
            // While no slot is free the OPEN stays queued: a connection that closes frees a slot.
            let name = channel.filter(|channel| is_free(*channel)).and_then(|_| self.core.vacant());
            let queued = name.and_then(|name| Some((name, self.executor.peers.accept(listener)?)));
            let Some((name, queued)) = queued else {
                self.watch_accept(at, channel.is_some())?;
                return Ok(None);
            };
            self.begin_accept(at, name, &queued, now)?;
            if let Some(comm) = self.step_accept(at, now)? {
                return Ok(Some(comm));
            }
            // Over sockets OPENED leaves in a second poll. Polling here lets the connections that wait for this one continue before the
            // next call.
            self.progress_at(now, None);
        }
        self.step_accept(at, now)
    }

    /// Whether accept has begun a connection with this peer for a listener of the communicator, and has not returned its comm. Then it
    /// begins no other one.
    ///
    /// NCCL shares comms between the ranks behind a proxy: up to 2.26 each side polls a connection for every rank, keeps the first comm
    /// that it gets and closes the other listeners. (Since 2.27 one rank connects for all; NCCL src/transport/net.cc, activeConnect.) If
    /// two connections opened at once, the two sides might keep different ones. A caller that has not polled the begun connection lately is
    /// not such a proxy, and does not wait.
    fn is_accepting(&self, owner: Communicator, channel: ChannelId, now: Moment) -> bool {
        let is_its = |listening: &Listening| {
            let is_asked = now.since(listening.asked) < ACCEPT_ABANDONED_AFTER;
            listening.owner == owner && !listening.broken && is_asked
        };
        self.accepting.iter().any(|Accepting { listener, slot }| {
            self.executor.channel_of(*slot) == channel
                && self.listeners.get(listener.0, listener.1).is_some_and(is_its)
        })
    }

    /// The connection that accept has begun for a listener.
    fn accepting(&self, listener: (u16, u16)) -> Option<Slot> {
        let mut all = self.accepting.iter();
        all.find(|accepting| accepting.listener == listener).map(|accepting| accepting.slot)
    }

    /// Removes the connection that accept has begun for a listener, and returns its slot.
    fn take_accepting(&mut self, listener: (u16, u16)) -> Option<Slot> {
        let at = self.accepting.iter().position(|accepting| accepting.listener == listener)?;
        Some(self.accepting.swap_remove(at).slot)
    }

    fn begin_accept(
        &mut self,
        at: (u16, u16),
        name: Name,
        queued: &QueuedOpen,
        now: Moment,
    ) -> Result<()> {
        let channel = ChannelId(queued.channel);
        let groups = self.listeners.get(at.0, at.1).is_some_and(|listening| listening.groups);
        let (features, unadvertised) = (self.features(groups), self.inline_unadvertised());
        let flow = self.executor.peers.accepting(queued, name, features, unadvertised);
        let Some(mut flow) = flow else {
            self.core.refuse(channel, refuse(&queued.open, Refusal::Feature));
            return Err(Cause::CannotSignalEnd.negotiating());
        };
        if let Some(flow) = flow.receiver_mut() {
            flow.set_busy_bytes(self.busy_bytes());
        }
        self.executor.connect(name.slot, channel, name.generation);
        if self.core.connect(name, channel, flow, now) {
            self.accepting.push(Accepting { listener: at, slot: name.slot });
        }
        Ok(())
    }

    /// The bytes that the device's rails carry in 20 µs.
    fn busy_bytes(&self) -> u64 {
        u64::from(self.device.speed_mbps) * 20 / 8
    }

    fn step_accept(&mut self, at: (u16, u16), now: Moment) -> Result<Option<ObjectId>> {
        let Some(slot) = self.accepting(at) else { return Ok(None) };
        self.core.send_urgent(&mut self.executor, slot, now);
        let gone = self.core.connection(slot).is_none_or(|flow| flow.fault().is_some());
        if !gone && !self.core.has_left(slot, now) {
            return Ok(None);
        }
        self.take_accepting(at);
        if gone {
            // The peer has ended before the connection was made. The listener stays usable.
            self.discard(slot, Side::Receive);
            return Ok(None);
        }
        if let Some(listening) = self.listeners.get_mut(at.0, at.1) {
            (listening.waiting_since, listening.warned) = (None, false);
        }
        // Some providers send what was posted only in a later poll, and NCCL may make none before its peer has connected.
        self.needs_keeper = self.core.has_pending();
        let channel = self.executor.channel_of(slot);
        let tally = self.tally(channel, Side::Receive);
        let generation = self.comms.put(slot, Comm::new(Side::Receive, channel, tally));
        Ok(Some(ObjectId::new(ObjectKind::Receiver, self.number, generation, slot.number(), 0)))
    }

    pub(crate) fn close_listen(&mut self, id: ObjectId) -> Result<()> {
        self.ownership.remove(id);
        let taken = self.listeners.remove(id.slot(), id.generation());
        let listening = taken.ok_or(Cause::Stale(Noun::ListenComm))?;
        if self.broken {
            return Ok(());
        }
        if let Some(slot) = self.take_accepting((id.slot(), id.generation())) {
            self.discard(slot, Side::Receive);
        }
        let waiting: Vec<_> = self.executor.peers.close(listening.listener).collect();
        for (channel, refused) in waiting {
            self.core.refuse(channel, refused);
        }
        self.progress();
        Ok(())
    }

    /// Logs once that accept is waiting, and returns an error past the bound. `has_open`: a peer's OPEN waits for it.
    fn watch_accept(&mut self, at: (u16, u16), has_open: bool) -> Result<()> {
        let is_full = || has_open && self.core.vacant().is_none();
        let now = self.core.polled_time();
        let (warn, bound, device) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let Some(listening) = self.listeners.get_mut(at.0, at.1) else { return Ok(()) };
        let waited = now.since(*listening.waiting_since.get_or_insert(now));
        if waited > bound {
            let silent = Cause::AcceptTimeout { device, seconds: waited.as_secs() };
            return Err(if is_full() { ALL_OPEN } else { silent }.into());
        }
        if waited > warn && !listening.warned {
            listening.warned = true;
            let (level, seconds) = (waiting_level(), waited.as_secs());
            if is_full() {
                log::log!(level, "accept on device {device} has waited {seconds} s: {ALL_OPEN}");
            } else {
                log::log!(
                    level,
                    "accept on device {device} has waited {seconds} s for a peer to connect"
                );
            }
        }
        Ok(())
    }
}
