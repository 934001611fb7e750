//! Shell completions and manual pages, generated from the command line's definition.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use ironrail_group::error::GroupError;

use crate::{files, output};

/// Prints a shell's completions.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell
    shell: Shell,
}

/// Prints the manual page, or writes the pages of all commands into a folder.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, such as `share/man/man1`
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Completions {
    /// Always succeeds.
    pub(crate) fn run(&self, mut command: Command) -> Result<bool, GroupError> {
        let name = command.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut text);
        output::bytes(&text);
        Ok(true)
    }
}

impl Man {
    /// Always succeeds.
    pub(crate) fn run(&self, command: Command) -> Result<bool, GroupError> {
        let Some(folder) = &self.folder else {
            output::bytes(&page(command)?);
            return Ok(true);
        };
        let unwritable = |error| GroupError::System {
            what: "writing a manual page",
            error: files::of(folder, error),
        };
        fs::create_dir_all(folder).map_err(unwritable)?;
        clap_mangen::generate_to(command, folder).map_err(unwritable)?;
        Ok(true)
    }
}

fn page(command: Command) -> Result<Vec<u8>, GroupError> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|error| GroupError::System { what: "making a manual page", error })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Empty;

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let man = Man { folder: Some("/proc/no/such/folder".into()) };
        let why = man.run(Empty::command()).unwrap_err().to_string();
        assert!(why.starts_with("writing a manual page: /proc/no/such/folder: "), "{why}");
    }
}
