//! Listeners that close too early, and listeners with more connecting peers than may wait.

use harness::Test;
use std::time::Instant;

use net_abi::ResultCode;

use crate::support::calls;
use crate::support::link::{Link, wait};
use crate::support::stage::play;
use crate::{BOUND, DEADLINE, SETTINGS, SLACK, open};

fn a_listener_that_closes_before_it_is_asked_is_an_error_of_connect() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        // The deadline counts from the last time that the plugin has read the clock.
        let start = Instant::now();
        let mut link = Link::to_self(net, context);
        let (mut handle, listener) = net.listen(context, 0).expect("listen");
        net.close_listen(listener).expect("close");
        let failure = loop {
            match net.connect(context, 0, &mut handle) {
                Err(failure) => break failure,
                Ok(comm) => assert_eq!(comm, None),
            }
            assert!(start.elapsed() < DEADLINE + SLACK);
        };
        assert!(start.elapsed() >= DEADLINE, "a listener may be late, but not too late");
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
        assert!(failure.said[0].contains("is the peer alive"), "{failure:?}");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

/// `an_accept_that_is_given_up_leaves_nothing` of `tests/vfabric` cuts an accept off, and looks at what is left.
fn a_listener_that_closes_while_a_peer_connects_leaves_others_alone() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let mut accepted = 0;
        for polls in 0..30 {
            let (mut handle, listener) = net.listen(context, 0).expect("listen");
            let (mut send, mut receive) = (None, None);
            for _ in 0..polls {
                if send.is_none() {
                    send = net.connect(context, 0, &mut handle).expect("connect");
                }
                if polls % 2 == 0 && receive.is_none() {
                    receive = net.accept(listener).expect("accept");
                }
            }
            net.close_listen(listener).expect("close");
            accepted += u32::from(receive.is_some());
            receive.into_iter().for_each(|comm| net.close_recv(comm).expect("closeRecv"));
            send.into_iter().for_each(|comm| net.close_send(comm).expect("closeSend"));
        }
        assert!(accepted > 0, "no listener has accepted");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn more_requests_than_may_wait_on_one_listener_are_deferred_and_served() {
    const CONNECTS: usize = 140;
    const QUEUE: usize = 64;
    let settings =
        [("RAILS", "127.0.0.1"), ("CONNECT_TIMEOUT_MS", "30000"), ("LOG_LEVEL", "debug")];
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut connects = [(handle, None); CONNECTS];
        let poll = |connects: &mut [(_, Option<_>)]| {
            for (handle, comm) in connects.iter_mut().filter(|(_, comm)| comm.is_none()) {
                *comm = net.connect(context, 0, handle).expect("connect");
            }
        };
        for _ in 0..50 {
            poll(&mut connects);
        }
        assert!(connects.iter().all(|(_, comm)| comm.is_none()), "the peer has not accepted");
        let is_deferred = |line: &&String| line.contains("requests is refused: Busy");
        let deferred = calls::lines().iter().filter(is_deferred).count();
        assert!(deferred >= CONNECTS - QUEUE, "{deferred} requests were deferred");
        let mut accepted = Vec::new();
        wait("all of them", || {
            poll(&mut connects);
            accepted.extend(net.accept(listener).expect("accept"));
            accepted.len() == CONNECTS && connects.iter().all(|(_, comm)| comm.is_some())
        });
        assert_eq!(net.accept(listener), Ok(None), "each was accepted once");
        link.works();
        net.close_listen(listener).expect("close");
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_listener_that_closes_before_it_is_asked_is_an_error_of_connect),
        Test::new(a_listener_that_closes_while_a_peer_connects_leaves_others_alone),
        Test::new(more_requests_than_may_wait_on_one_listener_are_deferred_and_served),
    ]
}
