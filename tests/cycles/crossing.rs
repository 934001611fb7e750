//! Two ends that connect to each other at the same time, repeatedly: one stays, the other is a new one each time.

use crate::support::calls::{Net, Object};

pub(crate) fn cross(net: Net, rounds: usize) {
    let lasting = net.init().expect("init");
    for round in 0..rounds {
        let contexts = [lasting, net.init().expect("init")];
        let [lasts, new] = contexts.map(|context| net.listen(context, 0).expect("listen"));
        let (mut asked, listeners) = ([new.0, lasts.0], [lasts.1, new.1]);
        let mut comms: [[Option<Object>; 2]; 2] = [[None; 2]; 2];
        // The first one has polled once before the other one begins.
        let order = [round % 2, 1 - round % 2];
        for call in 0..CALLS_MAX {
            for end in order {
                let [send, receive] = &mut comms[end];
                if send.is_none() {
                    *send = net.connect(contexts[end], 0, &mut asked[end]).expect("connect");
                }
                if call > 0 && receive.is_none() {
                    *receive = net.accept(listeners[end]).expect("accept");
                }
            }
            if comms.as_flattened().iter().all(Option::is_some) {
                break;
            }
        }
        for (comms_of, listener) in comms.into_iter().zip(listeners) {
            let [Some(send), Some(receive)] = comms_of else {
                panic!("round {round}: after {CALLS_MAX} calls the ends have {comms:?}");
            };
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
            net.close_listen(listener).expect("closeListen");
        }
        net.finalize(contexts[1]).expect("finalize");
    }
    net.finalize(lasting).expect("finalize");
}

/// More is a hang.
const CALLS_MAX: u32 = 100_000;
