//! Simulated ranks with the real flows: set-up, messages and close, from handles to END, and the laws.

use std::collections::{BTreeMap, BTreeSet};

use proto::budget::{Budget, CAPACITY_MIN};
use proto::capabilities::{Capabilities, ImmediateWidth};
use proto::channel::Parameters;
use proto::codec::{Address, Name as Text};
use proto::ids::PacketNumber;
use proto::packet::Ring;
use proto::rails::Rail;
use proto::setup::{
    ControlAddresses, EndpointId, Handle, Heard, Host, Ignored, Offers, PeerId, Peers, Presence,
    Secret,
};
use proto::{ChannelId, Event, Flow, Moment, Name, Outcome, ProgressLoop, Slot};

use crate::conversation::{Conversation, Side};
use crate::data::{Death, Flows, Joined, Link, Mixing, Settings, address, kill, kill_way};
use crate::faults::{Fault, Faults};
use crate::hands::Hands;
use crate::random::Random;
use crate::setup::Setup;
use crate::tagged::Provider;
use crate::trials::{Returns, revive};
use crate::wire::{Content, Mail, Wire};

const FAIR_ROUNDS: usize = 6000;
/// Connections of a schedule.
const CONNECTIONS: usize = 10;
/// Slots of an endpoint: so few that some connections wait for others to close, one more than may connect at a time; or
/// enough for all, if connections stay open, or if failed channels or writes leave slots in quarantine.
const FEW_SLOTS: usize = CONNECTIONS + 1;
const SLOTS: usize = 2 * CONNECTIONS;

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) endpoint: ProgressLoop<Flow>,
    pub(crate) budget: Budget,
    pub(crate) calling: bool,
    /// It ends all its channels.
    pub(crate) ending: bool,
    /// After so many calls it ends them, whatever state its connections are in.
    ends_after: Option<usize>,
    calls: usize,
}

impl Rank {
    /// Whether it has ended its channels while connections were open.
    pub(crate) fn ended_early(&self) -> bool {
        self.ends_after.is_some_and(|after| self.calls >= after)
    }
}

#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) node: usize,
    pub(crate) handle: Handle,
    pub(crate) accepts: usize,
    pub(crate) open: bool,
    pub(crate) closes_after: Option<usize>,
    pub(crate) calls: usize,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) wire: Wire<Flows>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) listening: Vec<Listening>,
    /// By conversation: the listener that it connects to, and the peer there.
    pub(crate) listeners: Vec<usize>,
    pub(crate) meeting: Vec<Option<PeerId>>,
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) silent: Option<usize>,
    /// A node that is stopped, and until when.
    pub(crate) paused: Option<(usize, u64)>,
    harsh: bool,
    kind: Kind,
}

/// What differs between schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All endpoints have the same rails and settings.
    Alike,
    /// Each has its own, and memory is deregistered while it is sent from.
    Unlike,
    /// Over a provider without one-sided writes, with one rail.
    Messages,
    /// Links fail in one direction, and nodes are stopped for a while.
    Partial,
}

fn presence(node: usize, order: &[u8], control: u8, random: &mut Random, harsh: bool) -> Presence {
    let rail = |link: &u8| Rail {
        fabric: Text::cut(&format!("f{link}")),
        nic: (*link).into(),
        data: address(node, (*link).into(), false),
        control: (*link < control).then(|| address(node, (*link).into(), true)),
    };
    let eight = [ImmediateWidth::Eight, ImmediateWidth::Eight];
    let widths = [ImmediateWidth::None, ImmediateWidth::Four, ImmediateWidth::Eight];
    Presence {
        id: EndpointId([node as u8 + 1; 16]),
        capabilities: Capabilities {
            immediate: if harsh { random.pick(&widths) } else { random.pick(&eight) },
            true_lengths: random.percent(50),
            self_read: true,
            proves_arrival: random.percent(30),
            messages: false,
            arrival_times: true,
            delivery_complete: true,
            virtual_addresses: true,
            largest_write: random.pick(&[128, 300, 1 << 10, 1 << 30]),
        },
        rails: order.iter().map(rail).collect(),
        host: Host { process: node as u32, ..Host::default() },
        offers: Offers {
            ring: Ring::new(random.pick(&[2 << 10, 2 << 10, 8 << 10, 64 << 10])).unwrap(),
            inline_bytes_max: random.pick(&[0, 64, 512, 512, 4096]),
            shared_from: random.pick(&[0, 512, 4096, u64::MAX]),
        },
    }
}

/// The addresses in a handle of a node.
fn control_addresses(us: &Presence) -> ControlAddresses {
    let control = us.rails.iter().filter_map(|rail| rail.control.as_ref());
    ControlAddresses::new(control.map(Address::as_bytes)).unwrap()
}

/// Leaves out some of a node's links, but for the first, which all have. A handle names two of them.
fn leave_out(order: &mut Vec<u8>, random: &mut Random) {
    order.retain(|link| *link == 0 || random.percent(70));
    if order.iter().position(|link| *link == 0).is_some_and(|at| at > 1) {
        order.retain(|link| *link != 0);
        order.insert(0, 0);
    }
}

/// What a provider without one-sided writes can do.
fn by_messages(presence: Presence) -> Presence {
    let capabilities = Capabilities {
        immediate: ImmediateWidth::Four,
        true_lengths: true,
        self_read: false,
        proves_arrival: false,
        messages: true,
        arrival_times: false,
        delivery_complete: false,
        largest_write: 1 << 30,
        ..presence.capabilities
    };
    Presence { capabilities, ..presence }
}

impl World {
    fn new(seed: u64, kind: Kind) -> Self {
        let mut random = Random::new(seed ^ 0xf10e_5000_0000);
        let messages = kind == Kind::Messages;
        let mut setup = Setup::new(&mut random);
        setup.nodes = random.pick(&[2, 2, 2, 3, 4]);
        // QUERY confirms parts, so one may leave although nothing is wrong.
        setup.calm = false;
        // Set-up messages may wait for ever for a silent node.
        setup.silent = setup.silent.map(|node| node % setup.nodes);
        if kind == Kind::Partial {
            setup.deaths = 0;
            setup.data_deaths = random.pick(&[0, 1, 1, 2, 4]);
        }
        let harsh = setup.losses > 0 || setup.refuse > 0 || setup.deaths > 0;
        let mut data_rails = random.pick(&[1, 1, 2, 3, 4]);
        if messages {
            (data_rails, setup.rails, setup.data_deaths) = (1, 1, 0);
        }
        let links = data_rails.max(usize::from(setup.rails));
        let mut order: Vec<Vec<u8>> = (0..setup.nodes)
            .map(|node| (0..links).map(|at| ((at + node) % links) as u8).collect())
            .collect();
        let mut settings = vec![Settings::of(&setup); setup.nodes];
        if kind == Kind::Unlike {
            order.iter_mut().for_each(|order| leave_out(order, &mut random));
            settings.iter_mut().for_each(|settings| settings.draw(&mut random));
        }
        let peers: Vec<Peers<Mixing>> = (0..setup.nodes)
            .map(|node| {
                let presence = presence(node, &order[node], setup.rails, &mut random, harsh);
                Peers::new(if messages { by_messages(presence) } else { presence }, Mixing)
            })
            .collect();
        let to_fail = usize::from(harsh && random.percent(8));
        let lasting = to_fail + setup.parts_lost + setup.deaths + setup.losses / 4;
        let stays = lasting > 0 || setup.silent.is_some() || !setup.closes;
        // Receives on a failed channel keep their entries.
        let room = if stays { (SLOTS, 1 << 16) } else { (FEW_SLOTS, CAPACITY_MIN) };
        let nodes = (peers, order, settings);
        let mut world = Self::of((setup, harsh, kind), random, nodes, to_fail, room);
        if kind == Kind::Partial {
            world.wire.crowded = world.wire.random.pick(&[0, 20, 80]);
        }
        world.wire.data.provider = messages.then(|| Provider::new(&mut world.wire.random));
        for _ in 0..1 + world.wire.random.below(CONNECTIONS) {
            world.plan();
        }
        world
    }

    /// A world of endpoints with that many rails, in which nothing fails by chance and nothing is planned. No message is inline.
    pub(crate) fn job(random: Random, nodes: usize, links: usize, slots: usize) -> Self {
        Self::job_with(0, random, (nodes, links), slots)
    }

    /// The same with inline messages of up to so many bytes.
    pub(crate) fn job_with(
        inline_bytes_max: u16,
        mut random: Random,
        (nodes, links): (usize, usize),
        slots: usize,
    ) -> Self {
        let mut setup = Setup::without_faults(&mut random);
        (setup.nodes, setup.rails, setup.calm) = (nodes, links.min(2) as u8, false);
        (setup.closes, setup.failover, setup.early) = (false, true, 0);
        let order = vec![(0..links as u8).collect::<Vec<u8>>(); nodes];
        let peers = (0..nodes)
            .map(|node| {
                let presence = presence(node, &order[node], setup.rails, &mut random, false);
                let capabilities = Capabilities {
                    true_lengths: true,
                    proves_arrival: false,
                    largest_write: 1 << 30,
                    ..presence.capabilities
                };
                let ring = if inline_bytes_max > 0 { Ring::LONG } else { presence.offers.ring };
                let offers = Offers { inline_bytes_max, ring, shared_from: 512 };
                Peers::new(Presence { capabilities, offers, ..presence }, Mixing)
            })
            .collect();
        let room = (slots, 1 << 16);
        let settings = vec![Settings::of(&setup); nodes];
        let alike = (setup, false, Kind::Alike);
        let mut world = Self::of(alike, random, (peers, order, settings), 0, room);
        world.wire.fair = true;
        world
    }

    fn of(
        (setup, harsh, kind): (Setup, bool, Kind),
        mut random: Random,
        (peers, order, settings): (Vec<Peers<Mixing>>, Vec<Vec<u8>>, Vec<Settings>),
        to_fail: usize,
        (slots, entries): (usize, u32),
    ) -> Self {
        let flows = Flows {
            peers,
            order,
            settings,
            released: BTreeSet::new(),
            channels: vec![Vec::new(); setup.nodes],
            provider: None,
            slots: vec![vec![None; slots]; setup.nodes],
            buffers: Vec::new(),
            flights: Vec::new(),
            to_lose: setup.parts_lost,
            to_fail,
            late: setup.late,
            dead: Vec::new(),
            faulty: BTreeSet::new(),
            disturbed: BTreeSet::new(),
            closed: vec![0; setup.nodes],
            returns: Returns::new(random.percent(50)),
            posted: BTreeSet::new(),
            lost: Vec::new(),
            failed: Vec::new(),
            slowest: BTreeMap::new(),
            paces: [0; 16],
            free_at: BTreeMap::new(),
            losses: Vec::new(),
            missing: BTreeSet::new(),
        };
        let rank = |random: &mut Random| Rank {
            endpoint: ProgressLoop::new(slots),
            budget: Budget::new(random.pick(&[entries, entries.max(4096)])),
            calling: true,
            ending: false,
            ends_after: (harsh && random.percent(4)).then(|| random.below(400)),
            calls: 0,
        };
        let ranks = (0..setup.nodes).map(|_| rank(&mut random)).collect();
        let wire = Wire::new(setup, random, flows);
        Self {
            wire,
            ranks,
            listening: Vec::new(),
            listeners: Vec::new(),
            conversations: Vec::new(),
            meeting: Vec::new(),
            silent: None,
            paused: None,
            harsh,
            kind,
        }
    }

    /// Plans one more connection, to a new listener or one of another connection.
    fn plan(&mut self) {
        let Wire { random, setup, .. } = &mut self.wire;
        let rival = self.harsh && !self.listening.is_empty() && random.percent(15);
        let listener =
            if rival { random.below(self.listening.len()) } else { self.listening.len() };
        let from = random.below(setup.nodes);
        let mut to = random.below(setup.nodes);
        if rival {
            to = self.listening[listener].node;
        } else if to == from && !setup.self_channel {
            to = (to + 1) % setup.nodes;
        }
        if !rival {
            self.listen(to);
        }
        let Wire { random, data, .. } = &mut self.wire;
        if !rival && self.harsh && random.percent(10) {
            self.listening[listener].closes_after = Some(random.below(60));
        }
        if rival && random.percent(50) {
            self.listening[listener].accepts += 1;
        }
        let number = self.conversations.len();
        let mut conversation =
            Conversation::new(number, [from, to], self.harsh, random, &mut data.buffers);
        if data.provider.is_some() {
            conversation.features.iter_mut().for_each(|features| features.fin_only = false);
        }
        if self.kind == Kind::Unlike && random.percent(15) {
            conversation.deregisters_after = Some(random.below(100));
        }
        self.converse(conversation, listener);
    }

    /// A new listener, which accepts one connection.
    fn listen(&mut self, node: usize) {
        let Wire { random, data, .. } = &mut self.wire;
        let secret = Secret([random.next() as u8; 16]);
        let control = control_addresses(data.peers[node].us());
        let handle = data.peers[node].listen(secret, control, 1).unwrap();
        let (accepts, open, closes_after, calls) = (1, true, None, 0);
        self.listening.push(Listening { node, handle, accepts, open, closes_after, calls });
    }

    /// Plans a connection with messages of one length.
    pub(crate) fn connect_for(&mut self, nodes: [usize; 2], messages: (usize, u64)) {
        self.listen(nodes[1]);
        let number = self.conversations.len();
        let buffers = &mut self.wire.data.buffers;
        let conversation = Conversation::steady(number, nodes, messages, buffers);
        self.converse(conversation, self.listening.len() - 1);
    }

    fn converse(&mut self, conversation: Conversation, listener: usize) {
        self.conversations.push(conversation);
        self.listeners.push(listener);
        self.meeting.push(None);
    }

    pub(crate) fn run(mut self) -> Result<Faults, String> {
        let outcome = self.schedule();
        outcome.map_err(|law| format!("{law}\n{:?}\n{}", self.wire.setup, self.why()))?;
        Ok(self.wire.faults)
    }

    fn schedule(&mut self) -> Result<(), String> {
        let steps = 300 + self.wire.random.below(1500);
        let rails = usize::from(self.wire.setup.rails);
        let deaths: Vec<(usize, usize)> = (0..self.wire.setup.deaths)
            .map(|_| (self.wire.random.below(steps), self.wire.random.below(rails)))
            .collect();
        let silent_at = self.wire.random.below(steps);
        let nodes = self.ranks.len();
        let links = self.wire.data.order.iter().flatten().max().map_or(0, |link| link + 1);
        let links = usize::from(links);
        let data_deaths: Vec<(usize, (usize, usize), u8, Death)> = (0..self.wire.setup.data_deaths)
            .map(|_| {
                let random = &mut self.wire.random;
                let pair = (random.below(nodes), random.below(nodes));
                let death =
                    random.pick(&[Death::Loud, Death::Loud, Death::Silent, Death::Refusing]);
                (random.below(steps), pair, random.below(links) as u8, death)
            })
            .collect();
        let stands_at = self.wire.random.percent(5).then(|| self.wire.random.below(steps));
        let sleeps = self.kind == Kind::Unlike && self.wire.random.percent(10);
        let sleeps_at = sleeps.then(|| self.wire.random.below(steps));
        let muted = self.muted_link();
        for step in 0..steps {
            if sleeps_at == Some(step) {
                // All machines sleep, and their clocks go on.
                self.wire.faults.fire(Fault::Slept);
                self.wire.now += self.wire.random.between(1, 30) * 3_600_000_000_000;
            }
            if stands_at == Some(step) {
                self.stand_still()?;
            }
            let pauses = !(deaths.is_empty() && data_deaths.is_empty()) || muted.is_some();
            self.wire.now += if self.wire.random.percent(5) {
                self.wire.random.between(100_000, 3_000_000)
            } else if pauses && self.wire.random.percent(3) {
                // Lost rails pause for so long.
                self.wire.random.between(10_000_000, 400_000_000)
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
            for (at, pair, link, death) in &data_deaths {
                if *at == step {
                    match self.kind == Kind::Partial && self.wire.random.percent(70) {
                        true => kill_way(&mut self.wire, *pair, *link, *death),
                        false => kill(&mut self.wire, *pair, *link, *death),
                    }
                }
                if self.wire.random.percent(1) {
                    revive(&mut self.wire, *pair, *link);
                }
            }
            if self.kind == Kind::Partial {
                self.disturb_in_part(muted);
            }
            if step == silent_at && self.wire.setup.silent.is_some() {
                self.silent = self.wire.setup.silent;
                self.wire.faults.fire(Fault::SilentForEver);
            }
            match self.wire.random.below(100) {
                0..60 => {
                    let node = self.wire.random.below(self.ranks.len());
                    self.call(node);
                }
                60..92 if !self.wire.random.percent(self.wire.setup.slow) => self.wire.advance(1),
                92..96 => self.keepers(),
                // Only time passes.
                _ => {}
            }
            self.check()?;
        }
        self.wire.fair = true;
        for round in 0..FAIR_ROUNDS {
            self.fair_round(1_000_000 * (1 + round as u64 / 200))?;
            if self.at_rest() {
                return self.final_laws();
            }
        }
        Err("no rest".to_owned())
    }

    /// The control rail that may be mute, where there is another one.
    fn muted_link(&mut self) -> Option<u8> {
        let several = self.kind == Kind::Partial && self.wire.setup.rails > 1;
        let Wire { random, setup, .. } = &mut self.wire;
        (several && random.percent(60)).then(|| random.below(setup.rails.into()) as u8)
    }

    /// A control rail becomes mute in one direction or works again; a node is stopped, for less than the peer timeout.
    fn disturb_in_part(&mut self, muted: Option<u8>) {
        let nodes = self.ranks.len();
        let Wire { random, setup, now, .. } = &mut self.wire;
        if self.paused.is_none_or(|(_, until)| until <= *now) && random.next() % 1000 < 3 {
            let most = (setup.peer_timeout / 2).as_nanos() as u64;
            self.paused = Some((random.below(nodes), *now + random.between(1_000_000, most)));
            self.wire.faults.fire(Fault::Paused);
        }
        let Some(link) = muted else { return };
        let random = &mut self.wire.random;
        if random.next() % 1000 < 4 {
            let way = (random.below(nodes), random.below(nodes));
            self.wire.mute(way, link);
        } else if random.next() % 1000 < 2 {
            self.wire.mute.clear();
        }
    }

    fn is_stopped(&self, node: usize) -> bool {
        self.silent == Some(node)
            || !self.wire.fair
                && self.paused.is_some_and(|(who, until)| who == node && self.wire.now < until)
    }

    /// So many nanoseconds pass, in which each node calls and the wire moves.
    pub(crate) fn fair_round(&mut self, nanos: u64) -> Result<(), String> {
        self.wire.now += nanos;
        for node in 0..self.ranks.len() {
            for _ in 0..8 {
                self.call(node);
            }
        }
        self.keepers();
        self.wire.advance(4);
        self.check()
    }

    /// Nothing moves, as if a process were stopped, for less than the peer timeout.
    fn stand_still(&mut self) -> Result<(), String> {
        self.wire.faults.fire(Fault::StoodStill);
        let until = self.wire.now + (self.wire.setup.peer_timeout * 11 / 20).as_nanos() as u64;
        while self.wire.now < until {
            self.wire.now += 45_000_000;
            for node in 0..self.ranks.len() {
                self.call(node);
            }
            self.keepers();
            self.check()?;
        }
        Ok(())
    }

    pub(crate) fn check(&mut self) -> Result<(), String> {
        for (node, rank) in self.ranks.iter().enumerate() {
            if rank.endpoint.stale() > 0 && !self.wire.setup.forges {
                return Err(format!("node {node} got something for no connection or channel"));
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

    /// Two-sided messages out and in, as the plugin handles them before each poll.
    fn mail(&mut self, node: usize) {
        let now = self.moment();
        // A channel to itself has two.
        let mut peers = (0..2 * self.wire.setup.nodes as u32).map(PeerId);
        while let Some(hello) =
            peers.find_map(|peer| self.wire.data.peers[node].hello_to(peer, now))
        {
            if self.wire.refuses(Fault::RefusedLetter) {
                self.wire.data.peers[node].hello_refused(hello.peer, now);
                break;
            }
            self.wire.data.peers[node].hello_posted(hello.peer, now);
            self.wire.faults.fire(Fault::HelloSaid);
            let bytes = hello.control.as_bytes();
            let (to, link) = (usize::from(bytes[0]), bytes[1]);
            // Nothing routes from one rail's network to another's.
            let is_reached = self.wire.data.order[node][hello.rail] == link;
            let held_until = self.wire.holds(Fault::LateLetter);
            if is_reached && !self.wire.loses(Fault::LostLetter) {
                let content = Content::Bytes { to, bytes: hello.bytes };
                let since = self.wire.now;
                self.wire.mail.push(Mail { node, channel: None, link, content, since, held_until });
            }
        }
        while let Some(bytes) = self.wire.nodes[node].inbound.pop_front() {
            let Wire { data, random, .. } = &mut self.wire;
            match data.peers[node].heard(&bytes, &mut || random.next() | 1) {
                Heard::Nothing(Ignored::Known | Ignored::Stranger) => {}
                Heard::Nothing(why) => {
                    self.wire.law(false, &format!("a message was not decoded: {why:?}"));
                }
                Heard::Meets { peer, letter } => {
                    // An endpoint that closes drops HELLOs of new peers.
                    let closes = self.ranks[node].ending;
                    if closes || self.wire.refuses(Fault::RefusedMemory) {
                        continue;
                    }
                    let channel = self.join(node, peer);
                    if let Some(letter) = letter {
                        let event = Event::Letter { channel, letter, proven: true };
                        self.wire.nodes[node].events.push_back(event);
                    }
                }
                Heard::Letter { channel, letter, proven } => {
                    let event = Event::Letter { channel, letter, proven };
                    self.wire.nodes[node].events.push_back(event);
                }
            }
        }
    }

    fn join(&mut self, node: usize, peer: PeerId) -> ChannelId {
        let Wire { data, setup, nodes, faults, .. } = &mut self.wire;
        let peers = &mut data.peers[node];
        let Settings { failover, closes, peer_timeout } = data.settings[node];
        let parameters = peers.parameters(peer, peer_timeout).unwrap();
        let (first, quarantine) = (PacketNumber::new(setup.first), setup.quarantine());
        let parameters = Parameters { first, failover, closes, quarantine, ..parameters };
        let channel = self.ranks[node].endpoint.add_channel(parameters).unwrap();
        peers.join(peer, channel);
        let agreement = peers.agreement(peer).unwrap();
        let far = peers.host(peer).unwrap().process as usize;
        if far == node {
            faults.fire(Fault::ChannelToItself);
        }
        if agreement.rails.data.len() > 1 {
            faults.fire(Fault::SeveralRails);
        }
        data.channels[node].push(Joined {
            peer,
            far,
            rails: agreement.rails.clone(),
            ring: agreement.ring,
            proves_arrival: agreement.capabilities.proves_arrival,
            true_lengths: agreement.capabilities.true_lengths,
            tries: parameters.tries,
        });
        for rail in 0..agreement.rails.data.len() as u8 {
            let link = data.data_link(node, channel, rail);
            data.returns.meet((node, channel, rail), (far, link));
            let account = self.ranks[node].endpoint.account(channel).unwrap();
            if !account.loads.is_open(rail) {
                // It is closed, or will be.
                data.disturb(Link::between([node, far], link));
            }
        }
        nodes[node].outcomes.push(None);
        channel
    }

    fn progress(&mut self, node: usize) {
        self.mail(node);
        let now = self.moment();
        let Rank { endpoint, budget, .. } = &mut self.ranks[node];
        endpoint.progress(&mut Hands { node, wire: &mut self.wire }, now);
        budget.release(endpoint.entries_freed()).unwrap();
        self.release_entries(node);
    }

    /// Returns the entries of a failed channel's receives, as the plugin does.
    fn release_entries(&mut self, node: usize) {
        let Self { ranks, wire, .. } = self;
        let Rank { endpoint, budget, .. } = &mut ranks[node];
        for (slot, seat) in wire.data.slots[node].iter().enumerate() {
            let failed = |channel: ChannelId| {
                matches!(wire.nodes[node].outcomes[channel.0 as usize], Some(Outcome::Failed(_)))
            };
            let Some(slot) = Slot::new(slot).filter(|_| seat.is_some_and(|(id, _)| failed(id)))
            else {
                continue;
            };
            if let Some(flow) = endpoint.connection_mut(slot).and_then(Flow::receiver_mut) {
                budget.release(flow.release_entries()).unwrap();
            }
        }
    }

    fn keepers(&mut self) {
        for node in 0..self.ranks.len() {
            let now = self.moment();
            let due = self.ranks[node].endpoint.keeper_due().is_some_and(|due| due <= now);
            if self.is_stopped(node) || !due {
                continue;
            }
            self.mail(node);
            let Rank { endpoint, budget, .. } = &mut self.ranks[node];
            if endpoint.keep(&mut Hands { node, wire: &mut self.wire }, now) {
                self.wire.faults.fire(Fault::KeeperPolled);
            }
            budget.release(endpoint.entries_freed()).unwrap();
            self.release_entries(node);
        }
    }

    /// One call of a node's application.
    fn call(&mut self, node: usize) {
        if self.is_stopped(node) || !self.ranks[node].calling {
            return;
        }
        self.ranks[node].calls += 1;
        let rank = &self.ranks[node];
        if rank.ends_after.is_some_and(|after| rank.calls == after) {
            self.wire.faults.fire(Fault::EndedEarly);
            self.disturb(node);
            self.end(node);
        }
        let mine = self.conversations.iter().filter(|one| one.nodes.contains(&node));
        let mine: Vec<usize> = mine.map(|one| one.number).collect();
        let listeners: Vec<usize> =
            (0..self.listening.len()).filter(|at| self.listening[*at].node == node).collect();
        if !listeners.is_empty() && self.wire.random.percent(25) {
            let at = self.wire.random.pick(&listeners);
            self.accept(at);
        }
        if !mine.is_empty() {
            let at = self.wire.random.pick(&mine);
            let nodes = self.conversations[at].nodes;
            let side = match nodes[0] == nodes[1] {
                true => self.wire.random.below(2),
                false => usize::from(nodes[1] == node),
            };
            self.call_on(at, side);
        }
        if self.wire.fair && self.wire.setup.closes {
            self.finish(node);
        }
        if self.wire.fair || !self.wire.random.percent(self.wire.setup.burst) {
            self.progress(node);
        }
        self.stop(node);
    }

    /// The node stops calling for good once all its requests are reported; only its keeper polls.
    fn stop(&mut self, node: usize) {
        if !self.wire.setup.stops_calling || self.wire.setup.closes {
            return;
        }
        let mine = self.conversations.iter().filter(|one| one.nodes.contains(&node));
        let ended = |one: &Conversation| {
            (0..2).filter(|side| one.nodes[*side] == node).all(|side| {
                matches!(one.sides[side], Side::Gone | Side::Failed)
                    || matches!(one.sides[side], Side::Open(_)) && one.requests_ended(side)
            })
        };
        let quiet = self.listening.iter().all(|one| one.node != node || !one.open);
        let rank = &mut self.ranks[node];
        if quiet && mine.into_iter().all(ended) && !rank.endpoint.must_send_first() {
            rank.calling = false;
            self.wire.faults.fire(Fault::StoppedCalling);
        }
    }

    /// From now on failures on this node's connections are expected.
    fn disturb(&mut self, node: usize) {
        for one in self.conversations.iter_mut().filter(|one| one.nodes.contains(&node)) {
            one.disturbed = true;
        }
    }

    fn end(&mut self, node: usize) {
        self.ranks[node].ending = true;
        // Where set-up has given up, the other end may open the connection still.
        for one in &mut self.conversations {
            let set_up = (0..2)
                .any(|side| one.nodes[side] == node && matches!(one.sides[side], Side::Seated(_)));
            one.disturbed |= set_up;
        }
        for at in 0..self.listening.len() {
            if self.listening[at].node == node {
                self.close_listener(at);
            }
        }
        for id in 0..self.wire.data.channels[node].len() as u32 {
            self.ranks[node].endpoint.end(ChannelId(id));
        }
    }

    /// All connections of the node are over: ends its channels.
    fn finish(&mut self, node: usize) {
        let mine = self.conversations.iter().filter(|one| one.nodes.contains(&node));
        let over = |one: &Conversation| {
            (0..2).filter(|side| one.nodes[*side] == node).all(|side| self.is_settled(one, side))
        };
        if mine.into_iter().all(over) && !self.wire.data.channels[node].is_empty() {
            self.end(node);
        }
    }

    /// Whether this end of a connection is in its final state.
    pub(crate) fn is_settled(&self, one: &Conversation, side: usize) -> bool {
        let node = one.nodes[side];
        match one.sides[side] {
            Side::Gone | Side::Failed => true,
            // Behind the end, its requests are tested once more.
            Side::Closing(name) if self.has_ended(node, name) => !one.has_requests(side),
            Side::Closing(_) => {
                // Counts never become equal after a failed write.
                let failed = self.wire.data.failed.contains(&one.number);
                // A peer that makes no more calls never closes.
                let alone = !self.ranks[one.nodes[1 - side]].calling;
                failed && side == 1 || alone
            }
            Side::Waiting => {
                let met = self.meeting[one.number];
                let joined = met.and_then(|peer| self.wire.data.peers[node].channel(peer));
                // A handle names one control rail, which may be dead.
                let far = one.nodes[1 - side];
                let alone = self.silent.is_some() || self.wire.died || self.ranks[far].ending;
                side == 1 || joined.is_none() && alone
            }
            // Set-up has timeouts of its own.
            Side::Seated(name) => {
                let there = self.wire.data.slots[node][name.slot.index()];
                let channel = there.and_then(|(id, _)| self.ranks[node].endpoint.channel(id));
                let known = channel.is_some_and(|channel| channel.shadow().target().is_some());
                (self.silent.is_some() || self.wire.died) && !known
            }
            Side::Open(_) => false,
        }
    }

    /// Whether the channel of the connection at this slot has ended.
    pub(crate) fn has_ended(&self, node: usize, name: Name) -> bool {
        let there = self.wire.data.slots[node][name.slot.index()];
        let outcome = |(channel, _): (ChannelId, Name)| {
            self.wire.nodes[node].outcomes[channel.0 as usize].is_some()
        };
        there.is_some_and(outcome)
    }
}

/// Runs one schedule.
pub(crate) fn run(seed: u64) -> Result<Faults, String> {
    World::new(seed, Kind::Alike).run()
}

/// Runs one with endpoints that differ.
pub(crate) fn run_unlike(seed: u64) -> Result<Faults, String> {
    World::new(seed, Kind::Unlike).run()
}

/// Runs one in which links fail in one direction, and nodes are stopped for a while.
pub(crate) fn run_partial(seed: u64) -> Result<Faults, String> {
    World::new(seed, Kind::Partial).run()
}

/// Runs one over a provider without one-sided writes.
pub(crate) fn run_by_messages(seed: u64) -> Result<Faults, String> {
    World::new(seed, Kind::Messages).run()
}
