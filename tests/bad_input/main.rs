//! What must not hurt: bad handles, bad calls, bad peers, bad bytes, bad settings. Each ends in a named error or a counted
//! drop within its bound; the process lives, and what else the endpoint does goes on.

mod bystander;
mod calls;
mod closing;
mod deaths;
mod garbage;
mod handles;
mod listeners;
mod packets;
mod pauses;
mod settings;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
mod too_long;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use harness::Need;
use net_abi::ResultCode;
use support::calls::{Answer, Net, Object};
use support::stage::{Part, is_over};

/// Two rails of the loopback interface, and short deadlines.
const SETTINGS: &[(&str, &str)] = &[
    ("RAILS", "127.0.0.1,127.0.0.2"),
    ("CONNECT_TIMEOUT_MS", "6000"),
    ("PEER_TIMEOUT_MS", "2000"),
    ("CLOSE_TIMEOUT_MS", "1000"),
];
/// The wait for a peer: long enough for links that must come up, whatever else the machine does.
const DEADLINE: Duration = Duration::from_secs(6);
const CLOSE_BOUND: Duration = Duration::from_secs(1);
/// What a loaded machine may add to any deadline. What has no bound at all does not end within it either.
const SLACK: Duration = Duration::from_secs(30);
/// How long a play may take, deadlines and all.
const BOUND: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let tests = [
        calls::tests(),
        closing::tests(),
        deaths::tests(),
        garbage::tests(),
        handles::tests(),
        listeners::tests(),
        packets::tests(),
        pauses::tests(),
        settings::tests(),
        stopped::tests(),
        too_long::tests(),
    ];
    harness::run(tests.into_iter().flatten())
}

/// A test needs another provider than the one that IRONRAIL_PROVIDER asks for, if that is `provider`, because of `why`.
fn not_over(provider: &str, why: &str) -> Need {
    if is_over(provider) { Err(format!("another provider than {provider}: {why}")) } else { Ok(()) }
}

fn open(part: &Part) -> (Net, Object) {
    let net = Net::open(&part.plugin());
    (net, net.init().expect("init"))
}

/// The call was refused with this code and one sentence that has `words` in it.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Answer<T>, code: ResultCode, words: &str) {
    let failure = answer.expect_err("it must be refused");
    assert_eq!(failure.code, code, "{failure:?}");
    assert!(failure.said.len() == 1 && failure.said[0].contains(words), "{failure:?}");
}

/// A place for a play's counters.
fn stats_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stats.{name}.{}", std::process::id()))
}

/// What a play has counted.
fn counter(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).expect("the play wrote its counters");
    let counted: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
    let counted = counted["counters"][name].as_u64();
    counted.unwrap_or_else(|| panic!("no counter {name} in\n{text}"))
}
