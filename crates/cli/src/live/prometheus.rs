//! Counters in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write as _;

use counters::{BUCKETS, Counter, Kind, Page, Row, bucket_upper_nanos};

use super::pages::{self, Found};

/// All counters of running processes. No two lines may have the same labels. Processes of two containers may have one number, and even one
/// host name: those of another PID namespace than ours have a label with its number. Pages that have all these in common are summed, as of a
/// process with two copies of the plugin.
pub(super) fn text(found: &[Found]) -> String {
    let live = processes(found.iter().filter_map(Found::live));
    let mut text = String::new();
    for (kind, prefix) in [(Kind::Messages, "ironrail"), (Kind::Rail, "ironrail_rail")] {
        for counter in kind.counters() {
            let name = format!("{prefix}_{}_total", counter.name());
            head(&mut text, &name, counter.doc(), "counter");
            for (page, row) in rows(&live, kind) {
                line(&mut text, &name, &labels(page, row), row.get(*counter));
            }
        }
    }
    latency(&mut text, &live);
    text
}

/// One page for each process that labels tell apart.
fn processes<'a>(live: impl Iterator<Item = &'a Page>) -> Vec<Page> {
    let labels = |page: &Page| (page.host.clone(), page.process, pages::other_namespace(page));
    let mut all: Vec<Page> = Vec::new();
    for page in live {
        match all.iter_mut().find(|one| labels(one) == labels(page)) {
            Some(same) => {
                let rows = std::mem::take(&mut same.rows).into_iter();
                same.rows = counters::summed(rows.chain(page.rows.iter().cloned()));
            }
            None => all.push(page.clone()),
        }
    }
    all
}

fn rows(pages: &[Page], kind: Kind) -> impl Iterator<Item = (&Page, &Row)> {
    let all = pages.iter().flat_map(|page| page.rows.iter().map(move |row| (page, row)));
    all.filter(move |(_, row)| row.key.kind == kind)
}

fn latency(text: &mut String, live: &[Page]) {
    const NAME: &str = "ironrail_latency_seconds";
    head(
        text,
        NAME,
        "Latency of one request in 16, from isend or irecv to the test that said done.",
        "histogram",
    );
    for (page, row) in rows(live, Kind::Messages) {
        let labels = labels(page, row);
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

fn labels(page: &Page, row: &Row) -> String {
    let key = &row.key;
    let mut labels = format!(
        "host=\"{}\",process=\"{}\",device=\"{}\",direction=\"{}\",peer=\"{}\",name=\"{}\"",
        escaped(&page.host),
        page.process,
        key.device,
        key.direction.name(),
        escaped(&key.peer),
        escaped(&key.name)
    );
    if let Some(namespace) = pages::other_namespace(page) {
        put(&mut labels, format_args!(",namespace=\"{namespace}\""));
    }
    if key.kind == Kind::Rail {
        put(&mut labels, format_args!(",rail=\"{}\"", key.rail));
    }
    labels
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
        let page = |namespace| Page {
            process: 9,
            started: 0,
            namespace,
            made_unix: 0,
            host: "here".to_owned(),
            version: "1".to_owned(),
            elsewhere: 0,
            rows: vec![row.clone(), part.clone(), huge.clone()],
        };
        // Containers of one host name; the first process has three pages.
        let here = pages::namespace().unwrap();
        let found = [here, 1, here, 2, 0]
            .map(|namespace| Found { path: "x".into(), state: State::Live(page(namespace)) });
        let text = text(&found);
        let mut labels: Vec<_> =
            text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        let lines = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), lines, "no two lines have the same labels");
        let of = "host=\"here\",process=\"9\",device=\"0\",direction=\"send\",peer=\"a\\\"b:1\",name=\"eth0\"";
        for line in [
            "# TYPE ironrail_messages_total counter\n".to_owned(),
            format!("ironrail_messages_total{{{of}}} 0\n"),
            format!("ironrail_rail_parts_total{{{of},rail=\"1\"}} 0\n"),
            format!("ironrail_rail_parts_total{{{of},namespace=\"2\",rail=\"1\"}} 0\n"),
            format!("ironrail_latency_seconds_bucket{{{of},le=\"0.000000256\"}} 9\n"),
            format!("ironrail_latency_seconds_bucket{{{of},le=\"+Inf\"}} 21\n"),
            format!("ironrail_latency_seconds_count{{{of}}} 21\n"),
            format!("ironrail_latency_seconds_count{{{of},namespace=\"1\"}} 7\n"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        let mut names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "each metric is one block");
    }
}
