//! Writes that fail, and writes that are lost silently: the provider reports success, and they never land. Packets are sent again; for a
//! lost part of a message both ends get an error within `IRONRAIL_PEER_TIMEOUT_MS`, whichever of them is called.

use std::time::{Duration, Instant};

use crate::link::{Link, POLLS};
use crate::support::calls::{Failure, Object, lines};
use crate::support::stage::{Part, play, play_each};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const PROFILES: [&str; 4] = ["cxi", "efa", "tcp", "adversary"];
const BOUND: Duration = Duration::from_secs(120);
/// The timeout for a silent peer.
const PEER_TIMEOUT: &str = "1000";
/// The time of an error: the timeout, and what a loaded machine adds.
const WAIT: Duration = Duration::from_secs(40);
/// More than travels in a packet.
const LONG: usize = 6000;
const SHORT: usize = 16;

/// A connection that is to fail: its close is not waited for.
fn open(part: &Part, profile: &str) -> Link {
    open_with(part, profile, "200")
}

/// One that is closed well, however busy the machine is.
fn open_to_last(part: &Part, profile: &str) -> Link {
    open_with(part, profile, "20000")
}

fn open_with(part: &Part, profile: &str, close_timeout: &str) -> Link {
    set("IRONRAIL_CLOSE_TIMEOUT_MS", close_timeout);
    set("IRONRAIL_PEER_TIMEOUT_MS", PEER_TIMEOUT);
    // Where immediates are refused, only a part's own completion would say that it has been delivered.
    let more = if profile == "cxi" { "immediates=1" } else { "" };
    let link = Link::between_ends(part, profile, 1, more);
    link.warm();
    // The rail for data as well: software refuses the first post to a peer.
    let received = link.irecv(0, LONG, 0);
    let sent = link.isend_at_last(0, LONG, 0);
    link.finish(received);
    link.finish(sent);
    link.settle();
    link
}

/// More than any packet here has, and less than a part of a long message.
const OF_DATA: usize = 1000;

fn fired(link: &Link, fault: &str) -> u64 {
    link.fabric.number(&format!("counter.faults.{fault}"))
}

/// Calls `test` until it returns a value, and nothing else.
#[track_caller]
fn poll_for<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = test() {
            return answer;
        }
        assert!(start.elapsed() < WAIT, "{what}: not within {WAIT:?}");
    }
}

/// The error of a request, for which only this side is called.
#[track_caller]
fn error_of(link: &Link, request: Object) -> Failure {
    poll_for("an error", || {
        let tested = link.net.test(request);
        let fired = fired(link, "vanish");
        assert!(!matches!(tested, Ok(Some(_))), "it is said to be done, {fired} vanished");
        tested.err()
    })
}

/// The error of a send that fails. Where this thread is preempted after the post, the call itself has it already.
fn error_of_send(link: &Link, len: usize) -> Failure {
    match link.net.isend(link.send, link.out.address(), len, 0, link.from) {
        Ok(sent) => error_of(link, sent.expect("its receive is advertised")),
        Err(failure) => failure,
    }
}

/// The same for a receive.
fn error_of_receive(link: &Link, len: usize) -> Failure {
    match link.net.irecv(link.receive, link.into.address(), len, 0, link.to) {
        Ok(received) => error_of(link, received.expect("the window has room")),
        Err(failure) => failure,
    }
}

/// The error of a later message, once there is one.
fn refused_send(link: &Link) -> Option<Failure> {
    link.net.isend(link.send, link.out.address(), SHORT, 0, link.from).err()
}

impl Link {
    /// Closes failed connections and their ends. A NIC whose regions are bound may keep memory that a peer could still access.
    fn close_failed(self) {
        self.close_comms();
        self.poll();
        close_together(self.ends);
        assert_eq!(self.fabric.violations(), Vec::<String>::new());
    }
}

/// Whichever it is: the advert, the packet with the message, DONE, or a word of the cell. The reader lends another inbox.
#[test]
fn a_packet_that_is_lost_in_silence_comes_again() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = open_to_last(part, profile);
        // Each time an inbox is replaced, and there are four.
        for round in 0..2 {
            link.settle();
            link.fabric.fault_next("vanish", 0);
            let received = link.irecv(0, SHORT, 0);
            if round % 2 == 1 {
                link.settle();
                link.fabric.fault_next("vanish", 0);
            }
            let sent = link.isend_at_last(round, SHORT, 0);
            let size = poll_for("the message", || {
                link.ends.iter().for_each(End::poll);
                link.net.test(received).expect("it comes again")
            });
            assert_eq!(size, SHORT, "{profile}, {round}");
            assert!(link.has(0, round, SHORT), "{profile}, {round}");
            link.finish(sent);
        }
        assert_eq!(fired(&link, "vanish"), 3, "{profile}");
        link.close_all();
    });
}

/// The receiver gets an error though its bytes never arrive, the sender though its writes completed.
#[test]
fn a_part_that_is_lost_in_silence_is_an_error_on_both_ends() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        let link = open(part, profile);
        let received = link.irecv(0, LONG, 0);
        link.settle();
        link.fabric.fault_next("vanish", OF_DATA);
        let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
        // The send may complete before the loss is detected: then the next message fails.
        let completed = poll_for("an answer", || match link.net.test(sent) {
            Ok(Some(_)) => Some(None),
            Ok(None) => None,
            Err(failure) => Some(Some(failure)),
        });
        assert_eq!(fired(&link, "vanish"), 1, "{profile}");
        let failure = error_of(&link, received);
        assert!(failure.said[0].contains("receiving from"), "{profile}: {failure:?}");
        if completed.is_none() {
            poll_for("an error", || refused_send(&link));
        }
        link.close_failed();
    });
}

/// The provider's protocol promises that completed writes have arrived, so a send is reported before the loss is known. The other rail
/// carries what comes later; what was lost cannot be written again.
#[test]
fn a_part_whose_send_was_reported_is_an_error_on_both_ends_though_its_rail_is_survived() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "128");
        let link = Link::between_ends(part, "cxi", 2, "immediates=1");
        (0..2).for_each(|_| link.warm());
        link.settle();
        let received = link.irecv(0, LONG, 0);
        link.settle();
        link.fabric.fault_next("vanish", OF_DATA);
        let sent = poll_for("isend", || link.isend(0, LONG, 0));
        poll_for("the send", || link.net.test(sent).expect("its writes have completed"));
        assert_eq!(fired(&link, "vanish"), 1);
        let failure = poll_for("an error of the receive", || {
            link.ends.iter().for_each(End::poll);
            let tested = link.net.test(received);
            assert!(!matches!(tested, Ok(Some(_))), "a part of it is missing");
            tested.err()
        });
        assert!(failure.said[0].contains("could not deliver"), "{failure:?}");
        let failure = poll_for("an error of the next send", || refused_send(&link));
        assert!(failure.said[0].contains("reported as written on data rail"), "{failure:?}");
        link.close_failed();
    });
}

/// NCCL does not poll a rank after its last request is done: the keeper detects the loss, and informs the peer.
#[test]
fn a_part_of_a_silent_sender_that_is_lost_in_silence_is_an_error_at_its_receiver() {
    play_each(&["cxi", "efa"], &[provider()], BOUND, |part, profile| {
        let link = open(part, profile);
        let received = link.irecv(0, LONG, 0);
        link.settle();
        link.fabric.fault_next("vanish", OF_DATA);
        let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
        let completed = poll_for("an answer", || link.net.test(sent).expect("it has left"));
        assert_eq!((completed, fired(&link, "vanish")), (LONG, 1), "{profile}");
        // The sender makes no calls from here on.
        error_of(&link, received);
        link.close_failed();
    });
}

/// The receiver waits, and its progress thread is stuck elsewhere.
#[test]
fn a_sender_gets_the_error_of_a_lost_part_though_its_receiver_makes_no_calls() {
    play_each(&["tcp", "adversary"], &[provider()], BOUND, |part, profile| {
        let link = open(part, profile);
        link.irecv(0, LONG, 0);
        link.settle();
        link.fabric.fault_next("vanish", OF_DATA);
        let sent = link.isend(0, LONG, 0).expect("its receive is advertised");
        // With one rail a completion is the end of a send: then its next message fails.
        poll_for("an answer", || (link.net.test(sent) != Ok(None)).then_some(()));
        assert_eq!(fired(&link, "vanish"), 1, "{profile}");
        poll_for("an error", || refused_send(&link));
        link.close_failed();
    });
}

#[test]
fn a_part_that_fails_is_an_error_on_both_ends() {
    for fault in ["fail", "fail_late", "reject"] {
        // Elsewhere a send waits for DONE, which is sent even though the error came after the bytes had landed.
        let profiles = if fault == "fail_late" { &PROFILES[..2] } else { &PROFILES };
        play_each(profiles, &[provider(), ("TEST_FAULT", fault)], BOUND, |part, profile| {
            let fault = std::env::var("IRONRAIL_TEST_FAULT").expect("the play sets it");
            let link = open(part, profile);
            let received = link.irecv(0, LONG, 0);
            link.settle();
            link.fabric.fault_next(&fault, OF_DATA);
            let failure = error_of_send(&link, LONG);
            assert!(failure.said[0].contains("sending to"), "{profile}: {failure:?}");
            // One that landed in spite of its error may have arrived already.
            let received = poll_for("an end", || {
                link.net.test(received).map_or(Some(true), |done| done.map(|_| false))
            });
            assert!(received || fault == "fail_late", "{profile}, {fault}");
            assert_eq!(fired(&link, &fault), 1, "{profile}");
            link.close_failed();
        });
    }
}

/// There is one control rail, and no other way.
#[test]
fn a_packet_that_fails_is_an_error_on_both_ends() {
    for fault in ["fail", "reject"] {
        play_each(&PROFILES, &[provider(), ("TEST_FAULT", fault)], BOUND, |part, profile| {
            let fault = std::env::var("IRONRAIL_TEST_FAULT").expect("the play sets it");
            let link = open(part, profile);
            link.fabric.fault_next(&fault, 0);
            let failure = error_of_receive(&link, SHORT);
            assert!(failure.said[0].contains("receiving from"), "{profile}: {failure:?}");
            assert_eq!(fired(&link, &fault), 1, "{profile}");
            poll_for("an error", || refused_send(&link));
            link.close_failed();
        });
    }
}

/// There are two control rails: the packet goes by the other one, and no caller notices.
#[test]
fn a_packet_that_fails_goes_by_another_rail() {
    play_each(&PROFILES, &[provider()], BOUND, |part, profile| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let link = Link::between_ends(part, profile, 2, "");
        (0..2).for_each(|_| link.warm());
        link.settle();
        link.fabric.fault_next("fail", 0);
        let received = link.irecv(0, SHORT, 0);
        let sent = link.isend_at_last(3, SHORT, 0);
        let size = poll_for("the message", || {
            link.ends.iter().for_each(End::poll);
            link.net.test(received).expect("another rail is left")
        });
        assert_eq!((size, fired(&link, "fail")), (SHORT, 1), "{profile}");
        assert!(link.has(0, 3, SHORT));
        link.finish(sent);
        link.close_failed();
    });
}

/// As NCCL has them in an all-to-all of many ranks: the queue holds 16,384 entries.
#[test]
fn receives_of_two_thousand_connections_do_not_overrun_the_queue() {
    play(&[provider()], BOUND * 3, |part| {
        send_to_all_receives(part, "efa", CONNECTIONS);
    });
}

/// The smallest one that is accepted.
#[test]
fn receives_of_many_connections_do_not_overrun_the_smallest_queue() {
    play(&[provider()], BOUND * 3, |part| {
        set("IRONRAIL_CQ_ENTRIES", "1536");
        send_to_all_receives(part, "efa", 200);
    });
}

/// cxi keeps 1,024 arrivals between two polls, whatever its completion queue holds.
#[test]
fn receives_of_many_connections_do_not_overrun_a_shorter_queue_of_the_providers() {
    play(&[provider()], BOUND * 3, |part| {
        send_to_all_receives(part, "cxi", 250);
    });
}

/// SENDRECV: as over tcp, where the connection ends that fills the receive. By counts it would take eight seconds.
#[test]
fn a_receive_that_the_provider_has_cancelled_is_an_error_at_once() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let link = Link::between_ends(part, "messages", 1, "");
        link.warm();
        link.settle();
        link.fabric.fault(&format!("sever=next:{LONG}"));
        let received = link.irecv(0, LONG, 0);
        link.isend_at_last(0, LONG, 0);
        let start = Instant::now();
        let failure = poll_for("an error", || {
            link.ends.iter().for_each(End::poll);
            link.net.test(received).err()
        });
        assert_eq!(fired(&link, "sever"), 1);
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}: {failure:?}", start.elapsed());
        let words = "failed: Operation canceled (125)";
        assert!(failure.said[0].contains(words), "{failure:?}");
        poll_for("the sender's error", || {
            link.ends.iter().for_each(End::poll);
            refused_send(&link)
        });
        link.close_failed();
    });
}

/// As where MPI has set it to the number of ranks.
#[test]
fn messages_end_with_fin_where_the_provider_keeps_too_few_arrivals() {
    play(&[provider()], BOUND, |part| {
        set("FI_UNIVERSE_SIZE", "8");
        set("IRONRAIL_INLINE_MAX_SIZE", "0");
        let link = Link::between_ends(part, "cxi", 1, "immediates=1 arrivals=64");
        let arrivals = link.fabric.number("counter.arrivals");
        (0..RECEIVES).for_each(|_| link.warm());
        assert_eq!(link.fabric.number("counter.arrivals"), arrivals);
        let said = lines();
        let said = said.iter().filter(|line| line.contains("vfabric has room for 0 writes"));
        assert_eq!(said.count(), 1, "{:?}", lines());
        link.close_all();
    });
}

/// Posts more receives than the budget allows, and sends to all that were accepted before the receiver polls once.
fn send_to_all_receives(part: &Part, profile: &str, connections: usize) {
    set("IRONRAIL_INLINE_MAX_SIZE", "0");
    let world = World::open(part, profile, [1, 1]);
    world.fabric.configure(&format!("profile={profile} nics=16 immediates=1"));
    let ends @ [sender, receiver] = world.nets.map(End::open);
    let net = receiver.net;
    let comms: Vec<_> = (0..connections).map(|_| connect(&sender, &receiver)).collect();
    let memory = crate::support::calls::Buffer::new(64);
    let from = net.register(comms[0].0, memory).expect("regMr");
    let to = net.register(comms[0].1, memory).expect("regMr");
    let mut received = Vec::new();
    let mut refused = 0;
    for _ in 0..RECEIVES {
        for (_, receive) in &comms {
            match net.irecv(*receive, memory.address(), 64, 0, to).expect("irecv") {
                Some(request) => received.push(request),
                None => refused += 1,
            }
        }
    }
    assert!(refused > 0, "{} receives were taken", received.len());
    (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
    // All accepted connections are sent to before the receiver polls once.
    let mut sent = Vec::new();
    let mut left = received.len();
    let start = Instant::now();
    while left > 0 {
        assert!(start.elapsed() < WAIT * 3, "{left} are to be sent");
        for (send, _) in &comms {
            if let Some(request) = net.isend(*send, memory.address(), 64, 0, from).expect("isend") {
                sent.push(request);
                left -= 1;
            }
        }
        sender.poll();
        if sent.len() > IN_FLIGHT {
            break;
        }
    }
    (0..POLLS).for_each(|_| sender.poll());
    assert_eq!(world.fabric.violations(), Vec::<String>::new());
    net.deregister(comms[0].0, from).ok();
    for (send, receive) in comms {
        net.close_send(send).expect("closeSend");
        net.close_recv(receive).expect("closeRecv");
    }
    (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
    close_together(ends);
    assert_eq!(world.fabric.violations(), Vec::<String>::new());
}

const CONNECTIONS: usize = 2100;
const RECEIVES: usize = 8;
/// More than the queue holds are never sent.
const IN_FLIGHT: usize = 16_000;
