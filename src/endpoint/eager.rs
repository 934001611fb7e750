//! Short messages that travel before their receives are known: from a staging ring into the ring that the receiver lent, and
//! from there, by a copy, to where the receive begins. docs/protocol.md §10.
//!
//! A receiver looks into its ring when a receive of the connection was asked for in vain, and when the connection ends. All of it
//! is beside the common case: a message whose receive is advertised never comes here.

use std::array;

use fabric::{Delivery, HostBytes, Post, RemoteBytes, RemoteKey, Write};
use proto::eager::{EAGER_BYTES_MAX, EAGER_PLACE_WORDS, FIRST_PAYLOAD, words_of as eager_words};
use proto::handshake::Ring;
use proto::{Cease, Ceased, CommId, EagerWrite, LineSource, SendPoll};

use super::copies::{Copied, PAYLOAD_WORDS};
use super::lanes::ControlLane;
use super::memory::{Short, Unit};
use super::operation::Purpose;
use super::receiver::Receiver;
use super::sender::{self, Sender, rail_failed, repeated};
use super::setup::parts;
use super::{Endpoint, Look, SenderState, open_sender, pick};
use crate::error::{Cause, Noun, Result};
use crate::handle::{Handle, HandleKind};
use crate::types::{Poll, Receive};

/// The longest message, as a place of the ring has room for it.
const BYTES_MAX: usize = (EAGER_PLACE_WORDS - FIRST_PAYLOAD) * 8;
const _: () = assert!(BYTES_MAX as u64 >= EAGER_BYTES_MAX);
/// The ring of one connection, at either end.
pub(super) const RING_BYTES: usize = proto::eager::Unplaced::MAX * EAGER_PLACE_WORDS * 8;

/// What a sender writes eager messages from, and where to.
#[derive(Debug)]
pub(super) struct Outlet {
    /// For messages that are not injected: untouched where all are.
    pub(super) staging: Unit,
    target: u64,
    key: u64,
    inject_bytes: usize,
}

/// Where a receiver's eager messages come.
#[derive(Debug)]
pub(super) struct Inlet {
    pub(super) ring: Unit,
    /// That messages are cut to their receives is said once.
    cut_warned: bool,
}

impl Inlet {
    pub(super) fn new(ring: Unit) -> Self {
        Self { ring, cut_warned: false }
    }
}

impl Endpoint {
    /// Sends a message whose receive is not advertised, if it may travel so.
    #[cold]
    #[inline(never)]
    pub(super) fn send_eagerly(
        &mut self,
        comm: Handle,
        outgoing: &Receive,
    ) -> Result<Option<Handle>> {
        let Receive { address, len, tag, region } = *outgoing;
        let Self { senders, regions, landing, nics, slabs, eager_scratch, counters, .. } = self;
        let (slot, generation) = (comm.slot(), comm.generation());
        let sender = open_sender(senders.get_mut(slot, generation), Noun::SendComm)?;
        if !sender.may_send_eagerly(len as u64) {
            return Ok(None);
        }
        let (region, address) = pick(regions, landing, region, address, len)?;
        // Memory that the processor cannot read takes the other way.
        let Some(bytes) = region.host_bytes(address, len) else { return Ok(None) };
        let mut means = sender::Means { nics, slabs, slot };
        let number = sender.send_eagerly(&mut means, eager_scratch, bytes, tag)?;
        let Some(number) = number else { return Ok(None) };
        counters.eager_sends += 1;
        let request = sender::low16(number);
        let kind = HandleKind::EagerSendRequest;
        Ok(Some(Handle::new(kind, self.number, generation, slot, request)))
    }

    #[inline(never)]
    pub(super) fn test_eager(
        &mut self,
        request: Handle,
        sizes: &mut [usize; 8],
        look: Look,
    ) -> Result<Poll> {
        let (slot, generation) = (request.slot(), request.generation());
        let sender = open_sender(self.senders.get_mut(slot, generation), Noun::Request)?;
        Ok(match sender.test_eager(request.line(), look)? {
            Some(len) => {
                sizes[0] = usize::try_from(len).unwrap_or(usize::MAX);
                Poll::Done { sizes: 1 }
            }
            None => Poll::Pending,
        })
    }

    /// Whether eager messages are yet to come to a connection that is over at both ends: its ring is not to be handed on before.
    #[cold]
    pub(super) fn awaits_eager(&mut self, slot: u16) -> bool {
        self.take_copies(slot);
        self.receivers.at_mut(slot).is_some_and(|receiver| receiver.is_eager_due())
    }

    /// The caller wants receives told early, for which no eager message may be on its way.
    #[cold]
    pub(super) fn say_cease(&mut self, slot: u16) {
        let Some(receiver) = self.receivers.at_mut(slot) else { return };
        let (connection, nonce, lane) = (receiver.connection, receiver.nonce(), receiver.control());
        let Some(comm) = CommId::new(slot) else { return };
        if let Ok(bytes) = (Cease { connection, comm, nonce }).encode() {
            self.say(lane, bytes);
        }
    }

    /// A receiver wants no eager messages any more, and is told how many there were.
    pub(super) fn heard_cease(&mut self, cease: &Cease) {
        let Cease { connection, comm, nonce } = *cease;
        let (slot, generation) = parts(connection.0);
        match self.senders.get_mut(slot, generation).map(|state| &mut **state) {
            Some(SenderState::Connected(sender)) if sender.nonce() == nonce => {
                let (eager_end, lane) = (sender.cease_eager(), sender.control());
                self.say_ceased(lane, &Ceased { connection, comm, nonce, eager_end });
            }
            // Its reply was not read yet.
            Some(SenderState::Asking { asking, .. }) => asking.cease(nonce),
            _ => self.counters.late_messages += 1,
        }
    }

    pub(super) fn say_ceased(&mut self, lane: ControlLane, ceased: &Ceased) {
        if let Ok(bytes) = ceased.encode() {
            self.say(lane, bytes);
        }
    }

    pub(super) fn heard_ceased(&mut self, ceased: &Ceased) {
        match self.receivers.at_mut(ceased.comm.get()) {
            Some(receiver) if receiver.nonce() == ceased.nonce => {
                receiver.eager_ends(ceased.eager_end);
            }
            _ => self.counters.late_messages += 1,
        }
    }

    /// What eager messages of a new connection are written from, if they may be.
    pub(super) fn eager_outlet(&mut self, target: u64, key: u64) -> Option<Outlet> {
        let inject_bytes = self.capabilities.rma_inject_bytes as usize;
        if self.eager_scratch.is_none() {
            self.eager_scratch =
                self.slabs.take_short(&mut self.nics, Short::Eager, EAGER_PLACE_WORDS);
        }
        let staging = self.slabs.take_short(&mut self.nics, Short::Eager, EAGER_PLACE_WORDS)?;
        Some(Outlet { staging, target, key, inject_bytes })
    }

    /// A ring for the eager messages of a new connection, and how its sender names it. None where there are none.
    pub(super) fn lend_eager_ring(&mut self, eager_bytes: u32) -> Option<(Unit, Ring)> {
        // Which receive such a message is for is known when it is there, and no copy of ours reaches a GPU.
        let copies = !self.device.gpu_access.is_direct();
        if eager_bytes == 0 || self.settings.eager_bytes_max == 0 || !copies {
            return None;
        }
        let unit = self.slabs.take_short(&mut self.nics, Short::Eager, EAGER_PLACE_WORDS)?;
        let ring = Ring { address: self.slabs.target(&unit), keys: self.slabs.keys(&unit) };
        Some((unit, ring))
    }
}

impl Sender {
    fn may_send_eagerly(&self, len: u64) -> bool {
        self.outlet.is_some() && !self.ending.blocked && self.flow.may_send_eagerly(len)
    }

    /// Writes a message into the receiver's ring: its number. None: not now, and nothing has changed.
    fn send_eagerly(
        &mut self,
        means: &mut sender::Means<'_>,
        scratch: &mut Option<Unit>,
        bytes: HostBytes<'_>,
        tag: i32,
    ) -> Result<Option<u32>> {
        if let Some(failure) = &mut self.failure {
            return Err(repeated(failure));
        }
        let Some(outlet) = &mut self.outlet else { return Ok(None) };
        let mut payload = [0; BYTES_MAX];
        let Some(payload) = payload.get_mut(..bytes.len()) else { return Ok(None) };
        bytes.copy_to(payload);
        let may_inject = !self.flow.parameters().sends_arrive_when_complete;
        let injects = may_inject && eager_words(bytes.len()) * 8 <= outlet.inject_bytes;
        let staging = match scratch {
            Some(scratch) if injects => scratch,
            _ => &mut outlet.staging,
        };
        let packed = self.flow.pack_eagerly(&self.mailbox, staging, tag, payload);
        let Some(write) = packed else { return Ok(None) };
        let scratch = scratch.as_ref().filter(|_| injects);
        match self.write_eager(means, scratch, write) {
            Ok(Some(completes)) => {
                self.flow.eager_posted(write, completes);
                Ok(Some(write.number))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.fail(error);
                Err(error)
            }
        }
    }

    /// Whether the write will complete; none: it was refused.
    fn write_eager(
        &mut self,
        means: &mut sender::Means<'_>,
        scratch: Option<&Unit>,
        write: EagerWrite,
    ) -> Result<Option<bool>> {
        let Some(outlet) = &self.outlet else { return Ok(None) };
        let ControlLane { nic, peer, .. } = self.control;
        let address = outlet.target + u64::from(write.place) * (EAGER_PLACE_WORDS as u64 * 8);
        let remote = RemoteBytes { address, key: RemoteKey::from_wire(outlet.key) };
        let rail = &mut means.nics[nic].nic;
        let (posted, completes) = if let Some(scratch) = scratch {
            let local = means.slabs.host_words(scratch, write.place, write.words);
            let Some(local) = local else { return Ok(None) };
            (rail.inject_control(local, remote, peer), false)
        } else {
            let local = means.slabs.local_words(nic, &outlet.staging, write.place, write.words);
            let Some(local) = local else { return Ok(None) };
            let purpose = Purpose::Eager { sender: means.slot, number: write.number };
            let write = Write { local, remote, peer, delivery: Delivery::Default };
            let posted = rail.write_control(&write, purpose.token());
            self.in_flight.begin(u32::from(matches!(posted, Ok(Post::Accepted))));
            (posted, true)
        };
        match posted {
            Ok(Post::Accepted) => {
                self.pulse.accepted();
                Ok(Some(completes))
            }
            // No sign of anything: it is not tried again, and nothing waits for it.
            Ok(Post::Again | Post::Full) => Ok(None),
            Err(error) => Err(rail_failed(&self.peer, error)),
        }
    }

    /// The write of an eager message has completed.
    pub(super) fn eager_written(&mut self, number: u32) {
        self.operations_ended(1);
        self.flow.eager_written(number);
    }

    /// As [`Sender::test`].
    fn test_eager(&mut self, request: u16, look: Look) -> Result<Option<u64>> {
        let mut poll = self.flow.poll_eager(request);
        if poll == Some(SendPoll::Pending) && look == Look::Memory {
            self.flow.observe(&self.mailbox);
            poll = self.flow.poll_eager(request);
        }
        match poll {
            Some(SendPoll::Done { len }) => Ok(Some(len)),
            Some(SendPoll::Pending) => Ok(None),
            Some(SendPoll::Failed(cause)) => Err(self.sticky(cause)),
            None => Err(Cause::Stale(Noun::Request).into()),
        }
    }

    /// The number from which on no eager message was sent.
    pub(super) fn eager_end(&self) -> u32 {
        self.flow.eager_next()
    }

    /// The same, and none will be.
    fn cease_eager(&mut self) -> u32 {
        self.flow.cease_eager()
    }
}

impl Receiver {
    /// Whether a look into the eager ring is worth while.
    #[inline]
    pub(super) fn has_eager(&self, look: Look) -> bool {
        match &self.inlet {
            Some(inlet) if look == Look::Memory => self.flow.has_eager(&inlet.ring),
            _ => false,
        }
    }

    /// The next message for a receive that is posted.
    pub(super) fn next_eager(&mut self) -> Option<Copied> {
        let inlet = self.inlet.as_mut()?;
        if !self.flow.has_eager(&inlet.ring) {
            return None;
        }
        let arrival = self.flow.next_eager(&inlet.ring)?;
        if arrival.sent != arrival.len && !std::mem::replace(&mut inlet.cut_warned, true) {
            log::warn!(
                "receiving from {}: a message of {} bytes was cut to its receive of {}; do all ranks call with the same sizes?",
                self.peer,
                arrival.sent,
                arrival.len
            );
        }
        let payload: [u64; PAYLOAD_WORDS] =
            array::from_fn(|index| inlet.ring.word(arrival.place, FIRST_PAYLOAD + index));
        Some(self.copied(arrival.line, arrival.len, payload))
    }

    /// The sender sends no eager message from this number on.
    pub(super) fn eager_ends(&mut self, end: u32) {
        self.flow.eager_ends(end);
    }

    /// Whether eager messages are on their way, of a sender that sends none any more.
    pub(super) fn is_eager_due(&self) -> bool {
        self.flow.is_eager_due()
    }

    /// Whether the sender is to be asked to send no eager message any more: once.
    pub(super) fn refuse_eager(&mut self) -> bool {
        self.inlet.is_some() && self.flow.refuse_eager()
    }
}
