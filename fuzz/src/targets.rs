//! What is done with an input: bytes of anybody's go where a peer's go. Nothing may panic, and what is said of them must hold.

use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES, BUNDLED_BYTES_MAX, PAYLOAD_WORDS};
use proto::codec::check_of;
use proto::eager::{EAGER_BYTES_MAX, EAGER_PLACE_WORDS, FIRST_EAGER, words_of};
use proto::limits::{HANDLE_BYTES, MAX_GROUP};
use proto::wire::{FIN_PLACE_BYTES, seal_line};
use proto::{
    CommId, FlowParameters, Handle, HandshakeMessage, Immediate, Line, LineSink, LineSource, Path,
    Receive, ReceiveFlow, ReceivePoll, SendFlow, SendPoll, Submit, Window,
};

/// A target by its name.
pub(crate) type Target = fn(&[u8]);

pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("handle", handle),
    ("letter", letter),
    ("sender", sender),
    ("receiver", receiver),
    ("eager", eager),
    ("bundle", bundle),
    ("frame", channel::frame),
    ("packet", channel::packet),
    ("channel", channel::channel),
    ("handle2", connection::handle),
    ("hello", connection::hello),
    ("connection", connection::connection),
];

#[path = "channel.rs"]
mod channel;
#[path = "connection.rs"]
mod connection;

/// What listen wrote and NCCL's bootstrap carried. One byte says whether the check is made to fit.
fn handle(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let mut bytes = [0; HANDLE_BYTES];
    for (place, byte) in bytes.iter_mut().zip(rest) {
        *place = *byte;
    }
    if mode & 1 != 0 {
        bytes[..8].copy_from_slice(b"Ironrail");
        bytes[12..16].fill(0);
        let check = check_of(&bytes[..HANDLE_BYTES - 16]);
        bytes[12..16].copy_from_slice(&check.to_le_bytes());
    }
    if let Ok(handle) = Handle::decode(&bytes) {
        assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
    }
}

/// A two-sided message on a control rail.
fn letter(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if mode & 1 != 0 && bytes.len() >= 16 {
        // Magic, length and check as they have to be, so that the fields are looked at.
        bytes[..4].copy_from_slice(b"IRRL");
        let len = u32::try_from(bytes.len()).expect("inputs are short");
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].fill(0);
        let check = check_of(&bytes);
        bytes[12..16].copy_from_slice(&check.to_le_bytes());
    }
    let again = match HandshakeMessage::decode(&bytes) {
        Ok(HandshakeMessage::Request(request)) => request.encode(),
        Ok(HandshakeMessage::Reply(reply)) => {
            // What connect asks of a reply before it believes its pairs.
            if reply.pairing.fits(&reply.rails, &reply.rails) {
                for pair in &reply.pairing.data {
                    assert!(usize::from(pair.receiver) < reply.rails.len());
                }
            }
            reply.encode()
        }
        Ok(HandshakeMessage::Refusal(refusal)) => refusal.encode(),
        Ok(HandshakeMessage::Bye(bye)) => bye.encode(),
        Ok(HandshakeMessage::Withdraw(withdraw)) => withdraw.encode(),
        Ok(HandshakeMessage::Withdrawn(withdrawn)) => withdrawn.encode(),
        Ok(HandshakeMessage::Cease(cease)) => cease.encode(),
        Ok(HandshakeMessage::Ceased(ceased)) => ceased.encode(),
        Err(_) => return,
    };
    let again = again.expect("what was read can be written");
    HandshakeMessage::decode(&again).expect("what was written can be read");
}

/// An input, taken piece by piece. Past its end there are zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn small(&mut self, bound: u32) -> u32 {
        u32::from(self.byte().unwrap_or(0)) % bound
    }

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        for place in &mut word {
            *place = self.byte().unwrap_or(0);
        }
        u64::from_le_bytes(word)
    }
}

struct Ring {
    words: Vec<u64>,
    stride: usize,
}

impl Ring {
    fn new(places: u32, stride: usize) -> Self {
        Self { words: vec![0; places as usize * stride], stride }
    }

    /// A line as a peer would write it, or as one that means harm would: of near numbers, since others are never looked at.
    fn write(&mut self, script: &mut Script<'_>, nonce: u64, near: Line, places: u32, len: usize) {
        let (line, place) = (near.plus(script.small(8)), script.small(places));
        let place = if script.small(4) == 0 { place } else { line.number() % (places - 1) };
        let start = place as usize * self.stride;
        let words = &mut self.words[start..start + len.min(self.stride)];
        for word in words.iter_mut().skip(1) {
            if script.small(2) == 0 {
                *word = script.word();
            }
        }
        words[0] = u64::from(line.number()) << 32;
        if script.small(8) != 0 {
            seal_line(nonce, words);
        }
    }
}

impl LineSource for Ring {
    fn word(&self, place: u32, index: usize) -> u64 {
        self.words[place as usize * self.stride + index]
    }
}

impl LineSink for Ring {
    fn store(&mut self, place: u32, index: usize, word: u64) {
        self.words[place as usize * self.stride + index] = word;
    }
}

fn parameters(script: &mut Script<'_>) -> FlowParameters {
    FlowParameters {
        window: if script.small(2) == 0 { Window::SINGLE } else { Window::GROUPED },
        rails: 1 + script.small(16) as usize,
        nonce: 0x0123_4567_89ab_cdef,
        comm: CommId::new(5).expect("it has 14 bits"),
        path: match script.small(3) {
            0 => Path::Fin,
            1 => Path::Immediate { eight: false },
            _ => Path::Immediate { eight: true },
        },
        fins: true,
        true_lengths: script.small(2) == 0,
        sends_arrive_when_complete: script.small(2) == 0,
        largest_write: 128 << script.small(24),
        // Near a wrap, too.
        first_line: Line::FIRST.plus([0, u32::MAX - 20][script.small(2) as usize]),
    }
}

/// A sender whose mailbox anybody writes to.
fn sender(input: &[u8]) {
    let mut script = Script(input);
    let parameters = parameters(&mut script);
    let places = parameters.window.places();
    let words = parameters.format().words();
    let mut mailbox = Ring::new(places, words);
    let mut flow = SendFlow::new(parameters).expect("the parameters are valid");
    let mut open: Vec<(Line, u64)> = Vec::new();
    while let Some(step) = script.byte() {
        match step % 6 {
            0 | 1 => {
                let len = if script.small(4) == 0 { 4 } else { words };
                mailbox.write(&mut script, parameters.nonce, flow.submitted(), places, len);
            }
            2 => {
                let (tag, len) = (script.small(3).cast_signed(), script.word() >> script.small(64));
                if let Ok(Submit::Accepted(message)) = flow.submit(&mailbox, tag, len) {
                    assert!(message.len <= len && message.keys.len() == parameters.rails);
                    let line = message.line;
                    flow.posted(line, 1, 1);
                    open.push((line, len));
                }
            }
            3 => {
                if let Some((line, _)) = open.get(script.small(64) as usize)
                    && let proto::WriteOutcome::NeedsFin = flow.written(*line)
                {
                    flow.fin_words(*line);
                    flow.fin_written(*line);
                }
            }
            4 => flow.observe(&mailbox),
            _ => open.retain(|(line, len)| match flow.poll(*line) {
                SendPoll::Done { len: sent } => {
                    assert!(sent <= *len);
                    false
                }
                SendPoll::Pending | SendPoll::Failed(_) => true,
            }),
        }
        assert!(open.len() <= parameters.window.lines() as usize);
    }
}

/// A receiver that anybody sends immediates and fins to.
fn receiver(input: &[u8]) {
    let mut script = Script(input);
    let parameters = parameters(&mut script);
    let places = parameters.window.places();
    let mut staging = Ring::new(places, parameters.format().words());
    let mut fins = Ring::new(places, FIN_PLACE_BYTES / 8);
    let mut flow = ReceiveFlow::new(parameters).expect("the parameters are valid");
    let keys = vec![7; parameters.rails];
    let mut open: Vec<(Line, u32, u64)> = Vec::new();
    while let Some(step) = script.byte() {
        match step % 7 {
            0 => {
                let most = if parameters.window == Window::GROUPED { MAX_GROUP as u32 } else { 1 };
                let (count, len) = (1 + script.small(most), script.word() >> script.small(64));
                let receive = |tag| Receive { address: 4096, len, tag, keys: &keys };
                let group: Vec<_> = (0..count.cast_signed()).map(receive).collect();
                if let Ok(Some(line)) = flow.post(&mut staging, &group, script.small(2) == 0) {
                    open.push((line, count, len));
                }
            }
            1 => {
                if let Some(write) = flow.next_write(&mut staging) {
                    assert!(write.place + write.count <= places);
                    flow.wrote(write);
                }
            }
            2 => {
                // Of lines that are near, or of any.
                let bits = script.word();
                let line = flow.done().plus(script.small(8));
                let near = Immediate::new(
                    parameters.comm,
                    line,
                    script.small(64),
                    bits & 1 != 0,
                    bits & 2 != 0,
                    u32::try_from(bits >> 32).expect("32 bits"),
                );
                let immediate =
                    if script.small(4) == 0 { Immediate::from_bits(bits) } else { near };
                let rail = script.small(parameters.rails as u32);
                flow.arrived(rail, immediate, script.word() >> script.small(64));
            }
            3 => {
                let (nonce, near) = (parameters.nonce, flow.done());
                fins.write(&mut script, nonce, near, places, 4);
            }
            4 => {
                flow.read_fins(&fins);
            }
            5 => {
                flow.idle_turn();
                if let Some(lone) = flow.lone_done(script.small(2) == 0) {
                    flow.lone_done_posted(lone);
                    flow.lone_done_written();
                }
            }
            _ => {
                let flow = &mut flow;
                open.retain(|(line, count, len)| match flow.poll(*line) {
                    ReceivePoll::Done { count: told } => {
                        assert_eq!(told, *count);
                        for index in 0..*count {
                            let size = flow.size(line.plus(index));
                            assert!(size <= *len, "{size} bytes in a receive of {len}");
                        }
                        false
                    }
                    ReceivePoll::Pending | ReceivePoll::Failed(_) => true,
                });
            }
        }
        assert!(flow.outstanding() <= parameters.window.lines());
    }
}

/// A receiver whose eager ring anybody writes to, and a sender of eager messages whose mailbox anybody writes to.
fn eager(input: &[u8]) {
    let mut script = Script(input);
    let parameters = parameters(&mut script);
    let places = parameters.window.places();
    let words = parameters.format().words();
    let ring_places = parameters.window.eager_places();
    let [mut staging, mut mailbox] = [(); 2].map(|()| Ring::new(places, words));
    // One place more, where nobody looks.
    let [mut ring, mut out] = [(); 2].map(|()| Ring::new(ring_places + 1, EAGER_PLACE_WORDS));
    let mut receiver = ReceiveFlow::new(parameters).expect("the parameters are valid");
    let mut sender = SendFlow::new(parameters).expect("the parameters are valid");
    assert!(receiver.allow_eager());
    sender.allow_eager(EAGER_BYTES_MAX);
    let keys = vec![7; parameters.rails];
    let mut heard = parameters.first_line.plus(FIRST_EAGER);
    while let Some(step) = script.byte() {
        match step % 8 {
            0 => {
                let (len, tag) = (script.word() >> script.small(64), script.small(3).cast_signed());
                let receive = Receive { address: 4096, len, tag, keys: &keys };
                let _ = receiver.post(&mut staging, &[receive], script.small(2) == 0);
                while let Some(write) = receiver.next_write(&mut staging) {
                    receiver.wrote(write);
                }
            }
            1 => {
                let len = 2 + 2 * script.small(8) as usize;
                ring.write(&mut script, parameters.nonce, heard, ring_places + 1, len);
            }
            2 => {
                // One that is right but for what it says.
                let line = heard.number();
                let place = line & (ring_places - 1);
                for (index, byte) in [script.small(256), script.small(48)].into_iter().enumerate() {
                    ring.store(place, 2 + index, byte.into());
                }
                let form =
                    script.word() & !(7 << 24) & !0xffff | 4 << 24 | u64::from(script.small(48));
                ring.store(place, 1, form);
                ring.store(place, 0, u64::from(line) << 32);
                let count = words_of((form & 0xffff) as usize).min(EAGER_PLACE_WORDS);
                let start = place as usize * EAGER_PLACE_WORDS;
                seal_line(parameters.nonce, &mut ring.words[start..start + count]);
            }
            3 => {
                receiver.has_eager(&ring);
                while let Some(arrival) = receiver.next_eager(&ring) {
                    assert!(arrival.place < ring_places && arrival.len <= EAGER_BYTES_MAX);
                    receiver.copied(arrival.line, arrival.len);
                    heard = heard.plus(1);
                }
                if let ReceivePoll::Done { count } = receiver.poll(receiver.done().plus(u32::MAX)) {
                    assert_eq!(count, 1);
                }
            }
            4 => mailbox.write(&mut script, parameters.nonce, sender.submitted(), places, words),
            5 => {
                let (tag, payload) = (script.small(3).cast_signed(), [7; 48]);
                let payload = &payload[..script.small(48) as usize];
                if let Ok(Submit::Accepted(message)) = sender.submit(&mailbox, tag, 8) {
                    let line = message.line;
                    sender.posted(line, 1, 1);
                    sender.written(line);
                } else if let Some(write) = sender.pack_eagerly(&mailbox, &mut out, tag, payload) {
                    assert!(write.place < ring_places && write.words <= EAGER_PLACE_WORDS);
                    let completes = script.small(2) == 0;
                    sender.eager_posted(write, completes);
                    if completes {
                        sender.eager_written(write.number);
                    }
                }
            }
            6 => {
                sender.observe(&mailbox);
                for low in 0..16 {
                    let request = u16::try_from(sender.eager_next().wrapping_sub(low) & 0xffff)
                        .expect("16 bits");
                    if let Some(SendPoll::Done { len }) = sender.poll_eager(request) {
                        assert!(len <= EAGER_BYTES_MAX);
                    }
                }
                sender.is_all_done();
            }
            _ => match script.small(4) {
                0 => receiver.eager_ends(heard.number().wrapping_add(script.small(4))),
                1 => {
                    sender.cease_eager();
                }
                2 => receiver.withdraw(),
                _ => {
                    receiver.is_eager_due();
                    receiver.keeps_eager();
                    assert!(receiver.exposed().count() <= parameters.window.lines() as usize);
                }
            },
        }
    }
}

/// A receiver whose bundle ring anybody writes to, which also hears immediates, and a sender that holds messages back.
fn bundle(input: &[u8]) {
    let mut script = Script(input);
    let parameters =
        FlowParameters { sends_arrive_when_complete: false, ..parameters(&mut script) };
    let (places, words) = (parameters.window.places(), parameters.format().words());
    let [mut staging, mut mailbox] = [(); 2].map(|()| Ring::new(places, words));
    // One place more, where nobody looks.
    let [mut ring, mut out] = [(); 2].map(|()| Ring::new(BUNDLE_PLACES + 1, BUNDLE_PLACE_WORDS));
    let mut receiver = ReceiveFlow::new(parameters).expect("the parameters are valid");
    let mut sender = SendFlow::new(parameters).expect("the parameters are valid");
    receiver.allow_bundles();
    sender.allow_bundles(BUNDLED_BYTES_MAX);
    let keys = vec![7; parameters.rails];
    let mut open: Vec<(Line, u64)> = Vec::new();
    while let Some(step) = script.byte() {
        match step % 8 {
            0 => {
                let (len, tag) = (script.word() >> script.small(64), script.small(3).cast_signed());
                let receive = Receive { address: 4096, len, tag, keys: &keys };
                if let Ok(Some(line)) =
                    receiver.post(&mut staging, &[receive], script.small(2) == 0)
                {
                    open.push((line, len));
                }
                while let Some(write) = receiver.next_write(&mut staging) {
                    receiver.wrote(write);
                }
            }
            1 => {
                let len = BUNDLE_PLACE_WORDS;
                let near = receiver.done();
                ring.write(&mut script, parameters.nonce, near, BUNDLE_PLACES + 1, len);
            }
            2 => {
                // One that is right but for what it says.
                let line = receiver.done().plus(script.small(4));
                let (len, place) = (script.small(72), line.number() % BUNDLE_PLACES);
                let start = place as usize * BUNDLE_PLACE_WORDS;
                let bundled = &mut ring.words[start..start + BUNDLE_PLACE_WORDS];
                bundled.fill(script.word());
                bundled[0] = u64::from(line.number()) << 32;
                bundled[1] = 5 << 24 | u64::from(len);
                seal_line(parameters.nonce, bundled);
            }
            3 => {
                receiver.has_bundled(&ring);
                receiver.take_bundled(&ring, |_, len, _| {
                    assert!(len <= 16);
                    step & 64 == 0
                });
                let every = step & 128 != 0;
                while let Some(bundled) = receiver.next_bundled(&ring, every) {
                    assert!(bundled.len <= BUNDLED_BYTES_MAX);
                    if script.small(8) == 0 {
                        receiver.withdraw();
                        receiver.lose(bundled.line);
                    } else {
                        receiver.copied(bundled.line, bundled.len);
                    }
                }
            }
            4 => {
                let (line, bits) = (receiver.done().plus(script.small(4)), script.word());
                let immediate = Immediate::new(
                    parameters.comm,
                    line,
                    script.small(3),
                    bits & 1 != 0,
                    bits & 2 != 0,
                    u32::try_from(bits >> 32).expect("32 bits"),
                );
                receiver.arrived(0, immediate, script.word() >> script.small(64));
            }
            5 => mailbox.write(&mut script, parameters.nonce, sender.submitted(), places, words),
            6 => {
                let len = u64::from(script.small(64));
                if let Ok(Submit::Accepted(message)) =
                    sender.submit(&mailbox, script.small(3).cast_signed(), len)
                {
                    let (line, len, may) = (message.line, message.len, message.may_be_held);
                    if may {
                        assert!(len <= BUNDLED_BYTES_MAX);
                        sender.hold(&mut out, line, len, [7; PAYLOAD_WORDS]);
                    } else {
                        sender.posted(line, 1, 1);
                        sender.written(line);
                    }
                }
                sender.observe(&mailbox);
                sender.poll(sender.submitted().plus(u32::MAX));
            }
            _ => {
                if let Some(write) = sender.next_bundle() {
                    assert!(write.place + write.count <= BUNDLE_PLACES);
                    assert!(write.words <= write.count as usize * BUNDLE_PLACE_WORDS);
                    let completes = script.small(2) == 0;
                    sender.bundle_posted(write, completes);
                    if completes && script.small(2) == 0 {
                        sender.bundle_written();
                    }
                }
                match script.small(8) {
                    0 => receiver.withdraw(),
                    1 => receiver.fenced(sender.begun()),
                    2 => sender.drop_held(),
                    _ => {}
                }
            }
        }
        open.retain(|(line, len)| match receiver.poll(*line) {
            ReceivePoll::Done { count } => {
                assert_eq!(count, 1);
                assert!(receiver.size(*line) <= *len);
                false
            }
            ReceivePoll::Pending | ReceivePoll::Failed(_) => true,
        });
        assert!(receiver.exposed().count() <= parameters.window.lines() as usize);
        assert!(receiver.outstanding() <= parameters.window.lines());
    }
}
