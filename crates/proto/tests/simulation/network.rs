//! What is in flight. Any operation may take its next step at any time: bytes land, an immediate arrives, a completion
//! comes; the words of a line land in any order. The only order kept is the one the protocol asks for: a lone done does
//! not land before one whose completion was there when it was posted.

use std::collections::VecDeque;

use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES};
use proto::wire::SHORT_LINE_WORDS;
use proto::{AdvertWrite, Begun, BundleWrite, EagerWrite, Immediate, LineSource, LoneDone, Part};

use crate::faults::{Fault, Faults};
use crate::memory::Ring;
use crate::oracle::Oracle;
use crate::random::Random;
use crate::script::Script;

#[derive(Debug)]
pub(crate) struct Network {
    /// The sender's memory: adverts, and the lone done behind them.
    pub(crate) mailbox: Ring,
    /// The receiver's memory: fins, and the failure behind them.
    pub(crate) fins: Ring,
    /// The receiver's memory: eager messages.
    pub(crate) eager: Ring,
    /// The sender's memory from which they are read, at the moment they land.
    pub(crate) eager_staging: Ring,
    /// The entry that took each place of the eager ring last.
    eager_entries: Vec<Option<usize>>,
    /// The receiver's memory: bundles.
    pub(crate) bundles: Ring,
    /// The sender's memory from which they are read, at the moment they land.
    pub(crate) bundle_staging: Ring,
    /// The entry that took each place of the bundle ring last.
    bundle_entries: Vec<Option<usize>>,
    /// The receiver's memory from which adverts are read, at the moment they land.
    pub(crate) staging: Ring,
    pub(crate) sender_queue: VecDeque<SenderEvent>,
    pub(crate) receiver_queue: VecDeque<ReceiverEvent>,
    in_flight: Vec<Operation>,
    posted: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SenderEvent {
    Written(usize),
    FinWritten(usize),
    Withdraw,
    EagerWritten(u32),
    BundleWritten,
    Cease,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ReceiverEvent {
    Arrived {
        rail: u32,
        immediate: Immediate,
        completion_len: u64,
        extra: bool,
    },
    LoneDoneWritten,
    /// With the end of eager messages.
    Withdrawn(Begun, u32),
    Ceased(u32),
}

#[derive(Debug)]
struct Operation {
    id: u64,
    landed: bool,
    completed: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Part { entry: usize, part: Part, immediate: Option<Immediate>, arrived: bool },
    Arrival { event: ReceiverEvent },
    Adverts { pieces: Vec<(u32, usize)> },
    LoneDone { pieces: Vec<(u32, usize)>, words: [u64; SHORT_LINE_WORDS], after: Vec<u64> },
    Fin { pieces: Vec<(u32, usize)>, words: [u64; SHORT_LINE_WORDS], entry: Option<usize> },
    Withdraw,
    Withdrawn(Begun, u32),
    Eager { pieces: Vec<(u32, usize)>, injected: Option<Vec<u64>>, entry: usize, number: u32 },
    Bundle { pieces: Vec<(u32, usize)>, injected: Option<Vec<u64>>, place: u32 },
    Cease,
    Ceased(u32),
}

impl Network {
    pub(crate) fn new(
        mailbox: Ring,
        fins: Ring,
        staging: Ring,
        eager: Ring,
        bundles: Ring,
    ) -> Self {
        Self {
            eager_staging: eager.clone(),
            eager,
            eager_entries: vec![None; 16],
            bundle_staging: bundles.clone(),
            bundles,
            bundle_entries: vec![None; BUNDLE_PLACES as usize],
            mailbox,
            fins,
            staging,
            sender_queue: VecDeque::new(),
            receiver_queue: VecDeque::new(),
            in_flight: Vec::new(),
            posted: 0,
        }
    }

    fn post(&mut self, kind: Kind) {
        self.posted += 1;
        self.in_flight.push(Operation { id: self.posted, landed: false, completed: false, kind });
    }

    pub(crate) fn post_part(&mut self, entry: usize, part: Part, immediate: Option<Immediate>) {
        self.post(Kind::Part { entry, part, immediate, arrived: immediate.is_none() });
    }

    /// A write without a completion.
    pub(crate) fn inject_part(&mut self, entry: usize, part: Part, immediate: Immediate) {
        self.post_part(entry, part, Some(immediate));
        self.in_flight.last_mut().expect("just posted").completed = true;
    }

    pub(crate) fn post_adverts(&mut self, random: &mut Random, write: AdvertWrite, words: usize) {
        let places = write.place..write.place + write.count;
        let pieces = places.flat_map(|place| (0..words).map(move |index| (place, index)));
        let pieces = shuffled(random, pieces.collect());
        self.post(Kind::Adverts { pieces });
    }

    pub(crate) fn post_lone_done(&mut self, random: &mut Random, place: u32, lone: &LoneDone) {
        let earlier = self.in_flight.iter().filter(|op| matches!(op.kind, Kind::LoneDone { .. }));
        let after = earlier.filter(|op| op.completed).map(|op| op.id).collect();
        let pieces = shuffled(random, (0..SHORT_LINE_WORDS).map(|index| (place, index)).collect());
        self.post(Kind::LoneDone { pieces, words: lone.words, after });
    }

    pub(crate) fn post_fin(
        &mut self,
        random: &mut Random,
        place: u32,
        words: [u64; SHORT_LINE_WORDS],
        entry: Option<usize>,
    ) {
        let pieces = shuffled(random, (0..SHORT_LINE_WORDS).map(|index| (place, index)).collect());
        self.post(Kind::Fin { pieces, words, entry });
    }

    pub(crate) fn post_withdraw(&mut self) {
        self.post(Kind::Withdraw);
    }

    pub(crate) fn post_withdrawn(&mut self, begun: Begun, eager_end: u32) {
        self.post(Kind::Withdrawn(begun, eager_end));
    }

    pub(crate) fn post_cease(&mut self) {
        self.post(Kind::Cease);
    }

    pub(crate) fn post_ceased(&mut self, eager_end: u32) {
        self.post(Kind::Ceased(eager_end));
    }

    /// Whether the write completes, or is injected.
    pub(crate) fn post_eager(
        &mut self,
        random: &mut Random,
        oracle: &Oracle,
        write: &EagerWrite,
        entry: usize,
        completes: bool,
    ) {
        let before = self.eager_entries[write.place as usize].replace(entry);
        let free = before.is_none_or(|before| oracle.has_landed(before));
        assert!(free, "entry {entry} overwrites an eager message that was not taken");
        let words = 0..write.words;
        let injected = (!completes)
            .then(|| words.clone().map(|index| self.eager_staging.word(write.place, index)));
        let injected = injected.map(Iterator::collect);
        let pieces = shuffled(random, words.map(|index| (write.place, index)).collect());
        self.post(Kind::Eager { pieces, injected, entry, number: write.number });
        self.in_flight.last_mut().expect("just posted").completed = !completes;
    }

    /// The messages of a bundle are the entries from `first` on. Whether the write completes, or is injected.
    pub(crate) fn post_bundle(
        &mut self,
        random: &mut Random,
        oracle: &Oracle,
        write: &BundleWrite,
        first: usize,
        completes: bool,
    ) {
        for (entry, place) in (first..).zip(write.place..write.place + write.count) {
            let before = self.bundle_entries[place as usize].replace(entry);
            let free = before.is_none_or(|before| oracle.has_landed(before));
            assert!(free, "entry {entry} overwrites a bundled message that was not taken");
        }
        let at = |word: usize| {
            (write.place + (word / BUNDLE_PLACE_WORDS) as u32, word % BUNDLE_PLACE_WORDS)
        };
        let words = (0..write.words).map(at);
        let word = |(place, index)| self.bundle_staging.word(place, index);
        let injected = (!completes).then(|| words.clone().map(word).collect());
        let pieces = shuffled(random, words.collect());
        self.post(Kind::Bundle { pieces, injected, place: write.place });
        self.in_flight.last_mut().expect("just posted").completed = !completes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn post_stray(&mut self, immediate: Immediate) {
        let event = ReceiverEvent::Arrived { rail: 0, immediate, completion_len: 1, extra: true };
        self.post(Kind::Arrival { event });
    }

    /// Some operation takes a step.
    pub(crate) fn step(
        &mut self,
        random: &mut Random,
        script: &Script,
        oracle: &mut Oracle,
        faults: &mut Faults,
    ) {
        if self.in_flight.is_empty() {
            return;
        }
        let index = random.below(self.in_flight.len());
        if let Kind::LoneDone { after, .. } = &self.in_flight[index].kind
            && self.in_flight.iter().any(|op| after.contains(&op.id) && !op.landed)
        {
            return;
        }
        oracle.events += 1;
        let mut operation = self.in_flight.swap_remove(index);
        if !self.advance(&mut operation, random, script, oracle, faults) {
            self.in_flight.push(operation);
        }
    }

    /// Answers whether the operation is over.
    fn advance(
        &mut self,
        operation: &mut Operation,
        random: &mut Random,
        script: &Script,
        oracle: &mut Oracle,
        faults: &mut Faults,
    ) -> bool {
        let proves = script.parameters.sends_arrive_when_complete;
        let (id, was_landed) = (operation.id, operation.landed);
        let may_complete = !operation.completed && (was_landed || !proves);
        let tear = random.percent(script.tear_percent);
        match &mut operation.kind {
            Kind::Part { entry, part, immediate, arrived } => {
                let early = immediate.is_some() && may_complete && random.percent(30);
                if !was_landed && early || was_landed && may_complete && random.percent(50) {
                    operation.completed = true;
                    self.sender_queue.push_back(SenderEvent::Written(*entry));
                    if !was_landed {
                        faults.fire(Fault::CompletedBeforeArrival);
                    }
                } else if !was_landed {
                    let older = |op: &&Operation| {
                        op.id < id && !op.landed && matches!(op.kind, Kind::Part { .. })
                    };
                    if self.in_flight.iter().any(|op| older(&op)) {
                        faults.fire(Fault::OvertakenPart);
                    }
                    operation.landed = true;
                    oracle.land(script, *entry, part);
                } else if let Some(immediate) = immediate.filter(|_| !*arrived) {
                    *arrived = true;
                    self.arrive(random, script, part, immediate, faults);
                }
                operation.landed && operation.completed && *arrived
            }
            Kind::Arrival { event } => {
                self.receiver_queue.push_back(*event);
                true
            }
            Kind::Withdraw => {
                self.sender_queue.push_back(SenderEvent::Withdraw);
                true
            }
            Kind::Withdrawn(begun, eager_end) => {
                self.receiver_queue.push_back(ReceiverEvent::Withdrawn(*begun, *eager_end));
                true
            }
            Kind::Cease => {
                self.sender_queue.push_back(SenderEvent::Cease);
                true
            }
            Kind::Ceased(eager_end) => {
                self.receiver_queue.push_back(ReceiverEvent::Ceased(*eager_end));
                true
            }
            Kind::Eager { pieces, injected, entry, number } => {
                if may_complete && random.percent(30) {
                    operation.completed = true;
                    self.sender_queue.push_back(SenderEvent::EagerWritten(*number));
                } else if !was_landed {
                    let count = if tear { 1 } else { pieces.len() };
                    for _ in 0..count {
                        let (place, index) = pieces.pop().expect("counted");
                        let word = match injected {
                            Some(words) => words[index],
                            None => self.eager_staging.word(place, index),
                        };
                        self.eager.put(place, index, word);
                    }
                    if pieces.is_empty() {
                        operation.landed = true;
                        oracle.wait(*entry);
                    } else {
                        faults.fire(Fault::TornLine);
                    }
                }
                operation.landed && operation.completed
            }
            Kind::Bundle { pieces, injected, place: first } => {
                if may_complete && random.percent(30) {
                    operation.completed = true;
                    self.sender_queue.push_back(SenderEvent::BundleWritten);
                } else if !was_landed {
                    let count = if tear { 1 } else { pieces.len() };
                    for _ in 0..count {
                        let (place, index) = pieces.pop().expect("counted");
                        let word = match injected {
                            Some(words) => {
                                words[(place - *first) as usize * BUNDLE_PLACE_WORDS + index]
                            }
                            None => self.bundle_staging.word(place, index),
                        };
                        self.bundles.put(place, index, word);
                    }
                    operation.landed = pieces.is_empty();
                    faults.fire_many(Fault::TornLine, u64::from(!operation.landed));
                }
                operation.landed && operation.completed
            }
            Kind::Adverts { pieces } => {
                let count = if tear { random.between(1, 4) as usize } else { pieces.len() };
                for _ in 0..count.min(pieces.len()) {
                    let (place, index) = pieces.pop().expect("counted");
                    self.mailbox.put(place, index, self.staging.word(place, index));
                }
                if !pieces.is_empty() {
                    faults.fire(Fault::TornLine);
                    return false;
                }
                let older = |op: &Operation| op.id < id && matches!(op.kind, Kind::Adverts { .. });
                if self.in_flight.iter().any(older) {
                    faults.fire(Fault::OvertakenAdvert);
                }
                true
            }
            Kind::LoneDone { pieces, words, .. } => {
                if may_complete && random.percent(30) {
                    operation.completed = true;
                    self.receiver_queue.push_back(ReceiverEvent::LoneDoneWritten);
                } else {
                    operation.landed = land(&mut self.mailbox, pieces, words, tear, faults);
                }
                operation.landed && operation.completed
            }
            Kind::Fin { pieces, words, entry } => {
                if may_complete && random.percent(30) {
                    operation.completed = true;
                    if let Some(entry) = entry {
                        self.sender_queue.push_back(SenderEvent::FinWritten(*entry));
                    }
                } else {
                    operation.landed = land(&mut self.fins, pieces, words, tear, faults);
                }
                operation.landed && operation.completed
            }
        }
    }

    fn arrive(
        &mut self,
        random: &mut Random,
        script: &Script,
        part: &Part,
        immediate: Immediate,
        faults: &mut Faults,
    ) {
        let garbage = random.below(3) as u64 * 1000;
        let completion_len = if script.parameters.true_lengths { part.len } else { garbage };
        let event =
            |extra| ReceiverEvent::Arrived { rail: part.rail, immediate, completion_len, extra };
        self.receiver_queue.push_back(event(false));
        if random.percent(script.duplicate_percent) {
            faults.fire(Fault::DuplicatePart);
            self.post(Kind::Arrival { event: event(true) });
        }
    }
}

/// Lands one word, or all that are left; answers whether none is.
fn land(
    ring: &mut Ring,
    pieces: &mut Vec<(u32, usize)>,
    words: &[u64],
    tear: bool,
    faults: &mut Faults,
) -> bool {
    let count = if tear { 1 } else { pieces.len() };
    for _ in 0..count.min(pieces.len()) {
        let (place, index) = pieces.pop().expect("counted");
        ring.put(place, index, words[index]);
    }
    if !pieces.is_empty() {
        faults.fire(Fault::TornLine);
    }
    pieces.is_empty()
}

fn shuffled<T>(random: &mut Random, mut items: Vec<T>) -> Vec<T> {
    for index in (1..items.len()).rev() {
        items.swap(index, random.below(index + 1));
    }
    items
}
