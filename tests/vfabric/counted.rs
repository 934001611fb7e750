//! The counters of connections, over a fabric that reports the length of each arrived write.

use std::fs;
use std::process;
use std::time::Duration;

use counters::{Counter, Direction, Kind, Page};

use crate::link::Link;
use crate::support::stage::{play, play_each};
use crate::world::provider;

const BOUND: Duration = Duration::from_secs(60);
const LEN: usize = 8000;
const SHORT: usize = 100;
const MESSAGES: usize = 30;

#[test]
fn bytes_are_counted_alike_on_both_ends_and_refused_posts_on_the_one_that_posts() {
    play(&[provider(), ("STRIPE_MIN", "1K")], BOUND, |part| {
        let link = Link::between_ends(part, "efa", 2, "eagain=200");
        link.warm();
        let before = rows();
        for _ in 0..MESSAGES {
            for len in [LEN, SHORT] {
                let received = link.irecv(0, LEN, 0);
                link.poll();
                let sent = link.isend_at_last(0, len, 0);
                assert_eq!(link.finish(received), len);
                link.finish(sent);
            }
        }
        let after = rows();
        for direction in [Direction::Send, Direction::Receive] {
            let grown = |kind, counter| {
                let sum = |rows| sum(rows, (kind, direction), counter);
                sum(&after) - sum(&before)
            };
            assert_eq!(grown(Kind::Messages, Counter::Messages), 2 * MESSAGES);
            assert_eq!(grown(Kind::Messages, Counter::Bytes), (LEN + SHORT) * MESSAGES);
            assert_eq!(grown(Kind::Messages, Counter::Inline), MESSAGES, "{direction:?}");
            assert_eq!(grown(Kind::Rail, Counter::Bytes), LEN * MESSAGES, "{direction:?}");
            assert_eq!(grown(Kind::Rail, Counter::Failed), 0);
            let refused = grown(Kind::Rail, Counter::Refused);
            assert_eq!(refused > 0, direction == Direction::Send, "{direction:?}: {refused}");
        }
        link.close_all();
    });
}

/// Without immediates the receiver learns of its rail by FIN.
#[test]
fn an_empty_message_that_is_written_is_inline_at_neither_end() {
    let cases = ["immediates=1", "immediates=0"];
    play_each(&cases, &[provider(), ("INLINE_MAX_SIZE", "0")], BOUND, |part, immediates| {
        let link = Link::between_ends(part, "efa", 2, immediates);
        for _ in 0..MESSAGES {
            let received = link.irecv(0, LEN, 0);
            link.poll();
            let sent = link.isend_at_last(0, 0, 0);
            assert_eq!(link.finish(received), 0);
            link.finish(sent);
        }
        let rows = rows();
        for direction in [Direction::Send, Direction::Receive] {
            let sum = |counter| sum(&rows, (Kind::Messages, direction), counter);
            let counted = [Counter::Messages, Counter::Inline].map(sum);
            assert_eq!(counted, [MESSAGES, 0], "{direction:?}, {immediates}");
        }
        link.close_all();
    });
}

/// A counter of all rows of a kind in one direction.
fn sum(rows: &[counters::Row], of: (Kind, Direction), counter: Counter) -> usize {
    let its = rows.iter().filter(|row| (row.key.kind, row.key.direction) == of);
    usize::try_from(its.map(|row| row.get(counter)).sum::<u64>()).expect("small")
}

fn rows() -> Vec<counters::Row> {
    let process = format!(".{}.", process::id());
    let all = fs::read_dir(counters::FOLDER).expect("the folder is there");
    let mut paths = all.map(|entry| entry.expect("an entry").path());
    let path = paths.find(|path| {
        let path = path.to_string_lossy();
        path.contains(&process) && path.ends_with(".0")
    });
    let bytes = fs::read(path.expect("the plugin shows a page")).expect("ours");
    Page::read(&bytes).expect("it is a page").rows
}
