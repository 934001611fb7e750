//! Output: results on standard output, errors on standard error.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use anstream::{AutoStream, ColorChoice};
use ironrail_group::error::GroupError;

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

/// Writes a line to standard output; [`end`] reports what fails. Colours are kept on a terminal, unless NO_COLOR is set.
pub(crate) fn line(text: impl fmt::Display) {
    note(writeln!(out(), "{text}"));
}

/// Writes text that contains its line ends.
pub(crate) fn text(text: impl fmt::Display) {
    note(write!(out(), "{text}"));
}

/// Writes bytes as they are. False if they cannot be written.
pub(crate) fn bytes(bytes: &[u8]) -> bool {
    let written = io::stdout().lock().write_all(bytes);
    let well = written.is_ok();
    note(written);
    well
}

/// The first error of standard output.
static FAILED: OnceLock<io::Error> = OnceLock::new();

fn note(written: io::Result<()>) {
    if let Err(error) = written {
        FAILED.get_or_init(|| error);
    }
}

/// Whether nothing more can be written: the reader has left, for instance.
pub(crate) fn is_over() -> bool {
    FAILED.get().is_some()
}

/// Writes what is left.
///
/// # Errors
///
/// If not all of the output was written. A closed pipe is not an error: its reader may stop early.
pub(crate) fn end() -> Result<(), GroupError> {
    note(io::stdout().flush());
    failure().map_or(Ok(()), Err)
}

/// Why output was not written, as far as it was tried. A closed pipe is not an error here either.
pub(crate) fn failure() -> Option<GroupError> {
    let error = FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
    let error = io::Error::new(error.kind(), error.to_string());
    Some(GroupError::System { what: "writing to standard output", error })
}

/// Writes to standard error how far a command of minutes has come, so that its results stand alone on standard output.
pub(crate) fn progress(what: impl fmt::Display) {
    print_error(what);
}

/// Writes bytes to standard error. False if they cannot be written.
pub(crate) fn error_bytes(bytes: &[u8]) -> bool {
    io::stderr().write_all(bytes).is_ok()
}

/// Writes one sentence to standard error, by one write, since ranks share the terminal.
pub(crate) fn print_error(what: impl fmt::Display) {
    let line = format!("ironrail: {what}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The same in a thread of its own, for a caller that must go on where nobody reads standard error.
pub(crate) fn print_error_apart(what: String) -> JoinHandle<()> {
    thread::spawn(move || print_error(what))
}
