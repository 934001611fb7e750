//! Where words go: results to standard output, complaints to standard error.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};

/// Reads from the environment whether standard output shows colours. Nothing here reads it later: a plugin may change the environment
/// as it starts, which getenv(3) of another thread does not survive.
pub(crate) fn settle() {
    choice();
}

fn choice() -> ColorChoice {
    static CHOICE: OnceLock<ColorChoice> = OnceLock::new();
    *CHOICE.get_or_init(|| AutoStream::choice(&io::stdout()))
}

fn out() -> AutoStream<io::StdoutLock<'static>> {
    AutoStream::new(io::stdout().lock(), choice())
}

/// Writes a line to standard output. A closed pipe is the reader's choice, not an error. Colours stay where a terminal shows them,
/// and NO_COLOR is unset.
pub(crate) fn line(text: impl fmt::Display) {
    let _ = writeln!(out(), "{text}");
}

/// Writes text that has its own line ends.
pub(crate) fn text(text: impl fmt::Display) {
    let _ = write!(out(), "{text}");
}

/// One sentence on standard error.
pub(crate) fn complain(what: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "ironrail: {what}");
}
