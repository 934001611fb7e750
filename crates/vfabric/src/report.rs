//! The report for programs that cannot call the control table: broken rules, counters and open objects, as text.
//!
//! A line is a kind, a name and a value: `violations 0`, `violation bounds …`, `counter posts.write 12`, `open regions 0`.

use std::fmt::Write;

use crate::calls;
use crate::engine::Engine;
use crate::ledger::Rule;

/// Writes the report to the file of VFABRIC_REPORT, over an earlier one of this process. A process that opened no domain writes none, and
/// so keeps the file of another process.
pub(crate) fn write(engine: &Engine) {
    let Some(path) = &engine.settings.report else { return };
    if engine.census().iter().any(|(name, _, ever)| *name == "domains" && *ever > 0) {
        // At exit a failure cannot be reported; the reader finds no file.
        let _ = std::fs::write(path, text(engine));
    }
}

/// The whole report.
pub(crate) fn text(engine: &Engine) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    line(format_args!("process {}", process()));
    line(format_args!("profile {}", engine.settings.profile.name));
    line(format_args!("seed {}", engine.settings.seed));
    line(format_args!("clock {}", engine.now()));
    line(format_args!("violations {}", engine.ledger.len()));
    for (rule, words) in engine.ledger.texts() {
        line(format_args!("violation {rule} {words}"));
    }
    for (name, value) in numbers(engine) {
        let dots = if name.starts_with("nic.") { 2 } else { 1 };
        line(format_args!("{} {value}", name.replacen('.', " ", dots)));
    }
    text
}

/// The command line, which distinguishes the reports of several processes.
fn process() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ").replace('\n', " ")
}

/// Every number by name: `counter.posts.write`, `broken.bounds`, `open.regions`, `nic.3.bytes`.
pub(crate) fn numbers(engine: &Engine) -> Vec<(String, u64)> {
    let mut numbers: Vec<(String, u64)> = Vec::new();
    let rules = Rule::ALL.iter().map(|rule| (*rule, engine.ledger.of(*rule)));
    for (rule, count) in rules.filter(|(_, count)| *count > 0) {
        numbers.push((format!("broken.{rule}"), count));
    }
    for (name, open, ever) in engine.census() {
        numbers.push((format!("open.{name}"), open as u64));
        numbers.push((format!("opened.{name}"), ever as u64));
    }
    numbers.push(("open.peers".to_owned(), engine.peers() as u64));
    numbers.push(("open.queue_entries".to_owned(), engine.queue_entries() as u64));
    numbers.push(("open.event_errors".to_owned(), engine.event_errors() as u64));
    numbers.push(("open.operations".to_owned(), engine.in_flight() as u64));
    for (index, nic) in engine.nics().iter().enumerate() {
        numbers.push((format!("nic.{index}.posts"), nic.operations));
        numbers.push((format!("nic.{index}.bytes"), nic.bytes));
    }
    numbers.push(("counter.calls".to_owned(), calls::number()));
    numbers.push(("counter.posts".to_owned(), engine.posts()));
    numbers.push(("counter.operations".to_owned(), engine.accepted()));
    numbers.push(("counter.messages".to_owned(), engine.messages()));
    numbers.push(("counter.tolerated".to_owned(), engine.ledger.tolerated()));
    numbers.extend(engine.counters.all().map(|(name, value)| (format!("counter.{name}"), value)));
    numbers
}
