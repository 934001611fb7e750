//! Listen and accept: waits for requests, makes the receiving side, and answers.

use std::time::Instant;

use fabric::{PeerAddress, Post};
use proto::handshake::{RefusalReason, Ring};
use proto::rails::Pairing;
use proto::{CommId, FlowParameters, ReceiveFlow, Reply, Request, Window};

use super::{FRONT_DOOR, control_pair, id, names};
use crate::comm::listener::Listener;
use crate::comm::peer::Peer;
use crate::comm::setup;
use crate::endpoint::broken::PANICKED;
use crate::endpoint::eager::Inlet;
use crate::endpoint::messages::Letter;
use crate::endpoint::receiver::{Receiver, Rings};
use crate::endpoint::{Endpoint, random};
use crate::error::{Cause, Error, Noun, Result, Table};
use crate::handle::{Handle, HandleKind};
use crate::types::HANDLE_BYTES;

/// An accept that has begun: the connection is whole but for its reply, which is yet to be posted.
#[derive(Debug)]
pub(in crate::endpoint) struct Accepting {
    slot: u16,
    generation: u16,
    peer: PeerAddress,
    since: Instant,
}

/// The memory that a sender may write to.
#[derive(Debug)]
struct Lent {
    fins: Ring,
    eager: Option<Ring>,
    bundles: Option<Ring>,
}

/// Microseconds for which what the sender may send has to keep the rails busy, that adverts wait longer: several times what
/// they take to it.
const BUSY_US: u64 = 20;

impl Endpoint {
    /// Opens a listener, and writes the handle that lets a peer find it.
    ///
    /// Receives of its connections come in groups of up to `max_group`.
    pub(crate) fn listen(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
        max_group: usize,
    ) -> Result<Handle> {
        let nonce = random();
        let control = self.front_door_name()?;
        let address_format = self.device.address_format;
        let mut generation = 0;
        let slot = self.listeners.insert_with(|_, current| {
            generation = current;
            Listener::new(nonce, max_group)
        });
        let slot = slot.ok_or_else(|| {
            let table = Table::Listeners { device: self.label() };
            Cause::Full { table, count: u16::MAX.into() }
        })?;
        let listener = id(slot, generation);
        *handle = proto::Handle { listener, nonce, control, address_format }.encode();
        let listener = Handle::new(HandleKind::Listener, self.number, generation, slot, 0);
        self.tenants.made(listener);
        Ok(listener)
    }

    /// Takes the next request of the listener. The comm is given out by the call that posted the reply.
    pub(crate) fn accept(&mut self, listener: Handle) -> Result<Option<Handle>> {
        self.check_alive()?;
        self.progress();
        if !self.is_settled()? {
            return Ok(None);
        }
        let (slot, generation) = (listener.slot(), listener.generation());
        loop {
            let place =
                self.listeners.get_mut(slot, generation).ok_or(Cause::Stale(Noun::ListenComm))?;
            if place.broken {
                return Err(PANICKED);
            }
            if let Some(accepting) = place.accepting.take() {
                return self.commit(slot, generation, accepting);
            }
            let Some(request) = place.pop() else {
                self.watch_accept(slot, generation)?;
                return Ok(None);
            };
            let max_group = place.max_group.min(request.max_group.into());
            match self.prepare(&request, max_group) {
                Ok(accepting) => {
                    let place = self
                        .listeners
                        .get_mut(slot, generation)
                        .ok_or(Cause::Stale(Noun::ListenComm))?;
                    place.accepting = Some(accepting);
                }
                Err((reason, text)) => {
                    self.answered.forget(request.mark());
                    self.refuse(&request.reply_to, request.connection, reason, text)
                }
            }
        }
    }

    /// Posts the reply. EAGAIN means not committed: the next call tries again.
    fn commit(
        &mut self,
        slot: u16,
        generation: u16,
        accepting: Accepting,
    ) -> Result<Option<Handle>> {
        let Accepting { slot: comm, generation: of_comm, peer, .. } = accepting;
        match self.post_reply(comm, of_comm, peer) {
            Ok(Post::Accepted) => {
                // Nobody may call again for a while, and the peer waits.
                self.part();
                self.nics[FRONT_DOOR].nic.leave(peer);
                if let Some(place) = self.listeners.get_mut(slot, generation) {
                    place.waiting_since = None;
                }
                Ok(Some(Handle::new(HandleKind::Receiver, self.number, of_comm, comm, 0)))
            }
            Ok(Post::Again | Post::Full)
                if accepting.since.elapsed() <= self.settings.connect_timeout =>
            {
                if let Some(place) = self.listeners.get_mut(slot, generation) {
                    place.accepting = Some(accepting);
                }
                Ok(None)
            }
            Ok(Post::Again | Post::Full) => {
                self.forget(&accepting);
                Err(Cause::AcceptUnreachable { device: self.label() }.into())
            }
            Err(error) => {
                self.forget(&accepting);
                Err(error)
            }
        }
    }

    fn post_reply(&mut self, slot: u16, generation: u16, peer: PeerAddress) -> Result<Post> {
        let Some(receiver) = self.receivers.get_mut(slot, generation) else {
            return Err(Cause::Stale(Noun::Connection).into());
        };
        let (mark, reply) = (receiver.mark, std::mem::take(&mut receiver.reply));
        let letter = Letter::Reply { receiver: slot, generation };
        let posted = self.post_message(FRONT_DOOR, peer, &reply, letter);
        if let Some(receiver) = self.receivers.get_mut(slot, generation) {
            receiver.reply = reply;
        }
        if let (Ok(Post::Accepted), Some(comm)) = (&posted, CommId::new(slot)) {
            self.answered.open(mark, comm);
        }
        Ok(posted.map_err(Cause::Unreachable)?)
    }

    /// Makes the receiving side of the connection that `request` asks for, and its reply.
    fn prepare(
        &mut self,
        request: &Request,
        max_group: usize,
    ) -> std::result::Result<Accepting, (RefusalReason, String)> {
        let local = |error: Error| (RefusalReason::Feature, error.to_string());
        let rails = self.rails().map_err(local)?;
        let pairing = Pairing::of(&request.rails, &rails).ok_or_else(|| {
            let ours = names(&rails);
            let theirs = names(&request.rails);
            (RefusalReason::Rails, format!("no rail in common: ours reach {ours}, yours {theirs}"))
        })?;
        let window = Window::for_groups_of(max_group);
        if !window.fits(request.window) {
            let text = format!("a mailbox of {} lines is too small", request.window.lines());
            return Err((RefusalReason::Feature, text));
        }
        let nonce = random();
        let peer = self.acquaintances.meet(&request.identity);
        let (ours, theirs, rail_count) =
            (self.capabilities, request.capabilities, pairing.data.len());
        let nonces = (request.nonce, nonce);
        let parameters =
            |comm| setup::settle(&ours, &theirs, window, rail_count, nonces, comm, false);
        // What can be refused is looked at before anything is taken.
        parameters(CommId::default()).map_err(local)?;
        let (slot, generation, lent) =
            self.insert_receiver(request, &pairing, parameters, peer.clone()).map_err(local)?;
        let reply_to = self.join(FRONT_DOOR, request.reply_to.as_bytes()).map_err(|error| {
            self.discard_receiver(slot, generation);
            local(error)
        })?;
        let comm = CommId::new(slot)
            .ok_or_else(|| (RefusalReason::Feature, "no comm id is left".to_owned()))?;
        let reply = Reply {
            connection: request.connection,
            comm,
            nonce,
            capabilities: self.capabilities,
            rails,
            pairing,
            fins: lent.fins,
            window,
            fin_only: false,
            eager: lent.eager,
            bundles: lent.bundles,
            identity: self.identity(),
        };
        let reply = reply.encode().map_err(|error| (RefusalReason::Feature, error.to_string()))?;
        if let Some(receiver) = self.receivers.get_mut(slot, generation) {
            receiver.reply = reply.into();
        }
        self.compare(&peer, &request.identity);
        Ok(Accepting { slot, generation, peer: reply_to, since: Instant::now() })
    }

    fn insert_receiver(
        &mut self,
        request: &Request,
        pairing: &Pairing,
        parameters: impl Fn(CommId) -> Result<FlowParameters>,
        peer: Peer,
    ) -> Result<(u16, u16, Lent)> {
        let full = Cause::Full { table: Table::Connections, count: CommId::COUNT.into() };
        let comm = self.receivers.upcoming().and_then(CommId::new).ok_or(full)?;
        let parameters = parameters(comm)?;
        let inject_bytes = self.capabilities.agree(&request.capabilities).rma_inject_bytes as usize;
        let mut flow = ReceiveFlow::new(parameters).map_err(Cause::from)?;
        flow.set_pace(proto::receive::Pace {
            adverts_wait: self.settings.advert_batching,
            busy_bytes: u64::from(self.device.speed_mbps) / 8 * BUSY_US,
            lone_done_turns: self.settings.lone_done_turns,
        });
        let shadow = self
            .slabs
            .take(&mut self.nics, parameters.format().bytes() / 8)
            .map_err(|error| self.no_memory(error))?;
        let fins = match self.slabs.take_quiet(&mut self.nics, proto::wire::FIN_PLACE_BYTES / 8) {
            Ok(fins) => fins,
            Err(error) => {
                self.slabs.release(&shadow);
                return Err(self.no_memory(error).into());
            }
        };
        let pair = control_pair(pairing, comm);
        let control = (usize::from(pair.receiver), usize::from(pair.sender));
        let data = pairing.data.iter().map(|pair| (pair.receiver.into(), pair.sender.into()));
        let joined = self.join_all(data, control, &request.rails, &request.mailbox);
        let (lanes, control) = joined.inspect_err(|_| {
            self.slabs.release(&shadow);
            self.slabs.release(&fins);
        })?;
        let ring = Ring { address: self.slabs.target(&fins), keys: self.slabs.keys(&fins) };
        let (inlet, eager) = self.lend_eager_ring(request.eager_bytes).unzip();
        let inlet = inlet.map(|ring| {
            flow.allow_eager();
            Inlet::new(ring)
        });
        let may_bundle = !parameters.sends_arrive_when_complete;
        let bundle_bytes = if may_bundle { request.bundle_bytes } else { 0 };
        let (bundles, bundle_ring) = self.lend_bundle_ring(bundle_bytes).unzip();
        if bundles.is_some() {
            flow.allow_bundles();
        }
        let rings = Rings { shadow, fins: Some(fins), inlet, bundles, control, inject_bytes };
        let receiver = Receiver::new(flow, rings, lanes, peer, request);
        let (mut generation, number) = (0, self.number);
        let slot = self.receivers.insert_with(|slot, current| {
            generation = current;
            let comm = Handle::new(HandleKind::Receiver, number, current, slot, 0);
            Box::new(receiver.named(comm.name()))
        });
        Ok((slot.ok_or(full)?, generation, Lent { fins: ring, eager, bundles: bundle_ring }))
    }

    /// An accept that could not be committed, or whose listener closed before: nobody knows of it.
    pub(in crate::endpoint) fn forget(&mut self, accepting: &Accepting) {
        self.nics[FRONT_DOOR].nic.leave(accepting.peer);
        self.discard_receiver(accepting.slot, accepting.generation);
    }

    fn discard_receiver(&mut self, slot: u16, generation: u16) {
        if let Some(mut receiver) = self.receivers.remove(slot, generation) {
            self.answered.forget(receiver.mark);
            self.leave(receiver.lanes(), receiver.control());
            receiver.release(&mut self.slabs);
        }
    }

    /// Says once that accept is waiting, and ends the wait.
    fn watch_accept(&mut self, slot: u16, generation: u16) -> Result<()> {
        let now = Instant::now();
        let (warn, bound, label) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let Some(listener) = self.listeners.get_mut(slot, generation) else { return Ok(()) };
        let waited = now.duration_since(*listener.waiting_since.get_or_insert(now));
        if waited > bound {
            let seconds = waited.as_secs();
            return Err(Cause::AcceptTimeout { device: label, seconds }.into());
        }
        if waited > warn && !listener.warned {
            listener.warned = true;
            log::info!(
                "accept on device {label} has waited {} s for a peer to connect",
                waited.as_secs()
            );
        }
        Ok(())
    }
}
