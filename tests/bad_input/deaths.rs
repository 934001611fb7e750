//! Peers that are killed: requests that depend on them fail in time, and no others.

use harness::Test;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use net_abi::ResultCode;

use crate::bystander::{self, Bystander};
use crate::support::calls::{Answer, Failure, Net, Object};
use crate::support::link::{Link, SLOT, from_text, to_text, wait};
use crate::support::say;
use crate::support::stage::{Part, play};
use crate::{BOUND, DEADLINE, SETTINGS, SLACK, not_over, open};

/// A process that will be killed: all but "bystander" continue until then.
fn other_part(part: &Part) -> bool {
    let (net, context) = match part.name.as_str() {
        "main" => return false,
        _ => open(part),
    };
    match part.name.as_str() {
        "listener" => {
            let (handle, _) = net.listen(context, 0).expect("listen");
            part.say(&to_text(&handle));
            part.receive();
        }
        "connector" => {
            let mut handle = from_text(&part.receive());
            assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            part.say("asked");
            wait("death", || net.connect(context, 0, &mut handle).expect("connect").is_some());
            part.receive();
        }
        "idle" => {
            let mut link = Link::to_peer(net, context, &mut { part });
            link.works();
            part.say("ready");
            part.receive();
        }
        "sender" => {
            let link = Link::to_peer(net, context, &mut { part });
            part.say("ready");
            drop(send_for_ever(net, &link));
        }
        "receiver" => {
            let link = Link::to_peer(net, context, &mut { part });
            part.say("ready");
            drop(receive_for_ever(net, &link));
        }
        "posted" => {
            let Link { receive, input, .. } = Link::to_peer(net, context, &mut { part });
            let mut requests = (0..POSTED).map(|slot| {
                let posted = net.irecv(receive, input.slot(slot), SLOT, TAG, input.region);
                posted.expect("irecv").expect("a request")
            });
            let (first, rest) = (requests.next(), requests.collect::<Vec<_>>());
            wait("a message", || {
                net.test(first.expect("it is one of many")).expect("test").is_some()
            });
            while net.test(rest[0]).expect("test").is_none() {
                std::thread::yield_now();
            }
        }
        "bystander" => bystander::play(part, net, context),
        name => panic!("no part {name}"),
    }
    true
}

/// What NCCL would pass as a tag: the sender's rank.
const TAG: i32 = 41;
const OUTSTANDING: usize = 6;
/// Receives of a peer that is then killed.
const POSTED: usize = 12;
/// Short enough to be injected where anything is.
const SHORT: usize = 64;

/// Long messages, a few of them outstanding, until a call fails.
fn send_for_ever(net: Net, link: &Link) -> Failure {
    post_for_ever(net, |slot| net.isend(link.send, link.out.slot(slot), SLOT, TAG, link.out.region))
}

/// The same with receives.
fn receive_for_ever(net: Net, link: &Link) -> Failure {
    let Link { receive, input, .. } = link;
    post_for_ever(net, |slot| net.irecv(*receive, input.slot(slot), SLOT, TAG, input.region))
}

fn post_for_ever(net: Net, post: impl Fn(usize) -> Answer<Option<Object>>) -> Failure {
    let mut requests = VecDeque::new();
    loop {
        if requests.len() < OUTSTANDING {
            match post(requests.len()) {
                Ok(request) => requests.extend(request),
                Err(failure) => return failure,
            }
        }
        if let Some(oldest) = requests.front() {
            match net.test(*oldest) {
                Ok(Some(_)) => drop(requests.pop_front()),
                Ok(None) => {}
                Err(failure) => return failure,
            }
        }
        std::thread::yield_now();
    }
}

/// A call failed because the peer is gone, with one sentence.
#[track_caller]
fn peer_is_gone(failure: &Failure) {
    assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
    assert_eq!(failure.errors().len(), 1, "{failure:?}");
}

/// The error names the peer's rank, which comes from the tags.
#[track_caller]
fn names_the_rank(failure: Failure) -> Failure {
    assert!(failure.errors()[0].contains("receiving from rank 41, process "), "{failure:?}");
    failure
}

/// Runs `body`, which may take as long as it takes to detect a death.
#[track_caller]
fn in_time<T>(body: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = body();
    assert!(start.elapsed() < 2 * DEADLINE + SLACK, "noticed after {:?}", start.elapsed());
    say(&format!("noticed after {:?}", start.elapsed()));
    result
}

fn a_peer_that_dies_before_it_accepts_is_an_error_of_connect() {
    play(SETTINGS, BOUND, |part| {
        if other_part(part) {
            return;
        }
        let (net, context) = open(part);
        let mut bystander = Bystander::cast(part, net, context);
        for polls_before in [0, 1, 200] {
            let mut listener = part.cast("listener", &[]);
            let mut handle = from_text(&listener.receive());
            for _ in 0..polls_before {
                assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            }
            listener.kill();
            let failure = in_time(|| {
                loop {
                    match net.connect(context, 0, &mut handle) {
                        Err(failure) => break failure,
                        Ok(comm) => assert_eq!(comm, None),
                    }
                }
            });
            peer_is_gone(&failure);
            bystander.works();
        }
        bystander.end(net, context);
    });
}

fn a_peer_that_dies_after_it_asked_fails_the_accept_or_the_receives() {
    play(SETTINGS, BOUND, |part| {
        if other_part(part) {
            return;
        }
        let (net, context) = open(part);
        let mut bystander = Bystander::cast(part, net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut connector = part.cast("connector", &[]);
        connector.say(&to_text(&handle));
        connector.receive();
        connector.kill();
        let failure = in_time(|| {
            loop {
                match net.accept(listener) {
                    Err(failure) => break failure,
                    Ok(None) => {}
                    Ok(Some(comm)) => {
                        let link = Link::of(net, comm, comm);
                        break receive_for_ever(net, &link);
                    }
                }
            }
        });
        peer_is_gone(&failure);
        net.close_listen(listener).expect("close");
        bystander.works();
        bystander.end(net, context);
    });
}

/// A link fails by the death of its process; the calls of `body` on it must fail.
fn dies(part: &Part, name: &str, body: impl FnOnce(Net, &Link) -> Failure) {
    if other_part(part) {
        return;
    }
    let (net, context) = open(part);
    let mut bystander = Bystander::cast(part, net, context);
    let mut victim = part.cast(name, &[]);
    let mut link = Link::to_peer(net, context, &mut victim);
    if name == "idle" {
        link.works();
    }
    assert_eq!(victim.receive(), "ready");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        victim.kill();
    });
    let failure = in_time(|| body(net, &link));
    killer.join().expect("it kills");
    peer_is_gone(&failure);
    bystander.works();
    bystander.end(net, context);
}

fn a_sender_that_dies_in_the_middle_fails_the_receives() {
    play(SETTINGS, BOUND, |part| {
        dies(part, "sender", |net, link| names_the_rank(receive_for_ever(net, link)));
    });
}

fn a_receiver_that_dies_in_the_middle_fails_the_sends() {
    play(SETTINGS, BOUND, |part| dies(part, "receiver", send_for_ever));
}

fn a_peer_that_dies_in_silence_fails_receives_that_are_posted() {
    play(SETTINGS, BOUND, |part| {
        dies(part, "idle", |net, link| names_the_rank(receive_for_ever(net, link)));
    });
}

fn a_peer_that_dies_in_silence_fails_sends_that_wait_for_a_receive() {
    play(SETTINGS, BOUND, |part| dies(part, "idle", send_for_ever));
}

/// rxm reads the context of whatever fails, and an injected write over tcp has none: `INJECTING` of `crates/fabric` leaves rxm out.
fn short_messages_to_a_dead_peer_are_an_error_over_rxm_and_no_crash() {
    let settings = [SETTINGS, &[("PROVIDER", "tcp;ofi_rxm")]].concat();
    play(&settings, BOUND, |part| {
        if other_part(part) {
            return;
        }
        let (net, context) = open(part);
        let mut victim = part.cast("posted", &[]);
        let link = Link::to_peer(net, context, &mut victim);
        let send = || net.isend(link.send, link.out.slot(0), SHORT, TAG, link.out.region);
        let mut first = None;
        wait("an advert", || {
            first = send().expect("isend");
            first.is_some()
        });
        wait("its end", || net.test(first.expect("posted")).expect("test").is_some());
        victim.kill();
        // Nothing is polled between them: the first ones go to a socket that has not noticed yet.
        let mut sent = VecDeque::new();
        let failure = in_time(|| {
            while sent.len() < POSTED - 1 {
                match send() {
                    Ok(request) => sent.extend(request),
                    Err(failure) => return failure,
                }
            }
            loop {
                match net.test(sent[0]) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(_)) => drop(sent.pop_front()),
                    Err(failure) => return failure,
                }
            }
        });
        peer_is_gone(&failure);
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_peer_that_dies_before_it_accepts_is_an_error_of_connect),
        Test::new(a_peer_that_dies_after_it_asked_fails_the_accept_or_the_receives),
        Test::new(a_sender_that_dies_in_the_middle_fails_the_receives),
        // Its answers to long messages are in one queue per endpoint, and a dead peer never sends its answers.
        Test::new(a_receiver_that_dies_in_the_middle_fails_the_sends)
            .needs(not_over("shm", "shm's dead hold up the living")),
        Test::new(a_peer_that_dies_in_silence_fails_receives_that_are_posted),
        Test::new(a_peer_that_dies_in_silence_fails_sends_that_wait_for_a_receive),
        Test::new(short_messages_to_a_dead_peer_are_an_error_over_rxm_and_no_crash),
    ]
}
