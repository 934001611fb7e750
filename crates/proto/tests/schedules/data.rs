//! The traffic of real flows outside of the channel: buffers of applications, data rails, and messages of set-up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::bound::{RAIL_CHECK, RAIL_HANGS, RAIL_SILENT};
use proto::codec::Address;
use proto::frame::{Offer, Open, Refused};
use proto::letter::Letter;
use proto::packet::Ring;
use proto::progress::TrialTarget;
use proto::receive::Place;
use proto::setup::{Pairing, PeerId, Peers, Proof, Prove, Secret};
use proto::{
    Account, Action, Cause, ChannelId, Event, Flow, Name, Outgoing, PartWrite, Slot, flow,
};

use crate::faults::Fault;
use crate::hands::Data;
use crate::random::Random;
use crate::setup::Setup;
use crate::tagged::{self, Provider};
use crate::talk::mix;
use crate::trials::{self, Returns};
use crate::wire::{Content, Wire};

/// A buffer's address as peers use it: the buffer's number, shifted.
pub(crate) const BUFFER_SHIFT: u32 = 40;

/// A keyed function for tests, without any security.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing;

impl Prove for Mixing {
    fn prove(&self, secret: &Secret, words: &[u64]) -> Proof {
        let seed = u64::from_le_bytes(secret.0[..8].try_into().unwrap());
        let run = |seed: u64| words.iter().fold(seed, |sum, word| mix(sum ^ word).rotate_left(9));
        Proof([run(seed), run(!seed)])
    }
}

/// The memory of one receive.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) node: usize,
    pub(crate) bytes: Vec<u8>,
    /// How often each byte was written.
    pub(crate) writes: Vec<u8>,
    /// Its receive was reported, or it is deregistered: nothing may land here any more.
    pub(crate) closed: bool,
}

impl Buffer {
    pub(crate) fn new(node: usize, room: u64) -> Self {
        let room = room as usize;
        Self { node, bytes: vec![0; room], writes: vec![0; room], closed: false }
    }
}

/// A part on a data rail.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) from: (usize, Name),
    pub(crate) to: usize,
    /// The wire's number of the data rail, and which of its successive endpoints the part goes to.
    link: u8,
    incarnation: u8,
    pub(crate) write: PartWrite,
    /// Pieces that have not landed: start and end.
    left: Vec<(u64, u64)>,
    arrived: bool,
    /// It completes only after it has landed.
    delivered: bool,
    pub(crate) completed: bool,
    fate: Fate,
    held_until: u64,
    posted_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lands,
    /// Completes, but never lands.
    Lost,
    /// Completes with an error. Pieces that have not landed then never do.
    Fails,
    /// Completes with an error, but lands later.
    FailsLate,
    /// Neither completes nor lands, until its rail is closed.
    Hangs,
}

/// A data rail from one node to another that has died, and perhaps the way back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dead {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) link: u8,
    death: Death,
    both_ways: bool,
}

impl Dead {
    /// Whether it is between these two nodes, whichever way.
    pub(crate) fn is_between(&self, pair: (usize, usize), link: u8) -> bool {
        let (from, to) = pair;
        self.link == link && [(from, to), (to, from)].contains(&(self.from, self.to))
    }

    fn is_way(&self, (from, to): (usize, usize), link: u8) -> bool {
        self.is_between((from, to), link) && (self.both_ways || self.from == from)
    }
}

/// A data rail between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    /// The lower one first.
    pair: (usize, usize),
    rail: u8,
}

impl Link {
    /// `rail` is the wire's number.
    pub(crate) fn between([one, other]: [usize; 2], rail: u8) -> Self {
        Self { pair: (one.min(other), one.max(other)), rail }
    }

    pub(crate) fn nodes(self) -> [usize; 2] {
        self.pair.into()
    }
}

/// How a data rail between two nodes has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Its writes fail.
    Loud,
    /// Its writes complete and never arrive, if completions do not prove arrival; else they never complete.
    Silent,
    /// The provider refuses further writes.
    Refusing,
}

/// A channel of a node.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) peer: PeerId,
    pub(crate) far: usize,
    pub(crate) rails: Pairing,
    pub(crate) ring: Ring,
    pub(crate) proves_arrival: bool,
    pub(crate) true_lengths: bool,
    /// Whether rails come back.
    pub(crate) tries: bool,
}

/// The settings of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) failover: bool,
    /// Whether it can close its data rails.
    pub(crate) closes: bool,
    pub(crate) peer_timeout: Duration,
}

impl Settings {
    pub(crate) fn of(setup: &Setup) -> Self {
        Self { failover: setup.failover, closes: true, peer_timeout: setup.peer_timeout }
    }

    /// Its own ones, within those of the setup.
    pub(crate) fn draw(&mut self, random: &mut Random) {
        self.failover &= random.percent(85);
        self.closes = random.percent(85);
        self.peer_timeout *= random.pick(&[1, 1, 2]);
    }
}

#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) peers: Vec<Peers<Mixing>>,
    /// By node: the wire's number of each of its rails.
    pub(crate) order: Vec<Vec<u8>>,
    pub(crate) settings: Vec<Settings>,
    /// Messages whose memory is the application's again: they were reported, or it is deregistered.
    pub(crate) released: BTreeSet<u32>,
    /// By node and channel.
    pub(crate) channels: Vec<Vec<Joined>>,
    /// Where parts are messages; None: they are writes.
    pub(crate) provider: Option<Provider>,
    /// By node and slot: the channel of the connection there.
    pub(crate) slots: Vec<Vec<Option<(ChannelId, Name)>>>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) to_lose: usize,
    pub(crate) to_fail: usize,
    /// Percentage.
    pub(crate) late: u32,
    /// Data rails between two nodes that have died.
    pub(crate) dead: Vec<Dead>,
    /// Data rails that a fault of their own has hit.
    pub(crate) faulty: BTreeSet<Link>,
    /// Those, and others that were lost, or that an end has closed.
    pub(crate) disturbed: BTreeSet<Link>,
    /// By data rail: the longest time from the post of a part to its landing.
    pub(crate) slowest: BTreeMap<Link, Duration>,
    /// By data rail: how long it carries one part, in nanoseconds, one after the other; 0: no time.
    pub(crate) paces: [u64; 16],
    /// By sending node and data rail: when it has carried all that was posted.
    pub(crate) free_at: BTreeMap<(usize, u8), u64>,
    /// By node: data rails that are closed.
    pub(crate) closed: Vec<u16>,
    /// Rails that return: their current endpoints, which peers know them, and trials.
    pub(crate) returns: Returns,
    /// The buffers that parts were written to.
    pub(crate) posted: BTreeSet<u64>,
    /// Lost parts that nothing can fence: the node, its channel and the channel's number of the rail.
    pub(crate) lost: Vec<(usize, ChannelId, u8)>,
    /// Conversations in which a write failed.
    pub(crate) failed: Vec<usize>,
    /// Rails that were lost: the node, its channel and the channel's number of the rail.
    pub(crate) losses: Vec<(usize, ChannelId, u8)>,
    /// Those of them that have not returned, up to the end of the channel.
    pub(crate) missing: BTreeSet<(usize, ChannelId, u8)>,
}

/// The bytes of a message, whose number is in its source.
pub(crate) fn byte(message: u32, at: u64) -> u8 {
    (mix((u64::from(message) << 20) ^ (at / 8)) >> (8 * (at % 8))) as u8
}

/// The key of a buffer on a data rail; `place` is from [`Flows::place`].
pub(crate) fn key(buffer: usize, place: u64) -> u64 {
    mix((buffer as u64) << 24 | place)
}

/// A rail's address: its node, its number, data or control.
pub(crate) fn address(node: usize, link: usize, control: bool) -> Address {
    Address::new(&[node as u8, link as u8, u8::from(control), 7]).unwrap()
}

impl Flows {
    /// Whether both ends of a channel survive the loss of one of several rails.
    pub(crate) fn fails_over(&self, ends: [usize; 2]) -> bool {
        ends.iter().all(|node| self.settings[*node].failover)
    }

    /// The wire's number of a channel's data rail.
    pub(crate) fn data_link(&self, node: usize, channel: ChannelId, rail: u8) -> u8 {
        let joined = &self.channels[node][channel.0 as usize];
        self.order[node][usize::from(joined.rails.data[usize::from(rail)].ours)]
    }

    /// Those of all its data rails.
    pub(crate) fn data_links(&self, node: usize, channel: ChannelId) -> Vec<u8> {
        let rails = 0..self.channels[node][channel.0 as usize].rails.data.len() as u8;
        rails.map(|rail| self.data_link(node, channel, rail)).collect()
    }

    /// The other end of a channel, once it exists.
    pub(crate) fn far(&self, node: usize, channel: ChannelId) -> Option<(usize, ChannelId)> {
        let far = self.channels[node][channel.0 as usize].far;
        let mut ends = self.channels[far]
            .iter()
            .zip(0..)
            .filter(|(joined, id)| joined.far == node && (far != node || *id != channel.0));
        ends.next().map(|(_, id)| (far, ChannelId(id)))
    }

    /// Stores bytes that a peer wrote, or that were copied.
    fn write(&mut self, buffer: usize, offset: u64, bytes: &[u8]) -> Result<(), &'static str> {
        let Some(buffer) = self.buffers.get_mut(buffer) else {
            return Err("a write goes nowhere");
        };
        if buffer.closed {
            return Err("a late write lands in a buffer that was deregistered");
        }
        let start = offset as usize;
        let end = start + bytes.len();
        if end > buffer.bytes.len() {
            return Err("a write goes past the end of its receive");
        }
        buffer.bytes[start..end].copy_from_slice(bytes);
        for writes in &mut buffer.writes[start..end] {
            *writes += 1;
            // Parts of a lost rail may be written twice.
            if *writes > 1 && self.disturbed.is_empty() {
                return Err("a byte of a receive was written twice");
            }
        }
        Ok(())
    }

    /// How the data rail from `node` to `far` has died.
    pub(crate) fn death(&self, node: usize, far: usize, link: u8) -> Option<Death> {
        let dead = self.dead.iter().find(|dead| dead.is_way((node, far), link));
        dead.map(|dead| dead.death)
    }

    fn is_dead(&self, pair: (usize, usize), link: u8) -> bool {
        self.dead.iter().any(|dead| dead.is_between(pair, link))
    }

    /// A data rail of a node and its current endpoint, as keys distinguish them.
    pub(crate) fn place(&self, node: usize, link: u8) -> u64 {
        let incarnation = self.returns.incarnation(node, link);
        let incarnation = if self.returns.new_keys { incarnation } else { 0 };
        u64::from(incarnation) << 8 | u64::from(link)
    }

    pub(crate) fn is_closed(&self, node: usize, link: u8) -> bool {
        self.closed[node] >> link & 1 == 1
    }

    /// Records a fault of a data rail.
    fn fail(&mut self, link: Link) {
        self.faulty.insert(link);
        self.disturb(link);
    }

    /// Whether a fault of its own has hit a data rail between these nodes.
    pub(crate) fn has_faulty_rail(&self, nodes: [usize; 2]) -> bool {
        self.faulty.iter().any(|link| *link == Link::between(nodes, link.rail))
    }

    /// Records that parts on a data rail may get lost, by a fault or because an end has closed it.
    pub(crate) fn disturb(&mut self, link: Link) {
        self.disturbed.insert(link);
        self.returns.disturb(link);
    }

    /// How long the oldest write of an end of a channel has been in flight on a data rail.
    fn stood(&self, (node, channel): (usize, ChannelId), link: u8, now: u64) -> Duration {
        let of = |flight: &&Flight| {
            let (from, name) = flight.from;
            let there = self.slots[from][name.slot.index()];
            (from, flight.link) == (node, link) && there.is_some_and(|(id, _)| id == channel)
        };
        let flying = self.flights.iter().filter(of).filter(|flight| !flight.completed);
        flying.map(|flight| flight.age(now)).max().unwrap_or_default()
    }

    /// How many writes of an end of a channel have not completed.
    pub(crate) fn flying_of(&self, (node, channel): (usize, ChannelId)) -> u32 {
        let of = |flight: &&Flight| {
            let (from, name) = flight.from;
            let there = self.slots[from][name.slot.index()];
            from == node && there.is_some_and(|(id, _)| id == channel) && !flight.completed
        };
        self.flights.iter().filter(of).count() as u32
    }

    /// Whether a part of a rail was in flight for so long that it may be taken for lost.
    pub(crate) fn was_overdue(&self, link: Link, now: u64, bound: Duration) -> bool {
        let late = |flight: &Flight| flight.is_on() == link && flight.age(now) >= bound;
        let slowest = self.slowest.get(&link).copied().unwrap_or_default();
        slowest >= bound || self.flights.iter().any(late)
    }

    /// Whether a part of this message is in flight, landed or not.
    pub(crate) fn flies(&self, message: u32, counts: impl Fn(&Flight) -> bool) -> bool {
        self.flights.iter().any(|flight| flight.write.source.region == message && counts(flight))
    }
}

impl Flight {
    fn is_on(&self) -> Link {
        Link::between([self.from.0, self.to], self.link)
    }

    fn age(&self, now: u64) -> Duration {
        Duration::from_nanos(now - self.posted_at)
    }

    pub(crate) fn has_landed(&self) -> bool {
        self.left.is_empty() && self.arrived
    }

    /// Whether it has not landed, and may still land.
    pub(crate) fn is_coming(&self) -> bool {
        !self.has_landed() && matches!(self.fate, Fate::Lands | Fate::Lost)
    }

    pub(crate) fn buffer(&self) -> usize {
        (self.write.target >> BUFFER_SHIFT) as usize
    }

    /// What has not landed never does.
    pub(crate) fn drop_rest(&mut self) {
        self.left.clear();
        self.arrived = true;
    }

    fn is_over(&self) -> bool {
        let comes = matches!(self.fate, Fate::Lands | Fate::FailsLate);
        self.completed && (self.has_landed() || !comes)
    }
}

impl Data for Flows {
    type Connection = Flow;

    fn link(&self, node: usize, channel: ChannelId, rail: u8) -> u8 {
        let joined = &self.channels[node][channel.0 as usize];
        self.order[node][usize::from(joined.rails.control[usize::from(rail)].ours)]
    }

    fn control_rails(&self, node: usize, channel: ChannelId) -> Option<u8> {
        Some(self.channels[node][channel.0 as usize].rails.control.len() as u8)
    }

    fn ring(&self, node: usize, channel: ChannelId) -> Option<Ring> {
        self.channels[node].get(channel.0 as usize).map(|joined| joined.ring)
    }

    fn content(
        wire: &mut Wire<Self>,
        node: usize,
        (channel, rail): (ChannelId, u8),
        letter: &Letter,
    ) -> Option<Content> {
        let joined = &wire.data.channels[node][channel.0 as usize];
        let peers = &wire.data.peers[node];
        let pair = joined.rails.control[usize::from(rail)];
        let rail = peers.rails(joined.peer)?[usize::from(pair.theirs)];
        let to = usize::from(rail.control?.as_bytes()[0]);
        let mut bytes = Vec::new();
        let fits = peers.message(channel, letter, &mut bytes);
        wire.law(fits, "a letter does not fit its message");
        fits.then_some(Content::Bytes { to, bytes })
    }

    fn act(
        wire: &mut Wire<Self>,
        (node, slot): (usize, Slot),
        action: &Action,
        account: &Account,
    ) -> bool {
        match action {
            Action::Write(write) => post(wire, node, slot, write),
            Action::Copy(copy) => {
                let mut words = Vec::new();
                account.parking.read(copy.from, |_, word| words.push(word));
                fill(wire, copy.target.region as usize, &words, copy.len.into());
                true
            }
            Action::Tagged(tagged) => tagged::act(wire, node, slot, tagged),
        }
    }

    fn word(&self, _: usize, message: &Outgoing, index: usize, bytes: usize) -> u64 {
        let first = 8 * index;
        let mut word = [0; 8];
        for (at, value) in word.iter_mut().enumerate().take(bytes - first) {
            *value = byte(message.source.region, (first + at) as u64);
        }
        u64::from_le_bytes(word)
    }

    fn arrived(
        wire: &mut Wire<Self>,
        _: (usize, Slot),
        (words, _): (&[u64], usize),
        place: &Place,
        account: &mut Account,
    ) {
        match place {
            Place::Receive(arrived) => {
                wire.faults.fire(Fault::InlineReceived);
                fill(wire, arrived.target.region as usize, words, arrived.len.into());
            }
            Place::Parked(parked) => {
                wire.faults.fire(Fault::Parked);
                account.parking.fill(*parked, |index| words[index]);
            }
        }
    }

    fn open_requested(&mut self, node: usize, channel: ChannelId, open: &Open) -> Option<Refused> {
        self.peers[node].open_arrived(channel, open)
    }

    fn far(wire: &Wire<Self>, (node, channel): (usize, ChannelId)) -> Option<(usize, ChannelId)> {
        wire.data.far(node, channel)
    }

    fn ended(&mut self, node: usize, channel: ChannelId) {
        self.peers[node].ended(channel);
    }

    fn rail_lost(
        wire: &mut Wire<Self>,
        (node, channel): (usize, ChannelId),
        rail: u8,
        cause: Cause,
    ) {
        wire.data.losses.push((node, channel, rail));
        wire.data.missing.insert((node, channel, rail));
        let link = wire.data.data_link(node, channel, rail);
        let far = wire.data.channels[node][channel.0 as usize].far;
        let between = Link::between([node, far], link);
        let touched = wire.data.disturbed.contains(&between);
        let follows = matches!(cause, Cause::RailDown { .. } | Cause::RailClosing { .. });
        // A part that is late for long enough counts as lost.
        let late = match cause {
            // The check before the part was posted began the time.
            Cause::DataHangs { .. } => {
                wire.data.stood((node, channel), link, wire.now) >= RAIL_HANGS - RAIL_CHECK
            }
            Cause::DataLost { .. } if wire.data.was_overdue(between, wire.now, RAIL_SILENT) => true,
            _ => wire.data.late > 0 || wire.setup.slow > 0 || wire.setup.refuse > 0,
        };
        let nothing = format!("a rail was lost without a fault: {cause:?}");
        wire.law(touched || follows || late, &nothing);
        let sound = wire.data.returns.is_sound((node, channel, rail));
        wire.law(!sound || follows || late, "a returned rail was lost again without a fault");
        wire.data.disturb(between);
        if wire.data.returns.returned >> link & 1 == 1 {
            wire.faults.fire(Fault::RailFlapped);
        }
        wire.faults.fire(match cause {
            Cause::RailClosing { .. } => Fault::RailLostElsewhere,
            _ => Fault::RailLost,
        });
    }

    /// Closes a rail: arrivals and completions are reported; writes in flight fail; and what has not landed here never
    /// does.
    fn close_data(wire: &mut Wire<Self>, node: usize, local: u8) -> bool {
        if !wire.data.settings[node].closes || wire.refuses(Fault::RefusedMemory) {
            return false;
        }
        let link = wire.data.order[node][usize::from(local)];
        let again = wire.data.is_closed(node, link);
        wire.law(!again, "a data rail is closed twice");
        arrive_at_last(wire, node, link);
        wire.data.closed[node] |= 1 << link;
        for id in (0..wire.data.channels[node].len() as u32).map(ChannelId) {
            if wire.data.data_links(node, id).contains(&link) {
                let far = wire.data.channels[node][id.0 as usize].far;
                wire.data.disturb(Link::between([node, far], link));
            }
        }
        trials::close(wire, node, link);
        wire.faults.fire(Fault::DataRailClosed);
        let mut index = 0;
        while index < wire.data.flights.len() {
            let flight = &mut wire.data.flights[index];
            if flight.link == link && flight.to == node {
                flight.arrived &= flight.left.is_empty();
                if !flight.has_landed() {
                    flight.fate =
                        if flight.fate == Fate::Hangs { Fate::Hangs } else { Fate::Fails };
                }
            }
            if flight.link == link && flight.from.0 == node && !flight.completed {
                flight.fate = match flight.fate {
                    Fate::Lands | Fate::FailsLate if flight.to != node => Fate::FailsLate,
                    Fate::Lands | Fate::FailsLate | Fate::Lost | Fate::Fails | Fate::Hangs => {
                        Fate::Fails
                    }
                };
                end(wire, index);
            }
            if wire.data.flights[index].is_over() {
                wire.data.flights.swap_remove(index);
            } else {
                index += 1;
            }
        }
        true
    }

    fn open_data(wire: &mut Wire<Self>, node: usize, local: u8) -> Option<bool> {
        trials::open(wire, node, local)
    }

    fn trial_target(wire: &mut Wire<Self>, node: usize, local: u8) -> Option<TrialTarget> {
        Some(trials::trial_target(wire, node, local))
    }

    fn key_of(wire: &mut Wire<Self>, node: usize, local: u8, region: u32) -> u64 {
        let link = wire.data.order[node][usize::from(local)];
        key(region as usize, wire.data.place(node, link))
    }

    fn reach(wire: &mut Wire<Self>, who: (usize, ChannelId, u8), address: &Address) -> bool {
        trials::reach(wire, who, address)
    }

    fn try_rail(wire: &mut Wire<Self>, who: (usize, ChannelId), offer: &Offer) -> bool {
        trials::post(wire, who, offer)
    }

    fn rail_returned(wire: &mut Wire<Self>, (node, channel): (usize, ChannelId), rail: u8) {
        let link = wire.data.data_link(node, channel, rail);
        wire.data.missing.remove(&(node, channel, rail));
        wire.data.returns.returned |= 1 << link;
        let far = wire.data.channels[node][channel.0 as usize].far;
        if !wire.data.is_dead((node, far), link) {
            let between = Link::between([node, far], link);
            wire.data.returns.is_back((node, channel, rail), between);
        }
        wire.faults.fire(Fault::RailReturned);
        let rails = |node: usize| wire.data.order[node].iter().collect::<BTreeSet<_>>();
        if rails(node) != rails(far) {
            wire.faults.fire(Fault::UnlikeRailReturned);
        }
    }

    fn advance(wire: &mut Wire<Self>, most: usize) {
        trials::advance(wire, most);
        tagged::advance(wire);
        for _ in 0..wire.data.flights.len().min(most) {
            let index = wire.random.below(wire.data.flights.len());
            if index < wire.data.flights.len() {
                advance(wire, index);
            }
        }
    }

    /// Hanging writes do not count: they end when their endpoint closes.
    fn is_quiet(&self) -> bool {
        let rests = self.provider.as_ref().is_none_or(Provider::is_quiet);
        let flies = self.flights.iter().any(|flight| flight.fate != Fate::Hangs);
        rests && !flies && self.returns.is_quiet()
    }
}

/// The last poll of a closing endpoint reports the remaining arrivals.
fn arrive_at_last(wire: &mut Wire<Flows>, node: usize, link: u8) {
    for index in 0..wire.data.flights.len() {
        let flight = &wire.data.flights[index];
        let current = flight.incarnation == wire.data.returns.incarnation(node, link);
        let here = (flight.to, flight.link, flight.fate) == (node, link, Fate::Lands) && current;
        let waits = wire.data.provider.is_some();
        if !here || waits || flight.held_until > wire.now || wire.random.percent(50) {
            continue;
        }
        while !wire.data.flights[index].has_landed() {
            wire.faults.fire(Fault::ArrivedAtClose);
            land(wire, index, 0);
        }
    }
}

fn fill(wire: &mut Wire<Flows>, buffer: usize, words: &[u64], len: usize) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Err(law) = wire.data.write(buffer, 0, &bytes[..len]) {
        wire.law(false, law);
    }
}

/// A part is posted, or refused.
fn post(wire: &mut Wire<Flows>, node: usize, slot: Slot, write: &PartWrite) -> bool {
    let Some((channel, own)) = wire.data.slots[node][slot.index()] else {
        wire.law(false, "a part is posted for a free slot");
        return true;
    };
    let ended = wire.nodes[node].outcomes[channel.0 as usize].is_some();
    wire.law(!ended, "a part is posted after the end of its channel");
    if wire.refuses(Fault::RefusedPart) {
        return false;
    }
    let link = wire.data.data_link(node, channel, write.rail);
    let closed = wire.data.is_closed(node, link);
    wire.law(!closed, "a part is posted on a rail that is closed");
    let buffer = (write.target >> BUFFER_SHIFT) as usize;
    let far = wire.data.channels[node][channel.0 as usize].far;
    let right = wire.data.buffers.get(buffer).is_some_and(|buffer| buffer.node == far);
    wire.law(right, "a part goes to a node that has not advertised it");
    let released = wire.data.released.contains(&write.source.region);
    wire.law(!released, "a part is sent from memory that is the application's again");
    let known = wire.data.returns.known(node, channel, write.rail);
    let gone = known != wire.data.returns.incarnation(far, link);
    let fits = write.key == key(buffer, wire.data.place(far, link));
    wire.law(fits || gone, "a part has the key of another rail, endpoint or buffer");
    let death = wire.data.death(node, far, link);
    let between = Link::between([node, far], link);
    if death == Some(Death::Refusing) {
        wire.data.fail(between);
        wire.faults.fire(Fault::RefusedForGood);
        return false;
    }
    wire.faults.fire(Fault::PartWritten);
    if wire.data.returns.is_sound((node, channel, write.rail)) {
        wire.faults.fire(Fault::PartByReturnedRail);
    }
    if write.len > 0 && !wire.data.posted.insert(write.target) {
        wire.law(
            !wire.data.disturbed.is_empty(),
            "a part is posted twice although no rail was lost",
        );
        wire.faults.fire(Fault::PartAgain);
    }
    if write.immediate.is_none() {
        wire.faults.fire(Fault::FinPath);
    }
    let joined = &wire.data.channels[node][channel.0 as usize];
    let proves = joined.proves_arrival || write.immediate.is_none();
    // What is missing there can only be fenced by closing the rail.
    let fences = wire.data.fails_over([node, far]) && wire.data.settings[far].closes;
    let survives = fences && joined.rails.data.len() > 1;
    let mut fate = Fate::Lands;
    if let Some(death) = death {
        wire.data.fail(between);
        fate = doomed(wire, death, proves);
    } else if wire.data.is_closed(far, link) || gone {
        wire.data.disturb(between);
        fate = Fate::Fails;
    } else if wire.data.to_lose > 0 && !proves && wire.random.percent(5) {
        wire.data.to_lose -= 1;
        wire.data.fail(between);
        if !survives {
            wire.data.lost.push((node, channel, write.rail));
        }
        wire.faults.fire(Fault::LostPart);
        fate = Fate::Lost;
    } else if wire.data.to_fail > 0 && wire.random.percent(5) {
        wire.data.to_fail -= 1;
        wire.data.fail(between);
        if !survives {
            wire.data.failed.push(write.source.region as usize >> 12);
        }
        wire.faults.fire(Fault::FailedPart);
        fate = if wire.random.percent(50) { Fate::FailsLate } else { Fate::Fails };
    }
    let mut held_until = 0;
    if !wire.fair && wire.random.percent(wire.data.late) {
        wire.faults.fire(Fault::LatePart);
        held_until = wire.now + wire.random.between(100_000, 60_000_000);
    }
    let pace = wire.data.paces[usize::from(link)];
    if pace > 0 {
        let free_at = wire.data.free_at.entry((node, link)).or_default();
        *free_at = pace + wire.now.max(*free_at);
        held_until = *free_at;
    }
    let mut left = Vec::new();
    if write.len > 0 {
        let cut = wire.random.below(write.len as usize) as u64;
        if wire.random.percent(30) && cut > 0 {
            wire.faults.fire(Fault::TornPart);
            left.extend([(0, cut), (cut, write.len)]);
        } else {
            left.push((0, write.len));
        }
    }
    wire.data.flights.push(Flight {
        from: (node, own),
        to: far,
        link,
        incarnation: known,
        write: *write,
        left,
        arrived: false,
        delivered: proves,
        completed: false,
        fate,
        held_until,
        posted_at: wire.now,
    });
    true
}

/// The fate of a write on a rail that has died.
fn doomed(wire: &mut Wire<Flows>, death: Death, proves: bool) -> Fate {
    match death {
        Death::Silent if proves || wire.random.percent(20) => {
            wire.faults.fire(Fault::HungWrite);
            Fate::Hangs
        }
        Death::Silent => Fate::Lost,
        Death::Loud | Death::Refusing if wire.random.percent(50) => Fate::Fails,
        Death::Loud | Death::Refusing => Fate::FailsLate,
    }
}

/// A data rail between two nodes dies, with the writes on it.
pub(crate) fn kill(wire: &mut Wire<Flows>, pair: (usize, usize), link: u8, death: Death) {
    kill_ways(wire, pair, link, (death, true));
}

/// The same of the rail from one node to the other alone.
pub(crate) fn kill_way(wire: &mut Wire<Flows>, way: (usize, usize), link: u8, death: Death) {
    if way.0 != way.1 {
        wire.faults.fire(Fault::OneWayDeath);
    }
    kill_ways(wire, way, link, (death, false));
}

fn kill_ways(
    wire: &mut Wire<Flows>,
    (from, to): (usize, usize),
    link: u8,
    (death, both_ways): (Death, bool),
) {
    if wire.data.is_dead((from, to), link) {
        return;
    }
    let dead = Dead { from, to, link, death, both_ways };
    wire.faults.fire(match death {
        Death::Silent => Fault::SilentDataRail,
        Death::Loud | Death::Refusing => Fault::DataRailDied,
    });
    wire.data.dead.push(dead);
    wire.data.fail(Link::between([from, to], link));
    for index in 0..wire.data.flights.len() {
        let flight = &wire.data.flights[index];
        if dead.is_way((flight.from.0, flight.to), flight.link) && !flight.completed {
            let proves = flight.delivered;
            let fate = doomed(wire, death, proves);
            wire.data.flights[index].fate = fate;
        }
    }
}

/// A piece lands, the arrival is reported, or the write completes.
fn advance(wire: &mut Wire<Flows>, index: usize) {
    let (now, coin, pick) = (wire.now, wire.random.percent(50), wire.random.next() as usize);
    let flight = &mut wire.data.flights[index];
    let current = wire.data.returns.incarnation(flight.to, flight.link);
    let gone = flight.incarnation != current || wire.data.closed[flight.to] >> flight.link & 1 == 1;
    if gone && flight.fate == Fate::FailsLate {
        flight.fate = Fate::Fails;
    }
    let flight = &wire.data.flights[index];
    let comes = match flight.fate {
        Fate::Lands | Fate::FailsLate => true,
        Fate::Fails => !flight.completed,
        Fate::Lost | Fate::Hangs => false,
    };
    let may_land = comes && !gone && !flight.has_landed() && flight.held_until <= now;
    let may_end = !flight.completed
        && flight.fate != Fate::Hangs
        && (flight.fate != Fate::Lands || !flight.delivered || flight.has_landed());
    if may_end && (coin || !may_land) {
        if !flight.has_landed() {
            wire.faults.fire(Fault::EarlyPartCompletion);
        }
        end(wire, index);
    } else if may_land {
        if flight.completed && flight.fate == Fate::FailsLate {
            wire.faults.fire(Fault::LateFailedPart);
        }
        land(wire, index, pick);
    }
    if wire.data.flights[index].is_over() {
        wire.data.flights.swap_remove(index);
    }
}

fn end(wire: &mut Wire<Flows>, index: usize) {
    let flight = &mut wire.data.flights[index];
    flight.completed = true;
    let ((node, own), PartWrite { message, part, .. }) = (flight.from, flight.write);
    let event = match flight.fate {
        Fate::Fails | Fate::FailsLate | Fate::Hangs => {
            flow::Event::WriteFailed { message, part, code: 5 }
        }
        Fate::Lands | Fate::Lost => flow::Event::Written { message, part },
    };
    let Name { slot, generation } = own;
    let there = wire.data.slots[node][slot.index()].is_some_and(|(_, name)| name == own);
    wire.law(there, "a slot is free whose writes have not completed");
    wire.nodes[node].events.push_back(Event::Connection { slot, generation, event });
}

/// A message lands as a whole.
pub(crate) fn land_all(wire: &mut Wire<Flows>, index: usize) {
    while !wire.data.flights[index].left.is_empty() {
        land_piece(wire, index, 0);
    }
    arrive(wire, index);
}

fn land_piece(wire: &mut Wire<Flows>, index: usize, pick: usize) {
    let flight = &mut wire.data.flights[index];
    let (start, end) = flight.left.swap_remove(pick % flight.left.len());
    let source = flight.write.source;
    let bytes: Vec<u8> = (start..end).map(|at| byte(source.region, source.address + at)).collect();
    let offset = (flight.write.target & ((1 << BUFFER_SHIFT) - 1)) + start;
    let buffer = flight.buffer();
    if let Err(law) = wire.data.write(buffer, offset, &bytes) {
        let flight = format!("{law}: {:?}", wire.data.flights[index]);
        wire.law(false, &flight);
    }
}

fn arrive(wire: &mut Wire<Flows>, index: usize) {
    let flight = &mut wire.data.flights[index];
    flight.arrived = true;
    let slowest = wire.data.slowest.entry(flight.is_on()).or_default();
    *slowest = flight.age(wire.now).max(*slowest);
}

fn land(wire: &mut Wire<Flows>, index: usize, pick: usize) {
    if wire.data.provider.is_some() {
        return tagged::land(wire, index);
    }
    if !wire.data.flights[index].left.is_empty() {
        return land_piece(wire, index, pick);
    }
    arrive(wire, index);
    let flight = &wire.data.flights[index];
    let Some(immediate) = flight.write.immediate else { return };
    let (to, link, len) = (flight.to, flight.link, flight.write.len);
    let connection = immediate.connection();
    let slot = usize::from(connection) % Slot::COUNT;
    let there = wire.data.slots[to].get(slot).copied().flatten();
    let Some((channel, _)) = there.filter(|(_, name)| name.in_immediate() == connection) else {
        wire.law(false, "a part arrives at a slot that is free");
        return;
    };
    let joined = &wire.data.channels[to][channel.0 as usize];
    let ours = wire.data.order[to].iter().position(|other| *other == link).unwrap();
    let rail = joined.rails.data_of(ours as u8).unwrap();
    let len = if joined.true_lengths { len } else { 0 };
    let event = flow::Event::Arrived { rail, immediate, len };
    wire.nodes[to].events.push_back(Event::Arrived { connection, event });
}
