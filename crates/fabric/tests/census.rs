//! What is opened is closed: each provider in a process of its own, since the counts are the process's.

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with loopback")]
mod support;

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use harness::Test;
use support::{LIBRARY, LOOPBACK, Pair, Provider};

fn main() -> ExitCode {
    harness::run([
        Test::new(nothing_of_net_is_left_open).needs(support::offers(NET, false)),
        Test::new(nothing_of_tcp_is_left_open).needs(support::offers(TCP, false)),
        Test::new(nothing_of_rxm_is_left_open).needs(support::offers(RXM, false)),
        Test::new(nothing_of_shm_is_left_open).needs(support::offers(SHM, false)),
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
    if env::var_os(ALONE).is_none() {
        let library = support::other_library(provider).map(OsString::from);
        let library = library.or_else(|| env::var_os(LIBRARY));
        let mut settings = vec![(ALONE, OsStr::new("1"))];
        settings.extend(library.as_ref().map(|library| (LIBRARY, library.as_os_str())));
        return harness::again(test, &settings);
    }
    let pair = Pair::open(provider, false);
    let open = fabric::census();
    assert_eq!((open.regions, open.endpoints, open.queues), (4, 4, 4));
    assert_eq!((open.address_vectors, open.domains, open.fabrics, open.pages), (4, 2, 2, 4));
    drop(pair);
    assert!(fabric::census().is_empty(), "{:?}", fabric::census());
    assert_eq!(fabric::census().failed_closes, 0);
}

const NET: Provider = Provider { name: "net", source: LOOPBACK, messages: false };
const TCP: Provider = Provider { name: "tcp", source: LOOPBACK, messages: false };
const RXM: Provider = Provider { name: "tcp;ofi_rxm", source: LOOPBACK, messages: false };
const SHM: Provider = Provider { name: "shm", source: None, messages: false };
/// Set in the process that counts.
const ALONE: &str = "FABRIC_TEST_ALONE";
