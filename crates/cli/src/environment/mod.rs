//! `ironrail env`: the variables for this machine, with a reason for each, in the syntax of a shell or a container.

mod advice;
mod form;

use std::path::PathBuf;

use clap::Args;
use ironrail_group::error::GroupError;

use crate::doctor;
use crate::output;
use advice::Advice;
use form::Form;

/// Prints the variables that make NCCL use Ironrail on this machine, with a reason for each: ready for eval, or for a container.
///
/// Only what is needed here is printed: many things Ironrail does without a variable.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Environment {
    /// The plugin's folder, as the job will see it [default: where it lies beside this executable]
    #[arg(long, value_name = "FOLDER")]
    plugin: Option<PathBuf>,
    /// Lines for a Dockerfile
    #[arg(long, group = "form")]
    dockerfile: bool,
    /// Lines for a file in enroot's environ.d
    #[arg(long, group = "form")]
    enroot: bool,
    /// A section for an Apptainer definition file
    #[arg(long, group = "form")]
    apptainer: bool,
    /// The head of a Slurm batch script
    #[arg(long, group = "form")]
    slurm: bool,
    /// A folder in place of /, for /sys, /proc and /dev
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  eval \"$(ironrail env)\"                  for this shell and what it starts
  ironrail env --slurm > job.sh           the head of a batch script: write the rest below it
  ironrail env --dockerfile --plugin /opt/ironrail/plugin
  eval \"$(ironrail env)\"; ironrail doctor  and see whether it works";

impl Environment {
    /// Runs the command. Returns whether there is a plugin.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let folder = match &self.plugin {
            Some(folder) => std::path::absolute(folder).map_err(|error| GroupError::System {
                what: "finding the current folder",
                error,
            })?,
            None => crate::plugin::folder().ok_or_else(|| {
                GroupError::Usage(
                    "libnccl-net-ironrail.so does not lie beside this command: name its folder by --plugin".to_owned(),
                )
            })?,
        };
        if folder.to_str().is_none_or(|name| name.contains([':', ';', '\n'])) {
            return Err(GroupError::Usage(format!(
                "{} cannot be in LD_LIBRARY_PATH: no colon, semicolon or line end may be in a folder's name there, and it is UTF-8",
                folder.display()
            )));
        }
        let form = match () {
            () if self.dockerfile => Form::Dockerfile,
            () if self.enroot => Form::Enroot,
            () if self.apptainer => Form::Apptainer,
            () if self.slurm => Form::Slurm,
            () => Form::Shell,
        };
        let advice = Advice::of(&doctor::surroundings(&self.root), &folder);
        output::line(form.text(&advice).trim_end());
        Ok(true)
    }
}
