//! The `ironrail` command.
#![forbid(unsafe_code)]

mod answers;
mod compare;
mod complaints;
mod conform;
mod doctor;
mod environment;
mod explain;
mod files;
mod live;
mod loopback;
mod manual;
mod mapped;
mod median;
mod nccl;
mod open_files;
mod output;
mod overheard;
mod perf;
mod plugin;
mod run;
mod shell;
mod signals;
mod sums;
mod topo;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use ironrail_group::error::GroupError;

/// Checks, explains and measures NCCL net plugins, without a GPU or by NCCL itself.
#[derive(Debug, Parser)]
#[command(name = "ironrail", version = VERSION, propagate_version = true, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Doctor(doctor::Doctor),
    Env(environment::Environment),
    /// Prints the folder of Ironrail's plugin, for LD_LIBRARY_PATH.
    #[command(after_help = PATH_EXAMPLES)]
    Path,
    Info(explain::Info),
    Explain(explain::Explain),
    Top(live::Top),
    Stats(live::Stats),
    /// Measures collectives and messages over a plugin, every byte checked.
    #[command(after_help = PERF_EXAMPLES)]
    Perf(perf::Perf),
    #[command(after_help = CONFORM_EXAMPLES)]
    Conform(conform::Conform),
    #[command(after_help = NCCL_EXAMPLES)]
    Nccl(nccl::Options),
    Run(run::Run),
    #[command(after_help = TOPO_EXAMPLES)]
    Topo(topo::Topo),
    Completions(manual::Completions),
    Man(manual::Man),
}

/// Version, commit and build.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("BUILT_COMMIT"),
    ", ",
    env!("BUILT_TARGET"),
    ", ",
    env!("BUILT_PROFILE"),
    ")"
);

const EXAMPLES: &str = "\
Examples:
  ironrail doctor                          what would happen if NCCL started here, now
  ironrail top                             what running jobs move, per rail
  eval \"$(ironrail env)\"                   what makes NCCL use Ironrail, for this shell
  ironrail perf all_reduce -r 4 -e 64M     four ranks on this machine, columns as in nccl-tests
  source <(ironrail completions bash)      completions; zsh, fish and others too";
const PATH_EXAMPLES: &str = "\
Examples:
  export LD_LIBRARY_PATH=$(ironrail path) NCCL_NET_PLUGIN=ironrail";
const PERF_EXAMPLES: &str = "\
Examples:
  ironrail perf all_reduce -r 4 -b 8 -e 64M
  ironrail perf sendrecv --one-way --window 16 --json run.json
  ironrail perf pingpong -b 8 -e 8 -n 10000
  ironrail perf compare old.json new.json   what changed, size by size; --report for pictures
  ironrail perf versus-raw                  the plugin against bare libfabric, alternating";
const CONFORM_EXAMPLES: &str = "\
Examples:
  ironrail conform                         Ironrail, by its newest table
  ironrail conform --net ofi --abi all     another plugin, by all of its tables";
const NCCL_EXAMPLES: &str = "\
Examples:
  ironrail nccl all_reduce                 NCCL on this machine's GPUs, over the plugin and over sockets
  ironrail nccl all_reduce -b 8 -e 128M --results docs/results";
const TOPO_EXAMPLES: &str = "\
Examples:
  ironrail topo                            PCIe, NUMA, NICs, and which of them make one device
  ironrail topo --svg topo.svg             as a picture";

fn main() -> ExitCode {
    output::settle();
    let Command { action } = match Command::try_parse() {
        Ok(command) => command,
        Err(answer) => return print_answer(&answer),
    };
    signals::keep_children();
    signals::survive_long_files();
    if !matches!(action, Action::Run(_) | Action::Top(_)) {
        signals::end_as_first_process();
    }
    let verbose = match &action {
        Action::Doctor(_) | Action::Env(_) | Action::Info(_) | Action::Explain(_) => false,
        Action::Perf(perf) => perf.is_verbose(),
        Action::Conform(conform) => conform.is_verbose(),
        Action::Nccl(nccl) => nccl.is_verbose(),
        Action::Run(_)
        | Action::Top(_)
        | Action::Stats(_)
        | Action::Topo(_)
        | Action::Completions(_)
        | Action::Man(_)
        | Action::Path => false,
    };
    let level = if verbose { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format_timestamp(None)
        .init();
    let ended = match action {
        Action::Doctor(doctor) => doctor.run(),
        Action::Env(environment) => environment.run(),
        Action::Path => Ok(plugin::print_folder()),
        Action::Info(info) => info.run(),
        Action::Explain(explain) => explain.run(),
        Action::Top(top) => top.run(),
        Action::Stats(stats) => stats.run(),
        Action::Perf(perf) => perf.run(),
        Action::Conform(conform) => conform.run(),
        Action::Nccl(nccl) => nccl.run(),
        // The exit code of a job is that of its ranks.
        Action::Run(run) => match run.run() {
            Ok(0) => Ok(true),
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Action::Topo(topo) => topo.run(),
        Action::Completions(completions) => completions.run(Command::command()),
        Action::Man(man) => man.run(Command::command()),
    };
    exit_code(ended)
}

/// Flushes the output, and reports an error. Output that is lost makes a success a failure.
fn exit_code(ended: Result<bool, GroupError>) -> ExitCode {
    match ended.and_then(|well| output::end().map(|()| well)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(WRONG),
        Err(error) => {
            output::print_error(&error);
            ExitCode::from(if error.is_usage() { USAGE } else { WRONG })
        }
    }
}

/// Prints help, versions, or what is wrong with the command line. Returns the exit code.
fn print_answer(answer: &clap::Error) -> ExitCode {
    if answer.use_stderr() {
        let _ = answer.print();
        return ExitCode::from(USAGE);
    }
    output::text(answer.render().ansi());
    exit_code(Ok(true))
}

/// The exit code if something is wrong: the data, a rank, the plugin.
const WRONG: u8 = 1;
/// The exit code of a wrong command line; clap uses the same.
const USAGE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn is_for_users(option: &clap::Arg) -> bool {
        option.get_action().takes_values() && !option.is_hide_set()
    }

    /// The options of a command and of its subcommands, with the words of their command lines.
    fn options(command: &clap::Command, words: &[String], found: &mut Vec<Vec<String>>) {
        for option in command.get_arguments().filter(|option| is_for_users(option)) {
            let value = match option.get_long() {
                Some(long) => format!("--{long}=no,such"),
                None => "no,such".to_owned(),
            };
            found.push(words.iter().cloned().chain([value]).collect());
        }
        for below in command.get_subcommands() {
            let words: Vec<_> =
                words.iter().cloned().chain([below.get_name().to_owned()]).collect();
            options(below, &words, found);
        }
    }

    #[test]
    fn the_error_of_a_wrong_value_says_which_values_are_allowed() {
        let mut found = Vec::new();
        options(&Command::command(), &["ironrail".to_owned()], &mut found);
        assert!(found.len() > 100, "{}", found.len());
        for words in found {
            let Err(error) = Command::command().try_get_matches_from(&words) else { continue };
            let error = error.to_string();
            let of_rust = ["invalid digit", "invalid float", "invalid socket", "is not in"];
            assert!(!of_rust.iter().any(|phrase| error.contains(phrase)), "{words:?}: {error}");
        }
    }
}
