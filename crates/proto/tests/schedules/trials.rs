//! Data rails that return: endpoints that are opened again, addresses that change, and trials.

use std::collections::BTreeMap;

use proto::codec::Address;
use proto::frame::Offer;
use proto::progress::TrialTarget;
use proto::{ChannelId, Event};

use crate::data::{Death, Flows, Link};
use crate::faults::Fault;
use crate::wire::Wire;

/// The successive endpoints of data rails.
#[derive(Debug)]
pub(crate) struct Returns {
    /// Whether keys belong to an endpoint.
    pub(crate) new_keys: bool,
    /// Rails that returned on some channel, one bit each.
    pub(crate) returned: u16,
    incarnations: BTreeMap<(usize, u8), u8>,
    /// By node, channel and rail.
    known: BTreeMap<(usize, u32, u8), u8>,
    trials: Vec<Trial>,
    /// Each rail of a channel that has returned and was not disturbed since.
    sound: BTreeMap<(usize, u32, u8), Link>,
}

#[derive(Debug)]
struct Trial {
    from: (usize, ChannelId, u8),
    to: (usize, ChannelId),
    link: u8,
    incarnation: u8,
    round: u8,
    lands: bool,
    landed: bool,
    /// It completes; or fails; or hangs until its rail is closed.
    end: Option<bool>,
    ended: bool,
}

impl Trial {
    fn is_over(&self) -> bool {
        self.ended && (self.landed || !self.lands)
    }
}

impl Returns {
    pub(crate) fn new(new_keys: bool) -> Self {
        let (incarnations, known, trials) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { new_keys, returned: 0, incarnations, known, trials, sound: BTreeMap::new() }
    }

    /// A rail of a channel has returned.
    pub(crate) fn is_back(&mut self, (node, channel, rail): (usize, ChannelId, u8), link: Link) {
        self.sound.insert((node, channel.0, rail), link);
    }

    /// Whether a rail of a channel was not disturbed since its return.
    pub(crate) fn is_sound(&self, (node, channel, rail): (usize, ChannelId, u8)) -> bool {
        self.sound.contains_key(&(node, channel.0, rail))
    }

    pub(crate) fn disturb(&mut self, link: Link) {
        self.sound.retain(|_, other| *other != link);
    }

    pub(crate) fn incarnation(&self, node: usize, link: u8) -> u8 {
        self.incarnations.get(&(node, link)).copied().unwrap_or(0)
    }

    /// A new channel writes to the current endpoint.
    pub(crate) fn meet(
        &mut self,
        (node, channel, rail): (usize, ChannelId, u8),
        (far, link): (usize, u8),
    ) {
        let now = self.incarnation(far, link);
        self.known.insert((node, channel.0, rail), now);
    }

    /// The endpoint that a channel writes to.
    pub(crate) fn known(&self, node: usize, channel: ChannelId, rail: u8) -> u8 {
        self.known.get(&(node, channel.0, rail)).copied().unwrap_or(0)
    }

    /// Whether nothing is in flight except hanging trials.
    pub(crate) fn is_quiet(&self) -> bool {
        self.trials.iter().all(|trial| trial.end.is_none() && !trial.lands)
    }
}

/// A data rail between two nodes works again. Its trials that hang fail, as their connection does; other writes that hang
/// end only when their endpoint closes.
pub(crate) fn revive(wire: &mut Wire<Flows>, (one, other): (usize, usize), link: u8) {
    let pair = (one.min(other), one.max(other), link);
    let before = wire.data.dead.len();
    wire.data.dead.retain(|dead| !dead.is_between((one, other), link));
    if wire.data.dead.len() < before {
        wire.faults.fire(Fault::DataRailRevived);
        for trial in &mut wire.data.returns.trials {
            let ends = (trial.from.0.min(trial.to.0), trial.from.0.max(trial.to.0), trial.link);
            if ends == pair {
                trial.end = trial.end.or(Some(false));
            }
        }
    }
}

pub(crate) fn open(wire: &mut Wire<Flows>, node: usize, local: u8) -> Option<bool> {
    if wire.refuses(Fault::RefusedMemory) {
        return None;
    }
    let link = wire.data.order[node][usize::from(local)];
    let closed = wire.data.is_closed(node, link);
    wire.law(closed, "an open data rail is opened");
    wire.data.closed[node] &= !(1 << link);
    *wire.data.returns.incarnations.entry((node, link)).or_insert(0) += 1;
    wire.faults.fire(Fault::DataRailOpened);
    Some(wire.data.returns.new_keys)
}

pub(crate) fn trial_target(wire: &mut Wire<Flows>, node: usize, local: u8) -> TrialTarget {
    let link = wire.data.order[node][usize::from(local)];
    let closed = wire.data.is_closed(node, link);
    wire.law(!closed, "a closed data rail is offered");
    let incarnation = wire.data.returns.incarnation(node, link);
    let address = Address::new(&[node as u8, link, incarnation]).unwrap();
    TrialTarget { address, target: u64::MAX, key: incarnation.into() }
}

pub(crate) fn reach(
    wire: &mut Wire<Flows>,
    (node, channel, rail): (usize, ChannelId, u8),
    address: &Address,
) -> bool {
    if wire.refuses(Fault::RefusedMemory) {
        return false;
    }
    let far = wire.data.channels[node][channel.0 as usize].far;
    let link = wire.data.data_link(node, channel, rail);
    let &[its, on, incarnation] = address.as_bytes() else { return false };
    wire.law(usize::from(its) == far && on == link, "a rail is offered to another one's peer");
    wire.data.returns.known.insert((node, channel.0, rail), incarnation);
    true
}

pub(crate) fn post(
    wire: &mut Wire<Flows>,
    (node, channel): (usize, ChannelId),
    offer: &Offer,
) -> bool {
    let link = wire.data.data_link(node, channel, offer.rail);
    let far = wire.data.channels[node][channel.0 as usize].far;
    let closed = wire.data.is_closed(node, link);
    wire.law(!closed, "a trial is posted on a rail that is closed");
    let ended = wire.nodes[node].outcomes[channel.0 as usize].is_some();
    wire.law(!ended, "a trial is posted after the end of its channel");
    let death = wire.data.death(node, far, link);
    if death == Some(Death::Refusing) || wire.refuses(Fault::RefusedPart) {
        return false;
    }
    wire.faults.fire(Fault::TrialPosted);
    let incarnation = wire.data.returns.known(node, channel, offer.rail);
    let gone = incarnation != wire.data.returns.incarnation(far, link);
    let (lands, end) = match death {
        Some(Death::Silent) if wire.random.percent(50) => (false, None),
        Some(Death::Silent) => (false, Some(true)),
        Some(_) => (wire.random.percent(20), Some(false)),
        None if gone || wire.data.is_closed(far, link) => (false, Some(false)),
        None if wire.random.percent(5) => (false, Some(true)),
        None => (true, Some(true)),
    };
    if !lands {
        let lost = if end == Some(false) { Fault::TrialFailed } else { Fault::TrialLost };
        wire.faults.fire(lost);
    }
    wire.data.returns.trials.push(Trial {
        from: (node, channel, offer.rail),
        to: (far, ChannelId(offer.channel.into())),
        link,
        incarnation,
        round: offer.round,
        lands,
        landed: false,
        end,
        ended: false,
    });
    true
}

pub(crate) fn advance(wire: &mut Wire<Flows>, most: usize) {
    for _ in 0..wire.data.returns.trials.len().min(most) {
        let index = wire.random.below(wire.data.returns.trials.len());
        if wire.random.percent(50) {
            land(wire, index);
        } else if wire.data.returns.trials[index].end.is_some() {
            end(wire, index);
        }
        wire.data.returns.trials.retain(|trial| !trial.is_over());
        if wire.data.returns.trials.is_empty() {
            return;
        }
    }
}

/// A node closes its endpoint: its trials end, and those of others never land.
pub(crate) fn close(wire: &mut Wire<Flows>, node: usize, link: u8) {
    for index in 0..wire.data.returns.trials.len() {
        let trial = &mut wire.data.returns.trials[index];
        if trial.link != link {
            continue;
        }
        if trial.to.0 == node {
            trial.lands = false;
        }
        if trial.from.0 == node && !trial.ended {
            trial.end = Some(false);
            end(wire, index);
        }
    }
    wire.data.returns.trials.retain(|trial| !trial.is_over());
}

fn end(wire: &mut Wire<Flows>, index: usize) {
    let trial = &mut wire.data.returns.trials[index];
    if std::mem::replace(&mut trial.ended, true) {
        return;
    }
    let ((node, channel, rail), well) = (trial.from, trial.end == Some(true));
    wire.nodes[node].events.push_back(Event::TrialEnded { channel, rail, well });
}

fn land(wire: &mut Wire<Flows>, index: usize) {
    let trial = &mut wire.data.returns.trials[index];
    if !trial.lands || std::mem::replace(&mut trial.landed, true) {
        return;
    }
    let ((to, channel), link, round) = (trial.to, trial.link, trial.round);
    if trial.incarnation != wire.data.returns.incarnation(to, link) {
        return;
    }
    let Some(joined) = wire.data.channels[to].get(channel.0 as usize) else {
        return wire.law(false, "a trial names a channel that does not exist");
    };
    let ours = wire.data.order[to].iter().position(|other| *other == link).unwrap();
    let rail = joined.rails.data_of(ours as u8).unwrap();
    wire.nodes[to].events.push_back(Event::TrialArrived { channel, rail, round });
}
