//! The bytes of a buffer that are in flight.
//!
//! Compiled twice, as crates/fabric/src/lockless.rs is: tests/loom.rs explores every interleaving.

use std::array;
use std::ops::Range;

use super::atomic::{AtomicU8, AtomicUsize, Ordering};

/// What a request does with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read = 1,
    Write,
}

/// A fixed table, so that a claim allocates nothing. It has no lock: every message makes a claim, and every borrow of a buffer reads the
/// table.
///
/// A claim or a use that writes needs the buffer borrowed mutably. So while [`Claims::allow`] runs, no other thread makes a claim that
/// conflicts with its result. A claim may be released at any time, and its entry taken by a new claim that reads. A thread that sees the
/// range of the new claim (acquire) sees its state too, and everything that the old claim's request wrote.
#[derive(Debug)]
pub(super) struct Claims {
    entries: [Entry; CLAIMS_MAX],
    /// The first entries; the others have never been taken.
    used: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    /// [`FREE`], or a [`Use`].
    state: AtomicU8,
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Entry {
    fn new() -> Self {
        let (start, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { state: AtomicU8::new(FREE), start, end }
    }

    /// Takes the entry, if it is free.
    fn take(&self, what: Use) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
            && self
                .state
                .compare_exchange(FREE, what as u8, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether the entry is taken by a request that must have ended before `what` begins.
    fn excludes(&self, what: Use) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state == Use::Write as u8 || (state != FREE && what == Use::Write)
    }
}

const FREE: u8 = 0;

/// Twice two windows of 32 requests.
const CLAIMS_MAX: usize = 128;

impl Claims {
    pub(super) fn new() -> Self {
        Self { entries: array::from_fn(|_| Entry::new()), used: AtomicUsize::new(0) }
    }

    /// None: there are as many as there may be.
    pub(super) fn claim(&self, range: &Range<usize>, what: Use) -> Option<u8> {
        let (entry, place) = self.entries.iter().zip(0..).find(|(entry, _)| entry.take(what))?;
        entry.start.store(range.start, Ordering::Release);
        entry.end.store(range.end, Ordering::Release);
        if self.used.load(Ordering::Relaxed) <= usize::from(place) {
            self.used.fetch_max(usize::from(place) + 1, Ordering::Relaxed);
        }
        Some(place)
    }

    pub(super) fn release(&self, claim: u8) {
        self.entries[usize::from(claim)].state.store(FREE, Ordering::Release);
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.used().any(|entry| entry.excludes(Use::Write))
    }

    /// Whether the caller may use `range` for `what` beside the claims: several may read.
    pub(super) fn allow(&self, range: &Range<usize>, what: Use) -> bool {
        !self.used().any(|entry| {
            let (start, end) =
                (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
            entry.excludes(what) && start.max(range.start) < end.min(range.end)
        })
    }

    fn used(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(self.used.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_claim_blocks_writers_of_its_bytes_and_a_writing_one_blocks_readers_too() {
        let claims = Claims::new();
        let read = claims.claim(&(10..20), Use::Read).unwrap();
        assert!(claims.allow(&(0..100), Use::Read));
        assert!(!claims.allow(&(19..30), Use::Write));
        assert!(claims.allow(&(20..30), Use::Write));
        let write = claims.claim(&(40..50), Use::Write).unwrap();
        assert!(!claims.allow(&(0..41), Use::Read));
        claims.release(write);
        assert!(claims.allow(&(0..41), Use::Read));
        claims.release(read);
        assert!(claims.is_idle() && claims.allow(&(0..100), Use::Write));
    }

    #[test]
    fn an_empty_range_blocks_no_other() {
        let claims = Claims::new();
        claims.claim(&(5..5), Use::Write).unwrap();
        assert!(claims.allow(&(0..100), Use::Write));
    }

    #[test]
    fn the_table_has_an_end() {
        let claims = Claims::new();
        for _ in 0..CLAIMS_MAX {
            claims.claim(&(0..1), Use::Read).unwrap();
        }
        assert_eq!(claims.claim(&(0..1), Use::Read), None);
        claims.release(77);
        assert_eq!(claims.claim(&(0..1), Use::Read), Some(77));
    }
}
