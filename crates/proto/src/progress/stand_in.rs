//! A stand-in for the environment of a progress loop in tests: memory, and a record of what was done.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Acted, ChannelId, Event, LentInbox, LetterPost, Outcome, Perform, TrialTarget};
use crate::account::Account;
use crate::channel::{Cause, Channel, Parameters, Post, RailNews, Shadow, Written};
use crate::codec::Address;
use crate::counts::PeerCounts;
use crate::fault::Breach;
use crate::flow::{self, Action, Flow};
use crate::frame::{Frame, Offer, Open, Refused};
use crate::ids::{Epoch, Moment, Nonce, PacketNumber, Slot};
use crate::letter::{Body, Hello, Letter, RailNumbers, Status};
use crate::memory::{Lease, MemoryId, Payload, Shadows, Words};
use crate::packet::{HEADER_WORDS, Ring};
use crate::receive::{Place, Tagged};
use crate::send::{Outgoing, PartWrite};

const RING: Ring = Ring::SHORT;

/// The parameters of a channel with one control rail, whose data rails are the endpoint's first ones.
pub(super) fn parameters(data_rails: u8) -> Parameters {
    Parameters {
        ring: RING,
        rails: 1,
        data_rails,
        rail: 0,
        key: 1,
        locals: std::array::from_fn(|at| crate::bits::low8(at as u64)),
        failover: true,
        tries: true,
        closes: true,
        measure_by_arrival: false,
        peer_timeout: Duration::from_secs(75),
        quarantine: 4,
        first: PacketNumber::new(1),
    }
}

#[derive(Debug, Default)]
pub(super) struct StandIn {
    memory: Vec<Words>,
    pub(super) events: VecDeque<Event<flow::Event>>,
    /// The letters that were posted; the frames of the packets; and the parts: each in order.
    pub(super) letters: Vec<Letter>,
    pub(super) frames: Vec<Frame>,
    pub(super) writes: Vec<PartWrite>,
    /// The tagged receives that were posted or cancelled.
    pub(super) tagged: Vec<Tagged>,
    /// The channel of each HELLO that was posted.
    pub(super) greeted: Vec<ChannelId>,
    /// How many frames had left when each of the parts was posted.
    pub(super) frames_before: Vec<usize>,
    /// Our data rails that were closed, and the trials that were posted.
    pub(super) closed: Vec<u8>,
    pub(super) trials: Vec<Offer>,
    /// No data rail can be closed.
    pub(super) closes_not: bool,
    pub(super) reopens_not: bool,
    /// The close of a rail has failed for good.
    pub(super) leaks: bool,
    /// No memory is available.
    pub(super) starves: bool,
    /// The outcome of each action, if none is performed.
    pub(super) acts_not: Option<Acted>,
    /// How often memory was requested.
    pub(super) asked: u32,
    /// No write of a channel is posted.
    pub(super) posts_not: bool,
    /// A data rail that is opened again has new keys: a region's key is its number plus 100.
    pub(super) new_keys: bool,
    /// How many acknowledgements were written into the peer's cell.
    pub(super) cells: u32,
    /// How often an inbox was read.
    pub(super) looks: u32,
    /// The peer's shadow of the inbox that [`says`](Self::says) writes into.
    peer: Option<Shadow>,
    /// How many inboxes and shadows were released, and which channels are forgotten.
    pub(super) released: usize,
    pub(super) forgotten: Vec<ChannelId>,
    /// Failures that came late.
    pub(super) late: u32,
    /// The reported losses and returns of control rails.
    pub(super) control_news: Vec<RailNews>,
}

impl StandIn {
    /// The peer of a channel lends its first inbox.
    pub(super) fn meet(&mut self, channel: ChannelId) {
        self.lends(channel, Epoch(1));
    }

    /// The peer of a channel lends an inbox, and has not received our HELLO.
    pub(super) fn lends(&mut self, channel: ChannelId, epoch: Epoch) {
        self.greets(channel, epoch, Epoch(0));
    }

    /// The peer of a channel echoes our first inbox, and has lent its own.
    pub(super) fn knows(&mut self, channel: ChannelId) {
        self.greets(channel, Epoch(1), Epoch(1));
    }

    fn greets(&mut self, channel: ChannelId, epoch: Epoch, echo: Epoch) {
        let lease = Lease { epoch, nonce: Nonce(5), rail: 0, address: 0, key: 0 };
        let consumed = PacketNumber::new(0);
        let hello = Hello { lease, key: 2, consumed, echo, requests_echo: echo == Epoch(0) };
        let rails = RailNumbers::default();
        let letter = Letter { key: 0, rails, body: Body::Hello(hello) };
        self.events.push_back(Event::Letter { channel, letter, proven: true });
    }

    /// The peer answers a QUERY, and has consumed nothing.
    pub(super) fn answers(&mut self, channel: ChannelId, change: impl FnOnce(&mut Status)) {
        let mut status = Status {
            epoch: Epoch(1),
            consumed: PacketNumber::new(0),
            asked: PacketNumber::new(0),
            counts: PeerCounts::default(),
            waits: false,
            failed: false,
            idle_ms: 0,
            about: None,
        };
        change(&mut status);
        let letter = Letter { key: 1, rails: RailNumbers::default(), body: Body::Status(status) };
        self.events.push_back(Event::Letter { channel, letter, proven: false });
    }

    /// A packet of the peer with these frames lands in the inbox of a channel.
    pub(super) fn says(&mut self, channel: &Channel, frames: &[Frame]) {
        let inbox = channel.inbox().unwrap();
        let (lease, to) = (*inbox.lease(), inbox.memory());
        let mut shadow = self.peer.take().unwrap_or_else(|| {
            let mut shadow = Shadow::new(RING, PacketNumber::new(1));
            let memory = self.lend().unwrap();
            // The shadow's memory is the peer's.
            self.released += 1;
            shadow.adopt(self, (lease, memory), PacketNumber::new(0), |_| {}).unwrap();
            shadow
        });
        let memory = shadow.memory().unwrap();
        for frame in frames {
            assert!(shadow.append(self.shadow(memory), frame));
        }
        assert!(shadow.seal(self.shadow(memory)));
        let write = shadow.next_post().unwrap();
        let range = write.at as usize / 8..(write.at + write.bytes) as usize / 8;
        let packet = self.memory[memory.0 as usize].0[range.clone()].to_vec();
        self.memory[to.0 as usize].0[range].copy_from_slice(&packet);
        shadow.posted(Moment::default());
        self.peer = Some(shadow);
    }

    /// As [`says`](Self::says), for the first packet of a channel's peer.
    pub(super) fn says_first(&mut self, channel: &Channel, frames: &[Frame]) {
        self.peer = None;
        self.says(channel, frames);
    }

    /// The peer acknowledges the packets of a channel up to this one.
    pub(super) fn acknowledges(&mut self, channel: &Channel, packet: PacketNumber) {
        let inbox = channel.inbox().unwrap();
        let cell = inbox.lease().nonce.cell(packet);
        self.memory[inbox.memory().0 as usize].0[RING.words()] = cell;
    }

    /// How many inboxes and shadows are in use.
    pub(super) fn in_use(&self) -> usize {
        self.memory.len() - self.released
    }

    fn lend(&mut self) -> Option<MemoryId> {
        self.asked += 1;
        if self.starves {
            return None;
        }
        self.memory.push(Words(vec![0; RING.words() + 8]));
        Some(MemoryId(crate::bits::count32(self.memory.len() - 1)))
    }
}

impl Shadows for StandIn {
    type Shadow = Words;

    fn shadow(&mut self, id: MemoryId) -> &mut Words {
        &mut self.memory[id.0 as usize]
    }
}

impl Perform<Flow> for StandIn {
    type Inbox = Words;

    fn inbox(&mut self, id: MemoryId) -> &mut Words {
        self.looks += 1;
        &mut self.memory[id.0 as usize]
    }

    fn post(&mut self, _: ChannelId, post: &Post) -> bool {
        if self.posts_not {
            return false;
        }
        if let Written::Packet(_) = post.write.what {
            let (from, bytes) = (post.at as usize / 8, post.bytes as usize / 8);
            let packet = &self.memory[post.from.0 as usize].0[from..][..bytes];
            let mut rest = &packet[HEADER_WORDS..];
            while !rest.is_empty() {
                let frame = Frame::decode(rest).unwrap();
                rest = &rest[frame.words()..];
                self.frames.push(frame);
            }
        } else {
            self.cells += 1;
        }
        true
    }

    fn send(&mut self, channel: ChannelId, _: u8, letter: &Letter) -> LetterPost {
        if let Body::Hello(_) = letter.body {
            self.greeted.push(channel);
        }
        self.letters.push(*letter);
        LetterPost::Posted
    }

    fn act(&mut self, _: Slot, action: &Action, _: &Account) -> Acted {
        if let Some(not) = self.acts_not {
            return not;
        }
        match action {
            Action::Write(write) => {
                self.writes.push(*write);
                self.frames_before.push(self.frames.len());
            }
            Action::Tagged(tagged) => self.tagged.push(*tagged),
            Action::Copy(_) => {}
        }
        Acted::Done
    }

    fn copy_out(&mut self, _: MemoryId, _: Payload, _: &Outgoing) {}

    fn copy_in(&mut self, _: MemoryId, _: Payload, _: Slot, _: &Place, _: &mut Account) {}

    fn next_event(&mut self) -> Option<Event<flow::Event>> {
        self.events.pop_front()
    }

    fn lend_inbox(&mut self, _: ChannelId, _: u8) -> Option<LentInbox> {
        Some(LentInbox { memory: self.lend()?, address: 0, key: 0, nonce: Nonce(6) })
    }

    fn lend_shadow(&mut self, _: ChannelId) -> Option<MemoryId> {
        self.lend()
    }

    fn retire_inbox(&mut self, _: MemoryId) {}

    fn failed_late(&mut self, _: ChannelId, _: u8) {
        self.late += 1;
    }

    fn release_inbox(&mut self, _: MemoryId) {
        self.released += 1;
    }

    fn release_shadow(&mut self, _: MemoryId) {
        self.released += 1;
    }

    fn open_requested(&mut self, _: ChannelId, _: &Open) -> Option<Refused> {
        None
    }

    fn violated(&mut self, _: Slot, _: Breach) {}

    fn control_rails(&mut self, _: ChannelId, news: RailNews) {
        self.control_news.push(news);
    }

    fn rail_lost(&mut self, _: ChannelId, _: u8, _: Cause) {}

    fn close_rail(&mut self, local: u8) -> bool {
        if !self.closes_not {
            self.closed.push(local);
        }
        !self.closes_not
    }

    fn can_reopen(&self, _: u8) -> bool {
        !self.reopens_not
    }

    fn open_rail(&mut self, _: u8) -> Option<bool> {
        Some(self.new_keys)
    }

    fn trial_target(&mut self, local: u8) -> Option<TrialTarget> {
        let address = Address::new(&[local]).filter(|_| !self.leaks)?;
        Some(TrialTarget { address, target: 0, key: 0 })
    }

    fn key_of(&mut self, _: u8, region: u32) -> u64 {
        100 + u64::from(region)
    }

    fn reach(&mut self, _: ChannelId, _: u8, _: &Address) -> bool {
        true
    }

    fn try_rail(&mut self, _: ChannelId, offer: &Offer) -> bool {
        self.trials.push(*offer);
        true
    }

    fn rail_returned(&mut self, _: ChannelId, _: u8) {}

    fn ended(&mut self, _: ChannelId, _: Outcome) {}

    fn forgotten(&mut self, channel: ChannelId) {
        self.forgotten.push(channel);
    }
}
