//! Counters in the text format of Prometheus (exposition format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use counters::{BUCKETS, Counter, Kind, Page, Row, bucket_upper_nanos};

use super::pages::{self, Found, Process};

/// All counters of running processes. No two lines may have the same labels, so each part of [`Process`] is a label, except our own
/// namespace. With `of_users` the user is a label too.
pub(super) fn text(found: &[Found], of_users: bool) -> String {
    let live = Live { processes: pages::processes(found.iter().filter_map(Found::live)), of_users };
    let mut text = String::new();
    for (kind, prefix) in [(Kind::Messages, "ironrail"), (Kind::Rail, "ironrail_rail")] {
        for counter in kind.counters() {
            let name = format!("{prefix}_{}_total", counter.name());
            head(&mut text, &name, counter.doc(), "counter");
            for (process, row) in live.rows(kind) {
                line(&mut text, &name, &live.row_labels(process, row), row.get(*counter));
            }
        }
    }
    live.latency(&mut text);
    live.elsewhere(&mut text);
    text
}

/// Running processes.
#[derive(Debug)]
struct Live {
    processes: BTreeMap<Process, Page>,
    of_users: bool,
}

impl Live {
    fn rows(&self, kind: Kind) -> impl Iterator<Item = (&Process, &Row)> {
        let all = self.processes.iter();
        let all = all.flat_map(|(process, page)| page.rows.iter().map(move |row| (process, row)));
        all.filter(move |(_, row)| row.key.kind == kind)
    }

    fn latency(&self, text: &mut String) {
        const NAME: &str = "ironrail_latency_seconds";
        head(
            text,
            NAME,
            "Latency of one request in 16, from isend or irecv to the test that said done.",
            "histogram",
        );
        for (process, row) in self.rows(Kind::Messages) {
            let labels = self.row_labels(process, row);
            let mut sum = 0;
            for bucket in 0..BUCKETS {
                sum = row.latency[bucket].saturating_add(sum);
                let end = bucket_upper_nanos(bucket)
                    .map_or_else(|| "+Inf".to_owned(), |end| seconds(end).to_string());
                line(text, &format!("{NAME}_bucket"), &format!("{labels},le=\"{end}\""), sum);
            }
            line(text, &format!("{NAME}_sum"), &labels, seconds(row.get(Counter::LatencyNanos)));
            line(text, &format!("{NAME}_count"), &labels, sum);
        }
    }

    fn elsewhere(&self, text: &mut String) {
        const NAME: &str = "ironrail_rows_elsewhere";
        head(text, NAME, "Rows that no page had room for: they are missing here.", "gauge");
        for (process, page) in &self.processes {
            line(text, NAME, &self.labels(process), page.elsewhere);
        }
    }

    fn labels(&self, process: &Process) -> String {
        let Process { number, user, host, namespace } = process;
        let mut labels = format!("host=\"{}\",process=\"{number}\"", escaped(host));
        if self.of_users {
            put(&mut labels, format_args!(",user=\"{user}\""));
        }
        if let Some(namespace) = namespace {
            put(&mut labels, format_args!(",namespace=\"{namespace}\""));
        }
        labels
    }

    /// Without a peer, rows are summed over peers.
    fn row_labels(&self, process: &Process, row: &Row) -> String {
        let key = &row.key;
        let mut labels = self.labels(process);
        put(
            &mut labels,
            format_args!(
                ",device=\"{}\",direction=\"{}\",name=\"{}\"",
                key.device,
                key.direction.name(),
                escaped(&key.name)
            ),
        );
        if !key.peer.is_empty() {
            put(&mut labels, format_args!(",peer=\"{}\"", escaped(&key.peer)));
        }
        if key.kind == Kind::Rail {
            put(&mut labels, format_args!(",rail=\"{}\"", key.rail));
        }
        labels
    }
}

fn head(text: &mut String, name: &str, doc: &str, kind: &str) {
    put(text, format_args!("# HELP {name} {doc}\n# TYPE {name} {kind}\n"));
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    put(text, format_args!("{name}{{{labels}}} {value}\n"));
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("writing to a string never fails");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[allow(clippy::cast_precision_loss, reason = "a time in seconds")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use counters::{Direction, Key};

    use super::super::pages::State;
    use super::*;

    #[test]
    fn a_row_is_a_line_per_counter_and_a_histogram_that_only_grows() {
        let key = Key {
            kind: Kind::Messages,
            direction: Direction::Send,
            device: 0,
            rail: 0,
            peer: "a\"b:1".to_owned(),
            name: "eth0".to_owned(),
        };
        let mut row = Row::new(key.clone());
        (row.latency[0], row.latency[2]) = (3, 4);
        let part = Row::new(Key { kind: Kind::Rail, rail: 1, ..key.clone() });
        let mut huge = Row::new(Key { peer: "b:1".to_owned(), ..key });
        huge.latency.fill(u64::MAX);
        let page = |namespace, elsewhere| Page {
            process: 9,
            started: 0,
            namespace,
            made_unix: 0,
            host: "here".to_owned(),
            version: "1".to_owned(),
            elsewhere,
            rows: vec![row.clone(), part.clone(), huge.clone()],
        };
        let of_user = |(user, namespace, elsewhere)| {
            let state = State::Live(page(namespace, elsewhere));
            Found { path: "x".into(), user, state }
        };
        // Containers of one host name, and of two users; the first process has three pages.
        let here = proc_status::pid_namespace().unwrap();
        let found =
            [(5, here, 2), (5, 1, 0), (5, here, 1), (5, 2, 0), (5, 0, 0), (6, 2, 0)].map(of_user);
        let text = text(&found, true);
        let mut labels: Vec<_> =
            text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        let lines = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), lines, "no two lines have the same labels");
        let of = "host=\"here\",process=\"9\",user=\"5\"";
        let row = "device=\"0\",direction=\"send\",name=\"eth0\",peer=\"a\\\"b:1\"";
        for line in [
            "# TYPE ironrail_messages_total counter\n".to_owned(),
            format!("ironrail_messages_total{{{of},{row}}} 0\n"),
            format!("ironrail_rail_parts_total{{{of},{row},rail=\"1\"}} 0\n"),
            format!("ironrail_rail_parts_total{{{of},namespace=\"2\",{row},rail=\"1\"}} 0\n"),
            format!("ironrail_latency_seconds_bucket{{{of},{row},le=\"0.000000256\"}} 9\n"),
            format!("ironrail_latency_seconds_bucket{{{of},{row},le=\"+Inf\"}} 21\n"),
            format!("ironrail_latency_seconds_count{{{of},{row}}} 21\n"),
            format!("ironrail_latency_seconds_count{{{of},namespace=\"1\",{row}}} 7\n"),
            format!("ironrail_rows_elsewhere{{{of}}} 3\n"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        let mut names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "each metric is one block");
    }

    #[test]
    fn rows_that_are_summed_over_peers_have_no_peer_and_without_users_there_is_no_user() {
        let (kind, direction, peer) = (Kind::Messages, Direction::Send, String::new());
        let key = Key { kind, direction, device: 0, rail: 0, peer, name: "eth0".to_owned() };
        let page = Page {
            process: 9,
            started: 0,
            namespace: 0,
            made_unix: 0,
            host: "here".to_owned(),
            version: "1".to_owned(),
            elsewhere: 0,
            rows: vec![Row::new(key)],
        };
        let found = [Found { path: "x".into(), user: 5, state: State::Live(page) }];
        let text = text(&found, false);
        let labels = "host=\"here\",process=\"9\",device=\"0\",direction=\"send\",name=\"eth0\"";
        assert!(text.contains(&format!("ironrail_messages_total{{{labels}}} 0\n")), "{text}");
    }
}
