//! Receives that were withdrawn: which of their lines the sender may still write to.
//!
//! ```text
//!  Pending ── WITHDRAW leaves ─▶ Requested ── WITHDRAWN, or the sender's CLOSE ─▶ Settled
//! ```

use crate::fault::Violation;
use crate::frame::Lines;
use crate::ids::Name;
use crate::line::Line;
use crate::window::within;

#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawal {
    stage: Stage,
    /// Bit n is the line `first` + n: the sender may still write to it.
    first: Line,
    set: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// WITHDRAW has not left.
    Pending,
    Requested,
    /// The sender begins no more lines, and has begun these.
    Settled,
}

impl Withdrawal {
    /// The withdrawal of the lines `set`, counted from `first`. `over`: the sender begins nothing more, so no WITHDRAW is needed.
    pub(super) fn new(first: Line, set: u64, over: bool) -> Self {
        let stage = if over || set == 0 { Stage::Settled } else { Stage::Pending };
        Self { stage, first, set }
    }

    /// WITHDRAW leaves even if no line is open.
    pub(super) fn request_anyway(&mut self) {
        if self.set == 0 {
            self.stage = Stage::Pending;
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.stage == Stage::Pending
    }

    /// The WITHDRAW frame. `to`: the sender's name for the connection.
    pub(super) fn request(&self, to: Name) -> Lines {
        Lines { to, first: self.first, set: self.set }
    }

    pub(super) fn requested(&mut self) {
        self.stage = Stage::Requested;
    }

    /// WITHDRAWN has come.
    pub(super) fn answered(&mut self, lines: &Lines) -> Result<(), Violation> {
        if self.stage != Stage::Requested || lines.first != self.first {
            return Err(Violation::Ending);
        }
        self.set &= lines.set;
        self.settled();
        Ok(())
    }

    /// The sender begins no more lines.
    pub(super) fn settled(&mut self) {
        self.stage = Stage::Settled;
    }

    /// The lines that the sender may still write to.
    pub(super) fn lines(self) -> impl Iterator<Item = Line> {
        let ahead = (0..u64::BITS).filter(move |ahead| self.set >> ahead & 1 == 1);
        ahead.map(move |ahead| self.first.plus(ahead))
    }

    /// Whether the sender may still write to `line`.
    pub(super) fn has(&self, line: Line) -> bool {
        within(line, self.first, u64::BITS) && self.set >> line.distance(self.first) & 1 == 1
    }
}
