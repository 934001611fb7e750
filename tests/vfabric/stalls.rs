//! What the log says about long waits: which peer is late, for what, at the right end; and nothing if nothing is late.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::{Handle, Object, warnings};
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(120);
/// Longer than any report takes on a busy machine.
const WAIT: Duration = Duration::from_secs(40);
/// More than travels in a packet.
const LONG: usize = 6000;
const SHORT: usize = 16;
/// The bound under test, in milliseconds.
const REPORT_MS: &str = "1000";
const REPORT: Duration = Duration::from_secs(1);

fn open(part: &Part, rails: usize) -> Link {
    set("IRONRAIL_STALL_REPORT_MS", REPORT_MS);
    set("IRONRAIL_STRIPE_MIN", "1K");
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
    let link = Link::between_ends(part, "efa", rails, "");
    link.warm();
    link
}

/// Repeats `poll`, and polls both ends, until the log has a report, which is returned.
#[track_caller]
fn report(link: &Link, mut poll: impl FnMut()) -> String {
    let start = Instant::now();
    loop {
        poll();
        link.ends.iter().for_each(End::poll);
        if let Some(said) = reports().pop() {
            assert!(start.elapsed() >= REPORT * 3 / 4, "too early: {said}");
            return said;
        }
        assert!(start.elapsed() < WAIT, "no report within {WAIT:?}");
    }
}

fn reports() -> Vec<String> {
    warnings().into_iter().filter(|line| line.contains("stalled: ")).collect()
}

#[track_caller]
fn says(said: &str, words: &[&str]) {
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    assert_eq!(reports().len(), 1, "one in a minute: {:?}", reports());
}

const NOT_OURS: &str = "Nothing of Ironrail's is late";

#[test]
fn a_receive_that_is_never_posted_is_named_by_the_sender() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        let said = report(&link, || assert_eq!(link.isend(0, LONG, 0), None));
        says(&said, &["sending to process", "the peer has posted no receive", NOT_OURS]);
        says(&said, &["here 1 sent", "there 1 receives posted, 1 complete"]);
        link.close_all();
    });
}

#[test]
fn a_send_that_is_never_posted_is_named_by_the_receiver() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        let received = link.irecv(0, LONG, 0);
        let said = report(&link, || assert_eq!(link.net.test(received), Ok(None)));
        says(&said, &["receiving from rank 0, process", "the peer has sent nothing", NOT_OURS]);
        says(&said, &["here 2 receives posted, 1 complete", "there 1 sent"]);
        link.close_all();
    });
}

#[test]
fn credit_that_is_used_up_is_named_by_the_sender() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        // Each is done: only the refused call waits in the end.
        let mut sent = 0;
        while let Some(request) = link.isend(0, SHORT, 0) {
            assert_eq!(link.finish(request), SHORT);
            sent += 1;
        }
        assert_eq!(sent, 64, "what may be sent without a receive");
        let said = report(&link, || assert_eq!(link.isend(0, SHORT, 0), None));
        says(&said, &["sending to process", "as many messages as allowed were sent", NOT_OURS]);
        link.close_all();
    });
}

#[test]
fn a_rail_that_stands_still_is_named_with_its_number() {
    play(&[provider()], BOUND, |part| {
        // Else its messages go by the other rail before that.
        set("IRONRAIL_FAILOVER", "0");
        let link = open(part, 2);
        // The first channel's control rail is the first one.
        let received = link.irecv(0, LONG, 0);
        link.poll();
        link.fabric.change(1, "stall");
        let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
        let said = report(&link, || {
            link.net.test(sent).expect("it waits");
            link.net.test(received).expect("it waits");
        });
        link.fabric.change(1, "resume");
        says(&said, &["data on rail 1 (", "vnic1", "does not arrive, and the peer answers"]);
        assert!(!said.contains(NOT_OURS), "{said}");
        link.poll();
        link.close_comms();
        close_together(link.ends);
    });
}

#[test]
fn a_listener_that_never_accepts_is_named_by_the_one_that_connects() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STALL_REPORT_MS", REPORT_MS);
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let (mut handle, listener) = ends[1].net.listen(ends[1].context, 0).expect("listen");
        let start = Instant::now();
        while reports().is_empty() {
            let connected = ends[0].net.connect(ends[0].context, 0, &mut handle);
            assert_eq!(connected, Ok(None), "the peer does not accept");
            ends[1].poll();
            assert!(start.elapsed() < WAIT, "no report within {WAIT:?}");
        }
        let said = &reports()[0];
        says(said, &["connecting to process", "listener has not accepted", NOT_OURS]);
        ends[1].net.close_listen(listener).expect("closeListen");
        close_together(ends);
    });
}

/// The other one has lost its listener, and waits for nothing.
#[test]
fn a_connect_is_reported_for_what_it_waits_for_and_not_for_what_another_does() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STALL_REPORT_MS", REPORT_MS);
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let listen = || ends[1].net.listen(ends[1].context, 0).expect("listen");
        let [(mut other, closed), (mut handle, listener)] = [listen(), listen()];
        let step = |handle: &mut Handle| {
            assert_eq!(ends[0].net.connect(ends[0].context, 0, handle), Ok(None));
            ends[1].poll();
        };
        (0..100).for_each(|_| step(&mut other));
        ends[1].net.close_listen(closed).expect("closeListen");
        let start = Instant::now();
        while reports().is_empty() {
            step(&mut handle);
            assert!(start.elapsed() < WAIT, "no report within {WAIT:?}");
        }
        says(&reports()[0], &["connecting to process", "listener has not accepted", NOT_OURS]);
        ends[1].net.close_listen(listener).expect("closeListen");
        close_together(ends);
    });
}

/// As of a rank behind a proxy whose comm another rank's connect has opened: NCCL polls it no more, and has no call to close it.
#[test]
fn a_connect_that_nccl_has_given_up_is_not_reported() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STALL_REPORT_MS", REPORT_MS);
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let (mut handle, listener) = ends[1].net.listen(ends[1].context, 0).expect("listen");
        for _ in 0..100 {
            let connected = ends[0].net.connect(ends[0].context, 0, &mut handle);
            assert_eq!(connected, Ok(None), "the peer does not accept");
            ends[1].poll();
        }
        let given_up = Instant::now();
        while given_up.elapsed() < 3 * REPORT {
            ends.iter().for_each(End::poll);
        }
        assert_eq!(reports(), [] as [&str; 0]);
        ends[1].net.close_listen(listener).expect("closeListen");
        close_together(ends);
    });
}

#[test]
fn a_receiver_that_reads_slowly_is_named_by_the_sender() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        // Receives are late several times, but within the bound; then one is not posted.
        for _ in 0..3 {
            let start = Instant::now();
            while start.elapsed() < REPORT * 3 / 4 {
                assert_eq!(link.isend(0, LONG, 0), None);
                link.ends.iter().for_each(End::poll);
            }
            let received = link.irecv(0, LONG, 0);
            link.poll();
            let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
            link.finish(received);
            link.finish(sent);
        }
        assert_eq!(reports(), [] as [&str; 0], "each came in time");
        let said = report(&link, || assert_eq!(link.isend(0, LONG, 0), None));
        says(&said, &["sending to process", "the peer reads slowly"]);
        link.close_all();
    });
}

/// NCCL has posted a receive, and does not test it: the keeper at that end reports it.
#[test]
fn a_caller_that_does_not_poll_is_named_where_it_is() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        let received = link.irecv(0, LONG, 0);
        let start = Instant::now();
        while reports().is_empty() {
            // The sender's NCCL has no outstanding request, and polls; the receiver makes no calls.
            link.ends[0].poll();
            assert!(start.elapsed() < WAIT, "no report within {WAIT:?}");
        }
        let said = &reports()[0];
        says(said, &["NCCL has 1 request open", "and has not called for", NOT_OURS]);
        let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
        link.finish(received);
        link.finish(sent);
        link.close_all();
    });
}

/// Receives that are late, but within the bound; many that come at once; nothing at all.
#[test]
fn healthy_traffic_with_pauses_is_no_report() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 2);
        let start = Instant::now();
        let mut messages = 0_u32;
        while start.elapsed() < 5 * REPORT {
            let received = link.irecv(0, LONG, 0);
            // Late, but within the bound.
            let pause = Instant::now();
            while messages.is_multiple_of(50) && pause.elapsed() < REPORT / 3 {
                assert_eq!(link.net.test(received), Ok(None));
                link.ends.iter().for_each(End::poll);
            }
            link.poll();
            let sent: Object = link.isend(0, LONG, 0).expect("its receive is advertised");
            link.finish(received);
            link.finish(sent);
            messages += 1;
        }
        assert!(messages > 50, "{messages}");
        // Idle for long: nothing is open, and nothing waits.
        let idle = Instant::now();
        while idle.elapsed() < 3 * REPORT {
            link.ends.iter().for_each(End::poll);
        }
        assert_eq!(reports(), [] as [&str; 0]);
        link.close_all();
    });
}

/// As of a library that keeps receives posted on connections that a program seldom uses.
#[test]
fn a_receive_posted_early_is_reported_only_when_no_other_message_ends() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        let (send, receive) = connect(&link.ends[0], &link.ends[1]);
        let from = link.net.register(send, link.out).expect("regMr");
        let to = link.net.register(receive, link.into).expect("regMr");
        let early = link.irecv(0, LONG, 0);
        let start = Instant::now();
        while start.elapsed() < 3 * REPORT {
            let received = link.net.irecv(receive, link.into.address(), LONG, 0, to);
            let received = received.expect("irecv").expect("the window has room");
            link.poll();
            let sent = link.net.isend(send, link.out.address(), LONG, 0, from);
            link.finish(sent.expect("isend").expect("its receive is advertised"));
            link.finish(received);
            assert_eq!(link.net.test(early), Ok(None));
        }
        assert_eq!(reports(), [] as [&str; 0]);
        let said = report(&link, || assert_eq!(link.net.test(early), Ok(None)));
        says(&said, &["receiving from rank 0, process", "the peer has sent nothing", NOT_OURS]);
        link.net.close_send(send).expect("closeSend");
        link.net.close_recv(receive).expect("closeRecv");
        link.close_all();
    });
}

/// What was open on a comm that is closed is open no more: NCCL need not poll for it.
#[test]
fn a_request_of_a_closed_comm_is_not_missed() {
    play(&[provider()], BOUND, |part| {
        let link = open(part, 1);
        link.irecv(0, LONG, 0);
        link.close_comms();
        link.poll();
        let (send, receive) = connect(&link.ends[0], &link.ends[1]);
        // The keeper checks meanwhile.
        let start = Instant::now();
        while start.elapsed() < REPORT * 3 {
            std::thread::park_timeout(REPORT / 10);
        }
        assert_eq!(warnings(), Vec::<String>::new());
        link.net.close_send(send).expect("closeSend");
        link.net.close_recv(receive).expect("closeRecv");
        link.poll();
        close_together(link.ends);
    });
}
