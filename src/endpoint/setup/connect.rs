//! Connect: asks for a connection, and opens the sending side with the answer.

use std::time::Instant;

use fabric::{PeerAddress, Post};
use proto::eager::FIRST_EAGER;
use proto::handshake::{Ring, Side};
use proto::{Begun, Bye, Ceased, CommId, ConnectionId, Line, RailPlan, Reply, Request, SendFlow};

use super::{FRONT_DOOR, LENT, MAX_GROUP, control_pair, id, parts, ring_of};
use crate::comm::setup;
use crate::comm::setup::{Asking, Step};
use crate::endpoint::messages::Letter;
use crate::endpoint::sender::Sender;
use crate::endpoint::{Endpoint, SenderState, random};
use crate::error::{Bug, Cause, Nonsense, Noun, Result, SetupError, Table};
use crate::handle::{Handle, HandleKind};
use crate::types::HANDLE_BYTES;

impl Endpoint {
    /// Begins a connection, or goes on with the one that the handle remembers.
    pub(crate) fn connect(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Handle>, SetupError> {
        self.check_alive()?;
        let scratch = proto::Handle::scratch(handle);
        if !self.settled {
            self.progress();
            if !self.is_settled()? {
                return Ok(None);
            }
        }
        let (slot, generation) = if scratch == [0; 16] {
            let begun = self.begin_connect(handle)?;
            self.tenants.made(self.sender_handle(begun));
            proto::Handle::set_scratch(handle, self.scratch(begun));
            begun
        } else {
            self.resumed(scratch).ok_or(Cause::UsedHandle)?
        };
        self.progress();
        let answer = self.step_connect(slot, generation);
        if !matches!(answer, Ok(None)) {
            proto::Handle::set_scratch(handle, [0; 16]);
        }
        if answer.is_err() {
            self.abandon_connect(slot, generation);
        }
        answer
    }

    fn begin_connect(&mut self, handle: &[u8; HANDLE_BYTES]) -> Result<(u16, u16), SetupError> {
        let target = proto::Handle::decode(handle).map_err(SetupError::Handle)?;
        let control = self.join(FRONT_DOOR, target.control.as_bytes())?;
        let format = proto::LineFormat::for_rails(self.nics.len());
        let mailbox = self.slabs.take(&mut self.nics, format.bytes() / 8).map_err(|error| {
            self.nics[FRONT_DOOR].nic.leave(control);
            self.no_memory(error)
        })?;
        let full = Cause::Full { table: Table::Connections, count: u16::MAX.into() };
        let slot = self.senders.upcoming().ok_or(full)?;
        let generation = self.senders.generation(slot);
        let request = Request {
            connection: ConnectionId(id(slot, generation)),
            reply_to: self.front_door_name()?,
            listener: target.listener,
            listener_nonce: target.nonce ^ self.job(),
            nonce: random(),
            capabilities: self.capabilities,
            rails: self.rails()?,
            mailbox: Ring { address: self.slabs.target(&mailbox), keys: self.slabs.keys(&mailbox) },
            window: LENT,
            max_group: MAX_GROUP,
            eager_bytes: u32::try_from(self.settings.eager_bytes_max).unwrap_or(u32::MAX),
            bundle_bytes: u32::try_from(self.settings.bundle_bytes_max).unwrap_or(u32::MAX),
            identity: self.identity(),
        };
        let bytes = request.encode().map_err(SetupError::Request)?;
        let asking = Asking::new(request, bytes, Instant::now());
        let state = Box::new(SenderState::Asking { asking, mailbox: Some(mailbox), control });
        self.senders.insert_with(|_, _| state).ok_or(full)?;
        Ok((slot, generation))
    }

    fn step_connect(&mut self, slot: u16, generation: u16) -> Result<Option<Handle>, SetupError> {
        let now = Instant::now();
        let Some(SenderState::Asking { asking, control, .. }) =
            self.senders.get_mut(slot, generation).map(|state| &mut **state)
        else {
            return Err(Cause::Stale(Noun::Connection).into());
        };
        match asking.step(now) {
            Step::Open(reply) => return Ok(Some(self.open_sender(slot, generation, &reply)?)),
            Step::Fail(refusal) => return Err(SetupError::Refused(refusal)),
            Step::Wait => {}
            Step::Post => {
                let (bytes, control) = (std::mem::take(&mut asking.bytes), *control);
                let letter = Letter::Request { sender: slot, generation };
                let posted = self.post_message(FRONT_DOOR, control, &bytes, letter);
                let asking = self.asking(slot, generation)?;
                asking.bytes = bytes;
                match posted {
                    Ok(Post::Accepted) => {
                        let again = asking.posted();
                        self.counters.repeated_requests += u64::from(again);
                    }
                    Ok(Post::Again | Post::Full) => {}
                    Err(error) => return Err(Cause::Unreachable(error).into()),
                }
            }
        }
        self.watch_connect(slot, generation, now)?;
        Ok(None)
    }

    fn asking(&mut self, slot: u16, generation: u16) -> Result<&mut Asking> {
        match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Asking { asking, .. }) => Ok(asking),
            _ => Err(Cause::Stale(Noun::Connection).into()),
        }
    }

    /// Says once whom connect is waiting for, and ends the wait.
    fn watch_connect(&mut self, slot: u16, generation: u16, now: Instant) -> Result<()> {
        let (warn, bound, label) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let asking = self.asking(slot, generation)?;
        let waited = now.duration_since(asking.started);
        if waited > bound {
            let seconds = waited.as_secs();
            return Err(Cause::ConnectTimeout { device: label, seconds }.into());
        }
        if waited > warn && !asking.warned {
            asking.warned = true;
            log::info!(
                "connect on device {label} has waited {} s for the peer's answer",
                waited.as_secs()
            );
        }
        Ok(())
    }

    /// The reply is here: both ends know the same now.
    fn open_sender(&mut self, slot: u16, generation: u16, reply: &Reply) -> Result<Handle> {
        let request = self.asking(slot, generation)?.request.clone();
        if !reply.pairing.fits(&request.rails, &reply.rails) {
            return Err(Cause::Nonsense(Nonsense::Pairing).into());
        }
        let nonces = (request.nonce, reply.nonce);
        let parameters = setup::settle(
            &self.capabilities,
            &reply.capabilities,
            reply.window,
            reply.pairing.data.len(),
            nonces,
            reply.comm,
            reply.fin_only,
        )?;
        if !reply.window.fits(LENT) {
            return Err(Cause::Nonsense(Nonsense::Window).into());
        }
        let peer = self.acquaintances.meet(&reply.identity);
        self.compare(&peer, &reply.identity);
        let mut flow = SendFlow::new(parameters).map_err(Cause::from)?;
        let rails = reply.pairing.data.len();
        let plan = RailPlan::equal(rails, self.settings.stripe_bytes_min as u64)
            .ok_or(Cause::Bug(Bug::ConnectionWithoutRails))?;
        let pair = control_pair(&reply.pairing, reply.comm);
        let control = (usize::from(pair.sender), usize::from(pair.receiver));
        let data = reply.pairing.data.iter().map(|pair| (pair.sender.into(), pair.receiver.into()));
        let (lanes, control) = self.join_all(data, control, &reply.rails, &reply.fins)?;
        log::debug!("connected to {peer} over {} data rails, {:?}", lanes.len(), parameters.path);
        let inject_bytes = self.capabilities.rma_inject_bytes;
        let ceased = self.asking(slot, generation)?.has_ceased(parameters.nonce);
        let outlet = match &reply.eager {
            Some(ring) if !ceased => {
                let (target, key) = ring_of(pair.receiver.into(), &reply.rails, ring)?;
                self.eager_outlet(target, key)
            }
            _ => None,
        };
        if outlet.is_some() {
            flow.allow_eager(self.settings.eager_bytes_max);
        }
        let bundler = match &reply.bundles {
            Some(ring) if self.settings.bundle_bytes_max > 0 => {
                let (target, key) = ring_of(pair.receiver.into(), &reply.rails, ring)?;
                self.bundler(target, key)
            }
            _ => None,
        };
        if bundler.is_some() {
            flow.allow_bundles(self.settings.bundle_bytes_max);
        }
        let Some(state) = self.senders.get_mut(slot, generation) else {
            return Err(Cause::Stale(Noun::Connection).into());
        };
        let SenderState::Asking { mailbox, asking, control: front_door, .. } = &mut **state else {
            return Err(Cause::Stale(Noun::Connection).into());
        };
        let (front_door, left) = (*front_door, asking.has_left(parameters.nonce));
        let mailbox = mailbox
            .take()
            .ok_or(Cause::Bug(Bug::ConnectionWithoutMailbox))?
            // It was taken for as many rails as we have; the peer writes lines for the common ones.
            .with_lines_of(parameters.format().bytes() / 8);
        let mut sender = Sender::new(flow, mailbox, lanes, control, plan, inject_bytes, peer)
            .with(outlet, bundler);
        if let Some(closed) = left {
            sender.withdrawn(Line::FIRST);
            // It was answered when it came.
            sender.ending.heard_bye = closed;
            sender.ending.said_bye = closed;
        }
        let (comm, nonce, eager_end) = (sender.comm(), sender.nonce(), sender.eager_end());
        **state = SenderState::Connected(sender);
        if ceased {
            let connection = ConnectionId(id(slot, generation));
            self.say_ceased(control, &Ceased { connection, comm, nonce, eager_end });
        }
        self.nics[FRONT_DOOR].nic.leave(front_door);
        Ok(self.sender_handle((slot, generation)))
    }

    /// Gives up a connect that is under way. Who has accepted it is told.
    pub(in crate::endpoint) fn abandon_connect(&mut self, slot: u16, generation: u16) {
        let Some(SenderState::Asking { asking, control, .. }) =
            self.senders.get(slot, generation).map(|state| &**state)
        else {
            return;
        };
        let (control, accepted) = (*control, asking.accepted());
        let told = accepted.filter(|(_, nonce)| asking.has_left(*nonce) != Some(true));
        if let Some((comm, nonce)) = told {
            self.decline(control, ConnectionId(id(slot, generation)), comm, nonce);
        }
        self.tenants.closed(self.sender_handle((slot, generation)));
        // The peer may have been given the mailbox, and write there: its memory is not handed on.
        self.senders.remove(slot, generation);
        self.nics[FRONT_DOOR].nic.leave(control);
    }

    /// Tells a receiver, at the front door of its endpoint, that nothing was begun, and nothing will be, on a connection that
    /// this end has not opened: its memory waits for that.
    pub(in crate::endpoint) fn decline(
        &mut self,
        peer: PeerAddress,
        connection: ConnectionId,
        comm: CommId,
        nonce: u64,
    ) {
        let (from, begun, eager_end, done) =
            (Side::Sender, Begun::NOTHING, FIRST_EAGER, Line::FIRST);
        let bye = Bye { connection, comm, nonce, from, begun, eager_end, done };
        self.say_bye(FRONT_DOOR, peer, &bye);
    }

    fn sender_handle(&self, (slot, generation): (u16, u16)) -> Handle {
        Handle::new(HandleKind::Sender, self.number, generation, slot, 0)
    }

    fn scratch(&self, (slot, generation): (u16, u16)) -> [u8; 16] {
        let mut scratch = [0; 16];
        scratch[..8].copy_from_slice(&(id(slot, generation) | 1 << 63).to_le_bytes());
        scratch[8..].copy_from_slice(&self.nonce.to_le_bytes());
        scratch
    }

    /// The connect that a handle remembers, if it is one of ours and under way.
    fn resumed(&self, scratch: [u8; 16]) -> Option<(u16, u16)> {
        let (slot, generation) = parts(u64::from_le_bytes(*scratch.first_chunk()?));
        if self.scratch((slot, generation)) != scratch {
            return None;
        }
        let state = self.senders.get(slot, generation)?;
        matches!(**state, SenderState::Asking { .. }).then_some((slot, generation))
    }
}
