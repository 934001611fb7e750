//! The answers of this command's child processes: lines of standard output that a mark begins, since the plugin may print there too.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output;

/// What stands before an answer. The plugin may have printed to the same line.
pub(crate) const MARK: &str = "ironrail-answer: ";

/// In a child: writes an answer.
pub(crate) fn say(answer: &impl Serialize) {
    match serde_json::to_string(answer) {
        Ok(text) => output::line(format_args!("{MARK}{text}")),
        Err(error) => output::print_error(error),
    }
}

/// The answer in a line of a child, and what was printed before it: the whole line, if it has no answer.
pub(crate) fn split<T: DeserializeOwned>(line: &str) -> (&str, Option<T>) {
    let answer = line
        .split_once(MARK)
        .and_then(|(printed, text)| Some((printed, serde_json::from_str(text).ok()?)));
    answer.map_or((line, None), |(printed, answer)| (printed, Some(answer)))
}

/// The answer in a line of a child.
pub(crate) fn find<T: DeserializeOwned>(line: &str) -> Option<T> {
    split(line).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_behind_what_was_printed_to_its_line() {
        assert_eq!(split::<u8>("ironrail-answer: 7"), ("", Some(7)));
        assert_eq!(split::<u8>("loadingironrail-answer: 7"), ("loading", Some(7)));
        for line in ["7", "ironrail-answer: 777", "ironrail-answer: ", ""] {
            assert_eq!(split::<u8>(line), (line, None));
        }
    }
}
