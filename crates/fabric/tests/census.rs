//! What is opened is closed, and what threads a provider starts: each provider in a process of its own, since the counts and the threads
//! are the process's.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with loopback")]
mod support;

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use harness::Test;
use proc_status::Status;
use support::{LIBRARY, LOOPBACK, Pair, Provider};

fn main() -> ExitCode {
    harness::run([
        Test::new(nothing_of_net_is_left_open).needs(support::offers(NET, false)),
        Test::new(nothing_of_tcp_is_left_open).needs(support::offers(TCP, false)),
        Test::new(nothing_of_rxm_is_left_open).needs(support::offers(RXM, false)),
        Test::new(nothing_of_shm_is_left_open).needs(support::offers(SHM, false)),
        Test::new(threads_of_a_provider_leave_signals_to_the_program)
            .needs(support::offers(SOCKETS, false)),
    ])
}

fn nothing_of_net_is_left_open() {
    counted(nothing_of_net_is_left_open, NET);
}

fn nothing_of_tcp_is_left_open() {
    counted(nothing_of_tcp_is_left_open, TCP);
}

fn nothing_of_rxm_is_left_open() {
    counted(nothing_of_rxm_is_left_open, RXM);
}

fn nothing_of_shm_is_left_open() {
    counted(nothing_of_shm_is_left_open, SHM);
}

fn counted(test: impl Fn() + 'static, provider: Provider) {
    alone(test, provider, || count(provider));
}

/// Runs `body` in a process of its own.
fn alone(test: impl Fn() + 'static, provider: Provider, body: impl Fn()) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    let library = support::other_library(provider).map(OsString::from);
    let library = library.or_else(|| env::var_os(LIBRARY));
    let mut settings = vec![(ALONE, OsStr::new("1"))];
    settings.extend(library.as_ref().map(|library| (LIBRARY, library.as_os_str())));
    harness::again(test, &settings);
}

fn count(provider: Provider) {
    let pair = Pair::open(provider, false);
    let open = fabric::census();
    assert_eq!((open.regions, open.endpoints, open.queues), (4, 4, 4));
    assert_eq!((open.address_vectors, open.domains, open.fabrics, open.pages), (4, 2, 2, 4));
    drop(pair);
    assert!(fabric::census().is_empty(), "{:?}", fabric::census());
    assert_eq!(fabric::census().failed_closes, 0);
}

fn threads_of_a_provider_leave_signals_to_the_program() {
    let body = || {
        let own = threads();
        let _pair = Pair::open(SOCKETS, false);
        let of_the_provider = || {
            let mut threads = threads();
            threads.retain(|thread, _| !own.contains_key(thread));
            threads
        };
        let open = |signal: i32, blocked: &u64| blocked >> (signal - 1) & 1 == 0;
        // A thread that begins blocks all signals for a moment.
        let end = Instant::now() + WAIT;
        while !of_the_provider().values().all(|blocked| open(libc::SIGSEGV, blocked)) {
            assert!(Instant::now() < end, "one hides its faults: {:x?}", of_the_provider());
            thread::yield_now();
        }
        let threads = of_the_provider();
        assert!(!threads.is_empty(), "sockets has started no thread");
        assert!(!threads.values().any(|blocked| open(libc::SIGTERM, blocked)), "{threads:x?}");
        let own = Status::of_this_thread().unwrap().signals("SigBlk").unwrap();
        assert!(open(libc::SIGTERM, &own), "the thread that has opened it blocks more");
    };
    alone(threads_of_a_provider_leave_signals_to_the_program, SOCKETS, body);
}

/// The threads of this process, and the signals that each blocks.
fn threads() -> BTreeMap<OsString, u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    // A thread may have ended meanwhile.
    let of = |task: DirEntry| {
        let status = Status::in_file(&task.path().join("status")).ok()?;
        Some((task.file_name(), status.signals("SigBlk")?))
    };
    tasks.filter_map(of).collect()
}

const WAIT: Duration = Duration::from_secs(30);
const NET: Provider = Provider { name: "net", source: LOOPBACK, messages: false };
const TCP: Provider = Provider { name: "tcp", source: LOOPBACK, messages: false };
const RXM: Provider = Provider { name: "tcp;ofi_rxm", source: LOOPBACK, messages: false };
const SHM: Provider = Provider { name: "shm", source: None, messages: false };
const SOCKETS: Provider = Provider { name: "sockets", source: LOOPBACK, messages: false };
/// Set in the process that runs one test.
const ALONE: &str = "FABRIC_TEST_ALONE";
