//! A stand-in connection that sends every kind of frame, and checks what it receives: each frame once, in order,
//! unchanged.

use proto::connection::ChannelEnd;
use proto::frame::{
    Advert, Close, Fin, FinStatus, INLINE_WORDS, Inline, Keys, Lines, RailNote, RailState,
};
use proto::limits::MAX_DATA_RAILS;
use proto::{
    Account, Connection, Frame, MessageId, Moment, Name, Standing, Submit, Urgency, Which,
};
use proto::{Line, RailSet};

/// Inline messages of one connection that have not left.
const MESSAGES: usize = 64;

/// A payload is generated from its seed, which the frame's tag and base carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) seed: u64,
    /// Above the length of any inline message it is sent in one part, from [`LONG`] on as a long message.
    pub(crate) len: usize,
}

pub(crate) const LONG: usize = 1 << 20;

impl Message {
    pub(crate) fn word(&self, index: usize) -> u64 {
        let word = mix(self.seed ^ index as u64);
        let bytes = self.len - 8 * index;
        if bytes >= 8 { word } else { word & ((1 << (8 * bytes)) - 1) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Happened {
    Completed { rail: u8 },
    Arrived { rail: u8 },
}

/// A part to write on a data rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartWrite {
    pub(crate) rail: u8,
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) kind: usize,
    pub(crate) urgency: Urgency,
}

/// The number of kinds of frames; the first is an advert.
pub(crate) const KINDS: usize = 6;
const WITHDRAW: usize = 4;

#[derive(Debug)]
pub(crate) struct Talk {
    me: Name,
    to: Name,
    planned: Vec<Planned>,
    parts: Vec<PartWrite>,
    /// Frames sent and received.
    said: u32,
    heard: u32,
    /// Inline messages that have not left.
    outstanding: [bool; MESSAGES],
    /// Answers to send, and answers that it waits for.
    answers: u32,
    unanswered: u32,
    /// It waits until so many frames were received.
    expects: u32,
    ended: Option<ChannelEnd>,
    pub(crate) broken: Option<&'static str>,
    parts_posted: u32,
    pub(crate) parts_written: u32,
    pub(crate) parts_seen: u32,
}

impl Talk {
    pub(crate) fn new(me: Name, to: Name) -> Self {
        Self {
            me,
            to,
            planned: Vec::with_capacity(32),
            parts: Vec::with_capacity(32),
            said: 0,
            heard: 0,
            outstanding: [false; MESSAGES],
            answers: 0,
            unanswered: 0,
            expects: 0,
            ended: None,
            broken: None,
            parts_posted: 0,
            parts_written: 0,
            parts_seen: 0,
        }
    }

    pub(crate) fn plan(&mut self, planned: Planned) {
        if self.ended.is_none() {
            self.planned.push(planned);
        }
    }

    pub(crate) fn plan_part(&mut self, rail: u8) {
        if self.ended.is_none() {
            self.parts.push(PartWrite { rail });
        }
    }

    /// Waits for so many more frames.
    pub(crate) fn expect(&mut self, frames: u32) {
        self.expects = self.heard + frames;
    }

    /// The other end's name.
    pub(crate) fn to(&self) -> Name {
        self.to
    }

    pub(crate) fn said(&self) -> u32 {
        self.said
    }

    pub(crate) fn heard(&self) -> u32 {
        self.heard
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.iter().filter(|one| **one).count()
    }

    /// Whether nothing is left to send or to receive.
    pub(crate) fn rests(&self) -> bool {
        let silent = self.planned.is_empty() && self.parts.is_empty() && self.answers == 0;
        let heard = self.unanswered == 0 && self.outstanding() == 0;
        self.ended.is_some() || (silent && heard)
    }

    fn law(&mut self, holds: bool, law: &'static str) {
        if !holds {
            self.broken.get_or_insert(law);
        }
    }

    /// The frame of this number and kind. Both ends compute it.
    fn frame(to: Name, number: u32, kind: usize) -> Frame {
        let word = mix(u64::from(number) << 8 | kind as u64);
        let line = Line::new(number);
        let keys =
            Keys::new(&[word; MAX_DATA_RAILS][..1 + word as usize % MAX_DATA_RAILS]).unwrap();
        match kind {
            0 => Frame::Advert(Advert {
                to,
                line,
                tag: 0,
                address: word,
                len: !word,
                cut: word & 1 != 0,
                host: word & 2 != 0,
                ends_group: word & 4 != 0,
                keys,
            }),
            1 => Frame::Done { to, lines: line },
            2 => {
                let status = FinStatus::Failed;
                Frame::Fin(Fin { to, line, len: word, rails: RailSet::new(7), status })
            }
            3 => Frame::Close(Close { to, lines: line, parts: keys }),
            WITHDRAW => Frame::Withdraw(Lines { to, first: line, set: word << 14 }),
            5 => {
                let state = RailState::Held { to, line, parts: word };
                Frame::Rail(RailNote { rail: 3, state })
            }
            _ => Frame::Withdrawn(Lines { to, first: line, set: word }),
        }
    }

    fn kind_of(frame: &Frame) -> usize {
        match frame {
            Frame::Advert(_) => 0,
            Frame::Done { .. } => 1,
            Frame::Fin(_) => 2,
            Frame::Close(_) => 3,
            Frame::Withdraw(_) => WITHDRAW,
            Frame::Rail(_) => 5,
            _ => KINDS,
        }
    }
}

impl Talk {
    fn urgency(&self) -> Urgency {
        if self.answers > 0 {
            return Urgency::Waited;
        }
        self.planned.iter().fold(Urgency::Nothing, |sum, planned| match (sum, planned.urgency) {
            (Urgency::Waited, _) | (_, Urgency::Waited) => Urgency::Waited,
            (Urgency::Urgent, _) | (_, Urgency::Urgent) => Urgency::Urgent,
            (
                Urgency::Lazy { until: one, joins },
                Urgency::Lazy { until: other, joins: also_joins },
            ) => Urgency::Lazy { until: one.min(other), joins: joins || also_joins },
            (sum, Urgency::Nothing) => sum,
            (_, urgency) => urgency,
        })
    }
}

impl Connection for Talk {
    type Message = Message;
    type Place = Message;
    type Action = PartWrite;
    type Event = Happened;
    type Fault = ();
    type Error = ();

    fn standing(&self, _: &Account, _: Moment) -> Standing {
        // Not for inline messages that have not left: `inline_left` does not change this.
        let waits = self.unanswered > 0 || self.heard < self.expects;
        Standing {
            urgency: self.urgency(),
            waits: self.ended.is_none() && waits,
            awaits_parts: false,
            acts: !self.parts.is_empty(),
        }
    }

    fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        _: &mut Account,
        _: Moment,
    ) -> Option<Frame> {
        let adverts = which == Which::Adverts;
        let kind = if self.answers > 0 && !adverts {
            KINDS
        } else {
            let index = self.planned.iter().position(|plan| (plan.kind == 0) == adverts)?;
            self.planned[index].kind
        };
        let frame = Self::frame(self.to, self.said, kind);
        if frame.words() > words {
            return None;
        }
        if kind == KINDS {
            self.answers -= 1;
        } else {
            let index = self.planned.iter().position(|plan| plan.kind == kind)?;
            self.planned.remove(index);
            self.unanswered += u32::from(kind == WITHDRAW);
        }
        self.said = self.said.wrapping_add(1);
        let ended = self.ended.is_some();
        self.law(!ended, "a frame was requested from a connection of an ended channel");
        Some(frame)
    }

    fn submit(
        &mut self,
        message: &Message,
        words: usize,
        _: &mut Account,
        _: Moment,
    ) -> Result<Submit, ()> {
        if message.len > usize::from(u16::MAX) {
            self.parts.push(PartWrite { rail: 0 });
            let (message, long) = (MessageId::new(0), message.len >= LONG);
            return Ok(Submit::Parts { message, long });
        }
        let free = self.outstanding.iter().position(|taken| !taken);
        let fits = INLINE_WORDS + message.len.div_ceil(8) <= words;
        let (Some(index), true, None) = (free, fits, self.ended) else { return Ok(Submit::NotNow) };
        self.outstanding[index] = true;
        let frame = Inline {
            to: self.to,
            line: Line::new(self.said),
            advertised: message.seed & 1 != 0,
            tag: (message.seed as u32).cast_signed(),
            base: Line::new((message.seed >> 32) as u32),
            len: message.len as u16,
        };
        self.said = self.said.wrapping_add(1);
        Ok(Submit::Inline { message: MessageId::new(index as u8), frame })
    }

    fn received(
        &mut self,
        frame: &Frame,
        _: &mut Account,
        _: Moment,
    ) -> Result<Option<Message>, ()> {
        let number = self.heard;
        self.heard = self.heard.wrapping_add(1);
        if let Frame::Inline(inline) = frame {
            let low = u64::from(inline.tag.cast_unsigned());
            let seed = low | u64::from(inline.base.number()) << 32;
            let right = inline.line.number() == number && inline.to == self.me;
            self.law(right, "an inline message was lost, repeated or out of order");
            self.law(inline.advertised == (seed & 1 != 0), "an inline message was changed");
            return Ok(Some(Message { seed, len: usize::from(inline.len) }));
        }
        let right = *frame == Self::frame(self.me, number, Self::kind_of(frame));
        self.law(right, "a frame was lost, repeated, changed or out of order");
        match frame {
            Frame::Withdraw(_) => self.answers += u32::from(self.ended.is_none()),
            Frame::Withdrawn(_) => self.unanswered -= 1,
            _ => {}
        }
        Ok(None)
    }

    fn copied(&mut self, _: Message, _: &mut Account, _: Moment) {}

    fn inline_left(&mut self, message: MessageId) {
        let one = std::mem::take(&mut self.outstanding[message.index()]);
        self.law(one, "a message left twice");
    }

    fn next_action(&mut self, _: &mut Account, _: Moment) -> Option<PartWrite> {
        self.parts.first().copied()
    }

    fn acted(&mut self, _: &PartWrite, posted: bool, _: &mut Account, _: Moment) {
        if posted {
            self.parts_posted += 1;
            self.parts.remove(0);
        }
    }

    fn happened(&mut self, event: Happened, account: &mut Account, _: Moment) -> Result<(), ()> {
        match event {
            Happened::Completed { rail } => {
                self.parts_written += 1;
                account.counts.completed.add(rail);
            }
            Happened::Arrived { rail } => {
                self.parts_seen += 1;
                account.counts.seen.add(rail);
            }
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.parts.is_empty() && self.parts_posted == self.parts_written
    }

    fn ended(&mut self, how: ChannelEnd) {
        self.ended.get_or_insert(how);
        self.planned.clear();
        self.parts.clear();
        self.answers = 0;
    }

    fn peer(&self) -> Option<Name> {
        Some(self.to)
    }
}

pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ 0x1357_9bdf_0246_8ace).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ word >> 31
}
