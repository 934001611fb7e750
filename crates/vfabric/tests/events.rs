//! Event queues of NICs, through the plugin's fabric layer: efa aborts the process over an error of an endpoint without one, so that no user of
//! that layer may leave it out.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/provider.rs"]
mod provider;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use fabric::{Library, Nic, NicOptions, Query};
use harness::Test;

/// Set in the process that a test starts for itself.
const AGAIN: &str = "EVENTS_TEST";

fn main() -> ExitCode {
    harness::run([
        Test::new(a_nic_of_efa_has_an_event_queue_whatever_it_was_opened_with),
        Test::new(a_nic_of_cxi_has_none),
    ])
}

fn a_nic_of_efa_has_an_event_queue_whatever_it_was_opened_with() {
    opened(a_nic_of_efa_has_an_event_queue_whatever_it_was_opened_with, "efa", 1);
}

fn a_nic_of_cxi_has_none() {
    opened(a_nic_of_cxi_has_none, "cxi", 0);
}

/// Opens a NIC of a profile with its rails and no more, in a process of its own, and checks that the process has `queues` event queues.
fn opened(test: impl Fn() + 'static, profile: &str, queues: u64) {
    if env::var_os(AGAIN).is_some() {
        let library = Library::open(&["libfabric.so.1"]).unwrap();
        let query = Query { provider: Some("vfabric".to_owned()), ..Query::default() };
        let found = library.find(&query).unwrap();
        let (data, control, entries) = (Some(&[][..]), Some(&[][..]), 64);
        let options = NicOptions { data, control, entries, operations: 4, ..NicOptions::default() };
        let mut nic = Nic::open(&found[0], &options).unwrap();
        assert!(nic.endpoint_error().is_none());
        return;
    }
    let provider = provider::file();
    let report = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(std::any::type_name_of_val(&test).replace("::", "."));
    let settings = [
        (AGAIN, OsStr::new("1")),
        ("FI_PROVIDER_PATH", provider.parent().unwrap().as_os_str()),
        ("FI_PROVIDER", OsStr::new("vfabric")),
        ("VFABRIC_PROFILE", OsStr::new(profile)),
        ("VFABRIC_REPORT", report.as_os_str()),
    ];
    harness::again(test, &settings);
    let said = fs::read_to_string(&report).unwrap();
    fs::remove_file(&report).unwrap();
    for wanted in [format!("opened event_queues {queues}"), "violations 0".to_owned()] {
        assert!(said.lines().any(|line| line == wanted), "{wanted}: {said}");
    }
}
