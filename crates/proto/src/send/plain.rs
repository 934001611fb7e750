//! The common case of sending, in few instructions: a message that fills a receive posted alone, in one part, on a
//! connection of up to 4 rails; or, a look later, one that is shorter than that.
//!
//! What is said here is what the general form would say, or nothing; then the general form is asked, and nothing has
//! changed that it would not change itself.

use std::ops::Range;

use super::{SendFlow, Slot, State};
use crate::bits::low16;
use crate::flow::{FlowParameters, LineSource, Path};
use crate::ids::Line;
use crate::immediate::Immediate;
use crate::limits::MAX_RING;
use crate::wire::{FIRST_KEY, Form, LineFormat, PlainForm, is_sealed_as};

/// Where such a message goes. It is submitted when [`SendFlow::injected_plainly`] or [`SendFlow::posted_plainly`] says
/// so.
#[derive(Clone, Copy, Debug)]
pub struct PlainMessage {
    pub line: Line,
    pub len: u64,
    place: u32,
    /// As in [`Message`](super::Message).
    pub address: u64,
    /// Of the rail that it takes.
    pub key: u64,
    pub immediate: Immediate,
    /// The receive may be filled by a copy.
    pub copies: bool,
}

/// What of a connection's terms the common case needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    span: Span,
    /// The same, for when a group has ended.
    whole_span: Span,
    pub(super) form: PlainForm,
    /// The immediate of line 0: a message that fills its receive needs no length.
    immediate: Immediate,
}

/// Which messages are plain, while any is.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// Those below this length.
    end: u64,
    /// And those of 1 to so many bytes are short.
    short: u64,
    /// And those from this length on, of so many lengths, are long.
    long_from: u64,
    longs: u64,
}

impl Terms {
    pub(super) fn of(parameters: &FlowParameters) -> Self {
        let plain = parameters.rails <= MOST_RAILS;
        let end = if plain { parameters.immediates_end(true) } else { 0 };
        let span = Span { end, ..Span::default() };
        Self {
            span,
            whole_span: span,
            form: PlainForm::new(parameters.window.is_grouped()),
            immediate: Immediate::new(parameters.comm, Line::FIRST, 0, true, true, 0),
        }
    }

    /// A group has begun: its tags choose.
    pub(super) fn pause(&mut self) {
        self.span = Span::default();
    }

    /// The group has ended.
    pub(super) fn resume(&mut self) {
        self.span = self.whole_span;
    }

    /// The flow has failed, or ends.
    pub(super) fn end(&mut self) {
        (self.span, self.whole_span) = (Span::default(), Span::default());
    }
}

impl SendFlow {
    /// Messages of 1 to `short` bytes are short, and those of lengths in `long` are long, where adverts have 6 words and messages are
    /// plain at all.
    pub fn set_spans(&mut self, short: u64, long: Range<u64>) {
        let span = &mut self.plain.whole_span;
        let is_narrow = self.parameters.format() == LineFormat::Words6;
        span.short = if is_narrow { short.min(span.end.saturating_sub(1)) } else { 0 };
        span.long_from = long.start;
        span.longs = if is_narrow { long.end.min(span.end).saturating_sub(long.start) } else { 0 };
        if self.plain.span.end > 0 {
            self.plain.span = self.plain.whole_span;
        }
    }

    /// Whether a message of `len` bytes is short, and [`match_filling`](Self::match_filling) may find its receive.
    #[inline(always)]
    pub fn is_short(&self, len: u64) -> bool {
        len.wrapping_sub(1) < self.plain.span.short
    }

    /// The same for long.
    #[inline(always)]
    pub fn is_long(&self, len: u64) -> bool {
        len.wrapping_sub(self.plain.span.long_from) < self.plain.span.longs
    }

    /// No message is plain any more.
    pub fn end_plainly(&mut self) {
        self.plain.end();
    }

    /// [`match_plainly`](Self::match_plainly) for a message that [is short](Self::is_short) or [long](Self::is_long), and fills its
    /// receive.
    #[inline(always)]
    pub fn match_filling<S: LineSource>(
        &mut self,
        mailbox: &S,
        tag: i32,
        len: u64,
        rail: &u32,
    ) -> Option<PlainMessage> {
        assert!(self.is_short(len) || self.is_long(len), "asked before");
        self.match_head::<S, 6, false>(mailbox, tag, len, rail)
    }

    /// The receive for a message of `len` bytes that takes `rail`, looked up late, if both are plain, where adverts have `WORDS` words: 6 or 8
    /// ([`LineFormat`]): one that it fills, or a longer one where 8 bytes of immediates tell the length. Nothing is submitted yet.
    #[inline(always)]
    pub fn match_plainly<S: LineSource, const WORDS: usize>(
        &mut self,
        mailbox: &S,
        tag: i32,
        len: u64,
        rail: &u32,
    ) -> Option<PlainMessage> {
        if len >= self.plain.span.end {
            return None;
        }
        self.match_head::<S, WORDS, true>(mailbox, tag, len, rail)
    }

    /// `WITHIN`: the message may be shorter than its receive.
    #[inline(always)]
    fn match_head<S: LineSource, const WORDS: usize, const WITHIN: bool>(
        &mut self,
        mailbox: &S,
        tag: i32,
        len: u64,
        rail: &u32,
    ) -> Option<PlainMessage> {
        let line = self.first;
        let place = self.window().place(line);
        if self.slots[(place % MAX_RING) as usize].state != State::Free {
            return None;
        }
        // Word by word, so that few are held at a time.
        let word = mailbox.reader(place);
        let head = word(0);
        let form = word(1);
        let posted = word(3);
        let holds = posted == len || WITHIN && posted > len;
        if !holds || !self.plain.form.fits(form, tag) {
            return None;
        }
        let immediate = if posted == len {
            self.plain.immediate
        } else if self.parameters.path == (Path::Immediate { eight: true }) {
            self.plain.immediate.of_length(u32::try_from(len).ok()?)
        } else {
            return None;
        };
        let words: [u64; WORDS] = std::array::from_fn(|index| match index {
            0 => head,
            1 => form,
            3 => posted,
            _ => word(index),
        });
        // What fits is an advert, which validates looks for otherwise. A line of another number has another seal.
        if !is_sealed_as(line, self.parameters.nonce, &words) {
            return None;
        }
        // Mostly the adverts of a write say the same.
        let ahead =
            Form::from_word(form).done().wrapping_sub(low16(self.peer_done.number().into()));
        if ahead != 0 && !self.hear(line, ahead.into()) {
            return None;
        }
        Some(PlainMessage {
            line,
            len,
            place,
            address: words[2],
            key: key_of(&words, *rail),
            immediate: immediate.of_line(line),
            copies: Form::from_word(form).copies(),
        })
    }

    /// The advert of `line` says that so many lines more are done. False: that cannot be.
    #[inline(always)]
    fn hear(&mut self, line: Line, ahead: u32) -> bool {
        if self.seen.is_after(line) {
            return true;
        }
        if ahead <= line.distance(self.peer_done) {
            self.peer_done = self.peer_done.plus(ahead);
        } else if self.is_behind(ahead) {
            // Sealed before a done that travelled alone.
            self.counters.stale_dones += 1;
        } else {
            return false;
        }
        self.seen = line.plus(1);
        true
    }

    /// The message of [`match_plainly`](Self::match_plainly) has left in one write that has no completion.
    #[inline(always)]
    pub fn injected_plainly(&mut self, message: &PlainMessage) {
        self.take_plainly(message, State::Written);
    }

    /// The message that was submitted last could not be posted: as if it had not been submitted.
    #[cold]
    pub fn take_back(&mut self) {
        self.first = Line::new(self.first.number().wrapping_sub(1));
        self.slot_mut(self.first).state = State::Free;
    }

    /// It is under way in one write that completes.
    #[inline(always)]
    pub fn posted_plainly(&mut self, message: &PlainMessage) {
        self.take_plainly(message, State::Whole);
    }

    /// Which rail it takes is told by fins alone, and it needs none.
    #[inline(always)]
    fn take_plainly(&mut self, message: &PlainMessage, state: State) {
        let slot = &mut self.slots[(message.place % MAX_RING) as usize];
        *slot = Slot::new(message.len, 0, 0, state);
        self.first = message.line.plus(1);
    }

    /// [`written`](Self::written) for a message of [`posted_plainly`](Self::posted_plainly). False: it is none, and nothing has
    /// changed.
    #[inline(always)]
    pub fn written_plainly(&mut self, line: Line) -> bool {
        let slot = self.slot_mut(line);
        let whole = slot.state == State::Whole;
        if whole {
            slot.state = State::Written;
        }
        whole
    }

    /// The same for what is known to be one. It has its line until then.
    #[inline(always)]
    pub fn whole_written(&mut self, line: Line) {
        let slot = self.slot_mut(line);
        assert_eq!(slot.state, State::Whole, "a line is kept while its write is in flight");
        slot.state = State::Written;
    }

    /// [`poll`](Self::poll) for the line whose low bits a request carries: the length of a message that is done. None:
    /// find the line, and ask for it.
    #[inline(always)]
    pub fn poll_plainly(&mut self, request: u16) -> Option<u64> {
        let behind = u32::from(low16(self.first.number().into()).wrapping_sub(request));
        if behind.wrapping_sub(1) >= self.window().lines() {
            return None;
        }
        // Of a group that is not full, lines past `first` may be done.
        let owed = self.first.distance(self.peer_done).cast_signed();
        let waits = owed >= behind.cast_signed();
        if waits && !self.parameters.sends_arrive_when_complete {
            return None;
        }
        let slot = self.slot_mut(Line::new(request.into()));
        if slot.state != State::Written {
            return None;
        }
        slot.state = State::Free;
        Some(slot.len)
    }

    /// [`poll_plainly`](Self::poll_plainly), after a look into the mailbox where that can tell more.
    #[inline(always)]
    pub fn look_plainly<S: LineSource>(&mut self, mailbox: &S, request: u16) -> Option<u64> {
        if self.slot(Line::new(request.into())).state != State::Written {
            return None;
        }
        if self.is_told(mailbox) {
            self.observe(mailbox);
        }
        self.poll_plainly(request)
    }

    /// Whether the message whose low bits a request carries is submitted and not done, and nothing has failed. False: find
    /// the line, and ask for it.
    #[inline(always)]
    pub fn waits_plainly(&self, request: u16) -> bool {
        let behind = u32::from(low16(self.first.number().into()).wrapping_sub(request));
        behind.wrapping_sub(1) < self.window().lines()
            && self.failed.is_none()
            && self.slot(Line::new(request.into())).state != State::Free
    }
}

/// Connections of more rails have longer lines.
const MOST_RAILS: usize = LineFormat::Words8.keys();

/// The key of `rail`, without an index that would keep the words in memory.
#[inline(always)]
fn key_of<const WORDS: usize>(words: &[u64; WORDS], rail: u32) -> u64 {
    let (last, others) = (words[WORDS - 1], (0..).zip(&words[FIRST_KEY..WORDS - 1]));
    others.fold(last, |key, (index, word)| if index == rail { *word } else { key })
}
