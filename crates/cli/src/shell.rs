//! Words in the syntax of a shell.

/// Quotes a word for a shell, unless every shell takes it as it is.
pub(crate) fn quoted(word: &str) -> String {
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:,=@%".contains(letter);
    if !word.is_empty() && word.chars().all(harmless) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_word_survives_a_shell() {
        for word in ["", "/opt/x-1.0", "NCCL_NET=Ironrail", "it's $HOME; \"x\" `y`", "a b", "~"] {
            let script = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output();
            assert_eq!(output.unwrap().stdout, word.as_bytes());
        }
    }

    #[test]
    fn a_word_without_special_letters_stays_as_it_is() {
        assert_eq!(quoted("NCCL_NET=Ironrail"), "NCCL_NET=Ironrail");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted(""), "''");
    }
}
