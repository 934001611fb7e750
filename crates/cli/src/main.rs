//! The `ironrail` command.
#![forbid(unsafe_code)]

mod conform;
mod doctor;
mod explain;
mod nccl;
mod output;
mod perf;
mod plugin;
mod topo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Drives NCCL net plugins, without a GPU or by NCCL itself.
#[derive(Debug, Parser)]
#[command(name = "ironrail", version, propagate_version = true)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Doctor(doctor::Doctor),
    Info(explain::Info),
    Explain(explain::Explain),
    /// Measures collectives and messages over a plugin, every byte checked.
    Perf(perf::Perf),
    /// Holds a plugin to the behaviours that NCCL relies on.
    Conform(conform::Conform),
    /// Runs NCCL itself over a plugin, on GPUs, beside NCCL's sockets.
    Nccl(nccl::Options),
    /// Shows which NICs of a machine make one device, and why.
    Topo(topo::Topo),
}

fn main() -> ExitCode {
    let Command { action } = Command::parse();
    let verbose = match &action {
        Action::Doctor(_) | Action::Info(_) | Action::Explain(_) => false,
        Action::Perf(perf) => perf.is_verbose(),
        Action::Conform(conform) => conform.is_verbose(),
        Action::Nccl(nccl) => nccl.is_verbose(),
        Action::Topo(_) => false,
    };
    let level = if verbose { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format_timestamp(None)
        .init();
    let ended = match action {
        Action::Doctor(doctor) => doctor.run(),
        Action::Info(info) => info.run(),
        Action::Explain(explain) => explain.run(),
        Action::Perf(perf) => perf.run(),
        Action::Conform(conform) => conform.run(),
        Action::Nccl(nccl) => nccl.run(),
        Action::Topo(topo) => topo.run(),
    };
    match ended {
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
