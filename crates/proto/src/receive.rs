//! The receiver's flow: receives become adverts, parts arrive, and what is complete is told to the sender as done.
//!
//! ```text
//!        post               arrived (last missing part) or read_fins         poll: Done
//!  Free ──────▶ Incomplete ──────────────────────────────────────▶ Complete ───────────▶ Free
//!                  │ next_write, wrote: advertised
//! ```
//!
//! Laws: at most W lines lie between the oldest incomplete one and the newest. An immediate names a line modulo 1024;
//! outside the advertised window it is late and dropped. A line is complete when its last part is known and all before
//! it are there. The first cause of failure sticks.

use crate::bits::{count32, low8, low16};
use crate::error::{ProtocolError, Violation};
use crate::flow::{FlowParameters, LineSink, LineSource, Path};
use crate::ids::{Line, RESIDUES};
use crate::immediate::Immediate;
use crate::limits::{LONE_DONE_IDLE_TURNS, MAX_GROUP};
use crate::window::Window;
use crate::wire::{Form, Kind, LineFormat, SHORT_LINE_WORDS};
use crate::wire::{body, head_line, seal, short_line, validates};

/// One direction of one connection, at the side that called accept.
#[derive(Debug)]
pub struct ReceiveFlow {
    /// Lines before this one are complete.
    done: Line,
    /// Lines before this one have been advertised.
    advertised: Line,
    /// The line the next receive takes.
    next: Line,
    /// Adverts before this one are to be written without asking again whether it is time.
    flush_to: Line,
    /// The newest done that a post has taken along.
    told: Line,
    parameters: FlowParameters,
    /// Turns of progress that brought nothing while a done is owed.
    idle_turns: u32,
    pace: Pace,
    lone_in_flight: bool,
    unretired: u32,
    /// Word 0 of the failure that was read.
    failure_head: u64,
    failed: Option<ProtocolError>,
    counters: ReceiveCounters,
    slots: Box<[Slot]>,
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Immediates for lines that are not outstanding.
    pub late: u64,
    /// Parts of an outstanding line that were there already.
    pub duplicates: u64,
    /// Parts that cannot be.
    pub violations: u64,
}

/// When adverts and dones are written: settings of one end, which the other need not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Adverts may wait for one another while the sender cannot run dry.
    pub adverts_wait: bool,
    /// Idle turns of progress before a done that is owed travels alone.
    pub lone_done_turns: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { adverts_wait: true, lone_done_turns: LONE_DONE_IDLE_TURNS }
    }
}

/// A receive to post. `keys` has one for each data rail.
#[derive(Clone, Copy, Debug)]
pub struct Receive<'a> {
    pub address: u64,
    pub len: u64,
    pub tag: i32,
    pub keys: &'a [u64],
}

/// Adverts that travel in one write: `count` places from `place` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertWrite {
    pub place: u32,
    pub count: u32,
    done: Line,
}

/// A done that travels alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneDone {
    pub words: [u64; SHORT_LINE_WORDS],
    done: Line,
}

/// What an immediate was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Progress,
    Complete(Line),
    /// For a line that is not outstanding: dropped.
    Late,
    /// A part that was there already: dropped.
    Duplicate,
    /// A part that cannot be: dropped.
    Violation,
}

/// The answer to [`ReceiveFlow::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePoll {
    Pending,
    /// Said once: the lines' places are free again. Their sizes can be read until the next post.
    Done {
        count: u32,
    },
    Failed(ProtocolError),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The check so far, over all but words 0 and 1, which are known only when the advert travels.
    body: u64,
    form: Form,
    len: u64,
    /// A bit per part that is there.
    parts: u64,
    /// The sum of the parts' lengths; of a complete line, its size.
    size: u64,
    /// A bit per rail that brought bytes.
    carried: u16,
    /// The index of the last part, or `NO_LAST`.
    last: u8,
    /// Of the first line of a group: how many of its lines are incomplete.
    left: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Incomplete,
    Complete,
}

const NO_LAST: u8 = 64;

impl Slot {
    const FREE: Self = Self {
        body: 0,
        form: Form::from_word(0),
        len: 0,
        parts: 0,
        size: 0,
        carried: 0,
        last: NO_LAST,
        left: 0,
        state: State::Free,
    };
}

impl ReceiveFlow {
    pub fn new(parameters: FlowParameters) -> Result<Self, ProtocolError> {
        parameters.validate()?;
        let first = parameters.first_line;
        Ok(Self {
            done: first,
            advertised: first,
            next: first,
            flush_to: first,
            told: first,
            idle_turns: 0,
            pace: Pace::default(),
            lone_in_flight: false,
            unretired: 0,
            failure_head: 0,
            failed: None,
            counters: ReceiveCounters::default(),
            slots: vec![Slot::FREE; parameters.window.lines() as usize].into_boxed_slice(),
            parameters,
        })
    }

    /// Posts a receive, or a group of them, and answers its first line; none while the window has no room. `cut` says
    /// that longer messages are to be truncated. The adverts are put into `sink`, still unsealed.
    #[inline]
    pub fn post<S: LineSink>(
        &mut self,
        sink: &mut S,
        receives: &[Receive<'_>],
        cut: bool,
    ) -> Result<Option<Line>, ProtocolError> {
        if let Some(cause) = self.failed {
            return Err(cause);
        }
        let (first, count) = (self.next, receives.len());
        if count == 0 || count > MAX_GROUP {
            return Err(ProtocolError::Misuse(
                "a receive is posted alone or in a group of up to 8",
            ));
        }
        let room = self.window().outstanding() - first.distance(self.done);
        if count32(count) > room {
            return Ok(None);
        }
        for (index, receive) in (0..).zip(receives) {
            if receive.keys.len() != self.parameters.rails {
                return Err(ProtocolError::Misuse("a receive has one key for each data rail"));
            }
            if self.slot(first.plus(index)).state != State::Free {
                return Ok(None);
            }
        }
        for (index, receive) in receives.iter().enumerate() {
            let form = Form::advert(index, count, cut, receive.tag);
            // A loop of fixed length in each arm.
            match self.parameters.format() {
                LineFormat::Words8 => self.post_line::<S, 6>(sink, receive, form),
                LineFormat::Words16 => self.post_line::<S, 14>(sink, receive, form),
                LineFormat::Words24 => self.post_line::<S, 22>(sink, receive, form),
            }
        }
        self.unretired += 1;
        Ok(Some(first))
    }

    #[inline]
    fn post_line<S: LineSink, const WORDS: usize>(
        &mut self,
        sink: &mut S,
        receive: &Receive<'_>,
        form: Form,
    ) {
        let (line, len) = (self.next, receive.len);
        let mut words = [0; WORDS];
        (words[0], words[1]) = (receive.address, len);
        for (word, key) in words[2..].iter_mut().zip(receive.keys) {
            *word = *key;
        }
        sink.store_words(self.window().place(line), 2, words);
        let body = body(self.parameters.nonce, &words);
        let left = if form.index() == 0 { low8(form.count().into()) } else { 0 };
        *self.slot_mut(line) =
            Slot { body, form, len, left, state: State::Incomplete, ..Slot::FREE };
        self.next = line.plus(1);
    }

    /// The adverts to write now, sealed with the newest done; none while the sender cannot run dry.
    ///
    /// Ask until there is none: a run ends where the ring does. A post that is refused is asked for again.
    #[inline]
    pub fn next_write<S: LineSink>(&mut self, sink: &mut S) -> Option<AdvertWrite> {
        let unsent = self.next.distance(self.advertised);
        // Once begun, a flush goes through to its end: half a group at the sender would stay invisible.
        let begun = self.flush_to != self.advertised;
        let may_wait = self.pace.adverts_wait && !begun;
        if unsent == 0 || may_wait && unsent < self.advertised.distance(self.done) {
            return None;
        }
        self.flush_to = self.next;
        let first = self.advertised;
        let (place, done) = (self.window().place(first), self.done);
        self.seal_line(sink, place, first);
        let count = if unsent == 1 { 1 } else { self.seal_more(sink, place, unsent) };
        Some(AdvertWrite { place, count, done })
    }

    #[inline(never)]
    fn seal_more<S: LineSink>(&self, sink: &mut S, place: u32, unsent: u32) -> u32 {
        let count = unsent.min(self.window().run(self.advertised));
        for index in 1..count {
            self.seal_line(sink, place + index, self.advertised.plus(index));
        }
        count
    }

    #[inline]
    fn seal_line<S: LineSink>(&self, sink: &mut S, place: u32, line: Line) {
        let slot = self.slot(line);
        let form = slot.form.with_done(self.done);
        sink.store_words(place, 0, [seal(slot.body, line, form), form.word()]);
    }

    /// The post of these adverts was accepted.
    #[inline]
    pub fn wrote(&mut self, write: AdvertWrite) {
        self.advertised = self.advertised.plus(write.count);
        self.tell(write.done);
    }

    /// A part has arrived on a rail. `completion_len` is what the completion says; it counts where lengths are true.
    #[inline]
    pub fn arrived(&mut self, rail: u32, immediate: Immediate, completion_len: u64) -> Arrival {
        let ahead = immediate.residue().wrapping_sub(self.done.number()) % RESIDUES;
        if ahead >= self.advertised.distance(self.done) {
            self.counters.late += 1;
            return Arrival::Late;
        }
        let line = self.done.plus(ahead);
        let slot = self.slot_mut(line);
        let part = immediate.part();
        let bit = 1 << part;
        if slot.state != State::Incomplete || slot.parts & bit != 0 {
            self.counters.duplicates += 1;
            return Arrival::Duplicate;
        }
        if immediate.is_last() {
            if slot.last != NO_LAST || slot.parts >> part != 0 {
                return self.violation();
            }
            slot.last = part;
        } else if part >= slot.last {
            return self.violation();
        }
        slot.parts |= bit;
        slot.size = slot.size.saturating_add(completion_len);
        slot.carried |= 1 << (rail & 15);
        if slot.last == NO_LAST || slot.parts != u64::MAX >> (63 - slot.last) {
            return Arrival::Progress;
        }
        let (len, sum, carried) = (slot.len, slot.size, slot.carried);
        let size = match self.parameters.path {
            _ if immediate.is_whole() => len,
            Path::Immediate { eight: true } => u64::from(immediate.length()),
            Path::Immediate { eight: false } if self.parameters.true_lengths => sum,
            // Nothing tells the size: more than any receive has room for.
            _ => u64::MAX,
        };
        self.complete(line, size, carried)
    }

    /// All bytes of a line are there.
    #[inline]
    fn complete(&mut self, line: Line, size: u64, carried: u16) -> Arrival {
        let slot = self.slot_mut(line);
        if size > slot.len {
            let violation = Violation::Size { said: size, posted: slot.len };
            self.fail(ProtocolError::Violation(violation));
            return self.violation();
        }
        slot.size = size;
        slot.carried = if size == 0 { 0 } else { carried };
        slot.state = State::Complete;
        match slot.form.index() {
            0 => slot.left -= 1,
            index => self.slot_mut(line.plus(index.wrapping_neg())).left -= 1,
        }
        self.idle_turns = 0;
        if line == self.done {
            self.advance();
        }
        Arrival::Complete(line)
    }

    #[inline]
    fn advance(&mut self) {
        self.done = self.done.plus(1);
        while self.done != self.advertised && self.slot(self.done).state != State::Incomplete {
            self.done = self.done.plus(1);
        }
    }

    /// Reads the fin ring: the place for failures, then the oldest incomplete line and on, up to the first fin that is
    /// not there. Answers how many lines it completed.
    #[inline]
    pub fn read_fins<S: LineSource>(&mut self, fins: &S) -> u32 {
        let failure = self.window().lone_place();
        if fins.word(failure, 0) != self.failure_head {
            self.read_failure(fins, failure);
        }
        let mut completed = 0;
        let mut line = self.done;
        while line != self.advertised {
            if self.slot(line).state == State::Incomplete {
                let place = self.window().place(line);
                if head_line(fins.word(place, 0)) != line || !self.read_fin(fins, place, line) {
                    break;
                }
                completed += 1;
            }
            line = line.plus(1);
        }
        completed
    }

    fn read_fin<S: LineSource>(&mut self, fins: &S, place: u32, line: Line) -> bool {
        let Some(words) = self.copy_fin(fins, place) else { return false };
        if head_line(words[0]) != line {
            return false;
        }
        if !Form::from_word(words[1]).is(Kind::Fin) {
            self.fail(ProtocolError::Violation(Violation::LineKind));
            return false;
        }
        matches!(self.complete(line, words[3], low16(words[2])), Arrival::Complete(_))
    }

    /// The sender gave up on a message: it has a place of its own, since the lines before it may never complete.
    #[cold]
    fn read_failure<S: LineSource>(&mut self, fins: &S, place: u32) {
        let Some(words) = self.copy_fin(fins, place) else { return };
        self.failure_head = words[0];
        let form = Form::from_word(words[1]);
        let line = head_line(words[0]);
        if !form.is(Kind::Fin) || form.status() == 0 {
            self.fail(ProtocolError::Violation(Violation::LineKind));
        } else if line.distance(self.done) < self.advertised.distance(self.done) {
            let posted = self.slot(line).len;
            self.fail(ProtocolError::TooLong { line, sent: words[3], posted });
        } else {
            self.violation();
        }
    }

    fn copy_fin<S: LineSource>(&self, fins: &S, place: u32) -> Option<[u64; SHORT_LINE_WORDS]> {
        let words = fins.words::<SHORT_LINE_WORDS>(place);
        validates(self.parameters.nonce, &words).then_some(words)
    }

    /// Whether the sender may be waiting for a done that no post has taken along.
    ///
    /// The last outstanding receive of an endpoint is reported only when this is false: its caller may never be heard
    /// of again.
    #[inline]
    pub fn owes_done(&self) -> bool {
        !self.parameters.sends_arrive_when_complete && self.done != self.told
    }

    /// A turn of progress brought nothing for this connection.
    #[inline]
    pub fn idle_turn(&mut self) {
        if self.owes_done() {
            self.idle_turns = self.idle_turns.saturating_add(1);
        }
    }

    /// The line to write alone, into place [`Window::lone_place`] of the mailbox, always over the same control rail.
    ///
    /// None while one is in flight: two could overtake each other. `urgent` does not wait for idle turns.
    pub fn lone_done(&self, urgent: bool) -> Option<LoneDone> {
        let due = urgent || self.idle_turns >= self.pace.lone_done_turns;
        if self.lone_in_flight || !due || !self.owes_done() {
            return None;
        }
        let words = short_line(self.parameters.nonce, self.done, Form::lone_done(), [0, 0]);
        Some(LoneDone { words, done: self.done })
    }

    /// The post of this lone done was accepted. One that is refused is asked for again.
    pub fn lone_done_posted(&mut self, lone: LoneDone) {
        self.lone_in_flight = true;
        self.tell(lone.done);
    }

    /// The write of the lone done has completed.
    pub fn lone_done_written(&mut self) {
        self.lone_in_flight = false;
    }

    /// Sets when adverts and dones are written.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Whether a line is posted whose bytes have not all come.
    pub fn awaits_more(&self) -> bool {
        self.done != self.next
    }

    /// Whether adverts wait to be written.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.next != self.advertised
    }

    /// Whether the receive, or group, that began with `first` has all its bytes and was not reported yet.
    #[inline]
    pub fn is_complete(&self, first: Line) -> bool {
        let slot = self.slot(first);
        slot.left == 0 && slot.state == State::Complete
    }

    /// Asks for the receive, or group, that began with `first`; done is said once.
    #[inline]
    pub fn poll(&mut self, first: Line) -> ReceivePoll {
        let slot = self.slot_mut(first);
        if slot.left == 0 && slot.state == State::Complete {
            slot.state = State::Free;
            let count = slot.form.count();
            for index in 1..count {
                self.slot_mut(first.plus(index)).state = State::Free;
            }
            self.unretired -= 1;
            return ReceivePoll::Done { count };
        }
        match self.failed {
            Some(cause) => ReceivePoll::Failed(cause),
            None => ReceivePoll::Pending,
        }
    }

    /// How many bytes a complete line received.
    #[inline]
    pub fn size(&self, line: Line) -> u64 {
        self.slot(line).size
    }

    /// The rails that brought bytes of a complete line, as bits.
    #[inline]
    pub fn carried(&self, line: Line) -> u16 {
        self.slot(line).carried
    }

    /// How many receives (a group is one) were posted and not yet reported done.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.unretired
    }

    /// Fails the flow from outside. The first cause stays.
    #[cold]
    pub fn fail(&mut self, cause: ProtocolError) {
        self.failed.get_or_insert(cause);
    }

    pub fn failure(&self) -> Option<ProtocolError> {
        self.failed
    }

    pub fn counters(&self) -> ReceiveCounters {
        self.counters
    }

    pub fn parameters(&self) -> &FlowParameters {
        &self.parameters
    }

    /// The memory of the flow, all in all.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.slots)
    }

    /// Lines before this one are complete.
    pub fn done(&self) -> Line {
        self.done
    }

    #[inline]
    fn tell(&mut self, done: Line) {
        if done.is_after(self.told) {
            self.told = done;
        }
        self.idle_turns = 0;
    }

    #[cold]
    fn violation(&mut self) -> Arrival {
        self.counters.violations += 1;
        Arrival::Violation
    }

    #[inline]
    fn window(&self) -> Window {
        self.parameters.window
    }

    #[inline]
    fn slot(&self, line: Line) -> &Slot {
        &self.slots[line.number() as usize & (self.slots.len() - 1)]
    }

    #[inline]
    fn slot_mut(&mut self, line: Line) -> &mut Slot {
        &mut self.slots[line.number() as usize & (self.slots.len() - 1)]
    }
}
