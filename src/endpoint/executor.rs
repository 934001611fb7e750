//! The NICs and peers of an endpoint, on which the actions of `proto`'s progress loop are performed, and whose completions return as events.
//!
//! ```text
//!  proto::ProgressLoop ──post, act, send──▶ perform ──▶ Nic
//!                      ◀───next_event────── events  ◀── completions
//!                                               └─────▶ Deferred: HELLOs, ends, flushes, for the endpoint, after the poll
//! ```

mod events;
mod perform;
mod sendrecv;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fabric::{CompletionError, FabricError};
use proto::setup::{Peers, Presence};
use proto::{Capabilities, ChannelId, Event, Generation, Moment, Outcome, Slot, Target};

use super::authentication::Mac;
use super::memory::ControlMemory;
use super::nics::Port;
use super::peers::Peer;
use super::purpose::{Attempt, Purpose};
use super::region::UserRegion;
use super::slots::Slots;
use crate::error::{Cause, Noun, Operation};
use crate::label::Label;
use crate::types::Buffer;
use events::Cursor;
pub(super) use sendrecv::Sendrecv;

/// The region name of the landing page, which empty messages use.
pub(super) const LANDING: u32 = u32::MAX;

/// The events of the endpoint's own connections.
pub(super) type Happened = Event<proto::flow::Event>;

/// What the progress loop does not handle itself, collected until its poll ends.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Two-sided messages: letters, or garbage.
    pub(super) letters: Vec<Vec<u8>>,
    pub(super) ended: Vec<(ChannelId, Outcome)>,
    /// Channels to fail, because a tagged receive ended with an error: its message could never arrive.
    pub(super) lost: Vec<ChannelId>,
    pub(super) flushes: Vec<(u16, bool)>,
    /// Flushes whose read was in flight on a data rail that was closed.
    pub(super) interrupted: Vec<u16>,
    /// Operations of the probe that have ended: their NICs, and the error numbers of those that failed.
    pub(super) probes: Vec<(u8, Attempt, Result<(), i32>)>,
    /// Writes with immediates for no connection: NIC, length and immediate.
    pub(super) strays: Vec<(usize, u64, u64)>,
    /// Data rails to peers that were lost, and those that came back.
    pub(super) rails_lost: u64,
    pub(super) rails_returned: u64,
    /// Errors that name no operation of ours: the NIC, and the rail whose completion queue had the error; None: an event queue.
    pub(super) nameless: Vec<(usize, Option<Operation>, CompletionError)>,
    /// NICs on whose control rail no receive can be posted.
    pub(super) deaf: Vec<(usize, FabricError)>,
    /// A queue is unusable.
    pub(super) broken: Option<Cause>,
    /// Packets that arrived as messages and name no inbox of ours.
    pub(super) misplaced: u64,
}

impl Deferred {
    fn is_none(&self) -> bool {
        self.letters.is_empty()
            && self.ended.is_empty()
            && self.lost.is_empty()
            && self.flushes.is_empty()
            && self.interrupted.is_empty()
            && self.probes.is_empty()
            && self.strays.is_empty()
            && self.rails_lost == 0
            && self.rails_returned == 0
            && self.nameless.is_empty()
            && self.deaf.is_empty()
            && self.broken.is_none()
            && self.misplaced == 0
    }
}

/// The NICs and what is needed to perform actions on them.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) nics: Vec<Port>,
    memory: ControlMemory,
    pub(super) regions: Slots<Arc<UserRegion>>,
    /// The landing page: our own memory for operations without data of a user's: empty messages, trials, the probe and flushes.
    pub(super) landing: Arc<UserRegion>,
    /// Listeners, and the peers that are known or being introduced.
    pub(super) peers: Peers<Mac>,
    /// The other end of each channel, by its number.
    channels: Vec<Peer>,
    /// The channel and generation of each connection, by slot.
    connections: Vec<(ChannelId, Generation)>,
    /// The SENDRECV protocol, for providers without one-sided writes.
    sendrecv: Option<Box<Sendrecv>>,
    capabilities: Capabilities,
    /// Events that no completion queue returns: posts that failed at once, and what a rail returned before it was closed.
    queued: VecDeque<Happened>,
    cursor: Cursor,
    /// Whether this poll reads data rails on which nothing of ours is in flight.
    polls_data: bool,
    /// Polls since all data rails were polled.
    skipped: u32,
    /// Polls since the event queues were read.
    unread: u32,
    /// The time of the current poll.
    now: Moment,
    /// How long the provider may refuse every packet to a peer until the control rail to it is lost.
    refusals_bound: Duration,
    deferred: Deferred,
    /// The encoded bytes of the last letter that was sent, for reuse: letters are sent while NCCL moves data, where nothing is allocated.
    written: Vec<u8>,
    /// Buffers for received letters.
    spare: Vec<Vec<u8>>,
}

impl Executor {
    /// An executor without channels and listeners. `sendrecv`: for providers without one-sided writes.
    pub(super) fn new(
        nics: Vec<Port>,
        landing: Arc<UserRegion>,
        sendrecv: Option<Box<Sendrecv>>,
        regions: Slots<Arc<UserRegion>>,
        presence: Presence,
        refusals_bound: Duration,
    ) -> Self {
        Self {
            nics,
            memory: ControlMemory::new(presence.offers.ring),
            regions,
            landing,
            capabilities: presence.capabilities,
            peers: Peers::new(presence, Mac),
            channels: Vec::new(),
            connections: Vec::new(),
            sendrecv,
            queued: VecDeque::with_capacity(LETTERS),
            cursor: Cursor::default(),
            polls_data: true,
            skipped: 0,
            unread: 0,
            now: Moment::default(),
            refusals_bound,
            deferred: Deferred { letters: Vec::with_capacity(LETTERS), ..Deferred::default() },
            written: Vec::with_capacity(LETTER_BYTES),
            spare: (0..LETTERS).map(|_| Vec::with_capacity(LETTER_BYTES)).collect(),
        }
    }

    /// The time of the current poll, or of the last one.
    #[inline]
    pub(super) fn polled_at(&self) -> Moment {
        self.now
    }

    /// How long the provider may refuse every packet to a peer until the control rail to it is lost.
    pub(super) fn refusals_bound(&self) -> Duration {
        self.refusals_bound
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Sets the capabilities that the probe has found. HELLOs carry them from now on.
    pub(super) fn settle(&mut self, capabilities: Capabilities) {
        self.capabilities = capabilities;
        self.peers.settle(capabilities);
    }

    /// Whether parts and packets are messages (SENDRECV).
    pub(super) fn sends_messages(&self) -> bool {
        self.sendrecv.is_some()
    }

    /// The region of a buffer of NCCL's, and where in it the buffer begins.
    #[inline]
    pub(super) fn place(&self, buffer: &Buffer) -> crate::error::Result<(Target, &UserRegion)> {
        let &Buffer { address, len, region, .. } = buffer;
        if address == 0 && len > 0 {
            return Err(Cause::NullAddress { len }.into());
        }
        let handle = region.optional_region()?;
        if len == 0 {
            // Older NCCL passes another buffer's handle with an empty message, and some providers check addresses even of empty ones.
            let target = Target { address: self.landing.address(), region: LANDING };
            return Ok((target, &self.landing));
        }
        let (Some(handle), Some(known)) = (handle, self.regions.of(region)) else {
            return Err(Cause::Stale(Noun::MemoryHandle).into());
        };
        if !known.holds(address, len) {
            return Err(Cause::OutsideOfRegion { address, len }.into());
        }
        let region = name_of(handle.slot(), handle.generation());
        Ok((Target { address, region }, known))
    }

    /// Whether the loop has left anything to the endpoint.
    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_none()
    }

    /// What the loop has left to the endpoint since this was last taken.
    pub(super) fn take_deferred(&mut self) -> Deferred {
        std::mem::take(&mut self.deferred)
    }

    /// Keeps the memory of letters that were read for the next ones.
    pub(super) fn reuse(&mut self, mut letters: Vec<Vec<u8>>) {
        for bytes in letters.drain(..) {
            if bytes.capacity() <= LETTER_BYTES && self.spare.len() < LETTERS {
                self.spare.push(bytes);
            }
        }
        if self.deferred.letters.is_empty() {
            self.deferred.letters = letters;
        }
    }

    /// Queues an event for the next poll.
    pub(super) fn queue(&mut self, event: Happened) {
        self.queued.push_back(event);
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Puts a connection into a slot.
    pub(super) fn connect(&mut self, slot: Slot, channel: ChannelId, generation: Generation) {
        while self.connections.len() <= slot.index() {
            self.connections.push((channel, generation));
        }
        self.connections[slot.index()] = (channel, generation);
        if let Some(sendrecv) = &mut self.sendrecv {
            sendrecv.connect(slot);
        }
    }

    /// The channel of the connection in a slot.
    ///
    /// # Panics
    ///
    /// For a slot that has had no connection.
    pub(super) fn channel_of(&self, slot: Slot) -> ChannelId {
        self.connections[slot.index()].0
    }

    /// Adds the other end of the next channel.
    pub(super) fn add_peer(&mut self, peer: Peer) {
        self.channels.push(peer);
    }

    /// The other end of each channel, by its number.
    pub(super) fn channel_ends(&self) -> &[Peer] {
        &self.channels
    }

    pub(super) fn channel_ends_mut(&mut self) -> &mut [Peer] {
        &mut self.channels
    }

    /// A peer, and the NICs that its lanes name.
    pub(super) fn peer_and_nics(&mut self, channel: ChannelId) -> Option<(&mut Peer, &[Port])> {
        let Self { channels, nics, .. } = self;
        Some((channels.get_mut(channel.0 as usize)?, nics))
    }

    /// Stops posting receives, and cancels the posted ones.
    pub(super) fn cancel_receives(&mut self) {
        if let Some(sendrecv) = &mut self.sendrecv {
            sendrecv.stop();
        }
        for Port { nic, letters, .. } in &mut self.nics {
            if let Some(letters) = letters {
                letters.stop();
            }
            nic.cancel(|token| Purpose::of(token).is_some_and(Purpose::is_receive));
        }
    }

    #[inline]
    pub(super) fn peer(&self, channel: ChannelId) -> Option<&Peer> {
        self.channels.get(channel.0 as usize)
    }

    #[inline]
    pub(super) fn peer_mut(&mut self, channel: ChannelId) -> Option<&mut Peer> {
        self.channels.get_mut(channel.0 as usize)
    }

    /// The name of a channel's other end, for the log.
    #[cold]
    pub(super) fn label(&self, channel: ChannelId) -> Label {
        self.peer(channel).map_or_else(|| Label::of("a peer"), Peer::label)
    }

    /// The index of this NIC's control rail among ours: regions of control memory are in that order.
    pub(super) fn control_number(&self, nic: usize) -> usize {
        self.nics[..nic].iter().filter(|port| port.nic.has_control()).count()
    }

    /// The region with this name.
    #[inline]
    pub(super) fn region(&self, name: u32) -> Option<&Arc<UserRegion>> {
        named(&self.regions, &self.landing, name)
    }
}

/// The number and size of the preallocated buffers for letters that one poll receives. Further or longer ones (HELLO) allocate.
const LETTERS: usize = 8;
const LETTER_BYTES: usize = 256;

/// The region that a message names, or the landing page.
#[inline]
fn named<'a>(
    regions: &'a Slots<Arc<UserRegion>>,
    landing: &'a Arc<UserRegion>,
    name: u32,
) -> Option<&'a Arc<UserRegion>> {
    if name == LANDING {
        return Some(landing);
    }
    let (slot, generation) = parts_of(name);
    regions.get(slot, generation)
}

/// A region's name: its slot and generation.
pub(super) const fn name_of(slot: u16, generation: u16) -> u32 {
    (generation as u32) << 16 | slot as u32
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the fields that `name_of` made")]
const fn parts_of(name: u32) -> (u16, u16) {
    (name as u16, (name >> 16) as u16)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting to the field is the point")]
const fn low_byte(number: u32) -> u8 {
    number as u8
}
