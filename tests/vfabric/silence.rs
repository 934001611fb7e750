//! Nothing that was reported done needs another call: in profile tcp an operation's bytes wait for one more poll of whoever
//! was told of its completion.

use std::time::{Duration, Instant};

use crate::support::calls::{Buffer, Net, Object};
use crate::support::stage::play;
use crate::support::virtual_fabric::set;
use crate::world::{End, World, connect, provider};

/// What a play may take on a machine that is busy with others.
const BOUND: Duration = Duration::from_secs(60);
/// What a wait that ends by its bound may take, the bound of 200 ms included.
const WAIT: Duration = Duration::from_secs(10);
/// More calls without an answer are a hang.
const CALLS_MAX: u32 = 10_000;

#[test]
fn a_receiver_is_silent_after_its_last_receive_and_its_sender_is_told() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [2, 2]);
        let (ends, link) = Link::open(world);
        for _ in 0..20 {
            let (sent, received) = link.post();
            let reported = (0..CALLS_MAX).any(|_| {
                link.net.test(sent).expect("a send");
                link.net.test(received).expect("a receive").is_some()
            });
            assert!(reported);
            // Nobody calls the receiver from here on.
            assert!(
                is_done(link.net, sent),
                "the sender waits for a done that stays with the receiver"
            );
        }
        link.close(ends);
        world.fabric.is_clean();
    });
}

#[test]
fn a_sender_is_silent_after_its_last_send_and_its_receiver_has_it() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [2, 2]);
        let (ends, link) = Link::open(world);
        for _ in 0..20 {
            let (sent, received) = link.post();
            let mut told = false;
            let reported = (0..CALLS_MAX).any(|_| {
                told = told || link.net.test(received).expect("a receive").is_some();
                link.net.test(sent).expect("a send").is_some()
            });
            assert!(reported);
            assert!(
                told || is_done(link.net, received),
                "the receiver waits for a message that is said to be there"
            );
        }
        link.close(ends);
        world.fabric.is_clean();
    });
}

/// Whoever accepts may be silent, too, until the first receive.
#[test]
fn a_receiver_is_silent_after_accept_and_its_sender_is_answered() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [1, 1]);
        let ends = world.nets.map(End::open);
        let (mut handle, listener) = ends[1].net.listen(ends[1].context, 0).expect("listen");
        let mut connect = || ends[0].net.connect(ends[0].context, 0, &mut handle).expect("connect");
        let receive = loop {
            assert_eq!(connect(), None, "nobody has accepted");
            if let Some(receive) = ends[1].net.accept(listener).expect("accept") {
                break receive;
            }
        };
        let send =
            (0..CALLS_MAX).find_map(|_| connect()).expect("the answer stays with the receiver");
        ends[1].net.close_listen(listener).expect("closeListen");
        ends[0].net.close_send(send).expect("closeSend");
        ends[1].net.close_recv(receive).expect("closeRecv");
        ends.into_iter().for_each(End::close);
        world.fabric.is_clean();
    });
}

/// A done that does not leave holds the last receive back, but not for ever.
#[test]
fn a_done_that_cannot_leave_is_waited_for_within_a_bound() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let world = World::open(part, "adversary", [1, 1]);
        let (ends, link) = Link::open(world);
        let (sent, received) = link.post();
        // It has landed, and nobody has told the receiver yet.
        let landed = (0..CALLS_MAX).any(|_| {
            ends[0].turn();
            world.fabric.number("open.operations") == 0
        });
        assert!(landed);
        world.fabric.change(0, "stall");
        let (start, mut waits) = (Instant::now(), 0_u32);
        while link.net.test(received).expect("a receive").is_none() {
            assert!(start.elapsed() < WAIT, "the last receive is never reported");
            waits += 1;
        }
        assert!(waits > 0, "it was reported while its done was here");
        assert!(world.fabric.number("open.operations") > 0, "its done has left");
        world.fabric.change(0, "resume");
        assert!(is_done(link.net, sent));
        link.close(ends);
        world.fabric.is_clean();
    });
}

fn is_done(net: Net, request: Object) -> bool {
    (0..CALLS_MAX).any(|_| net.test(request).expect("test").is_some())
}

/// A connection between two ends, and the buffers of one message.
struct Link {
    net: Net,
    send: Object,
    receive: Object,
    out: (Buffer, Object),
    into: (Buffer, Object),
}

impl Link {
    fn open(world: World) -> ([End; 2], Self) {
        let ends = world.nets.map(End::open);
        let (send, receive) = connect(&ends[0], &ends[1]);
        let net = world.nets[0];
        let registered = |comm| {
            let buffer = Buffer::new(LEN);
            (buffer, net.register(comm, buffer).expect("regMr"))
        };
        (ends, Self { net, send, receive, out: registered(send), into: registered(receive) })
    }

    /// Both requests of one message.
    fn post(&self) -> (Object, Object) {
        let Self { net, send, receive, out, into } = *self;
        let received = net.irecv(receive, into.0.address(), LEN, 0, into.1).expect("irecv");
        let received = received.expect("the window is empty");
        let sent = (0..CALLS_MAX).find_map(|_| {
            // The advert may need another poll to leave.
            assert_eq!(net.test(received).expect("a receive"), None);
            net.isend(send, out.0.address(), LEN, 0, out.1).expect("isend")
        });
        (sent.expect("the receive is advertised"), received)
    }

    fn close(self, ends: [End; 2]) {
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
        ends.iter().cycle().take(400).for_each(End::turn);
        ends.into_iter().for_each(End::close);
    }
}

/// Longer than what is injected.
const LEN: usize = 16 << 10;
