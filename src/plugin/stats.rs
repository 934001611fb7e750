//! What the process's rails have carried, summed as endpoints close, and written where a setting says.

use std::collections::BTreeMap;

use fabric::{Lock, Posts};

use super::config::Config;
use super::device::host_name;
use crate::endpoint::close::{RailReport, Report};
use crate::endpoint::counters::Counters;

#[derive(Debug)]
struct Totals {
    /// By index and name.
    rails: BTreeMap<(usize, String), RailReport>,
    counters: Counters,
}

static TOTALS: Lock<Totals> =
    Lock::new(Totals { rails: BTreeMap::new(), counters: Counters::NONE });

/// Adds what an endpoint reports at its end, and writes the file anew.
pub(super) fn add(config: &Config, report: &Report) {
    let mut totals = TOTALS.lock();
    totals.add(report);
    if config.stats_file.is_none() {
        return;
    }
    if let Some(path) = config.stats_path(std::process::id(), &host_name())
        && let Err(error) = std::fs::write(&path, totals.text())
    {
        log::warn!("IRONRAIL_STATS_FILE: {} cannot be written: {error}", path.display());
    }
}

impl Totals {
    fn add(&mut self, report: &Report) {
        for (index, rail) in report.rails.iter().enumerate() {
            let none = || RailReport {
                label: rail.label.clone(),
                bytes: 0,
                writes: 0,
                refused: 0,
                data: Posts::NONE,
                control: Posts::NONE,
            };
            let total = self.rails.entry((index, rail.label.clone())).or_insert_with(none);
            total.bytes += rail.bytes;
            total.writes += rail.writes;
            total.refused += rail.refused;
            total.data += rail.data;
            total.control += rail.control;
        }
        self.counters.add(&report.counters);
    }

    /// A line per rail: its index, its name, then pairs of a counter and its value. A line per counter of drops.
    fn text(&self) -> String {
        let mut text = String::new();
        for ((index, label), rail) in &self.rails {
            let RailReport { bytes, writes, refused, data, control, .. } = rail;
            let label = label.replace(' ', "/");
            text.push_str(&format!(
                "rail {index} {label} data_bytes {bytes} data_operations {writes} refused {refused}"
            ));
            for (side, posts) in [("data", data), ("control", control)] {
                for (kind, count) in posts.named() {
                    text.push_str(&format!(" {side}_{kind} {count}"));
                }
            }
            text.push('\n');
        }
        for (name, value) in self.counters.named() {
            text.push_str(&format!("counter {name} {value}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_on_one_rail_are_summed() {
        let mut totals = Totals { rails: BTreeMap::new(), counters: Counters::NONE };
        let data = Posts { writes: 3, injected_writes: 4, reads: 5, ..Posts::NONE };
        let control = Posts { writes: 6, sends: 7, injected_sends: 8, receives: 9, ..data };
        let rail = RailReport {
            label: "net lo".to_owned(),
            bytes: 10,
            writes: 2,
            refused: 1,
            data,
            control,
        };
        let report = Report {
            rails: vec![rail.clone(), RailReport { bytes: 5, ..rail }],
            counters: Counters::NONE,
        };
        totals.add(&report);
        totals.add(&report);
        let text = totals.text();
        let posts = "data_writes 6 data_injected_writes 8 data_sends 0 data_injected_sends 0 data_reads 10 data_receives 0 \
             control_writes 12 control_injected_writes 8 control_sends 14 control_injected_sends 16 control_reads 10 \
             control_receives 18";
        for (rail, bytes) in [(0, 20), (1, 10)] {
            let line = format!(
                "rail {rail} net/lo data_bytes {bytes} data_operations 4 refused 2 {posts}\n"
            );
            assert!(text.contains(&line), "{text}");
        }
        assert!(text.contains("counter garbage_messages 0\n"), "{text}");
    }
}
