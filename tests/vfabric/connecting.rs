//! Messages that set connections up are lost, doubled and late: each connection is made, once, and works.
//!
//! The two ends connect to each other at the same time, as ranks do. The fabric counts the messages: a lost or doubled one here is some
//! HELLO, QUERY or STATUS.

use std::thread;
use std::time::{Duration, Instant};

use net_abi::ResultCode;
use proto::setup::{ControlAddresses, EndpointId, Handle as WireHandle};

use crate::support::calls::{self, Answer, Buffer, Handle, Object};
use crate::support::heap::limit_address_space;
use crate::support::stage::{Part, play, play_each};
use crate::support::stranger::wire_handle;
use crate::together::close_together;
use crate::world::{self, End, World, provider};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(300);
/// How long connections may take, although several of their messages in a row are lost.
const WAIT: Duration = Duration::from_secs(60);
/// For so long `connect` repeats HELLOs that are rejected.
const UNREACHABLE: Duration = Duration::from_secs(10);
/// Two HELLOs in each direction at least. There may be more: letters are repeated after a time.
const MESSAGES: u64 = 4;
/// The delay of a second copy: it arrives when everything is closed.
const LATE: u64 = 20_000;
/// In which the farewells are sent and received.
const POLLS: u32 = 500;
/// Connections in each direction where faults are random.
const CROWD: usize = 6;
const LEN: usize = 4096;
/// More than the 64 addresses per rail that are kept for peers that come again.
const OTHERS: u64 = 100;
/// Less than the memory for an inbox, and more than what the test itself allocates.
const ROOM: u64 = 400 << 10;
/// Time for several attempts to get such memory.
const SHORTAGE: Duration = Duration::from_millis(500);

/// Connections that an endpoint has at most.
const CONNECTIONS: usize = 1 << 14;

/// One direction of a connection, at any stage.
struct Link {
    handle: Handle,
    listener: Object,
    send: Option<Object>,
    receive: Option<Object>,
}

/// A slot is free again once its connection has closed on both ends.
#[test]
fn accept_and_connect_wait_while_an_endpoint_has_all_connections_that_it_can_have() {
    play(&[provider(), ("CONNECT_TIMEOUT_MS", "10000")], BOUND, |part| {
        let world = World::open(part, "cxi", [1, 1]);
        let net = world.nets[0];
        let [full, first, second] = [net; 3].map(End::open);
        let half = |sender: End| move |_| world::connect(&sender, &full);
        let mut open: Vec<_> = (0..CONNECTIONS / 2).map(half(first)).collect();
        open.extend((0..CONNECTIONS / 2).map(half(second)));
        let link = |from: &End, to: &End| {
            let (handle, listener) = net.listen(to.context, 0).expect("listen");
            let (send, receive) = (None, None);
            (from.context, Link { handle, listener, send, receive })
        };
        let mut waiting = [link(&first, &full), link(&full, &second)];
        let mut advance = || {
            for (context, Link { handle, listener, send, receive }) in &mut waiting {
                if send.is_none() {
                    *send = net.connect(*context, 0, handle).expect("connect");
                }
                if receive.is_none() {
                    *receive = net.accept(*listener).expect("accept");
                }
            }
            waiting.iter().filter(|(_, link)| link.send.is_some() && link.receive.is_some()).count()
        };
        (0..POLLS).for_each(|_| assert_eq!(advance(), 0));
        for made in 1..=2 {
            let (send, receive) = open.pop().expect("there are many");
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
            let start = Instant::now();
            while advance() < made {
                assert!(start.elapsed() < WAIT, "a slot is not used again");
            }
        }
        let (_, mut inward) = link(&first, &full);
        let (_, mut outward) = link(&full, &second);
        let mut silent = elsewhere(&wire_handle(&outward.handle), 1);
        let mut errors = [None, None, None];
        let start = Instant::now();
        while errors.contains(&None) {
            assert!(start.elapsed() < WAIT, "it waits for ever: {errors:?}");
            drop(net.connect(first.context, 0, &mut inward.handle));
            let calls = [
                net.accept(inward.listener),
                net.connect(full.context, 0, &mut outward.handle),
                net.connect(full.context, 0, &mut silent),
            ];
            for (error, call) in errors.iter_mut().zip(calls) {
                match call {
                    Ok(made) => assert_eq!(made, None),
                    Err(why) => *error = Some(format!("{why:?}")),
                }
            }
        }
        let open = format!("{CONNECTIONS} connections are open on one endpoint");
        for (error, says) in
            errors.iter().flatten().zip([&open, &open, "no answer of the process at "])
        {
            assert!(error.contains(says), "{error}");
        }
    });
}

#[test]
fn connections_survive_lost_and_doubled_letters_over_cxi() {
    play(&[provider()], BOUND, |part| survive(part, "cxi"));
}

#[test]
fn connections_survive_lost_and_doubled_letters_over_efa() {
    play(&[provider()], BOUND, |part| survive(part, "efa"));
}

#[test]
fn connections_survive_lost_and_doubled_letters_over_tcp() {
    play(&[provider()], BOUND, |part| survive(part, "tcp"));
}

#[test]
fn connections_survive_lost_and_doubled_letters_over_the_adversary() {
    play(&[provider()], BOUND, |part| survive(part, "adversary"));
}

fn survive(part: &Part, profile: &str) {
    let world = World::open(part, profile, [1, 1]);
    for number in 1..=MESSAGES {
        each_fault(world, profile, "lose", |_| format!("lose={number}"));
        each_fault(world, profile, "double", |_| format!("double={number}"));
        each_fault(world, profile, "double", |_| format!("double={number}:{LATE}"));
    }
    // The first HELLO, which fails by its completion, is sent again, though it may have arrived.
    each_fault(world, profile, "fail", |before| format!("fail={}", before + 1));
    each_fault(world, profile, "fail_late", |before| format!("fail_late={}", before + 1));
    let mut fired = [0; 2];
    for seed in 1..=4 {
        let settings =
            format!("profile={profile} nics=16 seed={seed} lose=300 double=300 eagain=200");
        world.fabric.configure(&settings);
        let ends = world.nets.map(End::open);
        let links = connect(&ends, CROWD);
        finish(&ends, links);
        close_together(ends);
        let now = ["lose", "double"].map(|fault| number(world, fault));
        fired = [fired[0] + now[0], fired[1] + now[1]];
        world.fabric.is_clean();
    }
    assert!(fired.iter().all(|count| *count > 0), "lost and doubled: {fired:?}");
}

/// As where the first rail's link is down while NCCL makes a communicator.
#[test]
fn connections_are_made_though_the_first_hellos_are_rejected() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [1, 1]);
        let ends = world.nets.map(End::open);
        let mut links = [Link::new(&ends[1]), Link::new(&ends[0])];
        let posts = world.fabric.number("counter.posts");
        let rejected = 20;
        let script: Vec<_> =
            (1..=rejected).map(|post| format!("reject={}", posts + post)).collect();
        world.fabric.fault(&script.join(" "));
        within(WAIT, || {
            let [there, back] = &mut links;
            there.step(&ends[0], &ends[1]);
            back.step(&ends[1], &ends[0]);
            links.iter().all(Link::is_whole)
        });
        finish(&ends, vec![links]);
        close_together(ends);
        assert_eq!(number(world, "reject"), rejected);
        world.fabric.is_clean();
    });
}

/// As where NCCL connects to many peers at once, more than addresses are kept after a first HELLO. Over efa an address is removed for good.
#[test]
fn a_late_peer_is_not_forgotten_though_many_others_are_sought_meanwhile() {
    play_each(&["efa", "cxi"], &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let ends = world.nets.map(End::open);
        let mut links = [Link::new(&ends[1]), Link::new(&ends[0])];
        // It arrives, and the other end does not answer.
        world.fabric.fault("lose=1");
        assert_eq!(links[0].connect(&ends[0]).expect("connect"), None);
        let shown = wire_handle(&links[0].handle);
        let mut others: Vec<Handle> = (1..=OTHERS).map(|other| elsewhere(&shown, other)).collect();
        for other in &mut others {
            ends[1].poll();
            assert_eq!(ends[0].net.connect(ends[0].context, 0, other).expect("connect"), None);
        }
        within(WAIT, || {
            let [there, back] = &mut links;
            there.step(&ends[0], &ends[1]);
            back.step(&ends[1], &ends[0]);
            links.iter().all(Link::is_whole)
        });
        finish(&ends, vec![links]);
        close_together(ends);
        assert_eq!(number(world, "lose"), 1);
        world.fabric.is_clean();
    });
}

/// The handle of an endpoint that answers nothing, as it does not exist.
fn elsewhere(shown: &WireHandle, other: u64) -> Handle {
    let mut address = shown.control.at(0).as_bytes().to_vec();
    let text = format!("vfabric://0/{}", 1_000_000 + other);
    address.fill(0);
    address[..text.len()].copy_from_slice(text.as_bytes());
    let mut endpoint = [0xe1; 16];
    endpoint[..8].copy_from_slice(&other.to_le_bytes());
    let control = ControlAddresses::new([address.as_slice()].into_iter()).expect("it fits");
    WireHandle { endpoint: EndpointId(endpoint), control, ..*shown }.encode()
}

/// As where NCCL connects two more ranks after the first NIC of both was lost, with an error or in silence.
#[test]
fn connections_are_made_though_the_first_nic_is_lost() {
    let cases = ["cxi kill", "cxi stall", "efa kill", "tcp kill", "tcp stall", "adversary kill"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, fault) = case.split_once(' ').expect("a profile and a fault");
        let world = World::open(part, profile, [2, 2]);
        let ends = world.nets.map(End::open);
        let from_now = |fault| {
            let posts = world.fabric.number("counter.posts");
            world.fabric.fault(&format!("{fault}=0@{}", posts + 1));
        };
        from_now(fault);
        let links = connect(&ends, 1);
        finish(&ends, links);
        assert_eq!(number(world, fault), 1);
        // Operations that hang for ever would be left open.
        from_now(if fault == "stall" { "resume" } else { "revive" });
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// `connect` fails in time, and names the reason, where no HELLO can be posted.
#[test]
fn connect_fails_where_every_hello_is_rejected() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [1, 1]);
        let ends = world.nets.map(End::open);
        let mut link = Link::new(&ends[1]);
        let posts = world.fabric.number("counter.posts");
        let script: Vec<_> = (1..=1000).map(|post| format!("reject={}", posts + post)).collect();
        world.fabric.fault(&script.join(" "));
        let (began, mut failure) = (Instant::now(), None);
        within(WAIT, || {
            failure = link.connect(&ends[0]).err();
            failure.is_some()
        });
        assert!(began.elapsed() >= UNREACHABLE, "it is tried again before");
        let failure = failure.expect("connect has failed");
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
        let words = "the peer cannot be reached: fi_send: Input/output error (-5)";
        assert!(failure.said[0].contains(words), "{failure:?}");
        assert!(number(world, "reject") > 0, "no HELLO was rejected");
    });
}

/// A step of one link each way. Whether both are made.
fn step_both(links: &mut [Link; 2], ends: &[End; 2]) -> bool {
    let [there, back] = &mut *links;
    there.step(&ends[0], &ends[1]);
    back.step(&ends[1], &ends[0]);
    links.iter().all(Link::is_whole)
}

/// Memory is asked for every 50 ms, and by each HELLO of the peer's. The shortage is a limit of the address space.
#[test]
fn a_shortage_of_memory_for_channels_is_logged_when_it_begins_and_when_it_ends() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [1, 1]);
        let ends = world.nets.map(End::open);
        let mut links = [Link::new(&ends[1]), Link::new(&ends[0])];
        let mut step = || step_both(&mut links, &ends);
        limit_address_space(Some(ROOM));
        let start = Instant::now();
        while start.elapsed() < SHORTAGE {
            assert!(!step(), "there was memory for inboxes");
        }
        limit_address_space(None);
        within(WAIT, step);
        let said = calls::warnings();
        let count = |words| said.iter().filter(|line| line.contains(words)).count();
        let [begun, ended] =
            ["no memory for an inbox", "memory for inboxes and shadows again"].map(count);
        // Once for each end that has heard of the other.
        assert!((1..=2).contains(&begun) && ended == begun, "{said:?}");
        finish(&ends, vec![links]);
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// The other NIC, which registers it, keeps what it has.
#[test]
fn memory_for_channels_that_one_nic_refuses_is_asked_for_there_alone() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [2, 2]);
        let ends = world.nets.map(End::open);
        let mut links = [Link::new(&ends[1]), Link::new(&ends[0])];
        let mut step = || step_both(&mut links, &ends);
        let opened = || world.fabric.number("opened.regions");
        (0..4).for_each(|nic| {
            world.fabric.change(nic, if nic % 2 == 1 { "scarce" } else { "ample" })
        });
        let before = opened();
        within(WAIT, || {
            assert!(!step(), "there was memory for inboxes");
            number(world, "scarce") >= 10
        });
        assert!(opened() - before <= 2, "{} for {} ends", opened() - before, ends.len());
        (0..4).for_each(|nic| world.fabric.change(nic, "ample"));
        within(WAIT, step);
        finish(&ends, vec![links]);
        close_together(ends);
        world.fabric.is_clean();
    });
}

fn number(world: World, fault: &str) -> u64 {
    world.fabric.number(&format!("counter.faults.{fault}"))
}

/// `script` gets the number of earlier operations.
fn each_fault(world: World, profile: &str, fault: &str, script: impl Fn(u64) -> String) {
    world.fabric.configure(&format!("profile={profile} nics=16"));
    let ends = world.nets.map(End::open);
    assert_eq!(world.fabric.number("counter.messages"), 0);
    let script = script(world.fabric.number("counter.operations"));
    world.fabric.fault(&script);
    let links = connect(&ends, 1);
    finish(&ends, links);
    close_together(ends);
    assert_eq!(number(world, fault), 1, "{script}");
    world.fabric.is_clean();
}

/// A request that was delayed until its connection was closed makes no other one, though its listener is open.
#[test]
fn a_request_that_comes_again_after_all_is_closed_makes_no_connection() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        world.fabric.fault(&format!("double=1:{LATE}"));
        let ends = world.nets.map(End::open);
        let mut link = Link::new(&ends[1]);
        within(WAIT, || {
            link.step(&ends[0], &ends[1]);
            link.is_whole()
        });
        let (send, receive) = (link.send.expect("made"), link.receive.expect("made"));
        ends[0].net.close_send(send).expect("closeSend");
        ends[1].net.close_recv(receive).expect("closeRecv");
        for _ in 0..2 * LATE {
            ends[0].poll();
            assert_eq!(
                ends[1].net.accept(link.listener),
                Ok(None),
                "the peer has not repeated its request"
            );
        }
        assert_eq!(number(world, "double"), 1);
        assert_eq!(world.fabric.number("open.operations"), 0, "the copy has come");
        ends[1].net.close_listen(link.listener).expect("closeListen");
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// As NCCL connects the ranks behind a proxy that share a comm: each side polls all, in an order of its own, keeps the first comm that it
/// gets, and polls no other again.
#[test]
fn both_ends_keep_the_same_of_two_connections_that_race() {
    play_each(&["cxi", "tcp"], &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let ends = world.nets.map(End::open);
        for _ in 0..3 {
            let mut links = [Link::new(&ends[1]), Link::new(&ends[1])];
            let (mut send, mut receive) = (None, None);
            within(WAIT, || {
                for link in &mut links {
                    send = send.or_else(|| link.connect(&ends[0]).expect("connect"));
                }
                for link in links.iter().rev() {
                    receive =
                        receive.or_else(|| ends[1].net.accept(link.listener).expect("accept"));
                }
                send.is_some() && receive.is_some()
            });
            for link in &links {
                ends[1].net.close_listen(link.listener).expect("closeListen");
            }
            let [kept, _] = links;
            let kept = Link { send, receive, ..kept };
            kept.moves_a_message(&ends[0], &ends[1]);
            kept.closes(&ends[0], &ends[1]);
        }
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// As of a caller that asks for one connection at a time, and leaves one that has begun.
#[test]
fn a_connection_that_accept_is_not_called_for_any_more_holds_up_no_other() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [1, 1]);
        let ends = world.nets.map(End::open);
        let mut links = [Link::new(&ends[1]), Link::new(&ends[1])];
        for _ in 0..POLLS {
            for link in &mut links {
                assert_eq!(link.connect(&ends[0]).expect("connect"), None);
            }
            ends[1].poll();
        }
        let [left, kept] = &mut links;
        assert_eq!(ends[1].net.accept(left.listener), Ok(None), "OPENED has not left yet");
        assert_eq!(ends[1].net.accept(kept.listener), Ok(None), "it waits for the other one");
        within(WAIT, || {
            kept.step(&ends[0], &ends[1]);
            kept.is_whole()
        });
        kept.moves_a_message(&ends[0], &ends[1]);
        kept.closes(&ends[0], &ends[1]);
        for link in &links {
            ends[1].net.close_listen(link.listener).expect("closeListen");
        }
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// Up to v10 an endpoint closes with the last comm of its thread. NCCL has no call to close a connect that it polls no more.
#[test]
fn an_endpoint_closes_though_a_connect_has_lost_a_race() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "cxi", [1, 1]);
        let net = world.nets[0];
        net.init_v10().expect("init");
        let mut listening = [0, 1].map(|_| net.listen_v10(0).expect("listen"));
        let (mut send, mut receive) = (None, None);
        within(WAIT, || {
            for (handle, _) in &mut listening {
                send = send.or_else(|| net.connect_v10(0, -1, handle).expect("connect"));
            }
            let [_, (_, listener)] = listening;
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        for (_, listener) in listening {
            net.close_listen(listener).expect("closeListen");
        }
        let mut kept =
            crate::support::link::Link::of(net, send.expect("whole"), receive.expect("whole"));
        kept.works();
        kept.close();
        world.fabric.is_clean();
    });
}

/// As where a rank connects, for a new pattern of messages, to one that has destroyed its communicator. A connect that has begun waits, as
/// where a listener closes.
#[test]
fn a_connect_to_a_peer_that_has_ended_says_so() {
    play_each(&["cxi", "tcp"], &[provider()], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        let ends = world.nets.map(End::open);
        let links = connect(&ends, 1);
        let [mut late, mut waiting] = [0, 1].map(|_| Link::new(&ends[1]));
        finish(&ends, links);
        (0..POLLS).for_each(|_| assert_eq!(waiting.connect(&ends[0]), Ok(None)));
        let [stays, leaves] = ends;
        thread::scope(|scope| {
            let leaving = scope.spawn(move || leaves.close());
            within(WAIT, || {
                stays.poll();
                leaving.is_finished()
            });
        });
        let mut failure = None;
        within(WAIT, || {
            failure = late.connect(&stays).err();
            failure.is_some()
        });
        let failure = failure.expect("just found");
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
        let names_it = failure.said[0].contains(&format!("process {}", std::process::id()));
        assert!(names_it && failure.said[0].contains("has closed its"), "{failure:?}");
        assert_eq!(waiting.connect(&stays), Ok(None));
        stays.close();
        world.fabric.is_clean();
    });
}

/// The receiver answers a repeated request in whichever wait on the same endpoint, even for another connection.
#[test]
fn a_reply_that_is_lost_comes_again_while_its_receiver_waits_for_anything() {
    play_each(&["a receive", "a request", "a reply"], &[provider()], BOUND, |part, waits_for| {
        let world = World::open(part, "efa", [1, 1]);
        world.fabric.fault("lose=2");
        let ends = world.nets.map(End::open);
        let (mut link, mut back) = (Link::new(&ends[1]), Link::new(&ends[0]));
        link.is_accepted(&ends);
        let (net, receive) = (ends[1].net, link.receive.expect("accepted"));
        let into = Buffer::new(LEN);
        let to = net.register(receive, into).expect("regMr");
        let received = net.irecv(receive, into.address(), LEN, 0, to).expect("irecv");
        let received = received.expect("the window is empty");
        within(WAIT, || {
            match waits_for {
                "a receive" => assert_eq!(net.test(received), Ok(None)),
                "a request" => ends[1].poll(),
                _ => back.send = back.send.or_else(|| back.connect(&ends[1]).expect("connect")),
            }
            if link.send.is_none() {
                link.send = link.connect(&ends[0]).expect("connect");
            }
            link.send.is_some()
        });
        assert_eq!(number(world, "lose"), 1);
        net.close_recv(receive).expect("closeRecv");
        ends[0].net.close_send(link.send.expect("connected")).expect("closeSend");
        ends[0].net.close_listen(back.listener).expect("closeListen");
        net.close_listen(link.listener).expect("closeListen");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// NCCL need not call: the keeper answers.
#[test]
fn a_reply_that_is_lost_comes_though_its_receiver_is_silent() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        world.fabric.fault("lose=2");
        let ends = world.nets.map(End::open);
        let mut link = Link::new(&ends[1]);
        link.is_accepted(&ends);
        within(WAIT, || {
            link.send.is_some() || link.connect(&ends[0]).expect("the reply comes").is_some()
        });
    });
}

impl Link {
    fn new(receiver: &End) -> Self {
        let (handle, listener) = receiver.net.listen(receiver.context, 0).expect("listen");
        Self { handle, listener, send: None, receive: None }
    }

    fn connect(&mut self, sender: &End) -> Answer<Option<Object>> {
        sender.net.connect(sender.context, 0, &mut self.handle)
    }

    /// Its listener has accepted it; the sender may not have the answer yet.
    fn is_accepted(&mut self, ends: &[End; 2]) {
        within(WAIT, || {
            if self.send.is_none() {
                self.send = self.connect(&ends[0]).expect("connect");
            }
            self.receive = ends[1].net.accept(self.listener).expect("accept");
            self.receive.is_some()
        });
    }

    /// A call of each side that is not done.
    fn step(&mut self, sender: &End, receiver: &End) {
        if self.send.is_none() {
            self.send = self.connect(sender).expect("connect");
        }
        if self.receive.is_none() {
            self.receive = receiver.net.accept(self.listener).expect("accept");
        }
    }

    fn is_whole(&self) -> bool {
        self.send.is_some() && self.receive.is_some()
    }
}

/// `count` connections from each end to the other, all at once.
fn connect(ends: &[End; 2], count: usize) -> Vec<[Link; 2]> {
    let pair = |_| [Link::new(&ends[1]), Link::new(&ends[0])];
    let mut links: Vec<[Link; 2]> = (0..count).map(pair).collect();
    within(WAIT, || {
        for [there, back] in &mut links {
            there.step(&ends[0], &ends[1]);
            back.step(&ends[1], &ends[0]);
        }
        // A comm that is connected makes no progress for those that are not.
        ends.iter().for_each(End::poll);
        links.as_flattened().iter().all(Link::is_whole)
    });
    links
}

/// Moves a message over each connection, closes it, and checks that no listener has another one.
fn finish(ends: &[End; 2], links: Vec<[Link; 2]>) {
    for [there, back] in links {
        for (link, sender, receiver) in [(there, &ends[0], &ends[1]), (back, &ends[1], &ends[0])] {
            link.moves_a_message(sender, receiver);
            assert_eq!(receiver.net.accept(link.listener), Ok(None), "one was requested");
            receiver.net.close_listen(link.listener).expect("closeListen");
            link.closes(sender, receiver);
        }
    }
    (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
}

impl Link {
    fn closes(&self, sender: &End, receiver: &End) {
        sender.net.close_send(self.send.expect("whole")).expect("closeSend");
        receiver.net.close_recv(self.receive.expect("whole")).expect("closeRecv");
    }

    fn moves_a_message(&self, sender: &End, receiver: &End) {
        let (send, receive) = (self.send.expect("whole"), self.receive.expect("whole"));
        let (out, into) = (Buffer::new(LEN), Buffer::new(LEN));
        out.write(0, &[7; LEN]);
        let from = sender.net.register(send, out).expect("regMr");
        let to = receiver.net.register(receive, into).expect("regMr");
        let received = receiver.net.irecv(receive, into.address(), LEN, 0, to).expect("irecv");
        let received = received.expect("the window is empty");
        let (mut sent, mut done) = (None, [false; 2]);
        within(WAIT, || {
            match sent {
                None => {
                    sent = sender.net.isend(send, out.address(), LEN, 0, from).expect("isend");
                }
                Some(request) if !done[0] => {
                    done[0] = sender.net.test(request).expect("a send").is_some();
                }
                Some(_) => sender.poll(),
            }
            if done[1] {
                receiver.poll();
            } else {
                done[1] = receiver.net.test(received).expect("a receive").is_some();
            }
            done == [true; 2]
        });
        assert_eq!(into.read(0, LEN), [7; LEN]);
        sender.net.deregister(send, from).expect("deregMr");
        receiver.net.deregister(receive, to).expect("deregMr");
    }
}

#[track_caller]
fn within(bound: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < bound, "it takes longer than {bound:?}");
    }
}
