//! A peer that has connected as it should, and writes over the adverts that lend it memory.

use harness::Test;
use proto::{LineFormat, Window};

use crate::bundles::connected;
use crate::garbage::{Door, SETTINGS};
use crate::support::link::Memory;
use crate::support::stage::play;
use crate::{BOUND, not_over, open};

/// Rings of lines in one slab: the peer's own, for fins, is the last while there are few connections.
const UNITS: u64 = 64;
/// Words written at once.
const CHUNK: usize = 1024;

fn a_peer_that_wipes_the_adverts_frees_no_memory_that_they_lend() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let door = Door::open(net, context);
        let (comm, _, reply) = connected(net, &door);
        let memory = Memory::new(net, comm);
        let posted = net.irecv(comm, memory.slot(0), 64, 0, memory.region).expect("irecv");
        assert!(posted.is_some(), "the window has room");
        let unit = u64::from(Window::GROUPED.places()) * LineFormat::Words6.bytes() as u64;
        let mut address = reply.fins.address - (UNITS - 1) * unit;
        while address < reply.fins.address {
            let words = usize::try_from((reply.fins.address - address) / 8).expect("a slab");
            let words = &[0; CHUNK][..words.min(CHUNK)];
            door.stranger.write(door.peer, words, address, reply.fins.keys[0]);
            address += size_of_val(words) as u64;
        }
        let error =
            net.deregister(comm, memory.region).expect_err("the peer may still write there");
        assert!(error.said.iter().any(|line| line.contains("stay registered")), "{error:?}");
        net.close_recv(comm).expect("close");
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_peer_that_wipes_the_adverts_frees_no_memory_that_they_lend)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
    ]
}
