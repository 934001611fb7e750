//! The frames of a packet: the control messages between the two ends of a channel, as data and as words on the wire.
//!
//! The first word of every frame gives its length and names the connection by the *recipient's* slot and generation:
//!
//! ```text
//! 63..32 number (a line, mostly) | 31..18 slot | 17..12 generation | 11..8 flags | 7..4 rail or rails - 1 | 3..0 kind
//! ```
//!
//! A frame has one encoding: bits without a meaning are zero, and a decoded frame encodes to the same words again.

use std::time::Duration;

use crate::bits::{low8, low16, low32, word_of};
use crate::codec::Address;
use crate::limits::{MAX_ADDRESS_BYTES, MAX_DATA_RAILS};
use crate::line::Line;

use super::ids::{Generation, ListenerId, Moment, Name, Slot};
use super::rail_set::RailSet;

/// The longest frame without a payload: an advert with a key for each of 16 rails.
pub const FRAME_WORDS_MAX: usize = ADVERT_WORDS + MAX_DATA_RAILS;
/// The longest inline message of any connection.
pub const INLINE_BYTES_MAX: usize = 4096;
/// An INLINE without its payload.
pub const INLINE_WORDS: usize = 3;

/// One frame. The payload of an INLINE follows its words and is not part of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    Open(Open),
    Opened(Opened),
    Refused(Refused),
    Advert(Advert),
    Inline(Inline),
    /// The receiver has completed all lines before this one.
    Done {
        to: Name,
        lines: Line,
    },
    Fin(Fin),
    /// The receiver withdraws these lines.
    Withdraw(Lines),
    /// The sender's answer: the withdrawn lines that it has begun to write, whose parts will still arrive.
    Withdrawn(Lines),
    Close(Close),
    Rail(RailNote),
    Offer(Offer),
    Arrived(Arrived),
    /// The last frame of a channel.
    End,
}

/// A sender requests a connection from a listener of the peer. The proof, by the listener's secret, shows that it has
/// the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The sender's own name for the connection.
    pub from: Name,
    pub listener: ListenerId,
    /// How the sender can send. The connection uses what both ends support.
    pub features: u32,
    pub proof: [u64; 2],
}

/// The receiver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub to: Name,
    /// The receiver's own name for the connection.
    pub from: Name,
    pub features: u32,
    /// The longest message that may be sent inline before its advert is known.
    pub inline_bytes_max: u16,
    /// How many lines may be outstanding.
    pub window: u8,
    /// How many receives a group may have.
    pub group_max: u8,
}

/// The request is refused, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub to: Name,
    pub why: Refusal,
    /// A number for the log, such as the features that the receiver has.
    pub detail: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    Version = 1,
    Proof = 2,
    Feature = 3,
    /// The listener is closed: `connect` keeps answering "not yet".
    Closed = 4,
    Busy = 5,
}

/// One receive that the sender may write into. A group can be used when the advert of its last line is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    pub to: Name,
    pub line: Line,
    pub tag: i32,
    /// The address, or the offset in its region, of the receive's buffer.
    pub address: u64,
    pub len: u64,
    /// A longer message is truncated without an error.
    pub cut: bool,
    /// The buffer is host memory: the message may come inline, even beyond the connection's limit for messages without an advert.
    pub host: bool,
    /// This is the last line of its group.
    pub ends_group: bool,
    pub keys: Keys,
}

/// The key of a buffer on each data rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    words: [u64; MAX_DATA_RAILS],
    count: u8,
}

impl Keys {
    /// None unless there are 1 to 16 keys.
    pub fn new(keys: &[u64]) -> Option<Self> {
        let mut words = [0; MAX_DATA_RAILS];
        words.get_mut(..keys.len())?.copy_from_slice(keys);
        (!keys.is_empty()).then_some(Self { words, count: low8(keys.len() as u64) })
    }

    #[inline]
    pub fn as_slice(&self) -> &[u64] {
        &self.words[..usize::from(self.count)]
    }
}

/// A message inside the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    pub to: Name,
    /// Its line if the sender knows the advert; otherwise its number among the messages sent.
    pub line: Line,
    pub advertised: bool,
    pub tag: i32,
    /// Without an advert: the first line of the group that the sender expects to be next.
    pub base: Line,
    pub len: u16,
}

/// Ends a message that was sent without immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fin {
    pub to: Name,
    pub line: Line,
    pub len: u64,
    /// The data rails that carried it.
    pub rails: RailSet,
    pub status: FinStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FinStatus {
    Delivered = 0,
    /// The message is longer than its receive; `len` is the message's length.
    TooLong = 1,
    Failed = 2,
}

/// Lines of one window: bit n is the line `first` + n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    pub to: Name,
    pub first: Line,
    pub set: u64,
}

/// This side closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    pub to: Name,
    /// A sender has begun all lines before this one, a receiver has completed them.
    pub lines: Line,
    /// For each data rail, how many parts a sender has written, or a receiver has seen.
    pub parts: Keys,
}

/// Fail-over of a data rail: its loss, the parts of messages that a receiver has, and the rail's return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailNote {
    pub rail: u8,
    pub state: RailState,
}

/// The first three are for the channel, the others for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailState {
    /// The sender of this frame posts nothing on the rail any more.
    Down(RailPosts),
    /// Nothing can arrive by the rail at the sender of this frame any more.
    Fenced,
    /// A trial of this round has arrived.
    Seen { round: u8 },
    /// Once the rail is fenced: the parts that the receiver has of a line, one bit each.
    Held { to: Name, line: Line, parts: u64 },
    /// All *held* frames were sent. Lines before `lines` are complete, and `seen` parts have arrived by the rail.
    Listed { to: Name, lines: Line, seen: u32 },
    /// The new key of an advertised line.
    Key { to: Name, line: Line, key: u64 },
}

/// One side's posts on a rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailPosts {
    /// Parts with immediates.
    pub parts: u32,
    /// Writes without immediates have not completed: no count shows whether they arrive.
    pub uncounted: bool,
}

/// For the channel: a lost data rail is to be used again; its current address, and the target of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub rail: u8,
    pub round: u8,
    /// The sender's number of the channel, which a trial carries.
    pub channel: u16,
    /// Address and key of a few bytes that are never read, for the trial.
    pub target: u64,
    pub key: u64,
    /// The address of the rail's libfabric endpoint.
    pub address: Address,
}

/// For the channel: when the newest parts arrived, by data rail, by the clock of the side that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The reporting side's clock when the report was made, in microseconds, wrapping.
    pub clock_micros: u32,
    landed: Keys,
}

/// The newest part that has arrived on a data rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    pub rail: u8,
    /// How many parts have arrived there, wrapping.
    pub count: u32,
    /// How long before the report the newest part arrived. At most [`MICROS_MAX`](Self::MICROS_MAX).
    pub micros_ago: u32,
}

impl Landed {
    pub const MICROS_MAX: u32 = (1 << 28) - 1;

    /// A time in microseconds, limited to the most that a report can carry.
    pub fn limited(ago: Duration) -> u32 {
        u32::try_from(ago.as_micros()).unwrap_or(u32::MAX).min(Self::MICROS_MAX)
    }

    fn from_word(word: u64) -> Self {
        let rail = low8(word) & 15;
        Self { rail, count: low32(word >> 32), micros_ago: low32(word) >> 4 }
    }

    fn word(self) -> u64 {
        u64::from(self.rail) | u64::from(self.micros_ago) << 4 | u64::from(self.count) << 32
    }
}

impl Arrived {
    /// A report, made at `now`, of 1 to 16 rails in ascending order.
    pub fn new(now: Moment, landed: impl Iterator<Item = Landed>) -> Option<Self> {
        let (mut words, mut count) = ([0; MAX_DATA_RAILS], 0);
        for one in landed {
            *words.get_mut(count)? = one.word();
            count += 1;
        }
        let clock_micros = low32(now.nanos() / 1000);
        Some(Self { clock_micros, landed: Keys::new(words.get(..count)?)? })
    }

    pub fn landed(&self) -> impl Iterator<Item = Landed> {
        self.landed.as_slice().iter().map(|word| Landed::from_word(*word))
    }

    #[cold]
    fn read(first: u64, word: impl Fn(usize) -> u64) -> Result<Self, Malformed> {
        unused(first, FLAGS_BITS | SLOT_AND_GENERATION_BITS)?;
        let landed = Keys::read(first, |rail| word(1 + rail));
        let ascends = |pair: &[u64]| pair[0] & 15 < pair[1] & 15;
        if !landed.as_slice().windows(2).all(ascends) {
            return Err(Malformed::Value);
        }
        Ok(Self { clock_micros: number(first), landed })
    }
}

/// Why words are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No such kind of frame.
    Kind,
    /// The words end before the frame does.
    Short,
    /// A number outside of its bounds.
    Value,
    /// Bits without a meaning are set.
    Reserved,
}

impl Frame {
    /// The connection that the frame is for, by the recipient's name. None for OPEN, which is for a listener, and for
    /// frames for the channel.
    #[inline]
    pub fn to(&self) -> Option<Name> {
        match self {
            Self::Inline(Inline { to, .. })
            | Self::Advert(Advert { to, .. })
            | Self::Done { to, .. }
            | Self::Fin(Fin { to, .. })
            | Self::Withdraw(Lines { to, .. })
            | Self::Withdrawn(Lines { to, .. })
            | Self::Close(Close { to, .. })
            | Self::Opened(Opened { to, .. })
            | Self::Refused(Refused { to, .. }) => Some(*to),
            Self::Rail(note) => note.to(),
            Self::Open(_) | Self::Offer(_) | Self::Arrived(_) | Self::End => None,
        }
    }

    /// The frame's length in words, without a payload.
    #[inline]
    pub fn words(&self) -> usize {
        match self {
            Self::Open(_) => OPEN_WORDS,
            Self::Opened(_) => OPENED_WORDS,
            Self::Refused(_) => REFUSED_WORDS,
            Self::Advert(advert) => advert.words(),
            Self::Inline(_) => INLINE_WORDS,
            Self::Done { .. } | Self::End => 1,
            Self::Fin(_) => FIN_WORDS,
            Self::Withdraw(_) | Self::Withdrawn(_) => LINES_WORDS,
            Self::Close(close) => 1 + close.parts.as_slice().len(),
            Self::Arrived(arrived) => 1 + arrived.landed.as_slice().len(),
            Self::Rail(_) => RAIL_WORDS,
            Self::Offer(offer) => OFFER_WORDS + offer.address.as_bytes().len().div_ceil(8),
        }
    }

    /// Passes its words to `put`, in order.
    #[inline]
    pub fn encode(&self, mut put: impl FnMut(u64)) {
        match self {
            Self::Inline(inline) => inline.encode(put),
            Self::Advert(advert) => advert.encode(put),
            Self::Done { to, lines } => put(head(DONE, *to, lines.number())),
            Self::Fin(fin) => {
                put(head(FIN, fin.to, fin.line.number()) | (fin.status as u64) << FLAGS_SHIFT);
                put(fin.len);
                put(u64::from(fin.rails.bits()));
            }
            Self::Withdraw(lines) => lines.encode(WITHDRAW, put),
            Self::Withdrawn(lines) => lines.encode(WITHDRAWN, put),
            Self::Close(close) => {
                put(head(CLOSE, close.to, close.lines.number()) | close.parts.in_head());
                close.parts.as_slice().iter().for_each(|parts| put(*parts));
            }
            Self::Rail(note) => note.encode(put),
            Self::Offer(offer) => offer.encode(put),
            Self::Arrived(arrived) => {
                let clock = u64::from(arrived.clock_micros) << NUMBER_SHIFT;
                put(u64::from(ARRIVED) | arrived.landed.in_head() | clock);
                arrived.landed.as_slice().iter().for_each(|word| put(*word));
            }
            Self::Open(open) => {
                put(head(OPEN, open.from, open.listener.0));
                put(u64::from(open.features));
                open.proof.iter().for_each(|word| put(*word));
            }
            Self::Opened(opened) => {
                put(head(OPENED, opened.to, opened.features));
                let limits = u64::from(opened.inline_bytes_max)
                    | u64::from(opened.window) << 16
                    | u64::from(opened.group_max) << 24;
                put(head(0, opened.from, low32(limits)));
            }
            Self::Refused(refused) => {
                put(head(REFUSED, refused.to, refused.why as u32));
                put(refused.detail);
            }
            Self::End => put(u64::from(END)),
        }
    }

    /// The length in words of the frame that begins with `first`, without a payload.
    #[inline]
    pub fn words_of(first: u64) -> Result<usize, Malformed> {
        let rails = rails(first);
        Ok(match kind(first) {
            INLINE => INLINE_WORDS,
            ADVERT => ADVERT_WORDS + rails,
            DONE | END => 1,
            FIN => FIN_WORDS,
            WITHDRAW | WITHDRAWN => LINES_WORDS,
            CLOSE | ARRIVED => 1 + rails,
            RAIL => RAIL_WORDS,
            OFFER => OFFER_WORDS + usize::from(low8(first >> OFFER_BYTES_SHIFT)).div_ceil(8),
            OPEN => OPEN_WORDS,
            OPENED => OPENED_WORDS,
            REFUSED => REFUSED_WORDS,
            _ => return Err(Malformed::Kind),
        })
    }

    /// The frame at the start of `words`.
    pub fn decode(words: &[u64]) -> Result<Self, Malformed> {
        let first = *words.first().ok_or(Malformed::Short)?;
        let words = words.get(..Self::words_of(first)?).ok_or(Malformed::Short)?;
        Self::read(first, |word| words[word])
    }

    /// Decodes the frame that begins with `first`. `word` loads the others, up to [`words_of`](Self::words_of). The
    /// peer may still change them, so each is loaded once.
    #[inline]
    pub fn read(first: u64, word: impl Fn(usize) -> u64) -> Result<Self, Malformed> {
        match kind(first) {
            INLINE => Inline::read([first, word(1), word(2)]).map(Self::Inline),
            ADVERT => Advert::read(first, word).map(Self::Advert),
            DONE => {
                unused(first, RAILS_BITS | FLAGS_BITS)?;
                Ok(Self::Done { to: name(first), lines: line(first) })
            }
            END => {
                unused(first, !KIND_BITS)?;
                Ok(Self::End)
            }
            FIN => {
                let (len, rails) = (word(1), word(2));
                unused(first, RAILS_BITS)?;
                unused(rails, !0xffff)?;
                let status = match flags(first) {
                    0 => FinStatus::Delivered,
                    1 => FinStatus::TooLong,
                    2 => FinStatus::Failed,
                    _ => return Err(Malformed::Value),
                };
                let (to, line) = (name(first), line(first));
                let rails = RailSet::new(low16(rails));
                Ok(Self::Fin(Fin { to, line, len, rails, status }))
            }
            WITHDRAW => Lines::read([first, word(1)]).map(Self::Withdraw),
            WITHDRAWN => Lines::read([first, word(1)]).map(Self::Withdrawn),
            CLOSE => {
                unused(first, FLAGS_BITS)?;
                let parts = Keys::read(first, |rail| word(1 + rail));
                Ok(Self::Close(Close { to: name(first), lines: line(first), parts }))
            }
            RAIL => RailNote::read([first, word(1)]).map(Self::Rail),
            OFFER => Offer::read(first, word).map(Self::Offer),
            ARRIVED => Arrived::read(first, word).map(Self::Arrived),
            OPEN => {
                unused(first, RAILS_BITS | FLAGS_BITS)?;
                let features = word(1);
                unused(features, !0 << 32)?;
                Ok(Self::Open(Open {
                    from: name(first),
                    listener: ListenerId(number(first)),
                    features: low32(features),
                    proof: [word(2), word(3)],
                }))
            }
            OPENED => {
                unused(first, RAILS_BITS | FLAGS_BITS)?;
                let second = word(1);
                unused(second, RAILS_BITS | FLAGS_BITS | KIND_BITS)?;
                let limits = u64::from(number(second));
                let inline_bytes_max = low16(limits);
                if usize::from(inline_bytes_max) > INLINE_BYTES_MAX {
                    return Err(Malformed::Value);
                }
                Ok(Self::Opened(Opened {
                    to: name(first),
                    from: name(second),
                    features: number(first),
                    inline_bytes_max,
                    window: low8(limits >> 16),
                    group_max: low8(limits >> 24),
                }))
            }
            REFUSED => {
                unused(first, RAILS_BITS | FLAGS_BITS)?;
                let why = match number(first) {
                    1 => Refusal::Version,
                    2 => Refusal::Proof,
                    3 => Refusal::Feature,
                    4 => Refusal::Closed,
                    5 => Refusal::Busy,
                    _ => return Err(Malformed::Value),
                };
                Ok(Self::Refused(Refused { to: name(first), why, detail: word(1) }))
            }
            _ => Err(Malformed::Kind),
        }
    }
}

impl RailNote {
    /// The connection that the frame is for; None: it is for the channel.
    fn to(&self) -> Option<Name> {
        match self.state {
            RailState::Held { to, .. }
            | RailState::Listed { to, .. }
            | RailState::Key { to, .. } => Some(to),
            RailState::Down(_) | RailState::Fenced | RailState::Seen { .. } => None,
        }
    }

    #[cold]
    fn encode(&self, mut put: impl FnMut(u64)) {
        let (code, line, word) = match self.state {
            RailState::Down(RailPosts { parts, uncounted }) => {
                (0, Line::FIRST, u64::from(parts) | u64::from(uncounted) << 32)
            }
            RailState::Held { line, parts, .. } => (1, line, parts),
            RailState::Listed { lines, seen, .. } => (2, lines, seen.into()),
            RailState::Fenced => (3, Line::FIRST, 0),
            RailState::Seen { round } => (4, Line::FIRST, round.into()),
            RailState::Key { line, key, .. } => (5, line, key),
        };
        let first = head(RAIL, self.to().unwrap_or_default(), line.number());
        put(first | u64::from(self.rail) << RAILS_SHIFT | code << FLAGS_SHIFT);
        put(word);
    }

    #[cold]
    fn read([first, word]: [u64; RAIL_WORDS]) -> Result<Self, Malformed> {
        let (to, line) = (name(first), line(first));
        let (state, meaning) = match flags(first) {
            0 => {
                let uncounted = word >> 32 & 1 == 1;
                (RailState::Down(RailPosts { parts: low32(word), uncounted }), (1 << 33) - 1)
            }
            1 => (RailState::Held { to, line, parts: word }, u64::MAX),
            2 => (RailState::Listed { to, lines: line, seen: low32(word) }, (1 << 32) - 1),
            3 => (RailState::Fenced, 0),
            4 => (RailState::Seen { round: low8(word) }, 0xff),
            5 => (RailState::Key { to, line, key: word }, u64::MAX),
            _ => return Err(Malformed::Value),
        };
        unused(word, !meaning)?;
        let note = Self { rail: low8(first >> RAILS_SHIFT) & 15, state };
        if note.to().is_none() {
            unused(first, !(KIND_BITS | RAILS_BITS | FLAGS_BITS))?;
        }
        Ok(note)
    }
}

impl Offer {
    #[cold]
    fn encode(&self, mut put: impl FnMut(u64)) {
        let address = self.address.as_bytes();
        put(u64::from(OFFER)
            | u64::from(self.rail) << RAILS_SHIFT
            | u64::from(self.round) << OFFER_ROUND_SHIFT
            | (address.len() as u64) << OFFER_BYTES_SHIFT
            | u64::from(self.channel) << OFFER_CHANNEL_SHIFT);
        put(self.target);
        put(self.key);
        for chunk in address.chunks(8) {
            put(word_of(chunk));
        }
    }

    #[cold]
    fn read(first: u64, word: impl Fn(usize) -> u64) -> Result<Self, Malformed> {
        unused(first, FLAGS_BITS | SLOT_AND_GENERATION_BITS)?;
        let len = usize::from(low8(first >> OFFER_BYTES_SHIFT));
        let mut bytes = [0; MAX_ADDRESS_BYTES];
        let address = bytes.get_mut(..len).ok_or(Malformed::Value)?;
        for (index, chunk) in address.chunks_mut(8).enumerate() {
            let word = word(OFFER_WORDS + index).to_le_bytes();
            let (ours, padding) = word.split_at(chunk.len());
            if padding.iter().any(|byte| *byte != 0) {
                return Err(Malformed::Reserved);
            }
            chunk.copy_from_slice(ours);
        }
        let address = Address::new(address).ok_or(Malformed::Value)?;
        Ok(Self {
            rail: low8(first >> RAILS_SHIFT) & 15,
            round: low8(first >> OFFER_ROUND_SHIFT),
            channel: low16(first >> OFFER_CHANNEL_SHIFT),
            target: word(1),
            key: word(2),
            address,
        })
    }
}

impl Inline {
    /// The payload's length in words.
    #[inline]
    pub const fn payload_words(&self) -> usize {
        (self.len as usize).div_ceil(8)
    }

    /// Passes its words to `put`. The payload follows them, zero-padded to whole words.
    #[inline]
    pub fn encode(&self, mut put: impl FnMut(u64)) {
        let advertised = u64::from(self.advertised) << FLAGS_SHIFT;
        put(head(INLINE, self.to, self.line.number()) | advertised);
        put(u64::from(self.len) | u64::from(self.tag.cast_unsigned()) << 32);
        put(u64::from(self.base.number()));
    }

    #[inline]
    fn read([first, second, base]: [u64; INLINE_WORDS]) -> Result<Self, Malformed> {
        unused(first, RAILS_BITS | (FLAGS_BITS & !(1 << FLAGS_SHIFT)))?;
        unused(second, 0xffff << 16)?;
        unused(base, !0 << 32)?;
        let len = low16(second);
        if usize::from(len) > INLINE_BYTES_MAX {
            return Err(Malformed::Value);
        }
        Ok(Self {
            to: name(first),
            line: line(first),
            advertised: flags(first) != 0,
            tag: low32(second >> 32).cast_signed(),
            base: Line::new(low32(base)),
            len,
        })
    }
}

#[cfg(test)]
impl Advert {
    /// For tests: the advert of one line, whose buffer has these keys.
    pub(crate) fn of_line(to: Name, line: Line, len: u64, keys: &[u64]) -> Self {
        let keys = Keys::new(keys).unwrap();
        let (tag, address, cut, host, ends_group) = (0, 0, false, false, true);
        Self { to, line, tag, address, len, cut, host, ends_group, keys }
    }
}

impl Advert {
    #[inline]
    pub fn words(&self) -> usize {
        ADVERT_WORDS + self.keys.as_slice().len()
    }

    #[inline]
    fn encode(&self, mut put: impl FnMut(u64)) {
        let flags =
            u64::from(self.cut) | u64::from(self.host) << 1 | u64::from(self.ends_group) << 2;
        let first = head(ADVERT, self.to, self.line.number());
        put(first | self.keys.in_head() | flags << FLAGS_SHIFT);
        put(u64::from(self.tag.cast_unsigned()));
        put(self.address);
        put(self.len);
        self.keys.as_slice().iter().for_each(|key| put(*key));
    }

    #[inline]
    fn read(first: u64, word: impl Fn(usize) -> u64) -> Result<Self, Malformed> {
        let (tag, address, len) = (word(1), word(2), word(3));
        unused(first, 8 << FLAGS_SHIFT)?;
        unused(tag, !0 << 32)?;
        Ok(Self {
            to: name(first),
            line: line(first),
            tag: low32(tag).cast_signed(),
            address,
            len,
            cut: flags(first) & 1 != 0,
            host: flags(first) & 2 != 0,
            ends_group: flags(first) & 4 != 0,
            keys: Keys::read(first, |rail| word(ADVERT_WORDS + rail)),
        })
    }
}

impl Keys {
    /// Reads as many keys as `head` says.
    #[inline]
    fn read(head: u64, key: impl Fn(usize) -> u64) -> Self {
        let (mut words, rails) = ([0; MAX_DATA_RAILS], rails(head));
        words[..rails].iter_mut().enumerate().for_each(|(rail, word)| *word = key(rail));
        Self { words, count: low8(rails as u64) }
    }

    /// The number of keys, as bits of a head.
    #[inline]
    fn in_head(&self) -> u64 {
        u64::from(self.count - 1) << RAILS_SHIFT
    }
}

impl Lines {
    fn encode(&self, kind: u8, mut put: impl FnMut(u64)) {
        put(head(kind, self.to, self.first.number()));
        put(self.set);
    }

    fn read([first, set]: [u64; LINES_WORDS]) -> Result<Self, Malformed> {
        unused(first, RAILS_BITS | FLAGS_BITS)?;
        Ok(Self { to: name(first), first: line(first), set })
    }
}

#[inline]
fn head(kind: u8, name: Name, number: u32) -> u64 {
    u64::from(kind)
        | u64::from(name.generation.get()) << GENERATION_SHIFT
        | (name.slot.index() as u64) << SLOT_SHIFT
        | u64::from(number) << NUMBER_SHIFT
}

#[inline]
const fn kind(head: u64) -> u8 {
    low8(head) & 15
}

/// The number of rails in a head: 1 to 16.
#[inline]
const fn rails(head: u64) -> usize {
    (low8(head >> RAILS_SHIFT) & 15) as usize + 1
}

#[inline]
const fn flags(head: u64) -> u8 {
    low8(head >> FLAGS_SHIFT) & 15
}

#[inline]
fn name(head: u64) -> Name {
    let slot = usize::from(low16(head >> SLOT_SHIFT)) % Slot::COUNT;
    let generation = Generation::new(low8(head >> GENERATION_SHIFT));
    Name { slot: Slot::new(slot).expect("a remainder is in bounds"), generation }
}

#[inline]
const fn number(head: u64) -> u32 {
    low32(head >> NUMBER_SHIFT)
}

#[inline]
const fn line(head: u64) -> Line {
    Line::new(number(head))
}

/// An error if any of these bits, which have no meaning, is set.
#[inline]
const fn unused(word: u64, bits: u64) -> Result<(), Malformed> {
    if word & bits == 0 { Ok(()) } else { Err(Malformed::Reserved) }
}

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const REFUSED: u8 = 3;
const ADVERT: u8 = 4;
const INLINE: u8 = 5;
const DONE: u8 = 6;
const FIN: u8 = 7;
const WITHDRAW: u8 = 8;
const WITHDRAWN: u8 = 9;
const CLOSE: u8 = 10;
const RAIL: u8 = 11;
const END: u8 = 12;
const OFFER: u8 = 13;
const ARRIVED: u8 = 14;

const KIND_BITS: u64 = 15;
const RAILS_SHIFT: u32 = 4;
const RAILS_BITS: u64 = 15 << RAILS_SHIFT;
const FLAGS_SHIFT: u32 = 8;
const FLAGS_BITS: u64 = 15 << FLAGS_SHIFT;
const GENERATION_SHIFT: u32 = 12;
const SLOT_SHIFT: u32 = 18;
const NUMBER_SHIFT: u32 = 32;

const OPEN_WORDS: usize = 4;
const OPENED_WORDS: usize = 2;
const REFUSED_WORDS: usize = 2;
const ADVERT_WORDS: usize = 4;
const FIN_WORDS: usize = 3;
const LINES_WORDS: usize = 2;
pub(crate) const RAIL_WORDS: usize = 2;
/// The words of an OFFER without its address.
const OFFER_WORDS: usize = 3;
const OFFER_ROUND_SHIFT: u32 = 32;
const OFFER_BYTES_SHIFT: u32 = 40;
const OFFER_CHANNEL_SHIFT: u32 = 48;
const SLOT_AND_GENERATION_BITS: u64 = ((1 << NUMBER_SHIFT) - 1) & !((1 << GENERATION_SHIFT) - 1);

const _: () = {
    assert!(MAX_DATA_RAILS == 16, "a head has four bits for the rails");
    assert!(MAX_DATA_RAILS < FRAME_WORDS_MAX, "a CLOSE or an ARRIVED is no longer than an advert");
    assert!(
        OFFER_WORDS + MAX_ADDRESS_BYTES / 8 <= FRAME_WORDS_MAX,
        "an OFFER is no longer than an advert"
    );
};

#[cfg(test)]
mod tests;
