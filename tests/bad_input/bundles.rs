//! A peer that has connected as it should, and writes into the ring that it was lent for bundles what no peer would.

use harness::Test;
use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES};
use proto::handshake::{Message, Ring};
use proto::wire::seal_line;
use proto::{Reply, Request};

use crate::garbage::{Door, PATIENCE, SETTINGS};
use crate::support::calls::{Net, Object};
use crate::support::link::{Link, Memory, wait};
use crate::support::stage::play;
use crate::{BOUND, not_over, open};

/// The form of a message in a bundle.
const BUNDLED: u64 = 5 << 24;

/// What the stranger was told.
struct Lent {
    nonce: u64,
    ring: Ring,
}

impl Lent {
    fn of(request: &Request, reply: &Reply) -> Self {
        let nonce = proto::handshake::mix_nonces(request.nonce, reply.nonce);
        Self { nonce, ring: reply.bundles.clone().expect("it lends a ring to who asks") }
    }

    /// A line that is sealed for this connection, or for another.
    fn write(&self, door: &Door, line: u32, form: u64, nonce: u64) {
        let mut forged = [0x4141_4141_4141_4141; BUNDLE_PLACE_WORDS];
        (forged[0], forged[1]) = (u64::from(line) << 32, form);
        seal_line(nonce, &mut forged);
        let place = u64::from(line % BUNDLE_PLACES);
        let address = self.ring.address + place * size_of_val(&forged) as u64;
        door.stranger.write(door.peer, &forged, address, self.ring.keys[0]);
    }
}

/// The stranger's connection to the door, as both ends know it.
pub(crate) fn connected(net: Net, door: &Door) -> (Object, Request, Reply) {
    door.stranger.listen();
    let (address, key) = door.stranger.mailbox();
    let request = Request { mailbox: Ring { address, keys: vec![key; 2] }, ..door.request() };
    let mut accepted: Option<Object> = None;
    let mut accept = || accepted = accepted.or_else(|| net.accept(door.listener).expect("accept"));
    let bytes = request.encode().expect("it fits");
    assert!(door.stranger.send(door.peer, &bytes, PATIENCE, &mut accept));
    let mut heard = None;
    wait("a reply", || {
        accept();
        heard = door.stranger.heard();
        heard.is_some()
    });
    let comm = accepted.expect("it has answered");
    let Ok(Message::Reply(reply)) = Message::decode(&heard.expect("just heard")) else {
        panic!("no reply");
    };
    (comm, request, *reply)
}

fn what_no_peer_would_write_into_the_ring_of_bundles_is_dropped_or_fails_its_connection() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let (comm, request, reply) = connected(net, &door);
        let lent = Lent::of(&request, &reply);

        let memory = Memory::new(net, comm);
        let post = |slot: usize, len: usize| {
            let posted = net.irecv(comm, memory.slot(slot), len, 0, memory.region).expect("irecv");
            posted.expect("the window has room")
        };
        let received = [post(0, 16), post(1, 8)];
        let settle = |request: Object| {
            (0..2000).find_map(|_| {
                door.stranger.poll();
                net.test(request).expect("test")
            })
        };
        // Too long for a place; of another kind; of a line that nobody has posted; of another connection.
        let forged = [
            (0, BUNDLED | 17, lent.nonce),
            (0, BUNDLED | 0xffff, lent.nonce),
            (0, 3 << 24, lent.nonce),
            (2, BUNDLED | 8, lent.nonce),
            (33, BUNDLED | 8, lent.nonce),
            (u32::MAX, BUNDLED | 8, lent.nonce),
            (0, BUNDLED | 8, lent.nonce ^ 1),
        ];
        for (line, form, nonce) in forged {
            lent.write(&door, line, form, nonce);
            assert_eq!(settle(received[0]), None, "line {line}, {form:#x}");
        }
        // The same as a peer would write it; and one that is longer than its receive.
        lent.write(&door, 0, BUNDLED | 8, lent.nonce);
        assert_eq!(settle(received[0]), Some(8));
        assert_eq!(memory.buffer.read(0, 16), [[0x41; 8], [0; 8]].concat());
        lent.write(&door, 1, BUNDLED | 16, lent.nonce);
        let mut failed = None;
        wait("an error", || {
            door.stranger.poll();
            failed = net.test(received[1]).err();
            failed.is_some()
        });
        let said = failed.expect("just seen").said;
        assert!(said.len() == 1 && said[0].contains("receiving from"), "{said:?}");
        assert!(said[0].contains("16") && said[0].contains('8'), "{said:?}");
        // Nobody is there to say what is under way.
        drop(net.deregister(comm, memory.region));
        net.close_recv(comm).expect("close");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            what_no_peer_would_write_into_the_ring_of_bundles_is_dropped_or_fails_its_connection,
        )
        .needs(not_over("shm", "shm dies of a peer that was never there")),
    ]
}
