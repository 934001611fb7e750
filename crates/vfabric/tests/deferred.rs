//! Regions that are registered while their rail is fenced, where regions are bound to endpoints (FI_MR_ENDPOINT, fi_mr(3)), through the
//! plugin's fabric layer: the registration waits until the rail opens again. Also fences whose endpoint or queue does not close, and addresses
//! that come meanwhile.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/provider.rs"]
mod provider;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use fabric::{
    Control, Data, Delivery, Info, Library, Nic, NicOptions, NotDeregistered, Pages, Query,
    RemoteBytes, RemoteKey, UserMemory, Write,
};
use harness::Test;

/// Set in the process that a test starts for itself.
const AGAIN: &str = "DEFERRED_TEST";

/// A data rail, and no control rail.
fn options() -> NicOptions<'static> {
    NicOptions { data: Some(&[]), entries: 64, operations: 4, ..NicOptions::default() }
}

fn main() -> ExitCode {
    harness::run([
        Test::new(a_region_of_a_fenced_rail_gets_its_key_when_the_rail_opens_again),
        Test::new(memory_that_cannot_be_registered_is_refused_while_the_rail_is_fenced),
        Test::new(a_rail_whose_queue_does_not_close_is_fenced_and_opens_again),
        Test::new(a_rail_that_is_stuck_while_it_opens_again_stays_closed),
        Test::new(a_rail_that_leaked_keeps_no_memory_from_the_others),
        Test::new(a_control_rail_that_leaked_takes_no_memory),
        Test::new(an_address_that_is_refused_when_the_rail_opens_again_is_asked_for_again),
        Test::new(posts_to_a_peer_whose_address_was_refused_say_so),
    ])
}

/// Runs `body` with a fenced NIC of the profile cxi, in a process of its own.
fn fenced(test: impl Fn() + 'static, body: fn(Nic)) {
    fenced_with("", test, body);
}

/// The same with a script of faults.
fn fenced_with(faults: &str, test: impl Fn() + 'static, body: fn(Nic)) {
    opened_with(faults, test, |_, mut nic| {
        nic.fence::<Data>().unwrap();
        body(nic);
    });
}

/// The same with a NIC whose rail is open.
fn opened_with(faults: &str, test: impl Fn() + 'static, body: impl FnOnce(&Info, Nic)) {
    if env::var_os(AGAIN).is_some() {
        let library = Library::open(&["libfabric.so.1"]).unwrap();
        let query = Query { provider: Some("vfabric".to_owned()), ..Query::default() };
        let found = library.find(&query).unwrap();
        let info = found.first().expect("vfabric offers its NICs");
        let nic = Nic::open(info, &options()).unwrap();
        assert!(nic.region_mode().bind_to_endpoint);
        return body(info, nic);
    }
    let provider = provider::file();
    let report = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(std::any::type_name_of_val(&test).replace("::", "."));
    let settings = [
        (AGAIN, OsStr::new("1")),
        ("FI_PROVIDER_PATH", provider.parent().unwrap().as_os_str()),
        ("FI_PROVIDER", OsStr::new("vfabric")),
        ("VFABRIC_PROFILE", OsStr::new("cxi")),
        ("VFABRIC_FAULTS", OsStr::new(faults)),
        ("VFABRIC_REPORT", report.as_os_str()),
    ];
    harness::again(test, &settings);
    let said = fs::read_to_string(&report).unwrap();
    fs::remove_file(&report).unwrap();
    if let Some((fault, _)) = faults.split_once('=') {
        let fired = format!("counter faults.{fault} ");
        assert!(said.lines().any(|line| line.starts_with(&fired)), "{said}");
    }
}

fn a_region_of_a_fenced_rail_gets_its_key_when_the_rail_opens_again() {
    fenced(a_region_of_a_fenced_rail_gets_its_key_when_the_rail_opens_again, |mut nic| {
        let region = nic.register::<Data>(Pages::map(4096).unwrap().into()).unwrap();
        assert_eq!(nic.key_of(&region), RemoteKey::from_wire(0));
        nic.reopen(&options()).unwrap();
        assert_ne!(nic.key_of(&region), RemoteKey::from_wire(0));
        nic.deregister(region).unwrap();
    });
}

fn memory_that_cannot_be_registered_is_refused_while_the_rail_is_fenced() {
    fenced(memory_that_cannot_be_registered_is_refused_while_the_rail_is_fenced, |mut nic| {
        for (address, len) in [(4096, 0), (u64::MAX - 100, 4096)] {
            // SAFETY: nothing accesses it: it is refused.
            let memory = unsafe { UserMemory::host(address, len) };
            let refused = nic.register::<Data>(memory.into()).map(drop).unwrap_err();
            assert_eq!(refused.code(), -libc::EINVAL, "{len} bytes at {address:#x}");
        }
        nic.reopen(&options()).unwrap();
    });
}

/// Nothing reaches memory by a queue without an endpoint, so a queue that leaks does not weaken the fence.
fn a_rail_whose_queue_does_not_close_is_fenced_and_opens_again() {
    fenced_with("jam=1", a_rail_whose_queue_does_not_close_is_fenced_and_opens_again, |mut nic| {
        let region = nic.register::<Data>(Pages::map(4096).unwrap().into()).unwrap();
        nic.reopen(&options()).unwrap();
        assert_ne!(nic.key_of(&region), RemoteKey::from_wire(0));
        nic.deregister(region).unwrap();
    });
}

/// The first region cannot be closed after the second one was refused. It leaks with the endpoint, whose place a second attempt would take.
fn a_rail_that_is_stuck_while_it_opens_again_stays_closed() {
    fenced_with("stuck=2", a_rail_that_is_stuck_while_it_opens_again_stays_closed, |mut nic| {
        let region = nic.register::<Data>(Pages::map(4096).unwrap().into()).unwrap();
        // SAFETY: nothing accesses it: no page is mapped there, and the provider refuses it.
        let memory = unsafe { UserMemory::host(4096, 4096) };
        let refused = nic.register::<Data>(memory.into()).unwrap();
        let mut reopen = || nic.reopen(&options()).unwrap_err().code();
        assert_eq!([reopen(), reopen()], [-libc::EBUSY; 2]);
        let closed = nic.deregister(region);
        assert!(matches!(closed, Err(NotDeregistered::Leaked(_))), "a peer may write to it");
        nic.deregister(refused).unwrap();
        nic.close().unwrap_err();
    });
}

/// A registration is made on all rails of an endpoint, or not at all.
fn a_rail_that_leaked_keeps_no_memory_from_the_others() {
    opened_with("stuck=1", a_rail_that_leaked_keeps_no_memory_from_the_others, |_, mut nic| {
        assert_eq!(nic.fence::<Data>().unwrap_err().code(), -libc::EBUSY);
        assert!(!nic.has_data());
        let region = nic.register::<Data>(Pages::map(4096).unwrap().into()).unwrap();
        assert_eq!(nic.key_of(&region), RemoteKey::from_wire(0));
        nic.reopen(&options()).unwrap_err();
        nic.deregister(region).unwrap();
        nic.close().unwrap_err();
    });
}

/// The rail does not open again, so a registration would wait for nothing.
fn a_control_rail_that_leaked_takes_no_memory() {
    opened_with("stuck=3", a_control_rail_that_leaked_takes_no_memory, |info, _other| {
        let options = NicOptions { control: Some(&[]), ..options() };
        let mut nic = Nic::open(info, &options).unwrap();
        assert_eq!(nic.fence::<Control>().unwrap_err().code(), -libc::EBUSY);
        let refused = nic.register::<Control>(Pages::map(4096).unwrap().into()).unwrap_err();
        assert_eq!(refused.code(), -libc::ESHUTDOWN);
        nic.close().unwrap_err();
    });
}

/// While the rail is closed, addresses are not checked.
fn an_address_that_is_refused_when_the_rail_opens_again_is_asked_for_again() {
    fenced(an_address_that_is_refused_when_the_rail_opens_again_is_asked_for_again, |mut nic| {
        nic.add_peer::<Data>(&WRONG).unwrap();
        nic.reopen(&options()).unwrap();
        let refused = nic.add_peer::<Data>(&WRONG).unwrap_err();
        assert_eq!(refused.code(), -libc::EINVAL);
        let own = nic.data_name().to_vec();
        nic.add_peer::<Data>(&own).unwrap();
    });
}

fn posts_to_a_peer_whose_address_was_refused_say_so() {
    fenced(posts_to_a_peer_whose_address_was_refused_say_so, |mut nic| {
        let peer = nic.add_peer::<Data>(&WRONG).unwrap();
        nic.reopen(&options()).unwrap();
        let region = nic.register::<Data>(Pages::map(4096).unwrap().into()).unwrap();
        let remote = RemoteBytes { address: 0, key: nic.key_of(&region) };
        let bytes = || region.local(0, 8).unwrap();
        let write = Write { local: bytes(), remote, peer, delivery: Delivery::Default };
        let host = region.host_bytes(region.memory().address(), 8).unwrap();
        for (call, outcome) in [
            ("fi_write", nic.write(&write, None, 1)),
            ("fi_read", nic.read(bytes(), remote, peer, 2)),
            ("fi_inject_writedata", nic.inject(host, remote, peer, 3)),
        ] {
            let words = format!("{call}: the provider has refused the peer's address (-22)");
            assert_eq!(outcome.unwrap_err().to_string(), words);
        }
        nic.deregister(region).unwrap();
    });
}

/// An address that vfabric refuses.
const WRONG: [u8; 3] = [7; 3];
