//! The limits of injected operations, by raw calls: those of efa depend on the library.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::process::ExitCode;

use harness::{Test, second_libfabric};
use libfabric_sys as sys;
use support::{Buffer, EVERY_ACCESS, Rig};

/// Names the library that a test uses.
const LIBRARY: &str = "FABRIC_TEST_LIBRARY";

fn main() -> ExitCode {
    harness::run([
        Test::new(a_write_longer_than_efa_injects_is_caught),
        Test::new(a_write_longer_than_efa_injects_is_caught_on_the_second_library)
            .needs(second_libfabric().map(drop)),
    ])
}

fn a_write_longer_than_efa_injects_is_caught() {
    let rig = Rig::new("profile=efa");
    let (a, b) = (rig.end(0), rig.end(1));
    let (source, target) = (Buffer::of(64, b"x"), Buffer::new(64));
    let there = b.register(&target, EVERY_ACCESS).at(a.know(&b), 0);
    let most = rig.injected_write("efa");
    assert_eq!(a.inject_write(source.bare(most), there), 0);
    assert_eq!(a.inject(source.bare(32), there.peer), 0);
    assert_eq!(rig.count(), 0, "{:?}", rig.violations());
    let too_long = -(sys::FI_EMSGSIZE as isize);
    assert_eq!(a.inject_write(source.bare(most + 1), there), too_long);
    assert_eq!(a.inject(source.bare(33), there.peer), too_long);
    rig.caught("too_long", 2);
}

/// From 1.22 on FI_OPT_INJECT_RMA_SIZE says that efa injects no writes.
fn a_write_longer_than_efa_injects_is_caught_on_the_second_library() {
    if std::env::var_os(LIBRARY).is_some() {
        let rig = Rig::new("profile=efa");
        assert_eq!(rig.injected_write("efa"), 0);
        drop(rig);
        return a_write_longer_than_efa_injects_is_caught();
    }
    let library = second_libfabric().expect("the test runs only where it is");
    let settings = [(LIBRARY, library.as_os_str())];
    harness::again(a_write_longer_than_efa_injects_is_caught_on_the_second_library, &settings);
}
