//! Closing while a NIC is stalled: within the bound, and without a broken rule.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use net_abi::ResultCode;

use crate::link;
use crate::support::calls::{self, Answer, Buffer, Net, Object};
use crate::support::link::wait;
use crate::support::stage::{Part, play, play_each, suspend};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

/// The bound of one finalize: the bound of the drain, and what a loaded machine adds.
const BOUND: Duration = Duration::from_secs(30);
const POLLS: u32 = 200;

/// A region that is bound to an endpoint closes before it, and not while an operation may access it: so if an operation never completes,
/// neither closes. The objects of the other NIC do, unless a letter is in flight there to the end that has stopped polling first.
#[test]
fn objects_that_a_stalled_nic_may_touch_leak_where_regions_are_bound() {
    play(&[provider()], BOUND * 6, |part| {
        let world = stalled(part, "cxi");
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
        // For each NIC with something in flight: a domain, and a queue, an address vector and an endpoint each for data and for control.
        let open = |kind: &str| world.fabric.number(&format!("open.{kind}"));
        let left = ["domains", "queues", "vectors", "endpoints"].map(open);
        let nics = left[0];
        assert!((1..=3).contains(&nics), "{nics} of 4 domains, {} regions", open("regions"));
        assert_eq!(left, [nics, 2 * nics, 2 * nics, 2 * nics]);
        let said = calls::warnings();
        let leaks = said.iter().filter(|line| line.contains("leaks")).cloned().collect::<String>();
        assert!(leaks.contains("vfabric vnic1"), "{said:?}");
        assert_eq!(leaks.matches("vfabric vnic").count() as u64, nics, "{said:?}");
    });
}

#[test]
fn endpoints_close_first_where_regions_belong_to_the_domain() {
    play(&[provider()], BOUND * 6, |part| {
        let world = stalled(part, "efa");
        world.fabric.is_clean();
    });
}

/// As by Slurm, which suspends all processes of a job. The time does not count as a wait.
#[test]
fn a_process_that_is_stopped_in_its_finalize_waits_on_when_it_is_continued() {
    play(&[provider()], BOUND * 6, |part| {
        set("IRONRAIL_STRIPE_MIN", "16K");
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "3000");
        let world = World::open(part, "cxi", [2, 2]);
        let ends = world.nets.map(End::open);
        let link = Link::open(world, &ends);
        world.fabric.change(1, "stall");
        link.send();
        link.net.close_send(link.send).expect("closeSend");
        link.net.close_recv(link.receive).expect("closeRecv");
        let suspended = suspend(&[], Duration::from_secs(5));
        thread::scope(|scope| {
            scope.spawn(|| {
                // A second in which the process runs: a longer sleep would end while it is stopped.
                (0..100).for_each(|_| thread::sleep(Duration::from_millis(10)));
                world.fabric.change(1, "resume");
            });
            close_together(ends);
        });
        suspended.end();
        world.fabric.is_clean();
    });
}

/// The sender gets an error, and its channel fails: so the receiver gets an error too, instead of waiting for the part forever.
#[test]
fn a_part_that_cannot_be_posted_fails_both_ends() {
    play(&[provider()], BOUND * 6, |part| {
        // Otherwise the other rail carries it: see `rails`.
        set("IRONRAIL_FAILOVER", "0");
        set("IRONRAIL_STRIPE_MIN", "16K");
        let world = World::open(part, "efa", [2, 2]);
        // The first part of the message, and the second.
        for nth in 1..=2 {
            world.fabric.configure("profile=efa nics=16");
            let ends = world.nets.map(End::open);
            let link = Link::open(world, &ends);
            world.fabric.settle(|| ends.iter().for_each(End::poll));
            let posts = world.fabric.number("counter.posts");
            world.fabric.fault(&format!("reject={}", posts + nth));
            let sent = link.send();
            let failed = (0..POLLS).find_map(|_| link.net.test(sent).err());
            assert!(failed.expect("a part was not posted").said[0].contains("sending to"));
            assert_eq!(world.fabric.number("counter.faults.reject"), 1);
            ends.iter().for_each(|end| (0..POLLS).for_each(|_| end.poll()));
            link.net.close_send(link.send).expect("closeSend");
            let failed = (0..POLLS).find_map(|_| {
                ends[0].poll();
                link.net.test(link.received).err()
            });
            let failed = failed.expect("the channel has failed");
            assert!(failed.said[0].contains("receiving from"), "{failed:?}");
            link.net.close_recv(link.receive).expect("closeRecv");
            (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
            close_together(ends);
            world.fabric.is_clean();
        }
    });
}

/// The error comes before the periodic check of peers, too: the tag of the receive gives the rank.
#[test]
fn an_advert_that_cannot_be_posted_fails_the_receive_and_names_the_rank() {
    play_each(&["cxi", "tcp"], &[provider()], BOUND * 6, |part, profile| {
        let link = link::Link::between_ends(part, profile, 1, "");
        link.warm();
        link.settle();
        link.fabric.fault_next("reject", 0);
        // Longer than what comes inline, so its advert does not wait.
        let received = link.irecv(0, 6000, 41);
        let failed = (0..POLLS).find_map(|_| link.net.test(received).err());
        let said = &failed.expect("its advert was not posted").said[0];
        assert!(said.contains("receiving from rank 41, process "), "{said}");
        assert_eq!(link.fabric.number("counter.faults.reject"), 1);
        link.close_all();
    });
}

/// It is logged once, and later errors do not replace it.
#[test]
fn the_first_cause_of_a_failure_stays() {
    play(&[provider()], BOUND * 6, |part| {
        set("IRONRAIL_FAILOVER", "0");
        set("IRONRAIL_STRIPE_MIN", "16K");
        let world = World::open(part, "efa", [2, 2]);
        let ends = world.nets.map(End::open);
        let link = Link::open(world, &ends);
        world.fabric.settle(|| ends.iter().for_each(End::poll));
        // Its second part is refused permanently. The first is in flight then, and fails later.
        let [posts, operations] =
            ["counter.posts", "counter.operations"].map(|name| world.fabric.number(name));
        world.fabric.fault(&format!("reject={},fail={}", posts + 2, operations + 1));
        let sent = link.send();
        let failed = (0..POLLS).find_map(|_| link.net.test(sent).err()).expect("it was not posted");
        assert_eq!(failed.said.len(), 1);
        assert!(failed.said[0].contains("fi_writedata"), "{failed:?}");
        link.net.close_recv(link.receive).expect("closeRecv");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        assert_eq!(world.fabric.number("counter.faults.fail"), 1, "the first part has failed, too");
        // By now the sender has received the receiver's CLOSE.
        let again = link.net.isend(link.send, link.out.address(), 8, 0, link.region).unwrap_err();
        assert_eq!(again.code, failed.code);
        assert!(again.said.is_empty(), "{again:?}");
        link.net.close_send(link.send).expect("closeSend");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// The sender's thread is busy elsewhere: no answer says what is in flight, and the sender may still begin.
fn stopped_sender(part: &Part, profile: &str) {
    // Both waits end before the keeper polls for the sender (100 ms): the second takes 10 ms.
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "5");
    let world = World::open(part, profile, [2, 2]);
    let ends = world.nets.map(End::open);
    let link = Link::open(world, &ends);
    let Link { net, receive, into, target, .. } = link;
    link.stays(net.deregister(receive, target), into);
    let again = net.deregister(receive, target).expect_err("the sender has not answered");
    assert!(again.said.is_empty(), "{again:?}");
    // What it does before it receives the question breaks no rule: the region still exists.
    link.out.write(0, &[7; 16]);
    let sent = net.isend(link.send, link.out.address(), link.out.len, 0, link.region);
    // In profile tcp a rail refuses posts while it connects, and the next poll brings the question.
    let begun = matches!(sent, Ok(Some(_)));
    assert!(begun || profile == "tcp", "{sent:?}");
    let free = (0..POLLS).any(|_| {
        ends[0].poll();
        net.deregister(receive, target).is_ok()
    });
    assert!(free, "the peer has answered, and what it had begun has come");
    assert_eq!(into.read(0, 16), if begun { [7; 16] } else { [0; 16] });
    into.write(0, &[9; 16]);
    assert!(net.isend(link.send, link.out.address(), 8, 0, link.region).is_err());
    assert!(net.deregister(receive, target).is_err(), "it is deregistered");
    (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
    assert_eq!(into.read(0, 16), [9; 16]);
    link.close(ends);
    // The bound is short: on a busy machine an end may close without the other's farewell, and leave its domain open.
    assert_eq!(world.fabric.violations(), Vec::<String>::new());
}

#[test]
fn memory_stays_until_a_stopped_sender_answers_over_cxi() {
    play(&[provider()], BOUND * 6, |part| stopped_sender(part, "cxi"));
}

#[test]
fn memory_stays_until_a_stopped_sender_answers_over_efa() {
    play(&[provider()], BOUND * 6, |part| stopped_sender(part, "efa"));
}

#[test]
fn memory_stays_until_a_stopped_sender_answers_over_tcp() {
    play(&[provider()], BOUND * 6, |part| stopped_sender(part, "tcp"));
}

/// The sender's thread is busy elsewhere, and the question, which is the next post, cannot even be posted.
fn refused_question(part: &Part, refused: u64) {
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "3000");
    let world = World::open(part, "cxi", [2, 2]);
    let ends = world.nets.map(End::open);
    let link = Link::open(world, &ends);
    let posts = world.fabric.number("counter.posts");
    let script: Vec<_> = (posts + 1..=posts + refused).map(|nth| format!("reject={nth}")).collect();
    world.fabric.fault(&script.join(","));
    let answer = link.net.deregister(link.receive, link.target);
    assert!(world.fabric.number("counter.faults.reject") >= 1);
    answer.expect("the peer has answered, or cannot");
    (0..POLLS).for_each(|_| ends[1].poll());
    link.close(ends);
    world.fabric.is_clean();
}

#[test]
fn memory_is_free_in_time_where_the_question_cannot_be_posted() {
    play(&[provider()], BOUND * 6, |part| refused_question(part, 5));
}

/// It goes by another rail, and the sender's keeper answers without a call.
#[test]
fn a_question_that_one_rail_refuses_goes_by_another() {
    play(&[provider()], BOUND * 6, |part| refused_question(part, 1));
}

/// The sender answers, and its bytes are stalled in flight: on both sides the memory stays until they move on.
fn standing_nic(part: &Part, profile: &str) {
    set("IRONRAIL_STRIPE_MIN", "16K");
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
    let world = World::open(part, profile, [2, 2]);
    let ends = world.nets.map(End::open);
    let link = Link::open(world, &ends);
    let Link { net, send, receive, out, region, into, target, .. } = link;
    world.fabric.change(1, "stall");
    link.send();
    link.stays(net.deregister(receive, target), into);
    (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
    // In profile tcp the bytes of a completed write were copied.
    if profile == "efa" {
        link.stays(net.deregister(send, region), out);
    }
    net.deregister(receive, target).expect_err("half of its message is to come");
    world.fabric.change(1, "resume");
    let handles = [(receive, target), (send, region)];
    for (comm, handle) in &handles[..if profile == "efa" { 2 } else { 1 }] {
        let free = (0..POLLS).any(|_| {
            ends.iter().for_each(End::poll);
            net.deregister(*comm, *handle).is_ok()
        });
        assert!(free, "the NIC has done all it had to do");
    }
    link.close(ends);
    world.fabric.is_clean();
}

/// The time that a thread has had a CPU, in hundredths of a second: proc_pid_stat(5). `thread`: its folder in /proc.
fn ticks(thread: &Path) -> u64 {
    let stat = fs::read_to_string(Path::new("/proc").join(thread).join("stat"));
    let stat = stat.expect("the thread waits");
    let (_, after_name) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// Two threads deregister one region, and wait for a NIC that stands still. Its close is refused then.
#[test]
fn no_call_of_deregmr_takes_a_refused_close_for_success_whichever_closes() {
    play(&[provider()], BOUND * 6, |part| {
        set("IRONRAIL_STRIPE_MIN", "16K");
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "60000");
        let world = World::open(part, "cxi", [2, 2]);
        let ends = world.nets.map(End::open);
        let link = Link::open(world, &ends);
        let Link { net, receive, target, .. } = link;
        world.fabric.change(1, "stall");
        link.send();
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        let (sender, calling) = mpsc::channel();
        let answers = thread::scope(|scope| {
            let calls = [0, 1].map(|_| {
                let sender = sender.clone();
                scope.spawn(move || {
                    sender.send(fs::read_link("/proc/thread-self")).expect("it is received");
                    net.deregister(receive, target)
                })
            });
            for _ in &calls {
                let thread =
                    calling.recv_timeout(BOUND).expect("both call").expect("proc is mounted");
                // A waiting call polls in a loop, and what comes before takes no time.
                wait("both wait", || ticks(&thread) >= 3);
            }
            for endpoint in 1..=world.fabric.number("opened.endpoints") {
                world.fabric.fault(&format!("stuck={endpoint}"));
            }
            world.fabric.change(1, "resume");
            wait("both end", || {
                ends[0].poll();
                calls.iter().all(|call| call.is_finished())
            });
            calls.map(|call| call.join().expect("it only calls"))
        });
        for answer in answers {
            let failure = answer.expect_err("libfabric has not closed the region");
            assert_eq!(failure.code, ResultCode::SYSTEM_ERROR, "{failure:?}");
        }
        let said = calls::warnings();
        let refused = said.iter().filter(|line| line.contains("stay registered on device"));
        assert_eq!(refused.count(), 1, "{said:?}");
    });
}

#[test]
fn memory_stays_while_its_message_is_on_a_standing_nic_over_efa() {
    play(&[provider()], BOUND * 6, |part| standing_nic(part, "efa"));
}

#[test]
fn memory_stays_while_its_message_is_on_a_standing_nic_over_tcp() {
    play(&[provider()], BOUND * 6, |part| standing_nic(part, "tcp"));
}

/// Messages of one part each: that of the second rail hangs when both ends of the connection close. Memory whose
/// deregistration was refused meanwhile is not reused; and the next connection in the slot receives what was sent to
/// it, and nothing else.
#[test]
fn a_write_that_comes_after_the_close_is_no_message_of_the_next_connection() {
    play_each(&["tcp", "efa", "adversary"], &[provider()], BOUND * 6, |part, profile| {
        set("IRONRAIL_INLINE_MAX_SIZE", "0");
        set("IRONRAIL_MAX_CONTROL_RAILS", "1");
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "100");
        let world = World::open(part, profile, [2, 2]);
        let ends = world.nets.map(End::open);
        let polls = || (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        let first = link::Link::open(world, ends);
        first.warm();
        first.warm();
        let received = [0, 1].map(|nth| first.irecv(nth * LEN, LEN, 0));
        polls();
        world.fabric.change(1, "stall");
        for nth in 0..2 {
            first.isend(nth * LEN, LEN, 0).expect("its receive is advertised");
        }
        polls();
        assert!(world.fabric.number("open.operations") > 0, "{profile}: nothing hangs");
        let done = received.map(|request| first.net.test(request).expect("test").is_some());
        assert_eq!(done.iter().filter(|done| **done).count(), 1, "{profile}: one has come");
        first.close_comms();
        polls();
        let free = first.net.deregister(first.receive, first.to);
        assert!(free.is_err(), "{profile}: a write to it is under way");
        first.into.write(0, &[9; 2 * LEN]);
        // So many connections that a slot which was free would have the same generation again, as far as a part says it.
        for _ in 0..3 {
            let (send, receive) = connect(&ends[0], &ends[1]);
            first.net.close_send(send).expect("closeSend");
            first.net.close_recv(receive).expect("closeRecv");
            polls();
        }
        let next = link::Link::open(world, ends);
        let received: Vec<Object> = (0..4).map(|nth| next.irecv(nth * LEN, LEN, 0)).collect();
        polls();
        world.fabric.change(1, "resume");
        polls();
        for request in &received {
            assert_eq!(next.net.test(*request), Ok(None), "{profile}: it was not sent");
        }
        assert!(next.into.read(0, 4 * LEN) == [0; 4 * LEN], "{profile}");
        for (nth, request) in received.into_iter().enumerate() {
            let sent = next.isend(nth * LEN, LEN, 0).expect("its receive is advertised");
            assert_eq!(next.finish(request), LEN, "{profile}");
            next.finish(sent);
            assert!(next.has(nth * LEN, nth * LEN, LEN), "{profile}");
        }
        next.close_comms();
        polls();
        close_together(ends);
        assert_eq!(world.fabric.violations(), Vec::<String>::new());
    });
}

/// One part of one rail.
const LEN: usize = 1000;

/// A connection with an advertised receive, for a message that goes over both rails.
struct Link {
    net: Net,
    send: Object,
    receive: Object,
    received: Object,
    out: Buffer,
    region: Object,
    into: Buffer,
    target: Object,
}

impl Link {
    fn open(world: World, ends: &[End; 2]) -> Self {
        let (send, receive) = connect(&ends[0], &ends[1]);
        let net = world.nets[0];
        let (out, into) = (Buffer::new(64 << 10), Buffer::new(64 << 10));
        let region = net.register(send, out).expect("regMr");
        let target = net.register(receive, into).expect("regMr");
        let received = net.irecv(receive, into.address(), into.len, 0, target).expect("irecv");
        let received = received.expect("the window is empty");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        Self { net, send, receive, received, out, region, into, target }
    }

    /// The error says that a buffer is not deregistered.
    #[track_caller]
    fn stays(&self, answer: Answer<()>, buffer: Buffer) {
        let failure = answer.expect_err("something may touch it");
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
        let what = format!("{} bytes at {:#x} stay registered", buffer.len, buffer.address());
        assert!(failure.said.len() == 1 && failure.said[0].contains(&what), "{failure:?}");
    }

    fn close(self, ends: [End; 2]) {
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
    }

    fn send(&self) -> Object {
        let Self { net, send, out, region, .. } = *self;
        let sent = net.isend(send, out.address(), out.len, 0, region).expect("isend");
        sent.expect("the receive is advertised")
    }
}

/// Sends striped messages, stalls the second NIC in the middle, and closes everything.
fn stalled(part: &Part, profile: &str) -> World {
    set("IRONRAIL_STRIPE_MIN", "16K");
    set("IRONRAIL_CLOSE_TIMEOUT_MS", "1000");
    let world = World::open(part, profile, [2, 2]);
    let ends = world.nets.map(End::open);
    let link = Link::open(world, &ends);
    let poll_all = || (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
    world.fabric.change(1, "stall");
    link.send();
    poll_all();
    assert!(world.fabric.number("open.operations") > 0);
    link.net.close_send(link.send).expect("closeSend");
    link.net.close_recv(link.receive).expect("closeRecv");
    // The receiver's farewell arrives; the sender has something in flight, and sends none.
    poll_all();
    // At the same time: a query of what is unacknowledged leaves its NIC when the other end polls.
    let start = Instant::now();
    close_together(ends);
    assert!(start.elapsed() < BOUND, "finalize took {:?}", start.elapsed());
    world
}
