//! Performs the actions of `proto`'s progress loop on NICs: posts, copies, control memory; and returns completions as events.
//!
//! ```text
//!  proto::ProgressLoop ──post, act, send──▶ Executor ──▶ Nic
//!                      ◀───next_event────── Executor ◀── completions
//!                                               └─────▶ Deferred: HELLOs, ends, flushes, for the endpoint, after the poll
//! ```

mod events;
mod sendrecv;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use counters::Counter;
use fabric::{
    CompletionError, Control, Data, Delivery, FabricError, Post as Posted, RemoteBytes, RemoteKey,
    Write,
};
use proto::Capabilities;
use proto::channel::{Post, RailNews, WriteId, Written};
use proto::codec::Address;
use proto::flow::{Action, Flow};
use proto::frame::{Offer, Open, Refused};
use proto::letter::{Body, Letter};
use proto::memory::{MemoryId, Payload, Shadows};
use proto::progress::{Acted, LentInbox, LetterPost, TrialTarget};
use proto::receive::{Copy, Place};
use proto::sendrecv::Tag;
use proto::setup::{Peers, Presence};
use proto::{
    Account, Breach, ChannelId, Event, Generation, MessageId, Moment, Nonce, Outcome, Outgoing,
    PartWrite, Perform, Slot, Target,
};

use super::authentication::{Mac, random_number};
use super::bound::{CONTROL_OPERATIONS, FEWEST_OPERATIONS, PARTS_FEW};
use super::failures::milliseconds;
use super::letter_buffers::LetterSubject;
use super::memory::{ControlMemory, Unit};
use super::nics::Port;
use super::peers::{Lane, Peer};
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

    /// Posts a part. None: there is no such connection or rail.
    #[inline]
    fn write(
        &mut self,
        slot: Slot,
        write: &PartWrite,
        account: &Account,
    ) -> Option<Result<Acted, Cause>> {
        let &PartWrite { message, part, rail, line, source, target, key, len, immediate, moved } =
            write;
        let (channel, generation) = *self.connections.get(slot.index())?;
        let lane = *self.channels.get(channel.0 as usize)?.data.get(usize::from(rail))?;
        if !has_room(self.nics[lane.nic].nic.room(), account.rails.flying_on(rail)) {
            return Some(Ok(Acted::NoRoom));
        }
        let Some(region) = named(&self.regions, &self.landing, source.region) else {
            return Some(Err(Cause::SendDeregistered));
        };
        let len = usize::try_from(len).ok()?;
        let Some(local) = region.local(lane.nic, source.address, len) else {
            return Some(Err(Cause::OutsideOfRegion { address: source.address, len }));
        };
        let token = Purpose::Part { slot, generation, message, part }.token();
        let nic = &mut self.nics[lane.nic].nic;
        let posted = if self.sendrecv.is_some() {
            let tag = Tag::of(immediate?.connection(), line);
            nic.send_tagged(local, lane.peer, tag.bits(), token)
        } else {
            let remote = RemoteBytes { address: target, key: RemoteKey::from_wire(key) };
            let delivery = if immediate.is_some() { Delivery::Default } else { Delivery::Complete };
            let write = Write { local, remote, peer: lane.peer, delivery };
            nic.write(&write, immediate.map(proto::Immediate::bits), token)
        };
        match posted {
            Ok(Posted::Accepted) => {
                let sends = &mut self.channels[channel.0 as usize].sends;
                sends.part(rail, len as u64);
                if moved {
                    sends.on_rail(rail, Counter::Failovers);
                }
                Some(Ok(Acted::Done))
            }
            Ok(Posted::Again) => {
                self.channels[channel.0 as usize].sends.on_rail(rail, Counter::Refused);
                Some(Ok(Acted::Refused))
            }
            Ok(Posted::Full) => Some(Ok(Acted::NoRoom)),
            Err(error) => Some(Err(Cause::NotPosted(error))),
        }
    }

    /// A part cannot be posted: reported to the flow as a failed write.
    #[cold]
    fn never_written(&mut self, slot: Slot, message: MessageId, part: u8, cause: Cause) {
        let (channel, generation) = self.connections[slot.index()];
        if let Some(peer) = self.peer_mut(channel) {
            peer.failed(cause);
        }
        let event = proto::flow::Event::WriteFailed { message, part, code: 0 };
        self.queued.push_back(Event::Connection { slot, generation, event });
    }

    /// Copies an inline message from parking into its receive.
    fn copy_parked(&self, copy: &Copy, account: &Account) {
        let Copy { target, len, from, .. } = copy;
        let len = usize::from(*len);
        let place =
            self.region(target.region).and_then(|region| region.host_bytes(target.address, len));
        let Some(place) = place else { return };
        account.parking.read(*from, |index, word| {
            let at = index * 8;
            if at < len {
                place.put(at, &word.to_le_bytes()[..(len - at).min(8)]);
            }
        });
    }
}

impl Shadows for Executor {
    type Shadow = Unit;

    #[inline]
    fn shadow(&mut self, id: MemoryId) -> &mut Unit {
        self.memory.unit(id)
    }
}

impl Perform<Flow> for Executor {
    type Inbox = Unit;

    #[inline]
    fn inbox(&mut self, id: MemoryId) -> &mut Unit {
        self.memory.unit(id)
    }

    #[inline]
    fn post(&mut self, channel: ChannelId, post: &Post) -> bool {
        let rail = usize::from(post.rail);
        let lane = self.peer(channel).and_then(|peer| peer.control.get(rail)).copied();
        let Some(lane) = lane else { return false };
        let number = if lane.nic == 0 { 0 } else { self.control_number(lane.nic) };
        let Some(peer) = self.channels.get_mut(channel.0 as usize) else { return false };
        peer.epoch = post.write.epoch;
        let (at, len) = (post.at as usize, post.bytes as usize);
        let Some(local) = self.memory.local(post.from, number, at, len) else { return false };
        let remote = RemoteBytes {
            address: post.address.wrapping_add(at as u64),
            key: RemoteKey::from_wire(post.key),
        };
        let nic = &mut self.nics[lane.nic].nic;
        let token = token_of(channel, post.write).token();
        let posted = if self.sendrecv.is_some() {
            nic.send_tagged(local, lane.peer, remote.address, token)
        } else {
            let write = Write { local, remote, peer: lane.peer, delivery: Delivery::Default };
            nic.write_control(&write, token)
        };
        match posted {
            Ok(Posted::Accepted) => {
                peer.accepted();
                true
            }
            Ok(Posted::Full) => false,
            Ok(Posted::Again) => {
                let refused = peer.refused(self.now);
                refused >= self.refusals_bound && self.refused_for_good(channel, post)
            }
            Err(error) => {
                self.post_failed(channel, post, error);
                true
            }
        }
    }

    fn send(&mut self, channel: ChannelId, rail: u8, letter: &Letter) -> LetterPost {
        let lane = self.peer(channel).and_then(|peer| peer.control.get(usize::from(rail))).copied();
        let Some(lane) = lane else { return LetterPost::Refused };
        if !self.peers.message_into(channel, letter, &mut self.written) {
            return LetterPost::Refused;
        }
        let Port { nic, letters, label, .. } = &mut self.nics[lane.nic];
        let Some(letters) = letters else { return LetterPost::Refused };
        // A trial is sent on a rail that is lost already: its failure says nothing about the peer.
        let trial = matches!(letter.body, Body::Trial(_));
        let about =
            if trial { LetterSubject::Other } else { LetterSubject::Channel { channel, rail } };
        let sent = letters.send(nic, lane.peer, &self.written, about);
        let now = self.now;
        match sent {
            Ok(None) => LetterPost::Dropped,
            Ok(Some(Posted::Accepted)) if trial => LetterPost::Posted,
            Ok(Some(Posted::Accepted)) => {
                if let Some(peer) = self.peer_mut(channel) {
                    peer.accepted();
                }
                LetterPost::Posted
            }
            Ok(Some(Posted::Full)) => LetterPost::Dropped,
            Ok(Some(Posted::Again)) | Err(_) if trial => LetterPost::Refused,
            Ok(Some(Posted::Again)) => {
                if let Some(peer) = self.peer_mut(channel) {
                    peer.refused(now);
                }
                LetterPost::Refused
            }
            Err(error) => {
                let cause = Cause::CannotReach { rail: Label::of(label), fault: error };
                if let Some(peer) = self.peer_mut(channel) {
                    peer.first_failure.failed(Operation::Control, rail, cause);
                }
                self.queued.push_back(Event::LetterFailed { channel, rail });
                LetterPost::Dropped
            }
        }
    }

    #[inline]
    fn act(&mut self, slot: Slot, action: &Action, account: &Account) -> Acted {
        match action {
            Action::Write(write) => match self.write(slot, write, account) {
                Some(Ok(acted)) => acted,
                None => Acted::Refused,
                Some(Err(cause)) => {
                    self.never_written(slot, write.message, write.part, cause);
                    Acted::Done
                }
            },
            Action::Copy(copy) => {
                self.copy_parked(copy, account);
                Acted::Done
            }
            Action::Tagged(tagged) => self.tag(slot, tagged),
        }
    }

    #[inline]
    fn copy_out(&mut self, shadow: MemoryId, payload: Payload, message: &Outgoing) {
        let Payload { word, bytes } = payload;
        let unit = &*self.memory.unit(shadow);
        let offset = unit.offset(word);
        // Packets consist of whole words: clear the rest of the last one.
        if !bytes.is_multiple_of(8) {
            unit.pages().store_relaxed((offset + bytes) / 8, 0);
        }
        let source = message.source;
        let region = named(&self.regions, &self.landing, source.region);
        if let Some(place) = region.and_then(|region| region.host_bytes(source.address, bytes)) {
            let copied = place.copy_to_pages(self.memory.unit(shadow).pages(), offset);
            assert!(copied, "a shadow has room for the payload");
        }
    }

    #[inline]
    fn copy_in(
        &mut self,
        inbox: MemoryId,
        payload: Payload,
        _: Slot,
        place: &Place,
        account: &mut Account,
    ) {
        let Payload { word, bytes } = payload;
        match place {
            Place::Receive(matched) => {
                let (target, len) = (matched.target, usize::from(matched.len).min(bytes));
                let Self { memory, regions, landing, .. } = self;
                let region = named(regions, landing, target.region);
                if let Some(place) =
                    region.and_then(|region| region.host_bytes(target.address, len))
                {
                    let unit = &*memory.unit(inbox);
                    let copied = place.fill_from_pages(unit.pages(), unit.offset(word));
                    assert!(copied, "a payload is inside of its inbox");
                }
            }
            Place::Parked(parked) => {
                let unit = &*self.memory.unit(inbox);
                let first = unit.offset(word) / 8;
                account.parking.fill(*parked, |index| unit.pages().load(first + index));
            }
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Happened> {
        if let Some(event) = self.queued.pop_front() {
            return Some(event);
        }
        self.next_completion()
    }

    fn lend_inbox(&mut self, channel: ChannelId, rail: u8) -> Option<LentInbox> {
        let nic = self.peer(channel)?.control.get(usize::from(rail))?.nic;
        let memory = self.memory.take_inbox(&mut self.nics)?;
        let control = self.control_number(nic);
        let target = match &mut self.sendrecv {
            Some(sendrecv) => Some((sendrecv.lend(memory), 0)),
            None => self.memory.target(memory, control),
        };
        let nonce = random_number();
        let (Some((address, key)), Ok(nonce)) = (target, nonce) else {
            self.memory.release_inbox(memory);
            return None;
        };
        Some(LentInbox { memory, address, key, nonce: Nonce(nonce) })
    }

    fn lend_shadow(&mut self, _: ChannelId) -> Option<MemoryId> {
        self.memory.take(&mut self.nics)
    }

    /// A peer's write may still land in the inbox until its rail closes, so the memory is not used again, unless
    /// [`release_inbox`](Self::release_inbox) follows.
    fn retire_inbox(&mut self, memory: MemoryId, rail: u8) {
        log::debug!("inbox {} on control rail {rail} is retired", memory.0);
        if let Some(sendrecv) = &mut self.sendrecv {
            sendrecv.retire(memory);
        }
    }

    fn release_inbox(&mut self, memory: MemoryId) {
        if let Some(sendrecv) = &mut self.sendrecv {
            sendrecv.retire(memory);
        }
        self.memory.release_inbox(memory);
    }

    fn release_shadow(&mut self, memory: MemoryId) {
        self.memory.release(memory);
    }

    fn open_requested(&mut self, channel: ChannelId, open: &Open) -> Option<Refused> {
        self.peers.open_arrived(channel, open)
    }

    fn violated(&mut self, slot: Slot, breach: Breach) {
        let (channel, _) = self.connections[slot.index()];
        log::error!("{} broke the protocol: {}", self.label(channel), breach.0);
    }

    #[cold]
    fn control_rails(&mut self, channel: ChannelId, news: RailNews) {
        let Some(peer) = self.peer_mut(channel) else { return };
        let (label, control) = (peer.label(), peer.control.clone());
        let why = peer.first_failure.control_rails_changed(news, control.len());
        for (rail, lane) in (0_u8..).zip(&control) {
            let Port { label: name, has_lost_control, .. } = &mut self.nics[lane.nic];
            if news.lost.has(rail) {
                *has_lost_control = true;
                match why {
                    Some(why) => {
                        log::warn!("control rail {rail} ({name}) to {label} is lost: {why}")
                    }
                    None => log::warn!("control rail {rail} ({name}) to {label} is lost"),
                }
            }
            if news.returned.has(rail) {
                *has_lost_control = false;
                log::warn!("control rail {rail} ({name}) to {label} is back");
            }
        }
    }

    fn rail_lost(&mut self, channel: ChannelId, rail: u8, cause: proto::Cause) {
        self.deferred.rails_lost += 1;
        let Some(peer) = self.channels.get_mut(channel.0 as usize) else { return };
        let lane = peer.data.get(usize::from(rail)).copied();
        let name = lane.map_or("", |lane| self.nics[lane.nic].label.as_str());
        let why = peer.first_failure.data_rail_lost(rail).unwrap_or(Cause::Channel(cause));
        let peer = peer.label();
        if let proto::Cause::RailClosing { .. } = cause {
            log::info!(
                "data rail {rail} ({name}) to {peer}: {why}; its messages go by the other rails"
            );
        } else {
            log::warn!(
                "data rail {rail} ({name}) to {peer} is lost: {why}; its messages go by the other rails"
            );
        }
    }

    fn close_rail(&mut self, local: u8) -> bool {
        let nic = usize::from(local);
        if nic >= self.nics.len() {
            return false;
        }
        // Completions that are still in the rail's queue are lost with it: the peer sends those parts again, on another rail.
        let Port { nic: card, label, .. } = &mut self.nics[nic];
        match card.fence::<Data>() {
            Ok(tokens) => {
                log::info!("data rail {label} is closed, so that nothing late can arrive by it");
                for token in tokens {
                    self.interrupted(token);
                }
                self.rekey(nic);
                true
            }
            Err(error) => {
                log::debug!("data rail {label} is not closed yet: {error}");
                false
            }
        }
    }

    fn can_reopen(&self, local: u8) -> bool {
        self.nics.get(usize::from(local)).is_some_and(|port| port.nic.can_reopen())
    }

    fn open_rail(&mut self, local: u8) -> Option<bool> {
        let nic = usize::from(local);
        let port = self.nics.get_mut(nic)?;
        if let Err(error) = port.reopen() {
            if !std::mem::replace(&mut port.has_not_reopened, true) {
                log::warn!("data rail {} does not open again: {error}; trying again", port.label);
            }
            return None;
        }
        log::info!("data rail {} is open again, with another endpoint", port.label);
        let new_keys = port.binds_regions();
        if let Some(address) = Address::new(port.nic.data_name()) {
            self.peers.rename(nic, address);
        }
        self.rekey(nic);
        Some(new_keys)
    }

    fn trial_target(&mut self, local: u8) -> Option<TrialTarget> {
        let nic = usize::from(local);
        let port = self.nics.get(nic).filter(|port| !port.is_closed())?;
        let address = Address::new(port.nic.data_name())?;
        let target = self.landing.target(self.landing.address());
        Some(TrialTarget { address, target, key: self.landing.key(nic) })
    }

    fn key_of(&mut self, local: u8, region: u32) -> u64 {
        self.region(region).map_or(0, |region| region.key(local.into()))
    }

    fn reach(&mut self, channel: ChannelId, rail: u8, address: &Address) -> bool {
        let Some(peer) = self.channels.get_mut(channel.0 as usize) else { return false };
        let Some(lane) = peer.data.get_mut(usize::from(rail)) else { return false };
        let Port { nic, label, .. } = &mut self.nics[lane.nic];
        match nic.add_peer::<Data>(address.as_bytes()) {
            Ok(joined) => {
                nic.remove_peer::<Data>(std::mem::replace(&mut lane.peer, joined));
                true
            }
            Err(error) => {
                log::debug!("data rail {label}: the address of a peer is refused: {error}");
                false
            }
        }
    }

    fn try_rail(&mut self, channel: ChannelId, offer: &Offer) -> bool {
        let lane = self.peer(channel).and_then(|peer| peer.data.get(usize::from(offer.rail)));
        let Some(lane) = lane.copied() else { return false };
        let local = self.landing.local(lane.nic, self.landing.address(), TRIAL_BYTES);
        let Some(local) = local else { return false };
        let key = RemoteKey::from_wire(offer.key);
        let remote = RemoteBytes { address: offer.target, key };
        let write = Write { local, remote, peer: lane.peer, delivery: Delivery::Default };
        let immediate = proto::Immediate::trial(offer.channel, offer.round).bits();
        let token = Purpose::Trial { channel: low_half(channel.0), rail: offer.rail }.token();
        match self.nics[lane.nic].nic.write(&write, Some(immediate), token) {
            Ok(Posted::Accepted) => true,
            Ok(Posted::Again | Posted::Full) => false,
            Err(error) => {
                log::debug!("a trial of {} is refused: {error}", self.nics[lane.nic].label);
                let (rail, well) = (offer.rail, false);
                self.queued.push_back(Event::TrialEnded { channel, rail, well });
                true
            }
        }
    }

    fn rail_returned(&mut self, channel: ChannelId, rail: u8) {
        self.deferred.rails_returned += 1;
        let Some(peer) = self.channels.get_mut(channel.0 as usize) else { return };
        peer.first_failure.data_rail_returned(rail);
        let lane = peer.data.get(usize::from(rail));
        let name = lane.map_or("", |lane| self.nics[lane.nic].label.as_str());
        log::warn!("data rail {rail} ({name}) to {} is back", peer.label());
    }

    fn ended(&mut self, channel: ChannelId, outcome: Outcome) {
        self.peers.ended(channel);
        self.deferred.ended.push((channel, outcome));
    }

    fn forgotten(&mut self, channel: ChannelId) {
        let Some(peer) = self.channels.get_mut(channel.0 as usize) else { return };
        let (data, control) = peer.take_lanes();
        log::debug!("the channel to {} has ended long ago, and is forgotten", peer.label());
        for Lane { nic, peer } in data {
            self.nics[nic].nic.remove_peer::<Data>(peer);
        }
        for Lane { nic, peer } in control {
            self.nics[nic].nic.remove_peer::<Control>(peer);
        }
    }
}

impl Executor {
    /// Whether the provider has refused all posts to this peer for longer than the bound: then the control rail to it is lost.
    #[cold]
    fn refused_for_good(&mut self, channel: ChannelId, post: &Post) -> bool {
        let bound_ms = milliseconds(self.refusals_bound);
        if let Some(peer) = self.peer_mut(channel) {
            let cause = Cause::RefusesPosts { bound_ms };
            peer.first_failure.failed(Operation::Control, post.rail, cause);
        }
        let event = Event::Wrote { channel, write: post.write, rail: post.rail, well: false };
        self.queued.push_back(event);
        true
    }

    #[cold]
    fn post_failed(&mut self, channel: ChannelId, post: &Post, error: FabricError) {
        if let Some(peer) = self.peer_mut(channel) {
            let cause = Cause::NotPosted(error);
            peer.first_failure.failed(Operation::Control, post.rail, cause);
        }
        let event = Event::Wrote { channel, write: post.write, rail: post.rail, well: false };
        self.queued.push_back(event);
    }

    /// A data rail was closed or opened again, which may have changed the keys of memory on it.
    #[cold]
    fn rekey(&mut self, nic: usize) {
        let card = &self.nics[nic].nic;
        self.landing.rekey(nic, card);
        self.regions.iter().for_each(|region| region.rekey(nic, card));
    }

    /// An operation was in flight on a data rail that was closed.
    fn interrupted(&mut self, token: u64) {
        match Purpose::of(token) {
            Some(Purpose::Part { slot, generation, message, part }) => {
                let event = proto::flow::Event::WriteFailed { message, part, code: 0 };
                self.queued.push_back(Event::Connection { slot, generation, event });
            }
            Some(Purpose::Flush { flush }) => self.deferred.interrupted.push(flush),
            Some(Purpose::Trial { channel, rail }) => {
                let channel = ChannelId(channel.into());
                self.queued.push_back(Event::TrialEnded { channel, rail, well: false });
            }
            _ => {}
        }
    }

    /// An operation to a channel's peer has failed on a NIC.
    #[cold]
    pub(super) fn operation_failed(
        &mut self,
        channel: ChannelId,
        nic: usize,
        operation: Operation,
        error: &CompletionError,
    ) {
        let rail = Label::of(&self.nics[nic].label);
        if let Some(peer) = self.peer_mut(channel) {
            let cause = Cause::Completion { operation, rail, failed: error.into() };
            peer.failed_on(nic, operation, cause);
            if operation == Operation::Data
                && let Some(rail) = peer.data_rail(nic)
            {
                peer.sends.on_rail(rail, Counter::Failed);
            }
        }
    }
}

/// Whether a part to a peer may take one of `room` operations of a NIC, with `flying` parts to that peer in flight there. Parts to peers
/// that hang, such as all ranks of a node that is gone, never complete. So a peer may have as many in flight as it leaves to the others,
/// and a few operations are reserved for peers with hardly any. Packets and letters have room of their own.
#[inline]
fn has_room(room: usize, flying: u32) -> bool {
    let flying = flying as usize;
    let shared = room.saturating_sub(CONTROL_OPERATIONS + FEWEST_OPERATIONS);
    shared > flying || flying < PARTS_FEW && room > CONTROL_OPERATIONS
}

/// The number and size of the preallocated buffers for letters that one poll receives. Further or longer ones (HELLO) allocate.
const LETTERS: usize = 8;
const LETTER_BYTES: usize = 256;

/// Bytes that a trial of a rail writes onto the peer's landing page.
const TRIAL_BYTES: usize = 8;

#[inline]
fn token_of(channel: ChannelId, write: WriteId) -> Purpose {
    let (epoch, number) = (low_byte(write.epoch.0), low_half(channel.0));
    match write.what {
        Written::Packet(packet) => Purpose::Packet { channel: number, epoch, number: packet },
        Written::Cell => Purpose::Cell { channel: number, epoch },
    }
}

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

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`CHANNELS_MAX` bounds them")]
const fn low_half(number: u32) -> u16 {
    number as u16
}
