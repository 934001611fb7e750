//! `ironrail conform`: tests any NCCL net plugin for the behaviours that NCCL relies on.
//!
//! ```text
//!   supervisor ─▶ worker, one or two processes per behaviour ─▶ behaviours ─▶ traffic, groups, link ─▶ the plugin
//!        │                                                          behaviour: its definition; table: all of them, with their sources
//!        └─▶ report: a line per behaviour, the counts, JSON
//! ```
//! The plugin is never loaded into the supervisor: one that crashes, hangs or leaks fails the current behaviour only.

mod behaviour;
mod behaviours;
mod case;
mod groups;
mod link;
mod pace;
mod report;
mod said;
mod supervisor;
mod table;
mod traffic;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ironrail_group::error::GroupError;
use net_loader::{NEWEST, OLDEST};

use crate::values::whole;
use behaviour::{Behaviour, Shape};

/// Tests a net plugin for the behaviours that NCCL relies on, each in processes of its own.
///
/// One line per behaviour, beginning with pass, FAIL or skip and its reason, then the counts. Exit code: 0 when nothing
/// failed, 1 when something did, 2 when the command line is wrong.
#[derive(Clone, Debug, Args)]
pub(crate) struct Conform {
    /// The plugin: a file, or a word as in NCCL_NET_PLUGIN [default: Ironrail, next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    #[arg(
        long,
        value_name = "N|all",
        help = format!("The table to use: {OLDEST} to {NEWEST}, or all that the plugin has [default: its newest]")
    )]
    abi: Option<String>,
    /// Only these behaviours
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// All but these behaviours
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    except: Vec<String>,
    /// Lists the behaviours, and what NCCL expects, without a plugin
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// The same as a page of documentation
    #[arg(long, hide = true)]
    markdown: bool,
    /// Results as JSON: to FILE, or in place of the lines
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Count skipped behaviours as failed: for machines where everything should be tested
    #[arg(long)]
    no_skip: bool,
    /// Also behaviours that need gigabytes of memory
    #[arg(long)]
    large: bool,
    /// Two threads of one process in place of two processes, for fabrics within one process; leaves out what stops or kills a process
    #[arg(long)]
    threads: bool,
    /// Behaviours at once [default: half the CPUs, 4 at most]
    #[arg(long, short, value_name = "COUNT", value_parser = whole::<usize>(1, 1024))]
    jobs: Option<usize>,
    /// Seconds that a behaviour may take, in place of its own limit
    #[arg(long, value_name = "SECONDS", value_parser = whole(1, SECONDS_MAX))]
    timeout: Option<u64>,
    /// Seconds within which the death of a peer must be reported
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = whole(1, SECONDS_MAX))]
    death: u64,
    /// Seconds of silence after which an idle peer must still be alive
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole(1, SECONDS_MAX))]
    idle: u64,
    /// Also what the plugin logs
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    worker: worker::Part,
}

/// A day.
const SECONDS_MAX: u64 = 86_400;

impl Conform {
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Runs the command. Returns whether every behaviour passed.
    pub(crate) fn run(self) -> Result<bool, GroupError> {
        if self.worker.is_asked() {
            return worker::run(&self);
        }
        if self.markdown {
            report::markdown();
            return Ok(true);
        }
        if self.list {
            report::list(self.chosen()?);
            return Ok(true);
        }
        supervisor::run(&self)
    }

    /// The chosen behaviours, in the table's order: at least one, so that a run that tests nothing is no success.
    fn chosen(&self) -> Result<Vec<&'static Behaviour>, GroupError> {
        for id in self.only.iter().chain(&self.except) {
            if table::find(id).is_none() {
                return Err(GroupError::Usage(format!(
                    "there is no behaviour {id}: --list prints all"
                )));
            }
        }
        let named = |ids: &[String], behaviour: &Behaviour| ids.iter().any(|id| id == behaviour.id);
        let chosen: Vec<_> = table::all()
            .filter(|behaviour| self.only.is_empty() || named(&self.only, behaviour))
            .filter(|behaviour| !named(&self.except, behaviour))
            .filter(|behaviour| !self.threads || behaviour.shape != Shape::Victim)
            .collect();
        if chosen.is_empty() {
            return Err(GroupError::Usage(
                "no behaviour is left: --only, --except and --threads leave out all".to_owned(),
            ));
        }
        Ok(chosen)
    }

    /// The number of processes that a behaviour runs in.
    fn processes(&self, behaviour: &Behaviour) -> usize {
        if self.threads { 1 } else { behaviour.shape.processes() }
    }

    fn plugin(&self) -> String {
        self.net.clone().unwrap_or_else(crate::plugin::ours)
    }

    fn limit(&self, behaviour: &Behaviour) -> Duration {
        let own = match behaviour.shape {
            Shape::Victim => behaviour.seconds.max(self.death + behaviour.seconds / 2),
            Shape::One | Shape::Two => behaviour.seconds,
        };
        let idle = if behaviour.idles { self.idle } else { 0 };
        Duration::from_secs(self.timeout.unwrap_or(own) + idle)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        conform: Conform,
    }

    #[test]
    fn the_plugin_is_ours_where_none_is_named() {
        let of = |words: &[&str]| Line::try_parse_from(words).expect("a command line").conform;
        assert_eq!(of(&["conform"]).plugin(), crate::plugin::ours());
        assert_eq!(of(&["conform", "--net", "mine"]).plugin(), "mine");
    }
}
