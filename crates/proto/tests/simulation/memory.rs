//! Rings of places, and the remains of an earlier tenant in them.

use proto::bundle::BUNDLE_PLACES;
use proto::{
    CommId, FlowParameters, Line, LineSink, LineSource, Path, Receive, ReceiveFlow, SendFlow,
    Submit,
};

use crate::random::Random;

/// Memory of `places` places.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    words: Vec<u64>,
    stride: usize,
}

impl Ring {
    pub(crate) fn new(places: u32, stride: usize) -> Self {
        Self { words: vec![0; places as usize * stride], stride }
    }

    pub(crate) fn put(&mut self, place: u32, index: usize, word: u64) {
        assert!(index < self.stride, "word {index} is not of the place");
        self.words[place as usize * self.stride + index] = word;
    }
}

impl LineSource for Ring {
    fn word(&self, place: u32, index: usize) -> u64 {
        assert!(index < self.stride, "word {index} is not of the place");
        self.words[place as usize * self.stride + index]
    }
}

impl LineSink for Ring {
    fn store(&mut self, place: u32, index: usize, word: u64) {
        self.put(place, index, word);
    }
}

/// What an earlier connection with another nonce has left: valid lines with the very numbers that are to come.
pub(crate) fn earlier_tenant(
    random: &mut Random,
    parameters: &FlowParameters,
    mailbox: &mut Ring,
    fins: &mut Ring,
) {
    let earlier = FlowParameters {
        nonce: random.next(),
        comm: CommId::default(),
        path: Path::Fin,
        fins: true,
        ..*parameters
    };
    let mut receiver = ReceiveFlow::new(earlier).unwrap();
    let mut sender = SendFlow::new(earlier).unwrap();
    let keys = [1; 16];
    let receive = Receive { address: 0xbad, len: 1 << 20, tag: 0, keys: &keys[..earlier.rails] };
    while let Ok(Some(_)) = receiver.post(mailbox, &[receive], false) {}
    while let Some(write) = receiver.next_write(mailbox) {
        receiver.wrote(write);
    }
    while let Ok(Submit::Accepted(message)) = sender.submit(mailbox, 0, 1) {
        let line: Line = message.line;
        let place = parameters.window.place(line);
        for (index, word) in sender.fin_words(line).into_iter().enumerate() {
            fins.put(place, index, word);
        }
    }
}

/// The same in the eager ring: messages with the very numbers that are to come.
pub(crate) fn earlier_eager(random: &mut Random, parameters: &FlowParameters, eager: &mut Ring) {
    let parameters = FlowParameters { nonce: random.next(), ..*parameters };
    let mut sender = SendFlow::new(parameters).unwrap();
    sender.allow_eager(40);
    let mailbox = Ring::new(parameters.window.places(), parameters.format().words());
    for byte in 0..16 {
        let Some(write) = sender.pack_eagerly(&mailbox, eager, 0, &[byte; 30]) else { return };
        sender.eager_posted(write, false);
    }
}

/// The same in the bundle ring.
pub(crate) fn earlier_bundles(random: &mut Random, parameters: &FlowParameters, ring: &mut Ring) {
    let nonce = random.next();
    let parameters = FlowParameters { nonce, sends_arrive_when_complete: false, ..*parameters };
    let mut sender = SendFlow::new(parameters).unwrap();
    sender.allow_bundles(16);
    for entry in 0..BUNDLE_PLACES {
        let line = parameters.first_line.plus(entry);
        sender.hold(ring, line, u64::from(entry % 17), [u64::MAX; 2]);
    }
}
