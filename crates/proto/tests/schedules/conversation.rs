//! Two applications and one connection: what they send and receive, and the expected results.

use proto::Line;
use proto::budget::Budget;
use proto::setup::Features;
use proto::{
    Account, Fault as FlowFault, Flow, MessageId, Moment, Name, Outgoing, Posting, Receive,
    ReceivePoll, SendPoll, Source, Target,
};

use crate::data::{BUFFER_SHIFT, Buffer, Flight, Flows, byte, key};
use crate::faults::{Fault, Faults};
use crate::random::Random;
use crate::wire::Wire;

/// A message and its receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) tag: i32,
    pub(crate) room: u64,
    pub(crate) len: u64,
    pub(crate) host: bool,
}

/// The state of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has not begun.
    Waiting,
    /// It connects, or has accepted.
    Seated(Name),
    Open(Name),
    Closing(Name),
    Gone,
    /// It was never opened.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Waiting,
    Under(MessageId),
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Waiting,
    Posted,
    Early,
    Done,
    Failed,
}

/// The sender's state when one of its messages is tested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendState {
    /// Whether done means that the bytes are at the peer.
    sure: bool,
    in_flight: u32,
}

/// The result of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    Early,
    Done(u64),
    OtherCount,
    Failed,
}

#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) number: usize,
    /// The nodes that connect and accept.
    pub(crate) nodes: [usize; 2],
    pub(crate) sides: [Side; 2],
    pub(crate) features: [Features; 2],
    pub(crate) inline: u16,
    pub(crate) cut: bool,
    optional: bool,
    source_host: bool,
    groups: Vec<(usize, usize)>,
    pub(crate) items: Vec<Item>,
    pub(crate) sends: Vec<Sending>,
    pub(crate) receives: Vec<Receiving>,
    /// The number of the first buffer.
    first: usize,
    posted: Vec<(Line, usize)>,
    next_group: usize,
    /// Whether each side was open once.
    pub(crate) opened: [bool; 2],
    /// Whether sends or receives may fail: a side has closed early, a message is too long, or a write has failed.
    pub(crate) disturbed: bool,
    /// A side closes after so many of its calls.
    pub(crate) closes_after: [Option<usize>; 2],
    pub(crate) withdraws_after: Option<usize>,
    /// After so many calls the memory of a message that is being sent is deregistered.
    pub(crate) deregisters_after: Option<usize>,
    /// That message, and after how many calls what is still to be sent is given up.
    pub(crate) deregistering: Option<(usize, usize)>,
    /// Messages from this one on are not sent yet.
    pub(crate) until: usize,
    /// Connect gives up after so many calls.
    pub(crate) gives_up_after: Option<usize>,
    pub(crate) calls: [usize; 2],
    /// The connecting end's name in its OPEN.
    pub(crate) asked_as: Option<Name>,
}

impl Conversation {
    pub(crate) fn new(
        number: usize,
        nodes: [usize; 2],
        harsh: bool,
        random: &mut Random,
        buffers: &mut Vec<Buffer>,
    ) -> Self {
        let grouped = random.percent(50);
        let feature = |random: &mut Random| Features {
            groups: grouped || random.percent(10),
            fin_only: random.percent(8),
        };
        let features = [feature(random), feature(random)];
        let grouped = features.iter().all(|features| features.groups);
        let inline = random.pick(&[0, 8, 200, 512, 4096]);
        let gpu = inline == 0 && random.percent(50);
        let cut = random.percent(30);
        let longest = random.pick(&[0, 8, 64, 64, 600, 600, 5000]);
        let tags = random.pick(&[1, 2, 6]);
        let (mut groups, mut items) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(40) {
            let members = if grouped && random.percent(30) { 1 + random.below(8) } else { 1 };
            groups.push((items.len(), members));
            for _ in 0..members {
                let len = random.between(0, longest);
                let more = random.between(0, longest);
                let room = match random.below(3) {
                    0 => len,
                    1 if cut => random.between(0, len),
                    _ => len + more,
                };
                let (tag, host) = (random.below(tags) as i32, !gpu || random.percent(50));
                items.push(Item { tag, room, len, host });
            }
        }
        let mut disturbed = false;
        if harsh && !cut && random.percent(6) {
            let at = random.below(items.len());
            items[at].len = items[at].room + 1;
            disturbed = true;
        }
        let first = buffers.len();
        buffers.extend(items.iter().map(|item| Buffer::new(nodes[1], item.room)));
        let at = |random: &mut Random, chance| {
            (harsh && random.percent(chance)).then(|| random.below(150))
        };
        let closes_after = [at(random, 12), at(random, 12)];
        let withdraws_after = at(random, 8);
        let gives_up_after = at(random, 5);
        Self {
            number,
            nodes,
            sides: [Side::Waiting; 2],
            features,
            inline,
            cut,
            optional: random.percent(20),
            source_host: random.percent(80),
            groups,
            sends: vec![Sending::Waiting; items.len()],
            receives: vec![Receiving::Waiting; items.len()],
            items,
            first,
            posted: Vec::new(),
            next_group: 0,
            opened: [false; 2],
            disturbed,
            closes_after,
            withdraws_after,
            deregisters_after: None,
            deregistering: None,
            until: usize::MAX,
            gives_up_after,
            calls: [0; 2],
            asked_as: None,
        }
    }

    /// Messages of one length, received one by one in GPU memory, so that none is sent inline.
    pub(crate) fn steady(
        number: usize,
        nodes: [usize; 2],
        (messages, len): (usize, u64),
        buffers: &mut Vec<Buffer>,
    ) -> Self {
        let mut random = Random::new(0);
        let mut one = Self::new(number, nodes, false, &mut random, &mut Vec::new());
        let features = Features { groups: false, fin_only: false };
        (one.features, one.inline, one.source_host) = ([features; 2], 0, false);
        (one.cut, one.optional, one.first) = (false, false, buffers.len());
        one.items = vec![Item { tag: 0, room: len, len, host: false }; messages];
        one.groups = (0..messages).map(|at| (at, 1)).collect();
        one.sends = vec![Sending::Waiting; messages];
        one.receives = vec![Receiving::Waiting; messages];
        buffers.extend(one.items.iter().map(|item| Buffer::new(nodes[1], item.room)));
        one
    }

    /// All its messages are from host memory to host memory, and may be inline.
    pub(crate) fn go_inline(&mut self) {
        (self.inline, self.source_host) = (512, true);
        self.items.iter_mut().for_each(|item| item.host = true);
    }

    fn grouped(&self) -> bool {
        self.features.iter().all(|features| features.groups)
    }

    pub(crate) fn message(&self, index: usize) -> u32 {
        (self.number << 12 | index) as u32
    }

    /// The next message to send, and its index.
    pub(crate) fn next_send(&self, random: &mut Random) -> Option<(usize, Outgoing)> {
        let waits = |at: &usize| self.sends[*at] == Sending::Waiting;
        let ready = 0..self.sends.len().min(self.until);
        let waiting: Vec<usize> = ready.filter(waits).collect();
        let mut index = *waiting.first()?;
        if self.grouped() {
            let tag = self.items[random.pick(&waiting)].tag;
            index = *waiting.iter().find(|at| self.items[**at].tag == tag)?;
        }
        let Item { tag, len, .. } = self.items[index];
        let source = Source { address: 0, region: self.message(index) };
        Some((index, Outgoing { tag, len, source, host: self.source_host }))
    }

    /// Whether all sends, or all receives, have ended.
    pub(crate) fn requests_ended(&self, side: usize) -> bool {
        match side {
            0 => self.sends.iter().all(|send| matches!(send, Sending::Done | Sending::Failed)),
            _ => {
                let ended = |receive: &Receiving| {
                    matches!(receive, Receiving::Done | Receiving::Failed | Receiving::Early)
                };
                self.receives.iter().all(ended)
            }
        }
    }

    /// Whether the application has requests that have not ended.
    pub(crate) fn has_requests(&self, side: usize) -> bool {
        match side {
            0 => self.sends.iter().any(|send| matches!(send, Sending::Under(_))),
            _ => self.receives.contains(&Receiving::Posted),
        }
    }

    pub(crate) fn open(&mut self, side: usize, name: Name) {
        self.sides[side] = Side::Open(name);
        self.opened[side] = true;
    }

    /// Nothing is sent or received any more.
    pub(crate) fn fail_rest(&mut self, side: usize) {
        if side == 0 {
            for send in self.sends.iter_mut().filter(|send| **send == Sending::Waiting) {
                *send = Sending::Failed;
            }
        } else {
            self.next_group = self.groups.len();
            for receive in self.receives.iter_mut().filter(|one| **one == Receiving::Waiting) {
                *receive = Receiving::Failed;
            }
        }
    }

    /// Tests all open sends; returns the results for [`sent`](Self::sent).
    pub(crate) fn poll_sends(&self, flow: &mut Flow) -> Vec<(usize, SendPoll, SendState)> {
        let Flow::Send(flow) = flow else { return Vec::new() };
        let under = self.sends.iter().enumerate().filter_map(|(index, send)| match send {
            Sending::Under(message) => Some((index, *message)),
            _ => None,
        });
        under
            .map(|(index, message)| {
                let answer = flow.poll(message);
                let terms = flow.terms();
                let sure = terms.cutting.rails > 1 || terms.proves_arrival;
                (index, answer, SendState { sure, in_flight: flow.in_flight() })
            })
            .collect()
    }

    pub(crate) fn sent(&mut self, polled: &[(usize, SendPoll, SendState)], wire: &mut Wire<Flows>) {
        for (index, answer, state) in polled {
            let number = self.message(*index);
            if *answer != SendPoll::Pending {
                wire.data.released.insert(number);
            }
            match answer {
                SendPoll::Pending => {}
                SendPoll::Done { len } => {
                    self.sends[*index] = Sending::Done;
                    let item = self.items[*index];
                    let right = *len == item.len || self.cut && *len == item.room.min(item.len);
                    wire.law(right, "a send ends with another length");
                    let busy = wire.data.flies(number, |flight| !flight.completed);
                    wire.law(!busy, "a send is done although its buffer is being read");
                    let flies = wire.data.flies(number, Flight::is_coming);
                    wire.law(
                        !(state.sure && flies),
                        "a send is done although its bytes may be lost",
                    );
                }
                SendPoll::Failed(fault) => {
                    self.sends[*index] = Sending::Failed;
                    self.failed(*fault, &wire.data);
                    // The application waits for these writes before it reuses the buffer.
                    let flies = wire.data.flies(number, |flight| !flight.completed);
                    let law = "a send has failed, and its write continues without being reported";
                    wire.law(!flies || state.in_flight > 0, law);
                }
            }
        }
    }

    /// A write that failed on a faulty rail may fail the connection. The other side's failure is checked at the end.
    fn failed(&mut self, fault: FlowFault, data: &Flows) {
        let hit = data.failed.contains(&self.number) || data.has_faulty_rail(self.nodes);
        if matches!(fault, FlowFault::Transport { .. }) && hit {
            self.disturbed = true;
        }
    }

    pub(crate) fn has_more_to_post(&self) -> bool {
        self.next_group < self.groups.len()
    }

    /// Posts the next group, if window and budget have room.
    pub(crate) fn post(
        &mut self,
        flow: &mut Flow,
        account: &mut Account,
        (places, now): (&[u64], Moment),
        budget: &mut Budget,
        faults: &mut Faults,
    ) {
        let (Flow::Receive(flow), Side::Open(name)) = (flow, self.sides[1]) else { return };
        let Some((start, count)) = self.groups.get(self.next_group).copied() else { return };
        let group = start..start + count;
        if flow.takes_no_more().is_some() {
            return self.fail_rest(1);
        }
        let cost = group.clone().map(|at| flow.entries(self.items[at].room)).sum();
        if !budget.take(name.slot, cost) {
            faults.fire(Fault::PastBudget);
            return;
        }
        let first = self.first;
        let keys: Vec<u64> = group
            .clone()
            .flat_map(|at| places.iter().map(move |place| key(first + at, *place)))
            .collect();
        let receives: Vec<Receive> = group
            .clone()
            .map(|at| {
                let Item { tag, room, host, .. } = self.items[at];
                let buffer = self.first + at;
                let target = Target { address: 0, region: buffer as u32 };
                let address = (buffer as u64) << BUFFER_SHIFT;
                Receive { target, address, len: room, tag, host }
            })
            .collect();
        let how = Posting { cut: self.cut, optional: self.optional };
        match flow.post(&receives, &keys, how, account, now) {
            Ok(Some(line)) => {
                self.posted.push((line, self.next_group));
                self.next_group += 1;
                self.receives[group.clone()].fill(Receiving::Posted);
                if self.items[group].iter().any(|item| item.room == 0) {
                    faults.fire(Fault::ZeroBytes);
                }
                if count > 1 {
                    faults.fire(Fault::Group);
                }
            }
            Ok(None) => budget.release(cost).unwrap(),
            Err(_) => {
                budget.release(cost).unwrap();
                self.fail_rest(1);
            }
        }
    }

    /// Tests all posted receives; returns those that have ended, for [`received`](Self::received).
    pub(crate) fn poll_receives(&mut self, flow: &mut Flow) -> Vec<(usize, Received)> {
        let Flow::Receive(flow) = flow else { return Vec::new() };
        let mut over = Vec::new();
        self.posted.retain(|(line, group)| {
            let (start, count) = self.groups[*group];
            if count == 1 && self.receives[start] == Receiving::Posted && flow.poll_early(*line) {
                over.push((start, Received::Early));
                return false;
            }
            match flow.poll(*line) {
                ReceivePoll::Pending => return true,
                ReceivePoll::Done { count: said } if said as usize == count => {
                    let lines = (start..start + count).zip((0..).map(|n| line.plus(n)));
                    over.extend(lines.map(|(at, line)| (at, Received::Done(flow.size(line)))));
                }
                ReceivePoll::Done { .. } => over.push((start, Received::OtherCount)),
                ReceivePoll::Failed(_) => {
                    over.extend((start..start + count).map(|at| (at, Received::Failed)));
                }
            }
            false
        });
        over
    }

    pub(crate) fn received(&mut self, over: &[(usize, Received)], wire: &mut Wire<Flows>) {
        for (at, received) in over {
            self.receives[*at] = match received {
                Received::Early => {
                    wire.faults.fire(Fault::EarlyReport);
                    Receiving::Early
                }
                Received::Done(size) => {
                    self.check(*at, *size, wire);
                    Receiving::Done
                }
                Received::OtherCount => {
                    wire.law(false, "a group ends with another count");
                    Receiving::Failed
                }
                Received::Failed => Receiving::Failed,
            };
        }
    }

    /// Checks a reported receive: its message is complete, and nothing may land there any more.
    fn check(&self, at: usize, size: u64, wire: &mut Wire<Flows>) {
        let Item { room, len, .. } = self.items[at];
        let expected = if self.cut { len.min(room) } else { len };
        wire.law(size == expected, "a receive ends with the length of another message");
        let message = self.message(at);
        let buffer = &mut wire.data.buffers[self.first + at];
        buffer.closed = true;
        let right = (0..size).all(|at| buffer.bytes[at as usize] == byte(message, at));
        if !right {
            let bytes = &wire.data.buffers[self.first + at].bytes[..size as usize];
            let of = |other: &usize| {
                (0..size).all(|at| bytes[at as usize] == byte(self.message(*other), at))
            };
            let others: Vec<usize> = (0..self.items.len()).filter(of).collect();
            let number = self.number;
            let law = format!(
                "a receive has other bytes than its message\n{number}: {at} has {others:?} {bytes:?} {:?}",
                self.items[at]
            );
            wire.law(false, &law);
        }
        if expected < len {
            wire.faults.fire(Fault::Cut);
        }
    }

    /// Checks that receives that were reported early have their bytes by now.
    pub(crate) fn check_early(&self, wire: &mut Wire<Flows>) {
        for at in 0..self.items.len() {
            if self.receives[at] == Receiving::Early {
                let Item { room, len, .. } = self.items[at];
                self.check(at, if self.cut { len.min(room) } else { len }, wire);
            }
        }
    }

    /// The memory of the receives is deregistered.
    pub(crate) fn give_back(&self, wire: &mut Wire<Flows>) {
        let all = self.first..self.first + self.items.len();
        let used = wire.data.provider.as_ref().is_some_and(|provider| provider.uses(all.clone()));
        wire.law(!used, "memory is deregistered into which a receive is posted");
        for buffer in &mut wire.data.buffers[all] {
            buffer.closed = true;
        }
    }
}
