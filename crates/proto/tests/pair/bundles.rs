//! A pair whose sender may hold messages back, what it writes them from, and the ring that its receiver lends.

use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES, BUNDLED_BYTES_MAX, PAYLOAD_WORDS};
use proto::wire::seal_line;
use proto::{BundleWrite, FlowParameters, Line, LineSink, LineSource, SendPoll, Submit};

use super::{Pair, Ring};

#[derive(Debug)]
pub(crate) struct Bundles {
    pub(crate) pair: Pair,
    pub(crate) staging: Ring,
    pub(crate) ring: Ring,
}

/// What a message was found to say.
pub(crate) type Found = (Line, Vec<u8>);

impl Bundles {
    pub(crate) fn new(parameters: FlowParameters) -> Self {
        let mut pair = Pair::new(parameters);
        pair.sender.allow_bundles(BUNDLED_BYTES_MAX);
        pair.receiver.allow_bundles();
        let [staging, ring] = [(); 2].map(|()| Ring::new(BUNDLE_PLACES, BUNDLE_PLACE_WORDS));
        Self { pair, staging, ring }
    }

    /// Posts so many receives of 16 bytes, and carries their adverts over.
    pub(crate) fn post(&mut self, count: u32) {
        for _ in 0..count {
            self.pair.post(&[(BUNDLED_BYTES_MAX, 0)], false).expect("there is room");
        }
        self.advertise();
    }

    pub(crate) fn advertise(&mut self) {
        while self.pair.advertise().is_some() {}
    }

    /// Submits a message: its line, and whether it may be held.
    pub(crate) fn submit(&mut self, tag: i32, len: u64) -> Option<(Line, bool)> {
        let Pair { sender, mailbox, .. } = &mut self.pair;
        match sender.submit(mailbox, tag, len) {
            Ok(Submit::Accepted(message)) => Some((message.line, message.may_be_held)),
            _ => None,
        }
    }

    /// Submits a message and holds it back, if that may be. Else it goes by itself, and does not arrive.
    pub(crate) fn hold(&mut self, payload: &[u8]) -> Option<Line> {
        let (line, may) = self.submit(0, payload.len() as u64).expect("its receive is advertised");
        let sender = &mut self.pair.sender;
        if !may {
            sender.posted(line, 1, 1);
            return None;
        }
        sender.hold(&mut self.staging, line, payload.len() as u64, words_of(payload));
        Some(line)
    }

    /// The same for so many of 8 bytes: how many were held.
    pub(crate) fn hold_many(&mut self, count: u32) -> usize {
        (0..count).filter(|_| self.hold(&[1; 8]).is_some()).count()
    }

    /// Carries one bundle over, whole.
    pub(crate) fn carry(&mut self, completes: bool) -> Option<BundleWrite> {
        let write = self.pair.sender.next_bundle()?;
        assert!(write.place + write.count <= BUNDLE_PLACES, "a write stays inside of the ring");
        for word in 0..write.words {
            let (place, index) =
                (write.place + at(word / BUNDLE_PLACE_WORDS), word % BUNDLE_PLACE_WORDS);
            *self.ring.at(place, index) = self.staging.word(place, index);
        }
        self.pair.sender.bundle_posted(write, completes);
        Some(write)
    }

    pub(crate) fn carry_all(&mut self) {
        while self.carry(false).is_some() {}
    }

    /// Takes the next message.
    pub(crate) fn take(&mut self, every: bool) -> Option<Found> {
        let bundled = self.pair.receiver.next_bundled(&self.ring, every)?;
        self.pair.receiver.copied(bundled.line, bundled.len);
        let again = self.pair.receiver.next_bundled(&self.ring, every);
        assert_ne!(again.map(|again| again.line), Some(bundled.line), "it is taken once");
        Some((bundled.line, bytes_of(&bundled.payload, bundled.len)))
    }

    /// Takes what the short way takes.
    pub(crate) fn take_shortly(&mut self) -> Vec<Found> {
        let mut found = Vec::new();
        let count = self.pair.receiver.take_bundled(&self.ring, |line, len, words| {
            found.push((line, bytes_of(&words, len)));
            true
        });
        assert_eq!(found.len(), count as usize);
        found
    }

    /// Takes all there is, both ways.
    pub(crate) fn take_all(&mut self) -> Vec<Found> {
        let mut found = self.take_shortly();
        while let Some(one) = self.take(false) {
            found.push(one);
            found.extend(self.take_shortly());
        }
        found
    }

    /// The receiver says how far it is.
    pub(crate) fn tell(&mut self) {
        let Pair { sender, receiver, mailbox, parameters, .. } = &mut self.pair;
        let lone = receiver.lone_done(true).expect("a done is owed");
        for (index, word) in lone.words.iter().enumerate() {
            mailbox.store(parameters.window.lone_place(), index, *word);
        }
        receiver.lone_done_posted(lone);
        receiver.lone_done_written();
        sender.observe(mailbox);
    }

    /// What a peer that means harm puts into the place of a line, sealed.
    pub(crate) fn forge(&mut self, line: Line, form: u64, words: usize) {
        let place = line.number() % BUNDLE_PLACES;
        let start = place as usize * BUNDLE_PLACE_WORDS;
        let forged = &mut self.ring.words[start..start + words];
        forged.fill(0x0707_0707_0707_0707);
        (forged[0], forged[1]) = (u64::from(line.number()) << 32, form);
        seal_line(self.pair.parameters.nonce, forged);
    }

    pub(crate) fn poll(&mut self, line: Line) -> SendPoll {
        self.pair.sender.poll(line)
    }

    /// Receivers report what they have, and take new receives.
    pub(crate) fn report(&mut self, lines: &[Found]) {
        for (line, _) in lines {
            let polled = self.pair.receiver.poll(*line);
            assert_eq!(polled, proto::ReceivePoll::Done { count: 1 });
        }
    }
}

/// The form of a message in a bundle: kind 5, and its length.
pub(crate) const BUNDLED: u64 = 5 << 24;

fn at(place: usize) -> u32 {
    u32::try_from(place).expect("small")
}

pub(crate) fn words_of(payload: &[u8]) -> [u64; PAYLOAD_WORDS] {
    let mut bytes = [0; PAYLOAD_WORDS * 8];
    bytes[..payload.len()].copy_from_slice(payload);
    std::array::from_fn(|word| {
        u64::from_le_bytes(bytes[word * 8..word * 8 + 8].try_into().expect("8 bytes"))
    })
}

fn bytes_of(words: &[u64], len: u64) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take(usize::try_from(len).expect("short")).collect()
}
