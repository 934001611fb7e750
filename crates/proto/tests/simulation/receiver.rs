//! The receiving application and the layer that carries out its flow's actions.

use std::collections::VecDeque;

use proto::eager::{EAGER_PLACE_WORDS, FIRST_PAYLOAD};
use proto::receive::Pace;
use proto::{
    Arrival, Immediate, Line, LineFormat, LineSource, Path, PlainLook, ProtocolError, Receive,
    ReceiveFlow, ReceivePoll,
};

use crate::faults::{Fault, Faults};
use crate::network::{Network, ReceiverEvent};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::script::{Group, Script};

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) flow: ReceiveFlow,
    requests: VecDeque<(Group, Line)>,
    /// The next group to post.
    group: usize,
    /// Lines posted, of which none was complete when it was posted.
    posted: usize,
    pub(crate) failed: bool,
    /// Its receives are taken back; the sender was asked.
    pub(crate) withdrawn: bool,
    /// Entries whose memory has not gone yet, once they are withdrawn.
    held: Vec<usize>,
    done: usize,
    /// From this entry on no copy reaches a receive.
    uncopied: usize,
    /// Parts that were repeated or strayed, as the flow must have counted them.
    extra: u64,
}

impl Receiver {
    pub(crate) fn new(random: &mut Random, script: &Script) -> Self {
        let mut flow = ReceiveFlow::new(script.parameters).unwrap();
        let adverts_wait = random.percent(80);
        if script.eager_limit.is_some() {
            assert!(flow.allow_eager());
        }
        if script.bundle_limit.is_some() {
            flow.allow_bundles();
        }
        flow.set_pace(Pace {
            adverts_wait,
            busy_bytes: random.pick(&[0, 1 << 10, 1 << 20, u64::MAX]),
            lone_done_turns: random.pick(&[1, 4, 128]),
        });
        Self {
            flow,
            requests: VecDeque::new(),
            group: 0,
            posted: 0,
            failed: false,
            withdrawn: false,
            held: Vec::new(),
            done: 0,
            uncopied: usize::MAX,
            extra: 0,
        }
    }

    /// Whether all entries up to `end` are reported done.
    pub(crate) fn has_finished(&self, end: usize) -> bool {
        self.done >= end
    }

    /// Whether the application would not call now.
    pub(crate) fn is_silent(&self, end: usize) -> bool {
        !self.withdrawn && (self.failed || self.has_finished(end))
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
        if self.withdrawn {
            self.progress(random, script, network, oracle, faults, calm);
            self.let_go(script, oracle);
            return;
        }
        if calm || random.percent(50) {
            self.post(random, script, network, oracle, faults, end);
        }
        self.progress(random, script, network, oracle, faults, calm);
        self.write(random, script, network, oracle, faults, refuse);
        self.test(random, script, network, oracle, faults, refuse);
        self.check(script, oracle);
    }

    fn post(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        end: usize,
    ) {
        while let Some(group) = script.groups.get(self.group).copied() {
            if group.first >= end || self.requests.len() >= script.depth {
                return;
            }
            let entries = group.first..group.first + group.count;
            let rails = script.parameters.rails;
            let keys: Vec<Vec<u64>> = entries
                .clone()
                .map(|entry| (0..rails).map(|rail| Script::key(entry, rail)).collect())
                .collect();
            let receives: Vec<Receive<'_>> = entries
                .zip(&keys)
                .map(|(entry, keys)| {
                    let (len, tag) = (script.entries[entry].posted, script.entries[entry].tag);
                    Receive { address: Script::address(entry), len, tag, keys }
                })
                .collect();
            if random.below(200) == 0 && self.uncopied == usize::MAX {
                self.flow.refuse_copies();
                self.uncopied = group.first;
                faults.fire(Fault::CopiesRefused);
            }
            let plain = match receives.as_slice() {
                [only] if only.len > 0 && random.percent(50) => {
                    self.post_plainly(network, script, only)
                }
                _ => None,
            };
            let posted = match plain {
                Some(line) => Ok(Some(line)),
                None => self.flow.post(&mut network.staging, &receives, script.cut),
            };
            let first = match posted {
                Ok(Some(first)) => first,
                Ok(None) => return,
                Err(ProtocolError::TooLong { .. }) => return,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(first, script.line(group.first));
            self.posted += group.count;
            let complete = script.entry_of(self.flow.done());
            let outstanding = self.posted - complete;
            let most = script.parameters.window.outstanding() as usize;
            assert!(outstanding <= most, "{outstanding} lines are outstanding, of {most}");
            oracle.events += 1;
            self.requests.push_back((group, first));
            self.group += 1;
            if random.percent(30) {
                return;
            }
        }
    }

    fn post_plainly(
        &mut self,
        network: &mut Network,
        script: &Script,
        receive: &Receive<'_>,
    ) -> Option<Line> {
        let Receive { address, len, tag, keys } = *receive;
        let key = |rail| keys.get(rail).copied().unwrap_or(0);
        let (flow, sink) = (&mut self.flow, &mut network.staging);
        let mut told = None;
        let tell = |line| told = Some(line);
        let posted = match script.parameters.format() {
            LineFormat::Words6 => {
                let words = [address, len, key(0), key(1)];
                flow.allow_short();
                flow.post_shortly(sink, words, tag, script.cut, tell)
            }
            LineFormat::Words8 => {
                let words = [address, len, key(0), key(1), key(2), key(3)];
                flow.post_plainly(sink, words, tag, script.cut, tell)
            }
            _ => false,
        };
        assert_eq!(posted, told.is_some());
        told
    }

    fn progress(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        calm: bool,
    ) {
        let events = if calm { usize::MAX } else { random.below(6) };
        let mut found = 0;
        for _ in 0..events {
            let Some(event) = network.receiver_queue.pop_front() else { break };
            oracle.events += 1;
            found += 1;
            match event {
                ReceiverEvent::LoneDoneWritten => self.flow.lone_done_written(),
                ReceiverEvent::Withdrawn(begun, eager_end) => {
                    self.flow.fenced(begun);
                    self.flow.eager_ends(eager_end);
                    // What nobody can write to any more goes before anything is looked at.
                    self.let_go(script, oracle);
                }
                ReceiverEvent::Ceased(eager_end) => self.flow.eager_ends(eager_end),
                ReceiverEvent::Arrived { rail, immediate, completion_len, extra } => {
                    self.arrive(rail, immediate, completion_len, extra);
                }
            }
        }
        found += if self.withdrawn {
            self.flow.read_every_fin(&network.fins)
        } else {
            let (expected, failed) = (self.flow.has_fin(&network.fins), self.flow.failure());
            let found = self.flow.read_fins(&network.fins);
            let heard = found > 0 || self.flow.failure() != failed;
            assert!(expected || !heard, "a fin comes out of nothing");
            found
        };
        if calm || random.percent(70) {
            found += self.take_eager(script, network, oracle);
            found += self.take_bundled(script, network, oracle);
        }
        if found == 0 {
            self.idle_turn(random, network, faults);
        }
    }

    /// A turn that brought nothing, in either form.
    fn idle_turn(&mut self, random: &mut Random, network: &mut Network, faults: &mut Faults) {
        let turns = random.pick(&[1, 1, 3]);
        if random.percent(50) {
            self.flow.idle_turn();
        } else if self.flow.rests(turns) {
            faults.fire(Fault::Rested);
            assert_eq!(self.flow.lone_done(false), None, "a done is due in a turn that rests");
            let write = self.flow.next_write(&mut network.staging);
            assert_eq!(write, None, "adverts are due in a turn that rests");
        } else if self.flow.failure().is_none() && (self.flow.has_unsent() || self.flow.owes_done())
        {
            (0..turns).for_each(|_| self.flow.idle_turn());
            let lone = self.flow.lone_done(false).is_some();
            let write = self.flow.next_write(&mut network.staging);
            // A lone done that is due waits for the one before it.
            let due = lone || write.is_some() || self.flow.lone_done(true).is_none();
            assert!(due, "a turn does not rest, and nothing is due");
        }
    }

    /// Copies the eager messages that are there to their receives.
    fn take_eager(&mut self, script: &Script, network: &Network, oracle: &mut Oracle) -> u32 {
        let mut taken = 0;
        let expected = self.flow.has_eager(&network.eager);
        while let Some(arrival) = self.flow.next_eager(&network.eager) {
            assert!(expected, "an eager message comes out of nothing");
            let entry = script.entry_of(arrival.line);
            let bytes: Vec<u8> = (FIRST_PAYLOAD..EAGER_PLACE_WORDS)
                .flat_map(|index| network.eager.word(arrival.place, index).to_le_bytes())
                .take(arrival.len as usize)
                .collect();
            let sent = script.payload(entry);
            assert_eq!(Some(&bytes[..]), sent.get(..bytes.len()), "entry {entry} has other bytes");
            oracle.land_eagerly(script, entry, arrival.len);
            self.flow.copied(arrival.line, arrival.len);
            taken += 1;
        }
        taken
    }

    /// Copies what came in bundles to its receives.
    fn take_bundled(&mut self, script: &Script, network: &Network, oracle: &mut Oracle) -> u32 {
        let mut taken = 0;
        let expected = self.flow.has_bundled(&network.bundles);
        while let Some(bundled) = self.flow.next_bundled(&network.bundles, self.withdrawn) {
            assert!(expected || self.withdrawn || taken > 0, "a message comes out of nothing");
            let entry = script.entry_of(bundled.line);
            assert!(entry < self.uncopied, "a copy goes where none can");
            let sent = script.payload_words(entry, bundled.len);
            assert_eq!(bundled.payload, sent, "entry {entry} has other bytes");
            oracle.land_eagerly(script, entry, bundled.len);
            self.flow.copied(bundled.line, bundled.len);
            taken += 1;
        }
        taken
    }

    /// deregMr of all that is posted.
    pub(crate) fn withdraw(
        &mut self,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
    ) {
        self.flow.withdraw();
        self.withdrawn = true;
        network.post_withdraw();
        self.held = (script.entry_of(self.flow.done())..self.posted).collect();
        faults.fire(Fault::Withdrawn);
        let under_way = self.held.iter().any(|entry| oracle.is_under_way(*entry));
        faults.fire_many(Fault::WithdrawnInFlight, u64::from(under_way));
        self.let_go(script, oracle);
    }

    /// Gives back the memory of every entry that nobody can write to.
    fn let_go(&mut self, script: &Script, oracle: &mut Oracle) {
        let exposed: Vec<Line> = self.flow.exposed().collect();
        self.held.retain(|entry| {
            let stays = exposed.contains(&script.line(*entry));
            if !stays {
                oracle.take_back(*entry);
            }
            stays
        });
    }

    /// Whether all memory has gone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.withdrawn && self.held.is_empty()
    }

    fn arrive(&mut self, rail: u32, immediate: Immediate, completion_len: u64, extra: bool) {
        // In the plain form it is complete, or nothing has changed.
        let rested = self.flow.rests(0);
        let mut plain = false;
        if immediate.residue().is_multiple_of(2)
            && let Some(due) = self.flow.arrived_plainly(1 << rail, immediate)
        {
            plain = true;
            let rests = self.flow.rests(0) || !self.flow.has_unsent();
            assert!(due || rests || !rested, "adverts are due, and nobody is told");
        }
        let arrival = match plain {
            true => Arrival::Complete(self.flow.done()),
            false => self.flow.arrived(rail, immediate, completion_len),
        };
        if extra {
            self.extra += 1;
            let dropped = matches!(arrival, Arrival::Late | Arrival::Duplicate);
            assert!(dropped, "a repeated part was taken for {arrival:?}");
        } else {
            let taken = matches!(arrival, Arrival::Progress | Arrival::Complete(_));
            assert!(taken, "a part was taken for {arrival:?}");
        }
    }

    fn write(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        refuse: u32,
    ) {
        while let Some(write) = self.flow.next_write(&mut network.staging) {
            if random.percent(refuse) {
                faults.fire(Fault::RefusedAdvert);
                break;
            }
            network.post_adverts(random, write, script.parameters.format().words());
            self.flow.wrote(write);
            let ring = script.parameters.window.lines();
            let split = write.place + write.count == ring && self.flow.has_unsent();
            faults.fire_many(Fault::SplitAtRingEnd, u64::from(split));
            oracle.events += 1;
            for place in write.place..write.place + write.count {
                assert!(place < ring, "an advert lies outside the ring");
                // The line that just took this place; the one a lap before it must have been read.
                let newest = (0..self.posted).rev();
                let mut here = newest
                    .filter(|entry| script.parameters.window.place(script.line(*entry)) == place);
                let unread = here.nth(1).filter(|entry| !oracle.is_taken(*entry));
                assert_eq!(unread, None, "an advert that was not read is overwritten");
            }
        }
        self.write_lone_done(random, script, network, oracle, faults, (refuse, false));
    }

    fn write_lone_done(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        (refuse, urgent): (u32, bool),
    ) {
        let Some(lone) = self.flow.lone_done(urgent) else { return };
        if random.percent(refuse) {
            faults.fire(Fault::RefusedLoneDone);
            return;
        }
        network.post_lone_done(random, script.parameters.window.lone_place(), &lone);
        self.flow.lone_done_posted(lone);
        faults.fire(Fault::LoneDone);
        oracle.events += 1;
    }

    fn test(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        refuse: u32,
    ) {
        if self.requests.is_empty() {
            return;
        }
        let index = if script.any_order { random.below(self.requests.len()) } else { 0 };
        let (group, first) = self.requests[index];
        if self.flow.outstanding() == 1 && self.flow.is_complete(first) {
            self.write_lone_done(random, script, network, oracle, faults, (refuse, true));
            if self.flow.owes_done() {
                return;
            }
        }
        let low = first.number() as u16;
        let looked = match random.below(4) {
            0 => Some(self.flow.look_plainly(low)),
            1 => Some(self.flow.look_again(low)),
            _ => None,
        };
        if let Some(PlainLook::Complete(plain)) = looked {
            assert_eq!(group.count, 1);
            oracle.receive(script, group.first, plain.size, plain.carried);
            self.done += 1;
            self.requests.remove(index);
            return;
        }
        match self.flow.poll(first) {
            ReceivePoll::Pending => {
                let parts = script.parameters.path != Path::Fin;
                let plain = parts && group.count == 1;
                assert_eq!(self.flow.waits_plainly(low), plain);
                let incomplete = matches!(looked, Some(PlainLook::Incomplete));
                assert!(incomplete || looked.is_none() || group.count > 1, "{looked:?}");
                self.test_early(random, script, network, oracle, faults, index);
            }
            ReceivePoll::Done { count } => {
                assert_eq!(count as usize, group.count);
                assert!(looked.is_none() || group.count > 1, "it is complete, and was {looked:?}");
                for entry in group.first..group.first + group.count {
                    let line = script.line(entry);
                    let (size, carried) = (self.flow.size(line), self.flow.carried(line));
                    oracle.receive(script, entry, size, carried);
                }
                self.done += group.count;
                self.requests.remove(index);
            }
            ReceivePoll::Failed(ProtocolError::TooLong { line, sent, posted }) => {
                let entry = script.entry_of(line);
                assert!(script.is_too_long(entry));
                let expected = script.entries[entry];
                assert_eq!((sent, posted), (expected.sent, expected.posted));
                self.failed = true;
                oracle.events += 1;
            }
            ReceivePoll::Failed(other) => panic!("{other}"),
        }
    }

    /// Asks for the place of a receive whose bytes nobody waits for.
    fn test_early(
        &mut self,
        random: &mut Random,
        script: &Script,
        network: &mut Network,
        oracle: &mut Oracle,
        faults: &mut Faults,
        index: usize,
    ) {
        let (group, first) = self.requests[index];
        let wanted = random.percent(script.optional_percent);
        if wanted && script.parameters.sends_arrive_when_complete && self.flow.refuse_eager() {
            network.post_cease();
            faults.fire(Fault::Ceased);
        }
        if !wanted || !self.flow.poll_early(first) {
            return;
        }
        assert_eq!(group.count, 1, "a group is reported before its bytes came");
        assert!(script.parameters.sends_arrive_when_complete, "the sender waits for a done");
        assert!(!self.flow.poll_early(first), "a receive is reported early twice");
        oracle.receive_early(group.first);
        faults.fire(Fault::ReportedEarly);
        self.done += 1;
        self.requests.remove(index);
    }

    /// The flow's own account agrees with what happened.
    fn check(&self, script: &Script, oracle: &mut Oracle) {
        let counters = self.flow.counters();
        assert_eq!(counters.violations, 0);
        assert_eq!(counters.late + counters.duplicates, self.extra);
        assert_eq!(self.flow.outstanding() as usize, self.requests.len());
        let done = script.entry_of(self.flow.done());
        assert!(done <= self.posted);
        oracle.done = done;
        if let Some(newest) = done.checked_sub(1) {
            assert!(oracle.has_landed(newest), "done runs ahead of the bytes");
        }
    }
}
