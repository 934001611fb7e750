//! Listen, connect, accept, and what arrives on the control rails meanwhile. Nothing here blocks.

use std::time::Instant;

use fabric::{FabricError, PeerAddress, Post};
use proto::codec::{Address, Name};
use proto::handshake::{HandshakeError, Identity, Message, RefusalReason, Ring, Side};
use proto::rails::{Pairing, Rail};
use proto::{
    Bye, CommId, ConnectionId, FlowParameters, RailPlan, ReceiveFlow, Refusal, Reply, Request,
    SendFlow,
};

use super::lanes::{ControlLane, Lane};
use super::notices::Notice;
use super::receiver::{Receiver, Rings};
use super::sender::Sender;
use super::{Endpoint, SenderState, random};
use crate::comm::listener::Listener;
use crate::comm::peer::Peer;
use crate::comm::setup::{self, Asking, Step};
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::plugin::{HANDLE_BYTES, differing};

/// The control rail that takes requests and replies. Byes travel on the connection's own.
const FRONT_DOOR: usize = 0;
/// The largest group of receives on a connection.
pub(super) const MAX_GROUP: u8 = 1;

/// Past so many peers, one that is not known gets no refusal: addresses in requests are anybody's, and each takes memory.
const REFUSED_PEERS_MAX: usize = 1 << 14;
/// The longest ring that a peer may lend us.
const RING_BYTES_MAX: u64 =
    (proto::limits::MAX_RING as u64 + 1) * 8 * proto::wire::MAX_LINE_WORDS as u64;

/// An accept that has begun: the connection is whole but for its reply, which is yet to be posted.
#[derive(Debug)]
pub(super) struct Accepting {
    slot: u16,
    generation: u16,
    reply: Vec<u8>,
    peer: PeerAddress,
    since: Instant,
}

impl Endpoint {
    /// Opens a listener, and writes the handle that lets a peer find it.
    pub(crate) fn listen(&mut self, handle: &mut [u8; HANDLE_BYTES]) -> Result<Handle> {
        let nonce = random();
        let control = self.front_door_name()?;
        let address_format =
            self.device.plan.rails.first().map_or(0, |rail| rail.info.address_format());
        let mut generation = 0;
        let slot = self.listeners.insert_with(|_, current| {
            generation = current;
            Listener::new(nonce)
        });
        let slot = slot.ok_or_else(|| {
            Error::new(
                Kind::System,
                format!("device {} has 65535 open listeners: close some", self.label()),
            )
        })?;
        let listener = id(slot, generation);
        *handle = proto::Handle { listener, nonce, control, address_format }.encode();
        Ok(Handle::new(HandleKind::Listener, self.number, generation, slot, 0))
    }

    /// Begins a connection, or goes on with the one that the handle remembers.
    pub(crate) fn connect(&mut self, handle: &mut [u8; HANDLE_BYTES]) -> Result<Option<Handle>> {
        self.check_alive()?;
        let scratch = proto::Handle::scratch(handle);
        let (slot, generation) = if scratch == [0; 16] {
            let begun = self.begin_connect(handle)?;
            proto::Handle::set_scratch(handle, self.scratch(begun));
            begun
        } else {
            self.resumed(scratch).ok_or_else(|| {
                Error::new(
                    Kind::InvalidArgument,
                    "connect was given a handle that another connection has used: pass a fresh copy of what listen wrote",
                )
            })?
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

    fn begin_connect(&mut self, handle: &[u8; HANDLE_BYTES]) -> Result<(u16, u16)> {
        let target = proto::Handle::decode(handle).map_err(|error| {
            let kind = match error {
                HandshakeError::Version { .. } => Kind::InvalidUsage,
                _ => Kind::InvalidArgument,
            };
            Error::new(kind, format!("connect was given a handle that is not usable: {error}; do all ranks run the same Ironrail?"))
        })?;
        let control = self.join(FRONT_DOOR, target.control.as_bytes())?;
        let format = proto::LineFormat::for_rails(self.nics.len());
        let mailbox = self.slabs.take(format.words()).map_err(|error| self.no_memory(&error))?;
        let full = || Error::new(Kind::System, "65535 connections are open on one endpoint");
        let slot = self.senders.upcoming().ok_or_else(full)?;
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
            window: Self::window(),
            max_group: MAX_GROUP,
            identity: self.identity(),
        };
        let bytes = request
            .encode()
            .map_err(|error| Error::new(Kind::Internal, format!("a request: {error}")))?;
        let asking = Asking::new(request, bytes, Instant::now());
        let state = Box::new(SenderState::Asking { asking, mailbox: Some(mailbox), control });
        self.senders.insert_with(|_, _| state).ok_or_else(full)?;
        Ok((slot, generation))
    }

    fn step_connect(&mut self, slot: u16, generation: u16) -> Result<Option<Handle>> {
        let now = Instant::now();
        let Some(SenderState::Asking { asking, control, .. }) =
            self.senders.get_mut(slot, generation).map(|state| &mut **state)
        else {
            return Err(Error::stale("connection"));
        };
        match asking.step(now) {
            Step::Open(reply) => return self.open_sender(slot, generation, &reply).map(Some),
            Step::Fail(error) => return Err(error),
            Step::Wait => {}
            Step::Post => {
                let (bytes, control) = (std::mem::take(&mut asking.bytes), *control);
                let posted = self.post_message(FRONT_DOOR, control, &bytes);
                let asking = self.asking(slot, generation)?;
                asking.bytes = bytes;
                match posted {
                    Ok(Post::Accepted) => asking.posted(),
                    Ok(Post::Again) => {}
                    Err(error) => return Err(unreachable_peer(&error)),
                }
            }
        }
        self.watch_connect(slot, generation, now)?;
        Ok(None)
    }

    fn asking(&mut self, slot: u16, generation: u16) -> Result<&mut Asking> {
        match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Asking { asking, .. }) => Ok(asking),
            _ => Err(Error::stale("connection")),
        }
    }

    /// Says once whom connect is waiting for, and ends the wait.
    fn watch_connect(&mut self, slot: u16, generation: u16, now: Instant) -> Result<()> {
        let (warn, bound, label) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label().to_owned());
        let asking = self.asking(slot, generation)?;
        let waited = now.duration_since(asking.started);
        if waited > bound {
            let sentence = format!(
                "connect on device {label}: no answer in {} s; is the peer alive, and do its interfaces reach ours? \
                 IRONRAIL_CONNECT_TIMEOUT_MS sets the bound",
                waited.as_secs()
            );
            return Err(Error::new(Kind::Remote, sentence));
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
            return Err(Error::new(Kind::Remote, "the peer paired rails that do not fit together"));
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
        if reply.window != Self::window() {
            return Err(Error::new(
                Kind::Remote,
                "the peer agreed on a window that was not asked for",
            ));
        }
        let lanes = reply.pairing.data.iter().map(|pair| {
            let nic = usize::from(pair.sender);
            let peer = self.join(nic, reply.rails[usize::from(pair.receiver)].data.as_bytes())?;
            Ok(Lane { nic, peer })
        });
        let lanes = lanes.collect::<Result<Box<[_]>>>()?;
        let pair = control_pair(&reply.pairing, reply.comm);
        let control = self.control_lane(
            usize::from(pair.sender),
            usize::from(pair.receiver),
            &reply.rails,
            &reply.fins,
        )?;
        let peer = setup::peer(&reply.identity);
        self.compare(&peer);
        let flow = SendFlow::new(parameters)
            .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let plan = RailPlan::equal(lanes.len(), self.settings.stripe_bytes_min as u64)
            .ok_or_else(|| Error::new(Kind::Internal, "a connection without rails"))?;
        log::debug!("connected to {peer} over {} data rails, {:?}", lanes.len(), parameters.path);
        let inject_bytes = self.capabilities.rma_inject_bytes;
        let Some(state) = self.senders.get_mut(slot, generation) else {
            return Err(Error::stale("connection"));
        };
        let SenderState::Asking { mailbox, .. } = &mut **state else {
            return Err(Error::stale("connection"));
        };
        let mailbox = mailbox
            .take()
            .ok_or_else(|| Error::new(Kind::Internal, "a connection without a mailbox"))?;
        **state = SenderState::Connected(Sender::new(
            flow,
            mailbox,
            lanes,
            control,
            plan,
            inject_bytes,
            peer,
        ));
        Ok(Handle::new(HandleKind::Sender, self.number, generation, slot, 0))
    }

    fn abandon_connect(&mut self, slot: u16, generation: u16) {
        let asking = self
            .senders
            .get(slot, generation)
            .is_some_and(|state| matches!(**state, SenderState::Asking { .. }));
        if asking {
            // The peer may have been given the mailbox, and write there: its memory is not handed on.
            self.senders.remove(slot, generation);
        }
    }

    /// Takes the next request of the listener. The comm is given out by the call that posted the reply.
    pub(crate) fn accept(&mut self, listener: Handle) -> Result<Option<Handle>> {
        self.check_alive()?;
        self.progress();
        let (slot, generation) = (listener.slot(), listener.generation());
        loop {
            let place = self
                .listeners
                .get_mut(slot, generation)
                .ok_or_else(|| Error::stale("listen comm"))?;
            if let Some(accepting) = place.accepting.take() {
                return self.commit(slot, generation, accepting);
            }
            let Some(request) = place.pop() else {
                self.watch_accept(slot, generation)?;
                return Ok(None);
            };
            match self.prepare(&request) {
                Ok(accepting) => {
                    let place = self
                        .listeners
                        .get_mut(slot, generation)
                        .ok_or_else(|| Error::stale("listen comm"))?;
                    place.accepting = Some(accepting);
                }
                Err((reason, text)) => {
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
        match self.post_message(FRONT_DOOR, accepting.peer, &accepting.reply) {
            Ok(Post::Accepted) => {
                let Accepting { slot: comm, generation: of_comm, .. } = accepting;
                if let Some(place) = self.listeners.get_mut(slot, generation) {
                    place.waiting_since = None;
                }
                Ok(Some(Handle::new(HandleKind::Receiver, self.number, of_comm, comm, 0)))
            }
            Ok(Post::Again) if accepting.since.elapsed() <= self.settings.connect_timeout => {
                if let Some(place) = self.listeners.get_mut(slot, generation) {
                    place.accepting = Some(accepting);
                }
                Ok(None)
            }
            Ok(Post::Again) => {
                self.discard_receiver(accepting.slot, accepting.generation);
                let sentence = format!(
                    "accept on device {}: the peer that asked cannot be reached; check that its interfaces and ours reach each other",
                    self.label()
                );
                Err(Error::new(Kind::Remote, sentence))
            }
            Err(error) => {
                self.discard_receiver(accepting.slot, accepting.generation);
                Err(unreachable_peer(&error))
            }
        }
    }

    /// Makes the receiving side of the connection that `request` asks for, and its reply.
    fn prepare(
        &mut self,
        request: &Request,
    ) -> std::result::Result<Accepting, (RefusalReason, String)> {
        let local = |error: Error| (RefusalReason::Feature, error.sentence.clone());
        let rails = self.rails().map_err(local)?;
        let pairing = Pairing::of(&request.rails, &rails).ok_or_else(|| {
            let ours = names(&rails);
            let theirs = names(&request.rails);
            (RefusalReason::Rails, format!("no rail in common: ours reach {ours}, yours {theirs}"))
        })?;
        if request.window != Self::window() || request.max_group != MAX_GROUP {
            return Err((RefusalReason::Feature, "the windows of both ends differ".to_owned()));
        }
        let nonce = random();
        let peer = setup::peer(&request.identity);
        let (ours, theirs, rail_count) =
            (self.capabilities, request.capabilities, pairing.data.len());
        let nonces = (request.nonce, nonce);
        let parameters =
            |comm| setup::settle(&ours, &theirs, Self::window(), rail_count, nonces, comm, false);
        // What can be refused is looked at before anything is taken.
        parameters(CommId::default()).map_err(local)?;
        let reply_to = self.join(FRONT_DOOR, request.reply_to.as_bytes()).map_err(local)?;
        let (slot, generation, fins) =
            self.insert_receiver(request, &pairing, parameters, peer.clone()).map_err(local)?;
        let comm = CommId::new(slot)
            .ok_or_else(|| (RefusalReason::Feature, "no comm id is left".to_owned()))?;
        let reply = Reply {
            connection: request.connection,
            comm,
            nonce,
            capabilities: self.capabilities,
            rails,
            pairing,
            fins,
            window: Self::window(),
            fin_only: false,
            identity: self.identity(),
        };
        let reply = reply.encode().map_err(|error| (RefusalReason::Feature, error.to_string()))?;
        self.compare(&peer);
        Ok(Accepting { slot, generation, reply, peer: reply_to, since: Instant::now() })
    }

    fn insert_receiver(
        &mut self,
        request: &Request,
        pairing: &Pairing,
        parameters: impl Fn(CommId) -> Result<FlowParameters>,
        peer: Peer,
    ) -> Result<(u16, u16, Ring)> {
        let full = || {
            Error::new(
                Kind::System,
                format!("{} connections are open on one endpoint", CommId::COUNT),
            )
        };
        let comm = self.receivers.upcoming().and_then(CommId::new).ok_or_else(full)?;
        let parameters = parameters(comm)?;
        let lanes = pairing.data.iter().map(|pair| {
            let nic = usize::from(pair.receiver);
            let peer = self.join(nic, request.rails[usize::from(pair.sender)].data.as_bytes())?;
            Ok(Lane { nic, peer })
        });
        let lanes = lanes.collect::<Result<Box<[_]>>>()?;
        let pair = control_pair(pairing, comm);
        let (ours, theirs) = (usize::from(pair.receiver), usize::from(pair.sender));
        let control = self.control_lane(ours, theirs, &request.rails, &request.mailbox)?;
        let inject_bytes = self.capabilities.agree(&request.capabilities).rma_inject_bytes as usize;
        let mut flow = ReceiveFlow::new(parameters)
            .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        flow.set_pace(proto::receive::Pace {
            adverts_wait: self.settings.advert_batching,
            lone_done_turns: self.settings.lone_done_turns,
        });
        let shadow =
            self.slabs.take(parameters.format().words()).map_err(|error| self.no_memory(&error))?;
        let fins = match self.slabs.take_quiet(proto::wire::FIN_PLACE_BYTES / 8) {
            Ok(fins) => fins,
            Err(error) => {
                self.slabs.release(&shadow);
                return Err(self.no_memory(&error));
            }
        };
        let ring = Ring { address: self.slabs.target(&fins), keys: self.slabs.keys(&fins) };
        let rings = Rings { shadow, fins: Some(fins), control, inject_bytes };
        let receiver = Receiver::new(flow, rings, lanes, peer, request.connection);
        let mut generation = 0;
        let slot = self.receivers.insert_with(|_, current| {
            generation = current;
            Box::new(receiver)
        });
        Ok((slot.ok_or_else(full)?, generation, ring))
    }

    /// An accept whose listener closed before its reply was posted.
    pub(super) fn forget(&mut self, accepting: &Accepting) {
        self.discard_receiver(accepting.slot, accepting.generation);
    }

    /// An accept that could not be committed: nobody knows of it.
    fn discard_receiver(&mut self, slot: u16, generation: u16) {
        if let Some(mut receiver) = self.receivers.remove(slot, generation) {
            receiver.release(&mut self.slabs);
        }
    }

    /// Says once that accept is waiting, and ends the wait.
    fn watch_accept(&mut self, slot: u16, generation: u16) -> Result<()> {
        let now = Instant::now();
        let (warn, bound, label) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label().to_owned());
        let Some(listener) = self.listeners.get_mut(slot, generation) else { return Ok(()) };
        let waited = now.duration_since(*listener.waiting_since.get_or_insert(now));
        if waited > bound {
            let sentence = format!(
                "accept on device {label}: nobody connected in {} s; is the peer alive? \
                 IRONRAIL_CONNECT_TIMEOUT_MS sets the bound",
                waited.as_secs()
            );
            return Err(Error::new(Kind::Remote, sentence));
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

    /// A message has arrived on a control rail: bytes of anybody's.
    pub(super) fn heard(&mut self, nic: usize, bytes: &[u8]) {
        match Message::decode(bytes) {
            Ok(Message::Request(request)) => self.heard_request(*request),
            Ok(Message::Bye(bye)) => self.heard_bye(&bye),
            Ok(Message::Reply(reply)) => {
                let connection = reply.connection;
                self.heard_answer(connection, Message::Reply(reply));
            }
            Ok(Message::Refusal(refusal)) => {
                let connection = refusal.connection;
                self.heard_answer(connection, Message::Refusal(refusal));
            }
            Err(HandshakeError::Version { theirs, reply: Some((connection, address)) }) => {
                let text = format!(
                    "it speaks protocol version {}, and was asked in version {theirs}",
                    proto::codec::VERSION
                );
                self.refuse(&address, connection, RefusalReason::Version, text);
            }
            Err(error) => {
                self.counters.garbage += 1;
                log::debug!(
                    "{}: a message of {} bytes is dropped: {error}",
                    self.nics[nic].label,
                    bytes.len()
                );
            }
        }
    }

    fn heard_request(&mut self, request: Request) {
        let (slot, generation) = parts(request.listener);
        let job = self.job();
        let Some(listener) = self.listeners.get_mut(slot, generation) else {
            // Closed, or one that lost the race for a shared connection.
            self.counters.late_messages += 1;
            return;
        };
        let (reply_to, connection) = (request.reply_to, request.connection);
        if listener.nonce ^ job != request.listener_nonce {
            let text = "the request is for another job or an earlier listener; are IRONRAIL_JOB and the handles of this run?";
            self.refuse(&reply_to, connection, RefusalReason::Nonce, text.to_owned());
        } else if !listener.push(request) {
            self.refuse(
                &reply_to,
                connection,
                RefusalReason::Busy,
                "128 requests wait on one listener".to_owned(),
            );
        }
    }

    fn heard_answer(&mut self, connection: ConnectionId, answer: Message) {
        let (slot, generation) = parts(connection.0);
        let taken = match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Asking { asking, .. }) => asking.answered(answer, Instant::now()),
            _ => false,
        };
        if !taken {
            self.counters.late_messages += 1;
        }
    }

    fn refuse(
        &mut self,
        to: &Address,
        connection: ConnectionId,
        reason: RefusalReason,
        text: String,
    ) {
        log::debug!("device {}: a connection is refused ({reason:?}): {text}", self.label());
        let (known, is_known) = self.nics[FRONT_DOOR].peers.knows(to.as_bytes());
        if !is_known && known >= REFUSED_PEERS_MAX {
            self.counters.late_messages += 1;
            return;
        }
        let refusal = Refusal { connection, reason, text };
        let (Ok(bytes), Ok(peer)) = (refusal.encode(), self.join(FRONT_DOOR, to.as_bytes())) else {
            return;
        };
        if !self.notices.push(Notice { nic: FRONT_DOOR, peer, bytes }) {
            self.counters.late_messages += 1;
        }
    }

    /// Tells the peer that this end of the connection is closed.
    pub(super) fn say_bye(
        &mut self,
        lane: ControlLane,
        connection: ConnectionId,
        comm: CommId,
        nonce: u64,
        from: Side,
    ) {
        match (Bye { connection, comm, nonce, from }).encode() {
            Ok(bytes) => drop(self.notices.push(Notice { nic: lane.nic, peer: lane.peer, bytes })),
            Err(error) => log::debug!("a bye was not made: {error}"),
        }
    }

    /// A difference between the ends that should not be: one WARN that names it.
    fn compare(&self, peer: &Peer) {
        let names = differing(self.settings.fingerprint(), peer.settings);
        if !names.is_empty() {
            log::warn!(
                "{peer} has other values than we have for {}: set them alike on all ranks",
                names.join(", ")
            );
        }
    }

    fn rails(&self) -> Result<Vec<Rail>> {
        let address = |name: &[u8]| {
            let too_long = || {
                Error::new(
                    Kind::System,
                    format!("a provider's address of {} bytes does not fit", name.len()),
                )
            };
            Address::new(name).ok_or_else(too_long)
        };
        let rails = (0..).zip(&self.nics).map(|(index, nic)| {
            let control = nic.control.as_ref().map(|control| address(&control.name)).transpose()?;
            Ok(Rail {
                fabric: Name::cut(&nic.fabric_name),
                nic: index,
                data: address(&nic.data_name)?,
                control,
            })
        });
        rails.collect()
    }

    fn front_door_name(&self) -> Result<Address> {
        let name = self
            .nics
            .first()
            .and_then(|nic| nic.control.as_ref())
            .map(|control| control.name.as_slice());
        let address = name.and_then(Address::new);
        address.ok_or_else(|| {
            Error::new(Kind::System, "the provider's address does not fit into NCCL's handle")
        })
    }

    fn control_lane(
        &mut self,
        ours: usize,
        theirs: usize,
        rails: &[Rail],
        ring: &Ring,
    ) -> Result<ControlLane> {
        let wrong =
            || Error::new(Kind::Remote, "the peer named a control rail that it does not have");
        let rail = rails.get(theirs).and_then(|rail| rail.control).ok_or_else(wrong)?;
        // Keys come in the order of the owner's control rails, which are its first NICs.
        let index = rails[..theirs].iter().filter(|rail| rail.control.is_some()).count();
        let key = *ring.keys.get(index).ok_or_else(wrong)?;
        if ring.address.checked_add(RING_BYTES_MAX).is_none() {
            return Err(Error::new(Kind::Remote, "the peer named a ring past the address space"));
        }
        let peer = self.join(ours, rail.as_bytes())?;
        Ok(ControlLane { nic: ours, peer, target: ring.address, key })
    }

    fn join(&mut self, nic: usize, name: &[u8]) -> Result<PeerAddress> {
        let rail = self
            .nics
            .get_mut(nic)
            .ok_or_else(|| Error::new(Kind::Remote, "the peer named a rail that is not there"))?;
        rail.peers.join(name).map_err(|error| {
            Error::new(
                Kind::Remote,
                format!("{} cannot use the peer's address: {error}", rail.label),
            )
        })
    }

    fn identity(&self) -> Identity {
        let version = self.device.libfabric_version();
        Identity {
            host: Name::cut(self.device.host()),
            process: std::process::id(),
            provider: Name::cut(
                self.device.plan.rails.first().map_or("", |rail| rail.info.provider()),
            ),
            libfabric_version: u32::from(version.major) << 16 | u32::from(version.minor),
            settings: self.settings.fingerprint(),
        }
    }

    /// What a request for another job does not know.
    fn job(&self) -> u64 {
        let bytes = self.settings.job.bytes();
        bytes.fold(0, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(29)
        })
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

    fn check_alive(&mut self) -> Result<()> {
        match &mut self.failure {
            Some(failure) => Err(super::sender::repeated(failure)),
            None => Ok(()),
        }
    }

    fn no_memory(&self, error: &FabricError) -> Error {
        Error::new(
            Kind::System,
            format!("no control memory for a connection on device {}: {error}", self.label()),
        )
    }
}

/// All control writes of a connection take one rail, so that a done cannot overtake a later one; connections spread.
fn control_pair(pairing: &Pairing, comm: CommId) -> proto::rails::RailPair {
    pairing.control[usize::from(comm.get()) % pairing.control.len()]
}

pub(super) fn id(slot: u16, generation: u16) -> u64 {
    u64::from(generation) << 16 | u64::from(slot)
}

#[expect(clippy::cast_possible_truncation, reason = "the fields that `id` made")]
pub(super) fn parts(id: u64) -> (u16, u16) {
    (id as u16, (id >> 16) as u16)
}

fn names(rails: &[Rail]) -> String {
    rails.iter().map(|rail| rail.fabric.to_text()).collect::<Vec<_>>().join(", ")
}

fn unreachable_peer(error: &FabricError) -> Error {
    Error::new(
        Kind::Remote,
        format!(
            "the peer cannot be reached: {error}; check that its interfaces and ours reach each other"
        ),
    )
}
