//! The actions of `proto`'s progress loop, performed on NICs and on control memory.

use counters::Counter;
use fabric::{
    CompletionError, Control, Data, Delivery, FabricError, Post as Posted, RemoteBytes, RemoteKey,
    Write,
};
use proto::channel::{Post, RailNews, WriteId, Written};
use proto::codec::Address;
use proto::flow::{Action, Flow};
use proto::frame::{Offer, Open, Refused};
use proto::letter::{Body, Letter};
use proto::memory::{MemoryId, Payload, Shadows};
use proto::progress::{Acted, LentInbox, LetterPost, TrialTarget};
use proto::receive::{Copy, Place};
use proto::sendrecv::Tag;
use proto::{
    Account, Breach, ChannelId, Event, MessageId, Nonce, Outcome, Outgoing, PartWrite, Perform,
    Slot,
};

use super::super::authentication::random_number;
use super::super::bound::{CONTROL_OPERATIONS, FEWEST_OPERATIONS, PARTS_FEW, milliseconds};
use super::super::lane::Lane;
use super::super::letter_buffers::LetterSubject;
use super::super::memory::Unit;
use super::super::nics::Port;
use super::super::purpose::Purpose;
use super::{Executor, Happened, low_byte, named};
use crate::error::{Cause, Operation};
use crate::label::Label;

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
        if !self.peers.message(channel, letter, &mut self.written) {
            return LetterPost::Refused;
        }
        let Port { nic, letters, label, .. } = &mut self.nics[lane.nic];
        let Some(letters) = letters else { return LetterPost::Refused };
        // A trial is sent on a rail that is lost already: its failure says nothing about the peer.
        let trial = matches!(letter.body, Body::Trial(_));
        let numbers = letter.rails;
        let about = match trial {
            true => LetterSubject::Other,
            false => LetterSubject::Channel { channel, rail, numbers },
        };
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
                self.queued.push_back(Event::LetterFailed { channel, rail, numbers });
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

    fn retire_inbox(&mut self, memory: MemoryId) {
        log::debug!("inbox {} is retired", memory.0);
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
        let refused = self.peers.open_arrived(channel, open);
        if let Some(Refused { why, .. }) = &refused {
            log::debug!("a connection that {} requests is refused: {why:?}", self.label(channel));
        }
        refused
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
            let name = &self.nics[lane.nic].label;
            if news.lost.has(rail) {
                match why {
                    Some(why) => {
                        log::warn!("control rail {rail} ({name}) to {label} is lost: {why}")
                    }
                    None => log::warn!("control rail {rail} ({name}) to {label} is lost"),
                }
            }
            if news.returned.has(rail) {
                log::warn!("control rail {rail} ({name}) to {label} is back");
            }
        }
    }

    #[cold]
    fn failed_late(&mut self, channel: ChannelId, rail: u8) {
        let Some(peer) = self.peer_mut(channel) else { return };
        peer.first_failure.take_back();
        log::debug!(
            "an error on control rail {rail} to {} is of before the rail's last loss",
            peer.label()
        );
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

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "`CHANNELS_MAX` bounds them")]
const fn low_half(number: u32) -> u16 {
    number as u16
}
