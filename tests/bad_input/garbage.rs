//! Bytes that no plugin sends, on endpoints that accept any: dropped and counted, without effect on others.

use harness::Test;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use proto::codec::{Address, Bounded, Name, check_of};
use proto::counts::PeerCounts;
use proto::letter::{Body, Letter, Query, RailNumbers, Status};
use proto::packet::Ring;
use proto::rails::Rail;
use proto::setup::{EndpointId, Entries, Hello, Message, Offers, Role, Secret};
use proto::{Capabilities, ImmediateWidth};
use proto::{Epoch, Frame, PacketNumber};

use crate::bystander::{self, Bystander};
use crate::support::calls::{Handle, Net, Object, warnings};
use crate::support::link::{Link, Memory, wait};
use crate::support::stage::{is_over_shm, play};
use crate::support::stranger::{
    CAPABILITIES, LONGEST, Peer, Stranger, prove, prove_as, wire_handle,
};
use crate::{BOUND, counter, not_over, open, stats_file};

/// A message that is neither accepted nor refused by then is lost, at its sender's cost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The timeout of accept exceeds any play here.
pub(crate) const SETTINGS: &[(&str, &str)] =
    &[("RAILS", "127.0.0.1,127.0.0.2"), ("PEER_TIMEOUT_MS", "2000"), ("CLOSE_TIMEOUT_MS", "1000")];

/// One rail, as a stranger has; and a long timeout, since it answers no question.
pub(crate) const ONE_RAIL: &[(&str, &str)] =
    &[("RAILS", "127.0.0.1"), ("PEER_TIMEOUT_MS", "60000"), ("CLOSE_TIMEOUT_MS", "1000")];

/// Random numbers from a seed (xorshift), which a failure reports.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A listener under attack, and the stranger that attacks it.
pub(crate) struct Door {
    net: Net,
    handle: Handle,
    pub(crate) listener: Object,
    pub(crate) stranger: Stranger,
    pub(crate) peer: fabric::PeerAddress,
}

impl Door {
    pub(crate) fn open(net: Net, context: Object) -> Self {
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let stranger = Stranger::open();
        let peer = stranger.meet(wire_handle(&handle).control.at(0).as_bytes());
        Self { net, handle, listener, stranger, peer }
    }

    /// Sends `bytes` while no peer connects.
    fn throw(&self, bytes: &[u8]) -> bool {
        self.stranger.send(self.peer, bytes, PATIENCE, || self.is_shut())
    }

    fn is_shut(&self) {
        assert_eq!(self.net.accept(self.listener), Ok(None));
    }

    /// Waits until what was sent has arrived.
    fn settle(&self) {
        for _ in 0..2000 {
            self.stranger.poll();
            self.is_shut();
        }
    }

    /// A HELLO that the listener must accept as a peer's.
    fn hello(&self) -> Hello {
        let rails = vec![rail(self.stranger.address())];
        self.stranger.hello(&self.handle, rails)
    }

    /// The stranger as a peer with a channel, and its connection to this listener.
    pub(crate) fn connected(self) -> (Peer, Object) {
        let Self { net, handle, listener, stranger, peer } = self;
        let rails = vec![rail(stranger.address())];
        let hello = stranger.hello(&handle, rails);
        let mut accepted: Option<Object> = None;
        let mut accept = || accepted = accepted.or_else(|| net.accept(listener).expect("accept"));
        let mut peer = stranger.join(peer, &handle, &hello, &mut accept);
        peer.frame(peer.open());
        let mut answer = None;
        wait("OPENED", || {
            accept();
            answer = answer.or_else(|| peer.next_frame());
            answer.is_some()
        });
        wait("accept", || {
            accepted = accepted.or_else(|| net.accept(listener).expect("accept"));
            accepted.is_some()
        });
        let Some(Frame::Opened(opened)) = answer else { panic!("{answer:?}") };
        assert_eq!(opened.to, Peer::own_name());
        peer.is_called(opened.from);
        net.close_listen(listener).expect("closeListen");
        (peer, accepted.expect("just accepted"))
    }
}

fn rail(address: Address) -> Rail {
    Stranger::rail(if is_over_shm() { b"shm" } else { b"loopback" }, address, address)
}

/// Makes the checksum of a changed message valid.
fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[12..16].fill(0);
    let check = check_of(&bytes);
    bytes[12..16].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn random_bytes_on_a_control_endpoint_are_counted_and_dropped() {
    let stats = stats_file("random");
    let settings = [SETTINGS, &[("STATS_FILE", stats.to_str().expect("text"))]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let mut random = Random(0x1234_5678);
        for len in (0..64).chain([255, 256, 1000, 4095, 4096]) {
            assert!(door.throw(&random.bytes(len)), "{len} bytes");
        }
        // With a valid beginning, and any length.
        for _ in 0..200 {
            let len = usize::try_from(random.next() % 300).expect("small") + 16;
            let mut bytes = random.bytes(len);
            bytes[..4].copy_from_slice(b"IRRL");
            let said = u32::try_from(random.next() % 512).expect("small");
            bytes[8..12].copy_from_slice(&said.to_le_bytes());
            assert!(door.throw(&bytes));
        }
        door.settle();
        link.works();
        net.finalize(context).expect("finalize");
    });
    assert!(counter(&stats, "garbage_messages") >= 260);
}

fn messages_longer_than_any_are_dropped() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "bystander" {
            return bystander::play(part, net, context);
        }
        let mut bystander = Bystander::cast(part, net, context);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        for len in [4097, 5000, 8192, LONGEST] {
            // The provider may close the connection, which concerns only the stranger.
            door.throw(&vec![0xa5; len]);
            link.works();
        }
        door.settle();
        bystander.works();
        link.works();
        bystander.end(net, context);
    });
}

fn a_hello_with_any_byte_changed_is_harmless() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        // Without a valid proof.
        let mut hello = door.hello();
        hello.nonce = !hello.nonce;
        let good = hello.encode().expect("it fits");
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0x5a;
            assert!(door.throw(&damaged), "byte {at}");
        }
        link.works();
        // With a valid checksum: its content is wrong.
        for at in 4..good.len() {
            for flip in [1, 0x80] {
                let mut other = good.clone();
                other[at] ^= flip;
                assert!(door.throw(&reseal(other)), "byte {at}");
            }
        }
        door.settle();
        link.works();
        net.finalize(context).expect("finalize");
    });
}

fn hellos_without_proof_and_letters_of_no_channel_are_counted_and_dropped() {
    let stats = stats_file("letters");
    let settings = [SETTINGS, &[("STATS_FILE", stats.to_str().expect("text"))]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let number = PacketNumber::new(7);
        for key in KEYS {
            for epoch in [Epoch(0), Epoch(1), Epoch(u32::MAX)] {
                let counts = PeerCounts::default();
                let query = Body::Query(Query {
                    epoch,
                    completed: number,
                    lost: true,
                    rail: 0,
                    counts,
                    about: None,
                });
                let status = Body::Status(Status {
                    epoch,
                    consumed: number,
                    asked: number,
                    counts,
                    waits: true,
                    failed: true,
                    idle_ms: 9,
                    about: None,
                });
                for body in [query, status] {
                    let letter = Letter { key, rails: RailNumbers::new([1; 4]), body };
                    assert!(
                        door.throw(&Message::encode_letter(&letter, Vec::new()).expect("it fits"))
                    );
                }
            }
        }
        let good = door.hello();
        let unknown = EndpointId([9; 16]);
        let mut unproven = vec![
            Hello { nonce: good.nonce + 1, ..good.clone() },
            Hello { echo: 5, ..good.clone() },
            Hello { to: unknown, ..good.clone() },
            Hello { from: unknown, ..good.clone() },
            Hello { entries: Entries::default(), ..good.clone() },
        ];
        // With another secret.
        let mut guessed = wire_handle(&door.handle);
        guessed.secret = Secret([1; 16]);
        let mut forged = Hello { entries: Entries::default(), ..good };
        prove(&mut forged, &guessed);
        unproven.push(forged);
        assert_eq!(unproven.len(), UNPROVEN);
        for hello in unproven {
            assert!(door.throw(&hello.encode().expect("it fits")), "{hello:?}");
        }
        door.settle();
        link.works();
        net.finalize(context).expect("finalize");
    });
    let all = u64::try_from(KEYS.len() * 3 * 2 + UNPROVEN).expect("few");
    assert_eq!(counter(&stats, "late_messages"), all);
}

/// Keys of letters, as a stranger may guess them.
const KEYS: [u64; 4] = [0, 1, 0x7e11, u64::MAX];
/// Forged HELLOs without a valid proof.
const UNPROVEN: usize = 6;

fn an_invalid_hello_makes_no_connection_and_is_harmless() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "bystander" {
            return bystander::play(part, net, context);
        }
        let mut bystander = Bystander::cast(part, net, context);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let good = door.hello();
        let nowhere = |bytes: &[u8]| rail(Address::new(bytes).expect("short"));
        let mut unknown = door.stranger.name();
        unknown[2..4].copy_from_slice(&1_u16.to_be_bytes());
        let no_control = Rail { control: None, ..good.rails[0] };
        let no_fabric = Rail { fabric: Name::default(), ..good.rails[0] };
        let silent = Capabilities {
            immediate: ImmediateWidth::None,
            delivery_complete: false,
            ..CAPABILITIES
        };
        let short = Capabilities { largest_write: 1, ..CAPABILITIES };
        let ring = Ring::new(2 << 10).expect("the shortest");
        let forged = [
            Hello { rails: vec![good.rails[0]; 16], ..good.clone() },
            Hello { rails: vec![no_control; 16], ..good.clone() },
            Hello { rails: vec![no_fabric], ..good.clone() },
            Hello { rails: vec![nowhere(&[])], ..good.clone() },
            Hello { rails: vec![nowhere(&[0xff; 64])], ..good.clone() },
            Hello { rails: vec![nowhere(&[0; 16])], ..good.clone() },
            Hello { rails: vec![nowhere(&unknown)], ..good.clone() },
            Hello { capabilities: silent, ..good.clone() },
            Hello { capabilities: short, ..good.clone() },
            Hello { offers: Offers { ring, ..good.offers }, ..good.clone() },
            Hello { offers: Offers { shared_from: 0, ..good.offers }, ..good.clone() },
            // An inbox is lent by a sender that does not know our nonce, or described by invalid bytes.
            Hello { channel: Bounded::new(&[7; 8]).expect("short"), ..good.clone() },
            Hello { channel: Bounded::new(&[7; 240]).expect("it fits"), ..good.clone() },
        ];
        for (number, hello) in (1..).zip(forged) {
            // Each from another peer, and with a valid proof.
            let from = EndpointId([number; 16]);
            let mut hello = Hello { from, entries: Entries::default(), ..hello };
            prove(&mut hello, &wire_handle(&door.handle));
            assert!(door.throw(&hello.encode().expect("it fits")), "{number}");
            door.settle();
            link.works();
        }
        bystander.works();
        link.works();
        bystander.end(net, context);
    });
}

/// It repeats its HELLO until it has an answer, every second and more often.
fn a_peer_whose_address_is_refused_is_one_line_in_the_log() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let door = Door::open(net, context);
        let nowhere = rail(Address::new(&[0xff; 64]).expect("short"));
        let mut hello = Hello { rails: vec![nowhere], ..door.hello() };
        hello.entries = Entries::default();
        prove(&mut hello, &wire_handle(&door.handle));
        let bytes = hello.encode().expect("it fits");
        for _ in 0..8 {
            assert!(door.throw(&bytes));
            door.settle();
        }
        let said = warnings();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("no channel to a peer"), "{said:?}");
    });
}

/// The TCP port of a control address, where the provider has one.
fn port(handle: &Handle) -> SocketAddrV4 {
    let address = wire_handle(handle).control.at(0);
    let bytes = address.as_bytes();
    let ip: [u8; 4] = bytes[4..8].try_into().expect("four bytes");
    SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes([bytes[2], bytes[3]]))
}

fn raw_bytes_on_the_port_of_a_control_endpoint_are_harmless() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "bystander" {
            return bystander::play(part, net, context);
        }
        let mut bystander = Bystander::cast(part, net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let to = port(&handle);
        let mut random = Random(0x8765_4321);
        let mut held = Vec::new();
        for round in 0..12 {
            let mut socket = TcpStream::connect(to).expect("the plugin listens");
            socket.set_read_timeout(Some(Duration::from_millis(10))).expect("a socket");
            socket.set_write_timeout(Some(Duration::from_millis(10))).expect("a socket");
            let bytes = random.bytes(1 << (2 * round % 16));
            match round % 3 {
                // No bytes, and it stays connected.
                0 => held.push(socket),
                // Bytes, and it disconnects.
                1 => drop(socket.write_all(&bytes)),
                // Bytes, and it stays connected.
                _ => {
                    drop(socket.write_all(&bytes));
                    held.push(socket);
                }
            }
            bystander.works();
        }
        for mut socket in held {
            drop(socket.read(&mut [0; 64]));
            drop(socket.write_all(b"GET / HTTP/1.1\r\n\r\n"));
        }
        bystander.works();
        // The listener still accepts real peers.
        let mut link = Link::to_self(net, context);
        link.works();
        net.close_listen(listener).expect("close");
        bystander.end(net, context);
    });
}

/// A check of the forgeries: without them the listener accepts the stranger, and messages arrive.
fn a_stranger_that_behaves_like_a_peer_is_accepted_as_one() {
    play(ONE_RAIL, BOUND, |part| {
        let (net, context) = open(part);
        let (mut peer, comm) = Door::open(net, context).connected();
        let memory = Memory::new(net, comm);
        let posted = net.irecv(comm, memory.slot(0), 64, 0, memory.region).expect("irecv");
        let request = posted.expect("the window has room");
        peer.packet(&peer.inline(0, &[0x4141_4141_4141_4141]));
        let mut size = None;
        wait("the message", || {
            size = net.test(request).expect("test");
            size.is_some()
        });
        assert_eq!(size, Some(8));
        assert_eq!(memory.buffer.read(0, 8), [0x41; 8]);
        net.finalize(context).expect("finalize");
    });
}

fn a_hello_names_the_pid_namespace_in_which_the_process_has_its_number() {
    play(ONE_RAIL, BOUND, |part| {
        let (net, context) = open(part);
        let (peer, _comm) = Door::open(net, context).connected();
        let namespace = proc_status::pid_namespace().expect("proc is mounted");
        let named = (peer.host.process, peer.host.pid_namespace);
        assert_eq!(named, (std::process::id(), Some(namespace)));
        net.finalize(context).expect("finalize");
    });
}

/// A process that has seen the handle's address and id, but not its secret, answers connect in the listener's name, before the listener does.
fn an_answer_to_a_connect_without_the_secret_neither_fails_nor_redirects_it() {
    play(ONE_RAIL, BOUND, |part| {
        let (net, asking) = open(part);
        let listening = net.init().expect("init");
        // Both devices' probes are over.
        Link::to_self(net, asking).close();
        Link::to_self(net, listening).close();
        let door = Door::open(net, asking);
        let (mut handle, listener) = net.listen(listening, 0).expect("listen");
        // The way to it is there before it is needed.
        assert!(door.throw(b"no message"));
        let theirs = wire_handle(&handle);
        assert_eq!(net.connect(asking, 0, &mut handle), Ok(None));
        let mut guessed = theirs;
        guessed.secret = Secret([1; 16]);
        let in_their_name = |role, echo| {
            let mut hello =
                Hello { from: theirs.endpoint, echo, entries: Entries::default(), ..door.hello() };
            prove_as(&mut hello, &guessed, role);
            hello
        };
        let mut forged: Vec<Vec<u8>> = Vec::new();
        for role in [Role::Listens, Role::Connects] {
            for echo in [0, 5] {
                forged.push(in_their_name(role, echo).encode().expect("it fits"));
            }
        }
        let unproven = Hello { entries: Entries::default(), ..in_their_name(Role::Listens, 0) };
        forged.push(unproven.encode().expect("it fits"));
        let number = PacketNumber::new(0);
        for key in KEYS {
            let body = Body::Status(Status {
                epoch: Epoch(1),
                consumed: number,
                asked: number,
                counts: PeerCounts::default(),
                waits: false,
                failed: true,
                idle_ms: 0,
                about: None,
            });
            let letter = Letter { key, rails: RailNumbers::default(), body };
            forged.push(Message::encode_letter(&letter, Vec::new()).expect("it fits"));
        }
        for bytes in &forged {
            assert!(door.throw(bytes));
        }
        let (mut send, mut receive) = (None, None);
        wait("the listener's own answer", || {
            send = send.or_else(|| net.connect(asking, 0, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            for bytes in forged.iter().take(usize::from(send.is_none())) {
                assert!(door.throw(bytes));
            }
            send.is_some() && receive.is_some()
        });
        let (send, receive) = (send.expect("just seen"), receive.expect("just seen"));
        // Nothing of it reaches the stranger, which has offered its own rails.
        let (out, into) = (Memory::new(net, send), Memory::new(net, receive));
        out.buffer.write(0, &[0x5a; 5000]);
        let posted = net.irecv(receive, into.slot(0), 5000, 0, into.region).expect("irecv");
        let (received, mut sent, mut size) = (posted.expect("the window has room"), None, None);
        wait("the message", || {
            if sent.is_none() {
                sent = net.isend(send, out.slot(0), 5000, 0, out.region).expect("isend");
            }
            for bytes in &forged[forged.len() - KEYS.len()..] {
                door.stranger.send(door.peer, bytes, Duration::ZERO, || door.is_shut());
            }
            size = net.test(received).expect("test");
            size.is_some()
        });
        assert_eq!(size, Some(5000));
        assert!(into.buffer.read(0, 5000) == [0x5a; 5000]);
        net.finalize(asking).expect("finalize");
        net.finalize(listening).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(random_bytes_on_a_control_endpoint_are_counted_and_dropped),
        Test::new(messages_longer_than_any_are_dropped).needs(not_over(
            "shm",
            "1.17 reads on and on where a message from memory to memory ends past its receive",
        )),
        Test::new(a_hello_with_any_byte_changed_is_harmless),
        Test::new(hellos_without_proof_and_letters_of_no_channel_are_counted_and_dropped),
        Test::new(an_invalid_hello_makes_no_connection_and_is_harmless)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(a_peer_whose_address_is_refused_is_one_line_in_the_log)
            .needs(not_over("shm", "shm takes any address")),
        Test::new(raw_bytes_on_the_port_of_a_control_endpoint_are_harmless)
            .needs(not_over("shm", "shm has no port")),
        Test::new(a_hello_names_the_pid_namespace_in_which_the_process_has_its_number)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(a_stranger_that_behaves_like_a_peer_is_accepted_as_one)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(an_answer_to_a_connect_without_the_secret_neither_fails_nor_redirects_it)
            .needs(not_over("shm", "shm dies of a peer that was never there")),
    ]
}
