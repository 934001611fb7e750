//! `ironrail explain` and `ironrail info`: what the plugin makes of its settings, and what it has found.

mod info;
mod settings;
mod size;
mod told;

use clap::{Args, ValueEnum};
use ironrail_group::error::GroupError;

pub(crate) use info::Info;

/// Says of each setting of Ironrail its value, where that is from, what it does and what else it depends on.
///
/// Without names, the settings that were given, then the others on a line each. The plugin is opened, not started.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// Settings, with or without IRONRAIL_ [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The plugin [default: what NCCL_NET_PLUGIN names, or Ironrail next to this executable]
    #[arg(long, value_name = "PLUGIN")]
    net: Option<String>,
    /// Say what a message of this many bytes (K, M, G) would do: parts, rails, inline or not. The plugin is started for that
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "names")]
    size: Option<u64>,
    /// Write all of it as JSON
    #[arg(long)]
    json: bool,
    /// This process is a child that asks the plugin
    #[arg(long, hide = true)]
    child: Option<Child>,
}

/// How far a child goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Child {
    Read,
    Start,
}

const EXAMPLES: &str = "\
Examples:
  ironrail explain                       every setting here, now
  ironrail explain max_rails stripe_min  two of them, at length
  ironrail explain --size 1M             parts and rails of a message, or inline
  ironrail explain --json                for programs";

impl Explain {
    /// Whether the settings are fit for a start.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let net = plugin(self.net.as_deref());
        if let Some(child) = self.child {
            told::child(&net, child == Child::Start)?;
            return Ok(true);
        }
        if let Some(bytes) = self.size {
            return size::explain(&net, bytes, self.json);
        }
        let found = told::ask(&net, false)?;
        let Some(told) = found.told else { return Err(not_ours(&found.file, &found.network)) };
        settings::show(told, &self.names, self.json)
    }
}

/// Which plugin to ask: the one that NCCL would take, or ours where nothing is said.
fn plugin(net: Option<&str>) -> String {
    let named = std::env::var("NCCL_NET_PLUGIN").ok();
    let named = named.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("none"));
    net.map(str::to_owned).or(named).unwrap_or_else(crate::plugin::ours)
}

fn not_ours(file: &str, network: &str) -> GroupError {
    GroupError::Usage(format!(
        "{file} is {network}, which cannot explain itself: `ironrail doctor` looks at any plugin; --net names another one"
    ))
}
