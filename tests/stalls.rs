//! Stall reports between processes, and the dump that a file requests. `tests/vfabric/stalls.rs` has the kinds that need no second process.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::calls::{Net, warnings};
use support::link::{Link, SLOT};
use support::stage::{Part, play};

const BOUND: Duration = Duration::from_secs(120);
/// Longer than any report takes on a busy machine.
const WAIT: Duration = Duration::from_secs(40);
const SETTINGS: [(&str, &str); 4] = [
    ("PROVIDER", "net"),
    ("RAILS", "127.0.0.1"),
    ("STALL_REPORT_MS", "1000"),
    ("PEER_TIMEOUT_MS", "60000"),
];

fn reports() -> Vec<String> {
    warnings().into_iter().filter(|line| line.contains("stalled: ")).collect()
}

/// The next report, which appears while this calls `poll`.
#[track_caller]
fn report(mut poll: impl FnMut()) -> String {
    let start = Instant::now();
    while reports().is_empty() {
        poll();
        thread::yield_now();
        assert!(start.elapsed() < WAIT, "no report within {WAIT:?}");
    }
    reports().remove(0)
}

fn opened(part: &Part, peer: Option<&mut support::stage::Cast>) -> Link {
    let net = Net::open(&part.plugin());
    let context = net.init().expect("init");
    let mut link = match peer {
        Some(peer) => Link::to_peer(net, context, peer),
        None => Link::to_peer(net, context, &mut &*part),
    };
    link.works();
    link
}

#[test]
fn a_peer_that_is_stopped_is_named_by_the_one_that_waits_for_it() {
    play(&SETTINGS, BOUND, |part| {
        if part.name == "peer" {
            let _link = opened(part, None);
            part.stop();
            unreachable!("it is never resumed");
        }
        let mut peer = part.cast("peer", &[]);
        let net = Net::open(&part.plugin());
        let link = opened(part, Some(&mut peer));
        peer.wait_for_stop();
        let request = net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
        let request = request.expect("irecv").expect("the window has room");
        let said = report(|| assert_eq!(net.test(request), Ok(None)));
        let number = format!("receiving from rank 0, process {}", peer.process());
        for words in [&*number, "has not answered for", "its process is stopped or gone"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(!said.contains("Nothing of Ironrail's is late"), "{said}");
    });
}

/// The peer's NCCL has posted a receive, whose message has arrived, and does not test it any more: the sender waits for the next receive.
#[test]
fn a_peer_whose_nccl_does_not_poll_is_named_on_both_ends() {
    play(&SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        if part.name == "peer" {
            let link = opened(part, None);
            let posted = net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
            posted.expect("irecv").expect("the window has room");
            part.say("posted");
            let said = report(|| {});
            assert!(said.contains("NCCL has 1 request open"), "{said}");
            part.say("reported");
            part.receive();
            return;
        }
        let mut peer = part.cast("peer", &[]);
        let link = opened(part, Some(&mut peer));
        assert_eq!(peer.receive(), "posted");
        let isend = || {
            let sent = net.isend(link.send, link.out.slot(0), SLOT, 0, link.out.region);
            sent.expect("isend")
        };
        let mut first = None;
        support::link::wait("the receive", || {
            first = isend();
            first.is_some()
        });
        let first = first.expect("just sent");
        support::link::wait("the end of it", || net.test(first).expect("test").is_some());
        let said = report(|| assert_eq!(isend(), None));
        // With its rank, if the peer was asked for its state before.
        let number = format!("process {}", peer.process());
        let late = "the peer's NCCL has requests open and has not called";
        for words in ["sending to ", &*number, late] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!(peer.receive(), "reported");
        peer.say("end");
        peer.finish();
    });
}

#[test]
fn a_file_that_comes_asks_for_a_dump_of_all_connections() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dump.{}", process::id()));
    fs::create_dir(&folder).expect("the target folder takes a folder");
    let trigger = folder.join("now");
    let text = trigger.to_str().expect("text");
    play(
        &[&SETTINGS[..], &[("DUMP_TRIGGER", text), ("JOB", "a secret name")]].concat(),
        BOUND,
        |part| {
            let trigger = std::env::var("IRONRAIL_DUMP_TRIGGER").expect("it was set");
            let trigger = Path::new(&trigger);
            let folder = trigger.parent().expect("a folder");
            let net = Net::open(&part.plugin());
            let context = net.init().expect("init");
            let mut link = Link::to_self(net, context);
            link.works();
            let request = net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
            let request = request.expect("irecv").expect("the window has room");
            let dumps = || {
                let all =
                    fs::read_dir(folder).expect("ours").map(|entry| entry.expect("ours").path());
                all.filter(|path| path.extension().is_some_and(|kind| kind == "json"))
                    .collect::<Vec<_>>()
            };
            assert!(dumps().is_empty(), "no dump was requested");
            fs::write(trigger, "").expect("ours");
            let mut found = None;
            support::link::wait("the dump", || {
                assert_eq!(net.test(request), Ok(None));
                let text = dumps().first().and_then(|path| fs::read_to_string(path).ok());
                found = text.filter(|text| text.ends_with("}\n"));
                found.is_some()
            });
            let text = found.expect("just found");
            assert!(!text.contains("a secret name"), "{text}");
            let json: Value = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(json["process"], process::id());
            assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
            let connections = json["endpoints"][0]["connections"].as_array().expect("a list");
            let of = |direction: &str| {
                let mut all = connections.iter().filter(|one| one["direction"] == direction);
                all.next().unwrap_or_else(|| panic!("{text}"))
            };
            assert_eq!(of("receive")["waits_for"], "a message", "{text}");
            assert_eq!(of("receive")["requests"], 1);
            assert_eq!(of("send")["waits_for"], "nothing");
            assert_eq!(json["endpoints"][0]["requests"], 1);
            assert_eq!(json["endpoints"][0]["counters"]["violations"], 0, "{text}");
            let parts = json["parts"].as_array().expect("a list").iter();
            assert!(parts.map(|row| row["parts"].as_u64()).all(|parts| parts > Some(0)), "{text}");
            let messages = json["messages"].as_array().expect("a list").len();
            assert_eq!((messages, json["parts"].as_array().expect("a list").len()), (2, 2));
            fs::remove_dir_all(folder).expect("ours");
        },
    );
}
