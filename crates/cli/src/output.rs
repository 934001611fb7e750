//! Where words go: results to standard output, complaints to standard error.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard output. A closed pipe is the reader's choice, not an error. Colours stay where a terminal shows them,
/// and NO_COLOR is unset.
pub(crate) fn line(text: impl fmt::Display) {
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

/// Writes text that has its own line ends.
pub(crate) fn text(text: impl fmt::Display) {
    let _ = write!(anstream::stdout().lock(), "{text}");
}

/// One sentence on standard error.
pub(crate) fn complain(what: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "ironrail: {what}");
}
