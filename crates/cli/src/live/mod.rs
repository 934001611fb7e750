//! `ironrail top` and `ironrail stats`: the counters of running processes, from the plugin's pages in shared memory (docs/counters.md).

mod pages;
mod prometheus;
mod rates;
mod serve;
mod top;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use counters::{Counter, Kind};
use ironrail_group::error::GroupError;
use serde_json::{Value, json};

use crate::{output, values};
use pages::{Found, State};
pub(crate) use top::Top;

/// Prints the counters of this user's running processes with Ironrail, once: as a table, for Prometheus, or as JSON.
///
/// Messages per device, peer and direction; parts per data rail. A line on standard error reports the stale page of a process that was
/// killed. Exit code: 0 with any page, stale ones too, 1 without one, or with one that cannot be read, 2 for a wrong command line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stats {
    /// Processes [default: all of this user's]
    #[arg(value_name = "PROCESS", value_parser = values::process)]
    processes: Vec<u32>,
    /// In the text format of Prometheus, as its textfile collector reads it
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Answer Prometheus on this loopback address, until it is interrupted
    #[arg(long, value_name = "ADDRESS", value_parser = values::address, num_args = 0..=1, default_missing_value = serve::ADDRESS, conflicts_with_all = ["json", "processes"])]
    serve: Option<SocketAddr>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Where pages are
    #[arg(long, hide = true, default_value = counters::FOLDER)]
    folder: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ironrail stats                      what has moved so far
  ironrail stats --prometheus > /var/lib/node_exporter/ironrail.prom
  ironrail stats --serve              http://127.0.0.1:9417/metrics";

impl Stats {
    /// Whether there are pages, and all could be read.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        if let Some(address) = self.serve {
            return serve::forever(address, &self.folder).map(|()| true);
        }
        let found = pages::find(&self.folder, &self.processes)?;
        if self.prometheus {
            output::text(prometheus::text(&found));
        } else if self.json {
            output::line(format_args!("{:#}", json!(found.iter().map(json).collect::<Vec<_>>())));
        } else {
            table(&found);
        }
        complaints(&found);
        // The page of a process that was killed says nothing against those that run.
        let well = |found: &Found| matches!(found.state, State::Live(_) | State::Stale(_));
        Ok(!found.is_empty() && found.iter().all(well))
    }
}

/// Reports pages that do not belong to a running process.
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

const NONE: &str = "no process of this user shows counters, or none of those named: a process does while it has connections, unless IRONRAIL_STATS_PAGE=0, or /dev/shm has no room";

fn table(found: &[Found]) {
    for found in found {
        let (State::Live(page) | State::Stale(page)) = &found.state else { continue };
        output::line(format_args!("{}, Ironrail {}", pages::name(page), page.version));
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
        State::Unreadable(why) => return json!({"path": path, "state": "unreadable", "why": why}),
    };
    let row = |row: &counters::Row| {
        let key = &row.key;
        let mut object = json!({
            "kind": match key.kind { Kind::Messages => "messages", Kind::Rail => "parts" },
            "device": key.device,
            "direction": key.direction.name(),
            "peer": key.peer,
            "name": key.name,
            "latency": row.latency,
        });
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
        "state": state,
        "process": page.process,
        "pid_namespace": page.namespace,
        "host": page.host,
        "version": page.version,
        "rows": page.rows.iter().map(row).collect::<Vec<_>>(),
    })
}
