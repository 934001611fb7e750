//! A peer that receives nothing any more, like a killed process, delays no other peer; and one that has left keeps none waiting.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::link::{Link, POLLS};
use crate::support::calls::Object;
use crate::support::link::wait;
use crate::support::stage::{Part, play_each};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
/// The bound of one finalize: the bound of the drain, and what a loaded machine adds.
const CLOSE: Duration = Duration::from_secs(30);
/// Profiles and numbers of rails: adverts for more than two rails have a form of their own.
const CASES: [&str; 5] = ["cxi 1", "efa 1", "tcp 1", "adversary 1", "tcp 4"];
/// Polls by which a message is late.
const DELAY: u32 = 5000;
/// The most bytes of a part, and a message with several parts.
const PART: usize = 1024;
const WAITS: usize = PART + 50;
/// Short messages between two polls.
const BURST: usize = 4;

/// A sender, and a living and a dead receiver: each has its own endpoint.
struct Trio {
    world: World,
    sender: End,
    living: Link,
    gone: Link,
    /// The provider's endpoints of the dead one.
    numbers: RangeInclusive<u64>,
    rails: usize,
}

impl Trio {
    fn open(part: &Part, case: &str) -> Self {
        let (profile, rails) = case.split_once(' ').expect("a profile and a number");
        let rails = rails.parse().expect("a number");
        set("IRONRAIL_LARGEST_WRITE", &PART.to_string());
        set("IRONRAIL_INLINE_MAX_SIZE", "512");
        let world = World::open(part, profile, [rails, rails]);
        let opened = || world.fabric.number("opened.endpoints");
        let [sender, receiver] = world.nets.map(End::open);
        let before = opened();
        let other = End::open(world.nets[0]);
        let numbers = before + 1..=opened();
        let living = Link::open(world, [sender, receiver]);
        let gone = Link::open(world, [sender, other]);
        // On every rail.
        [&living, &gone].into_iter().for_each(|link| (0..rails).for_each(|_| link.warm()));
        Self { world, sender, living, gone, numbers, rails }
    }

    /// Shuts the dead one's endpoints, or opens them again.
    fn change(&self, word: &str) {
        self.numbers
            .clone()
            .for_each(|number| self.world.fabric.fault(&format!("{word}={number}")));
    }

    fn refused(&self) -> u64 {
        self.world.fabric.number("counter.faults.shut")
    }

    /// A message on each rail to the dead one, which waits for room: it has several parts, so it was submitted.
    fn waiting(&self) -> Vec<[Object; 2]> {
        let receive = |index| self.gone.irecv(WAITS * index, WAITS, 0);
        let received: Vec<_> = (0..self.rails).map(receive).collect();
        self.gone.poll();
        self.change("shut");
        let send = |(index, received)| {
            let sent = self.gone.isend(index, WAITS, 0);
            [sent.expect("its receive is advertised"), received]
        };
        let waiting: Vec<_> = received.into_iter().enumerate().map(send).collect();
        let before = self.refused();
        (0..POLLS).for_each(|_| self.sender.poll());
        assert!(self.refused() > before, "they are tried again");
        waiting
    }

    /// Messages of every form on every rail to the living one; each is accepted at the first attempt.
    fn all_pass(&self) {
        let Self { living, rails, .. } = self;
        for (posted, len) in [(8, 8), (100, 8), (1000, 1000), (1000, 500), (2000, 2000), (0, 0)] {
            for _ in 0..*rails {
                let received = living.irecv(0, posted, 0);
                living.poll();
                let sent = living.isend(len, len, 0).expect("it is posted at once");
                assert_eq!(living.finish(received), len);
                living.finish(sent);
                assert!(living.has(0, len, len), "{len} bytes");
            }
        }
        let received: Vec<_> = (0..BURST).map(|index| living.irecv(64 * index, 8, 0)).collect();
        living.poll();
        let sent = (0..BURST).map(|index| living.isend(index, 8, 0).expect("a burst passes"));
        let sent: Vec<_> = sent.collect();
        for (index, request) in received.into_iter().enumerate() {
            assert_eq!(living.finish(request), 8);
            assert!(living.has(64 * index, index, 8), "message {index}");
        }
        sent.into_iter().for_each(|request| {
            living.finish(request);
        });
    }

    fn close(self) {
        let start = Instant::now();
        let ends = [self.sender, self.living.ends[1], self.gone.ends[1]];
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        assert!(start.elapsed() < CLOSE, "{:?}", start.elapsed());
        self.world.fabric.is_clean();
    }
}

#[test]
fn messages_pass_those_that_wait_for_a_peer_that_receives_nothing() {
    play_each(&CASES, &[provider()], BOUND, |part, case| {
        let trio = Trio::open(part, case);
        let waiting = trio.waiting();
        trio.all_pass();
        let gone = &trio.gone;
        for [sent, _] in &waiting {
            assert_eq!(gone.net.test(*sent), Ok(None), "it waits all the same");
        }
        trio.change("open");
        for (index, [sent, received]) in waiting.into_iter().enumerate() {
            assert_eq!(gone.finish(received), WAITS);
            gone.finish(sent);
            assert!(gone.has(WAITS * index, index, WAITS), "message {index}");
        }
        assert_eq!(trio.world.fabric.number("counter.faults.open"), 2 * trio.rails as u64);
        trio.living.close_comms();
        gone.close_comms();
        trio.close();
    });
}

/// Nor does a connect wait for another one, whose peer takes no request.
#[test]
fn a_connection_is_made_though_an_earlier_connect_is_refused() {
    play_each(&["cxi", "efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
        let World { nets: [net, _], fabric } = World::open(part, profile, [1, 1]);
        let [sender, living] = [net; 2].map(End::open);
        let before = fabric.number("opened.endpoints");
        let gone = End::open(net);
        let numbers = before + 1..=fabric.number("opened.endpoints");
        let (mut handle, listener) = net.listen(gone.context, 0).expect("listen");
        numbers.clone().for_each(|number| fabric.fault(&format!("shut={number}")));
        let mut ask = || net.connect(sender.context, 0, &mut handle).expect("connect");
        (0..POLLS).for_each(|_| assert_eq!(ask(), None));
        assert!(fabric.number("counter.faults.shut") > 0, "it asks again and again");
        let comms = connect(&sender, &living);
        numbers.for_each(|number| fabric.fault(&format!("open={number}")));
        let (mut send, mut receive) = (None, None);
        wait("the earlier one", || {
            send = send.or_else(&mut ask);
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        net.close_listen(listener).expect("closeListen");
        for (send, receive) in [comms, (send.expect("connected"), receive.expect("accepted"))] {
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
        }
        let ends = [sender, living, gone];
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        fabric.is_clean();
    });
}

/// Connections are made, used and closed beside one whose CLOSE cannot be posted.
#[test]
fn farewells_pass_one_that_is_never_taken() {
    play_each(&CASES, &[provider()], BOUND, |part, case| {
        // The last close waits for so long.
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "3000");
        let trio = Trio::open(part, case);
        trio.waiting();
        let Trio { living, gone, sender, .. } = &trio;
        gone.net.close_send(gone.send).expect("closeSend");
        gone.net.close_recv(gone.receive).expect("closeRecv");
        let (send, receive) = connect(&living.ends[1], sender);
        trio.all_pass();
        living.net.close_recv(receive).expect("closeRecv");
        living.close_comms();
        let arrived = (0..POLLS).any(|_| {
            living.ends.iter().for_each(End::poll);
            living.net.isend(send, 0, 0, 0, living.from).is_err()
        });
        assert!(arrived, "the farewell of a connection with another peer");
        living.net.close_send(send).expect("closeSend");
        // What the sender could not post leaks nothing.
        trio.close();
    });
}

/// A connection that fails with a part in flight drops its backlog. Other connections to the same peer fail with it.
#[test]
fn the_backlog_of_a_failed_connection_is_dropped() {
    play_each(&["cxi 1", "efa 1", "adversary 1"], &[provider()], BOUND, |part, case| {
        let trio = Trio::open(part, case);
        let (fabric, failing) = (trio.world.fabric, &trio.gone);
        let other = Link::open(trio.world, failing.ends);
        other.warm();
        let received = [0, 2000].map(|at| failing.irecv(at, 2000, 0));
        let there = other.irecv(0, 2000, 0);
        failing.settle();
        fabric.fault_next("fail", 1000);
        let first = failing.isend(0, 1000, 0).expect("its receive is advertised");
        trio.change("shut");
        let second = failing.isend(1000, 1000, 0).expect("its receive is advertised");
        let passes = other.isend(500, 1000, 0).expect("its receive is advertised");
        let failed = (0..POLLS).find_map(|_| failing.net.test(first).err());
        assert!(failed.expect("it failed").said[0].contains("a write of data"));
        assert_eq!(fabric.number("counter.faults.fail"), 1);
        trio.change("open");
        for request in [there, passes] {
            wait("its channel has failed", || {
                other.ends.iter().for_each(End::poll);
                other.net.test(request) != Ok(None)
            });
        }
        failing.poll();
        assert!(failing.into.read(2000, 1000) == [0; 1000], "it was never posted");
        for request in received.into_iter().chain([second]) {
            assert!(!matches!(failing.net.test(request), Ok(Some(_))), "it is not done");
        }
        [&trio.living, failing, &other].into_iter().for_each(Link::close_comms);
        trio.close();
    });
}

/// The same where a post has failed, which the periodic check of peers detects.
#[test]
fn the_backlog_of_one_rail_is_dropped_when_a_post_fails_on_another() {
    play_each(&["efa 2", "adversary 2"], &[provider()], BOUND, |part, case| {
        set("IRONRAIL_FAILOVER", "0");
        let trio = Trio::open(part, case);
        let (fabric, failing) = (trio.world.fabric, &trio.gone);
        for at in [2000, 0] {
            failing.irecv(at, 2000, 0);
        }
        failing.settle();
        trio.change("shut");
        // Messages alternate between the rails, and only the other one has room.
        failing.isend(0, 1000, 0).expect("its receive is advertised");
        fabric.fault_next("reject", 1000);
        let second = failing.isend(1000, 1000, 0).expect("its receive is advertised");
        assert_eq!(fabric.number("counter.faults.reject"), 1);
        assert!(failing.net.test(second).is_err(), "it was not posted");
        wait("the first is given up", || {
            let before = trio.refused();
            (0..POLLS).for_each(|_| trio.sender.poll());
            trio.refused() == before
        });
        trio.change("open");
        failing.poll();
        assert!(failing.into.read(2000, 1000) == [0; 1000], "it was never posted");
        [&trio.living, failing].into_iter().for_each(Link::close_comms);
        trio.close();
    });
}

/// Software completes a write before its bytes have left, so a farewell overtakes it. A receive behind the last message fails once that has
/// arrived: at the next check of the clock, which is made once in many polls.
#[test]
fn a_receive_behind_the_last_message_fails_when_that_has_come() {
    play_each(&["tcp"], &[provider()], BOUND, |part, profile| {
        let link = Link::between_ends(part, profile, 1, "");
        link.warm();
        let [last, behind] = [0, 2000].map(|at| link.irecv(at, 2000, 0));
        link.settle();
        link.fabric.delay_next(DELAY);
        link.isend(0, 2000, 0).expect("its receive is advertised");
        link.net.close_send(link.send).expect("closeSend");
        link.poll();
        for request in [last, behind] {
            assert_eq!(link.net.test(request), Ok(None), "the message is on its way");
        }
        let ask = |request| {
            link.ends.iter().for_each(End::poll);
            link.net.test(request)
        };
        let came = (0..DELAY).find_map(|_| ask(last).expect("it comes"));
        assert_eq!((came, link.has(0, 0, 2000)), (Some(2000), true));
        let failed = (0..POLLS).find_map(|_| ask(behind).err());
        assert!(failed.expect("it never comes").said[0].contains("has closed the connection"));
        assert_eq!(link.fabric.number("counter.faults.delay"), 1);
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close();
    });
}
