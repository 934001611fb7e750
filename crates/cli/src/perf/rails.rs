//! Bytes per rail, from the files that the plugin leaves when `IRONRAIL_STATS_FILE` asks for them.
//!
//! One file per process, the path with `.pid` behind it, one line per rail: `rail <index> <name>` and pairs of a word
//! and a number. Words that are not known are left alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use serde::Serialize;

/// Names the file to the plugin.
pub(super) const VARIABLE: &str = "IRONRAIL_STATS_FILE";
/// Names the directory to the ranks, who remove it when their launcher no longer can.
pub(super) const FOLDER: &str = "IRON_PERF_FILES";

/// In a rank whose launcher is gone, or cannot be told of its end.
pub(super) fn abandon() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let _ = fs::remove_dir_all(folder);
    }
}

/// What one rail carried, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Rail {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) data_bytes: u64,
    pub(super) data_operations: u64,
    /// Of the bytes of all rails.
    pub(super) percent: f64,
}

/// A private directory for the ranks' files. Goes when dropped.
#[derive(Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn new() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let base = std::env::temp_dir();
        for attempt in 0..100 {
            let path = base.join(format!("ironrail-{}-{attempt}", process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// What the variable is set to.
    pub(super) fn base(&self) -> PathBuf {
        self.0.join("rails")
    }

    /// The sum over all files, by rail; empty when the plugin leaves none.
    pub(super) fn sum(&self) -> Vec<Rail> {
        sum(&self.0).unwrap_or_default()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sum(directory: &Path) -> io::Result<Vec<Rail>> {
    let mut rails = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        add(&mut rails, &fs::read_to_string(entry?.path())?);
    }
    Ok(shares(rails))
}

type Sums = BTreeMap<(u32, String), (u64, u64)>;

fn add(rails: &mut Sums, text: &str) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some("rail"), Some(Ok(index)), Some(name)) =
            (words.next(), words.next().map(str::parse), words.next())
        else {
            continue;
        };
        let sums = rails.entry((index, name.to_owned())).or_default();
        while let (Some(word), Some(value)) = (words.next(), words.next()) {
            let value: u64 = value.parse().unwrap_or(0);
            match word {
                "data_bytes" => sums.0 += value,
                "data_operations" => sums.1 += value,
                _ => {}
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share in percent")]
fn shares(rails: Sums) -> Vec<Rail> {
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
        let line = "rail 0 127.0.0.1 data_bytes 30 data_operations 3 control_bytes 9\nrail 1 127.0.0.2 data_bytes 10\nnoise\n";
        fs::write(files.base().with_extension("7"), line).unwrap();
        fs::write(files.base().with_extension("8"), line).unwrap();
        let rails = files.sum();
        assert_eq!(rails.len(), 2);
        assert_eq!(
            (rails[0].data_bytes, rails[0].data_operations, rails[0].percent),
            (60, 6, 75.0)
        );
        assert_eq!(
            (&*rails[1].name, rails[1].data_bytes, rails[1].percent),
            ("127.0.0.2", 20, 25.0)
        );
        let path = files.base();
        drop(files);
        assert!(!path.parent().unwrap().exists());
    }
}
