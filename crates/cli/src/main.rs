//! The `ironrail` command.
#![forbid(unsafe_code)]

mod output;
mod perf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Drives NCCL net plugins without a GPU.
#[derive(Debug, Parser)]
#[command(name = "ironrail", version, propagate_version = true)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Measures collectives and messages over a plugin, every byte checked.
    Perf(perf::Perf),
}

fn main() -> ExitCode {
    let Command { action: Action::Perf(perf) } = Command::parse();
    let level = if perf.is_verbose() { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format_timestamp(None)
        .init();
    match perf.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(WRONG),
        Err(error) => {
            output::complain(&error);
            ExitCode::from(if error.is_usage() { USAGE } else { WRONG })
        }
    }
}

/// Something is wrong: the data, a rank, the plugin.
const WRONG: u8 = 1;
/// The command line is wrong; clap's own code too.
const USAGE: u8 = 2;
