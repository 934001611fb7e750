//! Operations that go on without a request. This file is apart because a test of the library itself would need an interpreter.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../src/held.rs"]
mod held;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use held::Held;

/// Far more than a thread needs for its next step.
const BOUND: Duration = Duration::from_secs(20);
/// A wait that does not block has returned by then.
const MOMENT: Duration = Duration::from_millis(200);

/// A test of an operation that goes on, which signals its begin, and ends when it is released.
fn testing() -> (impl FnMut(&mut u32) -> bool, Receiver<()>, Sender<()>) {
    let ((began, begun), (release, released)) = (mpsc::channel(), mpsc::channel());
    let test = move |_: &mut u32| {
        began.send(()).unwrap();
        released.recv_timeout(BOUND).unwrap();
        false
    };
    (test, begun, release)
}

/// Waits for all operations in another thread, which sends each, and ends.
fn waiting(held: &Arc<Held<u32>>) -> Receiver<u32> {
    let (held, (sender, waited)) = (Arc::clone(held), mpsc::channel());
    thread::spawn(move || held.wait(|one| sender.send(one).unwrap()));
    waited
}

fn are_waited_for(waited: &Receiver<u32>, release: &Sender<()>) {
    let early = waited.recv_timeout(MOMENT);
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it does not wait");
    release.send(()).unwrap();
    assert_eq!(waited.recv_timeout(BOUND), Ok(7));
    assert_eq!(waited.recv_timeout(BOUND), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_wait_includes_what_the_sweep_of_another_thread_has_in_hand() {
    let held = Arc::<Held<u32>>::default();
    held.keep(7, |_| false);
    let (test, begun, release) = testing();
    let other = Arc::clone(&held);
    let sweep = thread::spawn(move || other.sweep(test));
    begun.recv_timeout(BOUND).unwrap();
    are_waited_for(&waiting(&held), &release);
    sweep.join().unwrap();
}

#[test]
fn a_wait_includes_what_another_thread_is_about_to_keep() {
    let held = Arc::<Held<u32>>::default();
    let (test, begun, release) = testing();
    let other = Arc::clone(&held);
    let keep = thread::spawn(move || other.keep(7, test));
    begun.recv_timeout(BOUND).unwrap();
    are_waited_for(&waiting(&held), &release);
    keep.join().unwrap();
}

#[test]
fn a_sweep_may_run_code_that_waits_and_one_that_panics_keeps_no_wait() {
    let held = Arc::<Held<u32>>::default();
    held.keep(7, |_| false);
    let (sender, swept) = mpsc::channel();
    let other = Arc::clone(&held);
    thread::spawn(move || {
        other.sweep(|_| {
            other.wait(drop);
            true
        });
        sender.send(()).unwrap();
    });
    assert_eq!(swept.recv_timeout(BOUND), Ok(()), "it waits for itself");
    held.keep(7, |_| false);
    let other = Arc::clone(&held);
    assert!(thread::spawn(move || other.sweep(|_| panic!("as a test"))).join().is_err());
    assert_eq!(waiting(&held).recv_timeout(BOUND), Err(mpsc::RecvTimeoutError::Disconnected));
}
