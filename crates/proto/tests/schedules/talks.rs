//! The traffic of stand-in connections outside of the channel: parts that are only counted, payloads that are generated
//! from their seeds.

use proto::frame::{Open, Refused};
use proto::letter::Letter;
use proto::packet::Ring;
use proto::{Account, Cause, ChannelId, Event, Generation, Slot};

use crate::faults::Fault;
use crate::hands::Data;
use crate::talk::{Happened, Message, PartWrite, Talk};
use crate::wire::{Content, Wire};

#[derive(Debug)]
pub(crate) struct Part {
    from: (usize, Slot, Generation),
    to: (usize, Slot, Generation),
    rail: u8,
    lost: bool,
    completed: bool,
    arrived: bool,
    /// How many packets all nodes had written when it was posted.
    pub(crate) packets_before: u64,
}

/// The connections of one node by slot: their other ends, and their channels.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) ends: Vec<(usize, Slot, Generation)>,
    pub(crate) channels: Vec<ChannelId>,
}

#[derive(Debug, Default)]
pub(crate) struct Talks {
    pub(crate) nodes: Vec<Ends>,
    pub(crate) parts: Vec<Part>,
    to_lose: usize,
    /// Channels on which a part was lost.
    pub(crate) lost: Vec<(usize, ChannelId)>,
}

impl Talks {
    pub(crate) fn new(nodes: usize, to_lose: usize) -> Self {
        let nodes = (0..nodes).map(|_| Ends::default()).collect();
        Self { nodes, to_lose, ..Self::default() }
    }
}

impl Data for Talks {
    type Connection = Talk;

    fn link(&self, _: usize, _: ChannelId, rail: u8) -> u8 {
        rail
    }

    fn ring(&self, _: usize, _: ChannelId) -> Option<Ring> {
        None
    }

    fn content(
        wire: &mut Wire<Self>,
        node: usize,
        (channel, _): (ChannelId, u8),
        letter: &Letter,
    ) -> Option<Content> {
        let to = wire.nodes[node].peers[channel.0 as usize];
        let letter = Letter::decode(&letter.encode()).expect("it was encoded");
        Some(Content::Letter { to, letter, proven: letter.key == 0 })
    }

    fn act(
        wire: &mut Wire<Self>,
        (node, slot): (usize, Slot),
        part: &PartWrite,
        _: &Account,
    ) -> bool {
        if wire.refuses(Fault::RefusedPart) {
            return false;
        }
        let to = wire.data.nodes[node].ends[slot.index()];
        let lost = wire.data.to_lose > 0 && wire.random.percent(10);
        let from = wire.data.nodes[to.0].ends[to.1.index()];
        if lost {
            wire.data.to_lose -= 1;
            wire.faults.fire(Fault::LostPart);
            let channel = wire.data.nodes[node].channels[slot.index()];
            wire.data.lost.push((node, channel));
        }
        let (rail, completed, arrived) = (part.rail, false, false);
        let packets_before = wire.faults.count(Fault::PacketWritten);
        wire.data.parts.push(Part { from, to, rail, lost, completed, arrived, packets_before });
        true
    }

    fn word(&self, _: usize, message: &Message, index: usize, _: usize) -> u64 {
        message.word(index)
    }

    fn arrived(
        wire: &mut Wire<Self>,
        _: (usize, Slot),
        (words, bytes): (&[u64], usize),
        place: &Message,
        _: &mut Account,
    ) {
        let same = words.iter().enumerate().all(|(index, word)| *word == place.word(index));
        let law = "the payload of an inline message is not what was sent";
        wire.law(same && bytes == place.len, law);
    }

    fn open_requested(&mut self, _: usize, _: ChannelId, _: &Open) -> Option<Refused> {
        None
    }

    fn far(wire: &Wire<Self>, (node, channel): (usize, ChannelId)) -> Option<(usize, ChannelId)> {
        Some(wire.nodes[node].peers[channel.0 as usize])
    }

    fn ended(&mut self, _: usize, _: ChannelId) {}

    fn rail_lost(wire: &mut Wire<Self>, _: (usize, ChannelId), _: u8, _: Cause) {
        wire.law(false, "a rail without a substitute is lost");
    }

    fn close_data(wire: &mut Wire<Self>, _: usize, _: u8) -> bool {
        wire.law(false, "a rail without a substitute is closed");
        false
    }

    fn advance(wire: &mut Wire<Self>, most: usize) {
        for _ in 0..wire.data.parts.len().min(most) {
            let index = wire.random.below(wire.data.parts.len());
            if index < wire.data.parts.len() {
                advance(wire, index);
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.parts.is_empty()
    }
}

fn advance(wire: &mut Wire<Talks>, index: usize) {
    let first = wire.random.percent(50);
    let part = &mut wire.data.parts[index];
    let mut happened = None;
    if (first || part.arrived || part.lost) && !part.completed {
        part.completed = true;
        happened = Some((part.from, Happened::Completed { rail: part.rail }));
    } else if !part.arrived && !part.lost {
        part.arrived = true;
        happened = Some((part.to, Happened::Arrived { rail: part.rail }));
    }
    if part.completed && (part.arrived || part.lost) {
        wire.data.parts.swap_remove(index);
    }
    if let Some(((node, slot, generation), event)) = happened {
        wire.nodes[node].events.push_back(Event::Connection { slot, generation, event });
    }
}
