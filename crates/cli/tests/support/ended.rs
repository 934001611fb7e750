//! Commands that end, with what they said.

use std::process::{Command, Output};

/// The exit code, and the texts of standard output and standard error.
pub(crate) fn ended(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}
