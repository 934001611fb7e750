//! The simulated provider, wire and memory: refused posts; late, torn or lost writes; rails that die.

use std::collections::{BTreeMap, VecDeque};

use proto::channel::Post;
use proto::letter::{Body, Letter, RailNumbers, Status};
use proto::memory::{InboxMemory, ShadowMemory};
use proto::packet::START_BYTES;
use proto::{ChannelId, Event, Outcome};

use crate::control::ControlRails;
use crate::faults::{Fault, Faults};
use crate::hands::{Data, EventOf};
use crate::random::Random;
use crate::setup::Setup;

pub(crate) const LINE_WORDS: usize = START_BYTES as usize / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Live,
    Quarantined,
    /// An inbox that may be lent again.
    Released,
    Freed,
}

/// Registered memory of one node.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) words: Vec<u64>,
    /// For an inbox: the write that owns each cache line, from its post until it is consumed.
    pub(crate) owner: Vec<u64>,
    /// For a shadow: writes of each cache line that have not completed.
    pub(crate) busy: Vec<u32>,
    /// The channel's number of the rail, and the wire's.
    pub(crate) rail: u8,
    pub(crate) link: u8,
    pub(crate) use_: Use,
    /// One for each time that it was lent. Earlier ones stay valid, as a slab's key does.
    pub(crate) keys: Vec<u64>,
    /// A write for an earlier inbox has landed since it was lent.
    pub(crate) disturbed: bool,
    pub(crate) broken: Option<&'static str>,
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
pub(crate) struct Write {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) channel: ChannelId,
    pub(crate) post: Post,
    /// The wire's number of the rail.
    pub(crate) link: u8,
    pub(crate) target: (usize, usize),
    pub(crate) words: Vec<u64>,
    /// Words that have not landed.
    pub(crate) left: Vec<usize>,
    pub(crate) started: bool,
    pub(crate) completed: bool,
    pub(crate) lost: bool,
    pub(crate) early: bool,
    pub(crate) failing: bool,
    pub(crate) held_until: u64,
}

/// A two-sided message in flight.
#[derive(Debug)]
pub(crate) struct Mail {
    pub(crate) node: usize,
    /// Its channel, the channel's number of the rail, and the rail numbers in it; None before there is a channel.
    pub(crate) channel: Option<(ChannelId, u8, RailNumbers)>,
    pub(crate) link: u8,
    pub(crate) content: Content,
    pub(crate) since: u64,
    pub(crate) held_until: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// For a channel that was made without set-up.
    Letter { to: (usize, ChannelId), letter: Letter, proven: bool },
    /// For the set-up code of that node.
    Bytes { to: usize, bytes: Vec<u8> },
}

#[derive(Debug)]
pub(crate) struct Node<E> {
    pub(crate) memories: Vec<Memory>,
    pub(crate) events: VecDeque<Event<E>>,
    /// Two-sided messages that are not read yet.
    pub(crate) inbound: VecDeque<Vec<u8>>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The other end of each channel.
    pub(crate) peers: Vec<(usize, ChannelId)>,
    /// How often the endpoint has borrowed an inbox.
    pub(crate) inbox_uses: usize,
}

/// The simulated world except the endpoints.
#[derive(Debug)]
pub(crate) struct Wire<D: Data> {
    pub(crate) setup: Setup,
    pub(crate) random: Random,
    pub(crate) nodes: Vec<Node<EventOf<D>>>,
    pub(crate) data: D,
    pub(crate) writes: Vec<Write>,
    pub(crate) mail: Vec<Mail>,
    /// By sending and receiving node: how long the slowest letter was under way, in nanoseconds.
    pub(crate) slowest_mail: BTreeMap<(usize, usize), u64>,
    pub(crate) dead: [bool; 4],
    /// Control rails from one node to another that accept everything and deliver nothing.
    pub(crate) mute: Vec<(usize, usize, u8)>,
    /// Whether one ever was mute.
    pub(crate) was_mute: bool,
    /// Percentage: how often an action has no room.
    pub(crate) crowded: u32,
    /// Whether a control rail ever was dead.
    pub(crate) died: bool,
    pub(crate) control: ControlRails,
    pub(crate) losses: usize,
    pub(crate) packets_lost: usize,
    pub(crate) now: u64,
    pub(crate) fair: bool,
    pub(crate) next_id: u64,
    pub(crate) faults: Faults,
    pub(crate) violation: Option<String>,
}

impl<D: Data> Wire<D> {
    pub(crate) fn new(setup: Setup, random: Random, data: D) -> Self {
        let node = |_| Node {
            memories: Vec::new(),
            events: VecDeque::new(),
            inbound: VecDeque::new(),
            outcomes: Vec::new(),
            peers: Vec::new(),
            inbox_uses: 0,
        };
        Self {
            nodes: (0..setup.nodes).map(node).collect(),
            losses: setup.losses,
            setup,
            random,
            data,
            writes: Vec::new(),
            mail: Vec::new(),
            slowest_mail: BTreeMap::new(),
            dead: [false; 4],
            mute: Vec::new(),
            was_mute: false,
            crowded: 0,
            died: false,
            control: ControlRails::default(),
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

    pub(crate) fn refuses(&mut self, fault: Fault) -> bool {
        let refused = !self.fair && self.random.percent(self.setup.refuse);
        if refused {
            self.faults.fire(fault);
        }
        refused
    }

    /// Whether an action has no room now.
    pub(crate) fn is_crowded(&mut self) -> bool {
        let crowded = self.crowded > 0 && !self.fair && self.random.percent(self.crowded);
        if crowded {
            self.faults.fire(Fault::NoRoom);
        }
        crowded
    }

    pub(crate) fn loses(&mut self, fault: Fault) -> bool {
        let lost = self.losses > 0 && self.random.percent(self.setup.lose);
        if lost {
            self.losses -= 1;
            self.faults.fire(fault);
        }
        lost
    }

    pub(crate) fn holds(&mut self, fault: Fault) -> u64 {
        if self.fair || !self.random.percent(self.setup.late) {
            return 0;
        }
        self.faults.fire(fault);
        self.now + self.random.between(100_000, 60_000_000)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.writes.iter().all(|write| write.completed && write.lost)
            && self.mail.is_empty()
            && self.data.is_quiet()
            && self.nodes.iter().all(|node| {
                // After the last channel nothing polls any more. QUERYs of a waiting node never stop, and may fail.
                let of_letter =
                    |event: &_| matches!(event, Event::Letter { .. } | Event::LetterFailed { .. });
                node.events.iter().all(of_letter) || node.outcomes.iter().all(Option::is_some)
            })
    }

    /// What is in flight, for the report of a schedule that does not come to rest.
    pub(crate) fn unrest(&self) -> String {
        let writes = self.writes.iter().filter(|write| !(write.completed && write.lost)).count();
        let events: Vec<_> = self.nodes.iter().map(|node| node.events.len()).collect();
        let mail = self.mail.len();
        format!("writes {writes} mail {mail} data {} events {events:?}", !self.data.is_quiet())
    }

    /// Some steps of what is in flight.
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
            D::advance(self, most);
        }
    }

    fn advance_write(&mut self, index: usize) {
        let dead = self.dead[usize::from(self.writes[index].link)];
        let (now, coin) = (self.now, self.random.percent(50));
        let delay = self.random.between(0, 20_000_000);
        let ends = self.random.percent(60);
        let write = &mut self.writes[index];
        if dead && !write.failing && !write.completed {
            // The write fails: what has not landed lands later, or never.
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

    /// The provider does not need the shadow's bytes any more.
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
        let is_its_own = target.use_ == Use::Live && target.keys.last() == Some(&write.post.key);
        let mut law = None;
        match target.use_ {
            Use::Freed => law = Some("a late write lands in memory that was freed"),
            Use::Quarantined | Use::Released => self.faults.fire(Fault::LandedInQuarantine),
            Use::Live if !is_its_own => {
                self.faults.fire(Fault::LandedInAnotherInbox);
                // It may destroy a packet.
                self.packets_lost += 1;
                target.disturbed = true;
            }
            Use::Live => {}
        }
        let at = write.post.at as usize / 8;
        for _ in 0..words {
            let last = write.left.len() - 1;
            let pick = if torn { self.random.below(write.left.len()) } else { last };
            let word = write.left.swap_remove(pick);
            if let Some(owner) = target.owner.get((at + word) / LINE_WORDS) {
                if is_its_own && *owner != write.id {
                    // The late write may have had the same words, so that the packet was whole before.
                    if target.disturbed {
                        self.packets_lost += 1;
                    } else {
                        law = Some("a word lands on a packet that was read, or on a later one");
                    }
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
        let link = usize::from(mail.link);
        // A first HELLO finds another way, if there is one.
        let others = self.dead[..usize::from(self.setup.rails)].contains(&false);
        let lost = if mail.channel.is_none() && others { 100 } else { 70 };
        if self.dead[link] && self.random.percent(lost) {
            if let Some((channel, rail, numbers)) = mail.channel {
                let failed = Event::LetterFailed { channel, rail, numbers };
                self.nodes[mail.node].events.push_back(failed);
            }
            return;
        }
        let node = match mail.content {
            Content::Letter { to, .. } => to.0,
            Content::Bytes { to, .. } => to,
        };
        if self.is_mute(mail.node, node, mail.link) {
            return;
        }
        let slowest = self.slowest_mail.entry((mail.node, node)).or_default();
        *slowest = (*slowest).max(self.now - mail.since);
        if self.setup.forges && self.random.percent(5) {
            self.faults.fire(Fault::RepeatedLetter);
            self.deliver(mail.content.clone());
        }
        self.deliver(mail.content);
    }

    fn deliver(&mut self, content: Content) {
        match content {
            Content::Letter { to: (node, channel), letter, proven } => {
                self.nodes[node].events.push_back(Event::Letter { channel, letter, proven });
            }
            Content::Bytes { to, bytes } => self.nodes[to].inbound.push_back(bytes),
        }
    }

    /// A forged letter from an attacker that knows everything but the key.
    pub(crate) fn forge(&mut self, node: usize, channel: ChannelId, template: &Status) {
        self.faults.fire(Fault::ForgedLetter);
        let body = Body::Status(Status { failed: true, ..*template });
        let rails = RailNumbers::new([1; 4]);
        let letter = Letter { key: self.random.next() | 1, rails, body };
        self.nodes[node].events.push_back(Event::Letter { channel, letter, proven: false });
        let letter = Letter { key: 0, rails, body };
        self.nodes[node].events.push_back(Event::Letter { channel, letter, proven: true });
    }

    /// A control rail from one node to the other delivers nothing any more.
    pub(crate) fn mute(&mut self, way: (usize, usize), link: u8) {
        let way = (way.0, way.1, link);
        if !self.mute.contains(&way) {
            self.mute.push(way);
            self.was_mute = true;
            self.faults.fire(Fault::MutedRail);
        }
    }

    pub(crate) fn is_mute(&self, from: usize, to: usize, link: u8) -> bool {
        self.mute.contains(&(from, to, link))
    }

    pub(crate) fn kill_rail(&mut self, rail: usize) {
        if !self.dead[rail] {
            (self.dead[rail], self.died) = (true, true);
            self.faults.fire(Fault::RailDeath);
            if self.dead[..usize::from(self.setup.rails)].iter().all(|dead| *dead) {
                self.faults.fire(Fault::AllRailsDead);
            }
        }
    }

    /// A control rail works again.
    pub(crate) fn revive_rail(&mut self, rail: usize) {
        if std::mem::replace(&mut self.dead[rail], false) {
            self.faults.fire(Fault::ControlRailRevived);
        }
    }

    /// A law that was broken in some node's memory.
    pub(crate) fn broken_memory(&self) -> Option<&'static str> {
        self.nodes.iter().flat_map(|node| &node.memories).find_map(|memory| memory.broken)
    }
}

fn is_older(one: u64, other: u64) -> bool {
    ((one as u32).wrapping_sub(other as u32) as i32) < 0
}
