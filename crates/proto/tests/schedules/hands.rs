//! The simulator's implementation of `Perform`, over the wire; and a trait for what differs between the two kinds of
//! connections.

use std::fmt;

use proto::channel::{Post, RailNews, Written};
use proto::codec::Address;
use proto::frame::{Offer, Open, Refused};
use proto::letter::{Body, Letter};
use proto::memory::{InboxMemory, MemoryId, Payload, ShadowMemory, Shadows};
use proto::packet::Ring;
use proto::progress::{Acted, LentInbox, LetterPost, TrialTarget};
use proto::{Account, Cause, ChannelId, Connection, Event, Nonce, Outcome, Perform, Slot};

use crate::faults::Fault;
use crate::wire::{Content, LINE_WORDS, Mail, Memory, Node, Use, Wire, Write};

pub(crate) type EventOf<D> = <<D as Data>::Connection as Connection>::Event;
type ActionOf<D> = <<D as Data>::Connection as Connection>::Action;
type MessageOf<D> = <<D as Data>::Connection as Connection>::Message;
type PlaceOf<D> = <<D as Data>::Connection as Connection>::Place;
type ErrorOf<D> = <<D as Data>::Connection as Connection>::Error;

/// One kind of connections, and their traffic outside of the channel.
pub(crate) trait Data: fmt::Debug + Sized {
    type Connection: Connection;

    /// The wire's number of a channel's control rail.
    fn link(&self, node: usize, channel: ChannelId, rail: u8) -> u8;

    /// How many control rails a channel has; None: as the setup.
    fn control_rails(&self, _node: usize, _: ChannelId) -> Option<u8> {
        None
    }

    /// The length of a channel's inboxes; None for the setup's.
    fn ring(&self, node: usize, channel: ChannelId) -> Option<Ring>;

    /// The message of a letter. None if it cannot be sent, which counts as lost.
    fn content(
        wire: &mut Wire<Self>,
        node: usize,
        to: (ChannelId, u8),
        letter: &Letter,
    ) -> Option<Content>;

    fn act(
        wire: &mut Wire<Self>,
        who: (usize, Slot),
        action: &ActionOf<Self>,
        account: &Account,
    ) -> bool;

    /// A word of the payload of a message.
    fn word(&self, node: usize, message: &MessageOf<Self>, index: usize, bytes: usize) -> u64;

    /// The payload of an inline message.
    fn arrived(
        wire: &mut Wire<Self>,
        who: (usize, Slot),
        payload: (&[u64], usize),
        place: &PlaceOf<Self>,
        account: &mut Account,
    );

    fn open_requested(&mut self, node: usize, channel: ChannelId, open: &Open) -> Option<Refused>;

    /// The other end of a channel, once it exists.
    fn far(wire: &Wire<Self>, end: (usize, ChannelId)) -> Option<(usize, ChannelId)>;

    fn ended(&mut self, node: usize, channel: ChannelId);

    /// A data rail of a channel, by its number there, is lost.
    fn rail_lost(wire: &mut Wire<Self>, who: (usize, ChannelId), rail: u8, cause: Cause);

    /// A node closes a data rail of its own.
    fn close_data(wire: &mut Wire<Self>, node: usize, local: u8) -> bool;

    /// Opens it again. Returns whether its keys have changed.
    fn open_data(_: &mut Wire<Self>, _node: usize, _local: u8) -> Option<bool> {
        None
    }

    /// The address of a node's data rail.
    fn trial_target(_: &mut Wire<Self>, _node: usize, _local: u8) -> Option<TrialTarget> {
        None
    }

    fn key_of(_: &mut Wire<Self>, _node: usize, _local: u8, _region: u32) -> u64 {
        0
    }

    fn reach(_: &mut Wire<Self>, _: (usize, ChannelId, u8), _: &Address) -> bool {
        false
    }

    fn try_rail(_: &mut Wire<Self>, _: (usize, ChannelId), _: &Offer) -> bool {
        false
    }

    /// A lost data rail is back.
    fn rail_returned(_: &mut Wire<Self>, _: (usize, ChannelId), _rail: u8) {}

    /// At most `most` steps of transfers in flight.
    fn advance(wire: &mut Wire<Self>, most: usize);

    /// Whether nothing is in flight.
    fn is_quiet(&self) -> bool;
}

/// The `Perform` of one node.
#[derive(Debug)]
pub(crate) struct Hands<'a, D: Data> {
    pub(crate) node: usize,
    pub(crate) wire: &'a mut Wire<D>,
}

impl<D: Data> Hands<'_, D> {
    fn me(&mut self) -> &mut Node<EventOf<D>> {
        &mut self.wire.nodes[self.node]
    }

    fn link(&self, channel: ChannelId, rail: u8) -> u8 {
        self.wire.data.link(self.node, channel, rail)
    }

    fn make(&mut self, channel: ChannelId, rail: u8, link: u8) -> MemoryId {
        let ring = self.wire.data.ring(self.node, channel).unwrap_or(self.wire.setup.ring);
        let garbage = self.wire.random.next();
        // Memory of a slab still has its earlier contents.
        let words = (0..ring.words() + LINE_WORDS).map(|word| garbage ^ word as u64).collect();
        let lines = ring.words() / LINE_WORDS;
        let memory = Memory {
            words,
            owner: vec![0; lines],
            busy: vec![0; lines + 1],
            rail,
            link,
            use_: Use::Live,
            keys: vec![self.wire.random.next()],
            disturbed: false,
            broken: None,
        };
        let memories = &mut self.me().memories;
        memories.push(memory);
        MemoryId(memories.len() as u32 - 1)
    }

    fn make_inbox(&mut self, channel: ChannelId, rail: u8, link: u8) -> MemoryId {
        let ring = self.wire.data.ring(self.node, channel).unwrap_or(self.wire.setup.ring);
        let lines = ring.words() / LINE_WORDS;
        let is_free = |memory: &Memory| {
            memory.use_ == Use::Released && memory.link == link && memory.owner.len() == lines
        };
        let released = self.me().memories.iter().position(is_free);
        let Some(at) = released.filter(|_| self.wire.setup.lends_again) else {
            return self.make(channel, rail, link);
        };
        let key = self.wire.random.next();
        let memory = &mut self.me().memories[at];
        memory.owner.fill(0);
        memory.keys.push(key);
        (memory.rail, memory.use_, memory.disturbed) = (rail, Use::Live, false);
        MemoryId(at as u32)
    }
}

impl<D: Data> Shadows for Hands<'_, D> {
    type Shadow = Memory;

    fn shadow(&mut self, id: MemoryId) -> &mut Memory {
        let freed = self.wire.nodes[self.node].memories[id.0 as usize].use_ == Use::Freed;
        self.wire.law(!freed, "a shadow was used after its release");
        &mut self.me().memories[id.0 as usize]
    }
}

impl<D: Data> Perform<D::Connection> for Hands<'_, D> {
    type Inbox = Memory;

    fn inbox(&mut self, id: MemoryId) -> &mut Memory {
        let live = self.wire.nodes[self.node].memories[id.0 as usize].use_ == Use::Live;
        self.wire.law(live, "an inbox was read that was retired");
        self.me().inbox_uses += 1;
        &mut self.me().memories[id.0 as usize]
    }

    fn post(&mut self, channel: ChannelId, post: &Post) -> bool {
        let failed = self.me().outcomes[channel.0 as usize].is_some();
        self.wire.law(!failed, "a channel posts after its end");
        let link = self.link(channel, post.rail);
        let now = self.wire.now;
        self.wire.control.tried((self.node, channel), link, post.write, now);
        if self.wire.refuses(Fault::RefusedPost) {
            return false;
        }
        let packet = matches!(post.write.what, Written::Packet(_));
        self.wire.faults.fire(if packet { Fault::PacketWritten } else { Fault::CellWritten });
        let lost = self.wire.loses(if packet { Fault::LostPacket } else { Fault::LostCell });
        self.wire.packets_lost += usize::from(lost && packet);
        let early = self.wire.random.percent(self.wire.setup.early);
        let held_until = self.wire.holds(Fault::LateLanding);
        self.wire.next_id += 1;
        let id = self.wire.next_id;
        let (at, count) = (post.at as usize / 8, post.bytes as usize / 8);
        let memory = &mut self.me().memories[post.from.0 as usize];
        let words = memory.words[at..at + count].to_vec();
        let lines = at / LINE_WORDS..(at + count).div_ceil(LINE_WORDS);
        memory.busy[lines.clone()].iter_mut().for_each(|busy| *busy += 1);
        let target = ((post.address >> 32) as usize, post.address as u32 as usize);
        let lost = lost || self.wire.is_mute(self.node, target.0, link);
        let inbox = &mut self.wire.nodes[target.0].memories[target.1];
        let right = inbox.keys.contains(&post.key) && inbox.link == link;
        let (mut free, live) = (true, inbox.use_ == Use::Live);
        // The peer may not know yet that the memory is another inbox.
        let is_another = live && inbox.keys.last() != Some(&post.key);
        if packet && !is_another {
            free = inbox.owner[lines.clone()].iter().all(|owner| *owner == 0);
            inbox.owner[lines].fill(id);
        }
        self.wire.law(right, "a write has the wrong key or rail");
        self.wire.law(free || !live, "a packet is posted over one that is unread");
        if packet && count == 3 {
            self.wire.faults.fire(Fault::Pad);
        }
        self.wire.writes.push(Write {
            id,
            node: self.node,
            channel,
            post: *post,
            link,
            target,
            left: (0..count).collect(),
            words,
            started: false,
            completed: false,
            lost,
            early,
            failing: false,
            held_until,
        });
        true
    }

    fn send(&mut self, channel: ChannelId, rail: u8, letter: &Letter) -> LetterPost {
        if self.wire.refuses(Fault::RefusedLetter) {
            return LetterPost::Refused;
        }
        let link = self.link(channel, rail);
        if let Body::Trial(trial) = &letter.body {
            self.wire.law(trial.rail == rail, "a control rail is tried by another one");
            self.wire.faults.fire(Fault::ControlRailTried);
        }
        if let Body::Query(query) = &letter.body {
            self.wire.faults.fire(Fault::Query);
            if query.lost {
                self.wire.faults.fire(Fault::LossDeclared);
            }
            let calm = self.wire.setup.calm;
            self.wire.law(!calm, "a QUERY although nothing is wrong");
        }
        if self.wire.loses(Fault::LostLetter) {
            // Before the provider saw it, or after.
            if self.wire.losses.is_multiple_of(2) {
                self.wire.faults.fire(Fault::DroppedLetter);
                return LetterPost::Dropped;
            }
            return LetterPost::Posted;
        }
        let held_until = self.wire.holds(Fault::LateLetter);
        let Some(content) = D::content(self.wire, self.node, (channel, rail), letter) else {
            return LetterPost::Posted;
        };
        let (node, channel) = (self.node, Some((channel, rail, letter.rails)));
        let since = self.wire.now;
        self.wire.mail.push(Mail { node, channel, link, content, since, held_until });
        LetterPost::Posted
    }

    fn act(&mut self, slot: Slot, action: &ActionOf<D>, account: &Account) -> Acted {
        if self.wire.is_crowded() {
            return Acted::NoRoom;
        }
        match D::act(self.wire, (self.node, slot), action, account) {
            true => Acted::Done,
            false => Acted::Refused,
        }
    }

    fn copy_out(&mut self, shadow: MemoryId, payload: Payload, message: &MessageOf<D>) {
        let node = self.node;
        for index in 0..payload.bytes.div_ceil(8) {
            let word = self.wire.data.word(node, message, index, payload.bytes);
            ShadowMemory::store(self.shadow(shadow), payload.word + index, word);
        }
    }

    fn copy_in(
        &mut self,
        inbox: MemoryId,
        payload: Payload,
        slot: Slot,
        place: &PlaceOf<D>,
        account: &mut Account,
    ) {
        let memory = self.inbox(inbox);
        let words: Vec<u64> = (0..payload.bytes.div_ceil(8))
            .map(|index| InboxMemory::load(memory, payload.word + index))
            .collect();
        D::arrived(self.wire, (self.node, slot), (&words, payload.bytes), place, account);
    }

    fn next_event(&mut self) -> Option<Event<EventOf<D>>> {
        let event = self.me().events.pop_front();
        if let Some(Event::Wrote { channel, write, .. }) = event {
            let now = self.wire.now;
            self.wire.control.reported((self.node, channel), write, now);
        }
        event
    }

    fn lend_inbox(&mut self, channel: ChannelId, rail: u8) -> Option<LentInbox> {
        if self.wire.refuses(Fault::RefusedMemory) {
            return None;
        }
        let link = self.link(channel, rail);
        let memory = self.make_inbox(channel, rail, link);
        let key = *self.me().memories[memory.0 as usize].keys.last().unwrap();
        let address = (self.node as u64) << 32 | u64::from(memory.0);
        Some(LentInbox { memory, address, key, nonce: Nonce(self.wire.random.next()) })
    }

    fn lend_shadow(&mut self, channel: ChannelId) -> Option<MemoryId> {
        if self.wire.refuses(Fault::RefusedMemory) {
            return None;
        }
        Some(self.make(channel, u8::MAX, u8::MAX))
    }

    fn failed_late(&mut self, _: ChannelId, _: u8) {
        self.wire.faults.fire(Fault::FailedLate);
    }

    fn retire_inbox(&mut self, memory: MemoryId) {
        let memory = &mut self.me().memories[memory.0 as usize];
        let right = memory.rail != u8::MAX && memory.use_ == Use::Live;
        memory.use_ = Use::Quarantined;
        self.wire.law(right, "an inbox is retired twice, or is none");
        self.wire.faults.fire(Fault::NewInbox);
    }

    fn release_inbox(&mut self, memory: MemoryId) {
        let memory = &mut self.me().memories[memory.0 as usize];
        let right = memory.rail != u8::MAX && matches!(memory.use_, Use::Live | Use::Quarantined);
        memory.use_ = Use::Released;
        self.wire.law(right, "an inbox is released twice, or is none");
    }

    fn release_shadow(&mut self, memory: MemoryId) {
        let memory = &mut self.me().memories[memory.0 as usize];
        let idle = memory.busy.iter().all(|busy| *busy == 0);
        let once = memory.use_ == Use::Live;
        memory.use_ = Use::Freed;
        self.wire.law(idle, "a shadow is released under a write that has not completed");
        self.wire.law(once, "a shadow is released twice");
    }

    fn open_requested(&mut self, channel: ChannelId, open: &Open) -> Option<Refused> {
        self.wire.data.open_requested(self.node, channel, open)
    }

    fn violated(&mut self, slot: Slot, error: ErrorOf<D>) {
        let law = format!("a connection reported a violation without one: {slot:?} {error:?}");
        self.wire.law(false, &law);
    }

    fn control_rails(&mut self, channel: ChannelId, news: RailNews) {
        let rails = self.wire.control_rails((self.node, channel));
        let known = (news.lost | news.returned).iter().all(|rail| rail < rails);
        self.wire.law(known, "news of a control rail that does not exist");
        self.wire.control_news((self.node, channel), news);
        if !news.returned.is_empty() {
            self.wire.faults.fire(Fault::ControlRailReturned);
        }
        let ended = self.me().outcomes[channel.0 as usize].is_some();
        self.wire.law(!ended, "a control rail of a channel that has ended");
    }

    fn rail_lost(&mut self, channel: ChannelId, rail: u8, cause: Cause) {
        D::rail_lost(self.wire, (self.node, channel), rail, cause);
    }

    fn close_rail(&mut self, local: u8) -> bool {
        D::close_data(self.wire, self.node, local)
    }

    fn can_reopen(&self, _: u8) -> bool {
        true
    }

    fn open_rail(&mut self, local: u8) -> Option<bool> {
        D::open_data(self.wire, self.node, local)
    }

    fn trial_target(&mut self, local: u8) -> Option<TrialTarget> {
        D::trial_target(self.wire, self.node, local)
    }

    fn key_of(&mut self, local: u8, region: u32) -> u64 {
        D::key_of(self.wire, self.node, local, region)
    }

    fn reach(&mut self, channel: ChannelId, rail: u8, address: &Address) -> bool {
        D::reach(self.wire, (self.node, channel, rail), address)
    }

    fn try_rail(&mut self, channel: ChannelId, offer: &Offer) -> bool {
        D::try_rail(self.wire, (self.node, channel), offer)
    }

    fn rail_returned(&mut self, channel: ChannelId, rail: u8) {
        D::rail_returned(self.wire, (self.node, channel), rail);
    }

    fn ended(&mut self, channel: ChannelId, outcome: Outcome) {
        let before = self.me().outcomes[channel.0 as usize].replace(outcome);
        self.wire.law(before.is_none(), "a channel ended twice");
        if outcome == Outcome::Failed(Cause::NoRail) {
            self.wire.no_rail((self.node, channel));
        }
        let fault = match outcome {
            Outcome::Over => Fault::EndBothWays,
            Outcome::Failed(_) => Fault::Failed,
        };
        self.wire.faults.fire(fault);
        self.wire.data.ended(self.node, channel);
    }

    fn forgotten(&mut self, channel: ChannelId) {
        let ended = self.me().outcomes[channel.0 as usize].is_some();
        self.wire.law(ended, "a channel is forgotten that has not ended");
    }
}
