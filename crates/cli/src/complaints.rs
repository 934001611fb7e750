//! The standard error of ranks, shown line by line: a warning that several ranks have is one line.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::output;

/// The warnings of all ranks so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<HashMap<Vec<u8>, Times>>>);

/// How often a line was shown, and how often each rank has written it.
#[derive(Debug, Default)]
struct Times {
    shown: usize,
    written: BTreeMap<usize, usize>,
}

impl Complaints {
    /// Shows a line of a rank, unless it is a warning that another rank had first. It is not held back to name all ranks that have it: a rank
    /// may warn of what it waits for.
    pub(crate) fn show(&self, rank: usize, line: &[u8]) {
        if !line.starts_with(WARNING) || self.is_new(rank, line) {
            output::error_bytes(line);
        }
    }

    /// Whether no other rank has written this line as often as this one now has.
    fn is_new(&self, rank: usize, line: &[u8]) -> bool {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_MAX && !lines.contains_key(line) {
            return true;
        }
        let Times { shown, written } = lines.entry(line.to_owned()).or_default();
        let times = written.entry(rank).or_default();
        *times += 1;
        let is_new = *times > *shown;
        *shown = (*shown).max(*times);
        is_new
    }
}

/// How the logger of this command begins a warning's line.
const WARNING: &[u8] = b"[WARN";
/// The most different warnings that are remembered: later ones are shown for each rank.
const LINES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_several_ranks_is_new_once_each_time_that_they_write_it() {
        let complaints = Complaints::default();
        let new = |rank, line: &str| complaints.is_new(rank, line.as_bytes());
        assert!(new(1, "late"));
        assert!(!new(0, "late") && !new(2, "late"));
        assert!(new(0, "later"));
        assert!(new(2, "late"), "it warns again");
        assert!(!new(1, "late") && !new(0, "late"));
    }

    #[test]
    fn with_very_many_different_lines_none_is_lost() {
        let complaints = Complaints::default();
        for number in 0..2 * LINES_MAX {
            assert!(complaints.is_new(0, number.to_string().as_bytes()));
        }
        assert!(!complaints.is_new(1, b"0"));
        assert_eq!(complaints.0.lock().unwrap().len(), LINES_MAX);
    }
}
