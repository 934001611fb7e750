//! Two flows and a simulated network between them: frames in order, parts in any order, with delays by the seed.

use std::collections::VecDeque;
use std::time::Duration;

use proto::connection::{Submit, Urgency, Which};
use proto::credit::CHANNEL_BYTES;
use proto::ids::Moment;
use proto::parking::Parking;
use proto::receive::{Copy, Matched, Place, Tagged};
use proto::send::{Outgoing, PartWrite};
use proto::sendrecv::Tag;
use proto::window::WINDOW;
use proto::{
    Account, Fault, Frame, MessageId, Posting, Receive, ReceiveFlow, ReceivePoll, SendFlow,
    SendPoll, Source, Target, Terms,
};
use proto::{Line, RailSet};

use crate::program::{Item, Program};
use crate::random::Random;

pub(crate) struct Pair {
    pub(crate) program: Program,
    pub(crate) random: Random,
    pub(crate) now: Moment,
    pub(crate) sender: SendFlow,
    pub(crate) receiver: ReceiveFlow,
    pub(crate) accounts: [Account; 2],
    /// Frames to the receiver, and to the sender.
    pub(crate) frames: [VecDeque<(Frame, Vec<u64>)>; 2],
    pub(crate) wire: Vec<Flying>,
    /// The receiver's provider, for tagged messages.
    pub(crate) provider: Provider,
    pub(crate) left: Vec<MessageId>,
    /// Messages in program order by tag; receives by line.
    pub(crate) sends: Vec<Send>,
    pub(crate) receives: Vec<Buffer>,
    pub(crate) posted: Vec<(Line, usize, usize)>,
    pub(crate) next_group: usize,
    pub(crate) charged: u32,
    pub(crate) newest_advert: Line,
    pub(crate) counts: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) advert_frames: u64,
    pub(crate) done_frames: u64,
    pub(crate) fin_frames: u64,
    pub(crate) inline_named: u64,
    pub(crate) inline_free: u64,
    pub(crate) parked: u64,
    pub(crate) early: u64,
    pub(crate) refused: u64,
    pub(crate) parts: u64,
    pub(crate) tagged: u64,
    pub(crate) cancelled: u64,
    pub(crate) unexpected: u64,
}

/// A provider of tagged messages: posted receives, cancelled ones that have not ended, and unexpected messages.
#[derive(Debug, Default)]
pub(crate) struct Provider {
    posted: Vec<(Line, Tag, Target)>,
    cancelled: Vec<Line>,
    unexpected: Vec<(Tag, PartWrite)>,
}

/// A part between its post and its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) write: PartWrite,
    pub(crate) landed: bool,
    pub(crate) completed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) item: Item,
    pub(crate) state: Sending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Waiting,
    Under(MessageId),
    Done,
    Failed,
}

/// The memory of one receive.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) item: Item,
    pub(crate) bytes: Vec<u8>,
    /// How often each byte was written.
    pub(crate) writes: Vec<u8>,
    /// Nothing may land here any more.
    pub(crate) closed: bool,
    pub(crate) state: Receiving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Waiting,
    Early,
    Done(u64),
    Failed,
}

const REGION: u64 = 1 << 40;

/// The bytes of message `index`.
fn byte(index: usize, at: u64) -> u8 {
    (index as u64).wrapping_mul(31).wrapping_add(at.wrapping_mul(7) ^ at >> 8).to_le_bytes()[0]
}

impl Pair {
    pub(crate) fn new(program: Program, random: Random, first: u32) -> Self {
        let rails = program.terms.cutting.rails;
        // `own` of one end is `peer` of the other.
        let theirs = Terms { own: program.terms.peer, peer: program.terms.own, ..program.terms };
        let first = Line::new(first);
        let sends = program.items().map(|item| Send { item, state: Sending::Waiting });
        let receives = program.items().map(|item| Buffer {
            item,
            bytes: vec![0; usize::try_from(item.room).unwrap()],
            writes: vec![0; usize::try_from(item.room).unwrap()],
            closed: false,
            state: Receiving::Waiting,
        });
        let (sends, receives) = (sends.collect(), receives.collect());
        Self {
            sender: SendFlow::starting_at(program.terms, first),
            receiver: ReceiveFlow::starting_at(theirs, first),
            program,
            random,
            now: Moment::from_nanos(1),
            accounts: [Account::new(rails), Account::new(rails)],
            frames: [VecDeque::new(), VecDeque::new()],
            wire: Vec::new(),
            provider: Provider::default(),
            left: Vec::new(),
            sends,
            receives,
            posted: Vec::new(),
            next_group: 0,
            charged: 0,
            newest_advert: first.plus(u32::MAX),
            counts: Counters::default(),
        }
    }

    /// One random event.
    pub(crate) fn step(&mut self) {
        self.now = self.now.plus(Duration::from_nanos(self.random.below(3000)));
        match self.random.below(15) {
            0 | 1 => self.post(),
            2 | 3 => self.submit(),
            4 => self.pull_sender(),
            5 => self.pull_receiver(),
            6 | 7 => self.deliver(0),
            8 => self.deliver(1),
            9 => self.post_part(),
            10 => self.land(),
            11 => self.complete(),
            12 => self.packet_left(),
            13 => self.use_provider(),
            _ => self.poll(),
        }
        self.check();
    }

    fn check(&self) {
        let [sender, receiver] = &self.accounts;
        assert!(sender.sent <= CHANNEL_BYTES && receiver.parking.cost() <= CHANNEL_BYTES);
        assert!(self.receiver.next().distance(self.receiver.done()) <= WINDOW);
        assert!(self.provider.unexpected.len() <= WINDOW as usize, "adverts are credit");
    }

    pub(crate) fn post(&mut self) {
        let Some(group) = self.program.groups.get(self.next_group) else { return };
        let start: usize = self.program.groups[..self.next_group].iter().map(Vec::len).sum();
        let rails = usize::from(self.program.terms.cutting.rails);
        let keys: Vec<u64> = (0..group.len())
            .flat_map(|at| (0..rails).map(move |rail| key(start + at, rail)))
            .collect();
        let receives: Vec<_> = group
            .iter()
            .enumerate()
            .map(|(at, item)| Receive {
                target: Target { address: 0, region: u32::try_from(start + at).unwrap() },
                address: (start + at) as u64 * REGION,
                len: item.room,
                tag: item.tag,
                host: item.host,
            })
            .collect();
        let how = Posting { cut: self.program.cut, optional: self.program.optional };
        match self.receiver.post(&receives, &keys, how, &self.accounts[1], self.now) {
            Ok(Some(line)) => {
                self.posted.push((line, start, group.len()));
                self.next_group += 1;
                self.charged +=
                    group.iter().map(|item| self.receiver.entries(item.room)).sum::<u32>();
            }
            Ok(None) => {}
            Err(_) => {}
        }
        self.copy_parked();
    }

    fn copy_parked(&mut self) {
        while let Some(copy) = self.receiver.next_copy(&self.accounts[1].parking) {
            let mut words = Vec::new();
            let Copy { from, .. } = copy;
            self.accounts[1].parking.read(from, |_, word| words.push(word));
            self.fill(copy.target, copy.len, &words);
            self.receiver.unparked(copy, &mut self.accounts[1], self.now);
        }
    }

    fn fill(&mut self, target: Target, len: u16, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(target.region as usize, 0, &bytes[..usize::from(len)]);
    }

    fn write(&mut self, region: usize, offset: u64, bytes: &[u8]) {
        let buffer = &mut self.receives[region];
        assert!(!buffer.closed, "something lands in memory that was deregistered");
        let start = usize::try_from(offset).unwrap();
        for (index, value) in bytes.iter().enumerate() {
            buffer.bytes[start + index] = *value;
            buffer.writes[start + index] += 1;
            assert_eq!(buffer.writes[start + index], 1, "a byte is written once");
        }
    }

    pub(crate) fn submit(&mut self) {
        let waiting = |send: &&Send| send.state == Sending::Waiting;
        let index = if self.program.terms.grouped {
            let tags: Vec<i32> =
                self.sends.iter().filter(waiting).map(|send| send.item.tag).collect();
            if tags.is_empty() {
                return;
            }
            let tag = self.random.of(&tags);
            let of_tag = |send: &Send| send.state == Sending::Waiting && send.item.tag == tag;
            self.sends.iter().position(of_tag)
        } else {
            self.sends.iter().position(|send| send.state == Sending::Waiting)
        };
        let Some(index) = index else { return };
        let Item { tag, len, .. } = self.sends[index].item;
        let source = Source { address: 0, region: u32::try_from(index).unwrap() };
        let message = Outgoing { tag, len, source, host: self.program.source_host };
        let words = self.random.of(&[2, 20, 100, 600]);
        match self.sender.submit(&message, words, &mut self.accounts[0]) {
            Ok(Submit::NotNow) => {}
            Ok(Submit::Inline { message, frame }) => {
                self.sends[index].state = Sending::Under(message);
                let bytes: Vec<u8> = (0..u64::from(frame.len)).map(|at| byte(index, at)).collect();
                let payload = bytes.chunks(8).map(|chunk| {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u64::from_le_bytes(word)
                });
                assert!(3 + frame.payload_words() <= words);
                assert!(self.program.source_host);
                if frame.advertised {
                    self.counts.inline_named += 1;
                } else {
                    self.counts.inline_free += 1;
                }
                self.frames[0].push_back((Frame::Inline(frame), payload.collect()));
                self.left.push(message);
            }
            Ok(Submit::Parts { message, .. }) => self.sends[index].state = Sending::Under(message),
            Err(_) => self.sends[index].state = Sending::Failed,
        }
    }

    pub(crate) fn pull_sender(&mut self) {
        if self.sender.urgency() == Urgency::Nothing {
            return;
        }
        let words = self.random.of(&[3, 8, 40]);
        assert_eq!(self.sender.next_frame(Which::Adverts, words), None);
        while let Some(frame) = self.sender.next_frame(Which::Others, words) {
            self.counts.fin_frames += u64::from(matches!(frame, Frame::Fin(_)));
            self.frames[0].push_back((frame, Vec::new()));
        }
    }

    /// A packet of the receiver leaves: because a frame is urgent, or for another reason.
    pub(crate) fn pull_receiver(&mut self) {
        let urgency = self.receiver.urgency(&self.accounts[1], self.now);
        let leaves = match urgency {
            Urgency::Nothing => return,
            Urgency::Lazy { until, .. } => {
                assert!(until > self.now);
                self.random.one_in(6)
            }
            Urgency::Urgent | Urgency::Waited => true,
        };
        if leaves {
            self.packet(urgency);
        }
    }

    /// A packet of the receiver leaves only if a frame is urgent.
    pub(crate) fn pull_urgent(&mut self) {
        let urgency = self.receiver.urgency(&self.accounts[1], self.now);
        if matches!(urgency, Urgency::Urgent | Urgency::Waited) {
            self.packet(urgency);
        }
    }

    fn packet(&mut self, urgency: Urgency) {
        let room = self.random.of(&[24, 40, 200]);
        let mut words = room;
        for which in [Which::Adverts, Which::Others] {
            while let Some(frame) =
                self.receiver.next_frame(which, words, &mut self.accounts[1], self.now)
            {
                words -= frame.words();
                if let Frame::Advert(advert) = &frame {
                    self.counts.advert_frames += 1;
                    assert!(advert.line.is_after(self.newest_advert), "no advert leaves twice");
                    self.newest_advert = advert.line;
                }
                self.counts.done_frames += u64::from(matches!(frame, Frame::Done { .. }));
                self.frames[1].push_back((frame, Vec::new()));
            }
        }
        if matches!(urgency, Urgency::Urgent | Urgency::Waited) {
            assert!(
                words < room,
                "something urgent leaves in a packet of its own: {:?}",
                self.receiver
            );
        }
    }

    pub(crate) fn deliver(&mut self, to: usize) {
        let Some((frame, payload)) = self.frames[to].pop_front() else { return };
        if to == 1 {
            self.sender
                .received(&frame, &mut self.accounts[0])
                .expect("the receiver obeys its bounds");
            return;
        }
        let place = self
            .receiver
            .received(&frame, &mut self.accounts[1], self.now)
            .expect("the sender obeys its bounds");
        match place {
            None => return,
            Some(Place::Receive(Matched { target, len, .. })) => {
                let state = self.receives[target.region as usize].state;
                assert_ne!(state, Receiving::Early, "what was reported early needs no call");
                self.fill(target, len, &payload);
            }
            Some(Place::Parked(parked)) => {
                self.counts.parked += 1;
                let parking: &mut Parking = &mut self.accounts[1].parking;
                parking.fill(parked, |word| payload[word]);
            }
        }
        if let Some(place) = place {
            self.receiver.copied(place, &mut self.accounts[1], self.now);
        }
        self.copy_parked();
    }

    pub(crate) fn post_part(&mut self) {
        let Some(write) = self.sender.next_part(&self.accounts[0]) else { return };
        assert_eq!(
            self.sender.next_part(&self.accounts[0]),
            Some(write),
            "it is returned until it is posted"
        );
        if self.random.one_in(5) {
            self.counts.refused += 1;
            return;
        }
        let index = write.source.region as usize;
        assert!(matches!(self.sends[index].state, Sending::Under(_)), "its send is not done");
        self.counts.parts += 1;
        self.sender.posted(&write, &mut self.accounts[0]);
        self.wire.push(Flying { write, landed: false, completed: false });
    }

    /// A random part lands, and is reported to the receiver.
    pub(crate) fn land(&mut self) {
        let open: Vec<usize> = (0..self.wire.len()).filter(|at| !self.wire[*at].landed).collect();
        if open.is_empty() {
            return;
        }
        let at = self.random.of(&open);
        self.wire[at].landed = true;
        let write = self.wire[at].write;
        if self.program.terms.messages {
            self.land_message(write);
            return self.forget_ended();
        }
        let region = usize::try_from(write.target / REGION).unwrap();
        assert_eq!(write.key, key(region, usize::from(write.rail)), "the key is the rail's own");
        let (index, from) = (write.source.region as usize, write.source.address);
        let bytes: Vec<u8> = (from..from + write.len).map(|offset| byte(index, offset)).collect();
        self.write(region, write.target % REGION, &bytes);
        if let Some(immediate) = write.immediate {
            assert_eq!(immediate.connection(), self.program.terms.peer.in_immediate());
            let len = if self.program.terms.true_lengths { write.len } else { 0 };
            self.receiver.arrived(write.rail, immediate, len, &mut self.accounts[1], self.now);
        }
        self.forget_ended();
    }

    /// A tagged message arrives at the receiver's provider.
    fn land_message(&mut self, write: PartWrite) {
        let immediate = write.immediate.expect("a message of one part takes no FIN");
        let tag = Tag::of(immediate.connection(), write.line);
        match self.provider.posted.iter().position(|(_, posted, _)| *posted == tag) {
            Some(at) => {
                let (line, _, target) = self.provider.posted.remove(at);
                self.received(line, target, write);
            }
            None => {
                self.counts.unexpected += 1;
                self.provider.unexpected.push((tag, write));
            }
        }
    }

    fn received(&mut self, line: Line, target: Target, write: PartWrite) {
        let (index, from) = (write.source.region as usize, write.source.address);
        let bytes: Vec<u8> = (from..from + write.len).map(|offset| byte(index, offset)).collect();
        self.write(target.region as usize, 0, &bytes);
        self.counts.tagged += 1;
        let account = &mut self.accounts[1];
        self.receiver
            .tagged_arrived(line, write.len, account, self.now)
            .expect("the sender obeys its bounds");
    }

    /// Performs the receiver's tagged actions, or refuses them; a cancelled receive ends at some time.
    pub(crate) fn use_provider(&mut self) {
        while let Some(tagged) = self.receiver.next_tagged() {
            if matches!(tagged, Tagged::Post { .. }) && self.random.one_in(5) {
                self.counts.refused += 1;
                break;
            }
            self.receiver.tagged_taken(&tagged);
            match tagged {
                Tagged::Cancel { line } => {
                    let at = self.provider.posted.iter().position(|(posted, ..)| *posted == line);
                    self.provider.posted.remove(at.expect("a cancelled receive was posted"));
                    self.provider.cancelled.push(line);
                    self.counts.cancelled += 1;
                }
                Tagged::Post { line, tag, target, .. } => {
                    let alike = |(_, posted, _): &(Line, Tag, Target)| *posted == tag;
                    assert!(!self.provider.posted.iter().any(alike), "{tag:?} is posted twice");
                    let came = self.provider.unexpected.iter().position(|(sent, _)| *sent == tag);
                    match came.map(|at| self.provider.unexpected.remove(at)) {
                        Some((_, write)) => self.received(line, target, write),
                        None => self.provider.posted.push((line, tag, target)),
                    }
                }
            }
        }
        if !self.provider.cancelled.is_empty() {
            let line = self.provider.cancelled.remove(0);
            self.receiver.tagged_ended(line);
        }
    }

    /// Whether the provider has neither posted receives nor unexpected messages.
    pub(crate) fn provider_is_empty(&self) -> bool {
        let Provider { posted, cancelled, unexpected } = &self.provider;
        posted.is_empty() && cancelled.is_empty() && unexpected.is_empty()
    }

    /// A random part completes at the sender.
    pub(crate) fn complete(&mut self) {
        let proves = self.program.terms.proves_arrival;
        let may = |part: &Flying| {
            !part.completed && (part.landed || !proves && part.write.immediate.is_some())
        };
        let open: Vec<usize> = (0..self.wire.len()).filter(|at| may(&self.wire[*at])).collect();
        if open.is_empty() {
            return;
        }
        let at = self.random.of(&open);
        self.wire[at].completed = true;
        let write = self.wire[at].write;
        self.sender.written(write.message, write.part, &mut self.accounts[0], Moment::default());
        self.forget_ended();
    }

    pub(crate) fn forget_ended(&mut self) {
        self.wire.retain(|part| !part.landed || !part.completed);
    }

    pub(crate) fn packet_left(&mut self) {
        if !self.left.is_empty() {
            let at = self.random.index(self.left.len());
            let message = self.left.remove(at);
            self.sender.inline_left(message);
        }
    }

    pub(crate) fn poll(&mut self) {
        for at in 0..self.sends.len() {
            let Sending::Under(message) = self.sends[at].state else { continue };
            let item = self.sends[at].item;
            match self.sender.poll(message) {
                SendPoll::Pending => {}
                SendPoll::Done { len } => {
                    assert!(len == item.len || self.program.cut && len < item.len);
                    self.sends[at].state = Sending::Done;
                    assert!(!self.left.contains(&message), "its packet has left");
                    let mine = |part: &&Flying| part.write.source.region as usize == at;
                    assert!(self.wire.iter().filter(mine).all(|part| part.completed));
                    let Terms { cutting, proves_arrival, .. } = self.program.terms;
                    if cutting.rails > 1 || proves_arrival {
                        let all = self.wire.iter().filter(mine).all(|part| part.landed);
                        assert!(
                            all,
                            "where parts could be retransmitted, done means that they have arrived"
                        );
                    }
                }
                SendPoll::Failed(_) => self.sends[at].state = Sending::Failed,
            }
        }
        let mut posted = std::mem::take(&mut self.posted);
        posted.retain(|(line, start, count)| self.poll_receive(*line, *start, *count));
        self.posted = posted;
    }

    /// False if it is over.
    fn poll_receive(&mut self, line: Line, start: usize, count: usize) -> bool {
        if self.program.optional
            && count == 1
            && self.receives[start].state == Receiving::Waiting
            && self.receiver.poll_early(line)
        {
            self.counts.early += 1;
            assert!(!line.is_after(self.newest_advert), "its advert has left");
            self.receives[start].state = Receiving::Early;
            return false;
        }
        match self.receiver.poll(line) {
            ReceivePoll::Pending => true,
            ReceivePoll::Done { count: said } => {
                assert_eq!(said as usize, count);
                for (index, at) in (0..).zip(start..start + count) {
                    let size = self.receiver.size(line.plus(index));
                    let carried = self.receiver.carried(line.plus(index));
                    self.receives[at].state = Receiving::Done(size);
                    self.check_received(at, size, carried);
                }
                false
            }
            ReceivePoll::Failed(_) => {
                (start..start + count).for_each(|at| self.receives[at].state = Receiving::Failed);
                false
            }
        }
    }

    fn check_received(&self, at: usize, size: u64, carried: RailSet) {
        let Item { room, len, .. } = self.receives[at].item;
        assert_eq!(size, self.expected(at), "receive {at} has the message that matches it");
        self.check_cuts(len > room);
        self.check_bytes(at);
        assert!(carried.iter().all(|rail| rail < self.program.terms.cutting.rails));
    }

    /// How much of its message a receive gets.
    fn expected(&self, at: usize) -> u64 {
        let Item { room, len, .. } = self.receives[at].item;
        if self.program.cut { len.min(room) } else { len }
    }

    fn check_bytes(&self, at: usize) {
        for offset in 0..self.expected(at) {
            let index = usize::try_from(offset).unwrap();
            assert_eq!(self.receives[at].bytes[index], byte(at, offset), "message {at}");
        }
    }

    /// Receives that were reported early have their messages in the end.
    pub(crate) fn check_early(&self) {
        let early = |at: &usize| self.receives[*at].state == Receiving::Early;
        (0..self.receives.len()).filter(early).for_each(|at| self.check_bytes(at));
    }

    /// One end reports the first message that was truncated to its receive: the sender if it had the advert.
    fn check_cuts(&self, some: bool) {
        let reports = [self.sender.cut(), self.receiver.cut()];
        assert!(!some || reports != [None; 2], "a message that was cut is reported");
        for cut in reports.into_iter().flatten() {
            let is_it = |item: &Item| (item.len, item.room) == (cut.sent, cut.posted);
            let real = self.receives.iter().any(|receive| is_it(&receive.item));
            assert!(real && cut.sent > cut.posted, "{cut:?} is of no message that was cut");
        }
    }

    /// Delivers everything promptly until all requests have ended. False if that takes too long.
    pub(crate) fn run_to_rest(&mut self) -> bool {
        for _ in 0..4000 {
            self.now = self.now.plus(Duration::from_micros(100));
            (0..4).for_each(|_| self.post());
            (0..40).for_each(|_| self.submit());
            while self.sender.next_part(&self.accounts[0]).is_some() {
                self.post_part();
            }
            while !self.wire.is_empty() {
                self.land();
                self.complete();
            }
            (0..4).for_each(|_| self.use_provider());
            self.pull_sender();
            self.pull_receiver();
            while !(self.frames[0].is_empty() && self.frames[1].is_empty() && self.left.is_empty())
            {
                self.deliver(0);
                self.deliver(1);
                self.packet_left();
            }
            self.poll();
            self.check();
            if self.is_at_rest() {
                return true;
            }
        }
        false
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        let over = |buffer: &Buffer| buffer.state != Receiving::Waiting;
        self.posted.is_empty()
            && self.provider_is_empty()
            && self.next_group == self.program.groups.len()
            && self.receives.iter().all(over)
            && self.sends.iter().all(|send| matches!(send.state, Sending::Done | Sending::Failed))
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.sender.fault().or_else(|| self.receiver.fault())
    }
}

fn key(region: usize, rail: usize) -> u64 {
    region as u64 * 16 + rail as u64
}
