//! Short messages that travel together: how they lie in the ring that the receiver lends for them.
//!
//! A message whose receive is advertised may be held back until the sender's next turn of progress, and messages of
//! lines that follow each other then travel in one control write. The receiver copies them to where their receives begin,
//! and their lines are complete as if parts had come.
//!
//! A line has its place by its number, so nothing has to be agreed on: the line [`BUNDLE_PLACES`] before it must be done.

use crate::bits::low16;
use crate::flow::{LineSink, LineSource};
use crate::ids::Line;
use crate::wire::{Form, body, head_line, seal};

/// Places of a bundle ring: as many messages may be under way so.
pub const BUNDLE_PLACES: u32 = 32;
/// How far apart they are, in words: two to a cache line.
pub const BUNDLE_PLACE_WORDS: usize = 4;
/// Words of a message in a bundle ring.
pub const PAYLOAD_WORDS: usize = BUNDLE_PLACE_WORDS - FIRST_PAYLOAD;
/// The longest message that may travel so.
pub const BUNDLED_BYTES_MAX: u64 = PAYLOAD_WORDS as u64 * 8;
/// The word of a place with the first bytes of the message.
const FIRST_PAYLOAD: usize = 2;

const _: () = assert!(BUNDLE_PLACES.is_power_of_two());

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

/// Puts a message of `len` bytes into the place of its line, sealed. What is behind its last byte is 0.
#[inline(always)]
pub(crate) fn pack<S: LineSink>(
    sink: &mut S,
    nonce: u64,
    line: Line,
    len: u64,
    payload: [u64; PAYLOAD_WORDS],
) {
    let form = Form::bundled(low16(len)).word();
    sink.store_line(place(line), [sealed(nonce, line, form, payload), form], payload);
}

/// Word 0 of a place, as of any line. To mix but once would let a word pass that is turned over, with one nonce in 2^14.
#[inline(always)]
fn sealed(nonce: u64, line: Line, form: u64, payload: [u64; PAYLOAD_WORDS]) -> u64 {
    seal(body(nonce, &payload), line, Form::from_word(form))
}

/// Whether the place of a line has its number: a look that proves nothing yet.
#[inline(always)]
pub(crate) fn is_there<S: LineSource>(source: &S, line: Line) -> bool {
    head_line(source.word(place(line), 0)) == line
}

/// The message of a line, if it is there: whole, of this connection, of this lap.
#[inline(always)]
pub(crate) fn read<S: LineSource>(
    source: &S,
    nonce: u64,
    line: Line,
) -> Option<(u64, [u64; PAYLOAD_WORDS])> {
    let [head, form, payload @ ..] = source.words::<BUNDLE_PLACE_WORDS>(place(line));
    // What is no form of such a message is longer than any.
    let len = form ^ Form::bundled(0).word();
    let there = len <= BUNDLED_BYTES_MAX && sealed(nonce, line, form, payload) == head;
    there.then_some((len, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_turned_over_is_noticed_whatever_the_nonce() {
        let (line, form) = (Line::new(7), Form::bundled(8).word());
        let check = |nonce, first, second| sealed(nonce, line, form, [first, second]);
        for nonce in (1..1_u64 << 22).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            assert_ne!(check(nonce, 0, 0), check(nonce, u64::MAX, 0), "nonce {nonce}");
            assert_ne!(check(nonce, 0, 0), check(nonce, 0, u64::MAX), "nonce {nonce}");
        }
    }
}
