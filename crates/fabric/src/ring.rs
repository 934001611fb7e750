//! A ring of places of so many words each, mostly a cache line, within pages of ours. Which place is meant is taken modulo their number, so that
//! none lies outside, and nothing is left to be looked at when words are read and written.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::lockless::{load_words, store_words};
use crate::pages::Pages;

/// So many words are a place, where nothing else is said: a cache line.
pub const CACHE_LINE_WORDS: usize = 8;

/// Places side by side, as many as a power of two. It holds a share of its pages.
#[derive(Debug)]
pub struct Ring<const WORDS: usize = CACHE_LINE_WORDS> {
    first: NonNull<[AtomicU64; WORDS]>,
    mask: u32,
    _pages: Arc<Pages>,
}

// SAFETY: as for the pages, whose memory belongs to no thread: every access is atomic.
unsafe impl<const WORDS: usize> Send for Ring<WORDS> {}
// SAFETY: as above.
unsafe impl<const WORDS: usize> Sync for Ring<WORDS> {}

/// One place of a ring, looked up.
#[derive(Clone, Copy, Debug)]
pub struct Place<'ring, const WORDS: usize>(&'ring [AtomicU64; WORDS]);

impl<const WORDS: usize> Place<'_, WORDS> {
    /// Word `index`, by a load that sees what was written before it (acquire).
    ///
    /// # Panics
    ///
    /// Where a place has no such word.
    #[inline(always)]
    pub fn load(&self, index: usize) -> u64 {
        let [word] = load_words(std::array::from_ref(&self.0[index]));
        word
    }

    /// Stores word `index` in one piece, in no order that others could rely on.
    ///
    /// # Panics
    ///
    /// Where a place has no such word.
    #[inline(always)]
    pub fn store(&self, index: usize, word: u64) {
        store_words(std::array::from_ref(&self.0[index]), [word]);
    }
}

impl<const WORDS: usize> Ring<WORDS> {
    /// `places` from `first_word` on. None unless they are a power of two, and all inside.
    pub fn new(pages: &Arc<Pages>, first_word: usize, places: u32) -> Option<Self> {
        let end = (places as usize).checked_mul(WORDS)?.checked_add(first_word)?;
        if !places.is_power_of_two() || end > pages.words() {
            return None;
        }
        let first = pages.place_of_word(first_word)?.cast();
        Some(Self { first, mask: places - 1, _pages: Arc::clone(pages) })
    }

    /// One of the places.
    #[inline(always)]
    pub fn place(&self, place: u32) -> Place<'_, WORDS> {
        Place(self.words(place, 0))
    }

    /// The first words of a place, each by a load that sees what was written before it (acquire), in order.
    #[inline(always)]
    pub fn load_words<const COUNT: usize>(&self, place: u32) -> [u64; COUNT] {
        load_words(self.words(place, 0))
    }

    /// Stores words of a place from word `first` on, each in one piece, in no order that others could rely on.
    ///
    /// # Panics
    ///
    /// When they do not all fit.
    #[inline(always)]
    pub fn store_words<const COUNT: usize>(&self, place: u32, first: usize, words: [u64; COUNT]) {
        store_words(self.words(place, first), words);
    }

    /// How many places there are.
    pub fn places(&self) -> u32 {
        self.mask + 1
    }

    /// Stores a whole line: its first two words, and the others.
    ///
    /// # Panics
    ///
    /// When they do not all fit.
    #[inline(always)]
    pub fn store_line<const COUNT: usize>(&self, place: u32, head: [u64; 2], rest: [u64; COUNT]) {
        let words = self.words::<WORDS>(place, 0);
        let (first, others) = words.split_first_chunk().expect("a place has more words");
        store_words(first, head);
        store_words(others.first_chunk().expect("they fit"), rest);
    }

    #[inline(always)]
    fn words<const COUNT: usize>(&self, place: u32, first: usize) -> &[AtomicU64; COUNT] {
        const { assert!(COUNT <= WORDS) };
        // Known when it is compiled, wherever `first` is.
        assert!(first <= WORDS - COUNT, "{COUNT} words at {first} of a place");
        // SAFETY: one of the ring's places, which all lie inside the pages.
        let place = unsafe { self.first.add((place & self.mask) as usize) };
        // SAFETY: the word is inside the place, or one past its end with a count of none.
        let word = unsafe { place.cast::<AtomicU64>().add(first) };
        // SAFETY: so many words are left in the place; the pages stay mapped as long as `self` has a share of them, and their
        // words are only used atomically.
        unsafe { word.cast::<[AtomicU64; COUNT]>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_memory_as_its_words_in_the_pages() {
        let pages = Arc::new(Pages::map(1).unwrap());
        let ring: Ring = Ring::new(&pages, 16, 4).unwrap();
        for place in 0..4 {
            ring.store_words(place, 0, [u64::from(place), 7]);
            ring.store_words(place, 2, [1, 2, 3, 4, 5, 6]);
            let first = 16 + place as usize * 8;
            assert_eq!(pages.load_words::<8>(first), [u64::from(place), 7, 1, 2, 3, 4, 5, 6]);
            assert_eq!(ring.load_words::<3>(place + 4), [u64::from(place), 7, 1]);
        }
        assert_eq!((pages.load(15), pages.load(16 + 32)), (0, 0));
        let halves = Ring::<4>::new(&pages, 16, 8).unwrap();
        assert_eq!(halves.load_words::<4>(3), [3, 4, 5, 6]);
        halves.store_line(11, [8, 9], [1, 2]);
        assert_eq!(pages.load_words::<4>(16 + 3 * 4), [8, 9, 1, 2]);
    }

    #[test]
    fn a_ring_that_is_no_power_of_two_or_not_all_inside_is_none() {
        let pages = Arc::new(Pages::map(1).unwrap());
        let places = u32::try_from(pages.words() / 8).unwrap();
        assert!(<Ring>::new(&pages, 0, places).is_some());
        assert!(<Ring>::new(&pages, 1, places).is_none());
        assert!(<Ring>::new(&pages, 0, places * 2).is_none());
        assert!(<Ring>::new(&pages, usize::MAX, 1).is_none());
        assert!(<Ring>::new(&pages, 0, 3).is_none() && <Ring>::new(&pages, 0, 0).is_none());
    }
}
