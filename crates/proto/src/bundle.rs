//! Short messages that travel together: how they lie in the ring that the receiver lends for them.
//!
//! A message whose receive is advertised may be held back until the sender's next turn of progress, and messages of
//! lines that follow each other then travel in one control write. The receiver copies them to where their receives begin,
//! and their lines are complete as if parts had come.
//!
//! A line has its place by its number, so nothing has to be agreed on: the line [`BUNDLE_PLACES`] before it must be done.

use crate::flow::{LineSink, LineSource};
use crate::ids::Line;
use crate::wire::{Form, Kind, body, head_line, seal, validates};

/// Places of a bundle ring: as many messages may be under way so.
pub const BUNDLE_PLACES: u32 = 32;
/// How far apart they are, in words: a cache line each.
pub const BUNDLE_PLACE_WORDS: usize = 8;
/// Words of a message in a bundle ring, at most.
pub const PAYLOAD_WORDS: usize = BUNDLE_PLACE_WORDS - FIRST_PAYLOAD;
/// The longest message that may travel so.
pub const BUNDLED_BYTES_MAX: u64 = PAYLOAD_WORDS as u64 * 8;
/// The word of a place with the first bytes of the message.
const FIRST_PAYLOAD: usize = 2;
/// A message of up to so many bytes takes the short form.
pub const SHORT_BYTES: u64 = 16;
const SHORT_WORDS: usize = 4;

const _: () = assert!(BUNDLE_PLACES.is_power_of_two());
const _: () = assert!(SHORT_BYTES == (SHORT_WORDS - FIRST_PAYLOAD) as u64 * 8);

/// The place of a line.
#[inline(always)]
pub(crate) const fn place(line: Line) -> u32 {
    line.number() % BUNDLE_PLACES
}

/// How many lines from `first` on lie side by side before the ring ends.
#[inline]
pub(crate) const fn run(first: Line) -> u32 {
    BUNDLE_PLACES - place(first)
}

/// How many words a message of so many bytes takes, with what stands before it.
#[inline]
pub(crate) const fn words_of(len: u64) -> usize {
    if len <= SHORT_BYTES { SHORT_WORDS } else { BUNDLE_PLACE_WORDS }
}

/// Puts a message of `len` bytes into the place of its line, sealed. What is behind its last byte is 0.
#[inline(always)]
pub(crate) fn pack<S: LineSink>(
    sink: &mut S,
    nonce: u64,
    line: Line,
    len: u64,
    payload: [u64; PAYLOAD_WORDS],
) {
    let form = Form::bundled(crate::bits::low16(len));
    let [first, second, rest @ ..] = payload;
    if len <= SHORT_BYTES {
        let head = seal(body(nonce, &[first, second]), line, form);
        sink.store_words(place(line), 0, [head, form.word(), first, second]);
    } else {
        let head = seal(body(nonce, &payload), line, form);
        sink.store_words(place(line), 0, [head, form.word(), first, second]);
        sink.store_words(place(line), SHORT_WORDS, rest);
    }
}

/// The same for a message in the short form.
#[inline(always)]
pub(crate) fn pack_short<S: LineSink>(
    sink: &mut S,
    nonce: u64,
    line: Line,
    len: u64,
    payload: [u64; 2],
) {
    let form = Form::bundled(crate::bits::low16(len));
    let head = seal(body(nonce, &payload), line, form);
    sink.store_line(place(line), [head, form.word()], payload);
}

/// Whether the place of a line has its number: a look that proves nothing yet.
#[inline(always)]
pub(crate) fn is_there<S: LineSource>(source: &S, line: Line) -> bool {
    head_line(source.word(place(line), 0)) == line
}

/// The same as [`read`] for a message in the short form.
#[inline(always)]
pub(crate) fn read_short<S: LineSource>(
    source: &S,
    nonce: u64,
    line: Line,
) -> Option<(u64, [u64; 2])> {
    let words = source.words::<SHORT_WORDS>(place(line));
    // What is no form of a short message is longer than one.
    let len = words[1] ^ Form::bundled(0).word();
    let there = head_line(words[0]) == line && len <= SHORT_BYTES;
    let seal = || seal(body(nonce, &[words[2], words[3]]), line, Form::from_word(words[1]));
    (there && seal() == words[0]).then_some((len, [words[2], words[3]]))
}

/// The message of a line, if it is there: whole, of this connection, of this lap.
#[inline(always)]
pub(crate) fn read<S: LineSource>(
    source: &S,
    nonce: u64,
    line: Line,
) -> Option<(u64, [u64; PAYLOAD_WORDS])> {
    let short = source.words::<SHORT_WORDS>(place(line));
    let form = Form::from_word(short[1]);
    let len = u64::from(form.bundled_len());
    if head_line(short[0]) != line || !form.is(Kind::Bundled) || len > BUNDLED_BYTES_MAX {
        return None;
    }
    if len <= SHORT_BYTES {
        return validates(nonce, &short).then_some((len, [short[2], short[3], 0, 0, 0, 0]));
    }
    let long = source.words::<BUNDLE_PLACE_WORDS>(place(line));
    let [_, form, payload @ ..] = long;
    let same = form == short[1] && head_line(long[0]) == line;
    (same && validates(nonce, &long)).then_some((len, payload))
}
