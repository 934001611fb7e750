//! Findings as text and as JSON.

use anstyle::{AnsiColor, Style};
use ironrail_group::error::shown;
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Level};
use super::machine::Machine;
use crate::output;

/// The content of the JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: String,
    pub(crate) version: String,
    pub(crate) host: String,
    /// The number of ranks.
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

    /// The highest severity.
    pub(super) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// Prints a line for each finding; problems come with what to do.
    pub(super) fn print(&self, verbose: bool) {
        for finding in &self.findings {
            let Finding { check, level, looked_at, found, cure, ranks, .. } = finding;
            let (looked_at, found) = (shown(looked_at), shown(found));
            let cure = cure.as_deref().map(shown);
            let style = style(*level);
            output::line(format_args!("{style}{:<4}{style:#}  {check:<20} {found}", level.word()));
            // A finding of all ranks needs no list of ranks.
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
            shown(&self.host),
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

/// Prints the plugin's log, if asked for.
pub(super) fn print_log(machine: &Machine) {
    for plugin in &machine.plugins {
        for line in &plugin.log {
            let text = shown(&line.text);
            output::line(format_args!("      {:<20} log: {} {text}", "", line.level));
        }
    }
}

const FORMAT: &str = "ironrail-doctor/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_host_is_called_gives_the_terminal_no_command() {
        assert_eq!(shown("eth0\u{1b}[2J\u{9b}31m\nok"), "eth0?[2J?31m?ok");
        assert_eq!(shown("größe 1 µs"), "größe 1 µs");
    }
}
