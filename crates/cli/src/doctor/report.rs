//! Findings in words and as JSON.

use anstyle::{AnsiColor, Style};
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Level};
use super::machine::Machine;
use crate::output;

/// What is written as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: String,
    pub(crate) version: String,
    pub(crate) host: String,
    /// How many ranks took part.
    pub(crate) ranks: usize,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(host: &str, ranks: usize, findings: Vec<Finding>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: host.to_owned(),
            ranks,
            findings,
        }
    }

    /// The worst of its levels.
    pub(super) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// A line for each finding; those that are not well say what to do.
    pub(super) fn print(&self, verbose: bool) {
        for finding in &self.findings {
            let Finding { check, level, looked_at, found, cure, ranks } = finding;
            let style = style(*level);
            output::line(format_args!("{style}{:<4}{style:#}  {check:<20} {found}", level.word()));
            // What all of them have needs no list.
            if !ranks.is_empty() && ranks.len() < self.ranks {
                let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
                output::line(format_args!("      {:<20} of ranks: {}", "", ranks.join(", ")));
            }
            if verbose || *level != Level::Ok {
                output::line(format_args!("      {:<20} looked at: {looked_at}", ""));
            }
            if let Some(cure) = cure {
                output::line(format_args!("      {:<20} do: {cure}", ""));
            }
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        output::line(format_args!(
            "{}: {} FAIL, {} warn, {} ok",
            self.host,
            count(Level::Fail),
            count(Level::Warn),
            count(Level::Ok)
        ));
    }
}

fn style(level: Level) -> Style {
    let colour = match level {
        Level::Ok => AnsiColor::Green,
        Level::Warn => AnsiColor::Yellow,
        Level::Fail => AnsiColor::Red,
    };
    colour.on_default().bold()
}

/// The plugin's log, where it was asked for.
pub(super) fn print_log(machine: &Machine) {
    for plugin in &machine.plugins {
        for line in &plugin.log {
            output::line(format_args!("      {:<20} log: {} {}", "", line.level, line.text));
        }
    }
}

const FORMAT: &str = "ironrail-doctor/1";
