//! Targets of wire version 2: frames, packets in an inbox, and a whole end of a channel whose peer is hostile.

use std::collections::VecDeque;
use std::time::Duration;

use proto::channel::{Inbox, Parameters, Post, RailNews, WriteId};
use proto::codec::Address;
use proto::connection::{ChannelEnd, Connection, Standing, Submit, Urgency, Which};
use proto::frame::{FRAME_WORDS_MAX, Offer, Open, Refusal, Refused};
use proto::letter::{LETTER_WORDS, Letter};
use proto::memory::{InboxMemory, Lease, MemoryId, Payload, ShadowMemory, Shadows};
use proto::packet::{Header, Ring, check};
use proto::progress::{Acted, LentInbox, LetterPost, TrialTarget};
use proto::setup::refuse;
use proto::{
    Account, Cause, ChannelId, Epoch, Event, Frame, MessageId, Moment, Name, Nonce, Outcome,
    PacketNumber, Perform, ProgressLoop, Slot,
};

use super::Script;

/// The words of one frame, and of one letter.
pub(super) fn frame(input: &[u8]) {
    let mut script = Script(input);
    let mut words = [0; FRAME_WORDS_MAX];
    words.iter_mut().for_each(|word| *word = script.word());
    if let Ok(frame) = Frame::decode(&words) {
        let mut again = Vec::new();
        frame.encode(|word| again.push(word));
        assert_eq!(again, words[..frame.words()]);
        assert_eq!(Frame::words_of(words[0]), Ok(again.len()));
    }
    let mut script = Script(input);
    let mut words = [0; LETTER_WORDS];
    words.iter_mut().for_each(|word| *word = script.word());
    if let Some(letter) = Letter::decode(&words) {
        assert_eq!(letter.encode(), words);
    }
}

/// An inbox or a shadow.
#[derive(Debug)]
struct Memory(Vec<u64>);

impl InboxMemory for Memory {
    fn load(&self, word: usize) -> u64 {
        self.0[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word] = value;
    }
}

impl ShadowMemory for Memory {
    fn load(&self, word: usize) -> u64 {
        self.0[word]
    }

    fn store(&mut self, word: usize, value: u64) {
        self.0[word] = value;
    }
}

const NONCE: Nonce = Nonce(0x0123_4567_89ab_cdef);
const SHORTEST: u32 = 2 << 10;

fn ring() -> Ring {
    Ring::new(SHORTEST).expect("it is the shortest")
}

impl Memory {
    fn new() -> Self {
        Self(vec![0; ring().words() + 8])
    }

    /// A packet of any frames whose check holds, unless the script says otherwise.
    fn write(
        &mut self,
        script: &mut Script<'_>,
        at: u32,
        number: PacketNumber,
        near: PacketNumber,
    ) {
        let count = script.small(24);
        let lie = script.small(8) == 0;
        let bytes = if lie { script.word() as u32 } else { 24 + 8 * count };
        let acknowledged = near.plus(script.small(70)).plus(u32::MAX - 3);
        let pad = script.small(8) == 0;
        let header = Header { number, bytes, acknowledged, pad };
        let start = at as usize / 8;
        let last = (start + 3 + count as usize).min(ring().words());
        let mut word = start + 3;
        while word < last {
            // Frames of any kind; some of their words are such that they decode.
            self.0[word] = match script.small(3) {
                0 => script.word(),
                1 => u64::from(1 + script.small(13)) | script.word() << 32,
                _ => u64::from(script.small(40)),
            };
            word += 1;
        }
        let words = header.words();
        self.0[start + 1] = words[0];
        self.0[start + 2] = words[1];
        let written = header.written_words().min(ring().words() - start);
        self.0[start] = check(
            NONCE,
            words,
            written,
            |word| self.0[start + word],
            |word| std::array::from_fn(|index| self.0[start + word + index]),
        );
        if script.small(8) == 0 {
            let torn = script.small(SHORTEST / 8) as usize;
            self.0[torn] ^= script.word();
        }
    }
}

/// An inbox into which anything is written.
pub(super) fn packet(input: &[u8]) {
    let mut script = Script(input);
    let mut memory = Memory::new();
    let lease = Lease { epoch: Epoch(1), nonce: NONCE, rail: 0, address: 0, key: 0 };
    let first = PacketNumber::new(u32::MAX - 2);
    let mut inbox =
        Inbox::new(ring(), lease, (MemoryId(0), &mut memory), first, PacketNumber::default());
    while script.byte().is_some() {
        let at = inbox.position();
        memory.write(&mut script, at, inbox.consumed().plus(1), first);
        while let Some(mut arrived) = inbox.next(&memory) {
            let at = inbox.position();
            let header = *arrived.header();
            assert!(at + header.span() <= SHORTEST && header.bytes <= SHORTEST / 4);
            while let Ok(Some((frame, payload))) = arrived.next_frame(&memory) {
                assert!(payload.word * 8 + payload.bytes <= (at + header.bytes) as usize);
                assert!(matches!(frame, Frame::Inline(_)) || payload.bytes == 0);
            }
            inbox.consume(&mut memory, &arrived);
        }
    }
}

/// A connection that takes what it is given, within bounds, and answers some of it.
#[derive(Debug, Default)]
struct Listener {
    owed: u32,
    outstanding: u32,
    ended: bool,
}

impl Connection for Listener {
    type Message = usize;
    type Place = usize;
    type Action = ();
    type Event = ();
    type Fault = ();
    type Error = ();

    fn standing(&self, _: &Account, _: Moment) -> Standing {
        let urgency = if self.owed > 0 { Urgency::Urgent } else { Urgency::Nothing };
        Standing { urgency, waits: self.outstanding > 0, ..Standing::default() }
    }

    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        _: &mut Account,
        _: Moment,
    ) -> Option<Frame> {
        if which == Which::Adverts || words == 0 || self.owed == 0 {
            return None;
        }
        self.owed -= 1;
        Some(Frame::Done { to: Name::default(), lines: proto::Line::new(self.owed) })
    }

    fn submit(
        &mut self,
        len: &usize,
        words: usize,
        _: &mut Account,
        _: Moment,
    ) -> Result<Submit, ()> {
        if 3 + len.div_ceil(8) > words || self.outstanding == 200 {
            return Ok(Submit::NotNow);
        }
        self.outstanding += 1;
        let (to, line) = (Name::default(), proto::Line::FIRST);
        let len = *len as u16;
        let frame = proto::frame::Inline { to, line, advertised: true, tag: 0, base: line, len };
        Ok(Submit::Inline { message: MessageId::new(0), frame })
    }

    fn received(&mut self, frame: &Frame, _: &mut Account, _: Moment) -> Result<Option<usize>, ()> {
        match frame {
            Frame::Inline(inline) => Ok(Some(usize::from(inline.len))),
            Frame::Fin(_) => Err(()),
            _ => {
                self.owed = 10.min(self.owed + 1);
                Ok(None)
            }
        }
    }

    fn copied(&mut self, _: usize, _: &mut Account, _: Moment) {}

    fn inline_left(&mut self, _: MessageId) {
        self.outstanding = self.outstanding.checked_sub(1).expect("each leaves once");
    }

    fn next_action(&mut self, _: &mut Account, _: Moment) -> Option<()> {
        None
    }

    fn acted(&mut self, (): &(), _: bool, _: &mut Account, _: Moment) {}

    fn happened(&mut self, (): (), _: &mut Account, _: Moment) -> Result<(), ()> {
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn ended(&mut self, _: ChannelEnd) {
        self.ended = true;
        self.owed = 0;
    }

    fn peer(&self) -> Option<Name> {
        None
    }
}

/// Performs the actions of an end whose peer is the input.
#[derive(Debug, Default)]
struct Hands {
    memories: Vec<Memory>,
    writes: Vec<(WriteId, u8)>,
    events: VecDeque<Event<()>>,
    ended: u32,
}

impl Shadows for Hands {
    type Shadow = Memory;

    fn shadow(&mut self, id: MemoryId) -> &mut Memory {
        &mut self.memories[id.0 as usize]
    }
}

impl Perform<Listener> for Hands {
    type Inbox = Memory;

    fn inbox(&mut self, id: MemoryId) -> &mut Memory {
        &mut self.memories[id.0 as usize]
    }

    fn post(&mut self, _: ChannelId, post: &Post) -> bool {
        assert!(post.at + post.bytes <= SHORTEST + 8);
        self.writes.push((post.write, post.rail));
        true
    }

    fn send(&mut self, _: ChannelId, rail: u8, letter: &Letter) -> LetterPost {
        assert!(rail < 2);
        assert_eq!(Letter::decode(&letter.encode()), Some(*letter));
        LetterPost::Posted
    }

    fn act(&mut self, _: Slot, (): &(), _: &Account) -> Acted {
        Acted::Done
    }

    fn copy_out(&mut self, _: MemoryId, payload: Payload, len: &usize) {
        assert_eq!(payload.bytes, *len);
    }

    fn copy_in(&mut self, _: MemoryId, payload: Payload, _: Slot, len: &usize, _: &mut Account) {
        assert_eq!(payload.bytes, *len);
        assert!(payload.word * 8 + payload.bytes <= SHORTEST as usize);
    }

    fn next_event(&mut self) -> Option<Event<()>> {
        self.events.pop_front()
    }

    fn lend_inbox(&mut self, _: ChannelId, rail: u8) -> Option<LentInbox> {
        assert!(rail < 2);
        self.memories.push(Memory::new());
        let memory = MemoryId(self.memories.len() as u32 - 1);
        Some(LentInbox { memory, address: 0, key: 0, nonce: NONCE })
    }

    fn lend_shadow(&mut self, _: ChannelId) -> Option<MemoryId> {
        self.memories.push(Memory::new());
        Some(MemoryId(self.memories.len() as u32 - 1))
    }

    fn retire_inbox(&mut self, _: MemoryId) {}

    fn failed_late(&mut self, _: ChannelId, _: u8) {}

    fn release_inbox(&mut self, _: MemoryId) {}

    fn release_shadow(&mut self, _: MemoryId) {}

    fn open_requested(&mut self, _: ChannelId, open: &Open) -> Option<Refused> {
        Some(refuse(open, Refusal::Closed))
    }

    fn violated(&mut self, _: Slot, (): ()) {}

    fn control_rails(&mut self, _: ChannelId, news: RailNews) {
        assert!((news.lost | news.returned).iter().all(|rail| rail < CONTROL_RAILS));
    }

    fn rail_lost(&mut self, _: ChannelId, rail: u8, _: Cause) {
        assert!(rail < DATA_RAILS);
    }

    fn close_rail(&mut self, local: u8) -> bool {
        assert!(local < DATA_RAILS);
        local > 0
    }

    fn can_reopen(&self, local: u8) -> bool {
        local != 1
    }

    fn open_rail(&mut self, local: u8) -> Option<bool> {
        assert!(local < DATA_RAILS);
        (local != 1).then_some(local > 1)
    }

    fn trial_target(&mut self, local: u8) -> Option<TrialTarget> {
        let address = Address::new(&[local; 28])?;
        Some(TrialTarget { address, target: 0, key: 0 })
    }

    fn key_of(&mut self, _: u8, _: u32) -> u64 {
        0
    }

    fn reach(&mut self, _: ChannelId, rail: u8, _: &Address) -> bool {
        assert!(rail < DATA_RAILS);
        true
    }

    fn try_rail(&mut self, _: ChannelId, offer: &Offer) -> bool {
        assert!(offer.rail < DATA_RAILS);
        true
    }

    fn rail_returned(&mut self, _: ChannelId, rail: u8) {
        assert!(rail < DATA_RAILS);
    }

    fn ended(&mut self, _: ChannelId, _: Outcome) {
        self.ended += 1;
        assert_eq!(self.ended, 1, "a channel ends once");
    }

    fn forgotten(&mut self, _: ChannelId) {
        assert_eq!(self.ended, 1, "a channel ends before it is forgotten");
    }
}

fn small8(script: &mut Script<'_>, below: u32) -> u8 {
    u8::try_from(script.small(below)).unwrap_or(0)
}

const KEY: u64 = 77;
const DATA_RAILS: u8 = 3;
const CONTROL_RAILS: u8 = 2;

/// One end of a channel: its inbox, its letters and the ends of its writes come from the input.
pub(super) fn channel(input: &[u8]) {
    let mut script = Script(input);
    let mut endpoint: ProgressLoop<Listener> = ProgressLoop::new(3);
    let first = PacketNumber::new([1, u32::MAX - 5][script.small(2) as usize]);
    let parameters = Parameters {
        ring: ring(),
        rails: CONTROL_RAILS,
        data_rails: DATA_RAILS,
        locals: std::array::from_fn(|at| at as u8),
        failover: true,
        tries: true,
        closes: true,
        measure_by_arrival: true,
        rail: 0,
        key: KEY,
        peer_timeout: Duration::from_millis(100),
        quarantine: 0,
        first,
    };
    let id = endpoint.add_channel(parameters).expect("the parameters are possible");
    let mut hands = Hands::default();
    let mut now = 0;
    for _ in 0..2 {
        let name = endpoint.vacant().expect("there are three slots");
        assert!(endpoint.connect(name, id, Listener::default(), Moment::default()));
    }
    while let Some(step) = script.byte() {
        now += 1_000 << script.small(16);
        let moment = Moment::from_nanos(now);
        let channel = endpoint.channel(id).expect("it was added");
        let target = channel.shadow().target().copied();
        match step % 8 {
            0 | 1 => {
                let Some(inbox) = channel.inbox() else { continue };
                let (memory, at) = (inbox.memory().0 as usize, inbox.position());
                let next = inbox.consumed().plus(1);
                let near = channel.shadow().acknowledged();
                hands.memories[memory].write(&mut script, at, next, near);
            }
            2 => {
                let slot = Slot::new(script.small(3) as usize).expect("it is small");
                let len = script.small(500) as usize;
                let _ = endpoint.submit(&mut hands, slot, &len, moment);
            }
            3 | 4 => {
                // Any letter that a peer could send.
                let mut words = [0; LETTER_WORDS];
                words.iter_mut().for_each(|word| *word = script.word());
                words[0] = [KEY, 0, words[0]][script.small(3) as usize];
                let epoch = target.map_or(0, |target| target.epoch.0) + script.small(3);
                words[1] = u64::from(1 + script.small(3))
                    | u64::from(script.small(4)) << 8
                    | u64::from(script.small(6) / 5) << 16
                    | u64::from(epoch) << 32;
                words[2] = u64::from(channel.shadow().acknowledged().plus(script.small(4)).get())
                    | words[2] << 32;
                words[7] = u64::from(script.small(3));
                if let Some(letter) = Letter::decode(&words) {
                    let proven = script.small(2) == 0;
                    hands.events.push_back(Event::Letter { channel: id, letter, proven });
                }
            }
            5 => {
                if let Some((write, rail)) = hands.writes.pop() {
                    let well = script.small(16) != 0;
                    hands.events.push_back(Event::Wrote { channel: id, write, rail, well });
                }
            }
            6 => match script.small(6) {
                0 | 1 => endpoint.end(id),
                2 => {
                    let (channel, rail, round) =
                        (id, 1 + small8(&mut script, 2), small8(&mut script, 3));
                    hands.events.push_back(Event::TrialArrived { channel, rail, round });
                }
                3 => {
                    let (channel, rail, well) =
                        (id, 1 + small8(&mut script, 2), script.small(2) == 0);
                    hands.events.push_back(Event::TrialEnded { channel, rail, well });
                }
                _ => {
                    endpoint.keep(&mut hands, moment);
                }
            },
            _ => endpoint.progress(&mut hands, moment),
        }
        let shadow = endpoint.channel(id).expect("it was added").shadow();
        assert!(shadow.unacknowledged() <= 64);
    }
}
