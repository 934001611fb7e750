//! Messages longer than their receives: since v9 an error at both ends that contains both sizes, up to v8 truncated with one warning; in no
//! case is a byte written past the receive.

use harness::Test;
use net_abi::ResultCode;

use crate::support::calls::{Failure, Object, warnings};
use crate::support::link::{Link, wait};
use crate::support::stage::play;
use crate::{BOUND, SETTINGS, open};

const SENT: usize = 40_000;
const POSTED: usize = 1000;

fn a_message_longer_than_its_receive_is_an_error_of_both_ends_that_names_both_sizes() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut other = Link::to_self(net, context);
        let link = Link::to_self(net, context);
        let (out, input) = (link.out, link.input);
        input.buffer.write(0, &[0x5a; SENT]);
        let posted = net.irecv(link.receive, input.slot(0), POSTED, 0, input.region);
        let received = posted.expect("irecv").expect("a request");
        let (mut sent, mut sender, mut receiver) = (None, None, None);
        wait("both ends to err", || {
            if sent.is_none() && sender.is_none() {
                match net.isend(link.send, out.slot(0), SENT, 0, out.region) {
                    Ok(request) => sent = request,
                    Err(failure) => sender = Some(failure),
                }
            }
            sender = sender.take().or_else(|| sent.and_then(|sent| net.test(sent).err()));
            receiver = receiver.take().or_else(|| net.test(received).err());
            sender.is_some() && receiver.is_some()
        });
        for failure in [sender.expect("erred"), receiver.expect("erred")] {
            names_both(&failure);
        }
        assert_eq!(input.buffer.read(POSTED, SENT - POSTED), [0x5a; SENT - POSTED]);
        other.works();
        net.finalize(context).expect("finalize");
    });
}

#[track_caller]
fn names_both(failure: &Failure) {
    assert_eq!(failure.code, ResultCode::INVALID_USAGE, "{failure:?}");
    let said = failure.said.join(" ");
    assert!(said.contains("40000") && said.contains("1000"), "{failure:?}");
}

fn a_message_longer_than_a_receive_of_v8_is_cut_with_one_warning() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (out, input) = (link.out, link.input);
        for round in 0..5_u8 {
            out.buffer.write(0, &[round; SENT]);
            input.buffer.write(0, &[0x5a; SENT]);
            let (posted, len) =
                (i32::try_from(POSTED).expect("few"), i32::try_from(SENT).expect("short"));
            let receive = net.irecv_v8(link.receive, input.slot(0), posted, input.region);
            let received = receive.expect("irecv").expect("a request");
            let mut sent: Option<Object> = None;
            wait("a place for the message", || {
                sent = net.isend_v8(link.send, out.slot(0), len, out.region).expect("isend");
                sent.is_some()
            });
            let mut size = None;
            wait("what is left of the message", || {
                size = net.test(received).expect("test");
                size.is_some()
            });
            assert_eq!(size, Some(POSTED));
            wait("the send", || net.test(sent.expect("posted")).expect("test").is_some());
            assert_eq!(input.buffer.read(0, POSTED), [round; POSTED]);
            assert_eq!(input.buffer.read(POSTED, SENT - POSTED), [0x5a; SENT - POSTED]);
        }
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        let said = &warnings()[0];
        assert!(said.contains("40000") && said.contains("1000"), "{said}");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_message_longer_than_its_receive_is_an_error_of_both_ends_that_names_both_sizes),
        Test::new(a_message_longer_than_a_receive_of_v8_is_cut_with_one_warning),
    ]
}
