//! Counters by name: every operation, every refusal, every injected fault.

use std::collections::BTreeMap;

/// Numbers that only grow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    numbers: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// Adds one.
    pub(crate) fn count(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Adds `more`.
    pub(crate) fn add(&mut self, name: &'static str, more: u64) {
        *self.numbers.entry(name).or_default() += more;
    }

    /// Every counter that is not 0, with its name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.numbers.iter().map(|(name, number)| (*name, *number))
    }
}
