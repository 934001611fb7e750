//! Several connections, listeners and devices at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use net_loader::raw::{HandlePlace, Net, ReceiveComm, SendComm};

use crate::conform::behaviours::{few, give, group_most, named, pass, take, talk};
use crate::conform::case::{Case, Idle, Outcome, Stop, fail, hold, skip};
use crate::conform::link::{Link, Opening, accept, connect, place, trade};
use crate::conform::traffic::{Flow, Manner, Message, Outgoing, drive};

pub(super) fn listeners_are_independent(case: &mut Case) -> Outcome {
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

pub(super) fn both_directions_from_one_thread(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for _ in 0..5 {
        let link = Link::open(case, &net)?;
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        link.close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn listener_takes_ten_in_turn(case: &mut Case) -> Outcome {
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

pub(super) fn connects_race_on_one_listener(case: &mut Case) -> Outcome {
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
pub(super) fn connects_race_on_two_listeners(case: &mut Case) -> Outcome {
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

pub(super) fn many_connections(case: &mut Case) -> Outcome {
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
pub(super) fn every_device_connects(case: &mut Case) -> Outcome {
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
