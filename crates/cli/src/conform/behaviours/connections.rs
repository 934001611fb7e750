//! listen, connect, accept, close.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use net_loader::raw::{HandlePlace, ListenComm, Net, ReceiveComm, SendComm};

use super::super::behaviour::{Behaviour, one, two};
use super::super::case::{COMMUNICATOR, Case, Idle, Outcome, Stop, fail, hold, skip};
use super::super::link::{Link, Opening, accept, connect, place, trade};
use super::super::pace::{BLOCKS, at_once, soon, timed};
use super::super::traffic::{Flow, Manner, Message, Outgoing, drive};
use super::{GROUPS_EXPECTED_SINCE, few, give, group_most, holdings, named, pass, take, talk};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "listen-returns-a-comm-at-once",
        "listen gives a comm and does not block, on every device",
        "NCCL src/transport/net.cc:810 (recvProxySetup)",
        listen_returns_a_comm_at_once,
    ),
    one(
        "handle-stays-within-128-bytes",
        "listen and connect write no byte outside the 128 of the handle",
        "NCCL src/include/plugin/nccl_net.h:16 (NCCL_NET_HANDLE_MAXSIZE)",
        handle_stays_within_128_bytes,
    ),
    one(
        "handle-is-copied-bytes",
        "a handle is copied by value and used at another address; each retry gets the same writable buffer",
        "NCCL src/transport/net.cc:885 (req->handle; it travels through the bootstrap)",
        handle_is_copied_bytes,
    ),
    one(
        "handles-differ",
        "listeners that are open at once have handles that differ: one listen comm per connection",
        "NCCL src/transport/net.cc:810",
        handles_differ,
    ),
    one(
        "listener-never-connected",
        "closeListen succeeds on a listener that no peer connected to",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms)",
        listener_never_connected,
    ),
    one(
        "accept-answers-null-until-connected",
        "accept returns success with a null comm, at once, while no peer connects",
        "NCCL src/proxy.cc:1776 (one thread polls all pending connections)",
        accept_answers_null_until_connected,
    ),
    two(
        "connect-does-not-block",
        "connect returns at once while the peer does not accept: the peer's accept may wait for this thread",
        "NCCL src/proxy.cc:1776",
        connect_does_not_block,
    ),
    one(
        "connect-before-accept",
        "a connection is made when connect is called long before accept, by one thread",
        "NCCL src/proxy.cc:1776",
        connect_before_accept,
    ),
    one(
        "accept-before-connect",
        "a connection is made when accept is called long before connect, by one thread",
        "NCCL src/proxy.cc:1776",
        accept_before_connect,
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
        listeners_are_independent,
    ),
    two(
        "both-directions-from-one-thread",
        "two processes that connect and accept, each in one thread, get both connections",
        "NCCL src/proxy.cc:1776 (both directions are pending at once)",
        both_directions_from_one_thread,
    ),
    two(
        "listener-takes-ten-in-turn",
        "a listen comm accepts ten connections one after the other, each of which moves data",
        "NCCL plugins/net/README.md (accept); aws-ofi-nccl tests itself for it (reuse_listen_comm)",
        listener_takes_ten_in_turn,
    ),
    two(
        "connects-race-on-one-listener",
        "of several connects to one listener each becomes a connection of its own",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms)",
        connects_race_on_one_listener,
    ),
    two(
        "connects-race-on-two-listeners",
        "where each side polls two connections and keeps the first comm that it gets, both keep the ends of one",
        "NCCL src/transport/net.cc:862-878, 1048-1064 (shared comms; up to 2.26 without activeConnect, so every rank behind a proxy connects)",
        connects_race_on_two_listeners,
    )
    .since(GROUPS_EXPECTED_SINCE),
    two(
        "close-listen-right-after-accept",
        "closeListen directly after accept leaves the connection usable",
        "NCCL src/transport/net.cc:1090",
        close_listen_right_after_accept,
    ),
    two(
        "abandoned-listen-is-harmless",
        "a listener closed while a peer connects causes no crash, and a new connection can be made",
        "NCCL src/transport/net.cc:1254 (abort between listen and accept)",
        abandoned_listen_is_harmless,
    ),
    two(
        "abandoned-connect-is-harmless",
        "an abandoned connect causes no crash, and a new connection can be made",
        "NCCL src/proxy.cc:1776 (abort while a connection is pending)",
        abandoned_connect_is_harmless,
    ),
    two(
        "many-connections",
        "64 connections each way are pending at once and are all made: channels times peers",
        "NCCL src/transport/net.cc:810, 885; up to 64 channels",
        many_connections,
    )
    .within(40),
    two(
        "every-device-connects",
        "every device listens and connects, to its like and to another of its plane and rail",
        "NCCL src/transport/net.cc:885 (device indices are the rank's own); NCCL src/graph/search.cc:597-607",
        every_device_connects,
    ),
    one(
        "foreign-handle-is-refused",
        "a handle of another plugin makes connect fail or wait; it does not crash: nothing checks that ranks agree",
        "NCCL src/transport/net.cc:885 (no exchange of plugin names)",
        foreign_handle_is_refused,
    ),
    two(
        "connections-leak-no-descriptors",
        "descriptors do not grow over 50 connections opened and closed",
        "NCCL src/transport/net.cc:1196-1300 (every communicator's end closes all)",
        connections_leak_no_descriptors,
    )
    .within(40),
];

fn listen_returns_a_comm_at_once(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        // The first call on a device may take longer, to open it.
        let (first, _) = net.listen(device)?;
        let (listener, _) = at_once("listen", || Ok(net.listen(device)?))?;
        soon("closeListen", || Ok(listener.close()?))?;
        first.close()?;
    }
    Ok(net.finalize()?)
}

fn handle_stays_within_128_bytes(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        let (listener, handle) = net.listen(device)?;
        hold!(handle.overrun() == 0, "listen wrote {} bytes outside the handle", handle.overrun());
        let mut copy = HandlePlace::of(handle.bytes());
        let mut opening = Opening::default();
        case.until("connect and accept", || {
            Ok(opening.step(&net, device, &mut copy, &listener, false)?.then_some(()))
        })?;
        let over = copy.overrun();
        hold!(over == 0, "connect wrote {over} bytes outside the handle");
        hold!(handle.overrun() == 0, "the listener's own handle is overrun");
        opening.link()?.close()?;
        listener.close()?;
    }
    Ok(net.finalize()?)
}

fn handle_is_copied_bytes(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, mut original) = net.listen(0)?;
    let bytes = original.bytes();
    // The memory that listen wrote to is reused, and each attempt passes the same buffer to connect, as NCCL does.
    original.fill(0xdb);
    let mut copy = HandlePlace::of(bytes);
    let mut opening = Opening::default();
    case.until("connect from a copy of the handle", || {
        Ok(opening.step(&net, 0, &mut copy, &listener, false)?.then_some(()))
    })?;
    hold!(original.bytes() == [0xdb; 128], "the handle's first place was written after listen");
    finish(case, net, listener, opening)
}

fn handles_differ(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut handles = HashSet::new();
    let mut listeners = Vec::new();
    for number in 0..32 {
        let (listener, handle) = net.listen(0)?;
        hold!(handles.insert(handle.bytes()), "listener {number} has another's handle");
        listeners.push(listener);
    }
    while !listeners.is_empty() {
        listeners.swap_remove(listeners.len() / 2).close()?;
    }
    Ok(net.finalize()?)
}

fn listener_never_connected(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for round in 0..20 {
        let (listener, _) = net.listen(0)?;
        for _ in 0..round {
            hold!(listener.accept(false)?.is_none(), "accept gave a comm without a peer");
        }
        soon("closeListen", || Ok(listener.close()?))?;
    }
    Ok(net.finalize()?)
}

fn accept_answers_null_until_connected(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, _) = net.listen(0)?;
    case.stage("accept without a peer");
    let accepted = poll(case, "accept", || Ok(listener.accept(false)?))?;
    hold!(accepted.is_none(), "accept gave a comm without a peer");
    listener.close()?;
    Ok(net.finalize()?)
}

/// Connects first alone, then beside another communicator of the process, whose thread connects to itself at the same time.
fn connect_does_not_block(case: &mut Case) -> Outcome {
    let net = case.net()?;
    if case.role() == 0 {
        let opened = (0..CONNECTS).map(|_| Ok(net.listen(0)?)).collect::<Outcome<Vec<_>>>()?;
        let handles: Vec<u8> = opened.iter().flat_map(|(_, handle)| handle.bytes()).collect();
        case.send(&handles)?;
        case.receive("wait, without accepting, while the peer connects")?;
        for (number, (listener, _)) in opened.into_iter().enumerate() {
            let comm = accept(case, &listener)?;
            listener.close()?;
            hold!(take(case, &comm, 256, 0)? == named(number), "message {number} is wrong");
            case.meet("the message is there")?;
            comm.close()?;
        }
    } else {
        let bytes = case.receive("wait for the handles")?;
        let mut handles = bytes.chunks(128).map(place).collect::<Outcome<Vec<_>>>()?;
        case.stage("connect while the peer does not accept");
        let alone = poll(case, "connect", || Ok(net.connect(0, &mut handles[0], false)?))?;
        let mut comms = vec![alone];
        comms.extend(connect_beside(case, &net, &mut handles[1..])?);
        case.send(b"tried")?;
        for (number, (comm, handle)) in comms.into_iter().zip(&mut handles).enumerate() {
            let comm = comm.map_or_else(|| connect(case, &net, handle), Ok)?;
            give(case, &comm, &named(number), 0)?;
            case.meet("the message is there")?;
            comm.close()?;
        }
    }
    Ok(net.finalize()?)
}

const CONNECTS: usize = 4;

/// Polls a call for a while, or until it gives a comm. No call may block, and most must not even sleep briefly: one thread polls all
/// pending connections.
fn poll<T>(
    case: &Case,
    name: &str,
    mut call: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<Option<T>> {
    let (mut comm, mut calls, mut dozed) = (None, 0, Vec::new());
    case.during(POLLED, || {
        if comm.is_none() {
            let (answer, took) = timed(&mut call)?;
            hold!(took.own < BLOCKS, "{name} took {:.2} s of its own", took.own.as_secs_f64());
            comm = answer;
            calls += 1;
            if took.slept > DOZE {
                dozed.push(took.slept);
            }
        }
        Ok(())
    })?;
    hold!(
        dozed.len() < 2 || dozed.len() * 2 <= calls,
        "{} of {calls} calls of {name} slept, up to {:.0?}",
        dozed.len(),
        dozed.iter().max().copied().unwrap_or_default()
    );
    Ok(comm)
}

/// Polls connect for each handle, while another thread opens and closes connections.
fn connect_beside(
    case: &Case,
    net: &Net,
    handles: &mut [HandlePlace],
) -> Outcome<Vec<Option<SendComm>>> {
    let other = Net::init(&case.library()?, COMMUNICATOR + 1)?;
    let (over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let comms = thread::scope(|scope| -> Outcome<Vec<Option<SendComm>>> {
        let beside = scope.spawn(|| -> Outcome {
            while !over.load(Ordering::Relaxed) {
                let number = opened.load(Ordering::Relaxed);
                open_watched(case, &other, number)?;
                opened.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let mut tries = || -> Outcome<Vec<Option<SendComm>>> {
            handles
                .iter_mut()
                .map(|handle| {
                    let before = opened.load(Ordering::Relaxed);
                    let (begun, mut comm) = (Instant::now(), None);
                    case.until(
                        "connect while another thread does, and the peer does not accept",
                        || {
                            if comm.is_none() {
                                comm = at_once("connect", || Ok(net.connect(0, handle, false)?))?;
                            }
                            let others =
                                opened.load(Ordering::Relaxed) > before || beside.is_finished();
                            Ok((begun.elapsed() > POLLED && others).then_some(()))
                        },
                    )?;
                    Ok(comm)
                })
                .collect()
        };
        let comms = tries();
        over.store(true, Ordering::Relaxed);
        beside.join().map_err(|_| Stop::Fail("conform's thread died".to_owned()))??;
        comms
    })?;
    other.finalize()?;
    Ok(comms)
}

/// A connection to this process; none of its calls may block.
fn open_watched(case: &Case, net: &Net, number: usize) -> Outcome {
    let beside = |name| format!("{name}, beside a connect that is pending,");
    let (listener, handle) = at_once(&beside("listen"), || Ok(net.listen(0)?))?;
    let mut copy = HandlePlace::of(handle.bytes());
    let mut opening = Opening::default();
    case.until("connect beside a connect that is pending", || {
        let connect = || Ok(net.connect(0, &mut copy, false)?);
        opening.connect(|| at_once(&beside("connect"), connect))?;
        let accept = || Ok(listener.accept(false)?);
        Ok(opening.accept(|| at_once(&beside("accept"), accept))?.then_some(()))
    })?;
    listener.close()?;
    let link = opening.link()?;
    pass(case, &link.send, &link.receive, number)?;
    link.close()
}

const POLLED: Duration = Duration::from_millis(400);
/// Longer than any sleep of a call that only polls.
const DOZE: Duration = Duration::from_millis(20);

fn connect_before_accept(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let mut copy = HandlePlace::of(handle.bytes());
    let mut opening = Opening::default();
    case.stage("connect alone");
    case.during(Duration::from_millis(200), || {
        opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?;
        Ok(())
    })?;
    case.until("connect and accept", || {
        opening.accept(|| Ok(listener.accept(false)?))?;
        Ok(opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?.then_some(()))
    })?;
    finish(case, net, listener, opening)
}

fn accept_before_connect(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, handle) = net.listen(0)?;
    let mut copy = HandlePlace::of(handle.bytes());
    case.during(Duration::from_millis(200), || {
        hold!(listener.accept(false)?.is_none(), "accept gave a comm without a peer");
        Ok(())
    })?;
    let mut opening = Opening::default();
    case.until("accept and connect", || {
        opening.accept(|| Ok(listener.accept(false)?))?;
        Ok(opening.connect(|| Ok(net.connect(0, &mut copy, false)?))?.then_some(()))
    })?;
    finish(case, net, listener, opening)
}

fn finish(case: &mut Case, net: Net, listener: ListenComm, opening: Opening) -> Outcome {
    listener.close()?;
    let link = opening.link()?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn connection_to_oneself(case: &mut Case) -> Outcome {
    super::whole(case, &[few(), vec![Message::of(1 << 20); 8]].concat(), Manner::LIKE_NCCL)
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

fn listeners_are_independent(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let opened = (0..8).map(|_| Ok(net.listen(0)?)).collect::<Outcome<Vec<_>>>()?;
    let (listeners, handles): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let mut handles: Vec<HandlePlace> =
        handles.iter().map(|handle| HandlePlace::of(handle.bytes())).collect();
    let mut sends: Vec<Option<SendComm>> = (0..8).map(|_| None).collect();
    let mut receives: Vec<Option<ReceiveComm>> = (0..8).map(|_| None).collect();
    case.until("connect eight, the last one first", || {
        for number in (0..8).rev() {
            if sends[number].is_none() {
                sends[number] = net.connect(0, &mut handles[number], false)?;
            }
        }
        for number in 0..8 {
            if receives[number].is_none() {
                receives[number] = listeners[number].accept(false)?;
            }
        }
        let all = sends.iter().all(Option::is_some) && receives.iter().all(Option::is_some);
        Ok(all.then_some(()))
    })?;
    for listener in listeners {
        listener.close()?;
    }
    let sends: Vec<SendComm> = sends.into_iter().flatten().collect();
    let receives: Vec<ReceiveComm> = receives.into_iter().flatten().collect();
    for number in [3, 0, 7, 5, 1, 6, 2, 4] {
        pass(case, &sends[number], &receives[number], 10 + number)?;
    }
    for (send, receive) in sends.into_iter().zip(receives) {
        receive.close()?;
        send.close()?;
    }
    Ok(net.finalize()?)
}

fn both_directions_from_one_thread(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for _ in 0..5 {
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

fn listener_takes_ten_in_turn(case: &mut Case) -> Outcome {
    let net = case.net()?;
    if case.role() == 1 {
        let (listener, handle) = net.listen(0)?;
        case.send(&handle.bytes())?;
        for number in 0..10 {
            let comm = accept(case, &listener)?;
            hold!(take(case, &comm, 300, 0)? == named(number), "message {number} is wrong");
            case.meet("a message is there")?;
            comm.close()?;
        }
        listener.close()?;
    } else {
        let bytes = case.receive("wait for the handle")?;
        for number in 0..10 {
            let comm = connect(case, &net, &mut place(&bytes)?)?;
            give(case, &comm, &named(number), 0)?;
            case.meet("a message is there")?;
            comm.close()?;
        }
    }
    Ok(net.finalize()?)
}

fn connects_race_on_one_listener(case: &mut Case) -> Outcome {
    let net = case.net()?;
    // In the first round accept is called at any time, in the second when all connects are under way.
    for all_first in [false, true] {
        if case.role() == 1 {
            let (listener, handle) = net.listen(0)?;
            case.send(&handle.bytes())?;
            if all_first {
                case.receive("wait for the first calls of connect")?;
            }
            let mut comms = Vec::new();
            case.until("accept four", || {
                comms.extend(listener.accept(false)?);
                Ok((comms.len() == RACERS).then_some(()))
            })?;
            listener.close()?;
            case.meet("four connections")?;
            let mut missing: Vec<usize> = (0..RACERS).collect();
            for comm in &comms {
                let bytes = take(case, comm, 300, 0)?;
                let Some(at) = missing.iter().position(|number| bytes == named(*number)) else {
                    return fail("two connections carry one's messages");
                };
                missing.swap_remove(at);
            }
            case.meet("four messages")?;
            comms.into_iter().try_for_each(ReceiveComm::close)?;
        } else {
            let bytes = case.receive("wait for the handle")?;
            let mut handles = (0..RACERS).map(|_| place(&bytes)).collect::<Outcome<Vec<_>>>()?;
            let mut comms: Vec<Option<SendComm>> = (0..RACERS).map(|_| None).collect();
            let mut connect_all = || {
                for (comm, handle) in comms.iter_mut().zip(&mut handles) {
                    if comm.is_none() {
                        *comm = net.connect(0, handle, false)?;
                    }
                }
                Ok(comms.iter().all(Option::is_some).then_some(()))
            };
            connect_all()?;
            if all_first {
                case.send(b"connecting")?;
            }
            case.until("connect four times", connect_all)?;
            case.meet("four connections")?;
            let comms: Vec<SendComm> = comms.into_iter().flatten().collect();
            // The receiver takes the messages in its own order, so all must be in flight at once.
            give_all(case, &comms)?;
            case.meet("four messages")?;
            comms.into_iter().try_for_each(SendComm::close)?;
        }
    }
    Ok(net.finalize()?)
}

const RACERS: usize = 4;

/// The two sides poll in opposite orders, as NCCL's proxies may: each polls in the order in which the ranks of its own host came to it.
fn connects_race_on_two_listeners(case: &mut Case) -> Outcome {
    let net = case.net()?;
    group_most(&net)?;
    // Keeps the device open: up to v10 a plugin may close it with the last comm, and open it again in each round.
    let (kept, _) = net.listen(0)?;
    for number in 0..RACES {
        // In odd rounds accept is called only when both connects are under way, in even rounds at any time.
        let both_first = number % 2 == 1;
        if case.role() == 1 {
            let listening = [net.listen(0)?, net.listen(0)?];
            case.send(&listening.each_ref().map(|(_, handle)| handle.bytes()).concat())?;
            if both_first {
                case.receive("wait for the first calls of connect")?;
            }
            let comm = case.until("accept on either listener", || {
                let mut taken = None;
                for (listener, _) in listening.iter().rev() {
                    if taken.is_none() {
                        taken = listener.accept(false)?;
                    }
                }
                Ok(taken)
            })?;
            for (listener, _) in listening {
                listener.close()?;
            }
            hold!(take(case, &comm, 300, 0)? == named(number), "the message is wrong");
            case.meet("a message is there")?;
            comm.close()?;
        } else {
            let bytes = case.receive("wait for the handles")?;
            let mut handles = bytes.chunks(128).map(place).collect::<Outcome<Vec<_>>>()?;
            let mut connect_once = || {
                let mut taken = None;
                for handle in &mut handles {
                    if taken.is_none() {
                        taken = net.connect(0, handle, false)?;
                    }
                }
                Ok(taken)
            };
            let at_once = connect_once()?;
            if both_first {
                case.send(b"connecting")?;
            }
            let comm = match at_once {
                Some(comm) => comm,
                None => case.until("connect to either listener", connect_once)?,
            };
            give(case, &comm, &named(number), 0)?;
            case.meet("a message is there")?;
            comm.close()?;
        }
    }
    kept.close()?;
    Ok(net.finalize()?)
}

const RACES: usize = 40;

fn give_all(case: &Case, comms: &[SendComm]) -> Outcome {
    let message = [Message::of(256)];
    let mut flows = Vec::new();
    for (number, comm) in comms.iter().enumerate() {
        flows.push(Outgoing::new(comm, 100 + number, &message, Manner::LIKE_NCCL)?);
    }
    let mut moving: Vec<&mut dyn Flow> = Vec::new();
    for flow in &mut flows {
        moving.push(flow);
    }
    drive(case, "send on every connection", &mut moving)?;
    flows.into_iter().try_for_each(Outgoing::end)
}

fn close_listen_right_after_accept(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for round in 0..10 {
        // In odd rounds the message is sent after the close, in even rounds at any time.
        let after_close = round % 2 == 1;
        if case.role() == 1 {
            let (listener, handle) = net.listen(0)?;
            case.send(&handle.bytes())?;
            let comm = accept(case, &listener)?;
            listener.close()?;
            if after_close {
                case.send(b"closed")?;
            }
            hold!(take(case, &comm, 300, 0)? == named(1), "the message is wrong");
            case.meet("a message is there")?;
            comm.close()?;
        } else {
            let mut handle = place(&case.receive("wait for the handle")?)?;
            let comm = connect(case, &net, &mut handle)?;
            if after_close {
                case.receive("wait for the close of the listener")?;
            }
            give(case, &comm, &named(1), 0)?;
            case.meet("a message is there")?;
            comm.close()?;
        }
    }
    Ok(net.finalize()?)
}

fn abandoned_listen_is_harmless(case: &mut Case) -> Outcome {
    let net = case.net()?;
    // In turn the listener is closed at any time, and when the peer's connect is under way.
    for both_first in [false, true, false, true] {
        let (listener, handle) = net.listen(0)?;
        let mut theirs = trade(case, &handle)?;
        let mut comm = None;
        case.during(Duration::from_millis(60), || {
            // An error is allowed too: the peer has closed.
            if comm.is_none() {
                comm = net.connect(0, &mut theirs, false).unwrap_or(None);
            }
            Ok(())
        })?;
        if both_first {
            case.meet("both have called connect")?;
        }
        listener.close()?;
        case.meet("both listeners are closed")?;
        comm.map_or(Ok(()), SendComm::close)?;
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

fn abandoned_connect_is_harmless(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for tries in [1, 3, 50] {
        let (listener, handle) = net.listen(0)?;
        let mut theirs = trade(case, &handle)?;
        let mut comm = None;
        for _ in 0..tries {
            if comm.is_none() {
                comm = net.connect(0, &mut theirs, false)?;
            }
        }
        case.meet("both have given up")?;
        let mut accepted = None;
        case.during(Duration::from_millis(60), || {
            if accepted.is_none() {
                accepted = listener.accept(false)?;
            }
            Ok(())
        })?;
        case.meet("both have tried to accept")?;
        listener.close()?;
        comm.map_or(Ok(()), SendComm::close)?;
        accepted.map_or(Ok(()), ReceiveComm::close)?;
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

fn many_connections(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let opened = (0..MANY).map(|_| Ok(net.listen(0)?)).collect::<Outcome<Vec<_>>>()?;
    let mut listeners = Vec::new();
    let mut words = Vec::new();
    for (listener, handle) in opened {
        listeners.push(Some(listener));
        words.extend_from_slice(&handle.bytes());
    }
    let theirs = case.swap("trade handles", &words)?;
    let mut handles = theirs.chunks(128).map(place).collect::<Outcome<Vec<_>>>()?;
    let mut sends: Vec<Option<SendComm>> = (0..MANY).map(|_| None).collect();
    let mut receives: Vec<Option<ReceiveComm>> = (0..MANY).map(|_| None).collect();
    case.until("connect and accept all", || {
        for number in 0..MANY {
            if sends[number].is_none() {
                sends[number] = net.connect(0, &mut handles[number], false)?;
            }
            if let Some(listener) = &listeners[number] {
                receives[number] = listener.accept(false)?;
            }
            if receives[number].is_some()
                && let Some(listener) = listeners[number].take()
            {
                listener.close()?;
            }
        }
        let all = sends.iter().all(Option::is_some) && receives.iter().all(Option::is_some);
        Ok(all.then_some(()))
    })?;
    let links: Vec<Link> = sends
        .into_iter()
        .flatten()
        .zip(receives.into_iter().flatten())
        .map(|(send, receive)| Link { send, receive })
        .collect();
    for (number, link) in links.iter().enumerate() {
        let message = Message::of(100 + number).in_room(1000);
        talk(case, link, &[message], Manner::LIKE_NCCL)?;
    }
    links.into_iter().try_for_each(Link::close)?;
    Ok(net.finalize()?)
}

const MANY: usize = 64;

/// Connects devices of the same number first, then those of one plane in another order. NCCL pairs any two devices unless both have a
/// planeId and these differ, and tries other rails where its rings may cross them. Where the plugin reports no planeId, as for Ethernet and
/// InfiniBand, or another railId or speed, the plugin decides whether devices of one network connect.
fn every_device_connects(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut planes = BTreeMap::<_, Vec<_>>::new();
    for device in 0..net.devices()? {
        talk_over(case, &net, device)?;
        let found = net.properties(device)?;
        planes.entry(found.plane).or_default().push((device, (found.rail, found.speed_mbps)));
    }
    let mut apart = None;
    for (plane, devices) in planes {
        let next = devices.iter().cycle().skip(1);
        for ((one, like), (other, unlike)) in devices.iter().zip(next) {
            let pair = [*one, *other];
            if one == other {
                continue;
            }
            if plane.is_some() && like == unlike {
                talk_over(case, &net, pair[case.role()])?;
            } else if apart.is_none() && !connects(case, &net, pair[case.role()])? {
                apart = Some(pair);
            }
        }
    }
    net.finalize()?;
    match apart {
        Some([one, other]) => skip(format_args!(
            "devices {one} and {other} do not connect, each connects to its like, and planeId, railId and speed do not say that they are of one network"
        )),
        None => Ok(()),
    }
}

/// Connects this device to the device that the other side names, and moves messages.
fn talk_over(case: &mut Case, net: &Net, device: i32) -> Outcome {
    let link = Link::open_by(case, net, device)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()
}

/// Whether this device connects to the device that the other side names; if so, messages are moved. The answer is no after an error, or
/// when the time has passed.
fn connects(case: &mut Case, net: &Net, device: i32) -> Outcome<bool> {
    let (listener, handle) = net.listen(device)?;
    let mut theirs = trade(case, &handle)?;
    let mut opening = Opening::default();
    case.stage("connect devices that may be of two networks");
    let end = Instant::now() + APART;
    let (mut idle, mut other) = (Idle::default(), None);
    let is_connected = loop {
        match opening.step(net, device, &mut theirs, &listener, false) {
            Ok(true) => break true,
            Ok(false) => {}
            Err(Stop::Code(_)) => break false,
            Err(stop) => return Err(stop),
        }
        if other.is_none() {
            other = case.received()?;
        }
        if other.as_deref() == Some(&[0]) || Instant::now() >= end {
            break false;
        }
        idle.pass();
    };
    case.send(&[u8::from(is_connected)])?;
    let other = match other {
        Some(other) => other,
        None => case.receive("whether the other side is connected")?,
    };
    listener.close()?;
    if !is_connected || other != [1] {
        return Ok(false);
    }
    let link = opening.link()?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(true)
}

/// The time for a connect between two networks.
const APART: Duration = Duration::from_secs(3);

fn foreign_handle_is_refused(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mixed: Vec<u8> = (0..128u32).map(|byte| (byte * 151 % 251).to_le_bytes()[0]).collect();
    for bytes in [vec![0; 128], vec![0xff; 128], mixed] {
        let mut handle = place(&bytes)?;
        let end = Instant::now() + Duration::from_millis(150);
        case.stage("connect with a handle of another plugin");
        while Instant::now() < end {
            match at_once("connect", || Ok(net.connect(0, &mut handle, false).ok().flatten()))? {
                None => {}
                Some(_) => return fail("connect gave a comm"),
            }
        }
        hold!(handle.overrun() == 0, "connect wrote outside the handle");
    }
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn connections_leak_no_descriptors(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut before = (0, 0);
    for cycle in 0..WARM + CYCLES {
        if cycle == WARM {
            before = holdings()?;
        }
        let link = Link::open(case, &net)?;
        talk(case, &link, &[Message::of(100)], Manner::LIKE_NCCL)?;
        link.close()?;
    }
    case.meet("all cycles are over")?;
    let after = holdings()?;
    let (descriptors, threads) = (before.0 + SLACK, before.1 + SLACK);
    hold!(
        after.0 <= descriptors,
        "{} descriptors before {CYCLES} connections, {} after",
        before.0,
        after.0
    );
    hold!(
        after.1 <= threads,
        "{} threads before {CYCLES} connections, {} after",
        before.1,
        after.1
    );
    Ok(net.finalize()?)
}

const WARM: usize = 10;
const CYCLES: usize = 50;
/// Less than one for every five connections.
const SLACK: usize = 9;
