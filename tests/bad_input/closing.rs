//! Closes are bounded whichever peer does not answer, and leave nothing open.

use harness::Test;
use std::thread;
use std::time::{Duration, Instant};

use net_abi::{HANDLE_MAX_BYTES, ResultCode};

use crate::bystander::{self, Bystander};
use crate::support::calls::{Buffer, Failure, Net, Object};
use crate::support::link::{Link, Memory, SLOT, descriptors, from_text, to_text, wait};
use crate::support::say;
use crate::support::stage::{Part, play};
use crate::{BOUND, CLOSE_BOUND, SETTINGS, SLACK, open};

#[track_caller]
fn within<T>(what: &str, bound: Duration, body: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = body();
    say(&format!("{what} took {:?}", start.elapsed()));
    assert!(start.elapsed() < bound, "{what} took {:?}", start.elapsed());
    result
}

/// The only error is that a buffer is not deregistered.
#[track_caller]
pub(crate) fn stays(failure: &Failure, buffer: Buffer) {
    assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
    let what = format!("{} bytes at {:#x} stay registered", buffer.len, buffer.address());
    assert!(failure.said.len() == 1 && failure.said[0].contains(&what), "{failure:?}");
}

/// Fills both windows of a link whose peer makes no calls.
fn fill(net: Net, link: &Link) {
    while net
        .irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region)
        .expect("irecv")
        .is_some()
    {}
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        net.isend(link.send, link.out.slot(0), SLOT, 0, link.out.region).expect("isend");
    }
}

/// Closes a link with everything in flight, while its peer is stopped or killed, then the endpoint.
fn closes(part: &Part, kill: bool) {
    if part.name == "bystander" {
        let (net, context) = open(part);
        return bystander::play(part, net, context);
    }
    if part.name == "idle" {
        let (net, context) = open(part);
        let link = Link::to_peer(net, context, &mut { part });
        // Receives for the sends of the other side: they are in flight, not refused.
        for _ in 0..8 {
            let (slot, region) = (link.input.slot(0), link.input.region);
            net.irecv(link.receive, slot, SLOT, 0, region).expect("irecv");
        }
        part.say("ready");
        part.receive();
        return;
    }
    let before = descriptors();
    let (net, context) = open(part);
    let mut bystander = Bystander::cast(part, net, context);
    let mut idle = part.cast("idle", &[]);
    let link = Link::to_peer(net, context, &mut idle);
    assert_eq!(idle.receive(), "ready");
    fill(net, &link);
    if kill {
        idle.kill();
    }
    let bound = CLOSE_BOUND + SLACK;
    let memories = [(link.send, link.out), (link.receive, link.input)];
    for (comm, memory) in memories {
        let answer = within("deregMr", bound, || net.deregister(comm, memory.region));
        // A dead peer begins nothing more, and what it had begun was waited for.
        if let Err(failure) = answer {
            assert!(!kill, "{failure:?}");
            stays(&failure, memory.buffer);
        }
    }
    within("closeSend", bound, || net.close_send(link.send)).expect("closeSend");
    within("closeRecv", bound, || net.close_recv(link.receive)).expect("closeRecv");
    bystander.works();
    // The connection is still draining, and others are not affected.
    bystander.works();
    bystander.say_end();
    within("finalize", bound, || net.finalize(context)).expect("finalize");
    bystander.finish();
    drop(idle);
    wait("all descriptors to be closed", || descriptors() <= before);
}

fn closing_with_everything_in_flight_is_bounded_when_the_peer_is_silent() {
    play(SETTINGS, BOUND, |part| closes(part, false));
}

fn closing_with_everything_in_flight_is_bounded_when_the_peer_is_dead() {
    play(SETTINGS, BOUND, |part| closes(part, true));
}

fn finalize_frees_what_was_left_open() {
    play(SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let mut before = Vec::new();
        for _ in 0..4 {
            before.push(descriptors());
            let context = net.init().expect("init");
            let mut link = Link::to_self(net, context);
            link.works();
            fill(net, &link);
            let (mut handle, _) = net.listen(context, 0).expect("listen");
            assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            within("finalize", CLOSE_BOUND + SLACK, || net.finalize(context)).expect("finalize");
        }
        assert_eq!(descriptors(), before[0], "{before:?}");
    });
}

/// v8 has no finalize: an endpoint closes with its last comm.
fn the_last_close_of_v8_frees_the_endpoint() {
    play(SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let mut before = Vec::new();
        for _ in 0..4 {
            before.push(descriptors());
            net.init_v8().expect("init");
            let (send, receive) = connect_v8(net);
            let memory = Memory::new(net, send);
            net.deregister(send, memory.region).expect("deregMr");
            within("closeSend", SLACK, || net.close_send(send)).expect("closeSend");
            within("closeRecv", CLOSE_BOUND + SLACK, || net.close_recv(receive))
                .expect("closeRecv");
        }
        assert_eq!(descriptors(), before[0], "{before:?}");
    });
}

fn a_listener_of_v8_that_was_asked_and_closed_frees_the_endpoint() {
    play(SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        let before = descriptors();
        net.init_v8().expect("init");
        let (mut handle, listener) = net.listen_v8(0).expect("listen");
        let failed = |handle: &mut _| net.connect_v8(0, handle).is_err();
        assert!(!failed(&mut handle));
        net.close_listen(listener).expect("close");
        let (_, other) = net.listen_v8(0).expect("listen");
        wait("connect to give up", || failed(&mut handle));
        within("closeListen", CLOSE_BOUND + SLACK, || net.close_listen(other)).expect("close");
        assert_eq!(descriptors(), before);
    });
}

fn a_connect_of_v8_that_fails_frees_the_endpoint() {
    play(SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        net.init_v8().expect("init");
        let mut before = Vec::new();
        for _ in 0..3 {
            before.push(descriptors());
            let mut handle = [0xee; HANDLE_MAX_BYTES];
            // The endpoint learns what its device can do before it reads the handle.
            wait("connect to be refused", || net.connect_v8(0, &mut handle).is_err());
        }
        assert_eq!(descriptors(), before[0], "{before:?}");
    });
}

/// v8 has no call to give up a connect, and NCCL makes none any more once it has aborted.
fn connects_of_v8_that_were_left_keep_no_endpoint() {
    let settings = [SETTINGS, &[("CONNECT_TIMEOUT_MS", "1000")]].concat();
    play(&settings, BOUND, |part| {
        let net = Net::open(&part.plugin());
        net.init_v8().expect("init");
        let (handle, listener) = net.listen_v8(0).expect("listen");
        let leave = move || {
            let mut handle = handle;
            assert_eq!(net.connect_v8(0, &mut handle), Ok(None), "nothing accepts");
        };
        let leave_one = || thread::spawn(leave).join().expect("it connects");
        leave_one();
        let with_one = descriptors();
        leave_one();
        leave_one();
        assert!(descriptors() > with_one, "they have endpoints");
        let open = move || {
            let (_, another) = net.listen_v8(0).expect("listen");
            net.close_listen(another).expect("closeListen");
        };
        wait("the endpoints to be closed as others open", || {
            thread::spawn(open).join().expect("it listens");
            descriptors() < with_one
        });
        net.close_listen(listener).expect("closeListen");
    });
}

/// An abort beside ranks that live and make no calls, as ones that compute: each has an answer long before the time is over, which is less
/// than an idle rank leaves between two polls.
fn memory_that_idle_peers_were_lent_is_given_back_at_once() {
    let settings = [SETTINGS, &[("CLOSE_TIMEOUT_MS", "400")]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "idle" {
            let _link = Link::to_peer(net, context, &mut { part });
            part.receive();
            return;
        }
        let mut idle: Vec<_> = (0..6).map(|_| part.cast("idle", &[])).collect();
        let links = idle.iter_mut().map(|peer| Link::to_peer(net, context, peer));
        let links: Vec<_> = links.collect();
        let post = |link: &Link| {
            let (slot, region) = (link.input.slot(0), link.input.region);
            let posted = net.irecv(link.receive, slot, SLOT, 0, region).expect("irecv");
            posted.expect("the window is empty")
        };
        let posted: Vec<_> = links.iter().map(post).collect();
        // Each has polled by then, and leaves as much time between two polls as it ever does.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            posted.iter().for_each(|request| assert_eq!(net.test(*request), Ok(None)));
            thread::yield_now();
        }
        for link in &links {
            net.deregister(link.receive, link.input.region).expect("its sender lives");
        }
    });
}

/// Opens an endpoint, as another communicator does, and closes it.
fn open_another(net: Net) {
    let open = move || {
        let (_, listener) = net.listen_v8(0).expect("listen");
        net.close_listen(listener).expect("closeListen");
    };
    thread::spawn(open).join().expect("it listens");
}

/// NCCL's service thread listens, and ends before anything has connected: it closes no listener then, and v8 has no finalize.
fn listeners_of_v8_whose_threads_have_ended_keep_no_endpoint() {
    let settings = [SETTINGS, &[("CONNECT_TIMEOUT_MS", "1000")]].concat();
    play(&settings, BOUND, |part| {
        let net = Net::open(&part.plugin());
        net.init_v8().expect("init");
        let leave_one = || {
            let left = thread::spawn(move || net.listen_v8(0).expect("listen")).join();
            left.expect("it listens");
        };
        leave_one();
        let with_one = descriptors();
        leave_one();
        wait("the endpoints to be closed as others open", || {
            open_another(net);
            descriptors() < with_one
        });
    });
}

/// NCCL's service thread closes nothing more of a communicator once a deregMr has failed, and ends.
fn an_endpoint_of_v8_whose_deregmr_has_failed_closes_once_its_thread_has_ended() {
    play(SETTINGS, BOUND, |part| {
        if part.name == "sender" {
            let (net, context) = open(part);
            let mut handle = from_text(&part.receive());
            let connected = || net.connect(context, 0, &mut handle).expect("connect").is_some();
            wait("connect", connected);
            part.say("connected");
            part.receive();
            return;
        }
        let net = Net::open(&part.plugin());
        net.init_v8().expect("init");
        let mut sender = part.cast("sender", &[]);
        let leave = move || {
            let (handle, listener) = net.listen_v8(0).expect("listen");
            sender.say(&to_text(&handle));
            let mut receive = None;
            wait("accept", || {
                receive = net.accept(listener).expect("accept");
                receive.is_some()
            });
            net.close_listen(listener).expect("closeListen");
            assert_eq!(sender.receive(), "connected");
            let receive = receive.expect("accepted");
            let memory = Memory::new(net, receive);
            let posted = net.irecv(receive, memory.slot(0), SLOT, 0, memory.region);
            let request = posted.expect("irecv").expect("the window is empty");
            // Its advert leaves once its rail is connected, for which the sender runs.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) {
                assert_eq!(net.test(request), Ok(None));
            }
            sender.pause();
            let failure = net.deregister(receive, memory.region).expect_err("it may be written");
            stays(&failure, memory.buffer);
            (sender, descriptors())
        };
        let (_sender, with_one) = thread::spawn(leave).join().expect("it receives");
        wait("the endpoint to be closed as others open", || {
            open_another(net);
            descriptors() < with_one
        });
    });
}

/// As those of NCCL's bootstrap (NCCL_OOB_NET_ENABLE), which threads make that end at once.
fn comms_of_v8_work_after_the_thread_that_made_them_has_ended() {
    play(SETTINGS, BOUND, |part| {
        let net = Net::open(&part.plugin());
        net.init_v8().expect("init");
        let made = thread::spawn(move || connect_v8(net)).join();
        let (send, receive) = made.expect("it connects");
        let start = Instant::now();
        while start.elapsed() < 3 * ABANDONED_AFTER {
            open_another(net);
        }
        let mut link = Link::of(net, send, receive);
        link.works();
        link.close();
    });
}

/// After so long without a call an endpoint may be taken for abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(1);

fn connect_v8(net: Net) -> (Object, Object) {
    let (mut handle, listener) = net.listen_v8(0).expect("listen");
    let (mut send, mut receive) = (None, None);
    wait("connect and accept", || {
        send = send.or_else(|| net.connect_v8(0, &mut handle).expect("connect"));
        receive = receive.or_else(|| net.accept(listener).expect("accept"));
        send.is_some() && receive.is_some()
    });
    net.close_listen(listener).expect("close");
    (send.expect("connected"), receive.expect("accepted"))
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(closing_with_everything_in_flight_is_bounded_when_the_peer_is_silent),
        Test::new(closing_with_everything_in_flight_is_bounded_when_the_peer_is_dead),
        Test::new(finalize_frees_what_was_left_open),
        Test::new(the_last_close_of_v8_frees_the_endpoint),
        Test::new(a_listener_of_v8_that_was_asked_and_closed_frees_the_endpoint),
        Test::new(a_connect_of_v8_that_fails_frees_the_endpoint),
        Test::new(connects_of_v8_that_were_left_keep_no_endpoint),
        Test::new(memory_that_idle_peers_were_lent_is_given_back_at_once),
        Test::new(listeners_of_v8_whose_threads_have_ended_keep_no_endpoint),
        Test::new(an_endpoint_of_v8_whose_deregmr_has_failed_closes_once_its_thread_has_ended),
        Test::new(comms_of_v8_work_after_the_thread_that_made_them_has_ended),
    ]
}
