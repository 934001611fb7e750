//! The sender's flow: a message finds its advert, its parts travel, and it is done when they are known to be there.
//!
//! ```text
//!        submit            written (last part)                    done passed the line,
//!  Free ────────▶ Posting ────────┬──────────────────────▶ Written ── or nobody need wait ─▶ poll: Done, Free
//!                                 └▶ Fin ── fin_written ──▶
//! ```
//!
//! Laws: messages match receives in posting order; tags choose only inside the first unfinished group. A done is
//! believed only as far as messages were submitted. The first cause of failure sticks.

mod bundle;
mod eager;
mod group;
mod plain;
mod told;

use crate::error::ProtocolError;
use crate::fence::Begun;
use crate::flow::{FlowParameters, LineSource, Path};
use crate::ids::{CommId, Line};
use crate::immediate::Immediate;
use crate::limits::MAX_RING;
use crate::mailbox::Mailbox;
use crate::parts::Part;
use crate::window::Window;
use crate::wire::{Form, SHORT_LINE_WORDS, short_line};

pub use bundle::BundleWrite;
use bundle::Bundles;
use eager::Eager;
pub use eager::EagerWrite;
use group::Group;
pub use plain::PlainMessage;

/// One direction of one connection, at the side that called connect.
#[derive(Debug)]
pub struct SendFlow {
    mailbox: Mailbox,
    /// The first line of the first unfinished group.
    first: Line,
    /// Adverts before this one have been read for their done.
    seen: Line,
    /// Lines before this one are complete at the receiver, as far as we were told.
    peer_done: Line,
    parameters: FlowParameters,
    /// Messages that fill their receives take immediates below this length.
    whole_end: u64,
    /// Messages that do not, below this one.
    short_end: u64,
    group: Group,
    failed: Option<ProtocolError>,
    failed_fin: Option<FailedFin>,
    /// The line of a message that was refused: taken, and not written to.
    refused: Option<Line>,
    counters: SendCounters,
    /// Some eager message has no line yet.
    behind: bool,
    eager: Option<Box<Eager>>,
    bundles: Bundles,
    /// What the common case needs to know, when it applies at all.
    plain: plain::Terms,
    /// As long as the longest ring, so that a masked line is always inside.
    slots: Box<[Slot; MAX_RING as usize]>,
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Dones older than the newest: normal, since control writes overtake each other.
    pub stale_dones: u64,
    /// Dones past the messages submitted: the peer is wrong.
    pub violations: u64,
}

/// The answer to [`SendFlow::submit`].
#[derive(Debug)]
pub enum Submit<'a> {
    /// No advert for it yet, or its place in the ring still belongs to an earlier message that was not polled.
    NotYet,
    Accepted(Message<'a>),
}

/// Where a message goes, for the posts that carry it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub line: Line,
    /// Where the receive begins, as the receiver's provider wants it named.
    pub address: u64,
    /// One per data rail.
    pub keys: &'a [u64],
    /// After truncation, where that was agreed.
    pub len: u64,
    pub path: Path,
    /// The message fills its receive.
    pub whole: bool,
    /// It may be held back, to travel in a bundle: see [`SendFlow::hold`].
    pub may_be_held: bool,
    pub comm: CommId,
}

impl Message<'_> {
    /// What rides with a part, on the path of immediates.
    #[inline]
    pub fn immediate(&self, part: &Part) -> Immediate {
        let length = match self.path {
            Path::Immediate { eight: true } if !self.whole => crate::bits::low32(self.len),
            _ => 0,
        };
        Immediate::new(self.comm, self.line, part.index, part.last, self.whole, length)
    }
}

/// The answer to [`SendFlow::written`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// More writes of this message are under way.
    Pending,
    /// All parts have completed: now [`SendFlow::fin_words`] go into the fin ring, at the line's place.
    NeedsFin,
    /// All writes have completed; ask [`SendFlow::poll`].
    Written,
}

/// The answer to [`SendFlow::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPoll {
    Pending,
    /// Said once: the line's place is free again.
    Done {
        len: u64,
    },
    Failed(ProtocolError),
}

/// A fin that tells the receiver of a message that was not sent, and the place of the fin ring that is kept for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedFin {
    pub place: u32,
    pub words: [u64; SHORT_LINE_WORDS],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Slot {
    len: u64,
    state: State,
    /// Nothing: with it the rest is one word, and set at once.
    _spare: u8,
    carried: u16,
    operations: u32,
}

impl Slot {
    #[inline(always)]
    const fn new(len: u64, operations: u32, carried: u16, state: State) -> Self {
        Self { len, state, _spare: 0, carried, operations }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Posting {
        fin: bool,
    },
    /// The same in one write, which has no fin behind it and is not counted.
    Whole,
    Fin,
    Written,
}

const MISCOUNTED: &str = "more writes have completed than were posted";

impl SendFlow {
    pub fn new(parameters: FlowParameters) -> Result<Self, ProtocolError> {
        parameters.validate()?;
        let first = parameters.first_line;
        Ok(Self {
            mailbox: Mailbox::new(&parameters),
            first,
            seen: first,
            peer_done: first,
            whole_end: parameters.immediates_end(true),
            short_end: parameters.immediates_end(false),
            parameters,
            group: Group::default(),
            failed: None,
            failed_fin: None,
            refused: None,
            counters: SendCounters::default(),
            behind: false,
            eager: None,
            bundles: Bundles::default(),
            plain: plain::Terms::of(&parameters),
            slots: Box::new([Slot::default(); MAX_RING as usize]),
        })
    }

    /// Finds the receive for a message of `len` bytes. An error sticks; for a message that is too long, see also
    /// [`failed_fin`](Self::failed_fin).
    #[inline(always)]
    pub fn submit<S: LineSource>(
        &mut self,
        mailbox: &S,
        tag: i32,
        len: u64,
    ) -> Result<Submit<'_>, ProtocolError> {
        if let Some(cause) = self.failed {
            return Err(cause);
        }
        if self.behind {
            self.place_eager(mailbox)?;
            if self.behind && self.group.count == 0 {
                return Ok(Submit::NotYet);
            }
        }
        let mut line = self.first;
        let alone = self.group.count == 0;
        if alone && !self.read_advert(mailbox, line) {
            return Ok(Submit::NotYet);
        }
        if alone && self.mailbox.form().is_single_advert() {
            let of_another = self.window().is_grouped() && self.mailbox.form().tag() != tag;
            if of_another || self.slot(line).state != State::Free {
                return Ok(Submit::NotYet);
            }
            self.first = line.plus(1);
        } else {
            match self.line_of_group(mailbox, tag)? {
                Some(found) => line = found,
                None => return Ok(Submit::NotYet),
            }
        }
        self.accept(line, len)
    }

    /// The advert copied last is the one for this message.
    #[inline(always)]
    fn accept(&mut self, line: Line, len: u64) -> Result<Submit<'_>, ProtocolError> {
        let posted = self.mailbox.posted();
        let mut len = len;
        if len > posted {
            if !self.mailbox.form().cuts() {
                return Err(self.refuse(line, len, posted));
            }
            len = posted;
        }
        let whole = len == posted;
        let path = self.path_of(len, whole);
        if path == Path::Fin && !self.parameters.fins {
            self.refused = Some(line);
            return Err(self.stick(ProtocolError::Unsendable { len }));
        }
        let state = State::Posting { fin: path == Path::Fin };
        let may_be_held = self.may_hold(line, len);
        *self.slot_mut(line) = Slot::new(len, 0, 0, state);
        Ok(Submit::Accepted(Message {
            line,
            address: self.mailbox.address(),
            keys: self.mailbox.keys(),
            len,
            path,
            whole,
            may_be_held: self.mailbox.form().copies() && may_be_held,
            comm: self.parameters.comm,
        }))
    }

    /// Immediates, if they can tell the size and 64 parts can hold the message.
    #[inline(always)]
    fn path_of(&self, len: u64, whole: bool) -> Path {
        let end = if whole { self.whole_end } else { self.short_end };
        if len < end { self.parameters.path } else { Path::Fin }
    }

    #[cold]
    fn refuse(&mut self, line: Line, sent: u64, posted: u64) -> ProtocolError {
        let words = short_line(self.parameters.nonce, line, Form::fin(true), [0, sent]);
        self.refused = Some(line);
        self.failed_fin = Some(FailedFin { place: self.window().lone_place(), words });
        self.stick(ProtocolError::TooLong { line, sent, posted })
    }

    /// Says with how many writes a message travels, once, before the first of them can complete, and the rails they
    /// take as bits.
    #[inline]
    pub fn posted(&mut self, line: Line, operations: u32, carried: u16) {
        let slot = self.slot_mut(line);
        slot.operations += operations;
        slot.carried |= carried;
    }

    /// The message has left in one write that has no completion, on this rail: the provider has its bytes already.
    #[inline]
    pub fn injected(&mut self, line: Line, rail: u32) {
        let slot = self.slot_mut(line);
        slot.carried |= 1 << (rail & 15);
        slot.state = State::Written;
    }

    /// One write of the message has completed well.
    #[inline]
    pub fn written(&mut self, line: Line) -> WriteOutcome {
        if self.written_plainly(line) {
            return WriteOutcome::Written;
        }
        let slot = self.slot_mut(line);
        let State::Posting { fin } = slot.state else { return WriteOutcome::Pending };
        let Some(left) = slot.operations.checked_sub(1) else {
            return self.miscounted();
        };
        slot.operations = left;
        if left > 0 {
            WriteOutcome::Pending
        } else if fin {
            slot.state = State::Fin;
            WriteOutcome::NeedsFin
        } else {
            slot.state = State::Written;
            WriteOutcome::Written
        }
    }

    /// More writes have completed than were posted: a bug of ours, and nothing that was counted is known any more.
    #[cold]
    fn miscounted(&mut self) -> WriteOutcome {
        debug_assert!(false, "{MISCOUNTED}");
        self.stick(ProtocolError::Misuse(MISCOUNTED));
        WriteOutcome::Pending
    }

    /// Whether the parts of a message have all completed, and its fin has not.
    pub fn needs_fin(&self, line: Line) -> bool {
        self.slot(line).state == State::Fin
    }

    /// The fin line of a message whose parts have all completed, for place [`Window::place`] of the fin ring.
    pub fn fin_words(&self, line: Line) -> [u64; SHORT_LINE_WORDS] {
        let slot = self.slot(line);
        let carried = if slot.len == 0 { 0 } else { slot.carried };
        let rest = [u64::from(carried), slot.len];
        short_line(self.parameters.nonce, line, Form::fin(false), rest)
    }

    /// The write of the fin line has completed well.
    pub fn fin_written(&mut self, line: Line) {
        let slot = self.slot_mut(line);
        if slot.state == State::Fin {
            slot.state = State::Written;
        }
    }

    /// Asks for a message; done is said once.
    #[inline]
    pub fn poll(&mut self, line: Line) -> SendPoll {
        let arrived = self.parameters.sends_arrive_when_complete || self.peer_done.is_after(line);
        let slot = self.slot_mut(line);
        if arrived && slot.state == State::Written {
            slot.state = State::Free;
            return SendPoll::Done { len: slot.len };
        }
        match self.failed {
            Some(cause) => SendPoll::Failed(cause),
            None => SendPoll::Pending,
        }
    }

    /// Fails the flow from outside. The first cause stays.
    pub fn fail(&mut self, cause: ProtocolError) {
        self.stick(cause);
    }

    pub fn failure(&self) -> Option<ProtocolError> {
        self.failed
    }

    /// The lines that were begun. Submit nothing any more.
    pub fn begun(&self) -> Begun {
        let first = self.bundles.dropped.unwrap_or(self.first);
        Begun::of(first, self.group.taken, self.refused)
    }

    /// The same when no write is in flight, failed ones included, and none will be.
    pub fn begun_and_drained(&self) -> Begun {
        // What has not failed has arrived, and will be seen; an arrival that no completion proves may be yet to come.
        let failed = matches!(self.failed, Some(ProtocolError::Transport { .. }));
        let proves = self.parameters.sends_arrive_when_complete;
        if failed && proves { Begun::over(self.first) } else { self.begun() }
    }

    /// What to write into the receiver's fin ring, so that it learns of a message that was too long.
    pub fn failed_fin(&self) -> Option<FailedFin> {
        self.failed_fin
    }

    /// The post of [`failed_fin`](Self::failed_fin) was accepted.
    pub fn failed_fin_posted(&mut self) {
        self.failed_fin = None;
    }

    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    pub fn parameters(&self) -> &FlowParameters {
        &self.parameters
    }

    /// The memory of the flow, all in all.
    pub fn memory_bytes(&self) -> usize {
        let eager = self.eager.as_ref().map_or(0, |eager| size_of_val(&**eager));
        size_of::<Self>() + size_of_val(&*self.slots) + eager
    }

    /// The oldest line that no message has taken.
    #[inline]
    pub fn submitted(&self) -> Line {
        self.first.plus(self.group.taken.trailing_ones())
    }

    /// Whether a message holds the place of `line`: it was submitted, and not yet said to be done.
    pub fn holds(&self, line: Line) -> bool {
        self.slot(line).state != State::Free
    }

    /// The receiver's cumulative done, as far as we were told.
    pub fn peer_done(&self) -> Line {
        self.peer_done
    }

    #[cold]
    fn stick(&mut self, cause: ProtocolError) -> ProtocolError {
        self.plain.end();
        self.bundles.end();
        *self.failed.get_or_insert(cause)
    }

    #[inline]
    fn window(&self) -> Window {
        self.parameters.window
    }

    #[inline]
    fn slot(&self, line: Line) -> &Slot {
        &self.slots[(self.window().place(line) % MAX_RING) as usize]
    }

    #[inline]
    fn slot_mut(&mut self, line: Line) -> &mut Slot {
        &mut self.slots[(self.window().place(line) % MAX_RING) as usize]
    }
}
