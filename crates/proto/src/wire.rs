//! The words of a line: how they are packed, and the check that says they are all there.
//!
//! A line is validated from a local copy. One that does not validate is not there yet: half landed, of an earlier
//! tenant, or of another connection; the check mixes every word, in order, with the connection's nonce.

use crate::bits::{low8, low16, low32, mix};
use crate::ids::Line;
use crate::limits::{MAX_DATA_RAILS, MAX_GROUP};

/// How long an advert is: it has room for one key per data rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// 48 of 64 bytes, up to 2 rails.
    Words6,
    /// 64 bytes, up to 4 rails.
    Words8,
    /// 128 bytes, up to 12 rails.
    Words16,
    /// 192 bytes, up to 20 rails.
    Words24,
}

impl LineFormat {
    pub const fn for_rails(rails: usize) -> Self {
        match rails {
            0..=2 => Self::Words6,
            3..=4 => Self::Words8,
            5..=12 => Self::Words16,
            _ => Self::Words24,
        }
    }

    /// How many words a line has, all of them checked.
    #[inline]
    pub const fn words(self) -> usize {
        match self {
            Self::Words6 => 6,
            Self::Words8 => 8,
            Self::Words16 => 16,
            Self::Words24 => 24,
        }
    }

    /// How far apart the places of a mailbox are: whole cache lines.
    #[inline]
    pub const fn bytes(self) -> usize {
        (self.words() * 8).next_multiple_of(64)
    }

    /// How many keys a line has room for.
    #[inline]
    pub const fn keys(self) -> usize {
        self.words() - FIRST_KEY
    }
}

/// The words of the longest line.
pub const MAX_LINE_WORDS: usize = LineFormat::Words24.words();
/// Fins and lone dones carry no keys: these words and no more, in every format.
pub const SHORT_LINE_WORDS: usize = 4;
/// The distance between the places of a fin ring: a cache line each.
pub const FIN_PLACE_BYTES: usize = 64;
/// The word of an advert with the first key.
pub const FIRST_KEY: usize = 4;

const _: () = assert!(MAX_DATA_RAILS <= LineFormat::Words24.keys());

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Advert = 1,
    LoneDone = 2,
    Fin = 3,
    /// A message in the eager ring: see [`eager`](crate::eager).
    Eager = 4,
    /// A message in the bundle ring: see [`bundle`](crate::bundle).
    Bundled = 5,
}

/// Word 1 of a line: done, the place in the group, kind and flags, tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form(u64);

impl Form {
    /// An advert's, still without its done.
    #[inline]
    pub fn advert(index: usize, count: usize, cut: bool, tag: i32) -> Self {
        assert!(index < count && count <= MAX_GROUP, "the group is checked when it is posted");
        Self(
            (index as u64) << INDEX_SHIFT
                | (count as u64 - 1) << COUNT_SHIFT
                | (Kind::Advert as u64) << KIND_SHIFT
                | u64::from(cut) << CUT_SHIFT
                | u64::from(tag.cast_unsigned()) << TAG_SHIFT,
        )
    }

    /// An advert's index and count in its group and whether it cuts, in seven bits: indices and counts have three.
    #[inline(always)]
    pub(crate) const fn place(self) -> u32 {
        low32(self.0 >> INDEX_SHIFT) & 0x77 | (low32(self.0 >> CUT_SHIFT) & 1) << 3
    }

    /// The advert's form that has this [`place`](Self::place), still without its done.
    #[inline(always)]
    pub(crate) const fn placed(place: u32, tag: i32) -> Self {
        Self(
            (place as u64 & 0x77) << INDEX_SHIFT
                | (place as u64 >> 3 & 1) << CUT_SHIFT
                | (Kind::Advert as u64) << KIND_SHIFT
                | (tag.cast_unsigned() as u64) << TAG_SHIFT,
        )
    }

    pub fn lone_done() -> Self {
        Self((Kind::LoneDone as u64) << KIND_SHIFT)
    }

    pub fn fin(failed: bool) -> Self {
        Self((Kind::Fin as u64) << KIND_SHIFT | u64::from(failed) << STATUS_SHIFT)
    }

    /// Of an eager message: its length stands where a line has its done.
    pub(crate) fn eager(len: u16, tag: i32) -> Self {
        Self(
            u64::from(len)
                | (Kind::Eager as u64) << KIND_SHIFT
                | u64::from(tag.cast_unsigned()) << TAG_SHIFT,
        )
    }

    pub(crate) const fn eager_len(self) -> u16 {
        low16(self.0)
    }

    /// Of a message in a bundle: its length stands where a line has its done.
    pub(crate) const fn bundled(len: u16) -> Self {
        Self(len as u64 | (Kind::Bundled as u64) << KIND_SHIFT)
    }

    /// The flag of an advert whose receive may be filled by a copy.
    pub(crate) const COPIES: u64 = 1 << STATUS_SHIFT;

    #[inline(always)]
    pub(crate) const fn copies(self) -> bool {
        self.0 & Self::COPIES != 0
    }

    #[inline(always)]
    pub(crate) const fn with_flags(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    #[inline]
    #[must_use]
    pub const fn with_done(self, done: Line) -> Self {
        Self(self.0 & !0xffff | low16(done.number() as u64) as u64)
    }

    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub const fn done(self) -> u16 {
        low16(self.0)
    }

    #[inline]
    pub const fn index(self) -> u32 {
        low32(self.0 >> INDEX_SHIFT) & 15
    }

    #[inline]
    pub const fn count(self) -> u32 {
        (low32(self.0 >> COUNT_SHIFT) & 15) + 1
    }

    #[inline]
    pub const fn is(self, kind: Kind) -> bool {
        self.0 >> KIND_SHIFT & 7 == kind as u64
    }

    /// Whether it is an advert that stands alone: the common case, in one comparison.
    #[inline(always)]
    pub(crate) const fn is_single_advert(self) -> bool {
        const MASK: u64 = 0xff << INDEX_SHIFT | KIND_BITS;
        self.0 & MASK == (Kind::Advert as u64) << KIND_SHIFT
    }

    #[inline]
    pub const fn cuts(self) -> bool {
        self.0 >> CUT_SHIFT & 1 != 0
    }

    /// The status of a fin: 0 is well.
    #[inline]
    pub const fn status(self) -> u8 {
        low8(self.0 >> STATUS_SHIFT) & 15
    }

    #[inline]
    pub const fn tag(self) -> i32 {
        low32(self.0 >> TAG_SHIFT).cast_signed()
    }
}

/// What the form of an advert must be that stands alone: the common case, in one comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainForm {
    mask: u64,
}

impl PlainForm {
    /// Where receives may be grouped, tags choose.
    pub(crate) fn new(grouped: bool) -> Self {
        let tags = if grouped { u64::from(u32::MAX) << TAG_SHIFT } else { 0 };
        Self { mask: 0xff << INDEX_SHIFT | KIND_BITS | tags }
    }

    #[inline(always)]
    pub(crate) fn fits(self, word: u64, tag: i32) -> bool {
        let wanted =
            (Kind::Advert as u64) << KIND_SHIFT | u64::from(tag.cast_unsigned()) << TAG_SHIFT;
        (word ^ wanted) & self.mask == 0
    }
}

const INDEX_SHIFT: u32 = 16;
const COUNT_SHIFT: u32 = 20;
const KIND_SHIFT: u32 = 24;
const KIND_BITS: u64 = 7 << KIND_SHIFT;
const CUT_SHIFT: u32 = 27;
const STATUS_SHIFT: u32 = 28;
const TAG_SHIFT: u32 = 32;

/// Word 0 before its check is put in.
#[inline]
pub(crate) const fn head(line: Line) -> u64 {
    (line.number() as u64) << 32
}

/// The line number in word 0.
#[inline]
pub(crate) const fn head_line(word: u64) -> Line {
    Line::new(low32(word >> 32))
}

/// The last step over the body: words 0 and 1, which are known only when the line travels.
#[inline]
pub(crate) const fn seal(body: u64, line: Line, form: Form) -> u64 {
    let head = head(line);
    head | low32(mix(body, head, form.word())) as u64
}

/// Words 0 and 1 of an advert whose other words were mixed to `body`.
#[inline(always)]
pub(crate) const fn sealed(body: u64, line: Line, form: Form, flags: u64, done: Line) -> [u64; 2] {
    let form = form.with_done(done).with_flags(flags);
    [seal(body, line, form), form.word()]
}

/// Mixes the words from the second on, in pairs, on top of the nonce.
#[inline(always)]
pub(crate) fn body(nonce: u64, words: &[u64]) -> u64 {
    let (mut seed, mut index) = (nonce, 0);
    // Every caller's length is known when it is compiled, and by indices this unrolls.
    while index + 1 < words.len() {
        seed = mix(seed, words[index], words[index + 1]);
        index += 2;
    }
    seed
}

/// Whether the copy of a line is whole and of this connection.
#[inline(always)]
pub(crate) fn validates<const WORDS: usize>(nonce: u64, words: &[u64; WORDS]) -> bool {
    const { assert!(WORDS >= SHORT_LINE_WORDS && WORDS.is_multiple_of(2)) };
    let form = Form::from_word(words[1]);
    // Kind 0 is none: without it, memory that was never written would be line 0 once in 2^32 nonces.
    form.word() & KIND_BITS != 0 && is_sealed(nonce, words)
}

/// The same for words that are known to be of some kind.
#[inline(always)]
pub(crate) fn is_sealed<const WORDS: usize>(nonce: u64, words: &[u64; WORDS]) -> bool {
    is_sealed_as(head_line(words[0]), nonce, words)
}

/// The same where they are to be those of `line`.
#[inline(always)]
pub(crate) fn is_sealed_as<const WORDS: usize>(
    line: Line,
    nonce: u64,
    words: &[u64; WORDS],
) -> bool {
    seal(body(nonce, &words[2..]), line, Form::from_word(words[1])) == words[0]
}

/// Makes a line whole, whatever it says: what a peer that knows the nonce can do. For tests and fuzzers.
pub fn seal_line(nonce: u64, words: &mut [u64]) {
    if let [head, form, rest @ ..] = words {
        *head = seal(body(nonce, rest), head_line(*head), Form::from_word(*form));
    }
}

/// A fin or a lone done, sealed.
pub(crate) fn short_line(
    nonce: u64,
    line: Line,
    form: Form,
    rest: [u64; 2],
) -> [u64; SHORT_LINE_WORDS] {
    [seal(body(nonce, &rest), line, form), form.word(), rest[0], rest[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed<const WORDS: usize>(nonce: u64) -> [u64; WORDS] {
        let mut words =
            std::array::from_fn(|index| (index as u64 * 0x1234_5678_9abc).rotate_left(7));
        words[1] = Form::advert(1, 3, true, -5).with_done(Line::new(0x12_ffff)).word();
        words[0] =
            seal(body(nonce, &words[2..]), Line::new(0xffff_fff0), Form::from_word(words[1]));
        words
    }

    fn every_bit_matters<const WORDS: usize>() {
        let words = sealed::<WORDS>(42);
        assert!(validates(42, &words));
        for bit in 0..WORDS * 64 {
            let mut wrong = words;
            wrong[bit / 64] ^= 1 << (bit % 64);
            assert!(!validates(42, &wrong), "bit {bit} of {WORDS} words");
        }
        for first in 0..WORDS {
            for second in first + 1..WORDS {
                let mut wrong = words;
                wrong.swap(first, second);
                assert!(!validates(42, &wrong), "words {first} and {second} of {WORDS}");
            }
        }
        for bit in 0..64 {
            assert!(!validates(42 ^ 1 << bit, &words), "bit {bit} of the nonce");
        }
    }

    #[test]
    fn every_bit_its_position_and_the_nonce_matter_to_the_check() {
        every_bit_matters::<4>();
        every_bit_matters::<6>();
        every_bit_matters::<8>();
        every_bit_matters::<16>();
        every_bit_matters::<24>();
    }

    #[test]
    fn empty_memory_is_no_line() {
        for nonce in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert!(!validates(nonce, &[0; 8]));
        }
    }

    #[test]
    fn a_form_gives_back_what_it_was_made_of() {
        for count in 1..=MAX_GROUP {
            for index in 0..count {
                for (cut, tag, done) in
                    [(false, -1, 0), (true, i32::MAX, 65535), (true, i32::MIN, 7)]
                {
                    let form = Form::advert(index, count, cut, tag).with_done(Line::new(done));
                    assert_eq!((form.index() as usize, form.count() as usize), (index, count));
                    assert_eq!((form.cuts(), form.tag()), (cut, tag));
                    assert_eq!(u32::from(form.done()), done);
                    assert!(
                        form.is(Kind::Advert) && !form.is(Kind::Fin) && !form.is(Kind::LoneDone)
                    );
                    assert_eq!(form.is_single_advert(), count == 1);
                    assert_eq!(form.status(), 0);
                }
            }
        }
        assert!(Form::lone_done().is(Kind::LoneDone) && !Form::lone_done().is_single_advert());
        assert!(Form::fin(false).is(Kind::Fin) && Form::fin(false).status() == 0);
        assert!(Form::fin(true).is(Kind::Fin) && Form::fin(true).status() == 1);
    }

    #[test]
    fn a_line_has_room_for_the_keys_of_its_rails() {
        for rails in 1..=MAX_DATA_RAILS {
            let format = LineFormat::for_rails(rails);
            assert!(format.keys() >= rails);
            assert!(format.bytes() >= format.words() * 8);
            assert_eq!(format.bytes() % 64, 0);
        }
    }
}
