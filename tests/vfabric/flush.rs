//! A flush reads once on each rail that brought bytes, however often its reads are refused, and ends though they hang.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::{Buffer, Object};
use crate::support::stage::play;
use crate::support::virtual_fabric::set;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
const MESSAGES: usize = 40;
const BYTES: usize = 8 << 10;
const RAILS: usize = 3;
/// More tests of a request that is not done are a hang.
const TESTS_MAX: u32 = 10_000;
/// Far more than the timeout, on a busy machine.
const HANG: Duration = Duration::from_secs(20);

#[test]
fn a_refused_read_is_neither_lost_nor_repeated() {
    play(&[provider()], BOUND, |part| {
        // Every message goes over all rails.
        set("IRONRAIL_STRIPE_MIN", "1K");
        let World { nets: [net, _], fabric } = World::open(part, "efa", [RAILS, RAILS]);
        let mut read = 0;
        for eagain in [0, 300, 800] {
            fabric.configure(&format!("profile=efa nics=16 eagain={eagain}"));
            let end = End::open(net);
            let (send, receive) = connect(&end, &end);
            let (out, into) = (Buffer::new(BYTES), Buffer::new(BYTES));
            let region = net.register(send, out).expect("regMr");
            let target = net.register(receive, into).expect("regMr");
            fabric.mark(into.address(), into.len);
            let posts = fabric.number("counter.posts.read");
            let bytes = fabric.number("counter.bytes.read");
            for message in 0..MESSAGES {
                let bytes = vec![u8::try_from(message + 1).expect("few"); BYTES];
                out.write(0, &bytes);
                let request = net.irecv(receive, into.address(), BYTES, 0, target).expect("irecv");
                let received = request.expect("the window is empty");
                let sent = (0..TESTS_MAX)
                    .find_map(|_| net.isend(send, out.address(), BYTES, 0, region).expect("isend"));
                let sent = sent.expect("the receive is advertised");
                done(|| net.test(received).expect("test").is_some());
                let flush = net.iflush(receive, into.address(), BYTES, target).expect("iflush");
                let flush = flush.expect("there is something to flush");
                done(|| net.test_flush(flush).expect("test"));
                assert!(into.read(0, BYTES) == bytes, "message {message} was not flushed");
                done(|| net.test(sent).expect("test").is_some());
            }
            let posts = fabric.number("counter.posts.read") - posts;
            let bytes = fabric.number("counter.bytes.read") - bytes;
            if eagain == 0 {
                assert_eq!(posts, (MESSAGES * RAILS) as u64);
                read = bytes;
            }
            // A refused post is counted, and reads nothing.
            assert_eq!(bytes, read, "bytes by {posts} posts, {eagain} of 1000 refused");
            let refused = fabric.number("counter.faults.refuse_random");
            assert_eq!(refused > 0, eagain > 0, "{refused} posts were refused");
            net.deregister(send, region).expect("deregMr");
            net.deregister(receive, target).expect("deregMr");
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
            fabric.mark(0, 0);
            end.close();
            fabric.is_clean();
        }
    });
}

/// A message over all rails, which has ended.
fn message(link: &Link, len: usize) {
    let received = link.irecv(0, len, 0);
    let poll = || link.ends.iter().for_each(End::poll);
    let sent = (0..TESTS_MAX).find_map(|_| {
        poll();
        link.isend(0, len, 0)
    });
    for request in [received, sent.expect("the receive is advertised")] {
        within(|| {
            poll();
            link.net.test(request).expect("test").is_some()
        });
    }
}

fn flush(link: &Link) -> Object {
    let flush = link.net.iflush(link.receive, link.into.address(), BYTES, link.to);
    flush.expect("iflush").expect("there is something to flush")
}

/// No other rail's read shows what that NIC has brought.
#[test]
fn a_read_that_hangs_is_an_error_with_the_name_of_its_rail() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "1K");
        set("IRONRAIL_MAX_CONTROL_RAILS", "1");
        set("IRONRAIL_PEER_TIMEOUT_MS", "1000");
        let world = World::open(part, "efa", [RAILS, RAILS]);
        let end = End::open(world.nets[0]);
        let link = Link::open(world, [end, end]);
        message(&link, BYTES);
        link.fabric.change(2, "stall");
        let flush = flush(&link);
        let start = Instant::now();
        let failure = loop {
            match link.net.test_flush(flush) {
                Err(failure) => break failure,
                Ok(done) => assert!(!done, "one read hangs"),
            }
            assert!(start.elapsed() < HANG, "it never ends");
        };
        let words = "a flush on vfabric vnic2 has not ended after 1000 ms";
        assert!(failure.said[0].contains(words), "{failure:?}");
        link.fabric.change(2, "resume");
        done(|| matches!(link.net.test_flush(flush), Ok(true)));
        link.close_comms();
        end.close();
        link.fabric.is_clean();
    });
}

/// The next flush reads on its rails, too, and the one after that on those alone that have brought bytes since.
#[test]
fn a_read_that_cannot_be_posted_is_an_error_of_iflush() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "1K");
        set("IRONRAIL_INLINE_MAX_SIZE", "0");
        let link = Link::between_ends(part, "efa", RAILS, "");
        message(&link, BYTES);
        link.fabric.fault_next("reject", 64);
        let flush = || link.net.iflush(link.receive, link.into.address(), BYTES, link.to);
        let failure = flush().expect_err("a read is rejected");
        assert!(failure.said[0].contains("fi_read"), "{failure:?}");
        assert_eq!(link.fabric.number("counter.faults.reject"), 1);
        for expected in [RAILS as u64, 1] {
            message(&link, 512);
            let reads = link.fabric.number("counter.posts.read");
            let flush = flush().expect("iflush").expect("there is something to flush");
            done(|| link.net.test_flush(flush).expect("test"));
            assert_eq!(link.fabric.number("counter.posts.read") - reads, expected);
        }
        link.close_all();
    });
}

/// A part hangs on the same NIC, so that its rail is lost and closed. Then nothing is under way there any more, and another one reads.
#[test]
fn a_flush_whose_rail_is_closed_reads_on_another() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "1K");
        set("IRONRAIL_MAX_CONTROL_RAILS", "1");
        let link = Link::between_ends(part, "efa", RAILS, "");
        message(&link, BYTES);
        link.fabric.change(2, "stall");
        let flush = flush(&link);
        assert_eq!(link.net.test_flush(flush), Ok(false), "one read hangs");
        let reads = link.fabric.number("counter.posts.read");
        message(&link, BYTES);
        within(|| {
            link.ends.iter().for_each(End::poll);
            link.net.test_flush(flush).expect("test")
        });
        assert_eq!(link.fabric.number("counter.posts.read") - reads, 1, "another rail reads");
        link.fabric.change(2, "resume");
        link.close_comms();
        link.close_ends();
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
    });
}

/// What came by it may be on its way to memory still.
#[test]
fn a_flush_of_bytes_from_a_rail_that_could_not_be_closed_fails() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "1K");
        set("IRONRAIL_PEER_TIMEOUT_MS", "1000");
        let world = World::open(part, "efa", [RAILS, RAILS]);
        let opened = world.fabric.number("opened.endpoints");
        let link = Link::open(world, world.nets.map(End::open));
        // Of each NIC first the data rail, then the control rail: NIC 1's data rails, of either end.
        for of_end in [0, 2 * RAILS as u64] {
            link.fabric.fault(&format!("stuck={}", opened + of_end + 3));
        }
        message(&link, BYTES);
        link.fabric.change(1, "stall");
        // Whether they end, and how, is not the point.
        let _received = link.irecv(0, BYTES, 0);
        within(|| {
            let _sent = link.net.isend(link.send, link.out.address(), BYTES, 0, link.from);
            link.ends.iter().for_each(End::poll);
            link.fabric.number("counter.faults.stuck") == 2
        });
        for _ in 0..2 {
            let flush = link.net.iflush(link.receive, link.into.address(), BYTES, link.to);
            let failure = flush.expect_err("no other NIC's read shows what that one has brought");
            assert!(failure.said[0].contains("a flush on device"), "{failure:?}");
        }
        link.fabric.change(1, "resume");
        link.close_comms();
        link.close_ends();
        assert_eq!(link.fabric.violations(), Vec::<String>::new());
    });
}

fn within(mut test: impl FnMut() -> bool) {
    let start = Instant::now();
    while !test() {
        assert!(start.elapsed() < HANG, "it never ends");
    }
}

fn done(mut test: impl FnMut() -> bool) {
    assert!((0..TESTS_MAX).any(|_| test()), "a request does not end");
}
