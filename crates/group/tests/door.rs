//! Ranks that come to a rendezvous which does not answer them.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::env;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ironrail_group::bootstrap::{Bootstrap, Hub, Remote};
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};
use rustix::thread::set_thread_uid;

const WAIT: Duration = Duration::from_secs(20);

/// Longer than the rendezvous tries before it gives up.
const LONGER: Duration = Duration::from_secs(8);

/// Runs in a separate process, which may start no more threads.
#[test]
fn ranks_get_an_error_if_the_rendezvous_can_start_no_thread_for_long() {
    if env::var_os("IRONRAIL_TEST_ALONE").is_none() {
        let test = ranks_get_an_error_if_the_rendezvous_can_start_no_thread_for_long;
        return harness::again(test, &[("IRONRAIL_TEST_ALONE", "1".as_ref())]);
    }
    // Root has no limit of threads.
    if getuid().is_root() {
        set_thread_uid(Uid::from_raw(65534)).unwrap();
    }
    let hub = Hub::start("127.0.0.1:0".parse().unwrap(), 2, WAIT).unwrap();
    let mut here = Remote::join(hub.meeting(0), WAIT).unwrap();
    let (begin, begun) = mpsc::channel();
    let late = hub.meeting(1);
    let late = thread::spawn(move || {
        begun.recv().unwrap();
        Remote::join(late, LONGER).unwrap_err().to_string()
    });
    let none = Some(0);
    setrlimit(Resource::Nproc, Rlimit { current: none, maximum: none }).unwrap();
    begin.send(()).unwrap();
    let why = here.barrier(WAIT).unwrap_err().to_string();
    assert!(why.starts_with("the rendezvous has no room for rank 1: "), "{why}");
    let why = late.join().unwrap();
    assert!(why.ends_with("it closes connections without an answer"), "{why}");
}
