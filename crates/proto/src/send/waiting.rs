//! What a sender waits for: see [`WaitsFor`].

use super::record::State;
use super::{ALL_FREE, SendFlow};
use crate::bits::low8;
use crate::stall::{ConnectionState, WaitsFor};
use crate::window::RECORDS;

impl SendFlow {
    /// The sender's progress, and what its oldest message waits for; without a message, what a refused `isend` waits for.
    pub fn connection_state(&self) -> ConnectionState {
        let waits_for = self.waits_for();
        let open = self.free != ALL_FREE || self.refused_caller;
        let under_way = self
            .records
            .iter()
            .filter(|record| record.state != State::Free && !self.is_done(record));
        let begun = self.first.number();
        let done = begun.wrapping_sub(crate::bits::count32(under_way.count()));
        ConnectionState { waits_for, open, begun, done }
    }

    fn waits_for(&self) -> WaitsFor {
        let used = (0..RECORDS).filter(|at| self.records[*at].state != State::Free);
        let age = |at: &usize| self.first.distance(self.records[*at].line).cast_signed();
        let waits = used.map(|at| (age(&at), self.record_waits_for(at)));
        let oldest = waits
            .filter(|(_, waits_for)| *waits_for != WaitsFor::Nothing)
            .max_by_key(|(age, _)| *age);
        match oldest {
            Some((_, waits_for)) => waits_for,
            None if self.refused_caller => self.refused_for,
            None => WaitsFor::Nothing,
        }
    }

    fn record_waits_for(&self, at: usize) -> WaitsFor {
        let record = &self.records[at];
        match record.state {
            State::Free | State::Sent => WaitsFor::Nothing,
            State::Inline | State::FinPending => WaitsFor::Room,
            State::Writing(writing) => {
                let part = low8(u64::from(writing.completed.trailing_ones()));
                let part = part.min(writing.parts.saturating_sub(1));
                WaitsFor::Data { rail: Some(self.rail(at, part)) }
            }
            State::Landed { .. } if self.is_done(record) => WaitsFor::Nothing,
            State::Landed { .. } => WaitsFor::Done,
        }
    }

    /// What the last refused `isend` waits for.
    pub fn refused_for(&self) -> WaitsFor {
        self.refused_for
    }
}
