//! The application's calls on its connections, one at a time.

use proto::frame::Refusal;
use proto::receive::Dropped;
use proto::setup::{Answer, refuse};
use proto::{Fault as FlowFault, Flow, Moment, Name, ProgressLoop, Submit, SubmitError};

use crate::conversation::{Conversation, Received, Sending, Side};
use crate::data::Flows;
use crate::faults::Fault;
use crate::hands::Hands;
use crate::ranks::{Rank, World};

impl World {
    pub(crate) fn close_listener(&mut self, at: usize) {
        let listening = &mut self.listening[at];
        listening.open = false;
        let (node, listener) = (listening.node, listening.handle.listener);
        for (channel, refused) in self.wire.data.peers[node].close(listener) {
            self.wire.faults.fire(Fault::Refused);
            self.ranks[node].endpoint.refuse(channel, refused);
        }
    }

    /// One call of accept.
    pub(crate) fn accept(&mut self, at: usize) {
        let listening = &mut self.listening[at];
        if !listening.open {
            return;
        }
        listening.calls += 1;
        let late = listening.closes_after.is_some_and(|after| listening.calls > after);
        if listening.accepts == 0 || late {
            return self.close_listener(at);
        }
        let (node, listener) = (listening.node, listening.handle.listener);
        let now = self.moment();
        let Rank { endpoint, .. } = &mut self.ranks[node];
        let Some(name) = endpoint.vacant() else { return };
        let Some(asked) = self.wire.data.peers[node].accept(listener) else { return };
        let channel = proto::ChannelId(asked.channel);
        let far = self.wire.data.channels[node][asked.channel as usize].far;
        // The connecting end is identified by its name.
        let asks = self.conversations.iter().position(|one| {
            one.nodes == [far, node]
                && self.listeners[one.number] == at
                && one.sides[1] == Side::Waiting
                && one.asked_as == Some(asked.open.from)
        });
        let Some(number) = asks else {
            return self.wire.law(false, "an OPEN that no connect sent");
        };
        let one = &mut self.conversations[number];
        let peers = &self.wire.data.peers[node];
        let Some(flow) = peers.accepting(&asked, name, one.features[1], one.inline) else {
            endpoint.refuse(channel, refuse(&asked.open, Refusal::Feature));
            return self.wire.law(false, "an impossible connection was requested");
        };
        self.listening[at].accepts -= 1;
        if endpoint.connect(name, channel, flow, now) {
            self.used(node, name);
            self.wire.data.slots[node][name.slot.index()] = Some((channel, name));
            self.conversations[number].sides[1] = Side::Seated(name);
        } else {
            self.conversations[number].sides[1] = Side::Failed;
        }
    }

    fn used(&mut self, _: usize, name: Name) {
        if name.generation.get() > 0 {
            self.wire.faults.fire(Fault::SlotUsedAgain);
        }
    }

    /// One call on one end of a connection.
    pub(crate) fn call_on(&mut self, number: usize, side: usize) {
        let one = &mut self.conversations[number];
        one.calls[side] += 1;
        match one.sides[side] {
            Side::Waiting if side == 0 => self.connect(number),
            Side::Seated(name) if side == 0 => self.answer(number, name),
            Side::Seated(name) => self.accepted(number, name),
            Side::Open(name) => {
                if side == 0 {
                    self.send(number, name);
                } else {
                    self.receive(number, name);
                }
                self.may_close(number, side, name);
            }
            Side::Closing(name) => self.closing(number, side, name),
            Side::Waiting | Side::Gone | Side::Failed => {}
        }
    }

    fn connect(&mut self, number: usize) {
        let one = &self.conversations[number];
        let (node, features) = (one.nodes[0], one.features[0]);
        let handle = self.listening[self.listeners[number]].handle;
        let now = self.moment();
        if self.ranks[node].ending {
            self.conversations[number].sides[0] = Side::Failed;
            return;
        }
        let random = &mut self.wire.random;
        let peer = self.wire.data.peers[node].meet(&handle, &mut || random.next() | 1);
        self.meeting[number] = Some(peer);
        let peers = &self.wire.data.peers[node];
        let Some(channel) = peers.channel(peer) else { return };
        if self.wire.nodes[node].outcomes[channel.0 as usize].is_some() {
            self.conversations[number].sides[0] = Side::Failed;
            return;
        }
        let endpoint = &mut self.ranks[node].endpoint;
        let Some(name) = endpoint.vacant() else { return };
        let flow = peers.connecting(peer, name, &handle, features).unwrap();
        let connected = endpoint.connect(name, channel, flow, now);
        if connected {
            self.used(node, name);
            self.wire.data.slots[node][name.slot.index()] = Some((channel, name));
            self.conversations[number].sides[0] = Side::Seated(name);
            self.conversations[number].asked_as = Some(name);
        }
    }

    /// A further call of connect.
    fn answer(&mut self, number: usize, name: Name) {
        let one = &mut self.conversations[number];
        let node = one.nodes[0];
        let answer = self.ranks[node].endpoint.connection(name.slot).unwrap().answer();
        let gives_up = one.gives_up_after.is_some_and(|after| one.calls[0] > after);
        match answer {
            Answer::Opened => {
                self.wire.faults.fire(Fault::Connected);
                one.open(0, name);
                self.same_connection(number);
            }
            Answer::Pending if !gives_up => {
                // NCCL would retry for ever.
                let one = &self.conversations[number];
                let at = self.listeners[number];
                let lost = !self.listening[at].open && one.sides[1] == Side::Waiting;
                let ended = self.has_ended(node, name);
                if (lost || ended) && self.wire.fair {
                    self.wire.faults.fire(Fault::LostConnect);
                    self.close(number, 0, name);
                }
            }
            Answer::Pending => {
                self.wire.faults.fire(Fault::GaveUp);
                one.disturbed = true;
                self.close(number, 0, name);
            }
            Answer::Failed(_) => self.close(number, 0, name),
            Answer::Refused(why) => {
                self.wire.law(false, &format!("a connect was refused: {why:?}"));
            }
        }
    }

    /// Checks that both ends have each other's right names.
    fn same_connection(&mut self, number: usize) {
        let one = &self.conversations[number];
        let names = one.sides.map(|side| match side {
            Side::Seated(name) | Side::Open(name) | Side::Closing(name) => Some(name),
            Side::Waiting | Side::Gone | Side::Failed => None,
        });
        let [Some(ours), Some(theirs)] = names else { return };
        let flow =
            |side: usize, name: Name| self.ranks[one.nodes[side]].endpoint.connection(name.slot);
        let (Some(Flow::Send(ours_is)), Some(Flow::Receive(theirs_is))) =
            (flow(0, ours), flow(1, theirs))
        else {
            return;
        };
        let named = ours_is.peer() == theirs && theirs_is.peer() == ours;
        let (a, b) = (ours_is.terms(), theirs_is.terms());
        let same = a.cutting == b.cutting
            && (a.grouped, a.immediates, a.true_lengths)
                == (b.grouped, b.immediates, b.true_lengths)
            && (a.inline, a.proves_arrival) == (b.inline, b.proves_arrival);
        self.wire.law(named && same, "the two ends of a connection do not agree on it");
    }

    /// A further call of accept.
    fn accepted(&mut self, number: usize, name: Name) {
        let node = self.conversations[number].nodes[1];
        let now = self.moment();
        let endpoint = &mut self.ranks[node].endpoint;
        if endpoint.connection(name.slot).and_then(Flow::fault).is_some() {
            self.close(number, 1, name);
        } else if endpoint.has_left(name.slot, now) {
            self.conversations[number].open(1, name);
        }
    }

    fn send(&mut self, number: usize, name: Name) {
        let now = self.moment();
        let Self { wire, ranks, conversations, .. } = self;
        let one = &mut conversations[number];
        let node = one.nodes[0];
        let endpoint = &mut ranks[node].endpoint;
        if wire.random.percent(60)
            && let Some((index, message)) = one.next_send(&mut wire.random)
        {
            match endpoint.submit(&mut Hands { node, wire }, name.slot, &message, now) {
                Ok(Submit::NotNow) => {}
                Ok(Submit::Inline { message, .. } | Submit::Parts { message, .. }) => {
                    one.sends[index] = Sending::Under(message);
                }
                Err(SubmitError::Connection(fault)) => {
                    if let FlowFault::TooLong { .. } = fault {
                        wire.faults.fire(Fault::TooLong);
                    }
                    one.fail_rest(0);
                }
                Err(SubmitError::Ended) => one.fail_rest(0),
                Err(SubmitError::Unknown) => wire.law(false, "a connection is not there"),
            }
        }
        let mut hands = Hands { node, wire };
        let polled =
            endpoint.with(&mut hands, name.slot, now, |flow, _| one.poll_sends(flow)).unwrap();
        one.sent(&polled, wire);
        self.same_connection(number);
        self.deregister(number, name);
    }

    /// A call of deregMr for the memory of a message that is being sent, as the plugin makes it: past its bound what is still to be
    /// sent from there is given up.
    fn deregister(&mut self, number: usize, name: Name) {
        let now = self.moment();
        let Self { wire, ranks, conversations, .. } = self;
        let one = &mut conversations[number];
        let calls = one.calls[0];
        if one.deregisters_after.is_some_and(|after| calls > after)
            && let Some(index) = one.sends.iter().position(|send| matches!(send, Sending::Under(_)))
        {
            one.deregisters_after = None;
            one.deregistering = Some((index, calls + wire.random.below(60)));
        }
        let Some((index, until)) = one.deregistering else { return };
        let (node, region, gives_up) = (one.nodes[0], one.message(index), calls > until);
        let mut hands = Hands { node, wire };
        let fed = ranks[node].endpoint.with(&mut hands, name.slot, now, |flow, _| {
            let flow = flow.sender_mut()?;
            let gives_up = gives_up && flow.feeds_from(region);
            if gives_up {
                flow.give_up_region(region);
            }
            Some((flow.feeds_from(region), gives_up))
        });
        let Some((feeds, given_up)) = fed.flatten() else { return };
        if given_up {
            wire.faults.fire(Fault::GivenUp);
            wire.law(!feeds, "a message is sent from memory that was given up");
            // Its receiver learns of that by the end of the connection.
            (one.disturbed, one.closes_after[0]) = (true, Some(0));
        }
        if feeds || wire.data.flies(region, |flight| !flight.completed) {
            return;
        }
        one.deregistering = None;
        wire.data.released.insert(region);
        wire.faults.fire(Fault::Deregistered);
    }

    fn receive(&mut self, number: usize, name: Name) {
        let now = self.moment();
        let Self { wire, ranks, conversations, .. } = self;
        let one = &mut conversations[number];
        let node = one.nodes[1];
        let Rank { endpoint, budget, .. } = &mut ranks[node];
        let (channel, _) = wire.data.slots[node][name.slot.index()].unwrap();
        let rails = wire.data.channels[node][channel.0 as usize].rails.data.len() as u8;
        let place = |rail| wire.data.place(node, wire.data.data_link(node, channel, rail));
        let places: Vec<u64> = (0..rails).map(place).collect();
        if wire.random.percent(20) {
            endpoint.send_urgent(&mut Hands { node, wire }, name.slot, now);
        }
        // With messages only a call that posts may have consequences, as in the plugin.
        let may_post = wire.data.provider.is_none() || one.has_more_to_post();
        if wire.random.percent(50) && may_post {
            let mut faults = crate::faults::Faults::default();
            endpoint.with(&mut Hands { node, wire }, name.slot, now, |flow, account| {
                one.post(flow, account, (&places, now), budget, &mut faults);
            });
            wire.faults.add(&faults);
        }
        if one.withdraws_after.is_some_and(|after| one.calls[1] > after) {
            one.withdraws_after = None;
            one.disturbed = true;
            wire.faults.fire(Fault::Withdrawn);
            endpoint.with(&mut Hands { node, wire }, name.slot, now, |flow, _| {
                if let Flow::Receive(flow) = flow {
                    flow.withdraw();
                }
            });
        }
        let over = polled(one, endpoint, Hands { node, wire }, name, now);
        one.received(&over, wire);
        // Pending receives of a failed flow never complete.
        let failed = over.iter().any(|(_, received)| matches!(received, Received::Failed));
        if failed || endpoint.connection(name.slot).and_then(Flow::fault).is_some() {
            budget.forget(name.slot);
            one.fail_rest(1);
        }
        self.guard(number, name);
    }

    /// Marks memory that the receiver reports as no longer exposed, for which deregMr would succeed: nothing may land
    /// there.
    fn guard(&mut self, number: usize, name: Name) {
        let one = &self.conversations[number];
        let flow = self.ranks[one.nodes[1]].endpoint.connection(name.slot);
        if let Some(Flow::Receive(flow)) = flow
            && flow.fault().is_some()
            && flow.exposed() == 0
            && !flow.has_copies()
        {
            one.give_back(&mut self.wire);
        }
    }

    fn may_close(&mut self, number: usize, side: usize, name: Name) {
        let one = &mut self.conversations[number];
        let node = one.nodes[side];
        let flow = self.ranks[node].endpoint.connection(name.slot);
        let waits = match flow {
            // Receives that were reported early still get their bytes.
            Some(Flow::Receive(flow)) => flow.waits() && flow.fault().is_none() && !one.disturbed,
            _ => false,
        };
        let ended = one.requests_ended(side) && !waits;
        let early = one.closes_after[side].is_some_and(|after| one.calls[side] > after);
        if early && !ended {
            self.wire.faults.fire(Fault::ClosedEarly);
            one.disturbed = true;
        }
        if early || ended && (self.wire.setup.closes || self.wire.random.percent(2)) {
            self.close(number, side, name);
        }
    }

    pub(crate) fn close(&mut self, number: usize, side: usize, name: Name) {
        let now = self.moment();
        let Self { wire, ranks, conversations, .. } = self;
        let one = &mut conversations[number];
        let node = one.nodes[side];
        one.fail_rest(side);
        one.sides[side] = Side::Closing(name);
        ranks[node].budget.forget(name.slot);
        let hands = &mut Hands { node, wire };
        ranks[node].endpoint.with(hands, name.slot, now, |flow, account| flow.close(account));
    }

    /// A further call of close.
    fn closing(&mut self, number: usize, side: usize, name: Name) {
        let now = self.moment();
        let Self { wire, ranks, conversations, .. } = self;
        let one = &mut conversations[number];
        let node = one.nodes[side];
        let endpoint = &mut ranks[node].endpoint;
        if side == 0 {
            let mut hands = Hands { node, wire };
            let polled =
                endpoint.with(&mut hands, name.slot, now, |flow, _| one.poll_sends(flow)).unwrap();
            one.sent(&polled, wire);
        } else {
            let over = polled(one, endpoint, Hands { node, wire }, name, now);
            one.received(&over, wire);
        }
        let is_over = endpoint.connection(name.slot).is_some_and(Flow::is_over);
        if side == 1 {
            self.guard(number, name);
        }
        if !is_over {
            return;
        }
        let provider = &self.wire.data.provider;
        let posted = provider.as_ref().is_some_and(|provider| provider.holds(node, name));
        self.wire.law(!posted, "a slot is freed whose receives are posted");
        let flow = self.ranks[node].endpoint.disconnect(name.slot).unwrap();
        let one = &mut self.conversations[number];
        if let Flow::Receive(flow) = &flow {
            let Dropped { late, duplicates, violations } = flow.dropped();
            let whole = self.wire.data.disturbed.is_empty();
            self.wire.law(violations == 0, "a part breaks the protocol");
            self.wire.law(!whole || duplicates == 0, "a part arrived twice");
            self.wire.law(!whole || one.disturbed || late == 0, "a part arrived for no line");
            self.ranks[node].budget.release(flow.entries_held()).unwrap();
            if !one.disturbed && flow.fault().is_none_or(is_own_close) {
                one.check_early(&mut self.wire);
            }
            one.give_back(&mut self.wire);
        }
        one.sides[side] = Side::Gone;
        self.wire.data.slots[node][name.slot.index()] = None;
    }
}

/// Tests all receives of a connection. With messages nothing follows from that, as in the plugin; so what is to be posted
/// must be posted by itself.
fn polled(
    one: &mut Conversation,
    endpoint: &mut ProgressLoop<Flow>,
    mut hands: Hands<'_, Flows>,
    name: Name,
    now: Moment,
) -> Vec<(usize, Received)> {
    if hands.wire.data.provider.is_some() {
        return one.poll_receives(endpoint.connection_mut(name.slot).unwrap());
    }
    endpoint.with(&mut hands, name.slot, now, |flow, _| one.poll_receives(flow)).unwrap()
}

fn is_own_close(fault: FlowFault) -> bool {
    matches!(fault, FlowFault::Misuse(_))
}
