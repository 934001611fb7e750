//! The traffic between two samples, per row.

use std::collections::BTreeMap;
use std::time::Duration;

use counters::{BUCKETS, Counter, Key, Kind, Row, bucket_upper_nanos};

use super::pages::{self, Found, Process};
use crate::sums;

/// A row of the table: rates per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rate {
    /// The process's number, with its PID namespace if that is not ours.
    pub(super) process: String,
    pub(super) user: u32,
    pub(super) key: Key,
    pub(super) bytes: f64,
    /// Messages, or parts of messages on a rail.
    pub(super) count: f64,
    /// The percentage of messages that travelled inline.
    pub(super) inline_percent: Option<f64>,
    /// Refused posts, or calls that had to be repeated.
    pub(super) waits: f64,
    /// Latency: the median and the 99th percentile of requests.
    pub(super) latency: Option<(Duration, Duration)>,
    /// Since the process began: stalls of messages, failed parts and fail-overs of a rail.
    pub(super) trouble: u64,
}

/// The previous sample.
#[derive(Debug, Default)]
pub(super) struct Before(BTreeMap<(Process, Key), Row>);

impl Before {
    /// The rates of running processes since the previous sample, `elapsed` ago. New rows have no rates yet.
    pub(super) fn rates(&mut self, found: &[Found], elapsed: Duration) -> Vec<Rate> {
        let mut now = BTreeMap::new();
        for (process, page) in pages::processes(found.iter().filter_map(Found::live)) {
            let named = |row: Row| ((process.clone(), row.key.clone()), row);
            now.extend(page.rows.into_iter().map(named));
        }
        let rates = now.iter().map(|(name, row)| {
            let before = self.0.get(name);
            rate(&name.0, row, before.unwrap_or(row), elapsed)
        });
        let rates = rates.collect();
        self.0 = now;
        rates
    }
}

fn rate(process: &Process, row: &Row, before: &Row, elapsed: Duration) -> Rate {
    // A new process may have the same number.
    let grown = |counter: Counter| row.get(counter).saturating_sub(before.get(counter));
    let per_second = |count: u64| as_float(count) / elapsed.as_secs_f64().max(1e-3);
    let sum = |counters: &[Counter]| sums::saturating(counters.iter().copied().map(grown));
    let is_rail = row.key.kind == Kind::Rail;
    let messages = grown(Counter::Messages);
    let count = if is_rail { grown(Counter::Parts) } else { messages };
    let waits = if is_rail { &[Counter::Refused][..] } else { WAITS };
    let trouble = match row.key.kind {
        Kind::Rail => row.get(Counter::Failed).saturating_add(row.get(Counter::Failovers)),
        Kind::Messages => row.get(Counter::Stalls),
    };
    let inline = (!is_rail && messages > 0)
        .then(|| (100.0 * as_float(grown(Counter::Inline)) / as_float(messages)).min(100.0));
    let latency: Vec<u64> = (0..BUCKETS)
        .map(|bucket| row.latency[bucket].saturating_sub(before.latency[bucket]))
        .collect();
    Rate {
        process: process.short(),
        user: process.user,
        key: row.key.clone(),
        bytes: per_second(grown(Counter::Bytes)),
        count: per_second(count),
        inline_percent: inline,
        waits: per_second(sum(waits)),
        latency: quantile(&latency, 50).zip(quantile(&latency, 99)),
        trouble,
    }
}

const WAITS: &[Counter] = &[
    Counter::WaitsReceive,
    Counter::WaitsCredit,
    Counter::WaitsRoom,
    Counter::WaitsWindow,
    Counter::WaitsQueue,
];

/// The upper bound of the bucket that contains the percentile. None if nothing was measured.
fn quantile(buckets: &[u64], percent: u64) -> Option<Duration> {
    let all: u128 = buckets.iter().copied().map(u128::from).sum();
    let wanted = (all * u128::from(percent)).div_ceil(100).max(1);
    let mut seen = 0;
    let at = buckets.iter().position(|count| {
        seen += u128::from(*count);
        seen >= wanted
    })?;
    let end = bucket_upper_nanos(at).or_else(|| bucket_upper_nanos(BUCKETS - 2));
    end.map(Duration::from_nanos)
}

#[allow(clippy::cast_precision_loss, reason = "a rate for a table")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use counters::Page;

    use super::*;
    use crate::live::pages::State;

    fn key(kind: Kind) -> Key {
        let (direction, peer) = (counters::Direction::Send, "a:1".to_owned());
        Key { kind, direction, device: 0, rail: 0, peer, name: "eth0".to_owned() }
    }

    /// A page of process 7 with one row, in which each counter is `count`.
    fn found(user: u32, count: u64) -> Found {
        let mut words = vec![0; counters::ROW_WORDS];
        words[0] = key(Kind::Messages).head();
        words[counters::COUNTERS_AT..].fill(count);
        let page = Page {
            process: 7,
            started: 0,
            namespace: 0,
            made_unix: 0,
            host: String::new(),
            version: String::new(),
            elsewhere: 0,
            rows: Row::read(&words).into_iter().collect(),
        };
        Found { path: "a".into(), user, state: State::Live(page) }
    }

    #[test]
    fn processes_of_one_number_keep_their_own_rates() {
        let mut before = Before::default();
        before.rates(&[found(1, 0), found(2, 1000)], Duration::from_secs(1));
        let rates = before.rates(&[found(1, 10), found(2, 1020)], Duration::from_secs(1));
        assert_eq!(rates.iter().map(|rate| rate.bytes).collect::<Vec<_>>(), [10.0, 20.0]);
    }

    #[test]
    fn pages_of_one_process_have_one_rate() {
        let mut before = Before::default();
        before.rates(&[found(1, 0), found(1, 1000)], Duration::from_secs(1));
        let rates = before.rates(&[found(1, 10), found(1, 1020)], Duration::from_secs(1));
        assert_eq!(rates.iter().map(|rate| rate.bytes).collect::<Vec<_>>(), [30.0]);
    }

    #[test]
    fn counters_of_any_value_have_rates() {
        for kind in [Kind::Messages, Kind::Rail] {
            let mut words = vec![u64::MAX; counters::ROW_WORDS];
            words[0] = key(kind).head();
            words[counters::PEER_AT..counters::COUNTERS_AT].fill(0);
            let most = Row::read(&words).unwrap();
            let least = Row::new(most.key.clone());
            let process = Process { number: 1, user: 0, host: String::new(), namespace: None };
            let rate = rate(&process, &most, &least, Duration::from_secs(1));
            assert!(rate.bytes.is_finite() && rate.trouble > 0, "{rate:?}");
            assert_eq!(rate.latency.map(|(half, most)| half <= most), Some(true), "{rate:?}");
        }
    }

    #[test]
    fn a_quantile_is_the_end_of_the_bucket_that_reaches_it() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(quantile(&buckets, 50), None);
        (buckets[0], buckets[3]) = (98, 2);
        assert_eq!(quantile(&buckets, 50), Some(Duration::from_nanos(256)));
        assert_eq!(quantile(&buckets, 99), Some(Duration::from_nanos(2048)));
        buckets[BUCKETS - 1] = 1000;
        assert_eq!(
            quantile(&buckets, 99),
            bucket_upper_nanos(BUCKETS - 2).map(Duration::from_nanos)
        );
    }
}
