//! A provider without one-sided writes (SENDRECV): a part is a message, and lands in the receive that was posted with its
//! tag, or waits for that.

use proto::receive::Tagged;
use proto::sendrecv::Tag;
use proto::{Event, Line, Name, Slot, flow};

use crate::data::{self, Flight, Flows};
use crate::faults::Fault;
use crate::random::Random;
use crate::wire::Wire;

/// A receive at the provider of a node.
#[derive(Clone, Copy, Debug)]
struct Posted {
    node: usize,
    name: Name,
    line: Line,
    tag: Tag,
    buffer: usize,
    len: u64,
    /// It was cancelled, which takes time. Until then a message may take it.
    cancelled: bool,
}

/// The providers of all nodes.
#[derive(Debug)]
pub(crate) struct Provider {
    posted: Vec<Posted>,
    /// How likely a cancelled receive ends in a step, as a percentage.
    ends: u32,
}

impl Provider {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { posted: Vec::new(), ends: random.pick(&[50, 50, 1]) }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.posted.iter().all(|one| !one.cancelled)
    }

    /// Whether a receive is posted into one of these buffers.
    pub(crate) fn uses(&self, buffers: std::ops::Range<usize>) -> bool {
        self.posted.iter().any(|one| buffers.contains(&one.buffer))
    }

    /// Whether a receive is posted for this connection.
    pub(crate) fn holds(&self, node: usize, name: Name) -> bool {
        self.posted.iter().any(|one| (one.node, one.name) == (node, name))
    }
}

/// A tagged receive is posted, refused or cancelled.
pub(crate) fn act(wire: &mut Wire<Flows>, node: usize, slot: Slot, tagged: &Tagged) -> bool {
    let Some((_, name)) = wire.data.slots[node][slot.index()] else {
        wire.law(false, "a receive is posted for a free slot");
        return true;
    };
    let (line, tag, target, len) = match *tagged {
        Tagged::Post { line, tag, target, len } => (line, tag, target, len),
        Tagged::Cancel { line } => {
            cancel(wire, (node, name), line);
            return true;
        }
    };
    if wire.refuses(Fault::RefusedReceive) {
        return false;
    }
    let buffer = target.region as usize;
    let there = wire.data.buffers.get(buffer);
    let fits = there.is_some_and(|there| there.node == node && there.bytes.len() as u64 == len);
    let open = there.is_some_and(|there| !there.closed);
    wire.law(fits, "a receive is posted into memory that is not its own");
    wire.law(open, "a receive is posted into memory that was deregistered");
    let Some(provider) = &mut wire.data.provider else {
        wire.law(false, "a tagged receive where channels use RDMA");
        return true;
    };
    let another = provider.posted.iter().any(|one| one.node == node && one.tag == tag);
    provider.posted.push(Posted { node, name, line, tag, buffer, len, cancelled: false });
    wire.law(!another, "two receives have one tag");
    wire.faults.fire(Fault::ReceivePosted);
    true
}

fn cancel(wire: &mut Wire<Flows>, (node, name): (usize, Name), line: Line) {
    let posted = wire.data.provider.iter_mut().flat_map(|provider| &mut provider.posted);
    let its = |one: &&mut Posted| (one.node, one.name, one.line) == (node, name, line);
    let known = match posted.into_iter().find(its) {
        Some(one) => !std::mem::replace(&mut one.cancelled, true),
        // A message has taken it, which the loop does not know yet.
        None => wire.nodes[node].events.iter().any(|event| match event {
            Event::Connection {
                slot,
                generation,
                event: flow::Event::Received { line: its, .. },
            } => (*slot, *generation, *its) == (name.slot, name.generation, line),
            _ => false,
        }),
    };
    wire.law(known, "a receive is cancelled twice, or without being posted");
    wire.faults.fire(Fault::ReceiveCancelled);
}

/// The tag of a message.
fn tag_of(flight: &Flight) -> Option<Tag> {
    Some(Tag::of(flight.write.immediate?.connection(), flight.write.line))
}

/// A cancelled receive ends.
pub(crate) fn advance(wire: &mut Wire<Flows>) {
    let Some(provider) = &mut wire.data.provider else { return };
    let Some(at) = provider.posted.iter().position(|one| one.cancelled) else { return };
    let ends = if wire.fair { 50 } else { provider.ends };
    if !wire.random.percent(ends) {
        return;
    }
    let Posted { node, name, line, tag, .. } = provider.posted.swap_remove(at);
    // It would stay at the provider for ever.
    let coming =
        |flight: &Flight| flight.to == node && tag_of(flight) == Some(tag) && flight.is_coming();
    let lost = wire.data.flights.iter().any(coming) && !has_ended(wire, node, name);
    wire.law(!lost, "a receive was cancelled whose message is under way");
    let Name { slot, generation } = name;
    let event = flow::Event::ReceiveEnded { line };
    wire.nodes[node].events.push_back(Event::Connection { slot, generation, event });
}

/// Whether the channel of a connection has ended.
fn has_ended(wire: &Wire<Flows>, node: usize, name: Name) -> bool {
    let seat = wire.data.slots[node][name.slot.index()].filter(|(_, there)| *there == name);
    seat.is_some_and(|(id, _)| wire.nodes[node].outcomes[id.0 as usize].is_some())
}

/// A message arrives: in its receive, if that is posted.
pub(crate) fn land(wire: &mut Wire<Flows>, index: usize) {
    let flight = &wire.data.flights[index];
    let (to, len, buffer) = (flight.to, flight.write.len, flight.buffer());
    let Some(tag) = tag_of(flight) else {
        return wire.law(false, "a message has no tag");
    };
    let connection = flight.write.immediate.map(|immediate| immediate.connection());
    let Some(provider) = &mut wire.data.provider else { return };
    let its = |one: &Posted| one.node == to && one.tag == tag;
    let Some(at) = provider.posted.iter().position(its) else {
        let slot = usize::from(connection.unwrap_or_default()) % Slot::COUNT;
        let seat = wire.data.slots[to].get(slot).copied().flatten();
        let seat = seat.filter(|(_, name)| Some(name.in_immediate()) == connection);
        wire.law(seat.is_some(), "a message arrives for a slot that is free");
        wire.faults.fire(Fault::Unexpected);
        if seat.is_none_or(|(_, name)| has_ended(wire, to, name)) {
            // It goes with the endpoint.
            wire.data.flights[index].drop_rest();
        }
        return;
    };
    let posted = provider.posted.swap_remove(at);
    wire.law(posted.buffer == buffer, "a message lands in the receive of another line");
    wire.law(len <= posted.len, "a message is longer than its receive");
    if posted.cancelled {
        wire.faults.fire(Fault::CancelledTooLate);
    }
    data::land_all(wire, index);
    let Posted { name: Name { slot, generation }, line, .. } = posted;
    let event = flow::Event::Received { line, len };
    wire.nodes[to].events.push_back(Event::Connection { slot, generation, event });
}
