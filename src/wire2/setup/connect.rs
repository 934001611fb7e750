//! Connect: meets the peer, asks its listener, and opens the sending side with the answer.

use proto::wire2::frame::Refusal;
use proto::wire2::setup::{Handle as WireHandle, Opening, Role, Seat, Settling, Step, refusal};
use proto::wire2::{Connection, Moment, Slot};

use super::super::Endpoint;
use super::super::comms::{Comm, Side};
use super::super::failures::repeated;
use super::super::peers::{Credential, Peer};
use super::super::prove::{Mac, of_job, random_number};
use super::FRONT_DOOR;
use crate::error::{Bug, Cause, Error, Noun, Result, SetupError, Table};
use crate::handle::{Handle, HandleKind};
use crate::types::HANDLE_BYTES;

/// A connect on its way.
#[derive(Debug)]
pub(in crate::endpoint) struct PendingConnect {
    peer: usize,
    credential: Credential,
    began: Moment,
    warned: bool,
    /// The slot of the connection, once the peer is known.
    slot: Option<Slot>,
    /// NCCL asks for it no more: what comes of it is closed.
    abandoned: bool,
}

impl Endpoint {
    /// Begins a connection, or goes on with the one that the handle remembers. `None`: not yet; a poll was made.
    pub(crate) fn connect(
        &mut self,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Handle>, SetupError> {
        self.check_alive()?;
        let scratch = WireHandle::scratch(handle);
        if !self.settled {
            self.progress();
            if !self.is_settled()? {
                return Ok(None);
            }
        }
        let now = self.now();
        let (slot, generation) = if scratch == [0; 16] {
            let begun = self.begin_connect(handle, now)?;
            self.tenants.made(self.connect_handle(begun));
            WireHandle::set_scratch(handle, self.scratch(begun));
            begun
        } else {
            self.resumed(scratch).ok_or(Cause::UsedHandle)?
        };
        self.progress_at(now);
        let answer = self.step_connect((slot, generation), now);
        if !matches!(answer, Ok(None)) {
            WireHandle::set_scratch(handle, [0; 16]);
            self.tenants.closed(self.connect_handle((slot, generation)));
        }
        if answer.is_err() {
            self.abandon_connect((slot, generation));
        }
        answer.map_err(SetupError::from)
    }

    fn begin_connect(
        &mut self,
        handle: &[u8; HANDLE_BYTES],
        now: Moment,
    ) -> Result<(u16, u16), SetupError> {
        let target = WireHandle::decode(handle).map_err(SetupError::WireHandle)?;
        let role = Role::Connects;
        let half = (target.endpoint == self.hands.id).then_some(role);
        let secret = of_job(target.secret, &self.settings.job);
        let credential = Credential { listener: target.listener, role, secret };
        let peer = match self.hands.find_peer(target.endpoint, half) {
            Some(peer) => peer,
            None => {
                let door = self.lane(FRONT_DOOR, target.control.as_bytes())?;
                let nonce = random_number().map_err(|_| Cause::NoRandom)?;
                let peer = Peer::new(target.endpoint, half, nonce, credential, Some(door));
                self.hands.peers.push(peer);
                self.hands.peers.len() - 1
            }
        };
        let pending = PendingConnect {
            peer,
            credential,
            began: now,
            warned: false,
            slot: None,
            abandoned: false,
        };
        let mut generation = 0;
        let slot = self.connects.insert_with(|_, current| {
            generation = current;
            pending
        });
        let full = Cause::Full { table: Table::Connections, count: u16::MAX.into() };
        Ok((slot.ok_or(full)?, generation))
    }

    fn step_connect(&mut self, at: (u16, u16), now: Moment) -> Result<Option<Handle>> {
        let stale = Cause::Stale(Noun::Connection);
        let pending = self.connects.get(at.0, at.1).ok_or(stale)?;
        let (peer, slot) = (pending.peer, pending.slot);
        if let Some(failure) = &mut self.hands.peers[peer].failure {
            return Err(repeated(failure));
        }
        match slot {
            None => self.take_slot(at, now)?,
            Some(slot) => {
                if let Some(handle) = self.step_opening(at, slot, now)? {
                    return Ok(Some(handle));
                }
            }
        }
        self.watch_connect(at, now)?;
        Ok(None)
    }

    /// Once the peer is known: a slot for the connection, and its OPEN.
    fn take_slot(&mut self, at: (u16, u16), now: Moment) -> Result<()> {
        let Some(pending) = self.connects.get(at.0, at.1) else { return Ok(()) };
        let (index, credential) = (pending.peer, pending.credential);
        let Some(met) = &self.hands.peers[index].met else { return self.introduce(index, now) };
        let (channel, settling) = (met.channel, self.settling(met.agreed, met.data.len()));
        let full = Cause::Full { table: Table::Connections, count: Slot::COUNT as u32 };
        let name = self.core.vacant().ok_or(full)?;
        // The sender takes groups of any size: the receiver says whether there are any.
        let features = self.features(true);
        let opening = Opening::new(name, credential.listener, credential.secret, features);
        self.seat(name.slot, channel, name.generation);
        if !self.core.connect(name, channel, Seat::asking(opening, settling), now) {
            return Err(self.channel_failure(channel));
        }
        if let Some(pending) = self.connects.get_mut(at.0, at.1) {
            pending.slot = Some(name.slot);
        }
        self.step_opening(at, name.slot, now).map(drop)
    }

    /// What both ends of a channel make of a connection.
    pub(super) fn settling(&self, agreed: proto::Capabilities, rails: usize) -> Settling {
        Settling {
            agreed,
            rails,
            shared_from: self.settings.stripe_bytes_min as u64,
            inline_host: self.inline_host(),
        }
    }

    fn step_opening(&mut self, at: (u16, u16), slot: Slot, now: Moment) -> Result<Option<Handle>> {
        let stepped = self.core.with(&mut self.hands, slot, now, |seat, _| {
            if seat.is_asking() { Some(seat.step(now)) } else { None }
        });
        match stepped {
            None => Err(Cause::Stale(Noun::Connection).into()),
            Some(Some(Step::Open)) => {
                self.ask_to_open(slot, now);
                Ok(None)
            }
            Some(Some(step)) => match refusal(step) {
                Some(why) => Err(refused(why)),
                None => Ok(None),
            },
            Some(None) => self.opened(at, slot).map(Some),
        }
    }

    fn ask_to_open(&mut self, slot: Slot, now: Moment) {
        let (channel, _) = self.hands.seats[slot.index()];
        let nonces = self.hands.peer_of(channel).nonces();
        self.core.with(&mut self.hands, slot, now, |seat, _| {
            if let Some(opening) = seat.opening() {
                let open = opening.open(nonces, &Mac);
                seat.ask(open);
            }
        });
    }

    /// The connection is answered.
    fn opened(&mut self, (at, generation): (u16, u16), slot: Slot) -> Result<Handle> {
        let (channel, _) = self.hands.seats[slot.index()];
        if self.core.connection(slot).and_then(Seat::flow).is_none() {
            return Err(self.channel_failure(channel));
        }
        self.connects.remove(at, generation);
        let generation = self.comms.put(slot, Comm::new(Side::Send, channel));
        let slot = super::super::comms::low16(slot.index() as u32);
        let comm = Handle::new(HandleKind::Sender, self.number, generation, slot, 0);
        self.tenants.made(comm);
        Ok(comm)
    }

    /// NCCL asks no more: what comes of it is closed.
    pub(in crate::endpoint) fn abandon_connect(&mut self, (at, generation): (u16, u16)) {
        let Some(pending) = self.connects.get_mut(at, generation) else { return };
        pending.abandoned = true;
        if pending.slot.is_none() {
            self.connects.remove(at, generation);
        } else {
            self.closing += 1;
        }
    }

    /// Connects that were given up: closed as soon as they are answered.
    pub(in crate::endpoint) fn release_abandoned(&mut self, now: Moment) {
        for (at, generation) in self.connects.keys() {
            let pending = self.connects.get(at, generation).filter(|pending| pending.abandoned);
            let Some(slot) = pending.and_then(|pending| pending.slot) else { continue };
            let seat = self.core.connection(slot);
            if seat.is_some_and(|seat| seat.is_asking() && !has_lost(seat)) {
                continue;
            }
            self.connects.remove(at, generation);
            let (channel, _) = self.hands.seats[slot.index()];
            let mut comm = Comm::new(Side::Send, channel);
            comm.is_closing = true;
            self.comms.put(slot, comm);
            self.core.with(&mut self.hands, slot, now, |seat, account| match seat.flow_mut() {
                Some(flow) => flow.close(account),
                None => seat.ended(true, now),
            });
        }
    }

    /// Says once whom connect is waiting for, and ends the wait.
    fn watch_connect(&mut self, at: (u16, u16), now: Moment) -> Result<()> {
        let (warn, bound, device) =
            (self.settings.connect_warn, self.settings.connect_timeout, self.label());
        let Some(pending) = self.connects.get_mut(at.0, at.1) else { return Ok(()) };
        let waited = now.since(pending.began);
        if waited > bound {
            return Err(Cause::ConnectTimeout { device, seconds: waited.as_secs() }.into());
        }
        if waited > warn && !pending.warned {
            pending.warned = true;
            log::info!(
                "connect on device {device} has waited {} s for the peer's answer",
                waited.as_secs()
            );
        }
        Ok(())
    }

    pub(in crate::endpoint) fn seat(
        &mut self,
        slot: Slot,
        channel: proto::wire2::ChannelId,
        generation: proto::wire2::Generation,
    ) {
        let seats = &mut self.hands.seats;
        while seats.len() <= slot.index() {
            seats.push((channel, generation));
        }
        seats[slot.index()] = (channel, generation);
    }

    /// What connect keeps in the handle: our endpoint, and the place of the pending connect.
    fn scratch(&self, (slot, generation): (u16, u16)) -> [u8; 16] {
        let mut scratch = [0; 16];
        scratch[..8].copy_from_slice(&self.connect_handle((slot, generation)).bits().to_le_bytes());
        scratch[8..].copy_from_slice(&self.hands.id.0[..8]);
        scratch
    }

    fn resumed(&self, scratch: [u8; 16]) -> Option<(u16, u16)> {
        let (bits, id) = scratch.split_first_chunk::<8>()?;
        let handle = Handle::from_bits(u64::from_le_bytes(*bits))?;
        let at = (handle.slot(), handle.generation());
        let ours = id == &self.hands.id.0[..8] && handle == self.connect_handle(at);
        (ours && self.connects.get(at.0, at.1).is_some_and(|pending| !pending.abandoned))
            .then_some(at)
    }

    pub(in crate::endpoint) fn connect_handle(&self, (slot, generation): (u16, u16)) -> Handle {
        Handle::new(HandleKind::Connect, self.number, generation, slot, 0)
    }
}

/// Whether its listener was closed, or took another: no answer comes.
fn has_lost(seat: &Seat) -> bool {
    seat.opening().is_some_and(Opening::has_lost)
}

#[cold]
fn refused(why: Refusal) -> Error {
    match why {
        Refusal::Closed | Refusal::Busy => Cause::Bug(Bug::SlotTaken).into(),
        why => Cause::Refused(why).into(),
    }
}
