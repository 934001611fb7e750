//! How many libfabric objects the plugin opens, by the provider's report.

use std::time::{Duration, Instant};

use proto::codec::Address;
use proto::setup::{EndpointId, Entries, Hello};

use crate::link::Link;
use crate::support::calls::Buffer;
use crate::support::stage::{play, play_each};
use crate::support::stranger::{Stranger, prove, wire_handle};
use crate::support::virtual_fabric::set;
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
const RAILS: usize = 4;
/// Connections that one slab of control memory serves: a mailbox each at one end, two rings at the other.
const CONNECTIONS: usize = 16;

/// Four data and four control rails, where every region is bound to one endpoint.
#[test]
fn only_a_buffer_costs_regions_and_only_one_per_data_rail() {
    play(&[provider()], BOUND, |part| {
        let World { nets, fabric } = World::open(part, "cxi", [RAILS, RAILS]);
        let opened = |kind: &str| fabric.number(&format!("opened.{kind}"));
        let open = |kind: &str| fabric.number(&format!("open.{kind}"));
        let ends = nets.map(End::open);
        let first = connect(&ends[0], &ends[1]);
        // Per end and rail: an endpoint for data and one for control; regions for the landing page, for messages and for one slab of rings.
        assert_eq!(open("endpoints"), 2 * 2 * RAILS as u64);
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64);

        let (net, memory) = (nets[0], Buffer::new(2 << 20));
        let (buffer, beyond) = (memory.part(0, 1 << 20), memory.part(64 << 10, 1 << 20));
        let region = net.register(first.0, buffer).expect("regMr");
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64 + RAILS as u64);

        // The same buffer again: the existing registration is used.
        let (before, calls) = (opened("regions"), fabric.number("counter.calls"));
        let again = net.register(first.0, buffer).expect("regMr");
        assert_eq!(opened("regions"), before);
        assert_eq!(fabric.number("counter.calls"), calls, "the provider was called");
        // A part of it is a registration of its own, and so is a range that begins inside: they may be there longer than the buffer.
        let others = [buffer.part(0, 8192), buffer.part(4096, 8192), beyond]
            .map(|other| net.register(first.0, other).expect("regMr"));
        assert_eq!(opened("regions"), before + 3 * RAILS as u64);
        for region in [region, again] {
            net.deregister(first.0, region).expect("deregMr");
        }
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64 + 3 * RAILS as u64);
        for region in others {
            net.deregister(first.0, region).expect("deregMr");
        }
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64);

        // One more connection costs nothing while the slab has room, nor do its messages.
        let (regions, endpoints) = (opened("regions"), opened("endpoints"));
        let more: Vec<_> = (1..CONNECTIONS).map(|_| connect(&ends[0], &ends[1])).collect();
        assert_eq!(opened("regions"), regions);
        assert_eq!(opened("endpoints"), endpoints);

        for (send, receive) in more.into_iter().chain([first]) {
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
        }
        for _ in 0..POLLS {
            ends.iter().for_each(End::poll);
        }
        close_together(ends);
        fabric.is_clean();
    });
}

/// Each that can receive keeps buffers for messages, on cxi.
#[test]
fn only_control_rails_receive_messages_unless_the_provider_opens_no_endpoint_without() {
    play_each(&["1", "0"], &[provider()], BOUND, |part, one_sided| {
        let world = World::open(part, "cxi", [RAILS, RAILS]);
        world.fabric.configure(&format!("profile=cxi nics=16 one_sided={one_sided}"));
        let fabric = world.fabric;
        let ends = world.nets.map(End::open);
        let (send, receive) = connect(&ends[0], &ends[1]);
        let (control, all) = (2 * RAILS as u64, 2 * 2 * RAILS as u64);
        assert_eq!(fabric.number("open.endpoints"), all);
        let receiving = if one_sided == "1" { control } else { all };
        assert_eq!(fabric.number("counter.endpoints.receiving"), receiving);
        assert_eq!(fabric.number("counter.endpoints.one_sided_refused"), receiving - control);
        ends[0].net.close_send(send).expect("closeSend");
        ends[1].net.close_recv(receive).expect("closeRecv");
        (0..POLLS).for_each(|_| ends.iter().for_each(End::poll));
        close_together(ends);
        fabric.is_clean();
    });
}

/// Each has a queue of its own, and writes with immediates arrive by data rails alone.
#[test]
fn only_data_rails_have_room_for_the_arrivals_of_all_receives() {
    play(&[provider()], BOUND, |part| {
        let world = World::open(part, "efa", [1, 1]);
        let ends = world.nets.map(End::open);
        let (data, control) = (16_384, 1024 + 64);
        assert_eq!(world.fabric.number("open.queue_entries"), 2 * (data + control));
        close_together(ends);
        world.fabric.is_clean();
    });
}

/// Else cxi looks each write's buffer up.
#[test]
fn every_endpoint_of_cxi_uses_descriptors_where_the_provider_has_the_call_for_it() {
    play_each(&["1", "0"], &[provider()], BOUND, |part, hybrid| {
        let world = World::open(part, "cxi", [1, 1]);
        world.fabric.configure(&format!("profile=cxi nics=16 hybrid={hybrid}"));
        let link = Link::open(world, world.nets.map(End::open));
        link.warm();
        let endpoints = link.fabric.number("opened.endpoints");
        assert_eq!(endpoints, 4);
        let with = link.fabric.number("counter.endpoints.with_descriptors");
        assert_eq!(with, if hybrid == "1" { endpoints } else { 0 });
        link.close_all();
    });
}

/// As where the processes of a job end, and others take their places, while another communicator keeps the endpoint open.
#[test]
fn peers_that_have_left_take_no_memory_from_those_that_come_and_leave_no_address() {
    let timeout = Duration::from_millis(300);
    let millis = timeout.as_millis().to_string();
    play(&[provider(), ("PEER_TIMEOUT_MS", &millis)], BOUND, |part| {
        let World { nets: [net, other], fabric } = World::open(part, "tcp", [1, 1]);
        let end = End::open(net);
        let mut slabs = Vec::new();
        for _ in 0..WAVES {
            let peers: Vec<End> = (0..WAVE).map(|_| End::open(other)).collect();
            for peer in &peers {
                let (send, receive) = connect(peer, &end);
                other.close_send(send).expect("closeSend");
                net.close_recv(receive).expect("closeRecv");
            }
            std::thread::scope(|scope| {
                let closing = scope.spawn(|| close_together(peers));
                while !closing.is_finished() {
                    end.poll();
                }
            });
            // Those that have left are forgotten after the timeout.
            let left = Instant::now();
            while left.elapsed() < 2 * timeout {
                end.poll();
            }
            slabs.push(fabric.number("open.regions"));
        }
        assert!(slabs.iter().all(|count| *count == slabs[0]), "{slabs:?}");
        // Of each of the two rails the last 64 are kept.
        let (addresses, most) = (fabric.number("open.peers"), 2 * 64 + WAVE as u64);
        assert!(addresses <= most && most < 2 * (WAVES * WAVE) as u64, "{addresses}");
        end.close();
        fabric.is_clean();
    });
}

/// Peers that are there at a time, and how often others come.
const WAVE: usize = 10;
const WAVES: usize = 8;

/// A call, after a poll of both ends.
fn with_polls<T>(ends: &[End; 2], mut call: impl FnMut() -> T) -> impl FnMut(u32) -> T {
    move |_| {
        ends.iter().for_each(End::poll);
        call()
    }
}

/// Its reply cannot be posted, and its listener is closed: what it had allocated is freed, and the sender, which may have the reply later, hears of the end.
#[test]
fn an_accept_that_is_given_up_leaves_nothing() {
    play(&[provider()], BOUND, |part| {
        let World { nets, fabric } = World::open(part, "cxi", [1, 1]);
        let ends @ [end, other] = nets.map(End::open);
        let (regions, mut ours) = (fabric.number("opened.regions"), 0);
        // A receiver takes two units of a slab of 64, a sender one that the peer may write to and that is not reused.
        for _ in 0..ROUNDS {
            let (mut handle, listener) = end.net.listen(end.context, 0).expect("listen");
            for _ in 0..POLLS / 10 {
                let asked = other.net.connect(other.context, 0, &mut handle).expect("connect");
                assert_eq!(asked, None, "the peer has not accepted");
                end.poll();
            }
            let posts = fabric.number("counter.posts");
            fabric.fault(&format!("refuse={}-{}", posts + 1, posts + 5));
            let accepted = end.net.accept(listener).expect("accept");
            assert_eq!(accepted, None, "its reply was refused");
            assert!(fabric.number("counter.faults.refuse") > 0);
            end.net.close_listen(listener).expect("closeListen");
            (posts..posts + 5).for_each(|_| end.poll());
            // The sender has the reply, or will; then it hears of the end.
            let asked = || other.net.connect(other.context, 0, &mut handle).expect("connect");
            let send = (0..POLLS).find_map(with_polls(&ends, asked)).expect("it was accepted");
            let before = fabric.number("opened.regions");
            let (out, region) = (Buffer::new(8), other.net.register(send, Buffer::new(8)));
            ours += fabric.number("opened.regions") - before;
            let region = region.expect("regMr");
            let sent = || other.net.isend(send, out.address(), 0, 0, region).err();
            let gone = (0..POLLS).find_map(with_polls(&ends, sent));
            assert!(gone.is_some(), "its receiver is gone");
            other.net.deregister(send, region).expect("deregMr");
            other.net.close_send(send).expect("closeSend");
        }
        assert_eq!(fabric.number("opened.regions"), regions + 2 + ours, "a slab at either end");
        close_together(ends);
        fabric.is_clean();
    });
}

/// Its connect is never called again, as when NCCL aborts: the receiver's resources need not wait for the close of the endpoint.
#[test]
fn a_connection_that_one_end_has_leaves_nothing() {
    play(&[provider()], BOUND, |part| {
        let World { nets, fabric } = World::open(part, "cxi", [1, 1]);
        let ends @ [end, other] = nets.map(End::open);
        let regions = fabric.number("opened.regions");
        for _ in 0..ROUNDS {
            let (mut handle, listener) = end.net.listen(end.context, 0).expect("listen");
            let mut asked = None;
            let accepted = (0..POLLS).find_map(|_| {
                if asked.is_none() {
                    asked = other.net.connect(other.context, 0, &mut handle).expect("connect");
                }
                end.net.accept(listener).expect("accept")
            });
            // The answer may have arrived meanwhile.
            if let Some(asked) = asked {
                other.net.close_send(asked).expect("closeSend");
            }
            end.net.close_recv(accepted.expect("it was requested")).expect("closeRecv");
            end.net.close_listen(listener).expect("closeListen");
            (0..POLLS / 10).for_each(|_| ends.iter().for_each(End::poll));
        }
        assert_eq!(fabric.number("opened.regions"), regions + 2, "a slab at either end");
        close_together(ends);
        fabric.is_clean();
    });
}

/// The farewell overtakes the message before it, and adverts that wait behind others have no receiver.
#[test]
fn a_receiver_that_closes_after_its_sender_leaves_nothing() {
    play(&[provider()], BOUND, |part| {
        set("IRONRAIL_STRIPE_MIN", "16K");
        let World { nets, fabric } = World::open(part, "tcp", [2, 2]);
        let ends @ [sender, receiver] = nets.map(End::open);
        let poll_all = || (0..POLLS / 10).for_each(|_| ends.iter().for_each(End::poll));
        let lasting = connect(&sender, &receiver);
        let (net, memory) = (receiver.net, Buffer::new(64 << 10));
        let (at, len) = (memory.address(), memory.len);
        let from = net.register(lasting.0, memory).expect("regMr");
        let to = net.register(lasting.1, memory).expect("regMr");
        let regions = fabric.number("opened.regions");
        // Connections alternate between control rails, and half of the messages are stalled on the rail that has no control.
        for round in 0..2 * ROUNDS {
            let (send, receive) = connect(&sender, &receiver);
            let posted = [(); 6].map(|()| {
                let posted = net.irecv(receive, at, len, 0, to).expect("irecv");
                poll_all();
                posted.expect("the window has room")
            });
            let nic = u32::try_from(round % 2).expect("small");
            fabric.change(nic, "stall");
            let sent = (0..POLLS).any(|_| {
                receiver.poll();
                net.isend(send, at, len, 0, from).expect("isend").is_some()
            });
            assert!(sent, "its receive is advertised");
            poll_all();
            net.close_send(send).expect("closeSend");
            poll_all();
            fabric.change(nic, "resume");
            // Nothing more is posted for a send that was not waited for: the message arrives, or never will.
            let ended = (0..POLLS).any(|_| net.test(posted[0]) != Ok(None));
            assert!(ended, "the message moves on");
            net.close_recv(receive).expect("closeRecv");
            poll_all();
        }
        assert_eq!(fabric.number("opened.regions"), regions, "a slab is used up");
        net.deregister(lasting.0, from).expect("deregMr");
        net.deregister(lasting.1, to).expect("deregMr");
        net.close_send(lasting.0).expect("closeSend");
        net.close_recv(lasting.1).expect("closeRecv");
        poll_all();
        close_together(ends);
        fabric.is_clean();
    });
}

/// A peer that can send messages must not make the plugin keep any number of addresses.
#[test]
fn a_hello_of_which_one_rail_cannot_be_used_leaves_no_address() {
    play(&[provider()], BOUND, |part| {
        let World { nets: [net, _], fabric } = World::open(part, "cxi", [2, 2]);
        let end = End::open(net);
        let (handle, listener) = net.listen(end.context, 0).expect("listen");
        let stranger = Stranger::on_virtual_fabric();
        let shown = wire_handle(&handle);
        let door = stranger.meet(shown.control.at(0).as_bytes());
        let address = |text: &str| {
            let mut bytes = stranger.name();
            bytes.fill(0);
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Address::new(&bytes).expect("it fits")
        };
        for number in 0..REQUESTS {
            // There is no such endpoint, which only a write would detect.
            let unheard_of = address(&format!("vfabric://0/{}", 1_000_000 + number));
            let rails = [unheard_of, address("nowhere")]
                .map(|data| Stranger::rail(b"vfabric", data, stranger.address()));
            // Each from another peer, and with a valid proof.
            let mut from = [0; 16];
            from[..8].copy_from_slice(&(number + 1).to_le_bytes());
            let mut hello = Hello {
                from: EndpointId(from),
                entries: Entries::default(),
                ..stranger.hello(&handle, rails.to_vec())
            };
            prove(&mut hello, &shown);
            let bytes = hello.encode().expect("a HELLO");
            let is_shut = || assert_eq!(net.accept(listener).expect("accept"), None);
            assert!(stranger.send(door, &bytes, Duration::ZERO, is_shut), "it is not taken");
            (0..10).for_each(|_| is_shut());
        }
        let peers = fabric.number("open.peers");
        assert!(peers < REQUESTS, "{peers} addresses are kept");
        // It reads no answer.
        drop(stranger);
        net.close_listen(listener).expect("closeListen");
        end.close();
        fabric.is_clean();
    });
}

/// More than the 64 addresses per rail that are kept for peers that come again.
const REQUESTS: u64 = 200;

/// More than one slab has room for.
const ROUNDS: usize = 40;
/// Enough for the ends to receive each other's farewells.
const POLLS: u32 = 500;

/// Up to v10 a communicator is a thread, and nothing closes after a listen that failed. The probe's first post fails here.
#[test]
fn a_listen_that_fails_leaves_nothing_open_and_the_next_one_works() {
    play_each(&["cxi", "efa", "tcp", "adversary"], &[provider()], BOUND, |part, profile| {
        let World { nets: [net, _], fabric } = World::open(part, profile, [1, 1]);
        net.init_v8().expect("init");
        let posts = || fabric.number("counter.posts");
        let listen = || net.listen_v8(0).map(|(_, listener)| listener);
        let before = posts();
        let first = listen().expect("listen");
        let of_listen = posts() - before;
        net.close_listen(first).expect("closeListen");
        fabric.is_clean();
        fabric.fault(&format!("reject={}", posts() + of_listen));
        let refused = listen().expect_err("its NIC cannot be used");
        assert!(refused.said[0].contains("fi_write"), "{profile}: {refused:?}");
        assert_eq!(fabric.number("counter.faults.reject"), 1, "{profile}");
        fabric.is_clean();
        let next = listen().expect("the next listen");
        net.close_listen(next).expect("closeListen");
        fabric.is_clean();
    });
}
