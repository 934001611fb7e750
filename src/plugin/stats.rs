//! What the process's rails have carried, summed as endpoints close, and written where a setting says.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::config::Config;
use crate::endpoint::counters::Counters;

/// One rail of one endpoint, at its end.
#[derive(Clone, Debug)]
pub(crate) struct Rail {
    pub(crate) label: String,
    pub(crate) data_bytes: u64,
    pub(crate) data_writes: u64,
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Totals {
    rails: BTreeMap<(usize, String), Rail>,
    counters: Counters,
}

static TOTALS: Mutex<Totals> =
    Mutex::new(Totals { rails: BTreeMap::new(), counters: Counters::NONE });

/// Adds an endpoint's counters, and writes the file anew.
pub(crate) fn add(config: &Config, rails: impl Iterator<Item = Rail>, counters: Counters) {
    let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
    for (index, rail) in rails.enumerate() {
        let key = (index, rail.label.clone());
        let total = totals.rails.entry(key).or_insert_with(|| Rail {
            label: rail.label.clone(),
            data_bytes: 0,
            data_writes: 0,
            refused: 0,
        });
        total.data_bytes += rail.data_bytes;
        total.data_writes += rail.data_writes;
        total.refused += rail.refused;
    }
    totals.counters.add(&counters);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if let Some(path) = config.stats_path(std::process::id(), host.trim())
        && let Err(error) = std::fs::write(&path, totals.text())
    {
        log::warn!("IRONRAIL_STATS_FILE: {} cannot be written: {error}", path.display());
    }
}

impl Totals {
    /// A line per rail: its index, its name, then pairs of a counter and its value.
    fn text(&self) -> String {
        let mut text = String::new();
        for ((index, label), rail) in &self.rails {
            let Rail { data_bytes, data_writes, refused, .. } = rail;
            let label = label.replace(' ', "/");
            let line = writeln!(
                text,
                "rail {index} {label} data_bytes {data_bytes} data_operations {data_writes} refused {refused}"
            );
            debug_assert!(line.is_ok(), "a string takes every line");
        }
        for (name, value) in self.counters.named() {
            let line = writeln!(text, "counter {name} {value}");
            debug_assert!(line.is_ok(), "a string takes every line");
        }
        text
    }
}
