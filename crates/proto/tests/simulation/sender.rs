//! The sending application and the layer that carries out its flow's actions.

use std::collections::{HashSet, VecDeque};

use proto::bundle::{BUNDLE_PLACES, BUNDLED_BYTES_MAX};
use proto::parts;
use proto::{
    Immediate, Line, LineFormat, Part, Path, ProtocolError, SendFlow, SendPoll, Submit,
    WriteOutcome,
};

use crate::faults::{Fault, Faults};
use crate::network::{Network, SenderEvent};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::script::Script;

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) flow: SendFlow,
    backlog: VecDeque<Post>,
    /// Entries that are one write, posted in the plain form, which has not completed.
    wholes: HashSet<usize>,
    requests: Vec<(usize, Request)>,
    /// The first group with an entry that is not taken.
    group: usize,
    turn: u32,
    pub(crate) failed: bool,
    /// The receiver has withdrawn its receives: nothing more is begun.
    pub(crate) withdrawn: bool,
    done: usize,
}

/// What a message is asked for by.
#[derive(Clone, Copy, Debug)]
enum Request {
    Line(Line),
    Eager(u32),
}

#[derive(Debug)]
enum Post {
    Part { entry: usize, part: Part, immediate: Option<Immediate> },
    Fin { entry: usize },
}

impl Sender {
    pub(crate) fn new(script: &Script) -> Self {
        let mut flow = SendFlow::new(script.parameters).unwrap();
        flow.set_spans(u64::MAX, 1..u64::MAX);
        if let Some(limit) = script.eager_limit {
            flow.allow_eager(limit);
        }
        if let Some(limit) = script.bundle_limit {
            flow.allow_bundles(limit);
        }
        Self {
            flow,
            backlog: VecDeque::new(),
            wholes: HashSet::new(),
            requests: Vec::new(),
            group: 0,
            turn: 0,
            failed: false,
            withdrawn: false,
            done: 0,
        }
    }

    /// Whether all entries up to `end` are reported done.
    pub(crate) fn has_finished(&self, end: usize) -> bool {
        self.done >= end
    }

    /// Whether the application would not call now.
    pub(crate) fn is_silent(&self, end: usize) -> bool {
        let told = self.failed && self.flow.failed_fin().is_none() && !self.flow.holds_back();
        told || self.has_finished(end)
    }

    /// Some calls of the application, with what progress each makes.
    pub(crate) fn step(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        (end, calm): (usize, bool),
    ) {
        let refuse = if calm { 0 } else { script.refuse_percent };
        let events = if calm { usize::MAX } else { random.below(4) };
        for _ in 0..events {
            let Some(event) = network.sender_queue.pop_front() else { break };
            self.on_event(event, network, oracle);
        }
        self.flush(random, script, network, oracle, faults, refuse);
        if calm || random.percent(60) {
            self.write_bundles(random, script, network, oracle, faults, refuse);
        }
        if calm || random.percent(50) {
            self.submit(random, script, network, oracle, faults, end);
        }
        if calm || random.percent(60) {
            self.flow.observe(&network.mailbox);
        }
        self.poll(random, script, network, oracle, faults);
    }

    fn on_event(&mut self, event: SenderEvent, network: &mut Network, oracle: &mut Oracle) {
        oracle.events += 1;
        let first = self.flow.parameters().first_line;
        let line_of = |entry: usize| first.plus(entry as u32);
        match event {
            SenderEvent::Written(entry)
                if self.wholes.remove(&entry) && !entry.is_multiple_of(3) =>
            {
                self.flow.whole_written(line_of(entry));
            }
            // In the plain form all of it has completed, or nothing has changed.
            SenderEvent::Written(entry)
                if entry % 2 == 0 && self.flow.written_plainly(line_of(entry)) => {}
            SenderEvent::Written(entry) => match self.flow.written(line_of(entry)) {
                WriteOutcome::NeedsFin => self.backlog.push_back(Post::Fin { entry }),
                WriteOutcome::Pending | WriteOutcome::Written => {}
            },
            SenderEvent::FinWritten(entry) => self.flow.fin_written(line_of(entry)),
            SenderEvent::Withdraw => {
                self.flow.fail(ProtocolError::Withdrawn);
                self.withdrawn = true;
                network.post_withdrawn(self.flow.begun(), self.flow.eager_next());
            }
            SenderEvent::EagerWritten(number) => self.flow.eager_written(number),
            SenderEvent::BundleWritten => self.flow.bundle_written(),
            SenderEvent::Cease => {
                let end = self.flow.cease_eager();
                network.post_ceased(end);
            }
        }
    }

    fn flush(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        refuse: u32,
    ) {
        if let Some(fin) = self.flow.failed_fin() {
            if random.percent(refuse) {
                faults.fire(Fault::RefusedFin);
            } else {
                network.post_fin(random, fin.place, fin.words, None);
                self.flow.failed_fin_posted();
                oracle.events += 1;
            }
        }
        while let Some(post) = self.backlog.front() {
            if random.percent(refuse) {
                let data = matches!(post, Post::Part { .. });
                faults.fire(if data { Fault::RefusedData } else { Fault::RefusedFin });
                return;
            }
            oracle.events += 1;
            match self.backlog.pop_front().expect("looked at") {
                Post::Part { entry, part, immediate } => network.post_part(entry, part, immediate),
                Post::Fin { entry } => {
                    let line = script.line(entry);
                    let place = script.parameters.window.place(line);
                    let lap = script.parameters.window.lines() as usize;
                    let free = entry < lap || entry - lap < oracle.done;
                    assert!(free, "the fin of {entry} overwrites one that was not read");
                    network.post_fin(random, place, self.flow.fin_words(line), Some(entry));
                }
            }
        }
    }

    fn submit(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        end: usize,
    ) {
        let Some(group) = script.groups.get(self.group).copied() else { return };
        if group.first >= end || self.failed || self.withdrawn {
            return;
        }
        let tags = |entry: usize| script.entries[entry].tag;
        let free: Vec<usize> = (group.first..group.first + group.count)
            .filter(|entry| !oracle.is_taken(*entry))
            .collect();
        let mut tag = tags(random.pick(&free));
        let mut entry = free.iter().copied().find(|entry| tags(*entry) == tag);
        if group.count == 1 && !script.parameters.window.is_grouped() {
            // The tag is not compared there.
            tag = random.pick(&[tag, tag, 77]);
        } else if random.percent(20) {
            tag = random.below(12) as i32 - 2;
            entry = free.iter().copied().find(|entry| tags(*entry) == tag);
        }
        let len = entry.map_or(1, |entry| script.entries[entry].sent);
        if random.percent(50)
            && self.submit_plainly(random, script, network, oracle, faults, (entry, tag, len))
        {
            return;
        }
        let message = match self.flow.submit(&network.mailbox, tag, len) {
            Ok(Submit::NotYet) => {
                if let Some(entry) = entry
                    && random.percent(70)
                    && self.submit_eagerly(random, script, network, oracle, faults, (entry, tag))
                {
                    if free.len() == 1 {
                        self.group += 1;
                    }
                    return;
                }
                faults.fire(match entry {
                    None => Fault::TagNotInGroup,
                    Some(_) => Fault::LateAdvert,
                });
                return;
            }
            Ok(Submit::Accepted(message)) => message,
            Err(ProtocolError::TooLong { line, sent, posted })
                if oracle.is_taken(script.entry_of(line)) =>
            {
                self.eager_too_long(script, faults, line, (sent, posted));
                oracle.events += 1;
                return;
            }
            Err(ProtocolError::TooLong { line, sent, posted }) => {
                let entry = entry.expect("a tag that is not in the group cannot be too long");
                assert!(script.is_too_long(entry));
                assert_eq!(line, script.line(entry));
                assert_eq!((sent, posted), (len, script.entries[entry].posted));
                faults.fire(Fault::TooLong);
                self.failed = true;
                oracle.events += 1;
                return;
            }
            Err(other) => panic!("{other}"),
        };
        let entry = entry.expect("a message was matched with a tag that is not in the group");
        assert_eq!(message.line, script.line(entry), "entry {entry} is matched out of order");
        assert_eq!(message.address, Script::address(entry));
        assert_eq!(message.len, script.size(entry));
        assert_eq!(message.whole, message.len == script.entries[entry].posted);
        assert_eq!(message.keys.len(), script.parameters.rails);
        for (rail, key) in message.keys.iter().enumerate() {
            assert_eq!(*key, Script::key(entry, rail));
        }
        let (line, size) = (message.line, message.len);
        if message.may_be_held && random.percent(script.bundle_percent) {
            faults.fire(Fault::Bundled);
            let words = script.payload_words(entry, size);
            self.flow.hold(&mut network.bundle_staging, line, size, words);
            oracle.take_eagerly(entry);
            self.requests.push((entry, Request::Line(line)));
            if free.len() == 1 {
                self.group += 1;
            }
            return;
        }
        let largest = script.parameters.largest_write;
        let parts: Vec<(Part, Option<Immediate>)> = match message.path {
            Path::Immediate { .. } => {
                parts::cut(message.len, &script.plan, largest, &mut self.turn)
                    .map(|part| (part, Some(message.immediate(&part))))
                    .collect()
            }
            Path::Fin => {
                let cut = parts::cut_unbounded(message.len, &script.plan, largest, &mut self.turn);
                cut.map(|part| (part, None)).collect()
            }
        };
        let beside = message.path == Path::Fin && script.parameters.path != Path::Fin;
        let whole = message.whole;
        let line = message.line;
        // One write that has no completion: only where the receiver's done tells of its arrival.
        let proves = script.parameters.sends_arrive_when_complete;
        let injected = match parts[..] {
            [(part, Some(_))] if !proves && random.percent(script.inject_percent) => Some(part),
            _ => None,
        };
        if let Some(part) = injected {
            self.flow.injected(line, part.rail);
            faults.fire(Fault::Injected);
        } else {
            let carried = parts.iter().fold(0, |bits, (part, _)| bits | 1 << part.rail);
            self.flow.posted(line, parts.len() as u32, carried);
        }
        let plain: Vec<Part> = parts.iter().map(|(part, _)| *part).collect();
        oracle.take(entry, &plain);
        faults.fire_many(Fault::FinBesideImmediates, u64::from(beside));
        faults.fire_many(Fault::ShortMessage, u64::from(!whole));
        faults.fire_many(Fault::EmptyMessage, u64::from(script.entries[entry].sent == 0));
        faults.fire_many(Fault::Truncated, u64::from(len > script.entries[entry].posted));
        faults.fire_many(Fault::TagOutOfOrder, u64::from(free[0] != entry));
        for (part, immediate) in parts {
            match (injected, immediate) {
                (Some(part), Some(immediate)) => network.inject_part(entry, part, immediate),
                _ => self.backlog.push_back(Post::Part { entry, part, immediate }),
            }
        }
        let eager = |(_, request): &(usize, Request)| matches!(request, Request::Eager(_));
        faults.fire_many(Fault::AfterEager, u64::from(self.requests.iter().any(eager)));
        self.requests.push((entry, Request::Line(line)));
        if free.len() == 1 {
            self.group += 1;
        }
    }

    /// The common case, where it applies; a post that is refused leaves the message to the general form.
    fn submit_plainly(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        (entry, tag, len): (Option<usize>, i32, u64),
    ) -> bool {
        let largest = script.parameters.largest_write;
        let mut turn = self.turn;
        let part = parts::uncut(len, &script.plan, largest, &mut turn);
        let Some(part) = part else { return false };
        let (flow, rail) = (&mut self.flow, part.rail);
        let message = match script.parameters.format() {
            LineFormat::Words6
                if (flow.is_short(len) || flow.is_long(len)) && random.percent(50) =>
            {
                flow.match_filling(&network.mailbox, tag, len, &rail)
            }
            LineFormat::Words6 => flow.match_plainly::<_, 6>(&network.mailbox, tag, len, &rail),
            LineFormat::Words8 => flow.match_plainly::<_, 8>(&network.mailbox, tag, len, &rail),
            _ => None,
        };
        let Some(message) = message else { return false };
        self.turn = turn;
        let entry = entry.expect("a plain message was matched with a tag that is not in the group");
        assert_eq!(message.line, script.line(entry), "entry {entry} is matched out of order");
        assert_eq!(message.address, Script::address(entry));
        assert_eq!(message.key, Script::key(entry, rail as usize));
        let posted = script.entries[entry].posted;
        let tells = script.parameters.path == Path::Immediate { eight: true };
        assert!(len == posted || len < posted && tells, "{len} of {posted} bytes");
        faults.fire_many(Fault::PlainWithin, u64::from(len < posted));
        if random.percent(script.refuse_percent) {
            self.flow.injected_plainly(&message);
            self.flow.take_back();
            faults.fire(Fault::RefusedData);
            return false;
        }
        if message.copies && self.may_hold(random, script, faults, (message.line, len)) {
            let words = script.payload_words(entry, len);
            self.flow.hold_plainly(&mut network.bundle_staging, &message, words);
            oracle.take_eagerly(entry);
            self.requests.push((entry, Request::Line(message.line)));
            self.group += 1;
            return true;
        }
        let proves = script.parameters.sends_arrive_when_complete;
        oracle.take(entry, &[part]);
        faults.fire(Fault::Plain);
        faults.fire_many(Fault::PlainOfSeveral, u64::from(script.parameters.rails > 1));
        faults.fire_many(Fault::EmptyMessage, u64::from(len == 0));
        if !proves && random.percent(script.inject_percent) {
            self.flow.injected_plainly(&message);
            faults.fire(Fault::Injected);
            network.inject_part(entry, part, message.immediate);
        } else {
            self.flow.posted_plainly(&message);
            self.wholes.insert(entry);
            let immediate = Some(message.immediate);
            self.backlog.push_back(Post::Part { entry, part, immediate });
        }
        self.requests.push((entry, Request::Line(message.line)));
        self.group += 1;
        true
    }

    /// Whether a message is to travel in a bundle.
    fn may_hold(
        &mut self,
        random: &mut Random,
        script: &Script,
        faults: &mut Faults,
        (line, len): (Line, u64),
    ) -> bool {
        let Some(limit) = script.bundle_limit else { return false };
        let may = self.flow.may_hold(line, len);
        let proves = script.parameters.sends_arrive_when_complete;
        let full = !may && len <= limit.min(BUNDLED_BYTES_MAX) && !proves && self.flow.holds_back();
        faults.fire_many(Fault::BundleFull, u64::from(full));
        let holds = may && random.percent(script.bundle_percent);
        faults.fire_many(Fault::Bundled, u64::from(holds));
        holds
    }

    /// Writes what was held back.
    fn write_bundles(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        refuse: u32,
    ) {
        while let Some(write) = self.flow.next_bundle() {
            if random.percent(refuse) {
                faults.fire(Fault::RefusedBundle);
                return;
            }
            let first = script.entry_of(write.first);
            let completes = !random.percent(script.inject_percent);
            network.post_bundle(random, oracle, &write, first, completes);
            self.flow.bundle_posted(write, completes);
            faults.fire_many(Fault::BundleOfSeveral, u64::from(write.count > 1));
            let wraps = write.place + write.count == BUNDLE_PLACES && self.flow.holds_back();
            faults.fire_many(Fault::BundleAtWrap, u64::from(wraps));
            oracle.events += 1;
        }
    }

    /// A message that found no receive goes into the eager ring, if it may.
    fn submit_eagerly(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        (entry, tag): (usize, i32),
    ) -> bool {
        let len = script.entries[entry].sent;
        if !self.flow.may_send_eagerly(len) {
            return false;
        }
        let payload = script.payload(entry);
        let Network { mailbox, eager_staging, .. } = network;
        let Some(write) = self.flow.pack_eagerly(mailbox, eager_staging, tag, &payload) else {
            faults.fire(Fault::EagerFull);
            return false;
        };
        if random.percent(script.refuse_percent) {
            faults.fire(Fault::RefusedEager);
            return false;
        }
        let proves = script.parameters.sends_arrive_when_complete;
        let completes = proves || !random.percent(script.inject_percent);
        oracle.take_eagerly(entry);
        network.post_eager(random, oracle, &write, entry, completes);
        self.flow.eager_posted(write, completes);
        self.requests.push((entry, Request::Eager(write.number)));
        faults.fire(Fault::Eager);
        let count = script.groups[self.group].count;
        faults.fire_many(Fault::EagerInGroup, u64::from(count > 1));
        faults.fire_many(Fault::EagerAtWrap, u64::from(write.number == u32::MAX));
        true
    }

    fn eager_too_long(
        &mut self,
        script: &Script,
        faults: &mut Faults,
        line: Line,
        (sent, posted): (u64, u64),
    ) {
        let entry = script.entry_of(line);
        assert!(script.is_too_long(entry));
        let expected = script.entries[entry];
        assert_eq!((sent, posted), (expected.sent, expected.posted));
        faults.fire(Fault::EagerTooLong);
        self.failed = true;
    }

    fn poll(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
    ) {
        if self.requests.is_empty() {
            return;
        }
        let index = if script.any_order { random.below(self.requests.len()) } else { 0 };
        let (entry, request) = self.requests[index];
        let poll = match request {
            Request::Line(line) => {
                let low = line.number() as u16;
                let plain = match random.below(3) {
                    0 => None,
                    1 => self.flow.poll_plainly(low),
                    _ => {
                        let told = self.flow.is_told(&network.mailbox);
                        let looked = self.flow.look_plainly(&network.mailbox, low);
                        // Whoever is told to wait is not asked in general. One look need not find all that has come, but where
                        // none was thought worth while there is nothing.
                        let waits = looked.is_none() && self.flow.waits_plainly(low);
                        if waits && !told {
                            self.flow.observe(&network.mailbox);
                        }
                        assert!(
                            !waits || self.flow.poll(line) == SendPoll::Pending,
                            "entry {entry} is done"
                        );
                        looked
                    }
                };
                let plain = plain.map(|len| SendPoll::Done { len });
                plain.unwrap_or_else(|| self.flow.poll(line))
            }
            Request::Eager(number) => {
                self.flow.poll_eager(number as u16).expect("it was sent, and not yet reported")
            }
        };
        let waits = match request {
            Request::Line(line) => Some(self.flow.waits_plainly(line.number() as u16)),
            Request::Eager(_) => None,
        };
        match poll {
            SendPoll::Pending => {
                // Of a group that is not full, it may be said later.
                let grouped = script.groups.iter().any(|group| group.count > 1);
                assert!(waits != Some(false) || grouped, "entry {entry} waits");
            }
            SendPoll::Done { len } => {
                assert_ne!(waits, Some(true), "entry {entry} is done");
                self.requests.remove(index);
                self.done += 1;
                oracle.send(script, entry, len);
            }
            SendPoll::Failed(cause) => {
                let known = match cause {
                    ProtocolError::TooLong { line, sent, posted } if !self.failed => {
                        self.eager_too_long(script, faults, line, (sent, posted));
                        oracle.events += 1;
                        true
                    }
                    ProtocolError::TooLong { .. } => true,
                    ProtocolError::Withdrawn => self.withdrawn,
                    _ => false,
                };
                assert!(known, "the flow failed without a cause: {cause}");
                assert_ne!(waits, Some(true), "entry {entry} has failed");
            }
        }
    }
}
