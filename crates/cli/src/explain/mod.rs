//! `ironrail explain` and `ironrail info`: the plugin's settings as it read them, and what it has probed.

mod explanation;
mod info;
mod settings;
mod size;

use clap::{Args, ValueEnum};
use ironrail_group::error::GroupError;

use crate::signals;
pub(crate) use info::Info;

/// Explains each setting of Ironrail: its value, where that comes from, what it does and what else it depends on.
///
/// Without names, the settings that were given, then the others on a line each. The plugin is opened, not started.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// Settings, with or without IRONRAIL_ [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The plugin [default: what NCCL_NET_PLUGIN names, or Ironrail next to this executable]
    #[arg(long, value_name = "PLUGIN", value_parser = crate::plugin::name)]
    net: Option<String>,
    /// Explain what a message of this many bytes (K, M, G) would do: parts, rails, inline or not. The plugin is started for that
    #[arg(long, value_name = "BYTES", value_parser = size::parse, allow_negative_numbers = true, conflicts_with = "names")]
    size: Option<u64>,
    /// Write all of it as JSON
    #[arg(long)]
    json: bool,
    /// This process is a child that asks the plugin
    #[arg(long, hide = true)]
    child: Option<Child>,
    /// The process that started that child
    #[arg(long, hide = true, value_name = "PROCESS")]
    launcher: Option<u32>,
}

/// What a child does.
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
    /// Runs the command. Returns whether the plugin would start with these settings.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        let net = plugin(self.net.as_deref());
        if self.launcher.is_some_and(|launcher| !signals::end_with(launcher)) {
            return Ok(false);
        }
        if let Some(child) = self.child {
            explanation::child(&net, child == Child::Start)?;
            return Ok(true);
        }
        if let Some(bytes) = self.size {
            return size::explain(&net, bytes, self.json);
        }
        let found = explanation::ask(&net, false)?;
        let Some(explanation) = found.explanation else {
            return Err(not_ours(&found.file, &found.network));
        };
        settings::show(explanation, &self.names, self.json)
    }
}

/// The plugin to ask: the first that NCCL would try, or ours if none is named.
fn plugin(net: Option<&str>) -> String {
    const VARIABLE: &str = "NCCL_NET_PLUGIN";
    let of_files = || crate::doctor::settings_of_files().remove(VARIABLE);
    let named = std::env::var(VARIABLE).ok().or_else(of_files);
    let named = named.filter(|value| !value.eq_ignore_ascii_case("none"));
    let first = net.or(named.as_deref()).and_then(|value| crate::plugin::names(value).next());
    first.map_or_else(crate::plugin::ours, str::to_owned)
}

fn not_ours(file: &str, network: &str) -> GroupError {
    GroupError::Usage(format!(
        "{file} is {network}, which cannot explain itself: `ironrail doctor` checks any plugin; --net names another one"
    ))
}
