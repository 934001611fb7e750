//! Output: results on standard output, errors on standard error.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};

/// Reads from the environment whether standard output shows colours. It is not read later: a plugin may change the environment when it
/// starts, and getenv(3) in another thread is not safe then.
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

/// Writes a line to standard output. A closed pipe is not an error. Colours are kept on a terminal, unless NO_COLOR is set.
pub(crate) fn line(text: impl fmt::Display) {
    let _ = writeln!(out(), "{text}");
}

/// Writes text that contains its line ends.
pub(crate) fn text(text: impl fmt::Display) {
    let _ = write!(out(), "{text}");
}

/// Writes to standard error how far a command of minutes has come, so that its results stand alone on standard output.
pub(crate) fn progress(what: impl fmt::Display) {
    print_error(what);
}

/// Writes one sentence to standard error, by one write, since ranks share the terminal.
pub(crate) fn print_error(what: impl fmt::Display) {
    let line = format!("ironrail: {what}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
