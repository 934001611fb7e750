//! `ironrail topo`: which NICs of a machine make one device, and why.

mod svg;
mod tree;

use std::path::{Path, PathBuf};

use clap::Args;
use ironrail_group::error::GroupError;
use topology::sysfs::{self, Family, SYSFS};
use topology::{Description, Grouping, Hint};

use crate::{files, output, values};
use tree::Tree;

/// Shows which NICs of a machine make one device, and why.
///
/// It applies the rules of docs/topology.md to the hardware, as the kernel shows it, without libfabric, and reads no setting, such as
/// IRONRAIL_RAILS: `ironrail info` shows what the plugin makes of this environment.
#[derive(Clone, Debug, Args)]
pub(crate) struct Topo {
    /// A machine in the format of `--describe`, in place of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// The most rails in one device
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = values::whole::<u8>(1, 16))]
    max_rails: u8,
    /// Prints the machine as text that can be sent and read again
    #[arg(long, conflicts_with_all = ["hint", "svg"])]
    describe: bool,
    /// Prints the topology file for NCCL, if one is needed
    #[arg(long, conflicts_with = "svg")]
    hint: bool,
    /// Draws the picture into FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A machine and its devices.
#[derive(Debug)]
struct Found {
    described: Description,
    grouping: Grouping,
    hint: Option<Hint>,
}

impl Topo {
    /// Runs the command. Returns false if no NIC makes a device.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let described = match &self.machine {
            Some(file) => read(file)?,
            None => here(),
        };
        if self.describe {
            output::line(described.to_string().trim_end());
            return Ok(true);
        }
        let found = Found::of(described, self.max_rails.into());
        if self.hint {
            match &found.hint {
                Some(hint) => output::line(hint.xml.trim_end()),
                None => output::print_error(
                    "NCCL needs no file: no device is wider than the link that it sees",
                ),
            }
        } else if let Some(file) = &self.svg {
            files::write(file, &svg::draw(&Tree::of(&found)))?;
        } else {
            output::line(Tree::of(&found).text());
            let Found { described, grouping, hint } = &found;
            let text = grouping.text(&described.machine, &described.nics, hint.as_ref());
            output::line(text.trim_end());
        }
        let is_empty = found.grouping.groups.is_empty();
        if is_empty {
            output::print_error("no NIC makes a device");
        }
        Ok(!is_empty)
    }
}

impl Found {
    fn of(described: Description, max_rails: usize) -> Self {
        let Description { machine, nics } = &described;
        let grouping = topology::group(machine, nics, max_rails);
        let hint = topology::hint(machine, nics, &grouping);
        Self { described, grouping, hint }
    }
}

fn read(file: &Path) -> Result<Description, GroupError> {
    files::read(file)?.parse().map_err(|error| {
        files::unusable(
            file,
            format!("{error}; `ironrail topo --describe` prints what is read here"),
        )
    })
}

/// This machine.
fn here() -> Description {
    let (family, nics) = sysfs::nics(Path::new(SYSFS));
    log::info!(
        "{}",
        match family {
            Family::Cxi => "NICs of Slingshot",
            Family::Rdma => "RDMA devices",
            Family::Interfaces => "interfaces: there are no other NICs",
        }
    );
    let addresses: Vec<_> = nics.iter().filter_map(|nic| nic.address).collect();
    Description { machine: sysfs::machine(Path::new(SYSFS), &addresses), nics }
}
