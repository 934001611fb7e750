//! A peer that has connected properly, and writes what no peer would into the inbox lent to it.

use harness::Test;
use net_abi::ResultCode;
use proto::frame::{Fin, FinStatus, Inline};
use proto::{Frame, PacketNumber};
use proto::{Line, RailSet};

use crate::garbage::{Door, ONE_RAIL};
use crate::support::calls::{Net, Object};
use crate::support::link::{Link, Memory, wait};
use crate::support::say;
use crate::support::stage::{play, play_each};
use crate::support::stranger::{Peer, words_of};
use crate::{BOUND, not_over, open};

/// The bytes of the posted receive.
const POSTED: usize = 64;
const WORD: u64 = 0x4141_4141_4141_4141;

/// The forgeries, and what the log says about each; None: it is dropped without effect.
const FORGERIES: &[(&str, Option<&str>)] = &[
    ("a kind that is none", Some("a kind that the protocol does not have")),
    ("a frame that ends early", Some("ends early")),
    ("bits without a meaning", Some("undefined bits set")),
    ("an acknowledgement of what was never sent", Some("what was never sent")),
    ("a frame behind the last one", Some("after its last one")),
    ("a done of a sender", Some("the other direction")),
    ("a line without a receive", Some("a line that is not open")),
    ("an inline message longer than its receive", Some("100 bytes")),
    ("a fin of more than the receive", Some("65 bytes into a receive of 64")),
    ("a check that does not hold", None),
    ("a length past the ring", None),
    ("a number that is not the next", None),
];

fn forged_packets_fail_their_connection_with_the_cause_or_are_dropped() {
    let names: Vec<&str> = FORGERIES.iter().map(|(name, _)| *name).collect();
    play_each(&names, ONE_RAIL, BOUND, |part, name| {
        say(name);
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (mut peer, comm) = Door::open(net, context).connected();
        let memory = Memory::new(net, comm);
        let posted = net.irecv(comm, memory.slot(0), POSTED, 0, memory.region).expect("irecv");
        let request = posted.expect("the window has room");
        forge(&mut peer, name);
        let said = FORGERIES.iter().find(|(forged, _)| *forged == name).and_then(|(_, said)| *said);
        match said {
            Some(said) => fails(net, request, &peer, said),
            None => {
                for _ in 0..2000 {
                    peer.stranger.poll();
                    assert_eq!(net.test(request), Ok(None), "{name}");
                }
            }
        }
        link.works();
        // The peer cannot answer what is in flight.
        drop(net.deregister(comm, memory.region));
        net.close_recv(comm).expect("close");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

/// The request fails, and reports that once.
fn fails(net: Net, request: Object, peer: &Peer, said: &str) {
    let mut failure = None;
    wait("an error", || {
        peer.stranger.poll();
        failure = net.test(request).err();
        failure.is_some()
    });
    let failure = failure.expect("just seen");
    let codes = [ResultCode::REMOTE_ERROR, ResultCode::INVALID_USAGE];
    assert!(codes.contains(&failure.code), "{failure:?}");
    let text = failure.said.join(" ");
    assert!(
        text.contains("receiving from rank 0, process 1 on nowhere") && text.contains(said),
        "{text}"
    );
    assert_eq!(net.test(request).expect_err("still").said, [""; 0]);
}

fn forge(peer: &mut Peer, what: &str) {
    let (to, first) = (peer.to(), Line::new(0));
    match what {
        "a kind that is none" => peer.packet(&[0xf]),
        "a frame that ends early" => {
            let fin = words_of(Frame::Fin(Fin {
                to,
                line: first,
                len: 8,
                rails: RailSet::NONE,
                status: FinStatus::Delivered,
            }));
            peer.packet(&fin[..1]);
        }
        "bits without a meaning" => {
            let mut end = words_of(Frame::End);
            end[0] |= 1 << 40;
            peer.packet(&end);
        }
        "an acknowledgement of what was never sent" => {
            peer.packet_that_acknowledges(PacketNumber::new(1000), &[]);
        }
        "a frame behind the last one" => {
            let both = [words_of(Frame::End), words_of(Frame::End)];
            peer.packet(&both.concat());
        }
        "a done of a sender" => peer.frame(Frame::Done { to, lines: first }),
        "a line without a receive" => {
            let inline =
                Inline { to, line: Line::new(9), advertised: true, tag: 0, base: first, len: 8 };
            peer.packet(&[words_of(Frame::Inline(inline)), vec![WORD]].concat());
        }
        "an inline message longer than its receive" => {
            let mut words = peer.inline(0, &[WORD; 13]);
            words[1] = words[1] & !0xffff | 100;
            peer.packet(&words);
        }
        "a fin of more than the receive" => {
            peer.frame(Frame::Fin(Fin {
                to,
                line: first,
                len: 65,
                rails: RailSet::NONE,
                status: FinStatus::Delivered,
            }));
        }
        "a check that does not hold" => peer.write_at(peer.next_at(), &[1, 2 | 32 << 32, 0, WORD]),
        "a length past the ring" => {
            let number = u64::from(peer.next_number());
            peer.write_at(peer.next_at(), &[1, number | 0xffff_fff8 << 32, 0, WORD]);
        }
        "a number that is not the next" => {
            peer.skip();
            peer.frame(Frame::End);
        }
        other => panic!("{other}"),
    }
}

fn a_peer_that_wipes_the_inbox_that_it_was_lent_frees_no_memory_that_adverts_lend() {
    play(ONE_RAIL, BOUND, |part| {
        let (net, context) = open(part);
        let (peer, comm) = Door::open(net, context).connected();
        let memory = Memory::new(net, comm);
        let posted = net.irecv(comm, memory.slot(0), 8192, 0, memory.region).expect("irecv");
        let request = posted.expect("the window has room");
        // The poll sends the advert.
        assert!(net.test(request).expect("it is posted").is_none());
        peer.wipe();
        let error =
            net.deregister(comm, memory.region).expect_err("the peer may still write there");
        assert!(error.said.iter().any(|line| line.contains("stay registered")), "{error:?}");
        net.close_recv(comm).expect("close");
        net.finalize(context).expect("finalize");
    });
}

/// Adverts leave with a later poll: one of memory that was deregistered before must not.
fn a_receive_that_no_advert_lends_yet_ends_with_its_memory() {
    play(ONE_RAIL, BOUND, |part| {
        let (net, context) = open(part);
        let (_peer, comm) = Door::open(net, context).connected();
        let memory = Memory::new(net, comm);
        let posted = net.irecv(comm, memory.slot(0), 8192, 0, memory.region).expect("irecv");
        let request = posted.expect("the window has room");
        net.deregister(comm, memory.region).expect("no peer knows of the memory");
        let failed = net.test(request).expect_err("its memory is gone");
        assert!(failed.said.iter().any(|line| line.contains("deregistered")), "{failed:?}");
        net.close_recv(comm).expect("close");
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(forged_packets_fail_their_connection_with_the_cause_or_are_dropped)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(a_peer_that_wipes_the_inbox_that_it_was_lent_frees_no_memory_that_adverts_lend)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(a_receive_that_no_advert_lends_yet_ends_with_its_memory)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
    ]
}
