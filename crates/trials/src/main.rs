//! Trials: a checked job of two ranks on links of network namespaces, while something is done to the links.
//!
//! | file | what it is |
//! |---|---|
//! | `network` | two namespaces and the links between them, and what can be done to a link |
//! | `job` | two ranks, one per namespace, and their output |
//! | `rank` | what a rank does: an all-reduce after another, every byte checked |
//! | `stream` | another thing that it can do: messages both ways, as many outstanding as NCCL has |
//! | `lap` | the elements of one all-reduce or message, and the line about its end |
//! | `pages` | what each rail has carried so far |
//! | `record` | laps, bytes and moments of one trial, and what follows from them: pure |
//! | `chart` | a record as a table and a picture: pure |
//! | `rails` | the trials of scripts/rails |
//! | `soak` | the rounds of scripts/soak |
//! | `chance` | random numbers from a seed |
#![forbid(unsafe_code)]

mod chance;
mod chart;
mod job;
mod lap;
mod network;
mod pages;
mod rails;
mod rank;
mod record;
mod soak;
mod stream;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error is a sentence.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Jobs on links that fail.
#[derive(Debug, Parser)]
#[command(name = "trials")]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Rails(rails::Rails),
    Soak(soak::Soak),
    #[command(hide = true)]
    Rank(rank::Rank),
}

fn main() -> ExitCode {
    let filter = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(filter).format_timestamp(None).init();
    let ended = match Command::parse().action {
        Action::Rails(rails) => rails.run(),
        Action::Soak(soak) => soak.run(),
        Action::Rank(rank) => rank.run().map(|()| true),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "trials: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A time of the command line: above 0, and finite.
fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 10_000.0 => Ok(number),
        _ => Err("expected a number above 0 and at most 10000".to_owned()),
    }
}

/// Writes a line to standard output, whose reader may be gone.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
