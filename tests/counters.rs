//! The plugin's counters: their bytes are the bytes that were moved, and the page of counters is accessible to its owner only.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use counters::{Counter, Direction, Kind, Page, Row, Unreadable};
use serde_json::Value;
use support::calls::Net;
use support::link::{Link, SLOT};
use support::stage::{Part, play};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// Short messages, which travel in packets, empty ones, and long ones over both rails.
const LENGTHS: [usize; 4] = [0, 8, 5000, SLOT - 7];
/// Messages of each length.
const COUNT: usize = 40;
const RAILS: [(&str, &str); 2] = [("PROVIDER", "net"), ("RAILS", "127.0.0.1,127.0.0.2")];

#[test]
fn bytes_by_counters_are_the_bytes_that_were_moved() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("counted.{}", process::id()));
    let text = file.to_str().expect("text");
    play(&[&RAILS[..], &[("STATS_FILE", text)]].concat(), BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let mut link = Link::to_self(net, context);
        for len in LENGTHS {
            link.exchange(COUNT, len).expect("messages move");
        }
        let shown = page(&only_page());
        assert_eq!(shown.process, process::id());
        assert_eq!(shown.elsewhere, 0);
        adds_up(&shown.rows);
        link.close();
        net.finalize(context).expect("finalize");
        assert_eq!(pages(), [] as [PathBuf; 0], "the page goes with the last connection");
        let path = std::env::var("IRONRAIL_STATS_FILE").expect("it was set");
        in_the_file(&fs::read_to_string(&path).expect("the plugin leaves its counters"));
        fs::remove_file(path).expect("ours");
    });
}

/// As a program of PyTorch ends without `destroy_process_group`, perhaps while NCCL's thread waits for what never comes.
#[test]
fn a_process_that_ends_with_connections_open_leaves_its_counters() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("open.{}", process::id()));
    let text = file.to_str().expect("text");
    play(&[&RAILS[..], &[("STATS_FILE", text)]].concat(), BOUND, |part| {
        let net = Net::open(&part.plugin());
        let mut link = Link::to_self(net, net.init().expect("init"));
        for len in LENGTHS {
            link.exchange(COUNT, len).expect("messages move");
        }
        let input = link.input;
        let pending = net.irecv(link.receive, input.slot(0), SLOT, 0, input.region);
        let pending = pending.expect("irecv").expect("nothing else is posted");
        let (sender, polls) = mpsc::channel();
        thread::spawn(move || {
            while matches!(net.test(pending), Ok(None)) {
                let _sent = sender.send(());
            }
        });
        polls.recv_timeout(BOUND).expect("it polls");
    });
    in_the_file(&fs::read_to_string(&file).expect("the plugin leaves its counters"));
    fs::remove_file(file).expect("ours");
}

/// Checks the rows of a process that is connected to itself.
fn adds_up(rows: &[Row]) {
    let bytes: usize = LENGTHS.iter().map(|len| len * COUNT).sum();
    let inline: usize = LENGTHS.iter().filter(|len| **len <= 4096).count() * COUNT;
    for direction in [Direction::Send, Direction::Receive] {
        let of = |kind| {
            let rows = rows
                .iter()
                .filter(move |row| (row.key.kind, row.key.direction) == (kind, direction));
            rows.collect::<Vec<_>>()
        };
        let [messages] = of(Kind::Messages)[..] else { panic!("{rows:#?}") };
        let get = |counter| usize::try_from(messages.get(counter)).expect("small");
        assert_eq!(get(Counter::Messages), COUNT * LENGTHS.len(), "{direction:?}");
        assert_eq!(get(Counter::Bytes), bytes, "{direction:?}");
        assert_eq!(get(Counter::Inline), inline, "{direction:?}");
        assert!(messages.latency.iter().sum::<u64>() > 0, "latency is sampled: {messages:?}");
        assert!(messages.get(Counter::LatencyNanos) > 0);
        let rails = of(Kind::Rail);
        assert_eq!(rails.len(), 2, "{rows:#?}");
        let carried: u64 = rails.iter().map(|row| row.get(Counter::Bytes)).sum();
        let long: usize = LENGTHS.iter().filter(|len| **len > 4096).map(|len| len * COUNT).sum();
        // The completion of a remote write does not contain its length with this provider.
        let expected = if direction == Direction::Send { long as u64 } else { 0 };
        assert_eq!(carried, expected, "{direction:?}");
        assert!(rails.iter().all(|row| row.get(Counter::Parts) > 0), "{rails:#?}");
    }
}

fn in_the_file(text: &str) {
    let json: Value = serde_json::from_str(text).expect("the file is JSON");
    assert_eq!(json["format"], 1);
    let rows = json["messages"].as_array().expect("a list");
    let bytes: usize = LENGTHS.iter().map(|len| len * COUNT).sum();
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        assert_eq!(row["bytes"], bytes, "{text}");
    }
    let parts = json["parts"].as_array().expect("a list");
    assert_eq!(parts.len(), 4, "{text}");
    let whole = |key: &str| {
        json["rails"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|rail| rail[key].as_u64().expect("a number"))
            .sum::<u64>()
    };
    let sent = parts.iter().filter(|row| row["direction"] == "send");
    let sent: u64 = sent.map(|row| row["bytes"].as_u64().expect("a number")).sum();
    // The device's probe has written to itself too.
    let probed = whole("data_bytes") - sent;
    assert!(probed < 4096, "by completions {probed} more than by posts: {text}");
}

#[test]
fn the_page_is_its_owners_alone_and_follows_no_link() {
    play(&RAILS, BOUND, |part| {
        // A file of this name exists already: it must not be written to.
        let name = counters::file_name(user(), process::id(), namespace(), 0);
        let trap = Path::new(counters::FOLDER).join(name);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trap.{}", process::id()));
        fs::write(&target, "untouched").expect("the target folder takes a file");
        symlink(&target, &trap).expect("the folder takes a link");
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let mut link = Link::to_self(net, context);
        link.exchange(4, 8).expect("messages move");
        let found = pages();
        fs::remove_file(&trap).expect("ours");
        let (made, linked): (Vec<_>, Vec<_>) = found.iter().partition(|path| **path != trap);
        assert_eq!((made.len(), linked.len()), (1, 1), "{found:?}");
        let facts = fs::symlink_metadata(made[0]).expect("it is there");
        assert_eq!((facts.mode() & 0o777, facts.uid()), (0o600, user()));
        assert_eq!(fs::read_to_string(&target).expect("ours"), "untouched");
        fs::remove_file(target).expect("ours");
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn without_the_setting_there_is_no_page_and_counting_goes_on() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unseen.{}", process::id()));
    let text = file.to_str().expect("text");
    let settings = [&RAILS[..], &[("STATS_FILE", text), ("STATS_PAGE", "0")]].concat();
    play(&settings, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let mut link = Link::to_self(net, context);
        for len in LENGTHS {
            link.exchange(COUNT, len).expect("messages move");
        }
        assert_eq!(pages(), [] as [PathBuf; 0]);
        link.close();
        net.finalize(context).expect("finalize");
        let path = std::env::var("IRONRAIL_STATS_FILE").expect("it was set");
        in_the_file(&fs::read_to_string(&path).expect("the plugin leaves its counters"));
        fs::remove_file(path).expect("ours");
    });
}

/// Counters continue when connections close and open again.
#[test]
fn a_connection_that_comes_again_counts_on() {
    play(&RAILS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let mut counted = Vec::new();
        for _ in 0..3 {
            let mut link = Link::to_self(net, context);
            link.exchange(COUNT, 8).expect("messages move");
            let rows = page(&only_page()).rows;
            let row = rows.iter().find(|row| row.key.kind == Kind::Messages).expect("a row");
            counted.push(row.get(Counter::Messages));
            link.close();
        }
        net.finalize(context).expect("finalize");
        // The same after the page was removed.
        let context = net.init().expect("init");
        let link = Link::to_self(net, context);
        let rows = page(&only_page()).rows;
        let row = rows.iter().find(|row| row.key.kind == Kind::Messages).expect("a row");
        counted.push(row.get(Counter::Messages));
        let once = COUNT as u64;
        assert_eq!(counted, [once, 2 * once, 3 * once, 3 * once]);
        link.close();
        net.finalize(context).expect("finalize");
    });
}

/// As one of PyTorch's without `destroy_process_group`.
#[test]
fn the_page_of_a_process_that_ends_with_connections_is_removed() {
    play(&RAILS, BOUND, |part| {
        if part.name == "leaver" {
            let net = Net::open(&part.plugin());
            let context = net.init().expect("init");
            let mut link = Link::to_self(net, context);
            link.exchange(COUNT, 8).expect("messages move");
            return part.say(only_page().to_str().expect("text"));
        }
        let leaver = part.cast("leaver", &[]);
        let page = PathBuf::from(leaver.receive());
        leaver.finish();
        let is_left = page.exists();
        let _ = fs::remove_file(&page);
        assert!(!is_left, "{}", page.display());
    });
}

/// A process that was killed leaves its page; the next process of the same user removes it after a minute.
#[test]
fn the_page_of_a_process_that_was_killed_stays_readable_and_unlocked() {
    play(&RAILS, BOUND, |part| {
        if part.name == "victim" {
            let net = Net::open(&part.plugin());
            let context = net.init().expect("init");
            let mut link = Link::to_self(net, context);
            link.exchange(COUNT, 8).expect("messages move");
            part.say(&process::id().to_string());
            part.receive();
            unreachable!("it is killed");
        }
        let victim = part.cast("victim", &[]);
        let number: u32 = victim.receive().parse().expect("its number");
        let name = counters::file_name(user(), number, namespace(), 0);
        let path = Path::new(counters::FOLDER).join(name);
        let open = || fs::File::open(&path).expect("it is there");
        assert!(!fabric::is_unlocked(&open()), "its process lives");
        drop(victim);
        support::link::wait("the end of the process", || fabric::is_unlocked(&open()));
        let rows = page(&path).rows;
        let sent = rows.iter().find(|row| row.key.kind == Kind::Messages).expect("a row");
        assert_eq!(sent.get(Counter::Messages), COUNT as u64);
        fs::remove_file(path).expect("ours");
    });
}

#[test]
fn a_page_that_is_cut_or_begun_is_said_to_be() {
    play(&RAILS, BOUND, |part: &Part| {
        let net = Net::open(&part.plugin());
        let context = net.init().expect("init");
        let link = Link::to_self(net, context);
        let mut bytes = fs::read(only_page()).expect("it is there");
        let half = bytes.len() / 2;
        assert_eq!(Page::read(&bytes[..half]), Err(Unreadable::Foreign));
        bytes[..8].fill(0);
        assert_eq!(Page::read(&bytes), Err(Unreadable::HalfWritten));
        link.close();
        net.finalize(context).expect("finalize");
    });
}

fn user() -> u32 {
    fs::metadata("/proc/self").expect("proc is mounted").uid()
}

/// That of this process and of all that a play starts.
fn namespace() -> u64 {
    proc_status::pid_namespace().expect("proc is mounted")
}

/// The files of this process's pages.
fn pages() -> Vec<PathBuf> {
    let begin = format!("{}{}.{}.{}.", counters::PREFIX, user(), process::id(), namespace());
    let all = fs::read_dir(counters::FOLDER).expect("the folder is there");
    let paths = all.map(|entry| entry.expect("an entry").path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&begin))
    };
    paths.filter(ours).collect()
}

fn only_page() -> PathBuf {
    let [path] = &pages()[..] else { panic!("{:?}", pages()) };
    path.clone()
}

fn page(path: &Path) -> Page {
    Page::read(&fs::read(path).expect("it is there")).expect("it is a page")
}
