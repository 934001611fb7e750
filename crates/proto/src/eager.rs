//! Messages that are sent before their receives are known: how they lie in the receiver's eager ring, and the rule by which both
//! ends, each with what it knows, find the same line for them.
//!
//! A sender that has not read the advert of its first unfinished group knows neither where that ends nor its tags. So an
//! eager message names no line. It has a number among the eager ones, its tag, and its *base*, the sender's first
//! unfinished line. It belongs to the first line from its base on that has its tag and belongs to no earlier eager
//! message.
//!
//! The sender applies the rule when it reads the adverts of a group, before it sends by them. The receiver applies it when
//! eager messages arrive, in their order, and when receives are posted. Then the n-th message of a tag meets the n-th receive of that tag, eager or not (NCCL plugins/net/README.md,
//! irecv). At most E messages wait at the sender, so that the law of [`Window`] holds: of the lines past
//! the last advert read, no more are complete than there are eager messages without a line.

use crate::flow::{LineSink, LineSource};
use crate::ids::Line;
use crate::window::Window;
use crate::wire::{Form, Kind, body, head_line, seal};

/// The longest message that may be sent eagerly.
pub const EAGER_BYTES_MAX: u64 = 40;
/// How far apart the places of an eager ring are, in words: a cache line each.
pub const EAGER_PLACE_WORDS: usize = words_of(40);
const _: () = assert!((EAGER_PLACE_WORDS - FIRST_PAYLOAD) as u64 * 8 >= EAGER_BYTES_MAX);
/// The word of a place with the first bytes of the message.
pub const FIRST_PAYLOAD: usize = 3;

/// The number of a connection's first eager message: not 0, which memory that was never written seems to have.
pub const FIRST_EAGER: u32 = 1;

/// The same where lines begin elsewhere.
pub(crate) fn first_number(first_line: Line) -> u32 {
    first_line.number().wrapping_add(FIRST_EAGER)
}

/// How many words a message takes with what stands before it: check and number, form, base. A check wants pairs.
pub const fn words_of(len: usize) -> usize {
    (FIRST_PAYLOAD + len.div_ceil(8)).next_multiple_of(2)
}

/// What stands before an eager message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) base: Line,
    pub(crate) tag: i32,
    pub(crate) len: u64,
}

/// Puts a message into the place of an eager ring, sealed. Answers its length in words; none for one that is too long.
pub(crate) fn pack<S: LineSink>(
    sink: &mut S,
    place: u32,
    nonce: u64,
    number: u32,
    header: Header,
    payload: &[u8],
) -> Option<usize> {
    let mut words = [0; EAGER_PLACE_WORDS];
    let count = words_of(payload.len());
    let words = words.get_mut(..count)?;
    let form = Form::eager(crate::bits::low16(header.len), header.tag);
    (words[1], words[2]) = (form.word(), u64::from(header.base.number()));
    for (word, bytes) in words[FIRST_PAYLOAD..].iter_mut().zip(payload.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    words[0] = seal(body(nonce, &words[2..]), Line::new(number), form);
    for (index, word) in words.iter().enumerate() {
        sink.store(place, index, *word);
    }
    Some(count)
}

/// Whether the place has the number of the message looked for: a look that proves nothing yet.
#[inline]
pub(crate) fn is_there<S: LineSource>(source: &S, place: u32, number: u32) -> bool {
    head_line(source.word(place, 0)).number() == number
}

/// What stands before message `number`, if it is there: whole, of this connection, of this lap.
pub(crate) fn read<S: LineSource>(
    source: &S,
    place: u32,
    nonce: u64,
    number: u32,
) -> Option<Header> {
    let words = source.words::<EAGER_PLACE_WORDS>(place);
    let form = Form::from_word(words[1]);
    let len = form.eager_len();
    let whole = words.get(..words_of(len.into()))?;
    let sealed = seal(body(nonce, &whole[2..]), Line::new(number), form) == words[0];
    let header =
        Header { base: Line::new(crate::bits::low32(words[2])), tag: form.tag(), len: len.into() };
    (sealed && form.is(Kind::Eager)).then_some(header)
}

/// Eager messages without a line yet, in their order. At most [`MAX`](Self::MAX).
#[derive(Clone, Debug)]
pub struct Unplaced {
    /// Whether tags count: where receives may come in groups.
    tagged: bool,
    /// The number of the next message.
    next: u32,
    waiting: [Waiting; Self::MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    number: u32,
    base: Line,
    tag: i32,
}

const _: () = {
    assert!(Window::SINGLE.eager_places() as usize == Unplaced::MAX);
    assert!(Window::GROUPED.eager_places() as usize == Unplaced::MAX);
};

impl Unplaced {
    /// At most E of every window, and as many places as an eager ring has: one that is used costs each connection as much
    /// memory.
    pub const MAX: usize = 8;

    pub fn new(tagged: bool) -> Self {
        Self { tagged, next: 0, waiting: [Waiting::default(); Self::MAX], len: 0 }
    }

    /// The same, with another number for the first message.
    #[must_use]
    pub fn numbered_from(self, first: u32) -> Self {
        Self { next: first, ..self }
    }

    /// The next eager message, by its number. None: as many as may wait do.
    pub fn push(&mut self, base: Line, tag: i32) -> Option<u32> {
        let place = self.waiting.get_mut(self.len)?;
        *place = Waiting { number: self.next, base, tag };
        self.len += 1;
        self.next = self.next.wrapping_add(1);
        Some(place.number)
    }

    /// The message that a line with this tag is for. Ask for each line once, in their order.
    pub fn take(&mut self, line: Line, tag: i32) -> Option<u32> {
        let suits = |waiting: &Waiting| {
            !waiting.base.is_after(line) && (!self.tagged || waiting.tag == tag)
        };
        let index = self.waiting[..self.len].iter().position(suits)?;
        let number = self.waiting[index].number;
        self.waiting.copy_within(index + 1..self.len, index);
        self.len -= 1;
        Some(number)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of the next message.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }
}
