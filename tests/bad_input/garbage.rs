//! Bytes that no plugin sends, on the endpoints that take anybody's: dropped and counted, and nobody else notices.

use harness::Test;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use proto::codec::{Address, Name, check_of};
use proto::handshake::{Identity, Message, RefusalReason, Ring, Side};
use proto::rails::{Pairing, Rail, RailPair};
use proto::{
    Bye, Capabilities, CommId, ConnectionId, ImmediateWidth, Refusal, Reply, Request, Window,
};

use crate::bystander::{self, Bystander};
use crate::support::calls::{Handle, Net, Object};
use crate::support::link::{Link, wait};
use crate::support::say;
use crate::support::stage::{is_over_shm, play};
use crate::support::stranger::{CAPABILITIES, LONGEST, Stranger};
use crate::{BOUND, counter, not_over, open, stats_file};

/// A message that is neither taken nor refused by then is lost, which is its sender's trouble.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Accept waits for longer than any play here lasts.
pub(crate) const SETTINGS: &[(&str, &str)] =
    &[("RAILS", "127.0.0.1,127.0.0.2"), ("PEER_TIMEOUT_MS", "2000"), ("CLOSE_TIMEOUT_MS", "1000")];

/// Numbers from a seed (xorshift), which a failure names.
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

/// A listener to be bothered, and whoever bothers it.
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
        let control = proto::Handle::decode(&handle).expect("ours").control;
        let peer = stranger.meet(control.as_bytes());
        Self { net, handle, listener, stranger, peer }
    }

    /// Sends `bytes` while nobody gets connected.
    fn throw(&self, bytes: &[u8]) -> bool {
        self.stranger.send(self.peer, bytes, PATIENCE, || self.is_shut())
    }

    fn is_shut(&self) {
        assert_eq!(self.net.accept(self.listener), Ok(None));
    }

    /// Lets what was sent arrive.
    fn settle(&self) {
        for _ in 0..2000 {
            self.stranger.poll();
            self.is_shut();
        }
    }

    /// A request that the listener has to take for a peer's.
    pub(crate) fn request(&self) -> Request {
        let rails = vec![rail(self.stranger.address()); 2];
        self.stranger.request(&self.handle, rails)
    }
}

fn rail(address: Address) -> Rail {
    Stranger::rail(if is_over_shm() { b"shm" } else { b"loopback" }, address, address)
}

/// Makes the check of a changed message hold.
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
        // With the right beginning, and any length.
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
            // The provider may give the connection up: that is between it and the stranger.
            door.throw(&vec![0xa5; len]);
            link.works();
        }
        door.settle();
        bystander.works();
        link.works();
        bystander.end(net, context);
    });
}

fn a_request_with_any_byte_changed_harms_nobody() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let mut request = door.request();
        // It asks for what nobody listens at.
        request.listener_nonce = !request.listener_nonce;
        let good = request.encode().expect("it fits");
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0x5a;
            assert!(door.throw(&damaged), "byte {at}");
        }
        link.works();
        // With a check that holds: what it says is wrong, not how it arrived. Some of it makes us answer to nowhere.
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

fn answers_that_nobody_asked_for_are_counted_and_dropped() {
    let stats = stats_file("answers");
    let settings = [SETTINGS, &[("STATS_FILE", stats.to_str().expect("text"))]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let request = door.request();
        // Of the living, as a stranger may guess them, and of nobody.
        let connections = (0..4).map(ConnectionId).chain([ConnectionId(u64::MAX)]);
        for connection in connections {
            for comm in [0, 1, 2, CommId::COUNT - 1].map(|id| CommId::new(id).expect("in range")) {
                for from in [Side::Sender, Side::Receiver] {
                    let begun = proto::Begun::NOTHING;
                    let bye = Bye {
                        connection,
                        comm,
                        nonce: 3,
                        from,
                        begun,
                        eager_end: 7,
                        done: proto::Line::FIRST,
                    };
                    assert!(door.throw(&bye.encode().expect("it fits")));
                }
                let reply = Reply {
                    connection,
                    comm,
                    nonce: 5,
                    capabilities: CAPABILITIES,
                    rails: request.rails.clone(),
                    pairing: Pairing {
                        data: vec![RailPair { sender: 15, receiver: 15 }],
                        control: vec![RailPair { sender: 3, receiver: 3 }],
                    },
                    fins: Ring { address: u64::MAX, keys: vec![u64::MAX] },
                    window: Window::GROUPED,
                    fin_only: true,
                    eager: Some(Ring { address: u64::MAX, keys: vec![1] }),
                    bundles: Some(Ring { address: u64::MAX - 8, keys: vec![1] }),
                    identity: Identity::default(),
                };
                assert!(door.throw(&reply.encode().expect("it fits")));
            }
            let refusal =
                Refusal { connection, reason: RefusalReason::Version, text: "no".to_owned() };
            assert!(door.throw(&refusal.encode().expect("it fits")));
        }
        door.settle();
        link.works();
        net.finalize(context).expect("finalize");
    });
    assert_eq!(counter(&stats, "late_messages"), 5 * (4 * 3 + 1));
}

fn a_request_that_cannot_be_meant_is_refused_or_makes_a_connection_that_harms_nobody() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "bystander" {
            return bystander::play(part, net, context);
        }
        let mut bystander = Bystander::cast(part, net, context);
        let mut link = Link::to_self(net, context);
        let door = Door::open(net, context);
        let good = door.request();
        let nowhere = |bytes: &[u8]| rail(Address::new(bytes).expect("short"));
        let mut nobody = door.stranger.name();
        nobody[2..4].copy_from_slice(&1_u16.to_be_bytes());
        let no_control = Rail { control: None, ..good.rails[0] };
        let no_fabric = Rail { fabric: Name::default(), ..good.rails[0] };
        let deaf = Capabilities {
            immediate: ImmediateWidth::None,
            delivery_complete: false,
            ..CAPABILITIES
        };
        let forged = [
            Request { rails: vec![good.rails[0]; 16], ..good.clone() },
            Request { rails: vec![no_control; 16], ..good.clone() },
            Request { rails: vec![no_fabric], ..good.clone() },
            Request { rails: vec![nowhere(&[])], ..good.clone() },
            Request { rails: vec![nowhere(&[0xff; 64])], ..good.clone() },
            Request { rails: vec![nowhere(&[0; 16])], ..good.clone() },
            Request { rails: vec![nowhere(&nobody)], ..good.clone() },
            Request { window: Window::GROUPED, ..good.clone() },
            Request { max_group: 8, ..good.clone() },
            Request { capabilities: deaf, ..good.clone() },
            Request {
                capabilities: Capabilities { largest_write: 1, ..CAPABILITIES },
                ..good.clone()
            },
            Request {
                capabilities: Capabilities { rma_inject_bytes: u32::MAX, ..CAPABILITIES },
                ..good.clone()
            },
            Request {
                mailbox: Ring { address: u64::MAX, keys: vec![u64::MAX; 4] },
                ..good.clone()
            },
            Request { mailbox: Ring { address: 1 << 63, keys: vec![0] }, ..good.clone() },
            Request { reply_to: Address::new(&nobody).expect("short"), ..good.clone() },
            Request { reply_to: Address::new(&[]).expect("short"), ..good.clone() },
            Request { reply_to: Address::new(&[0xff; 64]).expect("short"), ..good },
        ];
        for (number, request) in forged.into_iter().enumerate() {
            let mut accepted = Vec::new();
            let bytes = request.encode().expect("it fits");
            let mut accept = || match net.accept(door.listener) {
                Ok(comm) => accepted.extend(comm),
                Err(failure) => say(&format!("{number}: {failure:?}")),
            };
            assert!(door.stranger.send(door.peer, &bytes, PATIENCE, &mut accept), "{number}");
            for _ in 0..500 {
                door.stranger.poll();
                accept();
            }
            say(&format!("request {number}: {} accepted", accepted.len()));
            for comm in accepted {
                // Its adverts go where the request said.
                let memory = crate::support::link::Memory::new(net, comm);
                for _ in 0..20 {
                    drop(net.irecv(comm, memory.slot(0), 64, 0, memory.region));
                    door.stranger.poll();
                }
                // Nobody is there to say what is under way.
                drop(net.deregister(comm, memory.region));
                net.close_recv(comm).expect("close");
            }
            link.works();
        }
        bystander.works();
        link.works();
        bystander.end(net, context);
    });
}

/// The TCP port behind a control address, where the provider has one.
fn port(handle: &Handle) -> SocketAddrV4 {
    let address = proto::Handle::decode(handle).expect("ours").control;
    let bytes = address.as_bytes();
    let ip: [u8; 4] = bytes[4..8].try_into().expect("four bytes");
    SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes([bytes[2], bytes[3]]))
}

fn raw_bytes_on_the_port_of_a_control_endpoint_harm_nobody() {
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
            let mut socket = TcpStream::connect(to).expect("somebody listens");
            socket.set_read_timeout(Some(Duration::from_millis(10))).expect("a socket");
            socket.set_write_timeout(Some(Duration::from_millis(10))).expect("a socket");
            let bytes = random.bytes(1 << (2 * round % 16));
            match round % 3 {
                // Nothing, and it stays.
                0 => held.push(socket),
                // Bytes, and it goes.
                1 => drop(socket.write_all(&bytes)),
                // Bytes, and it stays.
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
        // And the door is open for those who know how.
        let mut link = Link::to_self(net, context);
        link.works();
        net.close_listen(listener).expect("close");
        bystander.end(net, context);
    });
}

/// A guard for the forgeries above: the listener takes one that is good.
fn a_request_as_a_peer_would_write_it_is_taken() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let door = Door::open(net, context);
        let bytes = door.request().encode().expect("it fits");
        assert!(matches!(Message::decode(&bytes), Ok(Message::Request(_))));
        let mut accepted = None;
        let mut accept =
            || accepted = accepted.or_else(|| net.accept(door.listener).expect("accept"));
        door.stranger.send(door.peer, &bytes, PATIENCE, &mut accept);
        wait("accept", || {
            door.stranger.poll();
            accepted = accepted.or_else(|| net.accept(door.listener).expect("accept"));
            accepted.is_some()
        });
        net.finalize(context).expect("finalize");
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(random_bytes_on_a_control_endpoint_are_counted_and_dropped),
        Test::new(messages_longer_than_any_are_dropped).needs(not_over(
            "shm",
            "1.17 reads on and on where a message from memory to memory ends past its receive",
        )),
        Test::new(a_request_with_any_byte_changed_harms_nobody),
        Test::new(answers_that_nobody_asked_for_are_counted_and_dropped),
        Test::new(
            a_request_that_cannot_be_meant_is_refused_or_makes_a_connection_that_harms_nobody,
        )
        .needs(not_over("shm", "shm dies of a peer that was never there")),
        Test::new(raw_bytes_on_the_port_of_a_control_endpoint_harm_nobody)
            .needs(not_over("shm", "shm has no port")),
        Test::new(a_request_as_a_peer_would_write_it_is_taken),
    ]
}
