//! A process that ends with its communicators open, as one of PyTorch without `destroy_process_group`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::link::{Link, POLLS};
use crate::support::stage::play;
use crate::world::provider;

/// How long the play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// The test's own setting, without its prefix: the file for the fabric's report.
const REPORT: &str = "TEST_REPORT";
/// How long the provider cleans up, in ms: longer than the keeper leaves an idle endpoint alone.
const CLEANUP: u32 = 1500;

/// The file that the process which starts the play has named.
fn report(name: &str) -> PathBuf {
    let file = format!("{name}.{}", std::process::id());
    let ours = || Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::env::var_os(format!("IRONRAIL_{REPORT}")).map_or_else(ours, PathBuf::from)
}

/// A play ends by exit(3), so that libfabric's destructor makes the provider clean up.
#[test]
fn no_poll_follows_once_libfabric_cleans_up_at_the_end_of_a_process() {
    let file = report("exits");
    let path = file.to_str().expect("the target folder is text");
    play(&[provider(), (REPORT, path)], BOUND, |part| {
        let more = format!("cleanup={CLEANUP} report={path}");
        let link = Link::between_ends(part, "cxi", 1, &more);
        link.warm();
    });
    cleaned_up(&file);
}

/// NCCL's proxy thread polls until its operations are done, which they may never be.
#[test]
fn a_thread_that_polls_reaches_libfabric_no_more_once_it_cleans_up() {
    let file = report("polls_at_the_end");
    let path = file.to_str().expect("the target folder is text");
    play(&[provider(), (REPORT, path)], BOUND, |part| {
        let more = format!("cleanup={CLEANUP} report={path}");
        let link = Link::between_ends(part, "cxi", 1, &more);
        link.warm();
        let (sender, polls) = mpsc::channel();
        let (net, pending) = (link.net, link.irecv(0, 100, 0));
        thread::spawn(move || {
            while matches!(net.test(pending), Ok(None)) {
                let _sent = sender.send(());
            }
        });
        (0..POLLS).for_each(|_| polls.recv_timeout(BOUND).expect("it polls"));
    });
    cleaned_up(&file);
}

/// Checks the report of a provider that has cleaned up with endpoints open, and was not called meanwhile.
#[track_caller]
fn cleaned_up(file: &Path) {
    let said = fs::read_to_string(file).expect("the provider has cleaned up");
    fs::remove_file(file).expect("ours");
    assert!(said.lines().any(|line| line == "violations 0"), "{said}");
    let open = said.lines().find_map(|line| line.strip_prefix("open endpoints "));
    assert!(open.is_some_and(|open| open != "0"), "no finalize came before: {said}");
}
