//! NCCL's threads: a service and a progress thread for each communicator, at once on the same comms.
//!
//! scripts/races runs valgrind's tools on the same program.

mod support;

use std::time::Duration;

use support::calls::{Buffer, Net};
use support::client;
use support::link::wait;
use support::stage::play;

#[test]
fn eight_communicators_of_two_threads_move_checked_data() {
    client::stress(8, 2, 100, &[("IRONRAIL_PROVIDER", "net")]);
}

#[test]
fn eight_communicators_of_two_threads_move_checked_data_over_messages() {
    client::stress(8, 1, 100, &[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]);
}

/// NCCL registers a buffer once for each comm that uses it, and one of those may close before the others.
#[test]
fn a_buffer_that_others_have_registered_too_is_not_waited_for() {
    const LEN: usize = 32 << 20;
    let settings = [("RAILS", "127.0.0.1"), ("PROVIDER", "net"), ("CLOSE_TIMEOUT_MS", "1000")];
    play(&settings, Duration::from_secs(60), |part| {
        let net = Net::open(&part.plugin());
        let (near, far) = (net.init().expect("init"), net.init().expect("init"));
        let (mut handle, listener) = net.listen(far, 0).expect("listen");
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect(near, 0, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        let (send, receive) = (send.expect("connected"), receive.expect("accepted"));
        let (out, into) = (Buffer::new(LEN), Buffer::new(LEN));
        let used = net.register(send, out).expect("regMr");
        let other = net.register(send, out).expect("regMr");
        let target = net.register(receive, into).expect("regMr");
        let received = net.irecv(receive, into.address(), LEN, 0, target).expect("irecv");
        let mut sent = None;
        wait("the advert", || {
            sent = net.isend(send, out.address(), LEN, 0, used).expect("isend");
            sent.is_some()
        });
        // The other endpoint makes no progress, so the message stays in flight, and a wait would end in a warning.
        net.deregister(send, other).expect("deregMr");
        let said = support::calls::warnings();
        assert!(said.is_empty(), "{said:?}");
        let (sent, received) = (sent.expect("sent"), received.expect("there is room"));
        let mut done = [false; 2];
        wait("the message", || {
            for (done, request) in done.iter_mut().zip([sent, received]) {
                *done = *done || net.test(request).expect("test").is_some();
            }
            done == [true; 2]
        });
        net.deregister(send, used).expect("deregMr");
        net.deregister(receive, target).expect("deregMr");
        for context in [near, far] {
            net.finalize(context).expect("finalize");
        }
    });
}
