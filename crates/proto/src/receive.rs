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

mod adverts;
mod arrivals;
mod bundle;
mod eager;
mod early;
mod exposed;
mod plain;
mod slot;
mod told;

use crate::bits::count32;
use crate::error::ProtocolError;
use crate::fence::Begun;
use crate::flow::{FlowParameters, LineSink};
use crate::ids::Line;
use crate::limits::{LONE_DONE_IDLE_TURNS, MAX_GROUP, MAX_RING};
use crate::window::Window;
use crate::wire::{Form, LineFormat, body, seal};

pub use adverts::AdvertWrite;
pub use arrivals::Arrival;
pub use bundle::Bundled;
use eager::Eager;
pub use eager::EagerArrival;
pub use plain::{PlainLook, PlainReceive};
use slot::Slot;
pub use told::LoneDone;

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
    /// The done that the newest line was sealed with.
    stamped: Line,
    parameters: FlowParameters,
    format: LineFormat,
    /// Turns of progress that brought nothing since something came or went.
    idle_turns: u32,
    pace: Pace,
    /// The slot of the line that was completed last: the size of a message that came lately.
    recent: u32,
    lone_in_flight: bool,
    /// Word 0 of the failure that was read.
    failure_head: u64,
    failed: Option<ProtocolError>,
    counters: ReceiveCounters,
    /// What the sender has begun, once it begins no more.
    begun: Option<Begun>,
    eager: Option<Box<Eager>>,
    /// The sender has a ring for bundles.
    bundles: bool,
    /// The flag of adverts whose receives may be filled by a copy; 0 once one is posted that may not.
    copies: u64,
    /// So many may be outstanding where one more is posted by [`post_plainly`](Self::post_plainly): none where that is not to be.
    plain_room: u32,
    /// The same for [`post_shortly`](Self::post_shortly).
    short_room: u32,
    /// Lines modulo the longest ring, whatever ring they travel in: so a slot is found without the window.
    slots: Box<[Slot; MAX_RING as usize]>,
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
    /// They may wait longer where what the sender has adverts for is so many bytes, as far as the newest message tells: the
    /// rails are busy with that for longer than adverts take.
    pub busy_bytes: u64,
    /// Idle turns of progress before a done that is owed travels alone.
    pub lone_done_turns: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { adverts_wait: true, busy_bytes: u64::MAX, lone_done_turns: LONE_DONE_IDLE_TURNS }
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
            stamped: first,
            idle_turns: 0,
            pace: Pace::default(),
            // Nothing is posted there before something is complete.
            recent: first.plus(u32::MAX).number() % MAX_RING,
            lone_in_flight: false,
            failure_head: 0,
            failed: None,
            counters: ReceiveCounters::default(),
            begun: None,
            eager: None,
            bundles: false,
            copies: 0,
            plain_room: if parameters.rails <= LineFormat::Words8.keys() {
                parameters.window.outstanding()
            } else {
                0
            },
            short_room: 0,
            slots: Box::new([Slot::FREE; MAX_RING as usize]),
            format: parameters.format(),
            parameters,
        })
    }

    /// Posts a receive, or a group of them, and answers its first line; none while the window has no room. `cut` says
    /// that longer messages are to be truncated. The adverts are put into `sink`, sealed with the done of
    /// this moment.
    #[inline(always)]
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
        if let ([only], LineFormat::Words6) = (receives, self.format) {
            // Nearly all: one receive, and a short line.
            if only.keys.len() == self.parameters.rails {
                if !self.slot(first).is_free() {
                    return Ok(None);
                }
                self.post_line::<S, 4>(sink, only, Form::advert(0, 1, cut, only.tag));
                return Ok(Some(first));
            }
        }
        for (index, receive) in (0..).zip(receives) {
            if receive.keys.len() != self.parameters.rails {
                return Err(ProtocolError::Misuse("a receive has one key for each data rail"));
            }
            if !self.slot(first.plus(index)).is_free() {
                return Ok(None);
            }
        }
        for (index, receive) in receives.iter().enumerate() {
            let form = Form::advert(index, count, cut, receive.tag);
            // A loop of fixed length in each arm.
            match self.format {
                LineFormat::Words6 => self.post_line::<S, 4>(sink, receive, form),
                LineFormat::Words8 => self.post_line::<S, 6>(sink, receive, form),
                LineFormat::Words16 => self.post_line::<S, 14>(sink, receive, form),
                LineFormat::Words24 => self.post_line::<S, 22>(sink, receive, form),
            }
        }
        Ok(Some(first))
    }

    #[inline(always)]
    fn post_line<S: LineSink, const WORDS: usize>(
        &mut self,
        sink: &mut S,
        receive: &Receive<'_>,
        form: Form,
    ) {
        let len = receive.len;
        // Key by key: a copy of slices would be a call of memcpy.
        let words: [u64; WORDS] = std::array::from_fn(|index| match index {
            0 => receive.address,
            1 => len,
            _ => receive.keys.get(index - 2).copied().unwrap_or(0),
        });
        self.post_words(sink, form, len, words, Slot::first_stage(form, len));
    }

    #[inline(always)]
    fn post_words<S: LineSink, const WORDS: usize>(
        &mut self,
        sink: &mut S,
        form: Form,
        len: u64,
        words: [u64; WORDS],
        stage: u8,
    ) {
        let (line, done) = (self.next, self.done);
        let slot = &mut self.slots[index_of(line)];
        // What is known is stored before anything is mixed, so that little has to be kept meanwhile.
        slot.post(form, len, stage);
        self.stamped = done;
        self.next = line.plus(1);
        let (nonce, flags) = (self.parameters.nonce, self.copies);
        let mut store = sink.writer(line, self.parameters.window.lines());
        for (index, word) in words.iter().enumerate() {
            store(2 + index, *word);
        }
        let form = form.with_done(done).with_flags(flags);
        store(1, form.word());
        let body = body(nonce, &words);
        slot.sum = body;
        store(0, seal(body, line, form));
    }

    /// Sets when adverts and dones are written.
    pub fn set_pace(&mut self, pace: Pace) {
        // Adverts of the plain form wait for somebody to look at them.
        if !pace.adverts_wait {
            self.end_plain_posts();
        }
        self.pace = pace;
    }

    /// Receives may be posted by [`post_shortly`](Self::post_shortly).
    pub fn allow_short(&mut self) {
        self.short_room = self.plain_room;
    }

    fn end_plain_posts(&mut self) {
        (self.plain_room, self.short_room) = (0, 0);
    }

    /// Whether a line is posted whose bytes have not all come.
    pub fn awaits_more(&self) -> bool {
        self.done != self.next
    }

    /// The tag of the oldest line whose bytes have not all come: with NCCL, the rank that is waited for.
    pub fn awaited_tag(&self) -> Option<i32> {
        self.awaits_more().then(|| self.slot(self.done).form().tag())
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
        slot.is_complete() && (slot.count() == 1 || self.is_group_complete(first))
    }

    #[inline(never)]
    fn is_group_complete(&self, first: Line) -> bool {
        (1..self.slot(first).count()).all(|index| self.slot(first.plus(index)).is_complete())
    }

    /// Asks for the receive, or group, that began with `first`; done is said once.
    #[inline]
    pub fn poll(&mut self, first: Line) -> ReceivePoll {
        if self.is_complete(first) {
            let count = self.slot(first).count();
            for index in 0..count {
                self.slot_mut(first.plus(index)).stage = slot::FREE;
            }
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
        self.slot(line).len
    }

    /// The rails that brought bytes of a complete line, as bits.
    #[inline]
    pub fn carried(&self, line: Line) -> u16 {
        self.slot(line).carried
    }

    /// How many receives (a group is one) were posted and not yet reported done.
    #[cold]
    pub fn outstanding(&self) -> u32 {
        count32(self.slots.iter().filter(|slot| slot.is_outstanding()).count())
    }

    /// Fails the flow from outside. The first cause stays.
    #[cold]
    pub fn fail(&mut self, cause: ProtocolError) {
        self.end_plain_posts();
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
        let eager = self.eager.as_ref().map_or(0, |eager| size_of_val(&**eager));
        size_of::<Self>() + size_of_val(&*self.slots) + eager
    }

    /// Whether a receive holds the place of `line`: it was posted, and not yet said to be done.
    pub fn holds(&self, line: Line) -> bool {
        self.slot(line).is_held()
    }

    /// The line that the next receive takes.
    #[inline]
    pub fn next(&self) -> Line {
        self.next
    }

    /// Lines before this one are complete.
    pub fn done(&self) -> Line {
        self.done
    }

    #[inline]
    fn window(&self) -> Window {
        self.parameters.window
    }

    #[inline(always)]
    fn slot(&self, line: Line) -> &Slot {
        &self.slots[index_of(line)]
    }

    #[inline]
    fn slot_mut(&mut self, line: Line) -> &mut Slot {
        &mut self.slots[index_of(line)]
    }

    /// The size of a message that came lately.
    #[inline]
    fn recent_len(&self) -> u64 {
        self.slots[(self.recent % MAX_RING) as usize].len
    }
}

/// Where the slot of a line is.
#[inline(always)]
const fn index_of(line: Line) -> usize {
    (line.number() % MAX_RING) as usize
}
