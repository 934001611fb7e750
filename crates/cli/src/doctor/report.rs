//! Findings as text and as JSON.

use anstyle::{AnsiColor, Style};
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Level};
use super::machine::{Line, Machine};
use crate::output::{self, shown};

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
            output::line(log_line(line));
        }
    }
}

fn log_line(line: &Line) -> String {
    format!("      {:<20} log: {} {}", "", shown(&line.level), shown(&line.text))
}

const FORMAT: &str = "ironrail-doctor/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_hosts_log_gives_the_terminal_no_command() {
        let line = Line { level: "\u{1b}[2J".to_owned(), text: "a\u{9b}2J".to_owned() };
        assert_eq!(log_line(&line).trim_start(), "log: ?[2J a?2J");
    }
}
