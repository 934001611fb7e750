//! `ironrail doctor`: what would happen if NCCL started here, now, with this environment.
//!
//! ```text
//! read ──▶ Machine (data) ──▶ checks (pure) ──▶ findings ──▶ report
//!  └─ child: whatever may crash or hang is loaded in a process of its own
//! ```

mod checks;
mod child;
mod finding;
mod group;
mod machine;
mod pairs;
mod read;
mod report;
mod said;
mod transfer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ironrail_group::error::GroupError;

use crate::values::seconds;
use crate::{files, open_files, output, signals};
use finding::Level;
use group::Ranks;
pub(crate) use machine::Machine;
#[cfg(test)]
pub(crate) use machine::{Cxi, Libfabric, Offer, Rdma};
use machine::{Group, Pair};
use read::Place;
use report::Report;
use said::Probe;

/// Reports what would happen if NCCL started here, now, with this environment: needs neither NCCL nor a GPU.
///
/// Each line is a finding: ok, warn or FAIL, what was found, and what to do. Causes stand before their consequences, so the first
/// FAIL is the one to cure. The plugin is loaded as NCCL would load it, in a process of its own, and moves checked messages to
/// itself. Exit code: 0 without a FAIL, 1 with one, 2 for a wrong command line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct Doctor {
    /// Check this plugin, as if NCCL_NET_PLUGIN named it: a word, a file, or a list of them
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    /// Write the findings as JSON, to a file or, without one, to standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Count warn as FAIL in the exit code
    #[arg(long)]
    strict: bool,
    /// Seconds that the plugin may take for a step
    #[arg(long, default_value = "20", value_name = "SECONDS", value_parser = seconds(0.001, 3600.0))]
    timeout: Duration,
    /// Write what was read of this machine to a file, for `--machine` elsewhere, and judge nothing
    #[arg(long, value_name = "FILE")]
    describe: Option<PathBuf>,
    /// Judge what `--describe` has written; for several machines, also the differences between them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["describe", "net", "ranks", "peer", "hosts"], num_args = 1..)]
    machine: Vec<PathBuf>,
    #[command(flatten)]
    ranks: Ranks,
    /// Also print what each check without a problem looked at, and the plugin's log
    #[arg(short, long)]
    verbose: bool,
    /// A folder in place of /, for /sys, /proc and /dev
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
    /// This process is a child that probes something
    #[arg(long, hide = true)]
    probe: Option<Probe>,
    /// The process of this command that started this one, here
    #[arg(long, hide = true, value_name = "PROCESS")]
    launcher: Option<u32>,
    /// The limit of open files of that process's user, which it has raised for itself
    #[arg(long, hide = true, value_name = "COUNT")]
    files: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  ironrail doctor                        what would happen here, now
  srun -N1 ironrail doctor --json a.json the same inside of a job
  ironrail doctor --net ofi              of another plugin
  ironrail doctor --peer node2           and between this machine and another
  ironrail doctor --hosts hosts -n 8     eight ranks on the machines that a file names
  ironrail doctor --describe node7.json  on a machine that others cannot log in to
  ironrail doctor --machine node7.json   and on one's own
  ironrail doctor --machine node*.json   what differs between several";

impl Doctor {
    /// Runs the command. Returns whether there is no problem.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let wait = self.timeout;
        if self.launcher.is_some_and(|launcher| !signals::end_with(launcher)) {
            return Ok(false);
        }
        // What is read and tried here is what the user's processes may.
        if let Some(files) = self.files {
            open_files::limit(files);
        }
        if let Some(probe) = self.probe {
            child::run(probe, self.net.as_deref().unwrap_or_default(), wait);
            return Ok(true);
        }
        let group = if self.ranks.is_asked() {
            group::describe_all(&self.ranks, &self.of_one(), wait)?
        } else if self.machine.is_empty() {
            let place = Place { root: self.root.clone(), net: self.net.clone(), wait };
            Group { ranks: vec![read::machine(&place)], ..Group::default() }
        } else {
            described(&self.machine)?
        };
        if let Some(file) = &self.describe {
            write_json(file, &group)?;
            return Ok(true);
        }
        let report = judge(&group);
        match &self.json {
            Some(file) => write_json(file, &report)?,
            None => {
                report.print(self.verbose);
                if self.verbose {
                    group.ranks.iter().for_each(report::print_log);
                }
            }
        }
        let worst = report.worst();
        Ok(worst < if self.strict { Level::Warn } else { Level::Fail })
    }
}

impl Doctor {
    /// The command line of each rank.
    fn of_one(&self) -> Vec<String> {
        let mut arguments = vec!["--timeout".to_owned(), self.timeout.as_secs_f64().to_string()];
        arguments.extend(self.net.iter().flat_map(|net| ["--net".to_owned(), net.clone()]));
        arguments
    }
}

/// This machine without its plugins, with /sys, /proc and /dev below `root`.
pub(crate) fn surroundings(root: &Path) -> Machine {
    let wait = Duration::from_secs(20);
    read::surroundings(&Place { root: root.to_owned(), net: None, wait })
}

/// The variables that NCCL's own files add to this process's environment.
pub(crate) fn settings_of_files() -> BTreeMap<String, String> {
    read::settings_of_files()
}

fn judge(group: &Group) -> Report {
    match group.ranks.as_slice() {
        // A rank that was not reached has no description.
        [alone] if alone.unreachable.is_none() => Report::new(&alone.host, 1, checks::all(alone)),
        ranks => {
            let hosts: Vec<_> = ranks.iter().map(|one| one.host.as_str()).collect();
            Report::new(&hosts.join(","), ranks.len(), checks::group(group))
        }
    }
}

/// All ranks of all files, in order.
fn described(files: &[PathBuf]) -> Result<Group, GroupError> {
    let mut all = Group { apart: files.len() > 1, ..Group::default() };
    for file in files {
        let group: Group = serde_json::from_str(&files::read(file)?).map_err(|error| {
            files::unusable(
                file,
                format!("it is not what `ironrail doctor --describe` writes: {error}"),
            )
        })?;
        if group.ranks.is_empty() {
            return Err(files::unusable(file, "it describes no machine"));
        }
        let ranks = group.ranks.len();
        if let Some(pair) = group.pairs.iter().find(|pair| pair.from.max(pair.to) >= ranks) {
            let Pair { from, to, .. } = pair;
            return Err(files::unusable(
                file,
                format!("it has a pair of rank {from} and rank {to}, and does not describe both"),
            ));
        }
        let before = all.ranks.len();
        all.ranks.extend(group.ranks);
        all.pairs.extend(group.pairs.into_iter().map(|pair| Pair {
            from: pair.from + before,
            to: pair.to + before,
            ..pair
        }));
    }
    Ok(all)
}

fn write_json(file: &Path, value: &impl serde::Serialize) -> Result<(), GroupError> {
    files::write(file, &(output::json(value)? + "\n"))
}
