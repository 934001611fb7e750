//! listen, connect, accept, close.

mod giving_up;
mod handles;
mod several;
mod waiting;

use net_loader::raw::{HandlePlace, ListenComm, Net};

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{Case, Outcome};
use super::super::link::Opening;
use super::super::traffic::{Manner, Message};
use super::{GROUPS_EXPECTED_SINCE, few, talk, whole};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "listen-returns-a-comm-at-once",
        "listen gives a comm and does not block, on every device",
        "NCCL src/transport/net.cc:810 (recvProxySetup)",
        handles::listen_returns_a_comm_at_once,
    ),
    one(
        "handle-stays-within-128-bytes",
        "listen and connect write no byte outside the 128 of the handle",
        "NCCL src/include/plugin/nccl_net.h:16 (NCCL_NET_HANDLE_MAXSIZE)",
        handles::handle_stays_within_128_bytes,
    ),
    one(
        "handle-is-copied-bytes",
        "a handle is copied by value and used at another address; each retry gets the same writable buffer",
        "NCCL src/transport/net.cc:885 (req->handle; it travels through the bootstrap)",
        handles::handle_is_copied_bytes,
    ),
    one(
        "handles-differ",
        "listeners that are open at once have handles that differ: one listen comm per connection",
        "NCCL src/transport/net.cc:810",
        handles::handles_differ,
    ),
    one(
        "listener-never-connected",
        "closeListen succeeds on a listener that no peer connected to",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms)",
        handles::listener_never_connected,
    ),
    one(
        "accept-answers-null-until-connected",
        "accept returns success with a null comm, at once, while no peer connects",
        "NCCL src/proxy.cc:1776 (one thread polls all pending connections)",
        waiting::accept_answers_null_until_connected,
    ),
    two(
        "connect-does-not-block",
        "connect returns at once while the peer does not accept: the peer's accept may wait for this thread",
        "NCCL src/proxy.cc:1776",
        waiting::connect_does_not_block,
    ),
    one(
        "connect-before-accept",
        "a connection is made when connect is called long before accept, by one thread",
        "NCCL src/proxy.cc:1776",
        waiting::connect_before_accept,
    ),
    one(
        "accept-before-connect",
        "a connection is made when accept is called long before connect, by one thread",
        "NCCL src/proxy.cc:1776",
        waiting::accept_before_connect,
    ),
    one(
        "connection-to-oneself",
        "a process connects to itself and moves data in one thread",
        "NCCL src/bootstrap.cc:103, 159-190, 545-608 (a ring of one; proxies of one process)",
        connection_to_oneself,
    ),
    one(
        "device-handle-place-may-be-null",
        "connect and accept allow null for the address of the device handle",
        "NCCL src/plugin/net.cc:467, 471 (the legacy GDR probe)",
        device_handle_place_may_be_null,
    )
    .since(7),
    one(
        "listeners-are-independent",
        "of several listeners, each gets the connection made with its own handle",
        "NCCL src/transport/net.cc:810 (one listen comm per connection)",
        several::listeners_are_independent,
    ),
    two(
        "both-directions-from-one-thread",
        "two processes that connect and accept, each in one thread, get both connections",
        "NCCL src/proxy.cc:1776 (both directions are pending at once)",
        several::both_directions_from_one_thread,
    ),
    two(
        "listener-takes-ten-in-turn",
        "a listen comm accepts ten connections one after the other, each of which moves data",
        "NCCL plugins/net/README.md (accept); aws-ofi-nccl tests itself for it (reuse_listen_comm)",
        several::listener_takes_ten_in_turn,
    ),
    two(
        "connects-race-on-one-listener",
        "of several connects to one listener each becomes a connection of its own",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms)",
        several::connects_race_on_one_listener,
    ),
    two(
        "connects-race-on-two-listeners",
        "where each side polls two connections and keeps the first comm that it gets, both keep the ends of one",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms; up to 2.26 without activeConnect, so every rank behind a proxy connects)",
        several::connects_race_on_two_listeners,
    )
    .since(GROUPS_EXPECTED_SINCE),
    two(
        "close-listen-right-after-accept",
        "closeListen directly after accept leaves the connection usable",
        "NCCL src/transport/net.cc:1090",
        giving_up::close_listen_right_after_accept,
    ),
    two(
        "abandoned-listen-is-harmless",
        "a listener closed while a peer connects causes no crash, and a new connection can be made",
        "NCCL src/transport/net.cc:1254 (abort between listen and accept)",
        giving_up::abandoned_listen_is_harmless,
    ),
    two(
        "abandoned-connect-is-harmless",
        "an abandoned connect causes no crash, and a new connection can be made",
        "NCCL src/proxy.cc:1776 (abort while a connection is pending)",
        giving_up::abandoned_connect_is_harmless,
    ),
    two(
        "many-connections",
        "64 connections each way are pending at once and are all made: channels times peers",
        "NCCL src/transport/net.cc:810, 885; up to 64 channels",
        several::many_connections,
    )
    .within(40),
    two(
        "every-device-connects",
        "every device listens and connects, to its like and to another of its plane and rail",
        "NCCL src/transport/net.cc:885 (device indices are the rank's own); NCCL src/graph/search.cc:597-607",
        several::every_device_connects,
    ),
    one(
        "foreign-handle-is-refused",
        "a handle of another plugin makes connect fail or wait; it does not crash: nothing checks that ranks agree",
        "NCCL src/transport/net.cc:885 (no exchange of plugin names)",
        handles::foreign_handle_is_refused,
    ),
    two(
        "connections-leak-no-descriptors",
        "descriptors do not grow over 50 connections opened and closed",
        "NCCL src/transport/net.cc:1196-1300 (every communicator's end closes all)",
        giving_up::connections_leak_no_descriptors,
    )
    .within(40),
];

fn connection_to_oneself(case: &mut Case) -> Outcome {
    whole(case, &[few(), vec![Message::of(1 << 20); 8]].concat(), Manner::LIKE_NCCL)
}

fn device_handle_place_may_be_null(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let mut copy = HandlePlace::of(handle.bytes());
    let mut opening = Opening::default();
    case.until("connect and accept with null for the device handle", || {
        Ok(opening.step(&net, 0, &mut copy, &listener, true)?.then_some(()))
    })?;
    finish(case, net, listener, opening)
}

/// Moves messages over the connection, and closes all.
fn finish(case: &mut Case, net: Net, listener: ListenComm, opening: Opening) -> Outcome {
    listener.close()?;
    let link = opening.link()?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}
