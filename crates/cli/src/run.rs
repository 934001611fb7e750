//! `ironrail run`: starts a program once per rank, as one job.

mod job;
mod lines;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Command, Stdio};

use clap::Args;
use ironrail_group::bootstrap::{Hub, RANKS_MAX};
use ironrail_group::error::GroupError;
use ironrail_group::launch::MEETING_VARIABLE;
use ironrail_group::patience;

use crate::values::whole;
use crate::{loopback, open_files, signals};
use job::Job;

/// Starts a program once per rank, on this machine.
///
/// Each rank finds its number and the others by its environment, as ironrail-group reads it; RANK, WORLD_SIZE and LOCAL_RANK are set too. Lines
/// of output begin with their rank. When a rank fails, the others are killed, with the processes that ranks have started; the exit code is the
/// first one that is not 0. INT, TERM, HUP and QUIT are passed to the ranks and end the job; the exit code is then 128 plus the signal's number.
/// TSTP (Ctrl-Z) stops the launcher and the ranks, CONT (`fg`) continues them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = whole(1, RANKS_MAX))]
    ranks: usize,
    /// Seconds after which ranks that still run are killed, with code 124; 0: never
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = whole(0, u64::MAX))]
    timeout: u64,
    /// Become the program, as a rank of this launcher
    #[arg(long, hide = true, value_name = "PROCESS")]
    launcher: Option<u32>,
    /// The limit of open files of that rank
    #[arg(long, hide = true, value_name = "COUNT")]
    files: Option<u64>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  ironrail run -n 4 -- python train.py       four ranks of a program
  ironrail run -n 2 --timeout 60 -- ./test   killed after a minute";

impl Run {
    /// Runs all ranks to their end. Returns the exit code of the job.
    pub(crate) fn run(&self) -> Result<u8, GroupError> {
        if let Some(launcher) = self.launcher {
            self.execute(launcher);
            return Ok(1);
        }
        let files = open_files::allow_all();
        // Each rank has a limit of its own for the wait.
        let hub = loopback::hub(self.ranks, patience::LONGEST)?;
        let mut job = Job::new(self.timeout)?;
        for rank in 0..self.ranks {
            let added = job.add(rank, self.start(rank, &hub, files)?);
            added.map_err(|error| GroupError::System { what: "starting a rank", error })?;
            if job.is_interrupted() {
                break;
            }
        }
        Ok(job.run())
    }

    /// Starts a rank in a process group of its own, to which the processes that it starts belong. Called by the main thread only: a rank is
    /// killed when the thread that started it ends (PR_SET_PDEATHSIG(2const)).
    fn start(&self, rank: usize, hub: &Hub, files: Option<u64>) -> Result<Child, GroupError> {
        let own = std::env::current_exe()
            .map_err(|error| GroupError::System { what: "finding this executable", error })?;
        let system = |error| GroupError::System { what: "starting a rank", error };
        let (mut failure, report) = io::pipe().map_err(system)?;
        // The command keeps `report` open, and is gone after this statement.
        let mut child = Command::new(own)
            .args(["run", "-n", "1", "--launcher", &process::id().to_string()])
            .args(files.map(|files| format!("--files={files}")))
            .arg("--")
            .args(&self.program)
            .env(MEETING_VARIABLE, hub.meeting(rank).to_string())
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .process_group(0)
            .stdin(report)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(system)?;
        let mut code = [0; 4];
        if failure.read_exact(&mut code).is_ok() {
            let _ = child.wait();
            let name = self.program[0].to_string_lossy();
            let error = io::Error::from_raw_os_error(i32::from_ne_bytes(code));
            return Err(GroupError::Usage(format!("{name} cannot be started: {error}")));
        }
        Ok(child)
    }

    /// Executes the program in place of this one; the kernel kills it when the launcher dies. Reports an error on the pipe that is standard
    /// input; the program closes it unused.
    fn execute(&self, launcher: u32) {
        let launcher_lives = signals::end_with(launcher);
        // select(2) takes no descriptor from 1,024 on, and the program may call it.
        if let Some(files) = self.files {
            open_files::limit(files);
        }
        let Ok(report) = io::stdin().as_fd().try_clone_to_owned() else { return };
        if launcher_lives {
            let (program, arguments) = self.program.split_first().expect("clap requires one");
            let error = Command::new(program).args(arguments).stdin(Stdio::null()).exec();
            let code = error.raw_os_error().unwrap_or_default();
            let _ = File::from(report).write_all(&code.to_ne_bytes());
        }
    }
}
