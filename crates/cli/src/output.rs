//! Output: results on standard output, errors on standard error.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use anstream::{AutoStream, ColorChoice};
use ironrail_group::error::GroupError;
pub(crate) use ironrail_group::error::{is_shown, shown};
use serde::Serialize;

/// Reads from the environment whether standard output shows colours. The environment is not read later: a plugin may change it when it
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

/// Writes a line to standard output; [`end`] reports an error. Colours are kept on a terminal, unless NO_COLOR is set.
pub(crate) fn line(text: impl fmt::Display) {
    note(writeln!(out(), "{text}"));
}

/// Writes text that contains its line ends.
pub(crate) fn text(text: impl fmt::Display) {
    note(write!(out(), "{text}"));
}

/// The lines that ranks have sent about themselves, one of each.
pub(crate) fn lines_of_ranks(lines: &[Vec<u8>]) -> Vec<String> {
    lines.iter().map(|line| shown(&String::from_utf8_lossy(line))).collect()
}

/// A value as indented JSON that is safe for a terminal: JSON itself escapes U+0000 to U+001F only.
pub(crate) fn json(value: &impl Serialize) -> Result<String, GroupError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| GroupError::Usage(format!("this cannot be written as JSON: {error}")))?;
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter == '\n' || is_shown(letter) {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Ok(escaped)
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

/// Whether nothing more can be written, for instance because the reader has closed the pipe.
pub(crate) fn is_over() -> bool {
    FAILED.get().is_some()
}

/// Flushes standard output.
///
/// # Errors
///
/// If not all of the output was written. A closed pipe is not an error: its reader may stop early.
pub(crate) fn end() -> Result<(), GroupError> {
    note(io::stdout().flush());
    failure().map_or(Ok(()), Err)
}

/// The error of an earlier write to standard output, if there was one. A closed pipe is not an error here either.
pub(crate) fn failure() -> Option<GroupError> {
    let error = FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
    let error = io::Error::new(error.kind(), error.to_string());
    Some(GroupError::System { what: "writing to standard output", error })
}

/// Writes the progress of a command that takes minutes to standard error, so that standard output has only its results.
pub(crate) fn progress(what: impl fmt::Display) {
    print_error(what);
}

/// Writes bytes to standard error. False if they cannot be written.
pub(crate) fn error_bytes(bytes: &[u8]) -> bool {
    io::stderr().write_all(bytes).is_ok()
}

/// Writes the causes of a failure to standard error: one line for all ranks with the same error.
pub(crate) fn print_causes(causes: &[String]) {
    merged(causes).iter().for_each(print_error);
}

fn merged(causes: &[String]) -> Vec<String> {
    let mut by_error: Vec<(Vec<usize>, &str)> = Vec::new();
    for cause in causes {
        let Some((rank, error)) = of_rank(cause) else {
            by_error.push((Vec::new(), cause));
            continue;
        };
        match by_error.iter_mut().find(|(ranks, known)| !ranks.is_empty() && *known == error) {
            Some((ranks, _)) => ranks.push(rank),
            None => by_error.push((vec![rank], error)),
        }
    }
    let line = |(mut ranks, error): (Vec<usize>, &str)| {
        ranks.sort_unstable();
        if ranks.is_empty() { error.to_owned() } else { format!("{}: {error}", named(&ranks)) }
    };
    by_error.into_iter().map(line).collect()
}

/// The parts of `rank 2: the error`.
fn of_rank(cause: &str) -> Option<(usize, &str)> {
    let (rank, error) = cause.strip_prefix("rank ")?.split_once(": ")?;
    Some((rank.parse().ok()?, error))
}

/// Ranks as text: `rank 2` or `ranks 1, 3`.
pub(crate) fn named(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let list: Vec<_> = ranks.iter().take(SHOWN).map(usize::to_string).collect();
    let more = if ranks.len() > SHOWN {
        format!(" and {} more", ranks.len() - SHOWN)
    } else {
        String::new()
    };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// Writes one sentence to standard error, by one write, since ranks share the terminal.
pub(crate) fn print_error(what: impl fmt::Display) {
    let line = format!("ironrail: {what}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// As [`print_error`], in a separate thread, for a caller that must continue even if standard error is not read. None: there is no more
/// thread, and it is printed already.
pub(crate) fn print_error_apart(what: String) -> Option<JoinHandle<()>> {
    let copy = what.clone();
    let started = thread::Builder::new().spawn(move || print_error(copy));
    started.map_err(|_| print_error(what)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_hosts_give_the_terminal_no_command() {
        assert_eq!(shown("eth0\u{1b}[2J\u{9b}31m\nok"), "eth0?[2J?31m?ok");
        for text in ["größe 1 µs", "'a' \"b\" c\\d", "節点7"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn names_of_other_hosts_neither_hide_nor_reverse_the_text_beside_them() {
        assert_eq!(shown("a\u{202e}b\u{2066}c\u{200f}d\u{61c}"), "a?b?c?d?");
        assert_eq!(shown("no\u{200b}de\u{feff}\u{2028}\u{ad}\u{e0041}"), "no?de????");
    }

    #[test]
    fn the_line_of_a_rank_stays_one_line_and_gives_the_terminal_no_command() {
        let lines = [b"Rank 0 [a]".to_vec(), b"Rank 1 [\x1b[2Jb]\nRank 2".to_vec()];
        assert_eq!(lines_of_ranks(&lines), ["Rank 0 [a]", "Rank 1 [?[2Jb]?Rank 2"]);
    }

    #[test]
    fn json_is_shown_as_it_is_and_keeps_each_letter() {
        let text = "a\u{1b}[2J\u{9b}2J\u{7f}\nö\u{202e}\u{e0041}'\"\\";
        let json = json(&[text]).unwrap();
        let is_turned = |letter| "\u{1b}\u{9b}\u{7f}\u{202e}\u{e0041}".contains(letter);
        assert!(!json.contains(is_turned), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
    }

    #[test]
    fn ranks_with_the_same_error_share_a_line_and_the_first_cause_stays_first() {
        let causes =
            ["rank 3: no rail", "rank 1 died of signal 9", "rank 2: late", "rank 0: no rail"];
        let merged = merged(&causes.map(str::to_owned));
        assert_eq!(merged, ["ranks 0, 3: no rail", "rank 1 died of signal 9", "rank 2: late"]);
    }
}
