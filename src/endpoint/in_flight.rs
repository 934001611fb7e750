//! Counts operations that have begun and not ended: reads of a flush, flushes of a comm, comms that close. A wrong count is a bug in
//! Ironrail; an owner with a wrong count is never taken for drained.

/// A count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlight {
    count: u32,
    /// More have ended than had begun: the count cannot be trusted any more.
    wrong: bool,
}

impl InFlight {
    #[inline(always)]
    pub(super) fn begin(&mut self, operations: u32) {
        self.count += operations;
    }

    /// Ends `operations`. False if more have ended than had begun.
    #[inline(always)]
    #[must_use = "after a wrong count its owner fails"]
    pub(super) fn end(&mut self, operations: u32) -> bool {
        match self.count.checked_sub(operations) {
            Some(left) => {
                self.count = left;
                true
            }
            None => self.miscount(),
        }
    }

    #[cold]
    fn miscount(&mut self) -> bool {
        *self = Self { count: 0, wrong: true };
        false
    }

    /// Whether all have ended.
    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.count == 0 && !self.wrong
    }

    pub(super) fn count(self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_in_flight_once_as_many_have_ended_as_began() {
        let mut in_flight = InFlight::default();
        assert!(in_flight.is_none());
        in_flight.begin(3);
        assert!(in_flight.end(2) && !in_flight.is_none());
        assert!(in_flight.end(1) && in_flight.is_none());
    }

    #[test]
    fn a_wrong_count_is_reported_and_never_zero_again() {
        let mut in_flight = InFlight::default();
        in_flight.begin(1);
        assert!(!in_flight.end(2));
        assert!(!in_flight.is_none());
        in_flight.begin(1);
        assert!(in_flight.end(1) && !in_flight.is_none());
    }
}
