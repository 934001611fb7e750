//! `ironrail top` and `ironrail stats`: the counters of running processes, from the plugin's pages in shared memory (docs/counters.md).

mod pages;
mod prometheus;
mod rates;
mod serve;
mod top;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use counters::{Counter, Kind};
use ironrail_group::error::GroupError;
use serde_json::{Value, json};

use crate::{files, output, values};
use pages::{Found, Query, State};
pub(crate) use top::Top;

/// Prints the counters of this user's running processes with Ironrail, once: as a table, for Prometheus, or as JSON.
///
/// Messages per device, peer and direction; parts per data rail. A line on standard error reports the stale page of a process that was
/// killed. Exit code: 0 with any page, stale ones too, 1 without one, or with one that cannot be read, 2 for a wrong command line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stats {
    #[command(flatten)]
    query: Query,
    /// In the text format of Prometheus; FILE, for its textfile collector, is replaced whole
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "json")]
    #[allow(clippy::option_option, reason = "the option, and its value")]
    prometheus: Option<Option<PathBuf>>,
    /// Answer Prometheus on this loopback address, until it is interrupted
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, num_args = 0..=1, default_missing_value = serve::ADDRESS, conflicts_with_all = ["json", "processes", "prometheus"])]
    serve: Option<SocketAddr>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ironrail stats                      what has moved so far
  ironrail stats --by rail            the same, summed over peers
  ironrail stats --all-users --prometheus=/var/lib/node_exporter/ironrail.prom
  ironrail stats --serve              http://127.0.0.1:9417/metrics";

impl Stats {
    /// Runs the command. Returns whether there are pages, and all could be read.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        if let Some(address) = self.serve {
            return serve::forever(address, &self.query).map(|()| true);
        }
        let found = self.query.find()?;
        if let Some(file) = &self.prometheus {
            let text = prometheus::text(&found, self.query.all_users);
            match file {
                Some(file) if file != Path::new("-") => files::replace(file, &text)?,
                _ => output::text(text),
            }
        } else if self.json {
            // Any user may make a file of any name in the folder of pages.
            let found: Vec<_> = found.iter().map(json).collect();
            output::line(output::json(&found)?);
        } else {
            table(&found, self.query.all_users);
        }
        complaints(&found);
        // The page of a process that was killed is no problem of those that run.
        let well = |found: &Found| matches!(found.state, State::Live(_) | State::Stale(_));
        Ok(!found.is_empty() && found.iter().all(well))
    }
}

/// Reports pages that do not belong to a running process, and rows in no page.
fn complaints(found: &[Found]) {
    if found.is_empty() {
        output::print_error(NONE);
    }
    for found in found {
        if let Some(complaint) = found.complaint() {
            output::print_error(complaint);
        }
    }
}

const NONE: &str = "no process of this user, or none of those named, has a page of counters: a process has one while it has connections, unless IRONRAIL_STATS_PAGE=0, or /dev/shm has no room; root sees other users' pages with --all-users";

fn table(found: &[Found], of_users: bool) {
    let live = pages::processes(found.iter().filter_map(Found::live));
    let stale = pages::processes(found.iter().filter_map(Found::stale));
    for (process, page) in live.iter().chain(&stale) {
        let (process, version) = (process.text(of_users), &page.version);
        output::line(format_args!("{process}, Ironrail {version}"));
        for row in &page.rows {
            let key = &row.key;
            let what = match key.kind {
                Kind::Messages => format!("device {} {}", key.device, key.name),
                Kind::Rail => format!("    rail {} {}", key.rail, key.name),
            };
            let values = key.kind.counters().iter().filter(|counter| row.get(**counter) > 0);
            let values: Vec<_> =
                values.map(|counter| format!("{} {}", counter.name(), row.get(*counter))).collect();
            output::line(format_args!(
                "  {what:<32} {:<7} {:<28} {}",
                key.direction.name(),
                key.peer,
                values.join(", ")
            ));
        }
    }
}

fn json(found: &Found) -> Value {
    let path = found.path.display().to_string();
    let (page, state) = match &found.state {
        State::Live(page) => (page, "live"),
        State::Stale(page) => (page, "stale"),
        State::Unreadable(why) => {
            return json!({"path": path, "user": found.user, "state": "unreadable", "why": why});
        }
    };
    let row = |row: &counters::Row| {
        let key = &row.key;
        let mut object = json!({
            "kind": match key.kind { Kind::Messages => "messages", Kind::Rail => "parts" },
            "device": key.device,
            "direction": key.direction.name(),
            "name": key.name,
            "latency": row.latency,
        });
        if !key.peer.is_empty() {
            object["peer"] = key.peer.as_str().into();
        }
        if key.kind == Kind::Rail {
            object["rail"] = key.rail.into();
        }
        for counter in key.kind.counters().iter().chain(&[Counter::LatencyNanos]) {
            object[counter.name()] = row.get(*counter).into();
        }
        object
    };
    json!({
        "path": path,
        "user": found.user,
        "state": state,
        "process": page.process,
        "pid_namespace": page.namespace,
        "host": page.host,
        "version": page.version,
        "elsewhere": page.elsewhere,
        "rows": page.rows.iter().map(row).collect::<Vec<_>>(),
    })
}
