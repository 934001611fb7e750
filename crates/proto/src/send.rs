//! The sender's flow: a message is matched to a line or sent before its advert, goes inline or in parts, and is done
//! when its buffer is no longer needed.
//!
//! ```text
//!  submit ─┬─ advert known, short, host ──▶ INLINE by line ───────────┐
//!          ├─ advert known ──▶ parts ──▶ (FIN) ───────────────────────┼──▶ poll: Done
//!          └─ no advert, short, credit ──▶ INLINE by tag and base ────┘
//! ```
//!
//! Laws: messages are matched to receives in posting order; tags choose only inside the first unfinished group. Without an
//! advert a message leaves only if no advert and no message of that group is known, and within the credit. A DONE must not go
//! beyond the messages sent. The first cause of failure is kept; messages that have begun before it are still written.

mod adverts;
mod ending;
mod lost;
mod matching;
mod parts;
mod record;
mod submit;
mod waiting;

use crate::capabilities::ImmediateWidth;
use crate::limits::MAX_GROUP;
use crate::line::Line;

use self::adverts::Adverts;
use self::ending::Ending;
use self::lost::Lost;
use self::record::{Record, State};
use super::account::Account;
use super::connection::{ChannelEnd, Urgency, Which};
use super::counts::Counts;
use super::fault::{Breach, Fault, Violation};
use super::frame::{Fin, FinStatus, Frame, Lines, RailNote, RailState};
use super::ids::Name;
use super::message::{Cut, MessageId, Source};
use super::rail_set::RailSet;
use super::stall::WaitsFor;
use super::terms::Terms;
use super::unadvertised::Unadvertised;
use super::window::RECORDS;

pub use parts::PartWrite;
#[cfg(test)]
pub(crate) use parts::share_out;

/// A message as passed to `isend`.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    pub tag: i32,
    pub len: u64,
    pub source: Source,
    /// The message is in host memory, so that it can be copied into a packet.
    pub host: bool,
}

/// The answer to [`SendFlow::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPoll {
    Pending,
    /// Returned once: the message's record is free again.
    Done {
        len: u64,
    },
    Failed(Fault),
}

/// The sending end of a connection, at the side that called connect.
#[derive(Debug)]
pub struct SendFlow {
    terms: Terms,
    /// The first line of the first unfinished group; with single receives the line of the next message.
    first: Line,
    /// Lines before this one are complete at the receiver, by its last DONE.
    peer_done: Line,
    group: Group,
    /// Messages that fill their receives are sent with immediates if they are shorter than this.
    whole_end: u64,
    /// Messages that do not fill their receives are sent with immediates if they are shorter than this.
    short_end: u64,
    /// A bit per free record.
    free: u64,
    /// A bit per record with parts to post.
    posting: u64,
    /// A bit per record with a pending FIN.
    fins: u64,
    /// A bit per place of a line whose message goes in parts, not inline.
    written: u64,
    /// Above 0 while receives are posted ahead of long messages; decremented by each long message that finds only one
    /// advert.
    ahead: u8,
    fault: Option<Fault>,
    /// A message that was too long for its receive, or whose write has failed: a FIN reports it to the receiver.
    refused: Option<Refused>,
    /// The last `isend` was refused: NCCL waits for an advert or for credit.
    refused_caller: bool,
    /// What the refused `isend` waits for.
    refused_for: WaitsFor,
    /// This side has closed, or the channel has failed: posted parts are not waited for any more.
    cut_off: bool,
    /// The channel's END was sent: nothing is posted any more.
    end_said: bool,
    cut: Option<Cut>,
    ending: Ending,
    /// The answer to a WITHDRAW, until it leaves. Boxed, since few connections ever need it.
    answer: Option<Box<Lines>>,
    /// Parts with immediates that were posted, per rail.
    parts: Counts,
    in_flight: u32,
    adverts: Adverts,
    unadvertised: Unadvertised,
    records: Box<[Record; RECORDS]>,
    /// Four bits per part: its rail. Empty if there is only one rail.
    rails: Box<[u64]>,
    /// Parts of lost rails; made when the first rail is lost.
    lost: Option<Box<Lost>>,
}

/// The first unfinished group, once all of its adverts have come; `count` is 0 before.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: u8,
    /// A bit per line that a message has taken.
    taken: u8,
}

/// A line whose message was not sent, or only partly.
#[derive(Clone, Copy, Debug)]
struct Refused {
    line: Line,
    len: u64,
    status: FinStatus,
    /// Parts of it were posted.
    begun: bool,
    /// The FIN that reports it has not left.
    pending: bool,
}

const ALL_FREE: u64 = u64::MAX >> (64 - RECORDS);
const _: () = assert!(MAX_GROUP <= u8::BITS as usize, "a bit per line of a group");

impl SendFlow {
    pub fn new(terms: Terms) -> Self {
        Self::starting_at(terms, Line::FIRST)
    }

    /// A flow that starts at another line: for tests near a wrap.
    pub fn starting_at(terms: Terms, first: Line) -> Self {
        let rails = usize::from(terms.cutting.rails);
        Self {
            first,
            peer_done: first,
            group: Group::default(),
            whole_end: terms.immediates_end(true),
            short_end: terms.immediates_end(false),
            free: ALL_FREE,
            posting: 0,
            fins: 0,
            written: 0,
            ahead: 0,
            fault: None,
            refused: None,
            refused_caller: false,
            refused_for: WaitsFor::Nothing,
            cut_off: false,
            end_said: false,
            cut: None,
            ending: Ending::default(),
            answer: None,
            parts: Counts::default(),
            in_flight: 0,
            adverts: Adverts::new(rails),
            unadvertised: Unadvertised::default(),
            records: Box::new([Record::FREE; RECORDS]),
            rails: vec![0; RECORDS * parts::rail_words(rails)].into_boxed_slice(),
            lost: None,
            terms,
        }
    }

    /// The first message that was truncated to its receive.
    #[inline]
    pub const fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// The packet of this inline message needs no retransmission any more: its write has completed, or it is
    /// acknowledged.
    #[inline]
    pub fn inline_left(&mut self, message: MessageId) {
        let record = &mut self.records[message.index() % RECORDS];
        if record.state == State::Inline {
            record.state = State::Sent;
        }
    }

    #[inline]
    fn is_done(&self, record: &Record) -> bool {
        match record.state {
            State::Sent | State::Landed { fin: true } => true,
            State::Landed { fin: false } => {
                !self.terms.needs_done() || self.peer_done.is_after(record.line)
            }
            State::Free | State::Inline | State::Writing(_) | State::FinPending => false,
        }
    }

    /// Tests a message; `Done` is returned once.
    #[inline]
    pub fn poll(&mut self, message: MessageId) -> SendPoll {
        let at = message.index() % RECORDS;
        if self.is_done(&self.records[at]) {
            let record = &mut self.records[at];
            record.state = State::Free;
            self.free |= bit_of(message);
            return SendPoll::Done { len: record.len };
        }
        match self.fault {
            Some(fault) if !self.goes_on(message, fault) => {
                self.give_up(message);
                SendPoll::Failed(fault)
            }
            _ => SendPoll::Pending,
        }
    }

    /// Whether a message that has begun still completes after a failure: if the failure is that another message was too long, or
    /// only forbids new messages.
    #[cold]
    fn goes_on(&self, message: MessageId, fault: Fault) -> bool {
        let at = message.index() % RECORDS;
        let over = self.ending == Ending::Over;
        // A receiver that has closed does not report missing parts; and after the end nothing is retransmitted.
        let lost = match self.ending {
            Ending::Open => false,
            Ending::Over => self.lacks_parts_of(at),
            _ => self.has_lost(at),
        };
        // A receiver closes, and its channel ends, when it has all messages: often before its acknowledgement or our
        // completion is read here.
        let begun = match self.records[at].state {
            State::Writing(writing) => {
                let posted =
                    writing.is_posted() && writing.next_round(self.records[at].len).is_none();
                !writing.failed && !lost && (posted || !over)
            }
            State::FinPending => !over,
            State::Inline => matches!(fault, Fault::Closed | Fault::Ended),
            _ => false,
        };
        let others = matches!(
            fault,
            Fault::TooLong { .. }
                | Fault::Unsendable { .. }
                | Fault::Withdrawn
                | Fault::Closed
                | Fault::Ended
        );
        begun && others && !self.cut_off && (self.may_post() || over)
    }

    /// Handles a frame from the receiver.
    pub fn received(&mut self, frame: &Frame, account: &mut Account) -> Result<(), Breach> {
        let heard = match frame {
            Frame::Advert(advert) => self.advertised(advert, account),
            Frame::Done { lines, .. } => self.peer_has(*lines, account),
            Frame::Withdraw(lines) => self.withdrawn(lines),
            Frame::Close(close) => self.peer_closed(close, account),
            Frame::Rail(note) => self.rail_note(note),
            _ => Err(Violation::Direction),
        };
        heard.map_err(|violation| {
            self.stick(Fault::Violation(violation));
            Breach(violation)
        })
    }

    /// Handles RAIL: the parts that the receiver has of messages sent by a lost rail.
    #[cold]
    fn rail_note(&mut self, note: &RailNote) -> Result<(), Violation> {
        let &RailNote { rail, state } = note;
        if rail >= self.terms.cutting.rails || self.rails.is_empty() {
            return Err(Violation::Rail);
        }
        match state {
            RailState::Held { line, parts, .. } => self.held(line, parts),
            RailState::Listed { lines, seen, .. } => self.listed(rail, lines, seen),
            RailState::Key { line, key, .. } => self.adverts.rekey(line, rail, key),
            // For the channel.
            RailState::Down(_) | RailState::Fenced | RailState::Seen { .. } => {
                return Err(Violation::Direction);
            }
        }
        Ok(())
    }

    /// Whether frames are pending. The receiver waits for all of them, so they leave before the last request is
    /// reported.
    #[inline]
    pub fn urgency(&self) -> Urgency {
        let refused = self.refused.is_some_and(|refused| refused.pending);
        if self.fins == 0 && !refused && !self.has_end_frame() {
            return Urgency::Nothing;
        }
        Urgency::Waited
    }

    /// The next frame, if it has at most `words` words.
    pub fn next_frame(&mut self, which: Which, words: usize) -> Option<Frame> {
        if which == Which::Adverts {
            return None;
        }
        let frame = self.frame()?;
        if frame.words() > words {
            return None;
        }
        self.frame_left(&frame);
        Some(frame)
    }

    fn frame(&self) -> Option<Frame> {
        if let Some(refused) = self.refused.filter(|refused| refused.pending) {
            let Refused { line, len, status, .. } = refused;
            let (to, rails) = (self.terms.peer, RailSet::NONE);
            return Some(Frame::Fin(Fin { to, line, len, rails, status }));
        }
        if self.fins != 0 {
            let at = self.fins.trailing_zeros() as usize % RECORDS;
            let Record { line, len, .. } = self.records[at];
            let (rails, status) = (self.rails_of(at, len), FinStatus::Delivered);
            return Some(Frame::Fin(Fin { to: self.terms.peer, line, len, rails, status }));
        }
        self.end_frame()
    }

    fn frame_left(&mut self, frame: &Frame) {
        match frame {
            Frame::Fin(_) if self.refused.is_some_and(|refused| refused.pending) => {
                self.refused = self.refused.map(|refused| Refused { pending: false, ..refused });
            }
            Frame::Fin(_) => {
                let at = self.fins.trailing_zeros() as usize % RECORDS;
                self.fins &= self.fins - 1;
                self.records[at].state = State::Landed { fin: true };
            }
            _ => self.end_left(frame),
        }
    }

    #[cold]
    fn stick(&mut self, cause: Fault) -> Fault {
        *self.fault.get_or_insert(cause)
    }

    /// The channel has ended. It may fail after the peer has ended it.
    #[cold]
    pub fn ended(&mut self, how: ChannelEnd) {
        self.stick(Fault::Ended);
        self.cut_off |= how == ChannelEnd::Failed;
        self.posting = 0;
        self.ending = Ending::Over;
        (self.refused, self.answer) = (None, None);
        self.fins = 0;
    }

    /// Fails the flow because of a bug of the caller. The first cause is kept.
    #[cold]
    pub fn fail(&mut self, what: &'static str) {
        self.stick(Fault::Misuse(what));
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The receiver's name for this connection.
    pub fn peer(&self) -> Name {
        self.terms.peer
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Writes in flight. The buffers of their messages are in use until they complete.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether no part is pending or in flight. A receiver that has closed requests no retransmission.
    pub fn is_quiet(&self) -> bool {
        let lacks = self.ending == Ending::Open && self.lacks_parts();
        self.posting == 0 && self.in_flight == 0 && !lacks
    }

    /// Whether the sender waits for the receiver: for an advert or credit after a refused `isend`, for a DONE, or for CLOSE.
    #[inline]
    pub fn waits(&self) -> bool {
        match self.ending {
            Ending::Open => {
                self.refused_caller
                    || !self.unadvertised.is_empty()
                    || self.terms.needs_done() && self.awaits_done()
            }
            Ending::Closing { peer: false } | Ending::Closed => true,
            Ending::Closing { peer: true } | Ending::PeerClosed | Ending::Over => false,
        }
    }

    /// Whether adverts have come for messages that were not submitted yet, and may still be.
    pub fn is_lent(&self) -> bool {
        self.ending == Ending::Open && self.fault.is_none() && self.adverts.is_any()
    }

    /// Whether a message has landed that no DONE covers yet.
    fn awaits_done(&self) -> bool {
        let mut used = ALL_FREE & !self.free;
        while used != 0 {
            let record = &self.records[used.trailing_zeros() as usize % RECORDS];
            if record.state == (State::Landed { fin: false })
                && !self.peer_done.is_after(record.line)
            {
                return true;
            }
            used &= used - 1;
        }
        false
    }

    /// The data rails of a message that was not reported yet; empty if it goes inline.
    pub fn rails(&self, message: MessageId) -> RailSet {
        let at = message.index() % RECORDS;
        let record = &self.records[at];
        match record.state {
            State::Free | State::Inline | State::Sent => RailSet::NONE,
            State::Writing(_) | State::FinPending | State::Landed { .. } => {
                self.rails_of(at, record.len)
            }
        }
    }

    /// All memory of the flow.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.records)
            + size_of_val(&*self.rails)
            + self.adverts.memory_bytes()
    }

    /// Whether immediates have room for the message's length.
    #[inline]
    const fn carries_length(&self) -> bool {
        matches!(self.terms.immediates, ImmediateWidth::Eight)
    }
}

/// The result of matching a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Line(Line),
    /// The advert of its receive has not come.
    Unadvertised,
    Nothing,
}

#[inline]
const fn bit_of(message: MessageId) -> u64 {
    1 << (message.index() % RECORDS)
}
