//! The end of a process with endpoints open, by exit(3) or by a return from its main function, as of a program that destroys no communicator.
//!
//! By a handler of atexit(3) the keeper ends, the counters are written, and their pages are removed, which would otherwise be left as those
//! of a process that was killed. Endpoints stay usable: destructors of the program, which follow, may destroy communicators.
//!
//! Before libfabric's destructor, which frees memory that a poll uses, and unloads providers, all endpoints are closed to calls: NCCL's
//! threads poll until the process is gone.

use std::panic::catch_unwind;
use std::sync::Once;
use std::time::Duration;

use super::wait::wait_until;
use super::{keeper, record_open, table};
use crate::counter_pages;
use crate::endpoint::close::Report;

/// How long the end waits for the keeper, and then for other calls, which may be in a provider.
const WITHIN: Duration = Duration::from_millis(100);

/// Registers the handlers. To be called after an endpoint was opened: handlers run in reverse order, so these run before those of libraries
/// that a provider has loaded for the endpoint.
pub(super) fn watch() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        fabric::at_exit(exits);
        fabric::before_destructors(|| table::close(WITHIN));
    });
}

extern "C" fn exits() {
    // A child has no keeper, and the parent may have held the locks at the fork.
    if !fabric::is_forked() {
        // The hook has logged a panic.
        let _ended = catch_unwind(end);
    }
}

fn end() {
    keeper::begin_end();
    wait_until(WITHIN, keeper::has_ended);
    if keeper::has_endpoints() {
        record_open(open_reports);
    }
    counter_pages::unshare();
}

/// What open endpoints have transferred so far.
fn open_reports() -> Vec<Report> {
    let report = |number| Some(table::entry(number).as_deref_mut()?.report());
    keeper::endpoints().into_iter().filter_map(report).collect()
}
