//! The definition of a behaviour.

use net_loader::{NEWEST, OLDEST};

use super::case::{Case, Outcome};

/// One behaviour that NCCL relies on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behaviour {
    /// The id, which scripts use.
    pub(super) id: &'static str,
    /// What NCCL expects, in one line.
    pub(super) expects: &'static str,
    /// The place in NCCL's source.
    pub(super) source: &'static str,
    pub(super) shape: Shape,
    /// The oldest and the newest version of the table to which the behaviour applies.
    pub(super) tables: (u32, u32),
    pub(super) seconds: u64,
    /// The behaviour is idle most of the time, for as long as --idle says, so it runs beside the others.
    pub(super) idles: bool,
    pub(super) run: fn(&mut Case) -> Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    Two,
    /// The second process is killed or stopped during the test.
    Victim,
}

impl Shape {
    pub(super) fn processes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two | Self::Victim => 2,
        }
    }
}

/// A behaviour of one process.
pub(super) const fn one(
    id: &'static str,
    expects: &'static str,
    source: &'static str,
    run: fn(&mut Case) -> Outcome,
) -> Behaviour {
    let (shape, tables, seconds, idles) = (Shape::One, (OLDEST, NEWEST), SECONDS, false);
    Behaviour { id, expects, source, shape, tables, seconds, idles, run }
}

/// A behaviour of two processes.
pub(super) const fn two(
    id: &'static str,
    expects: &'static str,
    source: &'static str,
    run: fn(&mut Case) -> Outcome,
) -> Behaviour {
    Behaviour { shape: Shape::Two, ..one(id, expects, source, run) }
}

/// A behaviour of two processes, of which the second is killed or stopped.
pub(super) const fn victim(
    id: &'static str,
    expects: &'static str,
    source: &'static str,
    run: fn(&mut Case) -> Outcome,
) -> Behaviour {
    Behaviour { shape: Shape::Victim, ..one(id, expects, source, run) }
}

impl Behaviour {
    pub(super) const fn since(self, table: u32) -> Self {
        Self { tables: (table, self.tables.1), ..self }
    }

    pub(super) const fn until(self, table: u32) -> Self {
        Self { tables: (self.tables.0, table), ..self }
    }

    pub(super) const fn idle(self) -> Self {
        Self { idles: true, ..self }
    }

    pub(super) const fn within(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }
}

/// The default time limit: many times what a correct plugin needs on a loaded machine.
const SECONDS: u64 = 20;
