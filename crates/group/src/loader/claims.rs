//! The bytes of a buffer that are in flight.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::error::MemoryError;

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
/// conflicts with its result. A claim may be released at any time.
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
    const fn new() -> Self {
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
    pub(super) const fn new() -> Self {
        Self { entries: [const { Entry::new() }; CLAIMS_MAX], used: AtomicUsize::new(0) }
    }

    pub(super) fn claim(&self, range: &Range<usize>, what: Use) -> Result<u8, MemoryError> {
        let taken = self.entries.iter().zip(0..).find(|(entry, _)| entry.take(what));
        let (entry, place) = taken.ok_or(MemoryError::TooManyRequests)?;
        entry.start.store(range.start, Ordering::Relaxed);
        entry.end.store(range.end, Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) <= usize::from(place) {
            self.used.fetch_max(usize::from(place) + 1, Ordering::Relaxed);
        }
        Ok(place)
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
                (entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Relaxed));
            entry.excludes(what) && start.max(range.start) < end.min(range.end)
        })
    }

    fn used(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(self.used.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
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
        assert_eq!(claims.claim(&(0..1), Use::Read), Err(MemoryError::TooManyRequests));
        claims.release(77);
        assert_eq!(claims.claim(&(0..1), Use::Read), Ok(77));
    }
}
