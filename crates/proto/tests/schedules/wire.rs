//! The provider, the wire and the memory: posts that are refused, landings that are late, torn or lost, rails that die.

use proto::wire2::channel::{Post, Written};
use proto::wire2::endpoint::LentInbox;
use proto::wire2::frame::{Open, Refused};
use proto::wire2::letter::{Body, Letter, Status};
use proto::wire2::memory::{InboxMemory, MemoryId, Payload, ShadowMemory, Shadows};
use proto::wire2::packet::START_BYTES;
use proto::wire2::{Account, ChannelId, Event, Generation, Nonce, Outcome, Perform, Slot};

use crate::faults::{Fault, Faults};
use crate::random::Random;
use crate::setup::Setup;
use crate::talk::{Happened, Message, PartWrite, Talk};

const LINE_WORDS: usize = START_BYTES as usize / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Live,
    Quarantined,
    Freed,
}

/// Registered memory of one node.
#[derive(Debug)]
pub(crate) struct Memory {
    words: Vec<u64>,
    /// Of an inbox: which write owns each line, from its post until it is consumed.
    owner: Vec<u64>,
    /// Of a shadow: writes of each line that have not completed.
    busy: Vec<u32>,
    rail: u8,
    use_: Use,
    key: u64,
    broken: Option<&'static str>,
}

impl InboxMemory for Memory {
    fn load(&self, word: usize) -> u64 {
        self.words[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.words[word] = value;
        if let Some(owner) = self.owner.get_mut(word / LINE_WORDS) {
            *owner = 0;
        }
    }
}

impl ShadowMemory for Memory {
    fn load(&self, word: usize) -> u64 {
        self.words[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        if self.busy[word / LINE_WORDS] > 0 {
            self.broken.get_or_insert("a shadow changed under a write that has not completed");
        }
        self.words[word] = value;
    }
}

#[derive(Debug)]
struct Write {
    id: u64,
    node: usize,
    channel: ChannelId,
    post: Post,
    target: (usize, usize),
    words: Vec<u64>,
    /// Words that have not landed.
    left: Vec<usize>,
    started: bool,
    completed: bool,
    lost: bool,
    early: bool,
    failing: bool,
    held_until: u64,
}

#[derive(Debug)]
struct Mail {
    node: usize,
    channel: ChannelId,
    to: (usize, ChannelId),
    rail: u8,
    letter: Letter,
    proven: bool,
    held_until: u64,
}

#[derive(Debug)]
struct Part {
    from: (usize, Slot, Generation),
    to: (usize, Slot, Generation),
    rail: u8,
    lost: bool,
    completed: bool,
    arrived: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    memories: Vec<Memory>,
    pub(crate) events: std::collections::VecDeque<Event<Happened>>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The other end of each channel.
    pub(crate) peers: Vec<(usize, ChannelId)>,
    /// By slot: the other end of each connection.
    pub(crate) ends: Vec<(usize, Slot, Generation)>,
    /// By slot: the channel.
    pub(crate) channels: Vec<ChannelId>,
    pub(crate) closed: [bool; 4],
}

/// All but the endpoints.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) setup: Setup,
    pub(crate) random: Random,
    pub(crate) nodes: Vec<Node>,
    writes: Vec<Write>,
    mail: Vec<Mail>,
    parts: Vec<Part>,
    pub(crate) dead: [bool; 4],
    losses: usize,
    parts_to_lose: usize,
    /// Channels on which a part was lost.
    pub(crate) parts_lost: Vec<(usize, ChannelId)>,
    pub(crate) packets_lost: usize,
    pub(crate) now: u64,
    pub(crate) fair: bool,
    next_id: u64,
    pub(crate) faults: Faults,
    pub(crate) violation: Option<String>,
}

impl Wire {
    pub(crate) fn new(setup: Setup, random: Random) -> Self {
        Self {
            nodes: (0..setup.nodes).map(|_| Node::default()).collect(),
            losses: setup.losses,
            parts_to_lose: setup.parts_lost,
            setup,
            random,
            writes: Vec::new(),
            mail: Vec::new(),
            parts: Vec::new(),
            dead: [false; 4],
            parts_lost: Vec::new(),
            packets_lost: 0,
            now: 0,
            fair: false,
            next_id: 0,
            faults: Faults::default(),
            violation: None,
        }
    }

    pub(crate) fn law(&mut self, holds: bool, law: &str) {
        if !holds && self.violation.is_none() {
            self.violation = Some(law.to_owned());
        }
    }

    fn refuses(&mut self, fault: Fault) -> bool {
        let refused = !self.fair && self.random.percent(self.setup.refuse);
        if refused {
            self.faults.fire(fault);
        }
        refused
    }

    fn loses(&mut self, fault: Fault) -> bool {
        let lost = self.losses > 0 && self.random.percent(self.setup.lose);
        if lost {
            self.losses -= 1;
            self.faults.fire(fault);
        }
        lost
    }

    fn holds(&mut self, fault: Fault) -> u64 {
        if self.fair || !self.random.percent(self.setup.late) {
            return 0;
        }
        self.faults.fire(fault);
        self.now + self.random.between(100_000, 60_000_000)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.writes.iter().all(|write| write.completed && write.lost)
            && self.mail.is_empty()
            && self.parts.is_empty()
            && self.nodes.iter().all(|node| {
                // After the last channel nothing polls any more.
                node.events.is_empty() || node.outcomes.iter().all(Option::is_some)
            })
    }

    /// Some steps of what is under way.
    pub(crate) fn advance(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let most = if self.fair { usize::MAX } else { 6 };
            for _ in 0..self.writes.len().min(most) {
                let index = self.random.below(self.writes.len());
                if index < self.writes.len() {
                    self.advance_write(index);
                }
            }
            for _ in 0..self.mail.len().min(most) {
                let index = self.random.below(self.mail.len());
                if index < self.mail.len() {
                    self.advance_mail(index);
                }
            }
            for _ in 0..self.parts.len().min(most) {
                let index = self.random.below(self.parts.len());
                if index < self.parts.len() {
                    self.advance_part(index);
                }
            }
        }
    }

    fn advance_write(&mut self, index: usize) {
        let rail = usize::from(self.writes[index].post.rail);
        let dead = self.dead[rail];
        let (now, coin) = (self.now, self.random.percent(50));
        let delay = self.random.between(0, 20_000_000);
        let ends = self.random.percent(60);
        let write = &mut self.writes[index];
        if dead && !write.failing && !write.completed {
            // Its fate: an error, and what has not landed lands late, or never.
            write.failing = true;
            if coin {
                write.lost = true;
            } else {
                write.held_until = write.held_until.max(now + delay);
            }
        }
        let landed = write.left.is_empty();
        let over = write.failing || write.early || landed || (write.lost && !dead);
        if !write.completed && over && ends {
            write.completed = true;
            let well = !write.failing || (landed && !write.lost);
            let (node, channel, post) = (write.node, write.channel, write.post);
            if write.early && !landed && !write.failing {
                self.faults.fire(Fault::EarlyCompletion);
            }
            self.finish(index);
            let rail = post.rail;
            self.nodes[node].events.push_back(Event::Wrote {
                channel,
                write: post.write,
                rail,
                well,
            });
        } else if write.held_until <= now && !landed && !write.lost {
            self.land(index);
        }
        let write = &self.writes[index];
        if write.completed && (write.lost || write.left.is_empty()) {
            self.writes.swap_remove(index);
        }
    }

    /// The provider needs the shadow's bytes no more.
    fn finish(&mut self, index: usize) {
        let write = &mut self.writes[index];
        let memory = &mut self.nodes[write.node].memories[write.post.from.0 as usize];
        let at = write.post.at as usize / 8;
        for line in at / LINE_WORDS..(at + write.words.len()).div_ceil(LINE_WORDS) {
            memory.busy[line] -= 1;
        }
        let same = memory.words[at..at + write.words.len()] == write.words[..];
        self.law(same, "the bytes of a write changed before it completed");
    }

    fn land(&mut self, index: usize) {
        let torn = self.random.percent(40) && self.writes[index].left.len() > 1;
        let count = self.writes[index].left.len();
        let words = if torn { 1 + self.random.below(count) } else { count };
        let write = &mut self.writes[index];
        if torn && !write.started {
            self.faults.fire(Fault::TornLanding);
        }
        write.started = true;
        let (node, memory) = write.target;
        let target = &mut self.nodes[node].memories[memory];
        let mut law = None;
        match target.use_ {
            Use::Freed => law = Some("a late write lands in memory that was freed"),
            Use::Quarantined => self.faults.fire(Fault::LandedInQuarantine),
            Use::Live => {}
        }
        let at = write.post.at as usize / 8;
        for _ in 0..words {
            let last = write.left.len() - 1;
            let pick = if torn { self.random.below(write.left.len()) } else { last };
            let word = write.left.swap_remove(pick);
            if let Some(owner) = target.owner.get((at + word) / LINE_WORDS) {
                if target.use_ == Use::Live && *owner != write.id {
                    law = Some("a word lands on a packet that was read, or on a later one");
                }
            } else if is_older(write.words[word], target.words[at + word]) {
                self.faults.fire(Fault::CellBackwards);
            }
            target.words[at + word] = write.words[word];
        }
        if let Some(law) = law {
            self.law(false, law);
        }
    }

    fn advance_mail(&mut self, index: usize) {
        if self.mail[index].held_until > self.now {
            return;
        }
        let mail = self.mail.swap_remove(index);
        let rail = mail.rail;
        if self.dead[usize::from(rail)] && self.random.percent(70) {
            let channel = mail.channel;
            self.nodes[mail.node].events.push_back(Event::LetterFailed { channel, rail });
            return;
        }
        let (node, channel) = mail.to;
        let Mail { letter, proven, .. } = mail;
        if self.nodes[node].closed[usize::from(rail)] {
            return;
        }
        self.nodes[node].events.push_back(Event::Letter { channel, letter, proven });
        if self.setup.forges && self.random.percent(5) {
            self.faults.fire(Fault::RepeatedLetter);
            self.nodes[node].events.push_back(Event::Letter { channel, letter, proven });
        }
    }

    /// A letter of a stranger's, which knows everything but the key.
    pub(crate) fn forge(&mut self, node: usize, channel: ChannelId, template: &Status) {
        self.faults.fire(Fault::ForgedLetter);
        let body = Body::Status(Status { failed: true, ..*template });
        let letter = Letter { key: self.random.next() | 1, lost: 15, body };
        self.nodes[node].events.push_back(Event::Letter { channel, letter, proven: false });
        let letter = Letter { key: 0, lost: 15, body };
        self.nodes[node].events.push_back(Event::Letter { channel, letter, proven: true });
    }

    fn advance_part(&mut self, index: usize) {
        let first = self.random.percent(50);
        let part = &mut self.parts[index];
        if (first || part.arrived || part.lost) && !part.completed {
            part.completed = true;
            let (node, slot, generation) = part.from;
            let event = Happened::Completed { rail: part.rail };
            self.nodes[node].events.push_back(Event::Connection { slot, generation, event });
        } else if !part.arrived && !part.lost {
            part.arrived = true;
            let (node, slot, generation) = part.to;
            let event = Happened::Arrived { rail: part.rail };
            self.nodes[node].events.push_back(Event::Connection { slot, generation, event });
        }
        let part = &self.parts[index];
        if part.completed && (part.arrived || part.lost) {
            self.parts.swap_remove(index);
        }
    }

    pub(crate) fn kill_rail(&mut self, rail: usize) {
        if !self.dead[rail] {
            self.dead[rail] = true;
            self.faults.fire(Fault::RailDeath);
            if self.dead[..usize::from(self.setup.rails)].iter().all(|dead| *dead) {
                self.faults.fire(Fault::AllRailsDead);
            }
        }
    }

    /// A node closes its endpoint of a rail: nothing of it moves any more, and its quarantine is free.
    pub(crate) fn close_rail(&mut self, node: usize, rail: u8) {
        let at = usize::from(rail);
        if std::mem::replace(&mut self.nodes[node].closed[at], true) {
            return;
        }
        self.faults.fire(Fault::RailClosed);
        self.dead[at] = true;
        let mut index = 0;
        while index < self.writes.len() {
            let write = &mut self.writes[index];
            if write.post.rail != rail {
                index += 1;
            } else if write.node == node {
                if !write.completed {
                    self.finish(index);
                }
                self.writes.swap_remove(index);
            } else {
                if write.target.0 == node {
                    write.lost = true;
                }
                index += 1;
            }
        }
        for memory in &mut self.nodes[node].memories {
            if memory.rail == rail && memory.use_ == Use::Quarantined {
                memory.use_ = Use::Freed;
            }
        }
        for channel in 0..self.nodes[node].outcomes.len() as u32 {
            let channel = ChannelId(channel);
            self.nodes[node].events.push_back(Event::RailClosed { channel, rail });
        }
    }
}

fn is_older(one: u64, other: u64) -> bool {
    ((one as u32).wrapping_sub(other as u32) as i32) < 0
}

/// What one node's loop is performed by.
#[derive(Debug)]
pub(crate) struct Hands<'a> {
    pub(crate) node: usize,
    pub(crate) wire: &'a mut Wire,
}

impl Hands<'_> {
    fn me(&mut self) -> &mut Node {
        &mut self.wire.nodes[self.node]
    }

    /// Whether nothing can be posted on this rail. The loop may not know yet.
    fn is_closed(&mut self, rail: u8) -> bool {
        let me = self.me();
        let closed = me.closed[usize::from(rail)];
        let known = !me.events.iter().any(|event| matches!(event, Event::RailClosed { .. }));
        self.wire.law(!(closed && known), "something is posted on a rail that is closed");
        closed
    }

    fn make(&mut self, rail: u8) -> MemoryId {
        let ring = self.wire.setup.ring;
        let garbage = self.wire.random.next();
        // Memory of a slab: what stood there is still there.
        let words = (0..ring.words() + LINE_WORDS).map(|word| garbage ^ word as u64).collect();
        let lines = ring.words() / LINE_WORDS;
        let memory = Memory {
            words,
            owner: vec![0; lines],
            busy: vec![0; lines + 1],
            rail,
            use_: Use::Live,
            key: self.wire.random.next(),
            broken: None,
        };
        let memories = &mut self.me().memories;
        memories.push(memory);
        MemoryId(memories.len() as u32 - 1)
    }
}

impl Shadows for Hands<'_> {
    type Shadow = Memory;

    fn shadow(&mut self, id: MemoryId) -> &mut Memory {
        let freed = self.wire.nodes[self.node].memories[id.0 as usize].use_ == Use::Freed;
        self.wire.law(!freed, "a shadow was used after its release");
        &mut self.me().memories[id.0 as usize]
    }
}

impl Perform<Talk> for Hands<'_> {
    type Inbox = Memory;

    fn inbox(&mut self, id: MemoryId) -> &mut Memory {
        let live = self.wire.nodes[self.node].memories[id.0 as usize].use_ == Use::Live;
        self.wire.law(live, "an inbox was read that was retired");
        &mut self.me().memories[id.0 as usize]
    }

    fn post(&mut self, channel: ChannelId, post: &Post) -> bool {
        let failed = self.me().outcomes[channel.0 as usize].is_some();
        self.wire.law(!failed, "a channel posts after its end");
        if self.is_closed(post.rail) {
            return false;
        }
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
        // An endpoint that is closed takes nothing.
        let lost = lost || self.wire.nodes[target.0].closed[usize::from(post.rail)];
        let inbox = &mut self.wire.nodes[target.0].memories[target.1];
        let right = inbox.key == post.key && inbox.rail == post.rail;
        let (mut free, live) = (true, inbox.use_ == Use::Live);
        if packet {
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

    fn send(&mut self, channel: ChannelId, rail: u8, letter: &Letter) -> bool {
        if self.wire.refuses(Fault::RefusedLetter) {
            return false;
        }
        if self.is_closed(rail) {
            return false;
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
            return true;
        }
        let held_until = self.wire.holds(Fault::LateLetter);
        let to = self.me().peers[channel.0 as usize];
        let words = letter.encode();
        let letter = Letter::decode(&words).expect("it was encoded");
        let node = self.node;
        let proven = letter.key == 0;
        self.wire.mail.push(Mail { node, channel, to, rail, letter, proven, held_until });
        true
    }

    fn act(&mut self, slot: Slot, part: &PartWrite, _: &Account) -> bool {
        if self.wire.refuses(Fault::RefusedPart) {
            return false;
        }
        let to = self.me().ends[slot.index()];
        let lost = self.wire.parts_to_lose > 0 && self.wire.random.percent(10);
        let back = self.wire.nodes[to.0].ends[to.1.index()];
        if lost {
            self.wire.parts_to_lose -= 1;
            self.wire.faults.fire(Fault::LostPart);
            let channel = self.me().channels[slot.index()];
            let node = self.node;
            self.wire.parts_lost.push((node, channel));
        }
        let (rail, completed, arrived) = (part.rail, false, false);
        self.wire.parts.push(Part { from: back, to, rail, lost, completed, arrived });
        true
    }

    fn copy_out(&mut self, shadow: MemoryId, payload: Payload, message: &Message) {
        let memory = self.shadow(shadow);
        for index in 0..payload.bytes.div_ceil(8) {
            ShadowMemory::store(memory, payload.word + index, message.word(index));
        }
    }

    fn copy_in(
        &mut self,
        inbox: MemoryId,
        payload: Payload,
        _: Slot,
        place: &Message,
        _: &mut Account,
    ) {
        let memory = self.inbox(inbox);
        let same = (0..payload.bytes.div_ceil(8))
            .all(|index| InboxMemory::load(memory, payload.word + index) == place.word(index));
        let len = payload.bytes == place.len;
        self.wire.law(same && len, "the payload of an inline message is not what was sent");
    }

    fn next_event(&mut self) -> Option<Event<Happened>> {
        self.me().events.pop_front()
    }

    fn lend_inbox(&mut self, _: ChannelId, rail: u8) -> Option<LentInbox> {
        if self.wire.refuses(Fault::RefusedMemory) {
            return None;
        }
        if self.is_closed(rail) {
            return None;
        }
        let memory = self.make(rail);
        let key = self.me().memories[memory.0 as usize].key;
        let address = (self.node as u64) << 32 | u64::from(memory.0);
        Some(LentInbox { memory, address, key, nonce: Nonce(self.wire.random.next()) })
    }

    fn lend_shadow(&mut self, _: ChannelId) -> Option<MemoryId> {
        if self.wire.refuses(Fault::RefusedMemory) {
            return None;
        }
        Some(self.make(u8::MAX))
    }

    fn retire_inbox(&mut self, memory: MemoryId, rail: u8) {
        let closed = self.me().closed[usize::from(rail)];
        let memory = &mut self.me().memories[memory.0 as usize];
        let right = memory.rail == rail && memory.use_ == Use::Live;
        memory.use_ = if closed { Use::Freed } else { Use::Quarantined };
        self.wire.law(right, "an inbox is retired twice, or from another rail");
        self.wire.faults.fire(Fault::NewInbox);
    }

    fn release_shadow(&mut self, memory: MemoryId) {
        let memory = &mut self.me().memories[memory.0 as usize];
        let idle = memory.busy.iter().all(|busy| *busy == 0);
        let once = memory.use_ == Use::Live;
        memory.use_ = Use::Freed;
        self.wire.law(idle, "a shadow is released under a write that has not completed");
        self.wire.law(once, "a shadow is released twice");
    }

    fn asked_to_open(&mut self, _: ChannelId, _: &Open) -> Option<Refused> {
        None
    }

    fn violated(&mut self, _: Slot, (): ()) {
        self.wire.law(false, "a connection found a breach where none was");
    }

    fn ended(&mut self, channel: ChannelId, outcome: Outcome) {
        let before = self.me().outcomes[channel.0 as usize].replace(outcome);
        self.wire.law(before.is_none(), "a channel ended twice");
        let fault = match outcome {
            Outcome::Over => Fault::EndBothWays,
            Outcome::Failed(_) => Fault::Failed,
        };
        self.wire.faults.fire(fault);
    }
}

impl Wire {
    /// A law that a memory of some node saw broken.
    pub(crate) fn broken_memory(&self) -> Option<&'static str> {
        self.nodes.iter().flat_map(|node| &node.memories).find_map(|memory| memory.broken)
    }
}
