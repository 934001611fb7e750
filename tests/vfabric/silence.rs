//! What was reported done needs no further call: in profile tcp an operation's bytes wait for one more poll of the side that has read its
//! completion.

use std::time::{Duration, Instant};

use crate::support::calls::{Buffer, Net, Object};
use crate::support::stage::{Part, play};
use crate::support::virtual_fabric::VirtualFabric;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
/// Far more than the keeper takes.
const WAIT: Duration = Duration::from_secs(30);

#[test]
fn a_receiver_is_silent_after_its_last_receive_and_its_send_completes() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [2, 2]);
        let (ends, link) = Link::open(world);
        for _ in 0..20 {
            let (sent, received) = link.post();
            assert!(within(|| {
                link.net.test(sent).expect("a send");
                link.net.test(received).expect("a receive").is_some()
            }));
            // The receiver makes no calls from here on.
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
            let mut completed = false;
            // A receive that is reported first makes the receiver silent, and the keeper brings what the sender waits for: time bounds it.
            assert!(within(|| {
                completed = completed || link.net.test(received).expect("a receive").is_some();
                link.net.test(sent).expect("a send").is_some()
            }));
            assert!(
                completed || is_done(link.net, received),
                "the receiver waits for a message that is said to be there"
            );
        }
        link.close(ends);
        world.fabric.is_clean();
    });
}

/// The accepting side may be silent, too, until the first receive.
#[test]
fn a_receiver_is_silent_after_accept_and_its_sender_is_answered() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "tcp", [1, 1]);
        let ends = world.nets.map(End::open);
        let (mut handle, listener) = ends[1].net.listen(ends[1].context, 0).expect("listen");
        let mut connect = || ends[0].net.connect(ends[0].context, 0, &mut handle).expect("connect");
        let receive = loop {
            assert_eq!(connect(), None, "the peer has not accepted");
            if let Some(receive) = ends[1].net.accept(listener).expect("accept") {
                break receive;
            }
        };
        let start = Instant::now();
        let send = loop {
            if let Some(send) = connect() {
                break send;
            }
            assert!(start.elapsed() < WAIT, "the answer stays with the receiver");
        };
        ends[1].net.close_listen(listener).expect("closeListen");
        ends[0].net.close_send(send).expect("closeSend");
        ends[1].net.close_recv(receive).expect("closeRecv");
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// What is sent only at another poll is sent by the keeper of the end that makes no calls.
fn is_done(net: Net, request: Object) -> bool {
    within(|| net.test(request).expect("test").is_some())
}

/// Whether it becomes true in time.
fn within(mut happened: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < WAIT {
        if happened() {
            return true;
        }
    }
    false
}

/// The receiver makes no more calls, and its keeper need not help.
#[test]
fn a_done_that_was_refused_once_leaves_before_the_last_receive_is_reported() {
    play(&[provider()], BOUND, |part| {
        let (fabric, ends, link, sent) = refused(part, 1, |refused, posts| {
            // On a busy machine the keeper acknowledges meanwhile.
            assert!(refused == 1 && posts > 1, "it is posted again: {posts} posts");
        });
        assert!(is_done(link.net, sent));
        link.close(ends);
        fabric.is_clean();
    });
}

/// The receiver's last message was reported while its DONE was refused, and it makes no more calls.
#[test]
fn a_done_that_was_refused_is_brought_by_the_keeper() {
    play(&[provider()], BOUND, |part| {
        let (fabric, ends, link, sent) = refused(part, REFUSED, |refused, posts| {
            assert!(refused == posts && (1..REFUSED).contains(&refused), "{refused} of {posts}");
        });
        assert_eq!(link.net.test(sent), Ok(None), "it has no DONE yet");
        assert!(is_done(link.net, sent), "its DONE stays with the receiver");
        assert_eq!(fabric.number("counter.faults.refuse"), REFUSED);
        link.close(ends);
        fabric.is_clean();
    });
}

/// A message whose receive is reported while the next `count` posts are refused, of which its DONE is the first. `check` gets how many posts
/// of the call that reported it were refused, and how many it has made.
fn refused(
    part: &Part,
    count: u64,
    check: impl FnOnce(u64, u64),
) -> (VirtualFabric, [End; 2], Link, Object) {
    // With one rail no DONE is needed.
    let world = World::open(part, "tcp", [2, 2]);
    let (fabric, (ends, link)) = (world.fabric, Link::open(world));
    // Rails connect with their first message.
    for _ in 0..4 {
        let (sent, received) = link.post();
        assert!(is_done(link.net, received) && is_done(link.net, sent));
    }
    fabric.settle(|| ends.iter().for_each(End::poll));
    let (sent, received) = link.post();
    // The sender has done its part, and only the receiver's polls are left.
    (0..POLLS).for_each(|_| ends[0].poll());
    let before = fabric.number("counter.posts");
    fabric.fault(&format!("refuse={}-{}", before + 1, before + count));
    assert!(is_done(link.net, received));
    let posts = fabric.number("counter.posts") - before;
    check(fabric.number("counter.faults.refuse"), posts);
    (fabric, ends, link, sent)
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
        let mut sent = None;
        assert!(within(|| {
            // The advert may need another poll to be sent.
            assert_eq!(net.test(received).expect("a receive"), None);
            sent = net.isend(send, out.0.address(), LEN, 0, out.1).expect("isend");
            sent.is_some()
        }));
        (sent.expect("the receive is advertised"), received)
    }

    fn close(self, ends: [End; 2]) {
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
        ends.iter().cycle().take(400).for_each(End::poll);
        close_together(ends);
    }
}

/// Longer than what is injected.
const LEN: usize = 16 << 10;
/// More polls than a write takes.
const POLLS: u32 = 500;
/// Posts that are refused: more than one call makes.
const REFUSED: u64 = 20;
