//! A child of fork(2), as data loaders are: it has a copy of the plugin's state, and its parent's NICs.

use harness::Test;
use net_abi::ResultCode;

use crate::support::fork::in_child;
use crate::support::link::{Link, SLOT, wait};
use crate::support::stage::play;
use crate::{BOUND, SETTINGS, open, refused};

const CODE: ResultCode = ResultCode::INVALID_USAGE;
const WORDS: &str = "was forked after NCCL was initialised";

fn every_call_of_a_forked_child_is_refused_and_its_parents_link_works() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        link.works();
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let (out, input) = (link.out, link.input);
        let receive = || net.irecv(link.receive, input.slot(0), SLOT, 0, input.region);
        let request = receive().expect("irecv").expect("nothing is outstanding");
        let calls = || {
            refused(net.isend(link.send, out.slot(0), 8, 0, out.region), CODE, WORDS);
            refused(receive(), CODE, WORDS);
            refused(
                net.irecv_group(link.receive, 2, input.slot(0), 8, 0, input.region),
                CODE,
                WORDS,
            );
            refused(net.iflush(link.receive, input.slot(0), 8, input.region), CODE, WORDS);
            refused(net.test(request), CODE, WORDS);
            refused(net.register(link.send, out.buffer), CODE, WORDS);
            refused(net.deregister(link.send, out.region), CODE, WORDS);
            refused(net.deregister(link.receive, input.region), CODE, WORDS);
            refused(net.close_send(link.send), CODE, WORDS);
            refused(net.close_recv(link.receive), CODE, WORDS);
            refused(net.accept(listener), CODE, WORDS);
            refused(net.close_listen(listener), CODE, WORDS);
            refused(net.listen(context, 0), CODE, WORDS);
            refused(net.connect(context, 0, &mut handle.clone()), CODE, WORDS);
            refused(net.devices(), CODE, WORDS);
            refused(net.pointer_support(0), CODE, WORDS);
            refused(net.finalize(context), CODE, WORDS);
            refused(net.init(), CODE, WORDS);
        };
        assert!(in_child(calls), "the child was not refused");
        let sent = net.isend(link.send, out.slot(0), 8, 0, out.region).expect("isend");
        let sent = sent.expect("a receive waits for it");
        for request in [sent, request] {
            wait("the message", || net.test(request).expect("test").is_some());
        }
        link.works();
        net.close_listen(listener).expect("closeListen");
        link.close();
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(every_call_of_a_forked_child_is_refused_and_its_parents_link_works)]
}
