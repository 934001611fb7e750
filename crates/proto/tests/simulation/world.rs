//! One schedule: chaos while the budget lasts, then calm in which everything must come to its end.

use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES};
use proto::wire::FIN_PLACE_BYTES;
use proto::{Immediate, Path};

use crate::faults::{Fault, Faults};
use crate::memory::{Ring, earlier_bundles, earlier_eager, earlier_tenant};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::random::Random;
use crate::receiver::Receiver;
use crate::script::Script;
use crate::sender::Sender;

/// Calm rounds in which nothing happens before it is called a hang: more than a lone done waits.
const HANG_ROUNDS: u32 = 400;

struct World {
    random: Random,
    script: Script,
    network: Network,
    oracle: Oracle,
    sender: Sender,
    receiver: Receiver,
    faults: Faults,
    batch: usize,
    /// The step of chaos in which the receiver takes everything back.
    withdraws_at: Option<usize>,
}

/// Runs the schedule of a seed; panics where a law is broken.
pub(crate) fn run(seed: u64) -> Faults {
    let mut world = World::new(seed);
    world.chaos();
    world.calm();
    world.close();
    world.faults
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let script = Script::of(&mut random);
        let parameters = &script.parameters;
        let places = parameters.window.places();
        let words = parameters.format().words();
        let mut mailbox = Ring::new(places, words);
        let mut fins = Ring::new(places, FIN_PLACE_BYTES / 8);
        if random.percent(50) {
            earlier_tenant(&mut random, parameters, &mut mailbox, &mut fins);
        }
        let eager_words = proto::eager::EAGER_PLACE_WORDS;
        let mut eager = Ring::new(parameters.window.eager_places(), eager_words);
        if script.eager_limit.is_some() && random.percent(50) {
            earlier_eager(&mut random, parameters, &mut eager);
        }
        let mut bundles = Ring::new(BUNDLE_PLACES, BUNDLE_PLACE_WORDS);
        if random.percent(50) {
            earlier_bundles(&mut random, parameters, &mut bundles);
        }
        Self {
            network: Network::new(mailbox, fins, Ring::new(places, words), eager, bundles),
            oracle: Oracle::new(&script),
            sender: Sender::new(&script),
            receiver: Receiver::new(&mut random, &script),
            faults: Faults::default(),
            batch: 0,
            withdraws_at: random.percent(10).then(|| random.below(script.entries.len() * 30)),
            script,
            random,
        }
    }

    /// The end of the entries that may be worked on.
    fn end(&self) -> usize {
        let groups = &self.script.groups;
        let later = |group: &&crate::script::Group| group.batch > self.batch;
        match groups.iter().find(later).filter(|_| self.script.batches_wait) {
            Some(group) => group.first,
            None => self.script.entries.len(),
        }
    }

    fn is_over(&mut self) -> bool {
        let end = self.end();
        if self.receiver.withdrawn {
            return self.receiver.is_quiet()
                && self.sender.withdrawn
                && self.network.is_empty()
                && !self.receiver.flow.is_eager_due();
        }
        if self.sender.failed && self.receiver.failed {
            return true;
        }
        if self.sender.has_finished(end) && self.receiver.has_finished(end) {
            self.batch += 1;
            return end == self.script.entries.len();
        }
        false
    }

    fn chaos(&mut self) {
        let weights = [0; 3].map(|_| self.random.between(1, 6) as usize);
        let [network, sender, receiver] = weights;
        let steps = 500 + self.script.entries.len() * 60;
        for step in 0..steps {
            if self.is_over() {
                return;
            }
            if self.withdraws_at == Some(step) && !self.receiver.failed {
                let Self { script, network, oracle, receiver, faults, .. } = self;
                receiver.withdraw(script, network, oracle, faults);
            }
            let draw = self.random.below(4 * network + sender + receiver);
            if draw < 4 * network {
                self.stray();
                self.step_network();
            } else if draw < 4 * network + sender {
                self.step_sender(false);
            } else {
                self.step_receiver(false);
            }
        }
    }

    fn calm(&mut self) {
        let mut idle = 0;
        while !self.is_over() {
            let before = self.oracle.events;
            for _ in 0..20 {
                self.step_network();
            }
            self.step_sender(true);
            self.step_receiver(true);
            idle = if self.oracle.events == before { idle + 1 } else { 0 };
            assert!(idle < HANG_ROUNDS, "hangs: {:?}\n{:?}", self.sender.flow, self.receiver.flow);
        }
    }

    fn step_network(&mut self) {
        let Self { random, script, network, oracle, faults, .. } = self;
        network.step(random, script, oracle, faults);
    }

    /// Now and then, an immediate that is no part of anything.
    fn stray(&mut self) {
        let Self { random, script, network, faults, .. } = self;
        let immediates = script.parameters.path != Path::Fin;
        if immediates && script.duplicate_percent > 0 && random.percent(1) {
            // For a line far past the window: never advertised, so never a part of anything.
            let line = self.receiver.flow.done().plus(400);
            network.post_stray(Immediate::new(script.parameters.comm, line, 0, true, true, 0));
            faults.fire(Fault::StrayImmediate);
        }
    }

    fn step_sender(&mut self, calm: bool) {
        let end = self.end();
        let Self { random, script, network, oracle, sender, faults, .. } = self;
        // A fence is answered by whoever is polled, whatever its own application waits for.
        if !self.receiver.withdrawn && sender.is_silent(end) {
            faults.fire_many(Fault::SilentSender, u64::from(!self.receiver.has_finished(end)));
            return;
        }
        sender.step(random, script, network, oracle, faults, (end, calm));
    }

    fn step_receiver(&mut self, calm: bool) {
        let end = self.end();
        let Self { random, script, network, oracle, receiver, faults, .. } = self;
        if receiver.is_silent(end) {
            faults.fire_many(Fault::SilentReceiver, u64::from(!self.sender.has_finished(end)));
            return;
        }
        receiver.step(random, script, network, oracle, faults, (end, calm));
    }

    fn close(&mut self) {
        let counters = self.sender.flow.counters();
        assert_eq!(counters.violations, 0);
        if self.receiver.withdrawn {
            return;
        }
        self.faults.fire_many(Fault::StaleDone, counters.stale_dones);
        let entries = self.script.entries.len();
        let too_long = (0..entries).any(|entry| self.script.is_too_long(entry));
        assert_eq!(too_long, self.sender.failed, "a message too long fails on both ends");
        if !too_long {
            let both = |entry| self.oracle.is_sent(entry) && self.oracle.is_received(entry);
            assert!((0..entries).all(both), "a message is missing");
        }
        self.faults.messages = entries as u64;
        let first = self.script.parameters.first_line.number();
        for (fault, bits) in
            [(Fault::Wrapped10, 10), (Fault::Wrapped16, 16), (Fault::Wrapped32, 32)]
        {
            let wrap = ((u64::from(first) >> bits) + 1) << bits;
            let ends = u64::from(first) + entries as u64 > wrap;
            self.faults.fire_many(fault, u64::from(ends));
        }
    }
}
