//! Calls that no caller should make: with objects that are gone, memory that is not registered, impossible sizes.

use harness::Test;
use net_abi::ResultCode;

use crate::support::calls::{Buffer, Net, Object, warned};
use crate::support::link::{Link, SLOT, wait};
use crate::support::say;
use crate::support::stage::play;
use crate::{BOUND, SETTINGS, open, refused};

const INVALID: ResultCode = ResultCode::INVALID_ARGUMENT;
const GONE: &str = "not open";

/// Begins a message in each direction.
fn begin(net: Net, link: &Link, len: usize) -> (Object, Object) {
    let (mut sent, mut received) = (None, None);
    wait("a message to be posted", || {
        let receive = || net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
        received = received.or_else(|| receive().expect("irecv"));
        let send = || net.isend(link.send, link.out.slot(0), len, 0, link.out.region);
        sent = sent.or_else(|| send().expect("isend"));
        sent.is_some() && received.is_some()
    });
    (sent.expect("posted"), received.expect("posted"))
}

fn finish(net: Net, requests: [Object; 2]) {
    for request in requests {
        wait("a message to be done", || net.test(request).expect("test").is_some());
    }
}

fn a_request_that_is_finished_is_refused_however_often_its_place_is_used_again() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (sent, received) = begin(net, &link, 8);
        finish(net, [sent, received]);
        for _ in 0..40 {
            refused(net.test(sent), INVALID, "request");
            refused(net.test(received), INVALID, "request");
            // Others are in flight, in the places of the old ones.
            let (sent_now, received_now) = begin(net, &link, 8);
            refused(net.test(sent), INVALID, "request");
            refused(net.test(received), INVALID, "request");
            finish(net, [sent_now, received_now]);
            link.exchange(7, 100).expect("it works");
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn closed_objects_are_refused_by_every_call() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let gone = Link::to_self(net, context);
        let (sent, received) = begin(net, &gone, 8);
        let (out, input) = (gone.out, gone.input);
        let everything_is_refused = |context: Option<Object>| {
            refused(net.isend(gone.send, out.slot(0), 8, 0, out.region), INVALID, GONE);
            refused(net.irecv(gone.receive, input.slot(0), 8, 0, input.region), INVALID, GONE);
            refused(net.test(sent), INVALID, GONE);
            refused(net.test(received), INVALID, GONE);
            refused(net.close_send(gone.send), INVALID, GONE);
            refused(net.close_recv(gone.receive), INVALID, GONE);
            refused(net.deregister(gone.send, out.region), INVALID, GONE);
            refused(net.deregister(gone.receive, input.region), INVALID, GONE);
            refused(net.register(gone.send, out.buffer), INVALID, GONE);
            if let Some(context) = context {
                refused(net.listen(context, 0), INVALID, GONE);
                refused(net.finalize(context), INVALID, GONE);
            }
        };
        net.deregister(gone.send, out.region).expect("deregMr");
        net.deregister(gone.receive, input.region).expect("deregMr");
        net.close_send(gone.send).expect("close");
        net.close_recv(gone.receive).expect("close");
        everything_is_refused(None);
        // The slots are reused, and the old names are still refused.
        let mut others: Vec<_> = (0..3).map(|_| Link::to_self(net, context)).collect();
        everything_is_refused(None);
        others.iter_mut().for_each(Link::works);
        everything_is_refused(None);
        link.works();
        net.finalize(context).expect("finalize");
        everything_is_refused(Some(context));
        // They are refused in the next communicator too.
        for _ in 0..3 {
            let next = net.init().expect("init");
            let mut links: Vec<_> = (0..5).map(|_| Link::to_self(net, next)).collect();
            everything_is_refused(Some(context));
            links.iter_mut().for_each(Link::works);
            net.finalize(next).expect("finalize");
        }
    });
}

fn a_flush_ends_with_its_comm() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let gone = Link::to_self(net, context);
        let flush = |link: &Link| {
            // Long enough for the rails to carry it.
            finish(net, begin(net, link, SLOT).into());
            net.iflush(link.receive, link.input.slot(0), SLOT, link.input.region).expect("iflush")
        };
        let Some(first) = flush(&gone) else {
            return say("the provider has nothing to flush");
        };
        // None of them is tested, as after an abort.
        let more = || {
            let (slot, region) = (gone.input.slot(0), gone.input.region);
            net.iflush(gone.receive, slot, SLOT, region)
        };
        while more().is_ok() {}
        net.close_recv(gone.receive).expect("closeRecv");
        refused(net.test_flush(first), INVALID, GONE);
        let next = flush(&link).expect("there is room again");
        wait("the flush", || net.test_flush(next).expect("test"));
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn objects_of_one_kind_are_refused_as_another() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (_, listener) = net.listen(context, 0).expect("listen");
        let garbage = [1, 2, 0xdead_beef, usize::MAX, usize::MAX >> 1].map(Object);
        let region = link.out.region;
        let all = [context, listener, link.send, link.receive, region].into_iter().chain(garbage);
        for object in all {
            if object != link.send {
                refused(net.isend(object, link.out.slot(0), 8, 0, region), INVALID, "");
                refused(net.close_send(object), INVALID, "");
            }
            if object != link.receive {
                refused(net.irecv(object, link.input.slot(0), 8, 0, region), INVALID, "");
                refused(net.close_recv(object), INVALID, "");
            }
            if object != listener {
                refused(net.accept(object), INVALID, "");
                refused(net.close_listen(object), INVALID, "");
            }
            if object != region {
                refused(net.isend(link.send, link.out.slot(0), 8, 0, object), INVALID, "");
                refused(net.deregister(link.send, object), INVALID, "");
            }
            if object != context {
                refused(net.listen(object, 0), INVALID, "");
                refused(net.connect(object, 0, &mut [0; 128]), INVALID, "");
                refused(net.finalize(object), INVALID, "");
            }
            refused(net.test(object), INVALID, "");
        }
        for device in [-1, i32::MIN, 1, 127, i32::MAX] {
            refused(net.listen(context, device), INVALID, "device");
            refused(net.connect(context, device, &mut [0; 128]), INVALID, "device");
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn null_is_no_memory_handle_to_deregister_and_no_comm_to_close() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let nothing = Object(0);
        let before = warned();
        for comm in [link.send, link.receive] {
            net.deregister(comm, nothing).expect("deregMr");
        }
        net.close_send(nothing).expect("closeSend");
        net.close_recv(nothing).expect("closeRecv");
        net.close_listen(nothing).expect("closeListen");
        assert_eq!(warned(), before);
        refused(net.finalize(nothing), INVALID, "");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn bytes_outside_of_a_registered_buffer_are_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (start, len) = (link.out.buffer.address(), link.out.buffer.len);
        for (address, bytes) in outside_of(start, len) {
            let answer = net.isend(link.send, address, bytes, 0, link.out.region);
            refused(answer, INVALID, "outside of the registered buffer");
        }
        refused(net.isend(link.send, 0, 8, 0, link.out.region), INVALID, "null");
        let (start, len) = (link.input.buffer.address(), link.input.buffer.len);
        for (address, bytes) in outside_of(start, len) {
            let answer = net.irecv(link.receive, address, bytes, 0, link.input.region);
            refused(answer, INVALID, "outside of the registered buffer");
        }
        for (address, bytes) in [(start, 0), (0, 8), (start, usize::MAX), (usize::MAX, 2)] {
            refused(net.register_at(link.send, address, bytes), INVALID, "");
        }
        // The address space is limited, and has no pages there.
        let high = net.register_at(link.send, 1 << 62, 4096);
        if let Ok(region) = high {
            net.deregister(link.send, region).expect("deregMr");
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn impossible_sizes_and_groups_are_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        for count in [0, -1, i32::MIN, 9, 64] {
            let slot = link.input.slot(0);
            let answer = net.irecv_group(link.receive, count, slot, 8, 0, link.input.region);
            refused(answer, INVALID, "receives");
        }
        link.works();
        net.init_v8().expect("init");
        for len in [-1, i32::MIN] {
            refused(
                net.isend_v8(link.send, link.out.slot(0), len, link.out.region),
                INVALID,
                "negative",
            );
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn a_message_longer_than_its_receive_fails_both_ends_of_its_connection_alone() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let wrong = Link::to_self(net, context);
        let receive = net.irecv(wrong.receive, wrong.input.slot(0), 50, 0, wrong.input.region);
        let receive = receive.expect("irecv").expect("there is room");
        let (mut sent, mut received) = (None, None);
        wait("both errors", || {
            let send = || net.isend(wrong.send, wrong.out.slot(0), 100, 0, wrong.out.region);
            sent = sent.take().or_else(|| send().err());
            received = received.take().or_else(|| net.test(receive).err());
            sent.is_some() && received.is_some()
        });
        for failure in [sent, received].map(|failure| failure.expect("just seen")) {
            assert_eq!(failure.code, ResultCode::INVALID_USAGE, "{failure:?}");
            assert!(
                failure.said[0].contains("100") && failure.said[0].contains("50"),
                "{failure:?}"
            );
        }
        link.works();
        wrong.close();
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn requests_to_a_peer_that_has_closed_are_errors() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (first, second) = (Link::to_self(net, context), Link::to_self(net, context));
        net.close_send(first.send).expect("close");
        net.close_recv(second.receive).expect("close");
        let (mut receive, mut send) = (None, None);
        wait("both errors", || {
            let (to, from) = (first.input, second.out);
            receive = receive
                .take()
                .or_else(|| net.irecv(first.receive, to.slot(0), 8, 0, to.region).err());
            send = send
                .take()
                .or_else(|| net.isend(second.send, from.slot(0), 8, 0, from.region).err());
            receive.is_some() && send.is_some()
        });
        for failure in [receive, send].map(|failure| failure.expect("just seen")) {
            assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
            assert!(failure.said[0].contains("has closed the connection"), "{failure:?}");
        }
        link.works();
        net.close_recv(first.receive).expect("close");
        net.close_send(second.send).expect("close");
        net.finalize(context).expect("finalize");
    });
}

fn a_buffer_that_is_never_deregistered_is_harmless() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let buffer = Buffer::new(1 << 16);
        for _ in 0..100 {
            net.register(link.send, buffer).expect("regMr");
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

/// Buffers that are not, or not entirely, within these `len` bytes.
fn outside_of(start: usize, len: usize) -> [(usize, usize); 9] {
    [
        (start - 1, 8),
        (start - 8, 8),
        (start, len + 1),
        (start + len - 7, 8),
        (start + len, 1),
        (start, usize::MAX),
        (start + 1, usize::MAX - start),
        (usize::MAX, 8),
        (8, 8),
    ]
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_request_that_is_finished_is_refused_however_often_its_place_is_used_again),
        Test::new(closed_objects_are_refused_by_every_call),
        Test::new(a_flush_ends_with_its_comm),
        Test::new(objects_of_one_kind_are_refused_as_another),
        Test::new(null_is_no_memory_handle_to_deregister_and_no_comm_to_close),
        Test::new(bytes_outside_of_a_registered_buffer_are_refused),
        Test::new(impossible_sizes_and_groups_are_refused),
        Test::new(a_message_longer_than_its_receive_fails_both_ends_of_its_connection_alone),
        Test::new(requests_to_a_peer_that_has_closed_are_errors),
        Test::new(a_buffer_that_is_never_deregistered_is_harmless),
    ]
}
