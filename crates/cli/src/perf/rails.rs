//! Bytes per rail, and posts, from the files that the plugin writes when `IRONRAIL_STATS_FILE` is set.
//!
//! One file per process: the path has a `%p`, which the plugin replaces by its process id. The files are JSON (docs/counters.md); unknown
//! names are ignored. The virtual fabric's report has counts of posts too, one per line.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::writes::{Counter, Ledger, Posts};
use crate::files;

/// The variable that names the plugin's file.
pub(super) const VARIABLE: &str = "IRONRAIL_STATS_FILE";
/// The variable that names the file of the virtual fabric's report.
pub(super) const FABRIC_VARIABLE: &str = "VFABRIC_REPORT";
/// The variable that names the directory, which ranks remove when their launcher is gone.
pub(super) const FOLDER: &str = "IRON_PERF_FILES";

/// Removes the directory, in a rank whose launcher has ended, or cannot be informed that the rank ends.
pub(super) fn abandon() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// The traffic of one rail, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Rail {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) data_bytes: u64,
    pub(super) data_operations: u64,
    /// Percentage of the bytes of all rails.
    pub(super) percent: f64,
}

/// The content of all files.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Empty if the plugin writes no files.
    pub(super) rails: Vec<Rail>,
    /// One for each source that counted posts.
    pub(super) ledgers: Vec<Ledger>,
}

/// A private directory for the ranks' files. Removed when dropped.
#[derive(Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new() -> io::Result<Self> {
        files::private_folder("ironrail").map(Self)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// The value of [`VARIABLE`].
    pub(super) fn base(&self) -> PathBuf {
        self.0.join("rails.%p")
    }

    /// The value of [`FABRIC_VARIABLE`].
    pub(super) fn fabric(&self) -> PathBuf {
        self.0.join("fabric.%p")
    }

    /// The sum over all files.
    pub(super) fn sum(&self) -> Found {
        sum(&self.0).unwrap_or_default()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sum(directory: &Path) -> io::Result<Found> {
    let mut sums = Sums::default();
    for entry in fs::read_dir(directory)? {
        sums.add(&fs::read_to_string(entry?.path())?);
    }
    Ok(sums.found())
}

/// The part of a plugin's file that is read here.
#[derive(Debug, Deserialize)]
struct File {
    rails: Vec<FileRail>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileRail {
    index: u32,
    name: String,
    data_bytes: u64,
    data_operations: u64,
    /// Posts by kind.
    data: BTreeMap<String, u64>,
    control: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Bytes and operations.
    rails: BTreeMap<(u32, String), (u64, u64)>,
    data: Posts,
    control: Posts,
    fabric: Posts,
    /// Whether the plugin counted posts.
    by_plugin: bool,
    by_fabric: bool,
}

impl Sums {
    fn add(&mut self, text: &str) {
        // A plugin that was killed while writing leaves an incomplete file.
        if let Ok(File { rails }) = serde_json::from_str(text) {
            rails.into_iter().for_each(|rail| self.rail(rail));
            return;
        }
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some("counter"), Some(name), Some(value)) =
                (words.next(), words.next(), words.next())
            {
                self.counter(name, value);
            }
        }
    }

    fn rail(&mut self, rail: FileRail) {
        let Self { rails, data, control, by_plugin, .. } = self;
        let sums = rails.entry((rail.index, rail.name)).or_default();
        sums.0 += rail.data_bytes;
        sums.1 += rail.data_operations;
        for (sums, posts) in [(data, rail.data), (control, rail.control)] {
            for (kind, value) in posts {
                *by_plugin |= sums.add(&kind, value);
            }
        }
    }

    /// A counter of the virtual fabric's report (docs/vfabric.md).
    fn counter(&mut self, name: &str, value: &str) {
        let kind = match name.strip_prefix("accepted.") {
            Some("write" | "writedata") => "writes",
            Some("inject_write" | "inject_writedata") => "injected_writes",
            Some("send") => "sends",
            Some("inject") => "injected_sends",
            Some("read") => "reads",
            _ => return,
        };
        self.by_fabric |= self.fabric.add(kind, value.parse().unwrap_or(0));
    }

    fn found(self) -> Found {
        let plugin = self.by_plugin.then(|| Ledger {
            by: Counter::Plugin,
            sides: vec![("data", self.data), ("control", self.control)],
        });
        let fabric = self
            .by_fabric
            .then(|| Ledger { by: Counter::Fabric, sides: vec![("all", self.fabric)] });
        Found { rails: shares(self.rails), ledgers: plugin.into_iter().chain(fabric).collect() }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share in percent")]
fn shares(rails: BTreeMap<(u32, String), (u64, u64)>) -> Vec<Rail> {
    let all: u64 = rails.values().map(|sums| sums.0).sum();
    let rail = |((index, name), (data_bytes, data_operations))| {
        let percent = if all == 0 { 0.0 } else { 100.0 * data_bytes as f64 / all as f64 };
        Rail { index, name, data_bytes, data_operations, percent }
    };
    rails.into_iter().map(rail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_all_ranks_are_summed_by_rail() {
        let files = Files::new().unwrap();
        let text = r#"{"rails": [{"index": 0, "name": "127.0.0.1", "data_bytes": 30, "data_operations": 3, "control_bytes": 9},
            {"index": 1, "name": "127.0.0.2", "data_bytes": 10}], "noise": {}}"#;
        fs::write(files.base().with_extension("7"), text).unwrap();
        fs::write(files.base().with_extension("8"), text).unwrap();
        let Found { rails, ledgers } = files.sum();
        assert_eq!(rails.len(), 2);
        assert_eq!(
            (rails[0].data_bytes, rails[0].data_operations, rails[0].percent),
            (60, 6, 75.0)
        );
        assert_eq!(
            (&*rails[1].name, rails[1].data_bytes, rails[1].percent),
            ("127.0.0.2", 20, 25.0)
        );
        assert!(ledgers.is_empty(), "the files have no posts: {ledgers:?}");
        let path = files.base();
        drop(files);
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn posts_are_those_of_the_plugin_and_apart_those_of_the_virtual_fabric() {
        let files = Files::new().unwrap();
        let text = r#"{"rails": [
            {"index": 0, "name": "a", "data_bytes": 1, "data": {"writes": 2}, "control": {"sends": 3, "receives": 99}},
            {"index": 1, "name": "b", "data": {"writes": 5}}], "counters": {"garbage_messages": 4}}"#;
        fs::write(files.base().with_extension("7"), text).unwrap();
        fs::write(files.base().with_extension("8"), text).unwrap();
        let report = "process x\ncounter accepted.write 6\ncounter accepted.writedata 70\ncounter posts.write 800\n\
             counter accepted.inject 9\ncounter accepted.recv 10\n";
        fs::write(files.fabric(), report).unwrap();
        let ledgers = files.sum().ledgers;
        let data = Posts { writes: 14, ..Posts::default() };
        let control = Posts { sends: 6, ..Posts::default() };
        let all = Posts { writes: 76, injected_sends: 9, ..Posts::default() };
        let plugin =
            Ledger { by: Counter::Plugin, sides: vec![("data", data), ("control", control)] };
        assert_eq!(ledgers, [plugin, Ledger { by: Counter::Fabric, sides: vec![("all", all)] }]);
    }
}
