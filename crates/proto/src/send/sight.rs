//! What a sender waits for: see [`Want`].

use super::record::State;
use super::{ALL_FREE, SendFlow};
use crate::bits::low8;
use crate::stall::{Sight, Want};
use crate::window::RECORDS;

impl SendFlow {
    /// Its progress, and what its oldest message waits for, or else a refused `isend`.
    pub fn sight(&self) -> Sight {
        let want = self.waits_for();
        let open = self.free != ALL_FREE || self.refused_caller;
        let under_way = self
            .records
            .iter()
            .filter(|record| record.state != State::Free && !self.is_done(record));
        let begun = self.first.number();
        let done = begun.wrapping_sub(crate::bits::count32(under_way.count()));
        Sight { want, open, begun, done }
    }

    fn waits_for(&self) -> Want {
        let used = (0..RECORDS).filter(|at| self.records[*at].state != State::Free);
        let age = |at: &usize| self.first.distance(self.records[*at].line).cast_signed();
        let wants = used.map(|at| (age(&at), self.record_waits_for(at)));
        let oldest = wants.filter(|(_, want)| *want != Want::Nothing).max_by_key(|(age, _)| *age);
        match oldest {
            Some((_, want)) => want,
            None if self.refused_caller => self.refused_for,
            None => Want::Nothing,
        }
    }

    fn record_waits_for(&self, at: usize) -> Want {
        let record = &self.records[at];
        match record.state {
            State::Free | State::Left => Want::Nothing,
            State::Inline | State::FinPending => Want::Room,
            State::Writing(writing) => {
                let part = low8(u64::from(writing.completed.trailing_ones()));
                let part = part.min(writing.parts.saturating_sub(1));
                Want::Data { rail: Some(self.rail(at, part)) }
            }
            State::Landed { .. } if self.is_done(record) => Want::Nothing,
            State::Landed { .. } => Want::Done,
        }
    }

    /// What the last refused `isend` waits for.
    pub fn refused_for(&self) -> Want {
        self.refused_for
    }
}
