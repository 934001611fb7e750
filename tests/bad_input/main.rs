//! Input that must do no harm: bad handles, bad calls, bad peers, bad bytes, bad settings. Each ends in a named error or a counted drop
//! within its bound; the process lives, and the endpoint's other work continues.

mod bystander;
mod calls;
mod closing;
mod deaths;
mod forked;
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
/// The timeout for a peer: long enough for a link to come up on a busy machine.
const DEADLINE: Duration = Duration::from_secs(6);
const CLOSE_BOUND: Duration = Duration::from_secs(1);
/// What a loaded machine may add to any deadline. A wait without a bound exceeds it too.
const SLACK: Duration = Duration::from_secs(30);
/// How long a play may take, deadlines included.
const BOUND: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let tests = [
        calls::tests(),
        closing::tests(),
        deaths::tests(),
        forked::tests(),
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

/// The test cannot run with `provider`, if IRONRAIL_PROVIDER selects that; `why` is the reason.
fn not_over(provider: &str, why: &str) -> Need {
    if is_over(provider) { Err(format!("another provider than {provider}: {why}")) } else { Ok(()) }
}

fn open(part: &Part) -> (Net, Object) {
    let net = Net::open(&part.plugin());
    (net, net.init().expect("init"))
}

/// The call was refused with this code and one sentence that contains `words`.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Answer<T>, code: ResultCode, words: &str) {
    let failure = answer.expect_err("it must be refused");
    assert_eq!(failure.code, code, "{failure:?}");
    assert!(failure.said.len() == 1 && failure.said[0].contains(words), "{failure:?}");
}

/// The file of a play's counters.
fn stats_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stats.{name}.{}", std::process::id()))
}

/// A counter of a play.
fn counter(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).expect("the play wrote its counters");
    let counted: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
    let counted = counted["counters"][name].as_u64();
    counted.unwrap_or_else(|| panic!("no counter {name} in\n{text}"))
}
