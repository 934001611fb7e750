//! The standard error of ranks, shown line by line: a warning that several ranks have is shown once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::output;

/// The warnings of all ranks so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<Warnings>>);

#[derive(Debug, Default)]
struct Warnings {
    lines: HashMap<Vec<u8>, Times>,
    /// The ranks whose last line is part of a warning, each with the lines of the warning that were not shown because another rank had
    /// written them.
    open: BTreeMap<usize, Vec<u8>>,
    /// The warning that was shown last, without another line after it.
    last: Vec<u8>,
}

/// How often a line was shown, and how often each rank has written it.
#[derive(Debug, Default)]
struct Times {
    shown: usize,
    written: BTreeMap<usize, usize>,
}

impl Complaints {
    /// Shows a line of a rank, unless it is a warning that another rank has written before. A warning is shown at once, without the list of
    /// all ranks that write it: a rank may warn of something that it then waits for.
    pub(crate) fn show(&self, rank: usize, line: &[u8]) {
        // Shown under the lock, so that a further line does not come before the line that it follows.
        let mut warnings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        output::error_bytes(&warnings.unseen(rank, line));
    }
}

impl Warnings {
    /// The lines of a warning that are to be shown with this line. If only a further line is new, they begin with the warning's first line,
    /// unless that was shown last, for a rank whose further line has not come yet.
    fn unseen(&mut self, rank: usize, line: &[u8]) -> Vec<u8> {
        let before = self.open.remove(&rank);
        let before = match before {
            _ if line.starts_with(WARNING) => Vec::new(),
            Some(before) if line.starts_with(FURTHER) => before,
            _ => {
                self.last.clear();
                return line.to_owned();
            }
        };
        if !self.is_new(rank, line) {
            self.open.insert(rank, [before, line.to_owned()].concat());
            return Vec::new();
        }
        self.open.insert(rank, Vec::new());
        let is_begun = line.starts_with(FURTHER) && (before.is_empty() || before == self.last);
        let new = if is_begun { line.to_owned() } else { [&before, line].concat() };
        if !is_begun {
            self.last.clear();
        }
        self.last.extend_from_slice(&new);
        new
    }

    /// Whether no other rank has written this line as often as this rank now has.
    fn is_new(&mut self, rank: usize, line: &[u8]) -> bool {
        if self.lines.len() == LINES_MAX && !self.lines.contains_key(line) {
            return true;
        }
        let Times { shown, written } = self.lines.entry(line.to_owned()).or_default();
        let times = written.entry(rank).or_default();
        *times += 1;
        let is_new = *times > *shown;
        *shown = (*shown).max(*times);
        is_new
    }
}

/// The start of the first line of a warning, from this command's logger.
const WARNING: &[u8] = b"[WARN";
/// The start of the further lines of a warning.
const FURTHER: &[u8] = b"    ";
/// The most different warnings that are remembered: later ones are shown for each rank.
const LINES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_several_ranks_is_new_once_each_time_that_they_write_it() {
        let mut warnings = Warnings::default();
        let mut new = |rank, line: &str| warnings.is_new(rank, line.as_bytes());
        assert!(new(1, "late"));
        assert!(!new(0, "late") && !new(2, "late"));
        assert!(new(0, "later"));
        assert!(new(2, "late"), "the rank writes the warning again");
        assert!(!new(1, "late") && !new(0, "late"));
    }

    #[test]
    fn a_warning_of_several_lines_is_new_as_far_as_no_other_rank_has_it() {
        let mut warnings = Warnings::default();
        let mut new = |rank, line: &str| String::from_utf8(warnings.unseen(rank, line.as_bytes()));
        for (rank, line, shown) in [
            (0, "[WARN a] late\n", "[WARN a] late\n"),
            (1, "[WARN a] late\n", ""),
            (0, "    by 1 s\n", "    by 1 s\n"),
            (1, "    by 1 s\n", ""),
            (2, "[WARN a] late\n", ""),
            (2, "    by 2 s\n", "[WARN a] late\n    by 2 s\n"),
            (2, "    at last\n", "    at last\n"),
            // A line that is no warning is shown for each rank.
            (0, "printed\n", "printed\n"),
            (1, "printed\n", "printed\n"),
            (1, "    by 1 s\n", "    by 1 s\n"),
            // The further lines of two ranks come before that of the rank whose first line was shown.
            (0, "[WARN b] soon\n", "[WARN b] soon\n"),
            (1, "[WARN b] soon\n", ""),
            (2, "[WARN b] soon\n", ""),
            (1, "    in 1 s\n", "    in 1 s\n"),
            (2, "    in 2 s\n", "[WARN b] soon\n    in 2 s\n"),
            (0, "    in 1 s\n", ""),
        ] {
            assert_eq!(new(rank, line).as_deref(), Ok(shown), "rank {rank}: {line}");
        }
    }

    #[test]
    fn with_very_many_different_lines_none_is_lost() {
        let mut warnings = Warnings::default();
        for number in 0..2 * LINES_MAX {
            assert!(warnings.is_new(0, number.to_string().as_bytes()));
        }
        assert!(!warnings.is_new(1, b"0"));
        assert_eq!(warnings.lines.len(), LINES_MAX);
    }
}
