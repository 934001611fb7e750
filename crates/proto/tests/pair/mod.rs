//! Two flows over memory that both can see, for scenarios told step by step.

#![allow(dead_code, reason = "every test file uses some of it")]

pub(crate) mod bundles;

use proto::wire::FIN_PLACE_BYTES;
use proto::{
    CommId, FlowParameters, Immediate, Line, LineSink, LineSource, Path, Receive, ReceiveFlow,
    SendFlow, Submit, Window,
};

/// Memory of equal places.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) words: Vec<u64>,
    pub(crate) stride: usize,
}

impl Ring {
    pub(crate) fn new(places: u32, stride: usize) -> Self {
        Self { words: vec![0; places as usize * stride], stride }
    }

    pub(crate) fn at(&mut self, place: u32, index: usize) -> &mut u64 {
        assert!(index < self.stride);
        &mut self.words[place as usize * self.stride + index]
    }
}

impl LineSource for Ring {
    fn word(&self, place: u32, index: usize) -> u64 {
        assert!(index < self.stride);
        self.words[place as usize * self.stride + index]
    }
}

impl LineSink for Ring {
    fn store(&mut self, place: u32, index: usize, word: u64) {
        *self.at(place, index) = word;
    }
}

/// What most scenarios agree on.
pub(crate) fn parameters() -> FlowParameters {
    FlowParameters {
        window: Window::SINGLE,
        rails: 2,
        nonce: 0x0123_4567_89ab_cdef,
        comm: CommId::new(5).expect("it has 14 bits"),
        path: Path::Immediate { eight: true },
        fins: true,
        true_lengths: true,
        sends_arrive_when_complete: false,
        largest_write: 1 << 20,
        first_line: Line::FIRST,
    }
}

/// Both ends of a connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) parameters: FlowParameters,
    pub(crate) sender: SendFlow,
    pub(crate) receiver: ReceiveFlow,
    pub(crate) staging: Ring,
    pub(crate) mailbox: Ring,
    pub(crate) fins: Ring,
}

impl Pair {
    pub(crate) fn new(parameters: FlowParameters) -> Self {
        let places = parameters.window.places();
        let words = parameters.format().words();
        Self {
            parameters,
            sender: SendFlow::new(parameters).expect("the parameters are valid"),
            receiver: ReceiveFlow::new(parameters).expect("the parameters are valid"),
            staging: Ring::new(places, words),
            mailbox: Ring::new(places, words),
            fins: Ring::new(places, FIN_PLACE_BYTES / 8),
        }
    }

    /// Posts receives of these lengths and tags as one group; their addresses are their line numbers.
    pub(crate) fn post(&mut self, receives: &[(u64, i32)], cut: bool) -> Option<Line> {
        let keys = vec![7; self.parameters.rails];
        let receives: Vec<_> = receives
            .iter()
            .map(|(len, tag)| Receive { address: 4096, len: *len, tag: *tag, keys: &keys })
            .collect();
        self.receiver.post(&mut self.staging, &receives, cut).expect("the flow is well")
    }

    /// Carries one run of adverts over, whole; answers how many.
    pub(crate) fn advertise(&mut self) -> Option<u32> {
        let write = self.receiver.next_write(&mut self.staging)?;
        for place in write.place..write.place + write.count {
            self.carry(place);
        }
        self.receiver.wrote(write);
        Some(write.count)
    }

    pub(crate) fn carry(&mut self, place: u32) {
        for index in 0..self.mailbox.stride {
            *self.mailbox.at(place, index) = self.staging.word(place, index);
        }
    }

    /// Submits a message of one part; answers its line and immediate.
    pub(crate) fn send(&mut self, tag: i32, len: u64) -> Option<(Line, Immediate)> {
        let Ok(Submit::Accepted(message)) = self.sender.submit(&self.mailbox, tag, len) else {
            return None;
        };
        let whole = message.whole;
        let (line, comm) = (message.line, message.comm);
        let length = u32::try_from(message.len).unwrap_or(u32::MAX);
        self.sender.posted(line, 1, 1);
        Some((line, Immediate::new(comm, line, 0, true, whole, length)))
    }

    pub(crate) fn write_fin(&mut self, place: u32, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            *self.fins.at(place, index) = *word;
        }
    }

    /// A receive posted, advertised, sent to and arrived, of 8 bytes.
    pub(crate) fn exchange(&mut self) -> Line {
        let first = self.post(&[(8, 0)], false).expect("there is room");
        while self.advertise().is_some() {}
        let (line, immediate) = self.send(0, 8).expect("the advert is there");
        assert_eq!(line, first);
        self.receiver.arrived(0, immediate, 8);
        self.sender.written(line);
        line
    }
}
