//! The bytes of a buffer that are in flight.

use std::ops::Range;

use crate::error::MemoryError;

/// What a request does with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
}

/// A fixed table, so that a claim allocates nothing.
#[derive(Debug)]
pub(super) struct Claims {
    taken: u128,
    reads: u128,
    ranges: [(usize, usize); CLAIMS_MAX],
}

/// Twice two windows of 32 requests.
const CLAIMS_MAX: usize = 128;

impl Claims {
    pub(super) const fn new() -> Self {
        Self { taken: 0, reads: 0, ranges: [(0, 0); CLAIMS_MAX] }
    }

    pub(super) fn claim(&mut self, range: &Range<usize>, what: Use) -> Result<u8, MemoryError> {
        let free = (!self.taken).trailing_zeros();
        let place = usize::try_from(free).map_err(|_| MemoryError::TooManyRequests)?;
        let entry = self.ranges.get_mut(place).ok_or(MemoryError::TooManyRequests)?;
        *entry = (range.start, range.end);
        self.taken |= 1 << place;
        match what {
            Use::Read => self.reads |= 1 << place,
            Use::Write => self.reads &= !(1 << place),
        }
        u8::try_from(free).map_err(|_| MemoryError::TooManyRequests)
    }

    pub(super) fn release(&mut self, claim: u8) {
        self.taken &= !(1 << claim);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.taken == 0
    }

    /// Whether the caller may use `range` for `what` beside the claims: several may read.
    pub(super) fn allow(&self, range: &Range<usize>, what: Use) -> bool {
        let mut left = match what {
            Use::Read => self.taken & !self.reads,
            Use::Write => self.taken,
        };
        while left != 0 {
            let (start, end) = self.ranges[left.trailing_zeros() as usize];
            if start.max(range.start) < end.min(range.end) {
                return false;
            }
            left &= left - 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_blocks_writers_of_its_bytes_and_a_writing_one_blocks_readers_too() {
        let mut claims = Claims::new();
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
        let mut claims = Claims::new();
        claims.claim(&(5..5), Use::Write).unwrap();
        assert!(claims.allow(&(0..100), Use::Write));
    }

    #[test]
    fn the_table_has_an_end() {
        let mut claims = Claims::new();
        for _ in 0..CLAIMS_MAX {
            claims.claim(&(0..1), Use::Read).unwrap();
        }
        assert_eq!(claims.claim(&(0..1), Use::Read), Err(MemoryError::TooManyRequests));
        claims.release(77);
        assert_eq!(claims.claim(&(0..1), Use::Read), Ok(77));
    }
}
