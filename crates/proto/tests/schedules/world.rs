//! One schedule with stand-in connections: calls, progress and keepers of nodes in any order, on a faulty wire; then a
//! phase without faults, which must come to rest; and the laws.

use std::time::Duration;

use proto::bound::{INBOXES_IN_VAIN_MAX, POLL_GAP_MAX};
use proto::channel::Parameters;
use proto::letter::Status;
use proto::{
    Cause, Channel, ChannelId, Epoch, Moment, Outcome, PacketNumber, ProgressLoop, Slot, Urgency,
};

use crate::faults::{Fault, Faults};
use crate::hands::Hands;
use crate::random::Random;
use crate::setup::Setup;
use crate::talk::{KINDS, Message, Planned, Talk};
use crate::talks::Talks;
use crate::wire::Wire;

const FAIR_ROUNDS: usize = 6000;
const SLOTS: usize = 24;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: ProgressLoop<Talk>,
    calling: bool,
    closing: bool,
    pub(crate) slots: Vec<Slot>,
    pub(crate) channels: Vec<ChannelId>,
    /// Calls that are left.
    calls: usize,
    consumed: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) wire: Wire<Talks>,
    pub(crate) nodes: Vec<Node>,
    silent: Option<usize>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::new(&mut random);
        Self::of(setup, random)
    }

    fn of(setup: Setup, random: Random) -> Self {
        let talks = Talks::new(setup.nodes, setup.parts_lost);
        let wire = Wire::new(setup.clone(), random, talks);
        let node = |_| Node {
            endpoint: ProgressLoop::new(SLOTS),
            calling: true,
            closing: false,
            slots: Vec::new(),
            channels: Vec::new(),
            calls: 0,
            consumed: Vec::new(),
        };
        let nodes = (0..setup.nodes).map(node).collect();
        let mut world = Self { wire, nodes, silent: None };
        for one in 0..setup.nodes {
            for other in one + 1..setup.nodes {
                world.channel(one, other);
            }
        }
        if setup.self_channel {
            world.wire.faults.fire(Fault::ChannelToItself);
            world.channel(0, 0);
        }
        for node in &mut world.nodes {
            node.calls = world.wire.random.below(250);
        }
        world
    }

    /// A channel between two nodes, or of one with itself, and connections on it.
    fn channel(&mut self, one: usize, other: usize) {
        let ends = [one, other].map(|node| {
            let setup = &self.wire.setup;
            let parameters = Parameters {
                ring: setup.ring,
                rails: setup.rails,
                data_rails: setup.data_rails,
                locals: [0; 16],
                failover: false,
                tries: false,
                closes: true,
                measure_by_arrival: false,
                rail: (self.nodes[node].channels.len() % usize::from(setup.rails)) as u8,
                key: self.wire.random.next() | 1,
                peer_timeout: setup.peer_timeout,
                quarantine: setup.quarantine(),
                first: PacketNumber::new(setup.first),
            };
            let id = self.nodes[node].endpoint.add_channel(parameters).unwrap();
            self.nodes[node].channels.push(id);
            self.nodes[node].consumed.push(0);
            self.wire.nodes[node].outcomes.push(None);
            self.wire.nodes[node].peers.push((0, id));
            (node, id)
        });
        self.wire.nodes[one].peers[ends[0].1.0 as usize] = ends[1];
        self.wire.nodes[other].peers[ends[1].1.0 as usize] = ends[0];
        for _ in 0..1 + self.wire.random.below(5) {
            self.connection(ends);
        }
    }

    fn connection(&mut self, [one, other]: [(usize, ChannelId); 2]) {
        let name = self.nodes[one.0].endpoint.vacant().unwrap();
        let now = Moment::default();
        // Each connection is made with both names.
        let far = if one.0 == other.0 {
            let next = Slot::new(name.slot.index() + 1).unwrap();
            proto::Name { slot: next, generation: name.generation }
        } else {
            self.nodes[other.0].endpoint.vacant().unwrap()
        };
        for ((node, channel), me, to) in [(one, name, far), (other, far, name)] {
            let connected = self.nodes[node].endpoint.connect(me, channel, Talk::new(me, to), now);
            assert!(connected);
            self.nodes[node].slots.push(me.slot);
            let far = if node == one.0 && me == name { other.0 } else { one.0 };
            self.wire.data.nodes[node].ends.push((far, to.slot, to.generation));
            self.wire.data.nodes[node].channels.push(channel);
        }
    }

    pub(crate) fn run(mut self) -> Result<Faults, String> {
        let outcome = self.schedule();
        let state = || format!("{:?}", self.wire.setup);
        outcome.map_err(|law| format!("{law}\n{}\n{}", state(), self.why()))?;
        Ok(self.wire.faults)
    }

    /// Two nodes with one channel, on a wire without faults.
    pub(crate) fn of_two(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup { nodes: 2, self_channel: false, ..Setup::without_faults(&mut random) };
        Self::of(setup, random)
    }

    /// One of two nodes waits for the other for `minutes` minutes, while that one is idle and only its keeper polls.
    /// Then the expected frame comes. Returns how often the waiting node polled.
    pub(crate) fn idle(seed: u64, minutes: u64) -> Result<u64, String> {
        let mut world = Self::of_two(seed);
        // The waiting node sends QUERY, which is no fault here.
        world.wire.setup.calm = false;
        let slot = world.nodes[0].slots[0];
        for _ in 0..200 {
            world.pass(Duration::from_millis(1));
            world.progress(1);
        }
        let now = world.moment();
        let Self { wire, nodes, .. } = &mut world;
        nodes[0].endpoint.with(&mut Hands { node: 0, wire }, slot, now, |talk, _| talk.expect(1));
        let polls = minutes * 60_000 / u64::try_from(POLL_GAP_MAX.as_millis()).unwrap();
        for _ in 0..polls {
            world.pass(POLL_GAP_MAX);
            world.keepers();
        }
        world.check()?;
        if let Some(outcome) =
            world.wire.nodes.iter().flat_map(|node| &node.outcomes).flatten().next()
        {
            return Err(format!("an idle peer was taken for dead: {outcome:?}"));
        }
        let (now, far) = (world.moment(), world.nodes[1].slots[0]);
        let Self { wire, nodes, .. } = &mut world;
        let planned = Planned { kind: 0, urgency: Urgency::Urgent };
        nodes[1]
            .endpoint
            .with(&mut Hands { node: 1, wire }, far, now, |talk, _| talk.plan(planned));
        for _ in 0..200 {
            world.pass(Duration::from_millis(1));
            world.keepers();
        }
        let waits = !world.nodes[0].endpoint.connection(slot).unwrap().rests();
        if waits { Err("the expected frame has not come".to_owned()) } else { Ok(polls) }
    }

    /// Time passes: node 0 polls, and the wire advances.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.wire.now += u64::try_from(time.as_nanos()).unwrap();
        self.progress(0);
        self.wire.advance(4);
    }

    fn schedule(&mut self) -> Result<(), String> {
        let steps = 200 + self.wire.random.below(900);
        let rails = usize::from(self.wire.setup.rails);
        let deaths: Vec<(usize, usize)> = (0..self.wire.setup.deaths)
            .map(|_| (self.wire.random.below(steps), self.wire.random.below(rails)))
            .collect();
        let silent_at = self.wire.random.below(steps);
        for step in 0..steps {
            // In a schedule that forbids QUERY, no node may seem silent.
            self.wire.now += if self.wire.setup.calm {
                self.wire.random.between(100, 5_000)
            } else if !deaths.is_empty() && self.wire.random.percent(3) {
                // Lost rails pause for so long.
                self.wire.random.between(10_000_000, 400_000_000)
            } else if self.wire.random.percent(20) {
                self.wire.random.between(100_000, 3_000_000)
            } else {
                self.wire.random.between(100, 50_000)
            };
            for (at, rail) in &deaths {
                if *at == step {
                    self.wire.kill_rail(*rail);
                }
                if self.wire.random.percent(1) {
                    self.wire.revive_rail(*rail);
                }
            }
            if step == silent_at && self.silent.is_none() {
                self.silent = self.wire.setup.silent;
                if self.silent.is_some() {
                    self.wire.faults.fire(Fault::SilentForEver);
                }
            }
            match self.wire.random.below(100) {
                0..55 => {
                    let node = self.wire.random.below(self.nodes.len());
                    self.call(node);
                }
                55..92 if !self.wire.random.percent(self.wire.setup.slow) => self.wire.advance(1),
                92..96 => self.keepers(),
                96..98 => self.forge(),
                // Only time passes.
                _ => {}
            }
            self.check()?;
        }
        self.wire.fair = true;
        for round in 0..FAIR_ROUNDS {
            // The longest waits are peer timeouts.
            let far = 1_000_000 * (2 + round as u64 / 200);
            self.wire.now += if self.wire.setup.calm { 500_000 } else { far };
            for node in 0..self.nodes.len() {
                for _ in 0..3 {
                    self.call(node);
                }
            }
            self.keepers();
            self.wire.advance(4);
            self.check()?;
            if self.at_rest() {
                return self.final_laws();
            }
        }
        Err("no rest".to_owned())
    }

    fn check(&mut self) -> Result<(), String> {
        for node in &self.nodes {
            for slot in &node.slots {
                if let Some(law) = node.endpoint.connection(*slot).and_then(|talk| talk.broken) {
                    return Err(law.to_owned());
                }
            }
            for channel in &node.channels {
                let shadow = node.endpoint.channel(*channel).unwrap().shadow();
                if shadow.unacknowledged() > 64 {
                    return Err("more than 64 unacknowledged packets".to_owned());
                }
            }
            if node.endpoint.stale() > 0 && !self.wire.setup.forges {
                return Err("a frame or letter was for no connection or channel".to_owned());
            }
        }
        if let Some(law) = self.wire.broken_memory() {
            return Err(law.to_owned());
        }
        self.wire.violation.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment::from_nanos(self.wire.now)
    }

    pub(crate) fn progress(&mut self, node: usize) {
        let now = self.moment();
        let mut hands = Hands { node, wire: &mut self.wire };
        self.nodes[node].endpoint.progress(&mut hands, now);
        self.count_faults(node);
    }

    /// Counts the faults that fired.
    fn count_faults(&mut self, node: usize) {
        let Node { endpoint, channels, .. } = &self.nodes[node];
        for id in channels {
            let channel = endpoint.channel(*id).unwrap();
            let (far, end) = self.wire.nodes[node].peers[id.0 as usize];
            let other = self.nodes[far].endpoint.channel(end).unwrap();
            if has_switched(channel, other) && has_switched(other, channel) {
                self.wire.faults.fire(Fault::BothSwitchedAtOnce);
            }
            let shadow = channel.shadow();
            if shadow.acknowledged().distance(shadow.completed()).cast_signed() > 0 {
                self.wire.faults.fire(Fault::AcknowledgedBeforeCompletion);
            }
            if shadow.target().is_some() && channel.may_write() && shadow.room_words() == 0 {
                self.wire.faults.fire(Fault::RingFull);
            }
        }
    }

    /// One call by a node's application, if it still calls.
    fn call(&mut self, node: usize) {
        if self.silent == Some(node) {
            return;
        }
        if !self.nodes[node].calling {
            // The application may come back to close.
            if !self.wire.fair || !self.wire.setup.closes {
                return;
            }
        }
        let now = self.moment();
        if self.nodes[node].calls > 0 && !self.nodes[node].slots.is_empty() {
            self.nodes[node].calls -= 1;
            self.one_call(node, now);
        } else if self.wire.setup.closes {
            self.close(node);
        }
        let spent = self.nodes[node].calls == 0 && self.nodes[node].calling;
        let may_stop = spent && !self.nodes[node].endpoint.must_send_first();
        if self.wire.setup.stops_calling && may_stop {
            self.nodes[node].calling = false;
            self.wire.faults.fire(Fault::StoppedCalling);
        }
        if self.wire.fair || !self.wire.random.percent(self.wire.setup.burst) {
            self.progress(node);
        }
    }

    fn one_call(&mut self, node: usize, now: Moment) {
        let Self { wire, nodes, .. } = self;
        let Node { endpoint, slots, .. } = &mut nodes[node];
        let slot = wire.random.pick(slots);
        let choice = wire.random.below(10);
        if choice < 5 {
            let biggest = if wire.random.percent(50) { 16 } else { wire.setup.inline_max };
            let message = Message { seed: wire.random.next(), len: wire.random.below(biggest + 1) };
            // "Not now", or the channel has ended: the call returns.
            let _ = endpoint.submit(&mut Hands { node, wire }, slot, &message, now);
            return;
        }
        if choice == 7 {
            // Waits for frames that the peer may never send.
            let more = u32::from(!wire.setup.calm && wire.random.percent(20));
            endpoint.with(&mut Hands { node, wire }, slot, now, |talk, _| talk.expect(more));
        }
        if choice == 5 {
            endpoint.send_urgent(&mut Hands { node, wire }, slot, now);
        }
        if choice == 6 && !wire.setup.calm {
            let rail = wire.random.below(usize::from(wire.setup.data_rails)) as u8;
            endpoint.with(&mut Hands { node, wire }, slot, now, |talk, _| talk.plan_part(rail));
            return;
        }
        for _ in 0..1 + wire.random.below(4) {
            let kind = wire.random.below(KINDS);
            let wait = Duration::from_micros(wire.random.between(0, 3000));
            let urgency = match wire.random.below(3) {
                0 => Urgency::Lazy { until: now.plus(wait), joins: wire.random.percent(50) },
                1 => Urgency::Urgent,
                _ => Urgency::Waited,
            };
            let planned = Planned { kind, urgency };
            endpoint.with(&mut Hands { node, wire }, slot, now, |talk, _| talk.plan(planned));
        }
    }

    /// Ends channels whose connections are finished.
    fn close(&mut self, node: usize) {
        let rests = self.node_rests(node);
        let Node { endpoint, channels, closing, calling, .. } = &mut self.nodes[node];
        if rests || *closing {
            (*closing, *calling) = (true, true);
            for channel in channels {
                endpoint.end(*channel);
            }
        }
    }

    fn node_rests(&self, node: usize) -> bool {
        let Node { endpoint, slots, calls, .. } = &self.nodes[node];
        let rests = |slot: &Slot| {
            let channel = self.wire.data.nodes[node].channels[slot.index()];
            let known = endpoint.channel(channel).unwrap().shadow().target().is_some();
            // Set-up has timeouts of its own.
            (!known && (self.silent.is_some() || self.wire.died))
                || endpoint.connection(*slot).unwrap().rests()
        };
        *calls == 0 && slots.iter().all(rests)
    }

    fn keepers(&mut self) {
        for node in 0..self.nodes.len() {
            if self.silent == Some(node) {
                continue;
            }
            let now = self.moment();
            let mut hands = Hands { node, wire: &mut self.wire };
            if self.nodes[node].endpoint.keep(&mut hands, now) {
                self.wire.faults.fire(Fault::KeeperPolled);
                self.count_faults(node);
            }
        }
    }

    fn forge(&mut self) {
        if !self.wire.setup.forges {
            return;
        }
        let node = self.wire.random.below(self.nodes.len());
        let channel = self.wire.random.pick(&self.nodes[node].channels);
        self.forge_letters(node, channel);
    }

    /// Two letters that no peer has sent come to a node: one with a wrong key, one with a proof that is for HELLO.
    pub(crate) fn forge_letters(&mut self, node: usize, channel: ChannelId) {
        let number = PacketNumber::new(self.wire.setup.first.wrapping_add(30));
        let template = Status {
            epoch: Epoch(1),
            consumed: number,
            asked: number,
            counts: proto::counts::PeerCounts::default(),
            waits: false,
            failed: true,
            idle_ms: 0,
            about: None,
        };
        self.wire.forge(node, channel, &template);
    }

    fn channel_rests(&self, node: usize, id: ChannelId) -> bool {
        if self.wire.nodes[node].outcomes[id.0 as usize].is_some() {
            return true;
        }
        let channel = self.nodes[node].endpoint.channel(id).unwrap();
        // Set-up has timeouts of its own.
        if channel.shadow().target().is_none() && (self.silent.is_some() || self.wire.died) {
            return true;
        }
        !channel.has_pending(&self.nodes[node].endpoint.account(id).unwrap().counts)
            && !self.wire.setup.closes
    }

    fn at_rest(&self) -> bool {
        (0..self.nodes.len()).all(|node| {
            let channels = &self.nodes[node].channels;
            self.silent == Some(node)
                || (self.node_rests(node)
                    && channels.iter().all(|id| self.channel_rests(node, *id)))
        }) && (self.silent.is_some() || self.wire.is_quiet())
    }

    fn final_laws(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            for id in self.nodes[node].channels.clone() {
                self.channel_laws(node, id)?;
            }
        }
        self.check()
    }

    fn channel_laws(&mut self, node: usize, id: ChannelId) -> Result<(), String> {
        let far = self.wire.nodes[node].peers[id.0 as usize];
        let outcome = self.wire.nodes[node].outcomes[id.0 as usize];
        let others = self.wire.nodes[far.0].outcomes[far.1.0 as usize];
        let silent = self.silent.is_some_and(|silent| silent == node || silent == far.0);
        let dead = self.wire.died;
        let ends = [(node, id), far];
        let parts = ends.iter().any(|end| self.wire.data.lost.contains(end));
        let stood = ends.iter().any(|end| self.wire.control.stood_on_all(*end));
        let control = dead || stood || self.wire.packets_lost >= usize::from(INBOXES_IN_VAIN_MAX);
        if let Some(Outcome::Failed(cause)) = outcome {
            let allowed = match cause {
                Cause::NoRail | Cause::NoInbox => control,
                Cause::Silent | Cause::Peer => silent || control || parts,
                Cause::DataLost { .. } => parts,
                _ => false,
            };
            if !allowed {
                return Err(format!("a channel failed without a reason: {cause:?}"));
            }
            if others == Some(Outcome::Over) && !dead {
                return Err("one end of a channel failed, the other one ended well".to_owned());
            }
        }
        let ours = self.wire.data.lost.contains(&(node, id));
        // Set-up has timeouts of its own.
        let channel = self.nodes[node].endpoint.channel(id).unwrap();
        let alone = channel.shadow().target().is_none() && self.wire.died;
        if ours && !silent && !alone && outcome.is_none() {
            return Err("a lost part went unnoticed".to_owned());
        }
        let fine = |outcome: Option<Outcome>| !matches!(outcome, Some(Outcome::Failed(_)));
        if fine(outcome) && fine(others) && !silent {
            self.connection_laws(node, id)?;
        }
        Ok(())
    }

    /// Every frame that was sent was received, and nothing waits for what cannot come.
    fn connection_laws(&self, node: usize, id: ChannelId) -> Result<(), String> {
        for slot in &self.nodes[node].slots {
            if self.wire.data.nodes[node].channels[slot.index()] != id {
                continue;
            }
            let talk = self.nodes[node].endpoint.connection(*slot).unwrap();
            let (far, end, _) = self.wire.data.nodes[node].ends[slot.index()];
            let other = self.nodes[far].endpoint.connection(end).unwrap();
            if talk.said() != other.heard() {
                let (said, heard) = (talk.said(), other.heard());
                return Err(format!("a frame was never delivered: {said} sent, {heard} received"));
            }
            let lost = self.nodes[node].endpoint.channel(id).unwrap().ending().has_lost_peer();
            if talk.outstanding() > 0 && !lost {
                return Err("a message never left".to_owned());
            }
        }
        Ok(())
    }

    fn why(&self) -> String {
        let mut text =
            format!("{} ns, dead {:?}, {}", self.wire.now, self.wire.dead, self.wire.unrest());
        for (index, node) in self.nodes.iter().enumerate() {
            text += &format!(
                "\nnode {index}: rests {} calls {} calling {} closing {} silent {:?}",
                self.node_rests(index),
                node.calls,
                node.calling,
                node.closing,
                self.silent
            );
            for id in &node.channels {
                let outcome = self.wire.nodes[index].outcomes[id.0 as usize];
                let channel = node.endpoint.channel(*id).unwrap();
                let urgency = channel.has_pending(&node.endpoint.account(*id).unwrap().counts);
                let (shadow, inbox) = (channel.shadow(), channel.inbox());
                text += &format!(
                    "\n  {id:?} {outcome:?} urgency {urgency} unacknowledged {} next {:?} completed {:?} open {} to {:?} at {:?} \
                     consumed {:?} {:?} lost {:?}",
                    shadow.unacknowledged(),
                    shadow.next(),
                    shadow.completed(),
                    shadow.is_open(),
                    shadow.target().map(|lease| (lease.epoch, lease.rail)),
                    inbox.map(|inbox| (inbox.lease().epoch, inbox.lease().rail)),
                    inbox.map(|inbox| inbox.consumed()),
                    channel.ending(),
                    (0..4).filter(|rail| channel.is_lost(*rail)).collect::<Vec<_>>(),
                );
            }
        }
        text
    }
}

/// Whether one end has lent a new inbox that the other does not use yet.
fn has_switched(one: &Channel, other: &Channel) -> bool {
    let lent = one.inbox().map_or(Epoch(0), |inbox| inbox.lease().epoch);
    let known = other.shadow().target().map_or(Epoch(0), |lease| lease.epoch);
    lent > Epoch(1) && known < lent
}

/// Runs one schedule.
pub(crate) fn run(seed: u64) -> Result<Faults, String> {
    World::new(seed).run()
}
